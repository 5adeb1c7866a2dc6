"""The arguments of redis-py's clients with their types, so that editors complete and mypy checks them.

They are those of the newest supported redis-py; `tests/unit/test_redis_py.py` compares. Only types: redis-py
takes the arguments at run time.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from redis.asyncio.connection import ConnectionPool as AsyncioPool
    from redis.asyncio.retry import Retry as AsyncioRetry
    from redis.cache import CacheConfig, CacheInterface
    from redis.connection import ConnectionPool
    from redis.credentials import CredentialProvider
    from redis.driver_info import DriverInfo
    from redis.event import EventDispatcher
    from redis.maint_notifications import MaintNotificationsConfig, OSSMaintNotificationsHandler
    from redis.retry import Retry


class _Options(TypedDict, total=False):
    """What the sync and the asyncio client both take."""

    socket_timeout: float | None
    socket_connect_timeout: float | None
    socket_read_size: int
    socket_keepalive: bool | None
    socket_keepalive_options: Mapping[int, int | bytes] | None
    unix_socket_path: str | None
    encoding: str
    encoding_errors: str
    decode_responses: bool
    retry_on_timeout: bool
    retry_on_error: list[type[Exception]] | None
    ssl: bool
    ssl_keyfile: str | None
    ssl_certfile: str | None
    ssl_cert_reqs: "str | ssl.VerifyMode"
    ssl_include_verify_flags: "list[ssl.VerifyFlags] | None"
    ssl_exclude_verify_flags: "list[ssl.VerifyFlags] | None"
    ssl_ca_certs: str | None
    ssl_ca_path: str | None
    ssl_ca_data: str | None
    ssl_check_hostname: bool
    ssl_password: str | None
    ssl_min_version: "ssl.TLSVersion | None"
    ssl_ciphers: str | None
    max_connections: int | None
    single_connection_client: bool
    health_check_interval: int
    client_name: str | None
    lib_name: str | None
    lib_version: str | None
    driver_info: "DriverInfo | None"
    username: str | None
    redis_connect_func: Callable[..., Any] | None
    credential_provider: "CredentialProvider | None"
    protocol: int | None
    legacy_responses: bool
    event_dispatcher: "EventDispatcher | None"
    maint_notifications_config: "MaintNotificationsConfig | None"


class SyncOptions(_Options, total=False):
    """What `braidstream.Redis` takes by name, besides host, port, db and password."""

    connection_pool: "ConnectionPool | None"
    retry: "Retry"
    ssl_validate_ocsp: bool
    ssl_validate_ocsp_stapled: bool
    ssl_ocsp_context: Any
    ssl_ocsp_expected_cert: str | None
    cache: "CacheInterface | None"
    cache_config: "CacheConfig | None"
    oss_cluster_maint_notifications_handler: "OSSMaintNotificationsHandler | None"


class AsyncioOptions(_Options, total=False):
    """What `braidstream.asyncio.Redis` takes by name."""

    host: str
    port: int
    db: str | int
    password: str | None
    connection_pool: "AsyncioPool | None"
    retry: "AsyncioRetry"
    auto_close_connection_pool: bool | None
