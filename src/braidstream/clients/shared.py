"""What the sync and the asyncio client share: state, presentation of results, producers, other regions.

redis-py sends each command in one method. Our clients override it: if the command is in the table, its plan
runs on the same connection, and its result, in the engine's shape, goes through redis-py's own response
callbacks. Methods, pools, TLS, pipelines and parsing stay redis-py's.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

import redis.asyncio
from redis import exceptions
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from braidstream.clients import log_commands
from braidstream.clients.raised import for_user, with_rights
from braidstream.clients.routes import ROUTED, Log, Route, Routes, Tails
from braidstream.commands import keyspace
from braidstream.commands.arguments import FUNCTION_ARGUMENTS, parse_add
from braidstream.commands.table import TABLE, Spec
from braidstream.commands.xadd_idempotent import call, is_numbered, native_call, numbered, user_id
from braidstream.engine.redis_py import (
    LOST,
    REFUSALS,
    LostElsewhereError,
    NotResentError,
    encoder_of,
    mapped,
    reply_error,
    sends_text_as_encoded,
    socket_of,
)
from braidstream.errors import BraidError, ConfigError, ReplyError
from braidstream.lua import require_current
from braidstream.model.registry import iid_of
from braidstream.model.strand import Command
from braidstream.model.topic import Topic
from braidstream.plan.append import command_of
from braidstream.plan.cache import StreamCache
from braidstream.plan.gather import CommandSpec
from braidstream.plan.lookup import HomeSearch, is_elsewhere, read_node, read_region, read_server
from braidstream.plan.plan import Plan
from braidstream.plan.view import Carriage, View

if TYPE_CHECKING:
    from braidstream.config import Config

# ----------------------------------------------------------------------------------------------------
#
# An idempotent client: it gives every XADD with `*` a message ID, so that it can resend the XADD if the
# reply is lost.
#
# A stream remembers the last messages of each producer, 100 by default (XCFGSET). Many threads and tasks
# may append at once, and a resend must still find its message. So each request uses a *lane*: a producer ID
# that no other request uses at that time.
#
#     web-1/0   <- request of one thread       a lane is freed after the reply, so there are as many
#     web-1/1   <- pipeline of another         lanes as there were concurrent requests


class Producer:
    """Numbers the messages of one client. Two clients that run at once must not share a name."""

    def __init__(self, name: str | bytes | None) -> None:
        chosen = name.encode() if isinstance(name, str) else name
        if chosen is not None and not chosen:
            raise ValueError("a producer's name cannot be empty. Leave it out to get a random one.")
        self._chosen = chosen
        self._start(chosen or secrets.token_hex(8).encode())
        _PRODUCERS.add(self)

    def _start(self, name: bytes) -> None:
        self.name = name
        # Messages of an earlier run with this name are never taken for ours.
        self._run, self._numbers = secrets.token_bytes(6), count()
        self._free, self._lanes = list[bytes](), count()

    def after_fork(self) -> None:
        """In a forked process: become another producer, because the parent continues as this one."""
        another = secrets.token_hex(8).encode()
        self._start(b"%b-%b" % (self._chosen, another) if self._chosen else another)

    def take_lane(self) -> bytes:
        """The start of a producer ID, for exclusive use until `give_back`.

        Thread-safe: list.pop and count are atomic.
        """
        try:
            return self._free.pop()
        except IndexError:
            return b"%b/%d" % (self.name, next(self._lanes))

    def give_back(self, lane: bytes) -> None:
        self._free.append(lane)

    def marked(self, client: Any, args: tuple[Any, ...], lane: bytes) -> tuple[Any, ...]:
        """The command as a message; unchanged if the user chose an entry ID or a message ID."""
        if args[0] != "XADD" or len(args) < 5 or args[2] == b"IDMP":
            return args
        if args[2] != "*":
            encode = client.get_encoder().encode
            try:
                spec = parse_add([bytes(encode(word)) for word in args])
            except ReplyError:
                return args
            if spec.id is not None or spec.message is not None:
                return args
        iid = self._run + next(self._numbers).to_bytes(6, "big")
        return (*args[:2], b"IDMP", lane, iid, *args[2:])


_PRODUCERS = WeakSet[Producer]()


def _after_fork() -> None:
    for producer in _PRODUCERS:
        producer.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)


# ----------------------------------------------------------------------------------------------------
# Clients that know the regions (`config=`): a write to a log is sent to its home. Shared by both clients.

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
USER_OPTIONS: Final = ("username", "password", "credential_provider")


def read_config(config: "str | Path | Config | None") -> "HomeClients | None":
    """For `config=`: the name of braid.toml, or what was read from it."""
    if config is None:
        return None
    try:
        from braidstream.config import Config, load  # it takes long to import, and most clients need none
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"config= needs {error.name}, which is not installed. Run: pip install 'braidstream[cli]'"
        ) from None
    return HomeClients(config if isinstance(config, Config) else load(Path(config)))


class HomeClients:
    """Clients of the other regions, made when they are needed."""

    def __init__(self, config: "Config") -> None:
        self.config, self._lock = config, threading.Lock()
        self._clients: dict[int, Any] = {}

    def client(self, kind: Any, owner: Any, number: int) -> Any | None:
        """The client of a region; None if the file has no such region. owner: whose user it logs in as."""
        with self._lock:
            if number not in self._clients:
                try:
                    url = self.config.named(str(number)).url
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
    user = {name: known[name] for name in USER_OPTIONS if known.get(name) is not None}
    if user:
        options |= user
        url = without_user(url)
    client = kind.from_url(url, **options)
    client.response_callbacks = owner.response_callbacks
    return client


def without_user(url: str) -> str:
    return urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()


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


# ----------------------------------------------------------------------------------------------------
# Shared

# The engine's own command: redis-py sends it.
NATIVE: Final = object()
# Commands after which a connection may use another database, or queues commands.
MOVES: Final = frozenset(("SELECT", "SWAPDB", "RESET", "MULTI", "EXEC", "DISCARD"))

# Options of redis-py's own parser.
_NOT_FOR_CALLBACKS: Final = frozenset((EMPTY_RESPONSE, NEVER_DECODE, "keys"))
_OVERWRITING: Final = frozenset(name.decode() for name in keyspace.OVERWRITING)
# braid.toml, or what was read from it.
ConfigFile: TypeAlias = "str | Path | Config | None"

T = TypeVar("T")
# Makes a plan, given a function that returns the view of the streams for a way to carry commands.
Conversation = Callable[[Callable[[Carriage], View]], Plan[T]]


class Session:
    """One client's state: its cache, and the producer of an idempotent client.

    homes: clients of the other regions, for writes to logs; None if it does not know them.
    has_fast_path: whether plain appends may skip the plan; not with an encoder that changes text.
    is_cluster: whether its servers are the nodes of a cluster.
    """

    def __init__(self, producer: Producer | None = None, *, is_cluster: bool = False) -> None:
        self.producer, self.is_cluster = producer, is_cluster
        self.cache = StreamCache()
        self.routes = Routes(self.cache)
        self.has_fast_path = True
        self.homes: HomeClients | None = None
        # What the client has read of topics, and until when it trusts that.
        self.topics = dict[bytes, tuple[Topic, float]]()
        # By connection: the socket on which this client has read the region. Clients may share a pool.
        self._checked = WeakKeyDictionary[Any, Any]()

    def stale(self, conn: Any) -> bool:
        """Whether to read the region again: the connection is new, or the cache has expired."""
        return self.is_new(conn) or not self.cache.is_fresh(time.monotonic())

    def is_new(self, conn: Any) -> bool:
        socket = socket_of(conn)
        return self.cache.region is None or socket is None or self._checked.get(conn) is not socket

    def view(self, carriage: Carriage = Carriage.ALONE) -> View:
        return View.of(self.cache, carriage, self.producer.name if self.producer else b"")

    def refresh(self, conn: Any, commands: Callable[[], Sequence[list[bytes]]] = list) -> Plan[None]:
        """Read the region again if that is due. commands: what it is read for."""
        if not self.stale(conn):
            return
        try:
            if self.is_new(conn) or self.is_cluster:
                region, server = yield from (read_node() if self.is_cluster else read_server())
                self.cache.check_server(region, server, time.monotonic())
                self.has_fast_path = sends_text_as_encoded(conn)
            else:
                region = yield from read_region()
            self.cache.learn_region(require_current(region.require_open()), time.monotonic())
            self._checked[conn] = socket_of(conn)
        except ReplyError as error:
            raise with_rights(error, conn, commands()) from None

    def command(self, conn: Any, spec: Spec, argv: list[bytes], *, watching: bool = False) -> Plan[Any]:
        """The plan of one command, on a connection."""
        yield from self.refresh(conn, lambda: [argv])
        try:
            return (yield from spec.plan(self.view(Carriage.of_one(watching=watching)), argv))
        except ReplyError as error:
            raise with_rights(error, conn, [argv]) from None

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
        """Clear the cache, because it is stale (for example, a strand is missing)."""
        self._checked.pop(conn, None)
        self.cache.forget_all()

    def fast_append(self, conn: Any, args: tuple[Any, ...]) -> Command | None:
        """The one command that the plan of XADD would send; None if it needs its plan."""
        if args[0] != "XADD" or len(args) < 5:
            return None
        return command_of(args, self.cache.homes) if args[2] == "*" else self._fast_message(conn, args)

    @property
    def may_route(self) -> bool:
        return self.has_fast_path and not self.is_cluster

    def route(self, conn: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Route | None:
        """The short way of a command; None if it needs its plan."""
        if args[0] not in ROUTED or not self.may_route or self.stale(conn):
            return None
        if NEVER_DECODE in options:
            return None
        return self.routes.find(args, lambda: words(conn, args), encoder_of(conn))

    def log_of(self, conn: Any, args: tuple[Any, ...]) -> Log | None:
        """The log of a TWRITE of one entry in a pipeline; None if it needs its plan."""
        if not self.may_route:
            return None
        return self.routes.log(args, lambda: words(conn, args))

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
                settings = known.settings.current(has_peers=bool(journal_writer))
                cache.calls[args[1], args[3]] = call(
                    home, settings, argv[3], journal_writer, function="bs_idempotence_one"
                )

    def user_entry(self, conn: Any, reply: Any) -> Any:
        """The ID for the user, from the reply to a fast append; None if the plan must run."""
        if reply is None:
            return None
        writer = self.cache.region.writer  # type: ignore[union-attr]  # known by now
        ms, dash, native = reply.partition(b"-")
        is_usual = native.isdigit() and ms.isdigit()  # not that of a message that is known
        entry = ms + dash + Tails.of(writer)[native] if is_usual else user_id(reply, writer)
        encoder = encoder_of(conn)
        return encoder.decode(entry) if encoder.decode_responses else entry

    def may_resend(self, command: Command) -> bool:
        """Whether a fast append may be resent after a lost reply."""
        return self.producer is not None and is_message(command)

    def mark(self, client: Any, args: tuple[Any, ...]) -> tuple[bytes | None, tuple[Any, ...]]:
        """A command of an idempotent client: its lane, and the arguments to send, also for a resend."""
        if self.producer is None or args[0] != "XADD" or (len(args) > 2 and args[2] == b"IDMP"):
            return None, args
        lane = self.producer.take_lane()
        marked = self.producer.marked(client, args, numbered(lane, 0))
        if marked is args:  # not a message that we number
            self.producer.give_back(lane)
            return None, args
        return lane, marked

    def free(self, lane: bytes | None) -> None:
        """A command has its reply, or its error: the next one may use its lane."""
        if lane is not None and self.producer is not None:
            self.producer.give_back(lane)

    def mark_all(self, client: Any, commands: Any) -> bytes | None:
        """The same for a pipeline, in place: one lane, in which each message has a number."""
        if self.producer is None or not any(args[0] == "XADD" for args, _ in commands):
            return None
        lane, is_used = self.producer.take_lane(), False
        for at, (args, options) in enumerate(commands):
            if args[0] == "XADD":
                marked = self.producer.marked(client, args, numbered(lane, at))
                is_used = is_used or marked is not args
                commands[at] = (marked, options)
        if not is_used:
            self.producer.give_back(lane)
        return lane if is_used else None

    def numbers(self, producer: bytes) -> bool:
        """Whether `mark_all` has numbered a message of this producer."""
        return self.producer is not None and is_numbered(self.producer.name, producer)

    def final_error(self, error: Any, lane: bytes | None) -> Any:
        """The error for the user, after the last resend."""
        if lane is None or isinstance(error, REFUSALS) or not isinstance(error, exceptions.RedisError):
            return error
        if getattr(error, "is_unknown", False):
            return error
        return as_unknown(
            error,
            "It was tried again under the same idempotent ID, and no reply came: it may or may not have been "
            "applied. To send it later, give it an ID of your own: xadd(..., idmp=(producer, iid)).",
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
        self._session.free(self._lane)
        if kind is None:
            return
        if isinstance(error, NotResentError):
            raise error.for_user() from None
        if isinstance(error, LOST):
            raise self._session.final_error(error, self._lane) from None


# What our own layers call. The reference does not list it.
_INNER: Final = (
    "answer converse give keep_trying new_sender nodes nodes_class on_node on_slot pipeline_class routed "
    "run_on run_on_primaries run_on_reachable run_plan sender session watching"
)


class ShowsApi:
    """Tab in a shell offers the public methods of a client only: redis-py's, and those of the reference."""

    def __dir__(self) -> list[str]:
        inner = set(_INNER.split())
        return [name for name in super().__dir__() if name not in inner]


class OurClient(ShowsApi):
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
        pool = None
        if "sentinel" in url.partition("://")[0]:
            from braidstream.engine.sentinel_pool import sentinel_pool  # it takes long to import

            pool = sentinel_pool(url, kwargs, is_async=issubclass(cls, redis.asyncio.Redis))
        client: Self = super().from_url(url, **kwargs) if pool is None else cls.from_pool(pool)  # type: ignore
        client.session = session
        return client


def as_unknown(error: Any, why: str) -> Any:
    """The same error, which says that nobody knows whether a write was applied."""
    found = type(error)(f"{str(error).rstrip('.')}. {why}")
    found.is_unknown = True
    return found


def settings_words(
    idmp_duration: int | None, idmp_maxsize: int | None, raise_only: bool
) -> list[bytes | int]:
    """The arguments of XCFGSET. The plan checks the values: 1 to 86400 seconds, 1 to 10,000 messages."""
    pieces = list[bytes | int]()
    if idmp_duration is not None:
        pieces += [b"IDMP-DURATION", idmp_duration]
    if idmp_maxsize is not None:
        pieces += [b"IDMP-MAXSIZE", idmp_maxsize]
    return [*pieces, b"RAISE"] if raise_only else pieces


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
    """Raise the first error that is not a reply; redis-py raises the first error reply."""
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
    encoder = encoder_of(conn)
    if NEVER_DECODE not in options and encoder.decode_responses:
        result = decode(encoder.encoding, encoder.encoding_errors, result)
    return present_decoded(client, result, args, options)


def present_decoded(client: Any, result: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The same, of a reply that is decoded."""
    if options:
        options = {key: value for key, value in options.items() if key not in _NOT_FOR_CALLBACKS}
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


class SentinelClients:
    """Listed before redis-py's Sentinel: it returns our clients, which leave a demoted primary at once."""

    client_class: ClassVar[Any]
    pool_class: ClassVar[Any]

    def master_for(
        self,
        service_name: str,
        redis_class: Any = None,
        *args: Any,
        idempotent: bool = False,
        producer: str | bytes | None = None,
        **kwargs: Any,
    ) -> Any:
        session = new_session(idempotent, producer)
        kind = redis_class or self.client_class
        if not args:
            kwargs.setdefault("connection_pool_class", self.pool_class)
        client = super().master_for(service_name, kind, *args, **kwargs)  # type: ignore[misc]
        if idempotent:
            client.session = session
        return client

    def slave_for(self, service_name: str, redis_class: Any = None, *args: Any, **kwargs: Any) -> Any:
        kind = redis_class or self.client_class
        return super().slave_for(service_name, kind, *args, **kwargs)  # type: ignore[misc]
