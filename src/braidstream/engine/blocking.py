"""Blocking I/O over one connection of redis-py. awaiting.py has the same names for asyncio."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import exceptions

from braidstream.engine.redis_py import (
    LOST,
    NotResentError,
    is_connected,
    packed,
    read_within,
    require_same,
    unwrapped,
)
from braidstream.model.strand import Command


def connect(conn: Any, may: bool = True) -> None:
    """Connect if the connection is not open. may: it has no state, like a WATCH, that would be lost."""
    if not may:
        require_same(conn)
    elif not is_connected(conn):
        conn.connect()


def send(conn: Any, commands: Iterable[Command]) -> None:
    conn.send_packed_command(packed(conn, commands))


def read_reply(conn: Any, timeout: float | None, *, decoded: bool = False) -> Any:
    """Read a reply. An error reply is returned."""
    try:
        if timeout is None:
            return conn.read_response(disable_decoding=not decoded)
        return read_within(conn, timeout, decoded=decoded)
    except exceptions.ResponseError as error:
        return error


def is_interruption(error: BaseException) -> bool:
    """Whether it came from outside: Ctrl-C, say."""
    return not isinstance(error, (NotResentError, *LOST))


@contextmanager
def opens_in_time(conn: Any, timeout: float) -> Iterator[None]:
    """A connection that is closed now is opened with another timeout for replies."""
    conn = unwrapped(conn)
    before, conn.socket_timeout = conn.socket_timeout, timeout
    try:
        yield
    finally:
        conn.socket_timeout = before


new_lock = threading.Lock


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True, name="braidstream-background")
    thread.start()
    return thread


def is_running(work: threading.Thread | None) -> bool:
    """False in a forked process, which has no threads of its parent."""
    return work is not None and work.is_alive()


def end(work: threading.Thread | None) -> None:
    """A thread ends by itself, when it looks next whether it is still wanted."""
