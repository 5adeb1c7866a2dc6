"""`redis.cluster`, with a RedisCluster that refuses: braidstream does not reach streams on a cluster yet.

redis-py's own would work and write plain streams, which stay in one region, without a word.
"""

from typing import TYPE_CHECKING, Any

import redis.cluster
from redis.cluster import ClusterNode as ClusterNode

from braidstream.net.compat import fall_back_to
from braidstream.clients.raised import cluster_refused


class RedisCluster(redis.cluster.RedisCluster):
    """Not supported yet. For plain keys on a cluster use `redis.RedisCluster` of redis-py itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise cluster_refused()

    def __del__(self) -> None:
        """Nothing was opened."""


if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.cluster)
