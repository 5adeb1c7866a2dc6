"""Where an engine is: URLs read, in one place. Sentinel addresses too.

    redis://user:password@host:6379/0                               one server; rediss:// for TLS; unix://
    redis+sentinel://user:password@host:26379,host:26379/service/0  the primary that the sentinels name
    rediss+sentinel://...                                           TLS to the sentinels and to the servers

The user and the password are for the servers. The sentinels' own are options: `?sentinel_username=...` and
`sentinel_password`. Other options are redis-py's.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.connection import RedisSSLContext
from redis.connection import SSLConnection, parse_url
from redis.exceptions import RedisError

from braidstream.errors import ConfigError
from braidstream.net.sentinels import Place, Sentinels

SENTINEL_PORT: Final = 26379
_SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_NO: Final = ("false", "no", "0", "off", "n", "f")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is and who we are there. The password is not shown.

    With `sentinels`, host and port say nothing: the sentinels are asked for every connection.
    """

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    db: int = 0
    user: str | bytes | None = None
    password: str | bytes | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    tls_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    sentinels: Sentinels | None = None

    def __str__(self) -> str:
        if self.sentinels is not None:
            return str(self.sentinels)
        return self.path or f"{self.host}:{self.port}"

    @property
    def place(self) -> Place:
        return self.host, self.port

    def as_user(self, user: str | bytes | None, password: str | bytes | None) -> "Address":
        """The same place, somebody else; None is nobody yet."""
        return replace(self, user=user, password=password)

    def in_db(self, db: int) -> "Address":
        return replace(self, db=db)

    async def located(self) -> "Address":
        """The address of one server. LostError if no sentinel knows it."""
        if self.sentinels is None:
            return self
        host, port = await self.sentinels.primary()
        return replace(self, host=host, port=port, sentinels=None)


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """A sentinel URL taken apart. server: a URL with the same user, database and options, without a host."""

    places: tuple[tuple[str, int], ...]
    service: str
    server: str
    user: str | None
    password: str | None


def split_sentinel(url: str) -> SentinelUrl | None:
    """None if it is another kind of URL; ValueError if it cannot be read."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        return None
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    who, at, hosts = authority.rpartition("@")
    service, _, db = path.partition("/")
    places = tuple(_place(host) for host in hosts.split(",") if host)
    if not places or not service:
        raise ValueError("a sentinel URL names sentinels and a service")
    options = dict(parse_qsl(query, keep_blank_values=True))
    user, password = options.pop("sentinel_username", None), options.pop("sentinel_password", None)
    rest = f"?{urlencode(options)}" if options else ""
    server = f"{_SCHEMES[scheme]}://{who}{at}void/{quote(db)}{rest}"
    return SentinelUrl(places, unquote(service), server, user, password)


def _place(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a sentinel has no host")
    return parts.hostname, parts.port or SENTINEL_PORT


def parse_address(url: str) -> Address:
    """An address from a URL as redis-py takes it, or of sentinels: see the top of the file.

    ConfigError if it cannot be used; it repeats nothing of the URL, which may hold a password.
    """
    try:
        return _parse(url)
    except OSError as error:
        raise ConfigError(
            f"a TLS file that its URL names cannot be used: {error.strerror or 'unreadable'}. "
            "Check ssl_ca_certs, ssl_certfile and ssl_keyfile."
        ) from None
    except (ValueError, TypeError, RedisError):
        raise ConfigError(
            "its URL cannot be read. Write redis://user:password@host:port/db, special characters escaped, "
            "rediss:// with redis-py's ssl_* options, or "
            "redis+sentinel://user:password@host:port,host:port/service."
        ) from None


def _parse(url: str) -> Address:
    group = split_sentinel(url)
    words = parse_url(group.server if group else url)  # type: ignore[no-untyped-call]
    tls, options = None, dict[str, Any]()
    if words.get("connection_class") is SSLConnection:
        options = {key[4:]: value for key, value in words.items() if key.startswith("ssl_")}
        checks = str(options.pop("check_hostname", "true")).lower() not in _NO
        options.setdefault("cert_reqs", "required")
        tls = RedisSSLContext(check_hostname=checks, **options).get()
        options["check_hostname"] = checks
    sentinels = None
    if group is not None:
        sentinels = Sentinels(group.places, group.service, group.user, group.password, tls)
    return Address(
        host=words.get("host", "localhost"),
        port=words.get("port", 6379),
        path=words.get("path"),
        db=words.get("db", 0),
        user=words.get("username"),
        password=words.get("password"),
        tls=tls,
        tls_options=tuple(sorted((key, str(value)) for key, value in options.items())),
        sentinels=sentinels,
    )


class _Pool(redis.sentinel.SentinelConnectionPool):
    """redis-py's pool, that closes its connections to the sentinels too."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.close()


class _AsyncPool(redis.asyncio.sentinel.SentinelConnectionPool):
    """The same for asyncio."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def sentinel_pool(url: str, options: Mapping[str, Any], *, is_async: bool = False) -> Any:
    """redis-py's connection pool for a sentinel URL; None for any other URL."""
    group = split_sentinel(url)
    if group is None:
        return None
    kind: Any = redis.asyncio.sentinel.Sentinel if is_async else redis.sentinel.Sentinel
    pool: Any = _AsyncPool if is_async else _Pool
    words = {**options, **parse_url(group.server)}  # type: ignore[no-untyped-call]
    tls = {name: value for name, value in words.items() if name.startswith("ssl_")}
    if words.pop("connection_class", None) is not None:
        tls["ssl"] = words["ssl"] = True
    for name in ("host", "port"):
        words.pop(name, None)
    login = {"username": group.user, "password": group.password}
    patience = {name: words[name] for name in words if name.startswith("socket_")}
    asked = {**patience, **tls, **{name: value for name, value in login.items() if value is not None}}
    return pool(group.service, kind(group.places, sentinel_kwargs=asked), **words)


def shown(url: str) -> str:
    """The address without its secrets; where it cannot be read for sure, nothing of it."""
    try:
        group = split_sentinel(url)
        if group is not None:
            places = ",".join(f"{host}:{port}" for host, port in group.places)
            found = f"{url.partition('://')[0]}://{places}/{group.service}"
            return "the given URL" if "@" in found else found
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "the given URL"
    if "@" in parts.path + parts.query + parts.fragment:
        return "the given URL"
    if parts.scheme == "unix" and parts.path:
        return f"unix://{parts.path}"
    if not host:
        return "the given URL"
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"
