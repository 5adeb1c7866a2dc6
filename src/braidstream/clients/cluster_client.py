"""`braidstream.RedisCluster`. cluster.py and cluster_pipeline.py do the work, here with I/O that
blocks. aio_cluster.py is its asyncio twin."""

from typing import TYPE_CHECKING, Any

import redis
import redis.cluster

from braidstream.clients.cluster_pipeline import QueuedCommands
from braidstream.clients.later_commands import Later, LaterCommands
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.reader import Reading
from braidstream.clients.shared_cluster import ClusterCommands, ClusterPlans
from braidstream.clients.sync import Plans, StreamCommands
from braidstream.clients.sync_topic import Topics
from braidstream.clusters.nodes import BlockingNodes, BlockingSender, finish
from braidstream.engine.redis_py import cluster_pipeline_arguments


class _BlockingPlans(ClusterPlans, Plans):
    give = staticmethod(finish)

    def sender(self, conn: Any) -> Any:
        return BlockingSender(self.new_sender(conn))

    @property
    def response_callbacks(self) -> Any:
        """redis-py's parsers of replies; every node has the same."""
        return self.get_redis_connection(self.get_default_node()).response_callbacks  # type: ignore[attr-defined]


class ClusterPipeline(
    QueuedCommands, _BlockingPlans, StreamCommands, LogCommands, LaterCommands, redis.cluster.ClusterPipeline
):
    __doc__ = QueuedCommands.__doc__

    def __init__(self, cluster: Any, transaction: bool) -> None:
        self.begin(cluster, transaction)
        super().__init__(**cluster_pipeline_arguments(cluster), transaction=transaction)
        self.encoder = cluster.encoder


class Client(ClusterCommands, _BlockingPlans, redis.RedisCluster):
    """How the client works, for our own layers. Its users see `RedisCluster`."""

    nodes_class = BlockingNodes
    pipeline_class = ClusterPipeline


if TYPE_CHECKING:

    class _Shown: ...
else:
    _Shown = Client


class RedisCluster(_Shown, StreamCommands, LogCommands, Later, Reading, Topics, redis.RedisCluster):
    """redis.RedisCluster on a braidstream region. Same constructor, same methods, and:

    idempotent: every XADD with `*` gets a message ID, so the client resends it if its reply is lost.
    producer: a name for its messages; random by default. Clients that run at once need different ones.
    """

    if TYPE_CHECKING:  # what editors, mypy and the site show

        def __init__(
            self,
            *args: Any,
            idempotent: bool = False,
            producer: str | bytes | None = None,
            **options: Any,
        ) -> None: ...

        def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> ClusterPipeline: ...

        def execute_command(self, *args: Any, **options: Any) -> Any: ...
