"""What `braid gateway` and `braid replicate` share: --listen, --metrics, --tls-*, probes, the event loop."""

import asyncio
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from braidstream.cli.reach import trouble
from braidstream.engine.address import Listen
from braidstream.errors import BraidError, ConfigError
from braidstream.observability.probes import Answers, ProbeServer

# ----------------------------------------------------------------------------------------------------
# The event loop of gateways and daemons.


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, as by the extras `gateway` and `replication` (docs/benchmarks.md)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


# ----------------------------------------------------------------------------------------------------
# --tls-cert, --tls-key and --tls-ca of commands that listen for other programs than browsers.


def parse_tls(cert: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key or ca:
            raise typer.BadParameter("--tls-key and --tls-ca need --tls-cert.")
        return None
    return tls_context(cert, key, ca)


def read_users(path: Path) -> dict[str, str]:
    """The lines NAME PASSWORD of a file. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{path}: {why}.") from None
    users = dict[str, str]()
    for number, line in enumerate(lines, 1):
        name, _, password = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if not password.strip() or name in users:
            raise ConfigError(
                f"line {number} of {path} must be NAME PASSWORD, one line for each user. Correct it."
            )
        users[name] = password.strip()
    return users


def tls_context(cert: Path, key: Path | None, ca: Path | None) -> ssl.SSLContext:
    """ca: clients need a certificate of it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    return context


# ----------------------------------------------------------------------------------------------------
# Serving


def parse_probes(text: str | None) -> Listen | None:
    """HOST:PORT or PORT; None: nothing is served."""
    if text is None:
        return None
    try:
        return Listen.parse_http(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def listen_errors(listen: Listen, option: str, as_json: bool) -> Iterator[None]:
    """An address that cannot be listened on is named, with the option that changes it."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        why = os.strerror(code) if code > 0 else error.strerror  # a host that has no address
        with trouble(listen, as_json):
            raise BraidError(f"cannot listen here: {why}. Choose another address: {option}") from error


async def serve_probes(
    listen: Listen | None, answers: Answers, *, option: str, as_json: bool
) -> tuple[ProbeServer, str]:
    """A server that runs, and where it listens; empty if it does not."""
    server = ProbeServer(answers)
    if listen is None:
        return server, ""
    with listen_errors(listen, option, as_json):
        return server, await server.start(listen.host, listen.port)


@contextmanager
def probes_in_thread(listen: Listen, answers: Answers, *, option: str, as_json: bool) -> Iterator[str]:
    """The same for a program without an event loop: yields where it listens."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="braid-probes")
    thread.start()
    serving = serve_probes(listen, answers, option=option, as_json=as_json)
    try:
        server, where = asyncio.run_coroutine_threadsafe(serving, loop).result()
        yield where
        loop.call_soon_threadsafe(server.close)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
