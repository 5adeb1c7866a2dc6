"""`redis.asyncio.cluster`, with a RedisCluster that refuses: see `braidstream.cluster`."""

from typing import TYPE_CHECKING, Any

import redis.asyncio.cluster
from redis.asyncio.cluster import ClusterNode as ClusterNode

from braidstream.net.compat import fall_back_to
from braidstream.clients.raised import cluster_refused


class RedisCluster(redis.asyncio.cluster.RedisCluster):
    """Not supported yet. For plain keys on a cluster use `redis.asyncio.RedisCluster` of redis-py itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise cluster_refused()

    def __del__(self, *args: Any) -> None:
        """Nothing was opened."""


if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.asyncio.cluster)
