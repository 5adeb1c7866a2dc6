"""The next entries of a group: how many entries of which strands are the next COUNT in ID order.

Finding out takes XINFO GROUPS for the group's positions and XREAD for the entries after them (heads). To
save that, the client caches both (`Reading` in protocol/cache.py) and checks only what may be stale:

    one strand had entries      Do the others still have none? XREAD over them, from the cached positions.
                                Positions only move forward, so if there is nothing after an old position,
                                there is nothing after the new one: read COUNT of the one strand.
    several had                 XINFO GROUPS of all, and their heads from the cached positions. If the
                                positions are still the same the heads are right, else XREAD again.
    several had, COUNT 1        Heads only grow. Of the strands whose heads are cached, check the one with
                                the smallest head; of the others, check whether they have entries now.

Nothing is delivered here. The read that follows also names the stream's bell (handout.py): if a strand was
created since, or a group was moved, the engine refuses. docs/decisions/0008-group-reads-look-first.md has
figures.
"""

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.merge import merge_certain
from braidstream.model.strand import Entry, Strand, facts, strand_of
from braidstream.protocol.cache import Reading
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

Pages = dict[Strand, list[Entry]]
# COUNT 1 reads the next two entries of a strand: the second is the head for the next call.
AHEAD: Final = 2


def one_busy(view: View, name: bytes, group: bytes) -> tuple[Strand, dict[Strand, Id]] | None:
    """If only one strand had entries last time: that strand, and the group's positions in the others."""
    reading = view.reading(name, group)
    if reading is None or len(reading.busy) != 1:
        return None
    return reading.busy[0], {strand: at for strand, at in reading.at.items() if strand not in reading.busy}


def shares(view: View, name: bytes, group: bytes, count: int) -> Plan[dict[Strand, int]]:
    """How many entries of each strand are the next COUNT. One round trip, or more.

    If there are none, one strand gets the whole COUNT: a read that finds nothing creates the consumer.
    """
    pages = yield from _heads(view, name, group, count)
    if len(pages) < 2:
        return dict.fromkeys(pages or view.delivered(name, group)[:1], count)
    taken = {id(entry) for entry in merge_certain(pages.values(), ())[:count]}
    numbers = {strand: sum(id(entry) in taken for entry in page) for strand, page in pages.items()}
    return {strand: number for strand, number in numbers.items() if number}


def next_one(view: View, name: bytes, group: bytes) -> Plan[Strand | None]:
    """COUNT 1: the strand of the next entry, if the cache knows it and is current. No round trip, or one."""
    reading = view.reading(name, group)
    known = {} if reading is None else {strand: some[0] for strand, some in reading.ahead.items() if some}
    if reading is None or not known:
        return None
    first = min(known, key=lambda strand: (strand.user(known[strand]), strand.writer))
    checked = {strand: at for strand, at in reading.at.items() if strand == first or strand not in known}
    commands: list[Command] = [_xinfo_groups(first), xread(checked, AHEAD)]
    rows, found = yield Batch(commands, resend=True, attempt=True)
    if isinstance(rows, ReplyError) or isinstance(found, ReplyError):
        return None
    pages = dict(by_strand(found))
    head = tuple(ids.native(entry) for entry, _ in pages.get(first, []))
    if len(pages) != 1 or head[:1] != (known[first],) or _position(rows, group) != reading.at[first]:
        return None
    ahead = {**reading.ahead, first: head}
    view.remember_reading(name, group, Reading(reading.bell, reading.at, reading.busy, reading.alone, ahead))
    return first


def note_delivered(view: View, name: bytes, group: bytes, pages: Mapping[Strand, list[Any]]) -> None:
    """Update the cached positions after native reads."""
    known = view.reading(name, group)
    if known is None or not pages:
        return
    at = {**known.at, **{strand: ids.native(page[-1][0]) for strand, page in pages.items()}}
    ahead = {
        strand: rest
        for strand, some in known.ahead.items()
        if (rest := tuple(native for native in some if native > at[strand]))
    }
    busy = tuple(ahead) if len(ahead) == 1 else known.busy
    view.remember_reading(name, group, Reading(known.bell, at, busy, known.alone, ahead))


def positions(view: View, name: bytes, group: bytes) -> Plan[dict[Strand, Id]]:
    """The group's position in each strand, cached if possible. No round trip, or one."""
    reading = view.reading(name, group)
    if reading is not None:
        return reading.at
    at = yield from now(view, name, group)
    view.remember_reading(name, group, Reading(view.recall(name).bell, at, view.delivered(name, group)))
    return at


def now(view: View, name: bytes, group: bytes) -> Plan[dict[Strand, Id]]:
    """The group's current position in each strand. One round trip."""
    at, _ = yield from _look(view, name, group, None)
    return at


def xread(at: Mapping[Strand, Id], count: int, *block: str | int) -> Command:
    """A native XREAD from a position in every strand. It delivers nothing."""
    where = (*(strand.key for strand in at), *(ids.text(native) for native in at.values()))
    return ("XREAD", "COUNT", count, *block, "STREAMS", *where)


def by_strand(reply: list[Any] | None) -> Iterator[tuple[Strand, list[Any]]]:
    """The pages of a native read over strands, without empty ones.

    Redis 7.0 wakes a reader for an entry that is deleted in the same step, and then sends an empty page.
    """
    for key, page in reply or []:
        if page:
            yield strand_of(key), page


def _heads(view: View, name: bytes, group: bytes, count: int) -> Plan[Pages]:
    """At least the next COUNT undelivered entries, or all there are."""
    reading = view.reading(name, group)
    expected = len(reading.busy) if reading is not None else len(view.delivered(name, group))
    even = count // max(expected, 1)
    page = min(even + isqrt(even) + 1, count) if count > 1 else AHEAD
    guess = reading.at if reading is not None and reading.alone else None
    at, found = yield from _look(view, name, group, None if guess is None else xread(guess, page))
    heads = dict(by_strand(found))
    right = guess is not None and all(at[strand] == guess[strand] for strand in heads)
    if not right:
        [found] = yield Batch([xread(at, page)], resend=True)
        heads = dict(by_strand(found))
    pages = {strand: strand.entries(head) for strand, head in heads.items()}
    yield from _read_on(pages, heads, page, count)
    alone = right or reading is None or (guess is None and reading.at == at)
    busy = tuple(pages) or view.delivered(name, group)[:1]
    ahead = {strand: tuple(ids.native(entry) for entry, _ in head) for strand, head in heads.items()}
    memory = Reading(view.recall(name).bell, at, busy, alone, ahead if count == 1 else {})
    view.remember_reading(name, group, memory)
    return pages


def _read_on(pages: Pages, heads: dict[Strand, list[Any]], page: int, count: int) -> Plan[None]:
    """Read further in strands whose page was full: more of their entries may be among the next COUNT."""
    while True:
        full = {strand: head for strand, head in heads.items() if len(head) == page}
        if not full or len(merge_certain(pages.values(), [pages[strand] for strand in full])) >= count:
            return
        ends = {strand: ids.native(head[-1][0]) for strand, head in full.items()}
        [reply] = yield Batch([xread(ends, page)], resend=True)
        heads = dict(by_strand(reply))
        for strand, head in heads.items():
            pages[strand] += strand.entries(head)


def _look(
    view: View, name: bytes, group: bytes, along: Command | None
) -> Plan[tuple[dict[Strand, Id], list[Any] | None]]:
    """The group's position in every strand, and the reply to one more command of the same batch."""
    strands = view.delivered(name, group)
    commands = [_xinfo_groups(strand) for strand in strands]
    more = [] if along is None else [along]
    replies = yield Batch([*commands, *more], resend=True, attempt=True)
    for reply in replies:
        if isinstance(reply, ReplyError) and not reply.text.startswith("ERR no such key"):
            raise reply
    return _placed(strands, group, replies), replies[-1] if more else None


def _placed(strands: tuple[Strand, ...], group: bytes, replies: list[Any]) -> dict[Strand, Id]:
    at = dict[Strand, Id]()
    for strand, rows in zip(strands, replies, strict=False):
        position = None if isinstance(rows, ReplyError) else _position(rows, group)
        if position is not None:
            at[strand] = position
    if len(at) != len(strands):
        raise ReplyError("NOGROUP the group was destroyed meanwhile")
    return at


def _xinfo_groups(strand: Strand) -> Command:
    return ("XINFO", "GROUPS", strand.key)


def _position(rows: list[Any], group: bytes) -> Id | None:
    """A group's position, from XINFO GROUPS."""
    for row in map(facts, rows):
        if row[b"name"] == group:
            return ids.native(row[b"last-delivered-id"])
    return None
