"""`braidstream.RedisCluster`. cluster.py and cluster_pipeline.py do the work, here with I/O that
blocks. aio_cluster.py is its asyncio twin."""

from typing import Any

import redis
import redis.cluster

from braidstream.clients.cluster_pipeline import QueuedCommands
from braidstream.clients.later_commands import Later, LaterCommands
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.reader import Reading
from braidstream.clients.shared_cluster import ClusterCommands, ClusterPlans
from braidstream.clients.sync import Plans
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
    QueuedCommands, _BlockingPlans, LogCommands, LaterCommands, redis.cluster.ClusterPipeline
):
    __doc__ = QueuedCommands.__doc__

    def __init__(self, cluster: Any, transaction: bool) -> None:
        self.begin(cluster, transaction)
        super().__init__(**cluster_pipeline_arguments(cluster), transaction=transaction)
        self.encoder = cluster.encoder


class RedisCluster(ClusterCommands, _BlockingPlans, LogCommands, Later, Reading, Topics, redis.RedisCluster):
    """redis.RedisCluster on a braidstream region. Same constructor, same methods, and:

    idempotent: every XADD with `*` gets a message ID, so the client resends it if its reply is lost.
    producer: a name for its messages; random by default. Clients that run at once need different ones.
    """

    nodes_class = BlockingNodes
    pipeline_class = ClusterPipeline
