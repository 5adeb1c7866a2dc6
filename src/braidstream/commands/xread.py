"""XRANGE, XREVRANGE, XREAD, XLEN: the commands that read entries. And XREAD by a frontier, for readers."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import isqrt
from typing import Any, Final

from braidstream.commands.arguments import (
    Argv,
    Read,
    UnbalancedError,
    parse_interval,
    parse_read,
    strict_id,
)
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.frontier import Frontier
from braidstream.model.ids import Id
from braidstream.model.strand import (
    Command,
    Entry,
    Strand,
    facts,
    merge_certain,
    merge_pages,
    plain_strand,
    reply_entries,
    strand_of,
)
from braidstream.plan.braid import read_strands
from braidstream.plan.lookup import find_natives, refuse_other_types, registry_of, settled, type_check
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
#
# MAXCOUNT and MAXSIZE: caps on a whole reply, over all its streams.
#
# The engine counts the bytes of the reply as it writes them, and stops before the next entry once MAXSIZE
# is reached. Here they are counted as RESP2 writes them.

# A delivery cannot be undone, so MAXSIZE is checked before it, on this many entries at once.
PEEK: Final = 100
_HEAD: Final = len(b"*2\r\n")
_NIL: Final = len(b"*-1\r\n")


class Budget:
    """How much may still be added to a reply. The first entry always fits.

    used: entries in the reply. size: MAXSIZE, or None.
    """

    def __init__(self, count: int | None, size: int | None) -> None:
        self.count, self.size = count, size
        self.used = self._bytes = self._before = 0

    @property
    def spent(self) -> bool:
        """Whether the reply takes no further entry and no further stream."""
        if self.count is not None and self.used >= self.count:
            return True
        return self.size is not None and self.used > 0 and self._bytes >= self.size

    def cap(self, count: int | None) -> int | None:
        """How many entries may still come, if at most `count` are wanted."""
        left = None if self.count is None else max(self.count - self.used, 0)
        return min((each for each in (count, left) if each is not None), default=None)

    def begin(self, name: bytes) -> None:
        """The next stream."""
        self._before = self._bytes
        self._bytes += _HEAD + _bulk(name)

    def end(self, entries: int | None) -> None:
        """A stream is finished, with this number of entries. None: the reply leaves the stream out."""
        self._bytes = self._before if entries is None else self._bytes + _array(entries)

    def fits(self, entry: bytes, fields: list[bytes] | None, *numbers: int) -> bool:
        """Take one more entry, if it fits. `numbers`: what CLAIM adds to it."""
        if self.spent:
            return False
        self.used += 1
        if self.size is not None:
            body = _NIL if fields is None else _array(len(fields)) + sum(map(_bulk, fields))
            self._bytes += _HEAD + _bulk(entry) + body + sum(len(b":%d\r\n" % number) for number in numbers)
        return True

    def page(self, name: bytes, rows: list[Any]) -> list[Any]:
        """A stream of the reply, with as many of these entries as fit: [[name, entries]], or nothing."""
        if not rows or self.spent:
            return []
        self.begin(name)
        taken = list(takewhile(lambda row: self.fits(*row), rows)) if self._is_limited else rows
        self.end(len(taken))
        return [[name, taken]]

    @property
    def _is_limited(self) -> bool:
        return self.count is not None or self.size is not None

    def take(self, merged: list[Entry], *numbers: int) -> list[Entry]:
        """As many of these entries as fit."""
        if not self._is_limited:
            return merged
        return list(takewhile(lambda entry: self.fits(ids.text(entry[:2]), entry[3], *numbers), merged))


def _bulk(word: bytes) -> int:
    return len(word) + len(b"$%d\r\n\r\n" % len(word))


def _array(length: int) -> int:
    return len(b"*%d\r\n" % length)


# ----------------------------------------------------------------------------------------------------
# Xread

# A blocked reader returns to us after this time, to find strands of regions that joined meanwhile.
BLOCK_SLICE_MS: Final = 60_000
# An adoption may be undone: then the engine does not wake the reader.
UNDO_SLICE_MS: Final = 5_000
# From this COUNT on, a range over several strands does not read COUNT entries of each strand.
MANY: Final = 50


def length(view: View, argv: Argv) -> Plan[int]:
    """XLEN: the sum over the strands. One round trip if the strands are cached."""
    _, lengths = yield from read_strands(view, argv[1], lambda strand: strand.xlen())
    return sum(count for _, count in lengths)


def read_range(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """XRANGE: one snapshot of all strands, merged by ID. One round trip if the strands are cached.

    A COUNT of 50 or more over several strands reads a share of each, in one or more rounds.
    """
    return (yield from _range(view, argv, reverse=False))


def read_range_back(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """XREVRANGE: as XRANGE, in reverse order."""
    return (yield from _range(view, argv, reverse=True))


def _range(view: View, argv: Argv, *, reverse: bool) -> Plan[list[Any] | None]:
    start, end, count = parse_interval(argv, reverse=reverse)
    strands = view.recall(argv[1]).strands
    if count is not None and count >= MANY and len(strands) > 1 and view.carriage.may_look_again:
        return (yield from _range_by_rounds(view, argv[1], (start, end), count, reverse=reverse))
    registry, pages = yield from read_strands(
        view, argv[1], lambda strand: strand.xrange(start, end, count, reverse=reverse)
    )
    if count == 0:
        # The engine answers a null array for COUNT 0 where the stream exists.
        return None if registry.exists else []
    return reply_entries(
        merge_pages((strand.entries(page) for strand, page in pages), count, reverse=reverse)
    )


def _range_by_rounds(
    view: View, name: bytes, between: tuple[Id, Id], count: int, *, reverse: bool
) -> Plan[list[Any]]:
    """A large page over several strands: a share of each strand, and more rounds if that is not enough.

    Every round reads every strand, as one snapshot. A strand gets no new entries before the end of its
    page, so the result has every entry that existed in the last round; entries that were deleted between
    two rounds may still be in it.
    """
    pages = dict[Strand, list[Entry]]()
    even = count // max(len(view.recall(name).strands), 1)
    share = min(even + 3 * isqrt(even) + 10, count)  # an even share, three standard deviations, and a little
    while True:
        parts = partial(_rest, pages, between, share, reverse)
        _, answers = yield from read_strands(view, name, parts)
        more = {strand: strand.entries(page) for strand, page in answers}
        pages = {strand: pages.get(strand, []) + page for strand, page in more.items()}
        unfinished = [pages[strand] for strand, page in more.items() if len(page) == share]
        merged = merge_certain(pages.values(), unfinished, reverse=reverse)
        if len(merged) >= count or not unfinished:
            return reply_entries(merged[:count])
        share = min(2 * share, count)


def _rest(
    pages: dict[Strand, list[Entry]], between: tuple[Id, Id], share: int, reverse: bool, strand: Strand
) -> Command:
    """The command that reads a strand after the page we have of it."""
    low, high = between
    if pages.get(strand):
        last = pages[strand][-1][:2]
        beyond = ids.before(last) if reverse else ids.after(last)
        if beyond is None:
            low, high = ids.LAST, ids.ZERO  # nothing
        elif reverse:
            high = beyond
        else:
            low = beyond
    return strand.xrange(low, high, share, reverse=reverse)


def read(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """XREAD: one native XREAD over all strands of all streams. One round trip if the strands are cached.

    BLOCK: a first read without waiting, then one native blocking read over every strand that exists or
    may be created. One ID is a position in every strand; entries that arrive later with a smaller ID are
    skipped (AA-14 of docs/design/requirements.md).
    """
    try:
        spec = parse_read(argv)
    except UnbalancedError:
        yield from _engine_error(argv)
        return None
    yield from _check_positions(spec)
    is_repeated = len(set(spec.names)) < len(spec.names)
    waits = spec.block_ms is not None and view.carriage.may_block
    if is_repeated or waits or b"+" in spec.positions:
        view.will_continue()
    if is_repeated:
        return (yield from _read_repeated(view, spec))
    return (yield from _read(view, spec))


def _read(view: View, spec: Read) -> Plan[list[Any] | None]:
    blocks = spec.block_ms is not None and view.carriage.may_block
    if b"+" not in spec.positions and not (blocks and b"$" in spec.positions):
        current, found = yield from _look_cached(view, spec)
        if current and (found is not None or not blocks):
            return found
    strands = yield from _find_all(view, spec.names)
    starts = yield from _starts(view, spec, strands)
    try:
        found = yield from _look(spec, starts)
    except ReplyError as error:
        starts = yield from _start_again(view, starts, error)
        found = yield from _look(spec, starts)
    if found is None and blocks:
        found = yield from _wait(view, spec, starts)
    return found


def _read_repeated(view: View, spec: Read) -> Plan[list[Any] | None]:
    """A stream that is named twice is read twice, each time from its own position."""
    singles = [
        replace(spec, names=[name], positions=[word], block_ms=None, max_size=None)
        for name, word in zip(spec.names, spec.positions, strict=True)
    ]
    found, budget = list[Any](), Budget(spec.max_count, spec.max_size)
    for single in singles:
        for name, page in (yield from _read(view, single)) or []:
            found += budget.page(name, page)
    if found or spec.block_ms is None or not view.carriage.may_block:
        return found or None
    first = dict(reversed(list(zip(spec.names, spec.positions, strict=True))))
    return (yield from _read(view, replace(spec, names=list(first), positions=list(first.values()))))


def _engine_error(argv: Argv) -> Plan[None]:
    """Raise the error with which the engine refuses these words."""
    [reply] = yield Batch([tuple(argv)], resend=True, attempt=True)
    raise reply if isinstance(reply, ReplyError) else ReplyError("ERR syntax error")


def _check_positions(spec: Read) -> Plan[None]:
    """Refuse a bad ID; like the engine, after the types of the keys up to it."""
    for at, word in enumerate(spec.positions):
        error = None
        if word == b">":
            error = (
                "ERR The > ID can be specified only when calling XREADGROUP "
                "using the GROUP <group> <consumer> option."
            )
        elif word not in (b"$", b"+") and ids.parse(word) is None:
            error = "ERR Invalid stream ID specified as stream command argument"
        if error is not None:
            # In one batch: inside a MULTI, later commands may change the types.
            kinds = yield Batch([("TYPE", name) for name in spec.names[: at + 1]], resend=True)
            for name, kind in zip(spec.names, kinds, strict=False):
                yield from refuse_other_types(name, kind)
            raise ReplyError(error)


Strands = dict[bytes, tuple[Strand, ...]]


def _find_all(view: View, names: list[bytes]) -> Plan[Strands]:
    """The strands of each stream. A native stream is its own only strand."""
    distinct = list(dict.fromkeys(names))
    replies = yield Batch([registry_of(name) for name in distinct], resend=True)
    for name, reply in zip(distinct, replies, strict=True):
        view.learn(name, reply)
    yield from settled(view, distinct)
    found = {name: view.recall(name) for name in distinct}
    missing = [name for name, registry in found.items() if not registry.exists]
    if missing:
        yield from find_natives(view, missing)
        for name in missing:
            if not view.is_native(name) and not view.recall(name).exists:
                yield from refuse_other_types(name)
    return {name: _strands(view, name) for name in distinct}


def _strands(view: View, name: bytes) -> tuple[Strand, ...]:
    known = view.recall(name).strands
    return (plain_strand(name),) if not known and view.is_native(name) else known


Starts = list[tuple[bytes, Frontier, Id]]


def _start_again(view: View, starts: Starts, error: ReplyError) -> Plan[Starts]:
    """The same positions after a native stream was adopted: its key is another. Else the error."""
    if error.code != "WRONGTYPE":
        raise error
    changed = yield from _refreshed(view, starts)
    if changed == starts:
        raise error
    return changed


def _refreshed(view: View, starts: Starts) -> Plan[Starts]:
    """The same positions in the strands that there are by now."""
    strands = yield from _find_all(view, [name for name, _, _ in starts])
    changed: Starts = []
    for name, frontier, position in starts:
        changed.append((name, _in_strands(view, frontier, strands[name], position), position))
    return changed


def _in_strands(view: View, frontier: Frontier, strands: tuple[Strand, ...], position: Id) -> Frontier:
    """A frontier, with a place in strands that it does not name.

    If a native stream was adopted, its entries are our chosen strand now. If that was undone, they are a
    native stream again. They keep their IDs, so the position goes on there.
    """
    if strands and frontier.at and _is_native(frontier) != _is_native(strands):
        last = max(position, *(strand.user(native) for strand, native in frontier.at.items()))
        heir = plain_strand(strands[0].name) if _is_native(strands) else view.chosen(strands[0].name)
        frontier = Frontier({heir: last})
    return _joined(frontier, strands, position)


def _is_native(strands: Iterable[Strand]) -> bool:
    return any(strand.is_plain for strand in strands)


def _starts(view: View, spec: Read, found: Strands) -> Plan[Starts]:
    """Where to read each stream from: a frontier, and the user ID for strands that are created later."""
    starts: Starts = []
    for name, word in zip(spec.names, spec.positions, strict=True):
        strands = found[name]
        if word == b"$" or (word == b"+" and not strands):
            frontier, end = yield from _end_of(view, name)
            starts.append((name, frontier, end))
        elif word == b"+":
            starts.append((yield from _before_last(view, name)))
        else:
            starts.append(_start(name, word, strands))
    return starts


def _start(name: bytes, word: bytes, strands: tuple[Strand, ...]) -> tuple[bytes, Frontier, Id]:
    position = strict_id(word)
    return name, Frontier.below(position, strands), position


def _end_of(view: View, name: bytes) -> Plan[tuple[Frontier, Id]]:
    if view.is_native(name):
        strand = plain_strand(name)
        [reply] = yield Batch([strand.xinfo()], resend=True, attempt=True)
        if not isinstance(reply, ReplyError):
            last = ids.native(facts(reply)[b"last-generated-id"])
            return Frontier({strand: last}), last
        view.cache.note_native(name, False)  # it is gone, or adopted
    registry, answers = yield from read_strands(view, name, lambda strand: strand.xinfo())
    at, end = dict[Strand, Id](), ids.ZERO
    for strand, reply in answers:
        last = ids.native(reply[reply.index(b"last-generated-id") + 1])
        at[strand] = last
        end = max(end, registry.end(strand, last))
    return Frontier(at), end


def _before_last(view: View, name: bytes) -> Plan[tuple[bytes, Frontier, Id]]:
    """`+`: just before the last entry, so that only this one is read; the end of an empty stream."""
    if view.is_native(name):
        strand = plain_strand(name)
        [page] = yield Batch([strand.xrange(ids.ZERO, ids.LAST, 1, reverse=True)], resend=True)
        answers = [(strand, page)]
    else:
        _, answers = yield from read_strands(
            view, name, lambda strand: strand.xrange(ids.ZERO, ids.LAST, 1, reverse=True)
        )
    newest = merge_pages((strand.entries(page) for strand, page in answers), 1, reverse=True)
    if not newest:
        frontier, end = yield from _end_of(view, name)
        return name, frontier, end
    position = ids.before(newest[0][:2]) or ids.ZERO
    return name, Frontier.below(position, tuple(strand for strand, _ in answers)), position


def _look(spec: Read, starts: Starts, answer: "Answer | None" = None) -> Plan[list[Any] | None]:
    if not any(frontier.at for _, frontier, _ in starts):
        return None
    [reply] = yield Batch([_xread(spec, starts, None)], resend=True)
    return (answer or _answer)(spec, reply or [])


def _look_cached(view: View, spec: Read) -> Plan[tuple[bool, list[Any] | None]]:
    """Read the cached strands: (whether those are all strands, the answer)."""
    starts: Starts = []
    for name, word in zip(spec.names, spec.positions, strict=True):
        position = ids.LAST if word == b"$" else strict_id(word)
        strands = _strands(view, name) or (view.home(name),)
        starts.append((name, Frontier.below(position, strands), position))
    missing = [name for name in spec.names if type_check(view, name) and not view.is_native(name)]
    checks = [("TYPE", name) for name in missing]
    commands = [_xread(spec, starts, None), *map(registry_of, spec.names), *checks]
    replies = yield Batch(commands, resend=True)
    for at, name in enumerate(spec.names, 1):
        view.learn(name, replies[at])
    if not replies[0] and view.carriage.may_look_again:
        yield from settled(view, spec.names)
    registries = {name: view.recall(name) for name in spec.names}
    kinds = dict(zip(missing, replies[1 + len(spec.names) :], strict=True))
    for name, registry in registries.items():
        if not registry.exists and not view.is_native(name):
            yield from refuse_other_types(name, kinds.get(name))
    current = all(set(registries[name].strands) <= set(frontier) for name, frontier, _ in starts)
    return current, _answer(spec, replies[0] or [])


def _xread(spec: Read, starts: Starts, block_ms: int | None) -> Command:
    places = [(strand, frontier[strand]) for _, frontier, _ in starts for strand in frontier]
    count = min((cap for cap in (spec.count, spec.max_count) if cap is not None), default=None)
    limit: Command = () if count is None else ("COUNT", count)
    block: Command = () if block_ms is None else ("BLOCK", block_ms)
    where = (*(strand.key for strand, _ in places), *(ids.text(after) for _, after in places))
    return ("XREAD", *limit, *block, "STREAMS", *where)


def _answer(spec: Read, reply: list[Any]) -> list[Any] | None:
    """The native answer by strand, as an answer by stream, within the caps."""
    pages = dict[bytes, list[list[Entry]]]()
    for key, page in reply:
        strand = strand_of(key)
        pages.setdefault(strand.name, []).append(strand.entries(page))
    answer, budget = list[Any](), Budget(spec.max_count, spec.max_size)
    for name in spec.names:
        answer += budget.page(name, reply_entries(merge_pages(pages.get(name, []), spec.count)))
    return answer or None


def _wait(view: View, spec: Read, starts: Starts, answer: "Answer | None" = None) -> Plan[list[Any] | None]:
    assert spec.block_ms is not None
    left = spec.block_ms
    while True:
        longest = BLOCK_SLICE_MS
        if not view.region.journal_writer and any(view.recall(name).fenced for name in spec.names):
            longest = UNDO_SLICE_MS
        turn = min(left, longest) if spec.block_ms else longest
        waited = [_with_possible(view, *start) for start in starts]
        try:
            [reply] = yield Batch([_xread(spec, waited, turn)], resend=True, block_ms=turn)
        except ReplyError as error:
            starts = yield from _start_again(view, starts, error)
            continue
        found = (answer or _answer)(spec, reply or [])
        if reply is None:  # timeout; the creation of an empty strand also wakes us
            left -= turn
        if found is not None or (spec.block_ms and left <= 0):
            return found
        starts = yield from _refreshed(view, starts)


def _joined(frontier: Frontier, strands: tuple[Strand, ...], position: Id) -> Frontier:
    return Frontier.below(position, tuple(strand for strand in strands if strand not in frontier.at)).join(
        frontier
    )


def _with_possible(view: View, name: bytes, frontier: Frontier, position: Id) -> tuple[bytes, Frontier, Id]:
    """The frontier, with every strand that any writer may create while we wait."""
    known = {strand.label: strand for strand in (*view.recall(name).cuts, *frontier)}
    possible, home = [*frontier], view.recall(name).home
    epoch = 0 if home is None else home.number + 1
    if home is not None:
        possible.append(Strand(name, keys.LOG, home.writer, home.number))
    for writer in view.region.writers:
        generated, chosen = Strand(name, keys.GENERATED, writer), Strand(name, keys.CHOSEN, writer)
        current = known.get(chosen.label)
        possible += [generated, current.next_life if current else chosen]
        possible += [Strand(name, keys.LOG, writer, epoch)]
    return name, _joined(frontier, tuple(dict.fromkeys(possible)), position), position


# An entry, and the strand that has it.
Row = tuple[Entry, Strand]
# What XREAD makes of the native reply.
Answer = Callable[[Read, list[Any]], list[Any] | None]


def read_after(
    view: View, name: bytes, start: Frontier | bytes, count: int, block_ms: int | None
) -> Plan[tuple[Frontier, list[Row]]]:
    """The next entries after a frontier, in ID order: (the frontier, the entries). Two round trips.

    start: a frontier, or `$` or an ID. A strand that it does not name is read from its start: entries that
    arrive late are not skipped, whatever their IDs.
    """
    strands = (yield from _find_all(view, [name]))[name]
    if view.recall(name).is_log:
        raise ReplyError("ERR this is a log: read it by offsets, with TREAD")
    if start == b"$":
        frontier, _ = yield from _end_of(view, name)
    elif isinstance(start, Frontier):
        frontier = _in_strands(view, start, strands, ids.ZERO)
    else:
        frontier = Frontier.below(strict_id(start), strands)
    spec = Read([name], [], count, block_ms, None, None)
    starts: Starts = [(name, frontier, ids.ZERO)]
    try:
        rows = yield from _look(spec, starts, _rows)
    except ReplyError as error:
        starts = yield from _start_again(view, starts, error)
        rows = yield from _look(spec, starts, _rows)
    if rows is None and block_ms is not None:
        rows = yield from _wait(view, spec, starts, _rows)
    # The stream may have been adopted while this read waited.
    return _in_strands(view, frontier, _strands(view, name), ids.ZERO), rows or []


def _rows(spec: Read, reply: list[Any]) -> list[Row] | None:
    pages = ((strand, strand.entries(page)) for key, page in reply for strand in [strand_of(key)])
    rows = sorted(((entry, strand) for strand, page in pages for entry in page), key=lambda row: row[0][:3])
    return rows[: spec.count] or None
