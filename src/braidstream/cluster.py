"""`redis.cluster`, with our cluster client in it."""

from typing import TYPE_CHECKING

import redis.cluster
from redis.cluster import ClusterNode as ClusterNode

from braidstream.clients.cluster_client import RedisCluster as RedisCluster
from braidstream.clients.cluster_pipeline import ClusterPipeline as ClusterPipeline
from braidstream.net.compat import fall_back_to

if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.cluster)
