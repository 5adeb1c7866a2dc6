"""`redis.sentinel`, with a Sentinel whose clients are ours."""

from typing import TYPE_CHECKING

import redis.sentinel
from redis.sentinel import (
    MasterNotFoundError as MasterNotFoundError,
    SentinelConnectionPool as SentinelConnectionPool,
    SentinelManagedConnection as SentinelManagedConnection,
    SentinelManagedSSLConnection as SentinelManagedSSLConnection,
    SlaveNotFoundError as SlaveNotFoundError,
)

from braidstream.engine.redis_py import fall_back_to
from braidstream.clients.sync import Redis as Redis
from braidstream.clients.shared import SentinelClients
from braidstream.engine.sentinel_pool import SentinelPool


class Sentinel(SentinelClients, redis.sentinel.Sentinel):
    """redis-py's Sentinel. `master_for` and `slave_for` return a `braidstream.Redis`."""

    client_class = Redis
    pool_class = SentinelPool


if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.sentinel)
