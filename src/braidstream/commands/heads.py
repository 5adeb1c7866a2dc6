"""What a group is given next: how many entries of which strands are the next COUNT in ID order.

Only the engine knows where a group is (XINFO GROUPS), and only reading tells what comes next. Both cost,
so a client remembers (`Reading` in braid.py) and checks just what could make it wrong:

    one strand had news         are the others still quiet? XREAD over them, from where the group was.
                                It may be further by now, never behind, so nothing after the old place is
                                nothing after the new one: take COUNT of the one.
    several had                 XINFO GROUPS of all, and their heads from where the group was. If it is
                                still there the heads are right; if not, they are asked for again.

Nothing is taken here. Who takes names the bell of the stream too (handout.py): if a strand came to be
since, or a group was moved, the engine refuses. docs/decisions/0008-group-reads-look-first.md has figures.
"""

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any

from braidstream import ids, keys
from braidstream.braid import Reading, Registry, View
from braidstream.errors import ReplyError
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Entry, Strand, facts
from braidstream.weave import certain

Pages = dict[Strand, list[Entry]]


def quiet(view: View, name: bytes, group: bytes) -> tuple[Strand, dict[Strand, Id]] | None:
    """The one strand that had news, and where the group was in the others; None if it was not so."""
    reading = view.reading(name, group)
    if reading is None or len(reading.busy) != 1:
        return None
    return reading.busy[0], {strand: at for strand, at in reading.at.items() if strand not in reading.busy}


def shares(view: View, name: bytes, group: bytes, count: int) -> Plan[dict[Strand, int]]:
    """How many entries of each strand are the next COUNT. One round trip, or more.

    If nothing is there, one strand gets the whole COUNT: a read that finds nothing makes the consumer.
    """
    pages = yield from _heads(view, name, group, count)
    if len(pages) < 2:
        return dict.fromkeys(pages or view.recall(name).strands[:1], count)
    taken = {id(entry) for entry in certain(pages.values(), ())[:count]}
    numbers = {strand: sum(id(entry) in taken for entry in page) for strand, page in pages.items()}
    return {strand: number for strand, number in numbers.items() if number}


def took(view: View, name: bytes, group: bytes, pages: Mapping[Strand, list[Any]]) -> None:
    """Native reads have moved the group on."""
    known = view.reading(name, group)
    if known is None or not pages:
        return
    ends = {strand: ids.native(page[-1][0]) for strand, page in pages.items()}
    view.note(name, group, Reading(known.bell, {**known.at, **ends}, known.busy, known.alone))


def positions(view: View, name: bytes, group: bytes) -> Plan[dict[Strand, Id]]:
    """Where the group was when we last looked, or is now. No round trip, or one."""
    reading = view.reading(name, group)
    if reading is not None:
        return reading.at
    at = yield from now(view, name, group)
    view.note(name, group, Reading(view.recall(name).bell, at, view.recall(name).strands))
    return at


def now(view: View, name: bytes, group: bytes) -> Plan[dict[Strand, Id]]:
    """Where the group is. One round trip."""
    at, _ = yield from _look(view, name, group, None)
    return at


def xread(at: Mapping[Strand, Id], count: int, *block: str | int) -> Command:
    """A native read from a position in every strand. It takes nothing."""
    where = (*(strand.key for strand in at), *(ids.text(native) for native in at.values()))
    return ("XREAD", "COUNT", count, *block, "STREAMS", *where)


def by_strand(reply: list[Any] | None) -> Iterator[tuple[Strand, list[Any]]]:
    """What a native read over strands has found, page by page."""
    for key, page in reply or []:
        place = keys.parse_strand(key)
        assert place is not None, key
        yield Strand(*place), page


def _heads(view: View, name: bytes, group: bytes, count: int) -> Plan[Pages]:
    """At least the next COUNT entries that the group was not given, or all there are."""
    reading = view.reading(name, group)
    expected = len(reading.busy) if reading is not None else len(view.recall(name).strands)
    even = count // max(expected, 1)
    page = min(even + isqrt(even) + 1, count)
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
    busy = tuple(pages) or view.recall(name).strands[:1]
    view.note(name, group, Reading(view.recall(name).bell, at, busy, alone))
    return pages


def _read_on(pages: Pages, heads: dict[Strand, list[Any]], page: int, count: int) -> Plan[None]:
    """Where a strand's page was full, what follows it may belong to the next COUNT."""
    while True:
        full = {strand: head for strand, head in heads.items() if len(head) == page}
        if not full or len(certain(pages.values(), [pages[strand] for strand in full])) >= count:
            return
        ends = {strand: ids.native(head[-1][0]) for strand, head in full.items()}
        [reply] = yield Batch([xread(ends, page)], resend=True)
        heads = dict(by_strand(reply))
        for strand, head in heads.items():
            pages[strand] += strand.entries(head)


def _look(
    view: View, name: bytes, group: bytes, along: Command | None
) -> Plan[tuple[dict[Strand, Id], list[Any] | None]]:
    """Where the group is in every strand, and the reply to one more command of the same moment."""
    registry = view.recall(name)
    commands: list[Command] = [("XINFO", "GROUPS", strand.key) for strand in registry.strands]
    more = [] if along is None else [along]
    replies = yield Batch([*commands, *more], resend=True, attempt=True)
    for reply in replies:
        if isinstance(reply, ReplyError) and not reply.text.startswith("ERR no such key"):
            raise reply
    return _placed(registry, group, replies), replies[-1] if more else None


def _placed(registry: Registry, group: bytes, replies: list[Any]) -> dict[Strand, Id]:
    at = dict[Strand, Id]()
    for strand, rows in zip(registry.strands, replies, strict=False):
        for row in [] if isinstance(rows, ReplyError) else map(facts, rows):
            if row[b"name"] == group:
                at[strand] = ids.native(row[b"last-delivered-id"])
    if len(at) != len(registry.strands):
        raise ReplyError("NOGROUP the group went away while we looked")
    return at
