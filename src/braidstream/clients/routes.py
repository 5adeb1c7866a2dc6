"""Routes: the short way of common reads and acknowledgements, while the registry of their stream is cached.

A plan works out in each call what to send. A route is what the plan would send, packed once, and how the
replies become the result. It holds as long as the cache has the very registry that it was made from. If that
is stale, the replies show it, and the plan runs:

    XREADGROUP >   of one strand. The read names the bell: if strands or groups have changed, it is refused
    XACK           by the writer in each ID. What was not pending there, the plan looks for elsewhere
    XLEN           reads the registry together with the lengths
    TWRITE         of one entry, at home. The engine refuses it if the epoch has ended, or the strand is gone

With BLOCK a route reads what there is. If there is nothing, the plan waits.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from braidstream.commands import xreadgroup_reply
from braidstream.errors import BraidError
from braidstream.model import ids, keys
from braidstream.model.keys import meta
from braidstream.model.registry import ENTRY, TAG, Registry, offset_of
from braidstream.model.strand import Command, Strand, pack_one
from braidstream.plan.append import native_command
from braidstream.plan.cache import StreamCache

# The commands that may have a route.
ROUTED: Final = frozenset(("XREADGROUP", "XACK", "XLEN", "TWRITE"))
# The plan must run.
MISS: Final = object()
# How many sequence numbers of a writer are remembered as text.
_TAILS: Final = 4_096
# How many routes a client keeps.
_ROUTES: Final = 1_000


class Route:
    """data: the packed commands. replies: how many to read. decoded: as redis-py decodes them for the user.
    writes: they may not be sent twice. acknowledged: how much of an XACK is done, if the plan must run."""

    __slots__ = ("acknowledged", "data", "decoded", "registry", "replies", "stream")
    writes = True

    def __init__(self, stream: bytes, registry: Registry, commands: Sequence[Command]) -> None:
        self.stream, self.registry = stream, registry
        self.data = b"".join(map(pack_one, commands))
        self.replies, self.decoded, self.acknowledged = len(commands), False, 0

    def result(self, replies: list[Any]) -> Any:
        """MISS if the plan must run."""
        raise NotImplementedError


class _Tails(dict[Any, Any]):
    """By the native sequence number of one writer's entries, as text or bytes: that of the user's ID."""

    def __init__(self, writer: int) -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, native: Any) -> Any:
        text = str(int(native) << ids.WRITER_BITS | self._writer)
        tail = text if type(native) is str else text.encode()
        if len(self) < _TAILS:
            self[native] = tail
        return tail


class _ReadGroup(Route):
    __slots__ = ("_name", "_tails", "_waits")

    def __init__(
        self, spec: xreadgroup_reply.ReadGroup, registry: Registry, strand: Strand, name: str | bytes
    ) -> None:
        stream = spec.names[0]
        where = [strand.key, keys.bell(stream, registry.bell)]
        super().__init__(stream, registry, [xreadgroup_reply.xreadgroup(spec, where, spec.count)])
        self.decoded, self._name, self._waits = True, name, spec.block_ms is not None
        self._tails = _Tails(strand.writer) if strand.has_generated_ids else None

    def result(self, replies: list[Any]) -> Any:
        [reply] = replies
        if isinstance(reply, Exception):
            return MISS
        if not reply:
            return MISS if self._waits else reply
        [page] = reply.values() if type(reply) is dict else (rows for _, rows in reply)
        if (tails := self._tails) is not None:
            for entry in page:
                ms, dash, native = entry[0].partition("-" if type(entry[0]) is str else b"-")
                entry[0] = ms + dash + tails[native]
        return {self._name: page} if type(reply) is dict else [[self._name, page]]


class _Length(Route):
    __slots__ = ()
    writes = False

    def __init__(self, stream: bytes, registry: Registry) -> None:
        reads: list[Command] = [strand.xlen() for strand in registry.strands]
        commands: list[Command] = [*reads, ("HGETALL", meta(stream))]
        if len(reads) > 1:
            commands = [("MULTI",), *commands, ("EXEC",)]
        super().__init__(stream, registry, commands)

    def result(self, replies: list[Any]) -> Any:
        if len(self.registry.strands) > 1:
            replies = replies[-1]
        if type(replies) is not list or any(isinstance(reply, Exception) for reply in replies):
            return MISS
        known = replies.pop()
        if type(known) is dict:
            known = [word for pair in known.items() for word in pair]
        return sum(replies) or MISS if known == self.registry.reply else MISS


class _Holders(NamedTuple):
    """The strands of a stream, by writer: an ID says in which of them its entry is."""

    stream: bytes
    registry: Registry
    group: bytes
    keys: dict[int, bytes]


def _by_strand(words: tuple[Any, ...], holders: _Holders) -> dict[bytes, list[bytes]] | None:
    """The native IDs by strand; None if a word is not an ID of one of them, or is given twice."""
    found = dict[bytes, list[bytes]]()
    for word in words:
        text = word.encode() if type(word) is str else word
        if type(text) is not bytes:
            return None
        ms, _, seq = text.partition(b"-")
        if not ms.isdigit() or not seq.isdigit():
            return None
        number = int(seq)
        key = holders.keys.get(number & ids.LAST_WRITER)
        if key is None:
            return None
        found.setdefault(key, []).append(b"%b-%d" % (ms, number >> ids.WRITER_BITS))
    is_plain = len(words) == 1 or all(len({*native}) == len(native) for native in found.values())
    return found if is_plain else None


class _Acknowledge(Route):
    __slots__ = ("_wanted",)

    def __init__(self, holders: _Holders, found: dict[bytes, list[bytes]], wanted: int) -> None:
        commands: list[Command] = [("XACK", key, holders.group, *native) for key, native in found.items()]
        if len(commands) > 1:
            commands = [("MULTI",), *commands, ("EXEC",)]
        super().__init__(holders.stream, holders.registry, commands)
        self._wanted = wanted

    def result(self, replies: list[Any]) -> Any:
        found = replies if len(replies) == 1 else replies[-1]
        if type(found) is not list:
            return MISS
        done = sum(reply for reply in found if type(reply) is int)
        if done == self._wanted:
            return done
        self.acknowledged = done
        return MISS


class Log(NamedTuple):
    """A log that is written in this region. command: the append up to its fields. head: the same, packed."""

    registry: Registry
    strand: Strand
    command: Command
    head: bytes

    @classmethod
    def of(cls, registry: Registry, strand: Strand) -> "Log":
        backlog = registry.log.backlog
        cap: Command = ("MAXLEN", "~", backlog) if backlog else ()
        command = native_command(strand.key, (*cap, b"0-*"))
        return cls(registry, strand, command, _head((*command, TAG), 3))

    def append(self, tag: Any, entry: Any) -> Command:
        """The append of one entry, as its plan sends it."""
        return (*self.command, TAG, tag, ENTRY, entry)


def _head(words: Command, further: int) -> bytes:
    """The first words of a command, packed; how many more follow."""
    _, _, packed = pack_one(words).partition(b"\r\n")
    return b"*%d\r\n%b" % (len(words) + further, packed)


_BEFORE_ENTRY: Final = b"\r\n$%d\r\n%b\r\n" % (len(ENTRY), ENTRY)


class _Write(Route):
    __slots__ = ()

    def __init__(self, log: Log, tag: bytes, entry: bytes) -> None:
        self.stream, self.registry, self.replies = log.strand.name, log.registry, 1
        self.decoded, self.acknowledged = False, 0
        self.data = b"%b$%d\r\n%b%b$%d\r\n%b\r\n" % (
            log.head,
            len(tag),
            tag,
            _BEFORE_ENTRY,
            len(entry),
            entry,
        )

    def result(self, replies: list[Any]) -> Any:
        return offset_of(replies[0]) if type(replies[0]) is bytes else MISS


class Routes:
    """The routes of one client, by the words of the command. taken: how many commands went by one."""

    def __init__(self, cache: StreamCache) -> None:
        self._cache = cache
        self._known: dict[tuple[Any, ...], Route] = {}
        self._holders: dict[tuple[Any, ...], _Holders] = {}  # by name and group of an XACK
        self._logs: dict[Any, Log] = {}  # by name
        self.taken = 0

    def find(self, args: tuple[Any, ...], words: Callable[[], list[bytes]], encoder: Any) -> Route | None:
        """words: the command line as the engine gets it."""
        if args[0] == "XACK":
            return self._acknowledge(args, words) if len(args) > 3 else None
        if args[0] == "TWRITE":
            log = self.log(args, words)
            return None if log is None else _Write(log, encoder.encode(args[2]), encoder.encode(args[3]))
        try:
            route = self._known.get(args)
        except TypeError:  # a word that has no hash
            return None
        if route is not None and self._cache.registries.get(route.stream) is route.registry:
            return route
        made = self._make(words(), encoder)
        if made is not None:
            if len(self._known) >= _ROUTES:
                self._known = {}
            self._known[args] = made
        return made

    def _make(self, argv: list[bytes], encoder: Any) -> Route | None:
        if argv[0] == b"XLEN":
            registry = self._registry(argv[1]) if len(argv) == 2 else None
            return _Length(argv[1], registry) if registry is not None and registry.reply else None
        try:
            spec = xreadgroup_reply.parse(argv)
        except BraidError:
            return None
        if spec is None or spec.positions != [b">"] or spec.limited:
            return None
        stream, group = spec.names[0], spec.group
        registry = self._registry(stream)
        if registry is None or len(registry.strands) != 1 or not registry.bell:
            return None
        if group not in registry.groups or group in registry.scopes or registry.passes.get(group):
            return None
        name = encoder.decode(stream) if encoder.decode_responses else stream
        return _ReadGroup(spec, registry, registry.strands[0], name)

    def _acknowledge(self, args: tuple[Any, ...], words: Callable[[], list[bytes]]) -> Route | None:
        try:
            holders = self._holders.get(args[1:3])
        except TypeError:
            return None
        if holders is None or self._cache.registries.get(holders.stream) is not holders.registry:
            _, stream, group, *_ = words()
            registry = self._registry(stream)
            if registry is None or group not in registry.groups:
                return None
            if not all(strand.has_generated_ids for strand in registry.strands):
                return None
            if len(self._holders) >= _ROUTES:
                self._holders = {}
            where = {strand.writer: strand.key for strand in registry.strands}
            holders = self._holders[args[1:3]] = _Holders(stream, registry, group, where)
        found = _by_strand(args[3:], holders)
        return None if found is None else _Acknowledge(holders, found, len(args) - 3)

    def log(self, args: tuple[Any, ...], words: Callable[[], list[bytes]]) -> Log | None:
        """The log of a TWRITE of one entry. None if its plan must run: it notes how far the log has come, as
        often as the region is read."""
        if len(args) != 4:
            return None
        cache = self._cache
        try:
            known = self._logs.get(args[1])
        except TypeError:
            return None
        if known is not None and cache.registries.get(known.strand.name) is known.registry:
            return known if known.strand.name in cache.ticked else None
        name = words()[1]
        registry = cache.registries.get(name)
        if registry is None or not registry.is_log or name not in cache.ticked or cache.region is None:
            return None
        home = registry.home
        if home is None or home.writer != cache.region.writer:
            return None
        strand = Strand(name, keys.LOG, home.writer, home.number)
        if strand not in registry.strands:
            return None
        if len(self._logs) >= _ROUTES:
            self._logs = {}
        made = self._logs[args[1]] = Log.of(registry, strand)
        return made

    def _registry(self, stream: bytes) -> Registry | None:
        """The registry of a stream that is known, and whose commands need no second lookup."""
        known = self._cache.registries.get(stream)
        if known is None or not known.exists or known.due or known.fenced or stream in self._cache.unmanaged:
            return None
        return None if any(strand.is_plain or strand.is_of_log for strand in known.strands) else known
