"""`braid replicate --receive` and strangers: garbage, bombs, connections that do nothing."""

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import zstandard

from braidstream.engine.tunnel import HELLO, MOST, OK, store
from braidstream.replication.receiver import MOST_CONNECTIONS, MOST_OF_ONE_HOST, MOST_STRANGERS
from tests.support.compressed_links import (
    HELLO_LINE,
    WITHIN_S,
    become_equal,
    client_of,
    engine_pair,
    is_greeted,
    linked,
    receiver_of,
    say,
)
from tests.support.daemons import IMPATIENT, Daemon, numbered, write_config
from tests.support.regions import become
from tests.support.servers import Engine, Flavour, tls_files
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

pair = engine_pair


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def bomb(window_log: int, size: int) -> bytes:
    settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return stream.compress(bytes(size)) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


def resident(daemon: Daemon) -> int:
    return int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_hostile_bytes_end_their_own_connection_only(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    urls = numbered(pair)
    with (
        client_of(pair[0]) as one,
        client_of(pair[1]) as two,
        linked(tmp_path, urls) as (first, second),
    ):
        first.tells("daemon.ready")
        port, before = receiver_of(second), resident(second)
        assert b"-ERR receiver: this is the receiver of braid replicate" in say(port, b"*1\r\n$4\r\nPING\r\n")
        for garbage in (os.urandom(4_000), b"GET / HTTP/1.1\r\n\r\n", b"\n", HELLO + bytes(4_000)):
            assert say(port, garbage) in (b"", say(port, b"PING\r\n"))
        for frame in (
            framed(os.urandom(100)),
            framed(bomb(20, 64 << 20)),
            framed(bomb(27, 1_000)),
            (1 << 30).to_bytes(4, "big"),
            bytes(4_000),
        ):
            with greeted(port) as line:
                line.sendall(frame)
                assert ended(line)
        second.tells("receiver.refused")
        one.xadd("s", {"n": "1"})
        become_equal(one, two, "s")
        assert len(first.said("link.up")) == 1
        assert resident(second) - before < 32 << 20


@contextmanager
def greeted(port: int) -> Iterator[socket.socket]:
    """A connection that the receiver has accepted."""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as line:
        line.sendall(HELLO_LINE)
        assert line.recv(100) == OK
        yield line


def ended(line: socket.socket) -> bool:
    """Whether the other side closes. What it said before is not looked at."""
    try:
        while line.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_bomb_only_explodes_as_fast_as_the_engine_takes_it(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """Small frames that stand for a gigabyte, while the engine takes nothing."""
    numbered(pair)
    with Engine(pair[1].flavour) as engine:
        become(engine, region=2, name="region-2")
        with linked(tmp_path, {1: pair[0].url, 2: engine.url}, env=IMPATIENT) as (first, second):
            first.tells("daemon.ready")
            stream = zstandard.ZstdCompressor(level=1).compressobj()
            frames = list[bytes]()
            for _ in range((1 << 30) // MOST):
                body = stream.compress(bytes(MOST)) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
                frames.append(framed(body))
            before = resident(second)
            with greeted(receiver_of(second)) as line, engine.paused():
                line.sendall(b"".join(frames))
                first.tells("link.lost")  # after seconds of silence
                assert resident(second) - before < 32 << 20


def test_a_connection_that_does_not_log_in_is_closed_and_one_address_has_a_limit(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    with linked(tmp_path, numbered(pair)) as (first, second):
        first.tells("daemon.ready")
        port = receiver_of(second)
        assert say(port) == b""
        with greeted(port) as line:
            line.sendall(framed(b"half")[:6])
            assert ended(line)
        with ExitStack() as stack:
            for _ in range(MOST_OF_ONE_HOST - 1):  # the link has one
                line = stack.enter_context(greeted(port))
                line.sendall(store(b"PING\r\nPING\r\n"))
            assert b"which is its limit" in say(port, HELLO_LINE)
        eventually(lambda: is_greeted(port), within_s=WITHIN_S, why="there is room when others have left")
        assert len(first.said("link.up")) == 1


def test_strangers_that_do_not_log_in_keep_out_no_peer(flavour: Flavour, tmp_path: Path) -> None:
    """Two addresses hold their connections with a frame every now and then; a third one has a place."""
    with receiving(flavour, tmp_path) as daemon, ExitStack() as stack:
        port = receiver_of(daemon)
        lines = list[socket.socket]()
        for number in range(MOST_CONNECTIONS):
            line = stack.enter_context(connected(port, f"127.0.0.{2 + number % 2}"))
            with suppress(OSError):  # it may be closed already
                line.sendall(HELLO_LINE)
                if line.recv(100) == OK:
                    line.sendall(store((b"PING\r\n", b"RESET\r\n", b"QUIT\r\n")[number % 3]))
                    lines.append(line)
        assert 0 < len(lines) <= MOST_STRANGERS
        assert is_greeted(port)
        assert all(ended(line) for line in lines)
        assert "have not logged in" in daemon.tells("receiver.refused")


def test_strangers_take_no_place_of_an_address_that_has_logged_in(flavour: Flavour, tmp_path: Path) -> None:
    with receiving(flavour, tmp_path) as daemon, ExitStack() as stack:
        port = receiver_of(daemon)
        peer = stack.enter_context(greeted(port))
        peer.sendall(store(b"AUTH secret\r\nPING\r\n"))
        peer.recv(100)
        for number in range(2 * MOST_STRANGERS):
            stack.enter_context(connected(port, f"127.0.1.{2 + number // 4}"))
        with suppress(ConnectionResetError):
            assert stack.enter_context(connected(port, "127.0.2.1")).recv(1) == b"", "all places are taken"
        assert is_greeted(port)


@contextmanager
def receiving(flavour: Flavour, folder: Path) -> Iterator[Daemon]:
    """A daemon with a receiver, before an engine that needs a password."""
    with Engine(flavour) as engine, engine.client() as operator:
        become(engine, region=1, name="region-1")
        operator.config_set("requirepass", "secret")
        config = write_config(folder / "braid.toml", {1: engine.url.replace("//", "//:secret@", 1)})
        with Daemon(config, 1, "--receive", "0") as daemon:
            daemon.tells("receiver.ready")
            yield daemon


def connected(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S, source_address=(source, 0))


def test_a_health_check_of_a_load_balancer_is_no_refusal(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    with linked(tmp_path, numbered(pair)) as (first, second):
        first.tells("daemon.ready")
        port = receiver_of(second)
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S).close()
        assert is_greeted(port)
        say(port, b"PING\r\n")
        assert [line for line in second.said("receiver.refused") if "not a Redis server" not in line] == []
        assert len(second.said("receiver.refused")) == 1


def test_a_tls_handshake_that_fails_is_logged_with_its_reason(engine: Engine, tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    with secured(engine, tmp_path, files) as daemon:
        port = receiver_of(daemon)
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S).close()  # a health check
        for attempt, why in (
            (lambda: say(port, HELLO_LINE), "the TLS handshake failed: "),
            (lambda: say_without_certificate(port, files["ca"]), "peer did not return a certificate"),
            (lambda: say(port), "it did not finish the TLS handshake"),
        ):
            eventually(
                partial(is_refused, daemon, attempt, why),
                within_s=WITHIN_S,
                why=f"it should log {why}",
            )
        assert len(daemon.said("receiver.refused")) == 3


def test_strangers_that_do_not_finish_a_tls_handshake_keep_out_no_peer(
    engine: Engine, tmp_path: Path
) -> None:
    files = tls_files(tmp_path)
    context = ssl.create_default_context(cafile=str(files["ca"]))
    context.load_cert_chain(files["cert"], files["key"])
    with secured(engine, tmp_path, files) as daemon, ExitStack() as stack:
        place = "127.0.0.1", receiver_of(daemon)
        for _ in range(MOST_CONNECTIONS + MOST_OF_ONE_HOST):
            stack.enter_context(socket.create_connection(place, WITHIN_S, source_address=("127.0.0.2", 0)))
        line = stack.enter_context(socket.create_connection(place, WITHIN_S))
        peer = stack.enter_context(context.wrap_socket(line, server_hostname="127.0.0.1"))
        peer.sendall(HELLO_LINE)
        assert peer.recv(100) == OK


@contextmanager
def secured(engine: Engine, folder: Path, files: dict[str, Path]) -> Iterator[Daemon]:
    """A daemon whose receiver needs certificates of its peers."""
    become(engine, region=1, name="region-1")
    config = write_config(folder / "braid.toml", {1: engine.url})
    words = [word for name in ("cert", "key", "ca") for word in (f"--tls-{name}", str(files[name]))]
    with Daemon(config, 1, "--receive", "0", *words) as daemon:
        daemon.tells("receiver.ready")
        yield daemon


def say_without_certificate(port: int, ca: Path) -> None:
    context = ssl.create_default_context(cafile=str(ca))
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as line,
        context.wrap_socket(line, server_hostname="127.0.0.1") as stranger,
    ):
        stranger.recv(1)


def is_refused(daemon: Daemon, attempt: Callable[[], object], why: str) -> bool:
    """Whether an attempt is logged. Another reason is, a second after the last one."""
    attempt()
    return any(why in line and "client=127.0.0.1:" in line for line in daemon.said("receiver.refused"))
