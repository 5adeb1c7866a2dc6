"""Where we depend on how redis-py is made, in one file: its private names, and what its versions differ in.

No other file uses one. `sync.py` and `aio.py` override four private methods of redis-py's clients, each with
the same signature in every supported version:

    _send_command_parse_response    one command over one connection: the seam
    _execute_command                one command with its retries (sync only; asyncio's is public)
    _execute_pipeline               a pipeline over one connection
    _execute_transaction            a MULTI over one connection

`tests/unit/test_redis_py.py` fails if another private name is used, or one of these is gone.
"""

from codecs import lookup
from collections.abc import Callable, Iterable
from inspect import signature
from types import ModuleType
from typing import Any

import hiredis
from redis._parsers.base import BaseParser
from redis.connection import AbstractConnection
from redis.exceptions import TimeoutError

try:
    from redis.driver_info import DriverInfo
except ImportError:  # older redis-py
    QUICK_HELLO: dict[str, Any] = {}
else:
    # redis-py looks its version up in its package for every connection, a millisecond, unless it is told.
    QUICK_HELLO = {"driver_info": DriverInfo()}


def parse_error(line: str) -> Exception:
    """The exception that redis-py makes of an error reply."""
    error: Exception = BaseParser.parse_error(line)  # type: ignore[no-untyped-call]
    return error


_CODES = {kind: code for code, kind in BaseParser.EXCEPTION_CLASSES.items() if isinstance(kind, type)}


def error_line(error: Exception) -> str:
    """The error reply that redis-py made an exception of, with its code.

    redis-py cuts off the codes it knows. Newer versions keep them in `status_code`. In older ones the class
    tells the code, and a text that is left without one was an "ERR".
    """
    text = str(error)
    code = getattr(error, "status_code", None) or _CODES.get(type(error))
    if code is None and not hasattr(error, "status_code") and not text.split(" ", 1)[0].isupper():
        code = "ERR"
    return f"{code} {text}" if code and not text.startswith(code) else text


def _beneath(conn: Any) -> Any:
    """The connection itself, where redis-py's client-side cache stands before it."""
    return getattr(conn, "_conn", conn)


def encoder_of(conn: Any) -> Any:
    return _beneath(conn).encoder


def sends_text_as_encoded(conn: Any) -> bool:
    """Whether the connection encodes text as its encoder does. With hiredis it always sends UTF-8."""
    encoder = encoder_of(conn)
    return lookup(encoder.encoding).name == "utf-8" and not encoder.encoding_errors.startswith("surrogate")


def packed(conn: Any, commands: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """Commands as the connection would send them.

    redis-py looks at each word in Python, and that takes longer than packing it. What hiredis does not take
    is left to redis-py.
    """
    if not _packs_as_hiredis(conn):
        return conn.pack_commands(commands)  # type: ignore[no-any-return]
    parts = list[bytes]()
    for command in commands:
        word = command[0]
        if type(word) is str and word.isidentifier():  # one that redis-py does not split
            try:
                parts.append(hiredis.pack_command(command))
                continue
            except (TypeError, UnicodeEncodeError):
                pass
        parts += conn.pack_command(*command)
    return [b"".join(parts)]


def _packs_as_hiredis(conn: Any) -> bool:
    """Whether text is sent as UTF-8, and no other packer was chosen. Asked once of each connection."""
    packs: bool | None = getattr(conn, "braid_packs", None)
    if packs is None:
        probe: Any = ("SET", "\N{SNOWMAN}", b"\xff", 1, 1.5)
        try:
            packs = b"".join(conn.pack_command(*probe)) == hiredis.pack_command(probe)
        except UnicodeEncodeError:
            packs = False
        conn.braid_packs = packs
    return packs


def socket_of(conn: Any) -> Any:
    """A connection's socket, or an asyncio connection's writer. It is another one after a reconnect."""
    conn = _beneath(conn)
    return getattr(conn, "_sock", None) or getattr(conn, "_writer", None)


def closed_by_server(conn: Any) -> bool:
    """Whether the server has closed an asyncio connection that still counts as connected."""
    return conn._reader is not None and bool(conn._reader.at_eof())


_TAKES_TIMEOUT = "timeout" in signature(AbstractConnection.read_response).parameters


def read_within(conn: Any, timeout: float) -> Any:
    """A reply that may take longer than the socket's own timeout, undecoded. Not for asyncio."""
    if _TAKES_TIMEOUT:
        return conn.read_response(disable_decoding=True, timeout=timeout)
    if not conn.can_read(timeout=timeout):
        raise TimeoutError(f"Timeout reading from {conn!r}")
    return conn.read_response(disable_decoding=True)


def is_connected(conn: Any) -> bool:
    """Whether a connection stands. Older redis-py tells it of asyncio connections only."""
    told = getattr(conn, "is_connected", None)
    return _beneath(conn)._sock is not None if told is None else bool(told)


def rest_of(module: ModuleType) -> Callable[[str], Any]:
    """A module's `__getattr__`: names that it has not are redis-py's, whatever the version has."""

    def public(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{module.__name__} has no public name {name!r}")
        return getattr(module, name)

    return public
