"""What the sync and the asyncio client share: everything without I/O.

redis-py sends each command in one method. Our clients override it: if the command is in the table, its plan
runs on the same connection, and its result, in the engine's shape, goes through redis-py's own response
callbacks. Methods, pools, TLS, pipelines and parsing stay redis-py's.
"""

import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar
from weakref import WeakKeyDictionary

import redis.asyncio
from redis import exceptions
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from braidstream.clients import log_commands
from braidstream.clients.forwarding import HomeClients, read_config
from braidstream.clients.producer import Producer
from braidstream.clients.raised import for_user
from braidstream.commands import keyspace
from braidstream.commands.arguments import FUNCTION_ARGUMENTS
from braidstream.commands.produce import call, is_numbered, native_call, numbered, user_id
from braidstream.commands.table import TABLE, Spec
from braidstream.config import Config
from braidstream.errors import BraidError
from braidstream.lua import require_current
from braidstream.model.command import Command
from braidstream.model.idempotence import iid_of
from braidstream.net.compat import encoder_of, sends_text_as_encoded, socket_of
from braidstream.net.reply_shape import mapped, reply_error
from braidstream.net.sender import LOST, REFUSALS, LostElsewhereError, NotResentError
from braidstream.net.sentinel_pool import sentinel_pool
from braidstream.protocol.append import command_of
from braidstream.protocol.cache import StreamCache
from braidstream.protocol.carry import Carriage
from braidstream.protocol.gather import CommandSpec
from braidstream.protocol.identify import read_node, read_region, read_server
from braidstream.protocol.plan import Plan
from braidstream.protocol.stream_view import View

# The engine's own command: redis-py sends it.
NATIVE: Final = object()
# Commands after which a connection may use another database, or queues commands.
MOVES: Final = frozenset(("SELECT", "SWAPDB", "RESET", "MULTI", "EXEC", "DISCARD"))

_OVERWRITING: Final = frozenset(name.decode() for name in keyspace.OVERWRITING)
# braid.toml, or what was read from it.
ConfigFile = str | Path | Config | None

T = TypeVar("T")
# Makes a plan, given a function that returns the view of the streams for a way to carry commands.
Conversation = Callable[[Callable[[Carriage | None], View]], Plan[T]]


class Session:
    """One client's state: its cache, and the producer of an idempotent client.

    homes: clients of the other regions, for writes to logs; None if it does not know them.
    has_fast_path: whether plain appends may skip the plan; not with an encoder that changes text.
    is_cluster: whether its servers are the nodes of a cluster.
    """

    def __init__(self, producer: Producer | None = None, *, is_cluster: bool = False) -> None:
        self.producer, self.is_cluster = producer, is_cluster
        self.cache = StreamCache()
        self.has_fast_path = True
        self.homes: HomeClients | None = None
        # By connection: the socket on which this client has read the region. Clients may share a pool.
        self._checked = WeakKeyDictionary[Any, Any]()

    def stale(self, conn: Any) -> bool:
        """Whether to read the region again: the connection is new, or the cache has expired."""
        return self.is_new(conn) or not self.cache.is_fresh(time.monotonic())

    def is_new(self, conn: Any) -> bool:
        socket = socket_of(conn)
        return self.cache.region is None or socket is None or self._checked.get(conn) is not socket

    def view(self, carriage: Carriage | None = None) -> View:
        return View.of(self.cache, carriage, self.producer.name if self.producer else b"")

    def refresh(self, conn: Any) -> Plan[None]:
        """Read the region again if that is due."""
        if self.stale(conn):
            if self.is_new(conn) or self.is_cluster:
                region, server = yield from (read_node() if self.is_cluster else read_server())
                self.cache.check_server(region, server, time.monotonic())
                self.has_fast_path = sends_text_as_encoded(conn)
            else:
                region = yield from read_region()
            self.cache.learn_region(require_current(region.require_open()), time.monotonic())
            self._checked[conn] = socket_of(conn)

    def command(self, conn: Any, spec: Spec, argv: list[bytes], *, watching: bool = False) -> Plan[Any]:
        """The plan of one command, on a connection."""
        yield from self.refresh(conn)
        return (yield from spec.plan(self.view(Carriage(watching=watching)), argv))

    def overwrites(self, conn: Any, args: tuple[Any, ...]) -> bool:
        """Whether a command replaces a stream or log that we know, or a key of our own, with a plain key."""
        if args[0] not in _OVERWRITING or len(args) < 3:
            return False
        is_home = isinstance(args[1], str | bytes) and args[1] in self.cache.homes
        return is_home or keyspace.may_not_set(self.cache, bytes(encoder_of(conn).encode(args[1])))

    def overwrite(self, conn: Any, args: tuple[Any, ...]) -> Plan[Any]:
        yield from self.refresh(conn)
        return (yield from keyspace.overwrite(self.view(), words(conn, args)))

    def viewed(self, conn: Any, make: "Conversation[T]") -> Plan[T]:
        """A plan over the plans of several commands, on a connection."""
        yield from self.refresh(conn)
        return (yield from make(self.view))

    def forget(self, conn: Any) -> None:
        """Clear the cache, because it is stale: a strand is missing, say."""
        self._checked.pop(conn, None)
        self.cache.forget_all()

    def fast_append(self, conn: Any, args: tuple[Any, ...]) -> Command | None:
        """The one command that the plan of XADD would send; None if it needs its plan."""
        if args[0] != "XADD" or len(args) < 5:
            return None
        return command_of(args, self.cache.homes) if args[2] == "*" else self._fast_message(conn, args)

    def _fast_message(self, conn: Any, args: tuple[Any, ...]) -> Command | None:
        try:
            call = self.cache.calls.get((args[1], args[3]))
        except TypeError:
            return None
        message = None if call is None else message_of(conn, args)
        return None if call is None or message is None else (*call, message[0], *message[1])

    def remember_home(self, args: tuple[Any, ...], argv: list[bytes], result: Any) -> None:
        """Cache the strand after a plan has appended to it. XADD NOMKSTREAM may have appended nothing."""
        if result is None:
            return
        if argv[0] != b"XADD" or len(args[0]) > len("XADD"):  # one string may hold several words: "XADD a *"
            return
        if not isinstance(args[1], str | bytes) or not self.has_fast_path:
            return
        view, cache = self.view(), self.cache
        if view.is_native(argv[1]):
            return
        home = view.home(argv[1])
        cache.remember_home(args[1], home)
        if len(args) > 3 and args[2] in (b"IDMP", b"IDMPAUTO") and isinstance(args[3], str | bytes):
            known, journal_writer = view.recall(argv[1]), view.region.journal_writer
            if known.native and not journal_writer:
                cache.calls[args[1], args[3]] = native_call(home, argv[3])
            else:
                cache.calls[args[1], args[3]] = call(
                    home, known.settings, argv[3], journal_writer, function="bs_idempotence_one"
                )

    def user_entry(self, conn: Any, reply: Any) -> Any:
        """The ID for the user, from the reply to a fast append; None if the plan must run."""
        writer = self.cache.region.writer  # type: ignore[union-attr]  # known by now
        entry = reply and user_id(reply, writer)
        encoder = encoder_of(conn)
        return encoder.decode(entry) if entry and encoder.decode_responses else entry

    def may_resend(self, command: Command) -> bool:
        """Whether a fast append may be resent after a lost reply."""
        return self.producer is not None and is_message(command)

    def mark(self, client: Any, args: tuple[Any, ...]) -> tuple[bytes | None, tuple[Any, ...]]:
        """A command of an idempotent client: its lane, and the arguments to send, also for a resend."""
        if self.producer is None or args[0] != "XADD":
            return None, args
        lane = self.producer.take_lane()
        marked = self.producer.marked(client, args, numbered(lane, 0))
        if marked is args:  # not a message that we number
            self.producer.give_back(lane)
            return None, args
        return lane, marked

    def mark_all(self, client: Any, commands: Any) -> bytes | None:
        """The same for a pipeline, in place: one lane, in which each message has a number."""
        if self.producer is None or not any(args[0] == "XADD" for args, _ in commands):
            return None
        lane = self.producer.take_lane()
        for at, (args, options) in enumerate(commands):
            if args[0] == "XADD":
                commands[at] = (self.producer.marked(client, args, numbered(lane, at)), options)
        return lane

    def numbers(self, producer: bytes) -> bool:
        """Whether `mark_all` has numbered a message of this producer."""
        return self.producer is not None and is_numbered(self.producer.name, producer)

    def final_error(self, error: Any, lane: bytes | None) -> Any:
        """The error for the user, after the last resend."""
        if lane is None or isinstance(error, REFUSALS) or not isinstance(error, exceptions.RedisError):
            return error
        return type(error)(
            f"{error}. It was tried again under the same idempotent ID, and no reply came: it may or may not "
            "have been applied. To send it later, give it an ID of your own: xadd(..., idmp=(producer, iid))."
        )


class Sending:
    """While a command or a pipeline is sent: turns the error of a lost connection into the user's, and frees
    the lane of an idempotent client."""

    __slots__ = ("_lane", "_session")

    def __init__(self, session: Session, lane: bytes | None = None) -> None:
        self._session, self._lane = session, lane

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lane is not None and self._session.producer is not None:
            self._session.producer.give_back(self._lane)
        if kind is None:
            return
        if isinstance(error, NotResentError):
            raise error.for_user() from None
        if isinstance(error, LOST):
            raise self._session.final_error(error, self._lane) from None


class OurClient:
    """What both clients add to redis-py's in the same way."""

    session: Session
    pipeline_class: ClassVar[Any]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        pool, callbacks = self.connection_pool, self.response_callbacks  # type: ignore[attr-defined]
        return self.pipeline_class(self.session, pool, callbacks, transaction, shard_hint)

    def client(self) -> Self:
        alone = type(self)(connection_pool=self.connection_pool, single_connection_client=True)  # type: ignore
        alone.session.producer, alone.session.homes = self.session.producer, self.session.homes
        return alone

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        idempotent: bool = False,
        producer: str | bytes | None = None,
        config: ConfigFile = None,
        **kwargs: Any,
    ) -> Self:
        session = new_session(idempotent, producer, config)
        pool = sentinel_pool(url, kwargs, is_async=issubclass(cls, redis.asyncio.Redis))
        client: Self = super().from_url(url, **kwargs) if pool is None else cls.from_pool(pool)  # type: ignore
        client.session = session
        return client


def settings_words(idmp_duration: int | None, idmp_maxsize: int | None) -> list[bytes | int]:
    """The arguments of XCFGSET. The plan checks the values: 1 to 86400 seconds, 1 to 10,000 messages."""
    pieces = list[bytes | int]()
    if idmp_duration is not None:
        pieces += [b"IDMP-DURATION", idmp_duration]
    if idmp_maxsize is not None:
        pieces += [b"IDMP-MAXSIZE", idmp_maxsize]
    return pieces


def message_of(conn: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """The ID of a message (`XADD name IDMP producer iid * ...` or `IDMPAUTO producer * ...`), and its words
    from `*` on. None for other commands, and for those that the plan must refuse."""
    count = len(args)
    if args[0] != "XADD" or not 7 <= count < FUNCTION_ARGUMENTS:
        return None
    if args[2] == b"IDMP" and args[5] == "*" and args[4] and not count % 2:
        return args[4], args[5:]
    if args[2] == b"IDMPAUTO" and args[4] == "*" and count % 2:
        fields = [bytes(encoder_of(conn).encode(word)) for word in args[5:]]
        return iid_of(fields), ("*", *fields)
    return None


def is_message(command: Command) -> bool:
    """Whether a fast append is a message: a function call, or a native IDMP."""
    return command[0] == "FCALL" or command[3] == "IDMP"


def is_for_plan(command: Command, error: exceptions.ResponseError) -> bool:
    """Whether the plan must repeat a refused append: the settings are stale, or the engine has no IDMP."""
    return command[3] == "IDMP" or reply_error(error).code == "BSSTALE"


def new_session(
    idempotent: bool, producer: str | bytes | None, config: ConfigFile = None, *, is_cluster: bool = False
) -> Session:
    """The session of a new client."""
    if producer is not None and not idempotent:
        raise ValueError("producer= names an idempotent client: pass idempotent=True as well.")
    session = Session(Producer(producer) if idempotent else None, is_cluster=is_cluster)
    try:
        session.homes = read_config(config)
    except BraidError as error:
        raise for_user(error) from None
    return session


@lru_cache(maxsize=4096)
def find_spec(word: str | bytes) -> Spec | None:
    """The command of a first word, or of redis-py's joined "XINFO STREAM"."""
    text = word.encode("utf-8", "replace") if isinstance(word, str) else bytes(word)
    return TABLE.get((text.split() or [b""])[0].upper())


def spec_of(args: tuple[Any, ...]) -> Spec | None:
    return find_spec(args[0]) if isinstance(args[0], str | bytes) else None


def words(conn: Any, args: Iterable[Any]) -> list[bytes]:
    """The command line in bytes, as the engine gets it."""
    encode = encoder_of(conn).encode
    first, *rest = [word if type(word) is bytes else bytes(encode(word)) for word in args]
    return [*first.split(), *rest]


def raise_first_of_ours(pipe: Any, commands: Any, found: list[Any]) -> None:
    """Raise the first error that is no reply; redis-py raises the first error reply."""
    for number, (each, (args, _)) in enumerate(zip(found, commands, strict=True), 1):
        if isinstance(each, LOST):
            pipe.annotate_exception(each, number, args)
            raise LostElsewhereError(each)
        if isinstance(each, BraidError) and not isinstance(each, exceptions.ResponseError):
            raise each


def present(
    client: Any, conn: Any, spec: CommandSpec, result: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A plan's result as redis-py's method returns it."""
    if conn.get_protocol() in (3, "3") and isinstance(result, list):
        if spec.shape == "streams":
            result = dict(result)
        elif spec.shape == "facts":
            result = mapped(result)
    return present_native(client, conn, result, args, options)


def present_native(
    client: Any, conn: Any, result: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """An undecoded reply of a native command, as redis-py's method returns it."""
    options = {key: value for key, value in options.items() if key not in (EMPTY_RESPONSE, "keys")}
    encoder = encoder_of(conn)
    if options.pop(NEVER_DECODE, None) is None and encoder.decode_responses:
        result = decode(encoder.encoding, encoder.encoding_errors, result)
    callback = client.response_callbacks.get(args[0]) or log_commands.CALLBACKS.get(args[0])
    return result if callback is None else callback(result, **options)


def decode(encoding: str, errors: str, value: Any) -> Any:
    """Bytes to text, at any depth. Bytes in a list are decoded without a call each: entries have many."""
    kind = type(value)
    if kind is bytes:
        return value.decode(encoding, errors)
    if kind is list:
        return [
            each.decode(encoding, errors) if type(each) is bytes else decode(encoding, errors, each)
            for each in value
        ]
    if kind is dict:
        return {decode(encoding, errors, key): decode(encoding, errors, each) for key, each in value.items()}
    return value
