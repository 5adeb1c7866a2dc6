"""Clients that know the regions (`config=`): a write to a log is sent to its home. Shared by both clients."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from braidstream.config import Config, load
from braidstream.errors import ConfigError
from braidstream.protocol.home_search import HomeSearch, is_elsewhere

__all__ = ["HomeClients", "Way", "by_log", "is_elsewhere", "read_config"]

# What the client of another region has in common with its owner. The user too, unless it has none.
_SAME: Final = frozenset(
    (
        "encoding",
        "encoding_errors",
        "decode_responses",
        "protocol",
        "socket_timeout",
        "socket_connect_timeout",
        "client_name",
    )
)
_USER: Final = ("username", "password", "credential_provider")


def read_config(config: "str | Path | Config | None") -> "HomeClients | None":
    """For `config=`: the name of braid.toml, or what was read from it."""
    if config is None:
        return None
    return HomeClients(config if isinstance(config, Config) else load(Path(config)))


class HomeClients:
    """Clients of the other regions, made when they are needed."""

    def __init__(self, config: Config) -> None:
        self._config, self._lock = config, threading.Lock()
        self._clients: dict[int, Any] = {}

    def client(self, kind: Any, owner: Any, number: int) -> Any | None:
        """The client of a region; None if the file has no such region. owner: whose user it logs in as."""
        with self._lock:
            if number not in self._clients:
                try:
                    url = self._config.named(str(number)).url
                except ConfigError:
                    return None
                self._clients[number] = _make(kind, owner, url)
            return self._clients[number]

    def take_all(self) -> list[Any]:
        """The clients, to be closed."""
        with self._lock:
            clients, self._clients = self._clients, {}
        return [*clients.values()]


def _make(kind: Any, owner: Any, url: str) -> Any:
    known = owner.connection_pool.connection_kwargs
    options = {name: value for name, value in known.items() if name in _SAME}
    if url.startswith("rediss"):
        options |= {name: value for name, value in known.items() if name.startswith("ssl_")}
    user = {name: known[name] for name in _USER if known.get(name) is not None}
    if user:
        options |= user
        url = urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()
    client = kind.from_url(url, **options)
    client.response_callbacks = owner.response_callbacks
    return client


class Way:
    """The way of refused writes of one log to its home."""

    def __init__(self, session: Any) -> None:
        self.here: int = session.cache.region.id
        self._search = HomeSearch(self.here, time.monotonic())

    def next(self, error: Exception) -> tuple[int, float]:
        """The region to write in, and how long to wait before. Raises the error if it takes too long."""
        return self._search.follow(error, time.monotonic())


def by_log(commands: Any, found: list[Any]) -> Iterator[list[int]]:
    """Which commands of a pipeline were refused because their log is written elsewhere, log by log."""
    logs = dict[Any, list[int]]()
    for at, result in enumerate(found):
        if is_elsewhere(result):
            logs.setdefault(commands[at][0][1], []).append(at)
    yield from logs.values()
