"""`braidstream.asyncio.RedisCluster`: as cluster_client.py, with I/O in an event loop."""

from typing import TYPE_CHECKING, Any

import redis.asyncio.cluster
from redis.cluster import AbstractStrategy

from braidstream.clients.aio import Plans, StreamCommands
from braidstream.clients.aio_topic import AsyncTopics
from braidstream.clients.cluster_pipeline import QueuedCommands
from braidstream.clients.later_commands import AsyncLater, LaterCommands
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.reader import AsyncReading
from braidstream.clients.shared_cluster import ClusterCommands, ClusterPlans
from braidstream.clusters.nodes import AsyncioNodes


class _AsyncioPlans(ClusterPlans, Plans):
    @staticmethod
    def give(work: Any) -> Any:
        return work

    def sender(self, conn: Any) -> Any:
        return self.new_sender(conn)


class ClusterPipeline(  # type: ignore[misc]
    QueuedCommands,
    _AsyncioPlans,
    StreamCommands,
    LogCommands,
    LaterCommands,
    redis.asyncio.cluster.ClusterPipeline,
):
    __doc__ = QueuedCommands.__doc__
    annotate_exception = AbstractStrategy.annotate_exception

    def __init__(self, cluster: Any, transaction: bool) -> None:
        self.begin(cluster, transaction)
        super().__init__(cluster, transaction)
        self.encoder, self.retry = cluster.encoder, cluster.retry
        self.response_callbacks = cluster.response_callbacks

    def get_encoder(self) -> Any:
        return self.encoder


class Client(ClusterCommands, _AsyncioPlans, redis.asyncio.cluster.RedisCluster):  # type: ignore[misc]
    """How the client works, for our own layers. Its users see `RedisCluster`."""

    nodes_class = AsyncioNodes
    pipeline_class = ClusterPipeline


if TYPE_CHECKING:

    class _Shown: ...
else:
    _Shown = Client


class RedisCluster(  # type: ignore[misc]
    _Shown,
    StreamCommands,
    LogCommands,
    AsyncLater,
    AsyncReading,
    AsyncTopics,
    redis.asyncio.cluster.RedisCluster,
):
    """redis.asyncio.RedisCluster on a braidstream region. Same constructor, same methods, and:

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

        async def execute_command(self, *args: Any, **options: Any) -> Any: ...
