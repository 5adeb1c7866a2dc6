"""--listen and --metrics: serve /metrics, /healthz and /readyz while a daemon or a gateway runs."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from braidstream.cli.reach import trouble
from braidstream.errors import BraidError
from braidstream.net.listen import Listen
from braidstream.observability.probes import Answers, ProbeServer


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
    """The same beside a program without an event loop: yields where it listens."""
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
