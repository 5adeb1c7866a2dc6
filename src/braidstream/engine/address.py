"""Parses the URLs of engines and listeners, and shows them without their secrets.

    redis://user:password@host:6379/0                               one server; rediss:// for TLS; unix://
    redis+sentinel://user:password@host:26379,host:26379/service/0  the primary that the sentinels name
    rediss+sentinel://...                                           TLS to the sentinels and to the servers

The user and the password are for the servers. `?sentinel_username=...` and `sentinel_password` are for the
sentinels. All other options are redis-py's.
"""

import socket
import ssl
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio.connection import RedisSSLContext
from redis.connection import SSLConnection, parse_url
from redis.exceptions import RedisError

from braidstream.engine.sentinels import Place, Sentinels
from braidstream.engine.tunnel import Via
from braidstream.errors import ConfigError

SENTINEL_PORT: Final = 26379
_SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
# The schemes of receivers, without and with options.
_RECEIVERS: Final = (("tcp", False), ("tls", False), ("tls", True))
_NO: Final = ("false", "no", "0", "off", "n", "f")
# Shown in place of a URL that may hold a secret.
_HIDDEN: Final = "the given URL"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is, and the user we log in as. repr() hides the password.

    With `sentinels`, host and port are not used: each new connection gets them from the sentinels.
    With `via`, connections go to that receiver, which knows where its engine is.
    is_other: of a user that is not the owner of the certificate in `tls`. An engine may log a connection in
    by its certificate, so each connection there must begin with RESET: `must_reset`.
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
    via: Via | None = None
    is_other: bool = False

    def __str__(self) -> str:
        through = "" if self.via is None else f" through receiver {self.via}"
        if self.sentinels is not None:
            return f"{self.sentinels}{through}"
        return f"{self.path or f'{self.host}:{self.port}'}{through}"

    @property
    def place(self) -> Place:
        return self.host, self.port

    def as_user(self, user: str | bytes | None, password: str | bytes | None) -> "Address":
        """The same server with another user; None: not logged in, not even by our certificate."""
        return replace(self, user=user, password=password, is_other=True)

    @property
    def must_reset(self) -> bool:
        return self.is_other and any(key == "certfile" for key, _ in self.tls_options)

    def in_db(self, db: int) -> "Address":
        return replace(self, db=db)

    def through(self, receiver: str) -> "Address":
        """The same server through a receiver: `parse_receiver`."""
        via = parse_receiver(receiver)
        if self.tls is not None and not via.uses_tls and not Listen(via.host).is_local:
            raise ConfigError(
                "its url uses TLS and its receiver does not, so the password would be readable on the way. "
                "Write tls://host:port."
            )
        return replace(self, via=via)

    @property
    def straight(self) -> "Address":
        """The same server without its receiver."""
        return replace(self, via=None)

    async def resolve(self) -> "Address":
        """The address of one server. Raises LostError if no sentinel knows it."""
        if self.sentinels is None or self.via is not None:
            return self
        host, port = await self.sentinels.primary()
        return replace(self, host=host, port=port, sentinels=None)


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """The parts of a sentinel URL. server: a URL with its user, database and options, and a dummy host."""

    places: tuple[tuple[str, int], ...]
    service: str
    server: str
    user: str | None
    password: str | None


def split_sentinel(url: str) -> SentinelUrl | None:
    """None if it is another kind of URL. Raises ValueError if it is invalid."""
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
    """The address of a redis-py URL or a sentinel URL: see the top of the file.

    Raises ConfigError if it is invalid. The text contains nothing of the URL, which may hold a password.
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


def parse_receiver(url: str) -> Via:
    """The receiver at `tcp://host:port` or `tls://host:port`, the latter with redis-py's ssl_* options.

    Raises ConfigError if the URL is invalid. The files that it names are read later: `receiver_tls`.
    """
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or "@" in parts.netloc or (scheme, bool(parts.query)) not in _RECEIVERS:
        raise ConfigError(
            "its receiver cannot be read. Write tcp://host:port, or tls://host:port with redis-py's ssl_* "
            "options."
        )
    return Via(host, port, url)


def receiver_tls(via: Via) -> ssl.SSLContext | None:
    """Read for each connection. Raises ConfigError if this machine cannot use a file that the URL names."""
    if not via.uses_tls:
        return None
    try:
        return parse_address(via.url.replace("tls", "rediss", 1)).tls
    except ConfigError as error:
        raise ConfigError(f"its receiver: {error}") from None


def shown(url: str) -> str:
    """The address without its secrets. If they cannot be separated with certainty: nothing of it."""
    try:
        group = split_sentinel(url)
        if group is not None:
            places = ",".join(f"{host}:{port}" for host, port in group.places)
            found = f"{url.partition('://')[0]}://{places}/{group.service}"
            return _HIDDEN if "@" in found else found
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return _HIDDEN
    if "@" in parts.path + parts.query + parts.fragment:
        return _HIDDEN
    if parts.scheme == "unix" and parts.path:
        return f"unix://{parts.path}"
    if not host:
        return _HIDDEN
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"


# ----------------------------------------------------------------------------------------------------
# Where a process listens: HOST:PORT, or a Unix socket; and from where its clients come.


@dataclass(frozen=True, slots=True)
class Listen:
    """HOST:PORT, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    path: str | None = None

    @staticmethod
    def parse(text: str) -> "Listen":
        """HOST:PORT, PORT on loopback, or unix:/path."""
        if text.startswith("unix:"):
            return Listen(path=text.removeprefix("unix:").replace("///", "/", 1))
        host, colon, port = (text if ":" in text else f"127.0.0.1:{text}").rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not an address to listen on. Write HOST:PORT, PORT or unix:/path.")
        return Listen(host.strip("[]"), int(port))

    @staticmethod
    def parse_http(text: str) -> "Listen":
        """For probes: HOST:PORT, or PORT on loopback. No Unix socket: Prometheus cannot scrape one."""
        if text.startswith("unix:"):
            raise ValueError(f"{text!r} is not an address for HTTP. Write HOST:PORT, or PORT for loopback.")
        return Listen.parse(text if ":" in text.lstrip(":") else text.lstrip(":"))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def plain_address(host: str) -> str:
    """`::ffff:10.0.0.1` is 10.0.0.1."""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    return str(getattr(found, "ipv4_mapped", None) or found)


def network_of(host: str) -> str:
    """Where a client comes from: its IPv4 address, or its network of IPv6, which has many addresses."""
    address = plain_address(host).partition("%")[0]
    return str(ip_network(f"{address}/64", strict=False)) if ":" in address else address


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
