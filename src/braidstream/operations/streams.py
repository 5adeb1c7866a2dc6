"""Streams and groups as an operator wants to see them, and a stream as it grows."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from braidstream.commands.twrite import about_log
from braidstream.errors import DamagedError, ReplyError, UnblockedError
from braidstream.model import ids, keys
from braidstream.model.glob import matcher
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.registry import SEALED, parse_each
from braidstream.model.retention_policy import Policy
from braidstream.model.strand import Command, Entry, Strand, facts, merge_pages
from braidstream.operations.words import age, printable, size_text
from braidstream.plan.ask_peers import read_needs
from braidstream.plan.lookup import current, registry_of, scan_page
from braidstream.plan.plan import Batch, Plan

PAGE: Final = 1_000
# MEMORY USAGE samples this many parts of each strand.
SAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class StreamRow:
    """length: entries of all strands; size: bytes in this region, None if unknown; last: the highest ID.

    The IDs of a log are offsets: they contain no time. is_native: the engine's own, not adopted.
    """

    name: bytes
    length: int
    size: int | None
    groups: int
    strands: int
    last: Id
    is_log: bool = False
    is_native: bool = False

    @property
    def last_ms(self) -> int | None:
        return None if self.is_log else self.last[0]

    @property
    def last_offset(self) -> int | None:
        return self.last[1] if self.is_log else None


def list_streams(cursor: int = 0, count: int = PAGE) -> Plan[tuple[int, list[bytes]]]:
    """A page of the names of all streams, deleted ones too; 0 as the next cursor is the end.

    count: about how many keys the engine looks at.
    """
    following, found = yield from scan_page(cursor, keys.META + b"*", count=count)
    return following, [name for key in found if (name := keys.name_of_meta(key)) is not None]


def find_streams(pattern: bytes) -> Plan[list[bytes]]:
    """The names of all streams that match a glob, deleted ones too. Scans the database."""
    return (yield from _matching(pattern, list_streams))


def find_native(pattern: bytes) -> Plan[list[bytes]]:
    """The names of native streams that match a glob. Scans the database."""
    return (yield from _matching(pattern, list_native))


def list_native(cursor: int) -> Plan[tuple[int, list[bytes]]]:
    """A page of the names of native streams."""
    following, found = yield from scan_page(cursor, b"*", kind="stream")
    return following, [key for key in found if not keys.is_ours(key)]


def _matching(pattern: bytes, page_at: Callable[[int], Plan[tuple[int, list[bytes]]]]) -> Plan[list[bytes]]:
    names, cursor, matches = dict[bytes, None](), 0, matcher(pattern)
    while True:
        cursor, page = yield from page_at(cursor)
        names |= dict.fromkeys(filter(matches, page))
        if not cursor:
            return list(names)


def read_native(name: bytes) -> Plan[StreamRow | None]:
    """None if there is no such stream any more."""
    commands: list[Command] = [("XINFO", "STREAM", name), ("MEMORY", "USAGE", name, "SAMPLES", SAMPLES)]
    info, size = yield Batch(commands, resend=True, attempt=True)
    if isinstance(info, ReplyError):
        return None
    found = facts(info)
    last = ids.native(found[b"last-generated-id"])
    known = size if isinstance(size, int) else None
    return StreamRow(name, found[b"length"], known, found[b"groups"], 1, last, is_native=True)


@dataclass(frozen=True, slots=True)
class StrandRow:
    """added: entries ever added here; it never falls. first, last: user IDs, 0-0 if it has none."""

    strand: Strand
    length: int
    added: int
    size: int | None
    first: Id
    last: Id


@dataclass(frozen=True, slots=True)
class StreamDetail:
    """A stream with its strands and the names of its groups."""

    row: StreamRow
    strands: tuple[StrandRow, ...]
    groups: tuple[bytes, ...]


def read_stream(name: bytes) -> Plan[StreamRow | None]:
    """None if it was deleted. Two round trips."""
    detail = yield from read_detail(name)
    return None if detail is None else detail.row


def try_stream(name: bytes) -> Plan[StreamRow | DamagedError | None]:
    """The same for lists of streams: one that is damaged hides no other."""
    try:
        return (yield from read_stream(name))
    except DamagedError as error:
        return error


def find_damaged() -> Plan[list[DamagedError]]:
    """Streams whose registries cannot be read, by name. Reads all registries."""
    found, cursor = dict[bytes, DamagedError](), 0
    while True:
        cursor, names = yield from list_streams(cursor)
        replies = (
            (yield Batch([registry_of(name) for name in names], resend=True, attempt=True)) if names else []
        )
        known = ([] if isinstance(reply, ReplyError) else reply for reply in replies)
        for name, registry in parse_each(names, known).items():
            if registry.damaged is not None:
                found[name] = registry.damaged
        if not cursor:
            return [found[name] for name in sorted(found)]


# Smaller streams need no retention policy.
LARGE_BYTES: Final = 100 * 2**20


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """What a group has not acknowledged, with all that follows. size: in bytes, estimated by time."""

    group: bytes
    size: int
    span_ms: int


@dataclass(frozen=True, slots=True, order=True)
class LargeStream:
    """span_ms: between its first and its last entry; 0 if its IDs are no times."""

    name: bytes
    size: int
    span_ms: int
    held: tuple[Held, ...] = ()

    @property
    def daily_bytes(self) -> int:
        """How much it grows in a day; 0 if unknown."""
        return 0 if self.span_ms < 60_000 else round(self.size * 86_400_000 / self.span_ms)


def find_large() -> Plan[list[LargeStream]]:
    """Streams of at least LARGE_BYTES here, by name. Reads all registries."""
    found, cursor = list[LargeStream](), 0
    while True:
        cursor, names = yield from list_streams(cursor)
        reads = [registry_of(name) for name in names]
        replies = (yield Batch(reads, resend=True, attempt=True)) if reads else []
        known = ([] if isinstance(reply, ReplyError) else reply for reply in replies)
        strands = [each for registry in parse_each(names, known).values() for each in registry.strands]
        usage: list[Command] = [("MEMORY", "USAGE", each.key, "SAMPLES", SAMPLES) for each in strands]
        answers = (yield Batch(usage, resend=True, attempt=True)) if usage else []
        sizes = Counter[bytes]()
        for strand, answer in zip(strands, answers, strict=True):
            sizes[strand.name] += answer if isinstance(answer, int) else 0
        for name, size in sizes.items():
            detail = (yield from read_detail(name)) if size >= LARGE_BYTES else None
            if detail is not None and (large := (yield from read_large(detail))) is not None:
                found.append(large)
        if not cursor:
            return sorted(found)


def read_large(detail: StreamDetail) -> Plan[LargeStream | None]:
    """None if it is not large, or a log, which limits itself."""
    size, last_ms = detail.row.size or 0, detail.row.last[0]
    if size < LARGE_BYTES or detail.row.is_log:
        return None
    rows = [each for each in detail.strands if each.length]
    try:
        acked = yield from read_needs(detail.row.name, [each.strand for each in rows], [])
    except ReplyError:  # a right is missing
        acked = {}
    held = tuple(_held(group, rows, upto) for group, upto in sorted(acked.items()))
    return LargeStream(
        detail.row.name, size, last_ms - min((each.first[0] for each in rows), default=0), held
    )


def _held(group: bytes, rows: list[StrandRow], acked: Mapping[bytes, Id]) -> Held:
    size, spans = 0, [0]
    for each in rows:
        upto, first_ms, last_ms = acked[each.strand.registration], each.first[0], each.last[0]
        if each.strand.user(upto) < each.last:
            spans.append(last_ms - max(first_ms, upto[0]))
            size += (each.size or 0) * (spans[-1] + 1) // (last_ms - first_ms + 1)
    return Held(group, size, max(spans))


def unlimited(large: LargeStream, policy: Policy | None) -> list[tuple[str, str]]:
    """Why it may fill the server some day, each with what to do."""
    name, daily = printable(large.name), large.daily_bytes
    if policy is None:
        growth = f", about {size_text(daily)} a day" if daily else ""
        text = f"{name} has no retention policy: {size_text(large.size)}{growth}."
        return [(text, f"braid retention set '{name}' --max-age 7d --acked --url URL")]
    found = list[tuple[str, str]]()
    for held in large.held:
        if policy.acked and held.size >= LARGE_BYTES:
            group, size = printable(held.group), size_text(held.size)
            text = f"group {group} of {name} holds {size}, the last {age(held.span_ms)}."
            fix = f"Let it work, or set --hold. If nobody needs it: XGROUP DESTROY {name} {group}"
            found.append((text, fix))
    return found


# A consumer that asked for entries in this time works.
_WORKS_MS: Final = 60_000


@dataclass(frozen=True, slots=True, order=True)
class GroupWork:
    """Who works on a group in one region. works: consumers asked for entries within the last minute.

    waiting: of scope ONCE, the writers whose entries wait in this region, and in no other one.
    """

    stream: bytes
    group: bytes
    is_once: bool
    works: bool
    waiting: tuple[int, ...] = ()


def find_work(region: Region) -> Plan[list[GroupWork]]:
    """Groups that consumers read now, or that entries wait for. Reads all registries."""
    found, cursor = list[GroupWork](), 0
    while True:
        cursor, names = yield from list_streams(cursor)
        replies = (
            (yield Batch([registry_of(name) for name in names], resend=True, attempt=True)) if names else []
        )
        known = ([] if isinstance(reply, ReplyError) else reply for reply in replies)
        groups = [
            (name, group, registry)
            for name, registry in parse_each(names, known).items()
            if registry.damaged is None and registry.exists
            for group in registry.groups
        ]
        places = [
            (at, strand)
            for at, (_, group, registry) in enumerate(groups)
            for strand in registry.owned(group, region)
        ]
        asked: list[Command] = []
        for at, strand in places:
            asked += [("XINFO", "CONSUMERS", strand.key, groups[at][1]), ("XINFO", "GROUPS", strand.key)]
        answers = (yield Batch(asked, resend=True, attempt=True)) if asked else []
        works, waiting = set[int](), dict[int, set[int]]()
        for (at, strand), consumers, rows in zip(places, answers[::2], answers[1::2], strict=True):
            if any(each[b"idle"] < _WORKS_MS for each in _infos(consumers)):
                works.add(at)
            [row, *_] = [each for each in _infos(rows) if each[b"name"] == groups[at][1]] or [{}]
            if row.get(b"pending") or row.get(b"lag"):
                waiting.setdefault(at, set()).add(strand.writer)
        for at, (name, group, registry) in enumerate(groups):
            is_once = group in registry.scopes
            writers = tuple(sorted(waiting.get(at, ()))) if is_once else ()
            if at in works or writers:
                found.append(GroupWork(name, group, is_once, at in works, writers))
        if not cursor:
            return found


def _infos(reply: Any) -> list[dict[bytes, Any]]:
    return [] if isinstance(reply, ReplyError) else [facts(each) for each in reply]


def read_detail(name: bytes) -> Plan[StreamDetail | None]:
    """None if it was deleted. Two round trips."""
    registry = yield from current(name)
    strands = [*registry.strands]
    if not registry.exists:
        return None
    commands: list[Command] = [strand.xinfo() for strand in strands]
    commands += [("MEMORY", "USAGE", strand.key, "SAMPLES", SAMPLES) for strand in strands]
    replies = yield Batch(commands, resend=True, attempt=True)
    infos, sizes = replies[: len(strands)], replies[len(strands) :]
    rows = tuple(
        _strand_row(strand, facts(info), size if isinstance(size, int) else None)
        for strand, info, size in zip(strands, infos, sizes, strict=True)
        if not isinstance(info, ReplyError)
    )
    last = max((row.last for row in rows), default=ids.ZERO)
    if registry.is_log:
        answers = [each for each in zip(strands, infos, strict=True) if not isinstance(each[1], ReplyError)]
        last = (0, about_log(name, registry, answers)[b"last-offset"])
    known = [row.size for row in rows if row.size is not None]
    whole = StreamRow(
        name=name,
        length=sum(row.length for row in rows),
        size=sum(known) if known else None,
        groups=len(registry.groups),
        strands=len(rows),
        last=last,
        is_log=registry.is_log,
    )
    return StreamDetail(whole, rows, tuple(registry.groups))


def _strand_row(strand: Strand, info: dict[bytes, Any], size: int | None) -> StrandRow:
    first, tail = info[b"first-entry"], info[b"last-entry"]
    last = ids.native(info[b"last-generated-id"])
    if strand.is_of_log and last >= SEALED:
        last = ids.native(tail[0]) if tail else ids.ZERO
    return StrandRow(
        strand,
        length=info[b"length"],
        added=info[b"entries-added"],
        size=size,
        first=strand.user(ids.native(first[0])) if first else ids.ZERO,
        last=strand.user(last),
    )


def read_entries(name: bytes, low: Id, high: Id, count: int, *, reverse: bool) -> Plan[list[Entry]]:
    """The first `count` entries between two IDs, with their writers. Two round trips."""
    strands = (yield from current(name)).strands
    if not strands:
        return []
    commands = [strand.xrange(low, high, count, reverse=reverse) for strand in strands]
    pages = yield Batch(commands, resend=True)
    read = (strand.entries(page) for strand, page in zip(strands, pages, strict=True))
    return merge_pages(read, count, reverse=reverse)


def follow(name: bytes, ends: dict[Strand, Id], block_ms: int) -> Plan[list[Entry] | None]:
    """New entries of all strands since `ends`, which is updated; waits up to `block_ms` for some.
    None, immediately, if there is no stream.

    Each strand has its own position, so entries that arrive late from another region are shown too.
    """
    strands = (yield from current(name)).strands
    if not strands:
        return None
    positions = [ids.text(ends.get(strand, ids.ZERO)) for strand in strands]
    where = (*(each.key for each in strands), *positions)
    read: Command = ("XREAD", "COUNT", PAGE, "BLOCK", block_ms, "STREAMS", *where)
    try:
        [reply] = yield Batch([read], resend=True, block_ms=block_ms)
    except UnblockedError:
        reply = None
    by_key = {strand.key: strand for strand in strands}
    found = list[Entry]()
    for key, page in reply or ():
        strand = by_key[key]
        ends[strand] = ids.native(page[-1][0])
        found += strand.entries(page)
    return sorted(found, key=lambda entry: entry[:3])


def ends_before(name: bytes, count: int) -> Plan[dict[Strand, Id]]:
    """Where to start so that `follow` shows the last `count` entries of each strand. Two round trips."""
    strands = (yield from current(name)).strands
    commands: list[Command] = [("XREVRANGE", strand.key, "+", "-", "COUNT", count + 1) for strand in strands]
    pages: list[Any] = yield Batch(commands, resend=True)
    ends = dict[Strand, Id]()
    for strand, page in zip(strands, pages, strict=True):
        ends[strand] = ids.native(page[-1][0]) if len(page) > count else ids.ZERO
    return ends
