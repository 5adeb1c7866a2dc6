"""braidstream: active-active event streams on the Redis or Valkey servers you already run.

`import braidstream as redis` is enough: all public names of redis-py are here. Redis, StrictRedis, from_url,
Sentinel, RedisCluster and their asyncio twins are ours. A name is imported when it is first used: the `braid`
command imports this package too, and `braid --help` needs none of them.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis import (
        AuthenticationError as AuthenticationError,
        AuthenticationWrongNumberOfArgsError as AuthenticationWrongNumberOfArgsError,
        BlockingConnectionPool as BlockingConnectionPool,
        BusyLoadingError as BusyLoadingError,
        ChildDeadlockedError as ChildDeadlockedError,
        Connection as Connection,
        ConnectionError as ConnectionError,
        ConnectionPool as ConnectionPool,
        CredentialProvider as CredentialProvider,
        CrossSlotTransactionError as CrossSlotTransactionError,
        DataError as DataError,
        InvalidPipelineStack as InvalidPipelineStack,
        InvalidResponse as InvalidResponse,
        MaxConnectionsError as MaxConnectionsError,
        OutOfMemoryError as OutOfMemoryError,
        PubSubError as PubSubError,
        ReadOnlyError as ReadOnlyError,
        RedisClusterException as RedisClusterException,
        RedisError as RedisError,
        ResponseError as ResponseError,
        SSLConnection as SSLConnection,
        SentinelConnectionPool as SentinelConnectionPool,
        SentinelManagedConnection as SentinelManagedConnection,
        SentinelManagedSSLConnection as SentinelManagedSSLConnection,
        TimeoutError as TimeoutError,
        UnixDomainSocketConnection as UnixDomainSocketConnection,
        UsernamePasswordCredentialProvider as UsernamePasswordCredentialProvider,
        WatchError as WatchError,
        default_backoff as default_backoff,
    )

    from braidstream import (
        asyncio as asyncio,
        backoff as backoff,
        client as client,
        cluster as cluster,
        connection as connection,
        credentials as credentials,
        exceptions as exceptions,
        retry as retry,
        sentinel as sentinel,
        utils as utils,
    )
    from braidstream.cluster import RedisCluster as RedisCluster
    from braidstream.clients.shared_multi_region import BehindWarning as BehindWarning
    from braidstream.clients.sync import Redis as Redis
    from braidstream.clients.sync_multi_region import MultiRegion as MultiRegion
    from braidstream.consumers.handler import Reject as Reject
    from braidstream.consumers.later import Later as Later
    from braidstream.consumers.handler import Message as Message
    from braidstream.consumers.threads import Consumer as Consumer
    from braidstream.consumers.middleware import trace_fields as trace_fields
    from braidstream.consumers.publisher import Publisher as Publisher
    from braidstream.consumers.run import run as run
    from braidstream.exceptions import (
        BraidError as BraidError,
        HomeError as HomeError,
        LibraryError as LibraryError,
        NotARegionError as NotARegionError,
        RefusedError as RefusedError,
        RegionTakenError as RegionTakenError,
    )
    from braidstream.sentinel import Sentinel as Sentinel
    from redis import (
        ChannelType as ChannelType,
        ClusterKeyspaceNotifications as ClusterKeyspaceNotifications,
        DriverInfo as DriverInfo,
        EventType as EventType,
        KeyNotification as KeyNotification,
        KeyeventChannel as KeyeventChannel,
        KeyspaceChannel as KeyspaceChannel,
        KeyspaceNotifications as KeyspaceNotifications,
        KeyspaceNotificationsInterface as KeyspaceNotificationsInterface,
        KeyspaceWorkerThread as KeyspaceWorkerThread,
        SubkeyeventChannel as SubkeyeventChannel,
        SubkeyspaceChannel as SubkeyspaceChannel,
        SubkeyspaceeventChannel as SubkeyspaceeventChannel,
        SubkeyspaceitemChannel as SubkeyspaceitemChannel,
        Subscription as Subscription,
        get_channel_type as get_channel_type,
    )

    StrictRedis = Redis
    __version__: str
    __all__: list[str]
else:
    _MODULES = (
        "asyncio",
        "backoff",
        "client",
        "cluster",
        "connection",
        "credentials",
        "exceptions",
        "retry",
        "sentinel",
        "utils",
    )
    _OURS = {
        "BehindWarning": "clients.shared_multi_region",
        "BraidError": "exceptions",
        "Consumer": "consumers.threads",
        "HomeError": "exceptions",
        "Later": "consumers.later",
        "LibraryError": "exceptions",
        "Message": "consumers.handler",
        "MultiRegion": "clients.sync_multi_region",
        "NotARegionError": "exceptions",
        "Publisher": "consumers.publisher",
        "Redis": "clients.sync",
        "RedisCluster": "cluster",
        "RefusedError": "exceptions",
        "RegionTakenError": "exceptions",
        "Reject": "consumers.handler",
        "Sentinel": "sentinel",
        "run": "consumers.run",
        "trace_fields": "consumers.middleware",
    }

    def __getattr__(name: str) -> Any:
        value = globals()[name] = _find(name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})

    def _find(name: str) -> Any:
        if name in _OURS:
            return getattr(_import(f"braidstream.{_OURS[name]}"), name)
        if name in _MODULES:
            return _import(f"braidstream.{name}")
        if name == "StrictRedis":
            return _find("Redis")
        if name == "__version__":
            return _import("importlib.metadata").version("braidstream")
        if name == "__all__":
            return sorted({*_import("redis").__all__, *_OURS, *_MODULES})
        found = None if name.startswith("_") else getattr(_import("redis"), name, None)
        if found is None:
            raise AttributeError(f"module 'braidstream' has no attribute {name!r}", name=name)
        return found


def from_url(url: str, **kwargs: Any) -> "Redis":
    """A client by its URL, like redis://user:password@host:6379/0, rediss:// for TLS, or unix://."""
    client: Redis = _import("braidstream.clients.sync").Redis.from_url(url, **kwargs)
    return client
