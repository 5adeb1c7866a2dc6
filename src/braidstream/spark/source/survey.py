"""Finds the streams, their strands, where each begins and ends, and what is missing. Driver only.

A stream of braidstream has the strands of its registry. A plain stream, on a server without a region, is one
strand of kind `p`. Of the strands of a log counts what `dense` says.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from braidstream.clusters.bulk import RedisError, Server
from braidstream.commands.twrite import Segment, segments
from braidstream.engine.address import shown
from braidstream.errors import (
    DataLossError,
    LibraryError,
    NotARegionError,
    OptionError,
    ReplyError,
    UnreachableError,
)
from braidstream.lua.cluster_facts import read_facts
from braidstream.model import ids, keys
from braidstream.model.fields import ConfigField
from braidstream.model.glob import matcher
from braidstream.model.ids import Id
from braidstream.model.later import stream_of
from braidstream.model.region import Region
from braidstream.model.registry import LAST_OFFSET, SEALED, Registry, trimmed_upto
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.lookup import checked_now, read_any_region, registry_of, scan_page
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import Retries
from braidstream.spark.options import Servers

# ----------------------------------------------------------------------------------------------------
# What a server says of one strand.


@dataclass(frozen=True, slots=True)
class StrandInfo:
    """One strand in this region.

    added: entries ever added. cut: its last ID when it was last deleted. size: bytes of an entry.
    there: it exists. deleted: the highest ID that XDEL deleted. limit: entries above it do not count.
    mended: the range in which lost entries were restored, and how often (`m:` and `y:` of the registry).
    lost: its key was lost, and created again after this ID; 0-0 if not.
    trimmed: up to here it was trimmed entry by entry, which looks like XDEL.
    """

    last: Id
    added: int
    length: int
    first: Id | None
    cut: Id
    size: int
    there: bool = True
    deleted: Id = ids.ZERO
    limit: Id = ids.LAST
    mended: bytes = b""
    lost: Id = ids.ZERO
    trimmed: Id = ids.ZERO


StrandInfos = dict[Strand, StrandInfo]

_MISSING: Final = StrandInfo(ids.ZERO, 0, 0, None, ids.ZERO, 0, there=False)
# A strand of chosen IDs that was deleted, and that has started over in a later life.
_OVER: Final = replace(_MISSING, cut=ids.LAST)


def find_info(infos: StrandInfos, strand: Strand) -> StrandInfo:
    """What a server says of a strand, also of one that it has not."""
    if strand in infos:
        return infos[strand]
    if strand.is_plain:
        return _MISSING
    lives = [each.life for each in infos if (each.name, each.label) == (strand.name, strand.label)]
    return _OVER if max(lives, default=0) > strand.life else _MISSING


def info_of(info: dict[bytes, Any], cut: Id) -> StrandInfo:
    first, last = info.get(b"first-entry"), info.get(b"last-entry")
    sizes = [sum(map(len, entry[1])) + 32 for entry in (first, last) if entry]
    return StrandInfo(
        last=ids.native(info[b"last-generated-id"]),
        added=int(info.get(b"entries-added", 0)),
        length=int(info[b"length"]),
        first=ids.native(first[0]) if first else None,
        cut=cut,
        size=max(sizes, default=64),
        deleted=ids.native(info.get(b"max-deleted-entry-id", b"0-0")),
    )


# ----------------------------------------------------------------------------------------------------
#
# The strands of a log, as the source sees them: one for each epoch, up to where the log has no gap here.
#
#     t0.1    1 2 3 4 5 6 | 7 8           the epoch ends at 6: 7 and 8 are not part of the log
#     t1.2              7 8 9 10          read up to 10 once t0.1 is here up to 6; until then nothing of it
#
# So the positions of a log are offsets, and a query reads them in order, in whichever region it runs.


def dense(name: bytes, registry: Registry, infos: StrandInfos, ends: dict[Strand, Id]) -> StrandInfos:
    """What of the strands of a log belongs to it. ends: the last entry of each strand.

    A strand that is not part of the log (two regions made it apart) is not there, and has the limit 0-0.
    """
    found = {strand: _without(info) for strand, info in infos.items()}
    is_complete = True
    for part in segments(name, registry):
        info = infos.get(part.strand)
        if info is None:
            break
        last = _last_of(part, info, ends.get(part.strand, ids.ZERO)) if is_complete else 0
        found[part.strand] = _limited(part, info, last)
        is_complete = is_complete and last >= part.last
    return found


def _last_of(part: Segment, info: StrandInfo, end: Id) -> int:
    """The last offset of a segment here; the one before the segment if it has none."""
    last = info.last if info.there else info.cut
    if last >= SEALED:
        # Its writer takes no more entries. Where the epoch ends is known once the registry has the next one.
        last = (0, part.last) if part.last < LAST_OFFSET else max(end, info.cut)
    return min(max(last[1] if last < SEALED else 0, part.first - 1), part.last)


def _limited(part: Segment, info: StrandInfo, last: int) -> StrandInfo:
    first = info.first
    if first is not None and not (0, part.first) <= first <= (0, part.last):
        first = None
    limit = (0, part.last)
    cut, lost = min(info.cut, limit), min(info.lost, limit)
    return replace(info, last=(0, last), first=first, cut=cut, lost=lost, limit=limit)


def _without(info: StrandInfo) -> StrandInfo:
    return replace(info, last=ids.ZERO, first=None, cut=ids.ZERO, lost=ids.ZERO, there=False, limit=ids.ZERO)


# ----------------------------------------------------------------------------------------------------
#
# Whether a strand still has the entries of a batch, and if not, why.
#
# The engine knows how many entries were removed (entries-added minus length) and the highest ID that XDEL
# deleted. Trims remove from the head. So if the head is past our position, the number of missing unread
# entries follows:
#
#     XDEL deleted nothing unread (its highest ID is before our position)    trimmed
#     one is missing, and XDEL deleted one                                   deleted, which is not a loss
#     more are missing, and XDEL deleted one of them                         unknown


class Loss(Enum):
    TRIMMED = "entries were trimmed before they were read"
    GONE = "entries were trimmed, or deleted one by one, before they were read; the server cannot tell which"
    UNCOUNTED = "all entries that were read are trimmed here, and unread entries may be trimmed too"
    DELETED = "the stream was deleted before it was read to its end"
    LOST = "the server has lost the stream's key, and what was not read may be lost"
    RECREATED = "the stream was deleted and created again"
    MOVED = "the home of the log was moved by force, and these entries are no longer part of the log"
    NOT_REPLICATED = "entries have not arrived in this region yet"


def losses(
    strand: Strand, start: Id, end: Id, info: StrandInfo, before: int | None, after: int | None
) -> Loss | None:
    """Why entries after `start` up to `end` cannot be read; None if they can.

    before, after: how many entries were added to the strand at both ends, if known.
    """
    if end > info.limit:
        return Loss.MOVED
    if strand.is_plain:
        if start > end or (before is not None and after is not None and after < before):
            return Loss.RECREATED
        if not info.there or info.last < end:
            return Loss.DELETED
    elif info.cut > start:
        return Loss.DELETED
    elif info.lost > start:
        return Loss.LOST
    elif not info.there or info.last < end:
        return Loss.NOT_REPLICATED
    return missing(start, info, before)


def missing(position: Id, info: StrandInfo, count: int | None) -> Loss | None:
    """Whether entries after a position were lost. count: how many entries were added up to there."""
    if info.first is not None and info.first <= position:
        return None  # the head is at or before the position, so nothing after it was trimmed
    if info.added == info.length or info.last == position or info.first == ids.after(position):
        return None  # nothing was removed, or nothing can be missing in between
    if count is None:
        return Loss.UNCOUNTED
    gone = info.added - count - info.length
    if gone <= 0 or (gone == 1 and info.deleted > position):
        return None
    return Loss.TRIMMED if info.deleted <= position else Loss.GONE


_NEXT = {
    Loss.TRIMMED: "Keep more of the stream, or read it sooner",
    Loss.GONE: "Keep more of the stream, or read it sooner, if it is trimmed",
    Loss.UNCOUNTED: "Continue in the region that the query read before, which it has counted",
    Loss.DELETED: "Its entries are lost",
    Loss.LOST: "If a peer has them, its daemon restores them: start the query again then",
    Loss.RECREATED: "Its old entries are lost; the new ones would be read from the start",
    Loss.MOVED: "The daemon of the former home appends them again, with new offsets",
    Loss.NOT_REPLICATED: "Wait for the region to catch up",
}


def describe(loss: Loss, strand: Strand, start: Id, end: Id) -> str:
    whose = "" if strand.is_plain else f", writer {strand.writer}"
    low, high = ids.text(start).decode(), ids.text(end).decode()
    return (
        f"stream {strand.name.decode('utf-8', 'replace')}{whose}: {loss.value} (after {low}, up to {high}, "
        f"native IDs). {_NEXT[loss]}. With failOnDataLoss set to false the query continues without them."
    )


# ----------------------------------------------------------------------------------------------------
# Survey

T = TypeVar("T")

# How many streams share a round trip: at first, at most, and by their size.
FIRST_LOOK, LOOK, LOOK_BYTES = 16, 256, 4 << 20
# Of more streams than this, a streaming query looks only at those that have something new, and at each at
# least so often. Commands share a round trip.
FEW, LOOK_AGAIN_S, GLANCE = 200, 60.0, 1_000
# The result of a pattern's SCAN is cached for ten times the duration of the SCAN.
SCAN_REST = 10


def look(*names: bytes) -> Plan[StrandInfos]:
    """The strands of streams. Two round trips for some hundred streams; a snapshot of each strand.

    XINFO returns two entries of each strand, so there are fewer streams in a round trip if those are large.
    """
    found, left, count = StrandInfos(), list(dict.fromkeys(names)), FIRST_LOOK
    while left:
        infos = yield from _look(left[:count])
        looked = min(count, len(left))
        del left[:count]
        found |= infos
        size = 2 * sum(info.size for info in infos.values()) // looked
        count = max(1, min(LOOK, 2 * count, LOOK_BYTES // max(1, size)))
    return found


def _look(names: Sequence[bytes]) -> Plan[StrandInfos]:
    reads = [registry_of(name) for name in names]
    replies = yield Batch([*reads, *(("TYPE", name) for name in names)], resend=True)
    read = {name: Registry.parse(name, reply) for name, reply in zip(names, replies, strict=False)}
    registries = yield from checked_now(reads, read)
    strands = list[Strand]()
    for name, kind in zip(names, replies[len(names) :], strict=True):
        strands += _strands(name, registries[name], kind)
    replies = (yield Batch([each.xinfo() for each in strands], resend=True, attempt=True)) if strands else []
    known = dict[bytes, dict[Strand, dict[bytes, Any]]]()
    for strand, reply in zip(strands, replies, strict=True):
        if not isinstance(reply, ReplyError):
            known.setdefault(strand.name, {})[strand] = facts(reply)
        elif not reply.text.startswith("ERR no such key"):
            raise reply
    found = StrandInfos()
    for name in names:
        found |= _infos(name, registries[name], known.get(name, {}))
    return found


def _strands(name: bytes, registry: Registry, kind: bytes) -> Sequence[Strand]:
    """The strands to look at. kind: the type of the plain key of that name.

    A plain key may have the name of a deleted stream: the fence of an adopted one, or a key of a user.
    """
    if not registry.exists and kind == b"stream":
        return [Strand(name, keys.PLAIN, 0)]
    if not registry.cuts and kind != b"none":
        raise ReplyError(f"WRONGTYPE {name.decode('utf-8', 'replace')} is not a stream but a {kind.decode()}")
    return registry.strands


def _infos(name: bytes, registry: Registry, known: Mapping[Strand, dict[bytes, Any]]) -> StrandInfos:
    """The strands of one stream. known: what XINFO says of those that are there."""
    # What was deleted. A strand whose key was lost has a higher cut in the registry: the server began there.
    cuts = {strand: registry.lost.get(strand.label, cut) for strand, cut in registry.cuts.items()}
    infos = {strand: StrandInfo(ids.ZERO, 0, 0, None, cut, 0, there=False) for strand, cut in cuts.items()}
    for strand, each in known.items():
        infos[strand] = replace(
            info_of(each, cuts.get(strand, ids.ZERO)),
            mended=registry.mends.get(strand.label, b""),
            lost=_began_again(registry, strand),
            trimmed=trimmed_upto(registry.trims.get(strand.label, b""), strand.life),
        )
    if not (registry.is_log or (registry.epochs and not registry.exists)):
        return infos
    lasts = {strand: each[b"last-entry"] for strand, each in known.items()}
    ends = {strand: ids.native(last[0]) for strand, last in lasts.items() if last}
    return dense(name, registry, infos, ends)


def _began_again(registry: Registry, strand: Strand) -> Id:
    """After which ID a strand was created again whose key was lost; 0-0 if it was not lost."""
    began = registry.cuts.get(strand, ids.ZERO)
    return began if began > registry.lost.get(strand.label, began) else ids.ZERO


class _Seen(NamedTuple):
    """What was seen of a stream. asks: what shows whether anything is new, and the replies if nothing is.

    size: about how many bytes the replies have if something is.
    """

    strands: list[Strand]
    asks: list[Command]
    nothing: list[Any]
    size: int


class _Watched:
    """What was seen of many streams. Most of them have nothing new in a trigger, and to see that costs a
    tenth of a look: an XRANGE after the last entry of each strand, and the number of fields in the registry,
    which grows with the first entry of another region.

    moves: of the surveyor. What one region says is not true of another. fresh: at which streams the last call
    has looked.
    """

    def __init__(self, moves: int) -> None:
        self.moves, self.fresh, self.infos = moves, set[bytes](), StrandInfos()
        self._streams = dict[bytes, _Seen]()
        self._turn, self._turned_at = 0.0, time.monotonic()

    def look(self, server: Server, names: Sequence[bytes]) -> StrandInfos:
        if gone := self._streams.keys() - set(names):
            self.infos = dict(self.infos)
            for name in gone:
                self._forget(name)
        due = set(names)
        if len(names) > FEW:
            due = {name for name in names if name not in self._streams} | self._next(names)
        for some in server.by_node([name for name in names if name not in due], keys.meta):
            due |= server.run(self._glance(some), keys.meta(some[0]))
        for some in server.by_node(sorted(due), keys.meta):
            # Before the look: a strand that is created meanwhile is seen by the next glance.
            fields = server.run(_count_fields(some), keys.meta(some[0]))
            self._note(dict(zip(some, fields, strict=True)), server.run(look(*some), keys.meta(some[0])))
        self.fresh = due
        return self.infos

    def take_fresh(self) -> StrandInfos:
        """What the last call has looked at, once."""
        fresh, self.fresh = self.fresh, set()
        return {strand: self.infos[strand] for name in fresh for strand in self._streams[name].strands}

    def _note(self, fields: Mapping[bytes, int], infos: StrandInfos) -> None:
        """What a look found. fields: of the registries, by stream."""
        known = [strand for name in fields if name in self._streams for strand in self._streams[name].strands]
        if infos != {strand: self.infos[strand] for strand in known}:
            self.infos = dict(self.infos)
            for name in fields:
                self._forget(name)
            self.infos.update(infos)
        strands = {name: list[Strand]() for name in fields}
        for strand in infos:
            strands[strand.name].append(strand)
        for name, each in strands.items():
            asks: list[Command] = [_after(strand, infos[strand]) for strand in each]
            nothing: list[Any] = [[] for _ in asks]
            if fields[name]:  # else it is a native stream
                asks.append(("HLEN", keys.meta(name)))
                nothing.append(fields[name])
            size = sum(infos[strand].size for strand in each)
            self._streams[name] = _Seen(each, asks, nothing, size)

    def _forget(self, name: bytes) -> None:
        if (seen := self._streams.pop(name, None)) is not None:
            for strand in seen.strands:
                del self.infos[strand]

    def _next(self, names: Sequence[bytes]) -> set[bytes]:
        """Those whose turn it is to be looked at, whether or not they have something new."""
        now = time.monotonic()
        share = min(1.0, (now - self._turned_at) / LOOK_AGAIN_S) * len(names)
        begin, self._turned_at, self._turn = int(self._turn), now, self._turn + share
        chosen = {names[at % len(names)] for at in range(begin, int(self._turn))}
        self._turn %= len(names)
        return chosen

    def _glance(self, names: Sequence[bytes]) -> Plan[set[bytes]]:
        """The streams that have something new, or are no longer streams."""
        found, some, asks, size = set[bytes](), list[bytes](), list[Command](), 0
        for name in names:
            seen = self._streams[name]
            some.append(name)
            asks += seen.asks
            size += seen.size
            if len(asks) >= GLANCE or size >= LOOK_BYTES or name is names[-1]:
                replies, at = (yield Batch(asks, resend=True, attempt=True)), 0
                for each in some:
                    nothing = self._streams[each].nothing
                    if replies[at : at + len(nothing)] != nothing:
                        found.add(each)
                    at += len(nothing)
                some, asks, size = [], [], 0
        return found


def _after(strand: Strand, info: StrandInfo) -> Command:
    return ("XRANGE", strand.key, b"(" + ids.text(info.last), "+", "COUNT", 1)


def _count_fields(names: Sequence[bytes]) -> Plan[list[int]]:
    return [*(yield Batch([("HLEN", keys.meta(name)) for name in names], resend=True))]


def _scan(match: bytes, kind: str) -> Plan[list[bytes]]:
    cursor, found = yield from scan_page(0, match, kind=kind)
    while cursor:
        cursor, page = yield from scan_page(cursor, match, kind=kind)
        found += page
    return found


class Surveyor:
    """Surveys the streams of a source, on the first server of a list that answers."""

    def __init__(self, servers: Servers, names: Iterable[bytes], pattern: bytes | None) -> None:
        self.servers, self.names, self.pattern = servers, tuple(names), pattern
        self.url = 0
        self.region: int | None = None
        self._server: Server | None = None
        self._moves = 0  # from one region to another
        self._found: tuple[bytes, ...] = ()
        self._scan_again_at = 0.0
        self._watched = _Watched(0)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def try_servers(self, work: Callable[[Server], T]) -> T:
        """Run a function on the current server; if that is lost, on the next of the list that answers."""
        trouble = list[str]()
        count = len(self.servers.urls)
        for turn in range(count):
            at = (self.url + turn) % count
            try:
                if self._server is None:
                    self._server = open_server(self.servers, at)
                    region = region_of(self._server)
                    if region != self.region:
                        self._moves += 1
                    self.region, self.url = region, at
                return work(self._server)
            except (RedisError, OSError) as error:
                self.close()
                trouble.append(f"{shown(self.servers.urls[at])}: {error}")
        raise UnreachableError.of(trouble)

    def run(self, make: Callable[[], Plan[T]], key: bytes | None = None) -> T:
        """Run a plan on the node of a key. If its server is lost, the next one runs a new plan from its
        start."""
        return self.try_servers(lambda server: server.run(make(), key))

    def in_one_region(self, work: Callable[[], T]) -> T:
        """Run work that calls the servers several times, and counts entries. If another region has answered
        in between, run it again: what one region has counted is wrong in another."""
        retries = Retries(
            "the servers are lost again and again", error=lambda why: UnreachableError.of([why])
        )
        while True:
            retries.count()
            self.try_servers(lambda server: None)
            before = self._moves
            try:
                made = work()
            except DataLossError:
                if self._moves == before:
                    raise
                continue
            if self._moves == before:
                return made

    def survey(self) -> StrandInfos:
        """Every strand of every stream, now."""
        return self.try_servers(lambda server: look_at(server, self._streams(server)))

    def watch(self) -> StrandInfos:
        """As `survey`, again and again; the same object if nothing is new. Of many streams, what was deleted
        or trimmed shows within a minute."""
        return self.try_servers(self._watch)

    def _watch(self, server: Server) -> StrandInfos:
        return self._seen.look(server, self._streams(server))

    def missing(self) -> list[bytes]:
        """The streams that are named but do not exist now; none if there is a pattern."""
        if self.pattern is not None:
            self.try_servers(region_of)
            return []
        infos = self.try_servers(lambda server: look_at(server, self.names))
        there = {strand.name for strand, info in infos.items() if info.there}
        return [name for name in self.names if name not in there]

    def look(self, strands: Iterable[Strand]) -> StrandInfos:
        """The streams of these strands, now."""
        names = sorted({strand.name for strand in strands})
        return self.try_servers(lambda server: look_at(server, names))

    def look_after_watch(self, strands: Iterable[Strand]) -> StrandInfos:
        """As `look`, but not again at those that `watch` has just looked at."""
        return self._look_at_others(strands, self._seen.take_fresh())

    def look_if_unknown(self, strands: Iterable[Strand]) -> StrandInfos:
        """As `look`, but at nothing that `watch` knows."""
        return self._look_at_others(strands, self._seen.infos)

    @property
    def _seen(self) -> _Watched:
        if self._watched.moves != self._moves:
            self._watched = _Watched(self._moves)
        return self._watched

    def _look_at_others(self, strands: Iterable[Strand], seen: StrandInfos) -> StrandInfos:
        names = {strand.name for strand in strands} - {strand.name for strand in seen}
        if not names:
            return seen
        return seen | self.try_servers(lambda server: look_at(server, sorted(names)))

    def _streams(self, server: Server) -> tuple[bytes, ...]:
        if self.pattern is None:
            return self.names
        began = time.monotonic()
        if began >= self._scan_again_at:
            self._found = tuple(sorted(find(server, self.pattern)))
            now = time.monotonic()
            self._scan_again_at = now + SCAN_REST * (now - began)
        return self._found


def look_at(server: Server, names: Iterable[bytes]) -> StrandInfos:
    """The strands of streams, node by node."""
    found = StrandInfos()
    for some in server.by_node(names, keys.meta):
        found |= server.run(look(*some), keys.meta(some[0]))
    return found


def find(server: Server, pattern: bytes) -> set[bytes]:
    """The names of all streams that match a glob, plain and braided; not those in which their entries wait
    for later. Walks the keyspace."""
    matches = matcher(pattern)
    plain = {
        name
        for page in server.run_everywhere(lambda: _scan(pattern, "stream"))
        for name in page
        if not keys.is_ours(name)
    }
    metas = (key for page in server.run_everywhere(lambda: _scan(keys.META + b"*", "hash")) for key in page)
    braided = {name for key in metas if (name := keys.name_of_meta(key)) is not None and matches(name)}
    return {name for name in plain | braided if stream_of(name) is None}


def region_of(server: Server) -> int | None:
    """The number of the server's region; None if it is none."""
    if server.is_cluster:
        region = region_at(server)
        return None if region is None else region.id
    command = ("HGET", keys.CONFIG, ConfigField.REGION)
    reply = server.run(send_one(command, resend=True), keys.CONFIG)
    return None if reply is None else int(reply)


def region_or_none() -> Plan[Region | None]:
    try:
        return (yield from read_any_region())
    except NotARegionError:
        return None


def region_at(server: Server, key: bytes | None = None) -> Region | None:
    """The region that a server or a cluster is; None if it is none. key: ask the node that holds it.

    A node of a cluster that lacks the functions is an error if others have them: what it wrote would be
    outside of the region.
    """
    try:
        return server.run(read_any_region(), key)
    except NotARegionError:
        if not server.is_cluster:
            return None
    if all(facts is None for facts in server.run_everywhere(read_facts)):
        return None
    raise LibraryError(
        "a node of this cluster lacks the braidstream functions. Load them with: "
        "braid init --url URL --region N --name NAME"
    )


def open_server(servers: Servers, at: int) -> Server:
    """A server of the list. If redis-py refuses an option, the error names it."""
    url, options = servers.urls[at], dict(servers.redis)
    try:
        return Server(url, options)
    except (TypeError, ValueError) as error:
        if not _can_be_read(url):  # redis-py's text may contain a part of the password
            raise OptionError("url", "cannot be read. Write redis://user:password@host:port/db") from None
        raise OptionError("redis." + "|redis.".join(sorted(options)), str(error)) from None


def _can_be_read(url: str) -> bool:
    try:
        Server(url).close()
    except (TypeError, ValueError):
        return False
    return True
