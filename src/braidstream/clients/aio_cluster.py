"""`braidstream.asyncio.RedisCluster`: as cluster_client.py, with I/O in an event loop."""

from typing import Any

import redis.asyncio.cluster
from redis.cluster import AbstractStrategy

from braidstream.clients import aio
from braidstream.clients.aio_topic import AsyncTopics
from braidstream.clients.cluster_pipeline import QueuedCommands
from braidstream.clients.later_commands import AsyncLater, LaterCommands
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.reader import AsyncReading
from braidstream.clients.shared_cluster import ClusterCommands, ClusterPlans
from braidstream.clusters.nodes import AsyncioNodes


class _AsyncioPlans(ClusterPlans, aio.Plans):
    @staticmethod
    def give(work: Any) -> Any:
        return work

    def sender(self, conn: Any) -> Any:
        return self.new_sender(conn)


class ClusterPipeline(  # type: ignore[misc]
    QueuedCommands, _AsyncioPlans, LogCommands, LaterCommands, redis.asyncio.cluster.ClusterPipeline
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


class RedisCluster(  # type: ignore[misc]
    ClusterCommands,
    _AsyncioPlans,
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

    nodes_class = AsyncioNodes
    pipeline_class = ClusterPipeline
