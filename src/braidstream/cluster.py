"""`redis.cluster`, with our cluster client in it."""

from typing import TYPE_CHECKING

import redis.cluster
from redis.cluster import ClusterNode as ClusterNode

from braidstream.clients.cluster_client import (
    ClusterPipeline as ClusterPipeline,
    RedisCluster as RedisCluster,
)
from braidstream.engine.redis_py import fall_back_to

if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.cluster)
