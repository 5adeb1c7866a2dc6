"""Two regions of which the first sends compressed to the second."""

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import braidstream
from braidstream.engine.tunnel import HELLO, OK
from tests.support.daemons import Daemon, write_config
from tests.support.servers import Engine, Flavour, free_port
from tests.support.waiting import eventually

WITHIN_S = 30
# Only the receiver of a cluster looks at the address.
HELLO_LINE = HELLO + b"127.0.0.1:1\n"


@pytest.fixture
def engine_pair(flavour: Flavour) -> Iterator[tuple[Engine, Engine]]:
    with Engine(flavour) as one, Engine(flavour) as two:
        yield one, two


def compressed(port: int, receiver: str = "") -> dict[str, dict[int, str]]:
    """What braid.toml says of region 2."""
    return {"compression": {2: "zstd"}, "receiver": {2: receiver or f"tcp://127.0.0.1:{port}"}}


@contextmanager
def linked(
    folder: Path, urls: dict[int, str], *words: str, env: Mapping[str, str] | None = None, **more: Any
) -> Iterator[tuple[Daemon, Daemon]]:
    """The daemon of region 1, and that of region 2, which receives. The first one may not be ready yet."""
    port = free_port()
    config = write_config(folder / "braid.toml", urls, **(compressed(port) | more))
    receiving = ["--receive", str(port), *words]
    with Daemon(config, 2, *receiving, env=env) as two:
        two.tells("receiver.ready")
        with Daemon(config, 1, env=env) as one:
            yield one, two


def receiver_of(daemon: Daemon) -> int:
    """The port on which a daemon receives."""
    [port] = re.findall(r"receiver.ready receiver=127.0.0.1:([0-9]+)", daemon.text)[-1:]
    return int(port)


def become_equal(one: Any, two: Any, name: str) -> None:
    eventually(
        lambda: one.xrange(name) == two.xrange(name), within_s=WITHIN_S, why="the regions should be alike"
    )


def client_of(engine: Engine) -> braidstream.Redis:
    return braidstream.Redis.from_url(engine.url, decode_responses=True)


def say(port: int, *parts: bytes) -> bytes:
    """What the receiver answers until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as line:
        found = b""
        try:
            for part in parts:
                line.sendall(part)
            while more := line.recv(65536):
                found += more
        except ConnectionResetError:
            pass
        return found


def is_greeted(port: int) -> bool:
    """Whether the receiver accepts a connection, which ends at once."""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as line:
        line.sendall(HELLO_LINE)
        return line.recv(100) == OK
