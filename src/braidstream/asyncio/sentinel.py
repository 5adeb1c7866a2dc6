"""`redis.asyncio.sentinel`, with a Sentinel whose clients are ours."""

from typing import TYPE_CHECKING

import redis.asyncio.sentinel
from redis.asyncio.sentinel import (
    MasterNotFoundError as MasterNotFoundError,
    SentinelConnectionPool as SentinelConnectionPool,
    SentinelManagedConnection as SentinelManagedConnection,
    SentinelManagedSSLConnection as SentinelManagedSSLConnection,
    SlaveNotFoundError as SlaveNotFoundError,
)

from braidstream.clients.aio import Redis as Redis
from braidstream.engine.redis_py import fall_back_to
from braidstream.clients.shared import SentinelClients
from braidstream.engine.sentinel_pool import AsyncSentinelPool


class Sentinel(SentinelClients, redis.asyncio.sentinel.Sentinel):
    """redis-py's Sentinel. `master_for` and `slave_for` return a `braidstream.asyncio.Redis`."""

    client_class = Redis
    pool_class = AsyncSentinelPool


if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.asyncio.sentinel)
