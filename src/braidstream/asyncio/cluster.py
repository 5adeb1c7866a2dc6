"""`redis.asyncio.cluster`, with our cluster client in it."""

from typing import TYPE_CHECKING

import redis.asyncio.cluster
from redis.asyncio.cluster import ClusterNode as ClusterNode

from braidstream.clients.aio_cluster import ClusterPipeline as ClusterPipeline, RedisCluster as RedisCluster
from braidstream.engine.redis_py import fall_back_to

if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.asyncio.cluster)
