"""braidstream: active-active event streams on the Redis or Valkey servers you already run.

`import braidstream as redis` is enough: all public names of redis-py are here. Redis, StrictRedis, from_url,
Sentinel and their asyncio twins are ours; RedisCluster refuses.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

import redis as _redis
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
)
from braidstream.cluster import RedisCluster as RedisCluster
from braidstream.net.compat import fall_back_to as _fall_back_to
from braidstream.clients.sync import Redis as Redis
from braidstream.consumers.held import Reject as Reject
from braidstream.consumers.message import Message as Message
from braidstream.consumers.threads import Consumer as Consumer
from braidstream.consumers.tracing import trace_fields as trace_fields
from braidstream.exceptions import (
    BraidError as BraidError,
    HomeError as HomeError,
    LibraryError as LibraryError,
    NotARegionError as NotARegionError,
    RefusedError as RefusedError,
    RegionTakenError as RegionTakenError,
)
from braidstream.sentinel import Sentinel as Sentinel

if TYPE_CHECKING:  # newer than the oldest redis-py that is supported
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
else:
    __getattr__ = _fall_back_to(_redis)

__version__ = _version("braidstream")
__all__ = sorted(
    {
        *_redis.__all__,
        "BraidError",
        "Consumer",
        "HomeError",
        "LibraryError",
        "Message",
        "NotARegionError",
        "RefusedError",
        "RegionTakenError",
        "Reject",
        "asyncio",
        "backoff",
        "client",
        "cluster",
        "connection",
        "credentials",
        "exceptions",
        "retry",
        "sentinel",
        "trace_fields",
    }
)

StrictRedis = Redis


def from_url(url: str, **kwargs: Any) -> Redis:
    """A client by its URL, like redis://user:password@host:6379/0, rediss:// for TLS, or unix://."""
    return Redis.from_url(url, **kwargs)
