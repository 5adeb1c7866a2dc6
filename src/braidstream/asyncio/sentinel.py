"""`redis.asyncio.sentinel`, with a Sentinel whose clients are ours."""

from typing import TYPE_CHECKING, Any

import redis.asyncio.sentinel
from redis.asyncio.sentinel import (
    MasterNotFoundError as MasterNotFoundError,
    SentinelConnectionPool as SentinelConnectionPool,
    SentinelManagedConnection as SentinelManagedConnection,
    SentinelManagedSSLConnection as SentinelManagedSSLConnection,
    SlaveNotFoundError as SlaveNotFoundError,
)

from braidstream.drivers.aio import Redis as Redis
from braidstream.drivers.compat import rest_of


class Sentinel(redis.asyncio.sentinel.Sentinel):
    """redis-py's Sentinel. `master_for` and `slave_for` return a `braidstream.asyncio.Redis`."""

    def master_for(self, service_name: str, redis_class: Any = Redis, *args: Any, **kwargs: Any) -> Any:
        return super().master_for(service_name, redis_class, *args, **kwargs)

    def slave_for(self, service_name: str, redis_class: Any = Redis, *args: Any, **kwargs: Any) -> Any:
        return super().slave_for(service_name, redis_class, *args, **kwargs)


if not TYPE_CHECKING:
    __getattr__ = rest_of(redis.asyncio.sentinel)
