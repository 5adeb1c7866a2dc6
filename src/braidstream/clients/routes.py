"""Routes: the short way of common reads and acknowledgements, while the registry of their stream is cached.

A plan works out in each call what to send. A route is what the plan would send, packed once, and how the
replies become the result. It holds as long as the cache has the very registry that it was made from. If that
is stale, the replies show it, and the plan runs:

    XREADGROUP >   names the bell: if strands or groups have changed, it is refused. Of several strands it
                   reads the one that is furthest behind; only if all were looked at, there is nothing
    XREAD          of one stream. Reads the registry too; of several strands first a share of COUNT of each
    XACK           by the writer in each ID. What was not pending there, the plan looks for elsewhere
    XLEN           reads the registry together with the lengths
    TWRITE         of one entry, at home. The engine refuses it if the epoch has ended, or the strand is gone

With BLOCK a route reads what there is. If there is nothing, the plan waits; but an XREADGROUP of one strand,
and one of all strands with at least as much COUNT, waits natively. Not on a connection that others use.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import isqrt
from operator import itemgetter
from typing import Any, Final, NamedTuple

from braidstream.commands import xreadgroup_reply
from braidstream.commands.arguments import UnbalancedError, parse_read
from braidstream.commands.xreadgroup import QUEUE_SLICE_MS
from braidstream.errors import BraidError
from braidstream.model import ids, keys
from braidstream.model.keys import meta
from braidstream.model.registry import ENTRY, TAG, Registry, offset_of
from braidstream.model.strand import Command, Strand, pack_one
from braidstream.plan.append import native_command
from braidstream.plan.cache import Reading, StreamCache

# The commands that may have a route.
ROUTED: Final = frozenset(("XREADGROUP", "XREAD", "XACK", "XLEN", "TWRITE"))
# The plan must run.
MISS: Final = object()
# How many sequence numbers of a writer are remembered as text.
_TAILS: Final = 4_096
# Of the largest sequence number.
_DIGITS: Final = 20
# How many routes a client or a gateway keeps, for how many consumers of a group, and how long ones.
_ROUTES: Final = 1_000
_READERS: Final = 100
_LONGEST: Final = 1_000
# Up to this COUNT, XREAD asks each strand for all of it.
_SMALL: Final = 8
# After a share of COUNT was not enough, how many reads ask each strand for all of it.
_FULL: Final = 16


class Route:
    """data: the packed commands. replies: how many to read. decoded: how many of them, from the first one,
    redis-py decodes for the user. writes: they may not be sent twice. acknowledged: how much of an XACK is
    done, if the plan must run. block_ms: how long the engine may wait before it replies."""

    __slots__ = ("acknowledged", "data", "decoded", "registry", "replies", "stream")
    writes = True
    block_ms: int | None = None

    def __init__(self, stream: bytes, registry: Registry, commands: Sequence[Command]) -> None:
        self.stream, self.registry = stream, registry
        self.data = b"".join(map(pack_one, commands))
        self.replies, self.decoded, self.acknowledged = len(commands), 0, 0

    def result(self, replies: list[Any]) -> Any:
        """MISS if the plan must run. Another route if that must be sent for the result."""
        raise NotImplementedError


class Tails(dict[Any, Any]):
    """By the native sequence number of one writer's entries, as text or bytes: that of the user's ID.

    There is one for each writer: clients and their threads share it.
    """

    def __init__(self, writer: int) -> None:
        super().__init__()
        self._writer = writer

    @classmethod
    @cache
    def of(cls, writer: int) -> "Tails":
        return cls(writer)

    def __missing__(self, native: Any) -> Any:
        text = str(int(native) << ids.WRITER_BITS | self._writer)
        tail = text if type(native) is str else text.encode()
        if len(self) < _TAILS:
            self[native] = tail
        return tail

    def rename(self, page: list[Any]) -> None:
        """Give the entries of a page their user IDs, in place."""
        dash = "-" if type(page[0][0]) is str else b"-"
        at = page[0][0].index(dash) + 1
        if page[-1][0].index(dash) + 1 == at:  # nearly always: so it is in those between
            for entry in page:
                native = entry[0]
                entry[0] = native[:at] + self[native[at:]]
            return
        for entry in page:
            ms, _, native = entry[0].partition(dash)
            entry[0] = ms + dash + self[native]


def _waits(spec: xreadgroup_reply.ReadGroup) -> bool:
    """Whether one native wait is all of BLOCK. A longer one looks at the stream again meanwhile."""
    return spec.block_ms is not None and 0 < spec.block_ms <= QUEUE_SLICE_MS


def _is_missed(reply: Any) -> bool:
    """Whether an error says that the route is stale, and not that CLIENT UNBLOCK ended the wait."""
    if isinstance(reply, Exception) and "client unblocked" in str(reply):
        raise reply
    return isinstance(reply, Exception)


class _ReadGroup(Route):
    __slots__ = ("_name", "_plan_waits", "_tails", "block_ms")

    def __init__(
        self,
        spec: xreadgroup_reply.ReadGroup,
        registry: Registry,
        strand: Strand,
        name: str | bytes,
        *,
        may_wait: bool,
    ) -> None:
        stream = spec.names[0]
        self.block_ms = spec.block_ms if may_wait and _waits(spec) else None
        where = [strand.key, keys.bell(stream, registry.bell)]
        read = xreadgroup_reply.xreadgroup(spec, where, spec.count, self.block_ms)
        super().__init__(stream, registry, [read])
        self.decoded, self._name = 1, name
        self._plan_waits = spec.block_ms is not None and self.block_ms is None
        self._tails = Tails.of(strand.writer) if strand.has_generated_ids else None

    def result(self, replies: list[Any]) -> Any:
        [reply] = replies
        if _is_missed(reply):
            return MISS
        if not reply:
            return MISS if self._plan_waits else reply
        [page] = reply.values() if type(reply) is dict else (rows for _, rows in reply)
        if self._tails is not None:
            self._tails.rename(page)
        return {self._name: page} if type(reply) is dict else [[self._name, page]]


class _Strands:
    """What several strands of a group look like to this client.

    at: how far each is read, natively. busy: those that had more. If others have read on since, `at` is
    behind, and a strand seems to have news. It is never ahead: moving a group back rings the bell.
    is_stale: the plan runs, and knows better afterwards. Threads share it: each value is replaced as a whole.
    """

    __slots__ = (
        "at",
        "bell",
        "busy",
        "is_stale",
        "keys",
        "looked",
        "name",
        "packed",
        "places",
        "registry",
        "stream",
        "tails",
    )

    def __init__(self, stream: bytes, registry: Registry, reading: Reading, encoder: Any) -> None:
        strands = registry.strands
        self.stream, self.registry, self.bell = stream, registry, keys.bell(stream, registry.bell)
        self.keys = [strand.key for strand in strands]
        self.places = {key: at for at, key in enumerate(self.keys)}
        if encoder.decode_responses:
            self.places |= {encoder.decode(key): at for at, key in enumerate(self.keys)}
        self.name = encoder.decode(stream) if encoder.decode_responses else stream
        self.tails = [Tails.of(strand.writer) for strand in strands]
        self.at = [reading.at[strand] for strand in strands]
        self.busy = frozenset(at for at, strand in enumerate(strands) if strand in reading.busy)
        self.is_stale, self.packed = False, dict[Any, bytes]()
        self.looked: tuple[Any, bytes] = None, b""

    def next_of(self, some: Iterable[int]) -> list[int]:
        """These strands, the one that is furthest behind first."""
        return sorted(some, key=self.at.__getitem__)

    def reach(self, at: int, entry: ids.Id) -> None:
        self.at[at] = max(self.at[at], entry)

    def read(
        self,
        spec: xreadgroup_reply.ReadGroup,
        which: tuple[int, ...],
        count: int | None,
        block_ms: int | None,
    ) -> bytes:
        """The native read of some strands, `count` of each."""
        kind = (spec.consumer, spec.noack, which, count, block_ms)
        data = self.packed.get(kind)
        if data is None:
            where = [*(self.keys[at] for at in which), self.bell]
            data = pack_one(xreadgroup_reply.xreadgroup(spec, where, count, block_ms))
            if len(self.packed) < _READERS and len(data) <= _LONGEST:
                self.packed[kind] = data
        return data

    def look(self, which: list[int]) -> bytes:
        """Whether some strands have news. It delivers nothing. Mostly the same bytes as last time."""
        asked = which, [self.at[at] for at in which]
        last, data = self.looked
        if last != asked:
            where = (*(self.keys[at] for at in which), *map(ids.text, asked[1]))
            data = pack_one(("XREAD", "COUNT", 1, "STREAMS", *where))
            self.looked = asked, data
        return data


class _ReadStrands(Route):
    """XREADGROUP of several strands, each of another region: COUNT entries of the one that is furthest
    behind, and in the same round trip a look at those without news. If it has less, a second round trip reads
    the rest from the others.

    asked: how many entries of each strand. first: the step before, if this is the second.
    """

    __slots__ = (
        "_asked",
        "_entries",
        "_first",
        "_is_map",
        "_looked",
        "_news",
        "_spec",
        "_strands",
        "block_ms",
    )

    def __init__(
        self,
        spec: xreadgroup_reply.ReadGroup,
        strands: _Strands,
        asked: dict[int, int | None],
        first: "_ReadStrands | None" = None,
        block_ms: int | None = None,
    ) -> None:
        self.stream, self.registry, self.acknowledged, self.decoded = strands.stream, strands.registry, 0, 1
        self._spec, self._strands, self._asked, self._first = spec, strands, asked, first
        self._entries: Any = None
        self._news = dict[int, ids.Id]()
        [share] = {*asked.values()}
        self.block_ms = block_ms
        self.data = strands.read(spec, (*asked,), share, block_ms)
        self._looked = list[int]()
        if first is None and len(asked) == 1:
            self._looked = [
                at for at in range(len(strands.keys)) if at not in strands.busy and at not in asked
            ]
        if self._looked:
            self.data += strands.look(self._looked)
        self.replies = 1 + bool(self._looked)

    @classmethod
    def start(
        cls, spec: xreadgroup_reply.ReadGroup, strands: _Strands, *, may_wait: bool
    ) -> "_ReadStrands | None":
        every, count, busy = range(len(strands.keys)), spec.count, strands.busy
        block_ms = spec.block_ms if may_wait and _waits(spec) else None
        if count is None:
            return cls(spec, strands, dict.fromkeys(every), block_ms=block_ms)
        if not busy and count >= len(every):
            return cls(spec, strands, dict.fromkeys(every, count // len(every)), block_ms=block_ms)
        if not busy and spec.block_ms is not None:
            return None  # most likely there is nothing, and the plan knows how to wait for so little
        return cls(spec, strands, {strands.next_of(busy or every)[0]: count})

    def result(self, replies: list[Any]) -> Any:
        strands, first, reply = self._strands, self._first, replies[0]
        if _is_missed(reply):
            return self._miss() if first is None else first._shown()
        entries, is_unsure = self._take(reply), first is not None
        if self._looked:
            if isinstance(replies[1], Exception):
                is_unsure = True
            else:
                self._hear(replies[1])
        left = 0 if self._spec.count is None else self._spec.count - len(entries)
        busy = strands.busy
        if left and busy and not is_unsure:
            some = strands.next_of(busy)[:left]
            return _ReadStrands(self._spec, strands, dict.fromkeys(some, left // len(some)), self)
        if first is not None and first._entries:
            return first._shown(entries)
        if entries:
            return self._shown()
        must_wait = self._spec.block_ms is not None and self.block_ms is None
        return self._miss() if is_unsure or must_wait else reply

    def _take(self, reply: Any) -> list[Any]:
        """The entries of a native read, and how far the strands are read now."""
        strands, pages = self._strands, dict[int, list[Any]]()
        for key, page in reply.items() if type(reply) is dict else reply or ():
            if page:
                at = strands.places[key]
                strands.reach(at, _number(page[-1]))
                strands.tails[at].rename(page)
                pages[at] = page
        full = {at for at, share in self._asked.items() if share and len(pages.get(at, ())) == share}
        strands.busy = strands.busy - self._asked.keys() | full
        news = {} if self._first is None else self._first._news
        for at in news.keys() & self._asked.keys() - pages.keys():
            strands.reach(at, news[at])  # others have read it
        entries: list[Any] = [entry for page in pages.values() for entry in page]
        self._entries, self._is_map = entries, type(reply) is dict
        return entries

    def _hear(self, found: Any) -> None:
        for key, page in found.items() if type(found) is dict else found or ():
            if page:
                self._news[self._strands.places[key]] = _number(page[0])
        self._strands.busy |= self._news.keys()

    def _shown(self, more: list[Any] | None = None) -> Any:
        entries = self._entries + more if more else self._entries
        if len(self._asked) > 1 or more:
            in_order(entries)
        name = self._strands.name
        return {name: entries} if self._is_map else [[name, entries]]

    def _miss(self) -> Any:
        self._strands.is_stale = True
        return MISS


class _Several(NamedTuple):
    """An XREADGROUP of a stream with several strands."""

    stream: bytes
    registry: Registry
    spec: xreadgroup_reply.ReadGroup


class _Readers:
    """The strands of a stream, for XREAD. full: how many of the next reads ask each strand for all of COUNT,
    because a share of it was not enough."""

    __slots__ = ("full", "name", "registry", "stream", "strands", "tails")

    def __init__(self, stream: bytes, registry: Registry, encoder: Any) -> None:
        self.stream, self.registry, self.strands = stream, registry, registry.strands
        self.name, self.tails, self.full = stream, dict[Any, Tails | None](), 0
        for strand in self.strands:
            tails = Tails.of(strand.writer) if strand.has_generated_ids else None
            self.tails[encoder.decode(strand.key) if encoder.decode_responses else strand.key] = tails
        if encoder.decode_responses:
            self.name = encoder.decode(stream)

    def share(self, count: int | None) -> int | None:
        """How many entries of each strand to ask for, if `count` are wanted."""
        number = len(self.strands)
        if count is None or number == 1 or count <= _SMALL:
            return count
        if self.full:
            self.full -= 1
            return count
        even = count // number
        return min(even + isqrt(even) + 2, count)


class _Read(Route):
    __slots__ = ("_count", "_readers", "_share", "_since", "_waits")
    writes = False

    def __init__(
        self, readers: _Readers, since: ids.Id, count: int | None, share: int | None, *, waits: bool
    ) -> None:
        limit: Command = () if share is None else ("COUNT", share)
        at = {strand.key: ids.text(strand.floor(since)) for strand in readers.strands}
        read: Command = ("XREAD", *limit, "STREAMS", *at, *at.values())
        super().__init__(readers.stream, readers.registry, [read, ("HGETALL", meta(readers.stream))])
        self.decoded, self._readers, self._since = 1, readers, since
        self._count, self._share, self._waits = count, share, waits

    def result(self, replies: list[Any]) -> Any:
        reply, known = replies
        if isinstance(reply, Exception) or flat(known) != self.registry.reply:
            return MISS
        if not reply:
            return MISS if self._waits else reply
        pages, readers = reply.items() if type(reply) is dict else reply, self._readers
        every, ends = list[Any](), list[Any]()
        for key, page in pages:
            if (tails := readers.tails[key]) is not None:
                tails.rename(page)
            if len(page) == self._share != self._count:
                ends.append(page[-1])
            every += page
        if len(readers.strands) > 1:
            order = in_order(every)
            if ends:  # what comes after the end of a page may come after entries that were not read
                sure = bisect_right(every, min(map(order, ends)), key=order)
                if sure < (self._count or sure + 1):
                    readers.full = _FULL
                    return _Read(readers, self._since, self._count, self._count, waits=self._waits)
            every = every[: self._count]
        return {readers.name: every} if type(reply) is dict else [[readers.name, every]]


_first = itemgetter(0)


def in_order(entries: list[Any]) -> Callable[[list[Any]], Any]:
    """Sort entries by their IDs. Returns the key: of IDs that are equally long, the text is enough."""
    order = _first if len({len(entry[0]) for entry in entries}) == 1 else _number
    entries.sort(key=order)
    return order


def _number(entry: list[Any]) -> tuple[int, int]:
    ms, _, seq = entry[0].partition("-" if type(entry[0]) is str else b"-")
    return int(ms), int(seq)


def flat(reply: Any) -> Any:
    """The reply of HGETALL as RESP2 has it."""
    return [word for pair in reply.items() for word in pair] if type(reply) is dict else reply


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
        known = flat(replies.pop())
        return sum(replies) or MISS if known == self.registry.reply else MISS


class _Holders(NamedTuple):
    """The strands of a stream, by writer: an ID says in which of them its entry is.

    places: by the sequence number of an ID, as text: the strand, and the end of the native ID.
    """

    stream: bytes
    registry: Registry
    group: bytes
    keys: dict[int, bytes]
    places: dict[bytes, tuple[bytes, bytes]]

    def place(self, seq: bytes) -> tuple[bytes, bytes] | None:
        if len(seq) > _DIGITS or not seq.isdigit():
            return None
        number = int(seq)
        key = self.keys.get(number & ids.LAST_WRITER)
        if key is None:
            return None
        place = key, b"-%d" % (number >> ids.WRITER_BITS)
        if len(self.places) < _TAILS:
            self.places[seq] = place
        return place


def _by_strand(words: tuple[Any, ...], holders: _Holders) -> dict[bytes, list[bytes]] | None:
    """The native IDs by strand; None if a word is not an ID of one of them, or is given twice."""
    found = dict[bytes, list[bytes]]()
    places = holders.places
    for word in words:
        text = word.encode() if type(word) is str else word
        if type(text) is not bytes:
            return None
        ms, _, seq = text.partition(b"-")
        place = places.get(seq) or holders.place(seq)
        if place is None or not ms.isdigit():
            return None
        key, native = place
        if key in found:
            found[key].append(ms + native)
        else:
            found[key] = [ms + native]
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
        self.decoded, self.acknowledged = 0, 0
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

    def __init__(self, cache: StreamCache, *, may_wait: bool = True) -> None:
        """may_wait: the connection is not shared, so the engine may keep it waiting."""
        self._cache, self._may_wait = cache, may_wait
        self._known: dict[tuple[Any, ...], Route | _Several] = {}
        self._strands: dict[tuple[bytes, bytes, bool], _Strands] = {}  # by stream, group, no COUNT
        self._holders: dict[tuple[Any, ...], _Holders] = {}  # by name and group of an XACK
        self._logs: dict[Any, Log] = {}  # by name
        self._readers: dict[bytes, _Readers] = {}  # by name, for XREAD
        self.taken = 0

    def find(self, args: tuple[Any, ...], words: Callable[[], list[bytes]], encoder: Any) -> Route | None:
        """words: the command line as the engine gets it."""
        if args[0] == "XACK":
            return self._acknowledge(args, words) if len(args) > 3 else None
        if args[0] == "XREAD":
            return self._read(words(), encoder)
        if args[0] == "TWRITE":
            log = self.log(args, words)
            return None if log is None else _Write(log, encoder.encode(args[2]), encoder.encode(args[3]))
        try:
            route = self._known.get(args)
        except TypeError:  # a word that has no hash
            return None
        if route is None or self._cache.registries.get(route.stream) is not route.registry:
            argv = words()
            route = self._make(argv, encoder)
            if route is not None and sum(map(len, argv)) <= _LONGEST:
                if len(self._known) >= _ROUTES:
                    self._known = {}
                self._known[args] = route
        return self._start(route, encoder) if isinstance(route, _Several) else route

    def _start(self, several: _Several, encoder: Any) -> Route | None:
        """None if no plan has looked yet how far the group is in each strand, which COUNT needs."""
        stream, registry, spec = several
        is_all = spec.count is None
        strands = self._strands.get((stream, spec.group, is_all))
        if strands is None or strands.is_stale or strands.registry is not registry:
            reading = self._cache.readings.get((stream, spec.group))
            if is_all:
                reading = Reading(registry.bell, dict.fromkeys(registry.strands, ids.ZERO), ())
            if reading is None or reading.bell != registry.bell or reading.at.keys() != {*registry.strands}:
                return None
            if len(self._strands) >= _ROUTES:
                self._strands = {}
            strands = _Strands(stream, registry, reading, encoder)
            self._strands[stream, spec.group, is_all] = strands
        found = _ReadStrands.start(spec, strands, may_wait=self._may_wait)
        strands.is_stale = found is None  # the plan will know better
        return found

    def _make(self, argv: list[bytes], encoder: Any) -> "Route | _Several | None":
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
        if registry is None or not registry.strands or not registry.bell:
            return None
        if group not in registry.groups or group in registry.scopes or registry.passes.get(group):
            return None
        if len(registry.strands) > 1:
            is_simple = all(strand.has_generated_ids for strand in registry.strands)
            return _Several(stream, registry, spec) if is_simple else None
        name = encoder.decode(stream) if encoder.decode_responses else stream
        return _ReadGroup(spec, registry, registry.strands[0], name, may_wait=self._may_wait)

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
            holders = self._holders[args[1:3]] = _Holders(stream, registry, group, where, {})
        found = _by_strand(args[3:], holders)
        return None if found is None else _Acknowledge(holders, found, len(args) - 3)

    def _read(self, argv: list[bytes], encoder: Any) -> Route | None:
        try:
            spec = parse_read(argv)
        except (BraidError, UnbalancedError):
            return None
        if len(spec.names) != 1 or spec.max_count is not None or spec.max_size is not None:
            return None
        since = ids.parse(spec.positions[0])
        if since is None:
            return None
        [stream] = spec.names
        readers = self._readers.get(stream)
        if readers is None or self._cache.registries.get(stream) is not readers.registry:
            registry = self._registry(stream)
            if registry is None or not registry.reply or not registry.strands:
                return None
            if len(registry.strands) > 1 and not all(each.has_generated_ids for each in registry.strands):
                return None
            if len(self._readers) >= _ROUTES:
                self._readers = {}
            readers = self._readers[stream] = _Readers(stream, registry, encoder)
        waits = spec.block_ms is not None
        return _Read(readers, since, spec.count, readers.share(spec.count), waits=waits)

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
