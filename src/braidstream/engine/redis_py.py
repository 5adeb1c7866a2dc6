"""Every private name of redis-py that we use, and what its versions differ in.

No other file uses private names, except that clients/aio.py overrides three methods of redis-py's clients.
Each has the same signature in every supported version:

    _send_command_parse_response    one command over one connection
    _execute_pipeline               a pipeline over one connection
    _execute_transaction            a MULTI over one connection

`tests/unit/test_redis_py.py` fails if another private name is used, or one of these is gone.
"""

from codecs import lookup
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from inspect import Parameter, Signature, signature
from itertools import chain
from types import ModuleType
from typing import Any, Final, TypeVar

import hiredis
from redis import exceptions
from redis._parsers.base import BaseParser
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.connection import AbstractConnection as AsyncioConnection
from redis.cluster import ClusterPipeline
from redis.connection import AbstractConnection
from redis.exceptions import ResponseError

from braidstream.errors import ReplyError
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch

F = TypeVar("F", bound=Callable[..., Any])

# How new connections introduce themselves: CLIENT LIST shows which braidstream a client has, for
# `braid upgrade --check`. Without it redis-py reads its own version for each connection: 1 ms.
LIBRARY: Final = "braidstream"
try:
    _OURS = version(LIBRARY)
except PackageNotFoundError:  # copied, not installed
    _OURS = "0"
try:
    from redis.driver_info import DriverInfo
except ImportError:  # older redis-py
    QUICK_HELLO: dict[str, Any] = {"lib_name": f"redis-py({LIBRARY}_v{_OURS})"}
else:
    QUICK_HELLO = {"driver_info": DriverInfo().add_upstream_driver(LIBRARY, _OURS)}
_NAMES: Final = ("driver_info", "lib_name", "lib_version")


def named(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a client, with our name for its connections unless its user has chosen one."""
    return options if any(name in options for name in _NAMES) else {**QUICK_HELLO, **options}


def constructed_like(theirs: type) -> Callable[[F], F]:
    """Decorator of a constructor that passes `*args` and `**kwargs` on: help() and shells show redis-py's."""
    passed = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

    def decorate(function: F) -> F:
        shown = [*signature(theirs.__init__).parameters.values()]  # type: ignore[misc]
        shown += [each for each in signature(function).parameters.values() if each.kind not in passed]
        by_name = {each.name: each for each in shown}
        function.__signature__ = Signature(sorted(by_name.values(), key=lambda each: each.kind))  # type: ignore
        return function

    return decorate


def name_pool(pool: Any) -> None:
    """The same for a pool that redis-py has made. It has opened no connection yet."""
    options = pool.connection_kwargs
    if issubclass(pool.connection_class, AbstractConnection | AsyncioConnection):
        options.update({} if any(name in options for name in _NAMES) else QUICK_HELLO)


def parse_error(line: str) -> Exception:
    """The exception that redis-py makes of an error reply."""
    error: Exception = BaseParser.parse_error(line)  # type: ignore[no-untyped-call]
    return error


_CODES = {kind: code for code, kind in BaseParser.EXCEPTION_CLASSES.items() if isinstance(kind, type)}


def error_line(error: Exception) -> str:
    """The error reply behind an exception of redis-py, with its code.

    redis-py removes the codes it knows. Newer versions keep them in `status_code`. In older ones the class
    implies the code, and a text without a code had "ERR".
    """
    text = str(error)
    code = getattr(error, "status_code", None) or _CODES.get(type(error))
    if code is None and not hasattr(error, "status_code") and not text.split(" ", 1)[0].isupper():
        code = "ERR"
    return f"{code} {text}" if code and not text.startswith(code) else text


def unwrapped(conn: Any) -> Any:
    """The connection itself, if redis-py's client-side cache wraps it."""
    return getattr(conn, "_conn", conn)


def encoder_of(conn: Any) -> Any:
    return unwrapped(conn).encoder


def sends_text_as_encoded(conn: Any) -> bool:
    """Whether the connection sends text as its encoder encodes it. With hiredis it always sends UTF-8."""
    encoder = encoder_of(conn)
    return lookup(encoder.encoding).name == "utf-8" and not encoder.encoding_errors.startswith("surrogate")


def packed(conn: Any, commands: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """Commands as the connection would send them.

    hiredis packs them if it can, because redis-py checks each word in Python, which is slower.
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
    """Whether the connection packs commands as hiredis does. Checked once per connection."""
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
    """A connection's socket, or an asyncio connection's writer. It changes with each reconnect."""
    conn = unwrapped(conn)
    return getattr(conn, "_sock", None) or getattr(conn, "_writer", None)


def closed_by_server(conn: Any) -> bool:
    """Whether the server has closed an asyncio connection that redis-py still treats as connected."""
    return conn._reader is not None and bool(conn._reader.at_eof())


_TAKES_TIMEOUT = "timeout" in signature(AbstractConnection.read_response).parameters


def read_within(conn: Any, timeout: float, *, decoded: bool) -> Any:
    """Read a reply with a timeout other than the socket's. Not for asyncio."""
    if _TAKES_TIMEOUT:
        return conn.read_response(disable_decoding=not decoded, timeout=timeout)
    if not conn.can_read(timeout=timeout):
        raise exceptions.TimeoutError(f"Timeout reading from {conn!r}")
    return conn.read_response(disable_decoding=not decoded)


_READ_RESPONSE = (AbstractConnection.read_response, AsyncioConnection.read_response)
_PUSH: Any = getattr(hiredis, "PushNotification", ())


def take_arrived(conn: Any, replies: list[Any], most: int) -> Any:
    """Add replies that have arrived, undecoded and errors as values, until there are `most`.

    redis-py takes some microseconds of Python for each reply. Does nothing without hiredis, and for
    connections that handle replies in their own way: those of Sentinel and of redis-py's client-side cache.
    A push that came between them is handled and ends it: await what is returned in asyncio.
    """
    if getattr(type(conn), "read_response", None) not in _READ_RESPONSE:
        return None
    parser = conn._parser
    reader = getattr(parser, "_reader", None)
    if type(reader) is not hiredis.Reader:
        return None
    while len(replies) < most:
        reply = reader.gets(False)
        if reply is NOT_ENOUGH_DATA:
            return None
        first = reply[0] if type(reply) is list and reply else reply
        if isinstance(first, exceptions.ConnectionError):
            raise first
        if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            raise reply
        if isinstance(reply, _PUSH):
            return parser.handle_push_response(reply)
        replies.append(reply)
    return None


def is_connected(conn: Any) -> bool:
    """Whether a connection is open. Older redis-py has `is_connected` for asyncio only."""
    reported = getattr(conn, "is_connected", None)
    return unwrapped(conn)._sock is not None if reported is None else bool(reported)


def skip_health_check(conn: Any) -> None:
    """Send the next command without `health_check_interval`'s PING, which opens a lost connection again."""
    unwrapped(conn).next_health_check = float("inf")


def require_same(conn: Any) -> None:
    """Before a command that belongs to this connection and to no other."""
    if not is_connected(conn):
        raise exceptions.ConnectionError("the connection was lost in the middle of a command")
    skip_health_check(conn)


def fall_back_to(module: ModuleType) -> Callable[[str], Any]:
    """A `__getattr__` for our modules: a name that ours does not define comes from redis-py's."""

    def public(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{module.__name__} has no public name {name!r}")
        return getattr(module, name)

    return public


def cluster_pipeline_arguments(cluster: Any) -> dict[str, Any]:
    """What redis-py's cluster client passes to its pipelines. Some of it is private."""
    found = dict[str, Any]()
    for name in signature(ClusterPipeline.__init__).parameters:
        for attribute in (name, f"_{name}"):
            if name not in ("self", "transaction", "kwargs") and hasattr(cluster, attribute):
                found.setdefault(name, getattr(cluster, attribute))
    return found


def note_moved_slot(manager: Any, error: Any) -> Any:
    """Note in redis-py's map that a slot has moved. In asyncio the result may have to be awaited."""
    if hasattr(manager, "move_slot"):
        return manager.move_slot(error)
    owner = manager.get_node_from_slot(error.slot_id)
    if (owner.host, owner.port) != (error.host, error.port):  # older redis-py would make it a replica
        manager.update_moved_exception(error)
        manager.get_node_from_slot(error.slot_id)  # notes it
    return None


def forced_primary(sentinel: Any) -> str | None:
    """The address that a Sentinel uses for every primary, whatever the sentinels say; None: theirs."""
    return getattr(sentinel, "_force_master_ip", None)


# ----------------------------------------------------------------------------------------------------
# Converts replies to the shape that plans expect (RESP2), and results to the shape of RESP3. No parsing.


def resp2(command: Command, reply: Any) -> Any:
    """A reply of either protocol in the shape of RESP2."""
    if isinstance(reply, exceptions.ResponseError):
        return reply_error(reply)
    if isinstance(reply, dict) and command[0] == "HGETALL":
        return list(chain.from_iterable(reply.items()))
    if isinstance(reply, dict) and command[0] in ("XREAD", "XREADGROUP"):
        return [[name, entries] for name, entries in reply.items()]
    if isinstance(reply, dict) or command[0] in ("XINFO", "FUNCTION"):
        return _flattened(reply)
    return reply


def _flattened(value: Any) -> Any:
    """Maps as flat arrays, at any depth. An array that begins with a text is an entry, or RESP2: no maps."""
    if isinstance(value, dict):
        return [_flattened(word) for pair in value.items() for word in pair]
    if not isinstance(value, list) or (value and isinstance(value[0], bytes)):
        return value
    return [_flattened(each) for each in value]


def reply_error(error: exceptions.ResponseError) -> ReplyError:
    """The error reply behind an exception of redis-py."""
    return ReplyError(error_line(error))


def mapped(info: list[Any]) -> Any:
    """XINFO in the shape of RESP3: flat arrays that start with a field name become maps."""
    if info and info[0] in (b"length", b"name") and len(info) % 2 == 0:
        pairs = zip(info[::2], info[1::2], strict=True)
        return {name: mapped(value) if _holds_maps(name, value) else value for name, value in pairs}
    return [mapped(each) if isinstance(each, list) else each for each in info]


def _holds_maps(name: bytes, value: Any) -> bool:
    return name in (b"groups", b"consumers") and isinstance(value, list)


# ----------------------------------------------------------------------------------------------------
# Lost connections: what the server may have run.

# The server executed nothing: it is still loading, or requires a password.
REFUSALS: Final = (exceptions.BusyLoadingError, exceptions.AuthenticationError)
LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


def is_away(error: Exception) -> bool:
    """Whether a server cannot be reached now, or is loading its data, so that a retry may help. To redis-py a
    wrong password is an error of the connection too."""
    is_lost = isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError)
    return is_lost and not isinstance(error, exceptions.AuthenticationError)


# How long a command that was interrupted or cancelled may take to clean up.
CLEAN_UP_S: Final = 1.0


def is_refusal(error: BaseException, *, may_have_run: bool = False) -> bool:
    """Whether the server executed nothing. At READONLY, a connection of redis-py's Sentinel is lost.

    may_have_run: commands before the one that got the error may have been executed.
    """
    is_replica = isinstance(error.__context__, exceptions.ReadOnlyError)
    return (isinstance(error, REFUSALS) or is_replica) and not may_have_run


def may_have_run(batch: Batch, commands: list[Command], replies: list[Any]) -> bool:
    """Whether the server may have run a command of a batch, though the reply after `replies` was a refusal.

    Refused AUTH and HELLO do not stop the commands behind them, nor does a refused MULTI.
    """
    first = commands[0][0]
    name = first.decode("ascii", "replace") if isinstance(first, bytes) else str(first)
    is_queued = batch.atomic and not any(isinstance(each, Exception) for each in replies[:1])
    return not is_queued and (bool(replies) or name.upper() in ("AUTH", "HELLO"))


class NotResentError(Exception):
    """The connection was lost after a write was sent. Not a redis-py error, so redis-py does not retry it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error

    def for_user(self) -> BaseException:
        """The error that redis-py would raise. Its text and `is_unknown` say that the write may have been
        applied."""
        text = (
            f"{str(self.error).rstrip('.')}. A write had been sent and its reply is lost: it may or may not "
            "have been applied. braidstream does not send a write twice."
        )
        is_theirs = isinstance(self.error, exceptions.RedisError)
        kind = type(self.error) if is_theirs else exceptions.ConnectionError
        error = kind(text)
        error.is_unknown = True  # type: ignore[attr-defined]  # for programs, and for MultiRegion
        return error


class LostElsewhereError(NotResentError):
    """Another region was lost, and its error is ready for the user. The rest of the pipeline ran here."""

    def for_user(self) -> BaseException:
        return self.error


def read_timeout(conn: Any, block_ms: int | None) -> float | None:
    """The socket's timeout plus the time that the engine may block; None: the socket's timeout applies."""
    if block_ms is None or conn.socket_timeout is None:
        return None
    return float(conn.socket_timeout) + block_ms / 1000
