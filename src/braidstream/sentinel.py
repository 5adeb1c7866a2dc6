"""`redis.sentinel`, with a Sentinel whose clients are ours."""

from typing import TYPE_CHECKING, Any

import redis.sentinel
from redis.sentinel import (
    MasterNotFoundError as MasterNotFoundError,
    SentinelConnectionPool as SentinelConnectionPool,
    SentinelManagedConnection as SentinelManagedConnection,
    SentinelManagedSSLConnection as SentinelManagedSSLConnection,
    SlaveNotFoundError as SlaveNotFoundError,
)

from braidstream.clients.compat import rest_of
from braidstream.clients.sync import Redis as Redis
from braidstream.clients.shared import opened


class Sentinel(redis.sentinel.Sentinel):
    """redis-py's Sentinel. `master_for` and `slave_for` return a `braidstream.Redis`."""

    def master_for(
        self,
        service_name: str,
        redis_class: Any = Redis,
        *args: Any,
        idempotent: bool = False,
        producer: str | bytes | None = None,
        **kwargs: Any,
    ) -> Any:
        session = opened(idempotent, producer)
        client = super().master_for(service_name, redis_class, *args, **kwargs)  # type: ignore[no-untyped-call]
        if idempotent:
            client.session = session
        return client

    def slave_for(self, service_name: str, redis_class: Any = Redis, *args: Any, **kwargs: Any) -> Any:
        return super().slave_for(service_name, redis_class, *args, **kwargs)  # type: ignore[no-untyped-call]


if not TYPE_CHECKING:
    __getattr__ = rest_of(redis.sentinel)
