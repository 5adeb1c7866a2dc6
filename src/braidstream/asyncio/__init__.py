"""The asyncio half of the public names: `redis.asyncio`, with our clients in it."""

from typing import TYPE_CHECKING, Any

import redis.asyncio as _redis
from redis.asyncio import (
    AuthenticationError as AuthenticationError,
    AuthenticationWrongNumberOfArgsError as AuthenticationWrongNumberOfArgsError,
    BlockingConnectionPool as BlockingConnectionPool,
    BusyLoadingError as BusyLoadingError,
    ChildDeadlockedError as ChildDeadlockedError,
    Connection as Connection,
    ConnectionError as ConnectionError,
    ConnectionPool as ConnectionPool,
    DataError as DataError,
    InvalidResponse as InvalidResponse,
    OutOfMemoryError as OutOfMemoryError,
    PubSubError as PubSubError,
    ReadOnlyError as ReadOnlyError,
    RedisError as RedisError,
    ResponseError as ResponseError,
    SSLConnection as SSLConnection,
    SentinelConnectionPool as SentinelConnectionPool,
    SentinelManagedConnection as SentinelManagedConnection,
    SentinelManagedSSLConnection as SentinelManagedSSLConnection,
    TimeoutError as TimeoutError,
    UnixDomainSocketConnection as UnixDomainSocketConnection,
    WatchError as WatchError,
    default_backoff as default_backoff,
)

from braidstream.asyncio import (
    client as client,
    cluster as cluster,
    connection as connection,
    retry as retry,
    sentinel as sentinel,
    utils as utils,
)
from braidstream.asyncio.cluster import RedisCluster as RedisCluster
from braidstream.asyncio.sentinel import Sentinel as Sentinel
from braidstream.clients.aio import Redis as Redis
from braidstream.clients.aio_multi_region import MultiRegion as MultiRegion
from braidstream.consumers.tasks import Consumer as Consumer
from braidstream.engine.redis_py import fall_back_to as _fall_back_to

if TYPE_CHECKING:  # newer than the oldest redis-py that is supported
    from redis.asyncio import (
        AsyncClusterKeyspaceNotifications as AsyncClusterKeyspaceNotifications,
        AsyncKeyspaceNotifications as AsyncKeyspaceNotifications,
        AsyncKeyspaceNotificationsInterface as AsyncKeyspaceNotificationsInterface,
        Subscription as Subscription,
    )
else:
    __getattr__ = _fall_back_to(_redis)


__all__ = sorted(
    {
        *_redis.__all__,
        "Consumer",
        "MultiRegion",
        "client",
        "cluster",
        "connection",
        "retry",
        "sentinel",
        "utils",
    }
)

StrictRedis = Redis


def from_url(url: str, **kwargs: Any) -> Redis:
    """A client by its URL, like redis://user:password@host:6379/0, rediss:// for TLS, or unix://."""
    return Redis.from_url(url, **kwargs)
