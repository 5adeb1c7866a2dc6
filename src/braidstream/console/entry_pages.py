"""The entries of a stream or a log: pages by time, ID or offset, one entry, a filter, and a live tail."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from braidstream.clients.commands import ViewOf, command
from braidstream.clients.log_commands import entries_read
from braidstream.clients.raised import ServerError
from braidstream.clients.shared import Conversation
from braidstream.commands.twrite import segments
from braidstream.console.access import RegionAccess
from braidstream.console.page import TEMPLATES, MissingPageError, Query, QueryError, render, time_text
from braidstream.console.stream_pages import list_found
from braidstream.errors import BraidError
from braidstream.model import ids
from braidstream.model.frontier import Frontier
from braidstream.model.ids import Id
from braidstream.model.registry import LAST_OFFSET, Registry, offset_of
from braidstream.model.strand import Entry
from braidstream.operations.log_upkeep import home_of, read_log
from braidstream.operations.streams import ends_before, follow, read_entries
from braidstream.operations.words import printable, size_text
from braidstream.plan.plan import Plan, send_one

# ----------------------------------------------------------------------------------------------------
# Entries as people read them: fields and values as text, JSON indented, long values cut.

SHORT: Final = 400
LONG: Final = 262_144
_MOST_JSON: Final = 65_536
# Shorter JSON stays on one line.
_MOST_LINE: Final = 80


@dataclass(frozen=True, slots=True)
class FieldValue:
    """json: the value indented, if it is JSON. cut: its whole size, if text is only a part of it."""

    name: str
    text: str
    json: str = ""
    cut: str = ""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry. time: empty for an entry of a log."""

    id: str
    time: str
    writer: int
    fields: tuple[FieldValue, ...]

    def cells(self, columns: Sequence[str]) -> list[FieldValue | None]:
        """The values of columns; None where the entry lacks the field."""
        by_name = {value.name: value for value in self.fields}
        return [by_name.get(name) for name in columns]

    def rest(self, columns: Sequence[str]) -> list[FieldValue]:
        return [value for value in self.fields if value.name not in columns]


def entry_row(entry: Entry, most: int = SHORT) -> EntryRow:
    ms, seq, writer, words = entry
    pairs = zip(words[::2], words[1::2], strict=True)
    return EntryRow(
        f"{ms}-{seq}",
        time_text(ms) if ms else "",
        writer,
        tuple(field_value(name, value, most) for name, value in pairs),
    )


def field_value(name: bytes, value: bytes, most: int = SHORT) -> FieldValue:
    shown = printable(value[:most])
    if len(value) > most:
        return FieldValue(printable(name[:SHORT]), shown, cut=size_text(len(value)))
    return FieldValue(printable(name[:SHORT]), shown, json=_indented(value))


def _indented(value: bytes) -> str:
    """A JSON object or list, readable; empty for anything else."""
    if value.lstrip()[:1] not in (b"{", b"[") or len(value) > _MOST_JSON:
        return ""
    try:
        found = json.loads(value)
        text = json.dumps(found, ensure_ascii=False)
        if len(text) > _MOST_LINE:
            text = json.dumps(found, indent=2, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace").decode()  # halves of surrogate pairs are no text
    except (ValueError, RecursionError):
        return ""


# A field gets a column of its own if at least half of the entries have it, and its values are this short.
_MOST_CELL: Final = 60
_MOST_COLUMNS: Final = 8


def columns_of(rows: Sequence[EntryRow]) -> tuple[str, ...]:
    """The fields that get a column each, in the order of the entries."""
    counts, unfit = Counter[str](), set[str]()
    for row in rows:
        names = Counter(value.name for value in row.fields)
        counts.update(names.keys())
        unfit.update(value.name for value in row.fields if names[value.name] > 1 or not _fits(value))
    found = [name for name, count in counts.items() if name not in unfit and 2 * count >= len(rows)]
    return tuple(found[:_MOST_COLUMNS])


def _fits(value: FieldValue) -> bool:
    return len(value.text) <= _MOST_CELL and len(value.name) <= _MOST_CELL and not value.cut


def has(entry: Entry, field: str, text: str) -> bool:
    """Whether an entry has the field, and the text in its value; without a field: in any name or value."""
    words = entry[3]
    wanted = text.encode()
    if not field:
        return any(wanted in word for word in words)
    named = field.encode()
    return any(name == named and wanted in value for name, value in _pairs(words))


def _pairs(words: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(words[::2], words[1::2], strict=True)


# ----------------------------------------------------------------------------------------------------
# Entry pages

_COUNT: Final = 50
_MOST_COUNT: Final = 200
# A filter reads this many entries for one page, then offers to continue.
_PAGE: Final = 200
_MOST_READ: Final = 2_000
_TAIL: Final = 20
_MOST_NEW: Final = 200


@dataclass(frozen=True, slots=True)
class _Found:
    """entries: those that match. following: where the next page starts; None at the end."""

    entries: list[Entry]
    read: int
    following: Id | None


async def list_page(request: Request) -> Response:
    query = Query.of(request)
    name, older = query.name(), query.text("dir") != "newer"
    start = _position(query.text("at"), older=older)
    count = query.number("count", _COUNT, _MOST_COUNT)
    found = await _find(query, name, start, count, older=older)
    rows = [entry_row(entry) for entry in found.entries]
    return render(
        request,
        "entries.html",
        page="streams",
        region=query.region.name,
        name=name,
        older=older,
        at=query.text("at"),
        count=count,
        field=query.text("field"),
        text=query.text("text"),
        found=found,
        following="" if found.following is None else ids.text(found.following).decode(),
        rows=rows,
        columns=columns_of(rows),
    )


async def _find(query: Query, name: bytes, start: Id, count: int, *, older: bool) -> _Found:
    field, text = query.text("field"), query.text("text")
    is_filtered = bool(field or text)
    page, most = (_PAGE, _MOST_READ) if is_filtered else (count, count)
    matching, read = list[Entry](), 0
    at: Id | None = start
    while at is not None and read < most and len(matching) < count:
        low, high = (ids.ZERO, at) if older else (at, ids.LAST)
        found = await query.region.run(read_entries(name, low, high, page + 1, reverse=older))
        entries = _whole_ids(found) if len(found) > page else found
        at = None
        for number, entry in enumerate(entries, start=1):
            read += 1
            at = ids.before(entry[:2]) if older else ids.after(entry[:2])
            if not is_filtered or has(entry, field, text):
                matching.append(entry)
            is_last = number == len(entries) or entries[number][:2] != entry[:2]
            if len(matching) >= count and is_last:
                break
        else:
            at = at if len(found) > page else None
    return _Found(matching, read, at)


def _whole_ids(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Without those of the last ID: the next page may have more of them. Regions may choose the same ID."""
    return [entry for entry in entries if entry[:2] != entries[-1][:2]] or entries


def _position(text: str, *, older: bool) -> Id:
    """An ID, milliseconds, or a time in UTC; the newest or the oldest entry if empty."""
    if not text:
        return ids.LAST if older else ids.ZERO
    found = ids.parse(text.encode(), ids.MAX if older else 0)
    if found is not None:
        return found
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise QueryError("write an ID, or a time like 2026-11-16 08:30:00 (UTC).") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, round(aware.timestamp() * 1000)), ids.MAX if older else 0


async def show(request: Request) -> Response:
    """One entry, or several with the same ID, in full."""
    query = Query.of(request)
    name, entry = query.name(), ids.parse(query.text("id").encode())
    if entry is None:
        raise QueryError("id is no ID.")
    found = await query.region.run(read_entries(name, entry, entry, 8, reverse=False))
    if not found:
        raise MissingPageError(f"{query.region.name} has no entry {query.text('id')} in this stream.")
    rows = [entry_row(each, LONG) for each in found]
    return render(request, "entry.html", page="streams", region=query.region.name, name=name, rows=rows)


async def tail(request: Request) -> Response:
    """The page that follows a stream. The script asks for new entries by `newer`."""
    query = Query.of(request)
    name = query.name()
    ends = await query.region.run(ends_before(name, _TAIL))
    found = await query.region.run(follow(name, ends, 1))
    return render(
        request,
        "tail.html",
        page="streams",
        region=query.region.name,
        name=name,
        rows=[entry_row(each) for each in reversed((found or [])[-_TAIL:])],
        cursor=json.dumps(Frontier(ends).positions),
    )


async def newer(request: Request) -> Response:
    """What has arrived since the cursor, and the next cursor, as a part of a page."""
    query = Query.of(request)
    name = query.name()
    try:
        cursor = Frontier.parse(json.loads(query.text("cursor")))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise QueryError("cursor is not one of this console.") from None
    ends = {strand: native for strand, native in cursor.at.items() if strand.name == name}
    found = await query.region.run(follow(name, ends, 1)) or []
    part = TEMPLATES.get_template("tail_rows.html").render(
        console=query.console,
        region=query.region.name,
        name=name,
        rows=[entry_row(each) for each in reversed(found[-_MOST_NEW:])],
        skipped=max(0, len(found) - _MOST_NEW),
        cursor=json.dumps(Frontier(ends).positions),
    )
    return HTMLResponse(part)


# ----------------------------------------------------------------------------------------------------
# Logs: the home, the epochs, the offsets in every region, and entries by offset.

_LOG_COUNT: Final = 50


async def log_list_page(request: Request) -> Response:
    found = await list_found(Query.of(request), logs_only=True)
    return render(request, "logs.html", page="logs", **found)


async def show_log(request: Request) -> Response:
    """One log. `at`: the first offset to show; `before`: the entries before this offset. Without both the
    last entries."""
    query = Query.of(request)
    name = query.name()
    registry = await query.region.run(read_log(name))
    regions = list(query.console.access.values())
    extents = await asyncio.gather(*(_extent(region, name) for region in regions))
    here = dict(zip((each.name for each in regions), extents, strict=True))[query.region.name]
    first, last = here[:2] if not here[2] else (1, 0)
    start = query.number("at", 0, LAST_OFFSET)
    if not start:
        end = query.number("before", last + 1, LAST_OFFSET)
        start = await query.region.run(_page_before(name, registry, end)) or first
    _, entries = await query.region.converse(_read(name, start, _LOG_COUNT))
    following = entries[-1][0] + 1 if len(entries) == _LOG_COUNT else last + 1
    return render(
        request,
        "log.html",
        page="logs",
        region=query.region.name,
        name=name,
        home=query.console.region_name(home_of(registry).writer),
        epochs=registry.epochs,
        settings=registry.log,
        extents=list(zip(regions, extents, strict=True)),
        rows=[
            (offset, field_value(b"", tag).text, field_value(b"", entry)) for offset, tag, entry in entries
        ],
        start=start,
        before=start if start > first else 0,
        following=following if following <= last else 0,
        is_last=following > last,
    )


def _page_before(name: bytes, registry: Registry, end: int) -> Plan[int]:
    """Where a page of entries before an offset begins. 0: there are none."""
    start, wanted = 0, _LOG_COUNT
    for part in reversed(segments(name, registry)):
        here = part.within(1, end - 1)
        if here is not None and wanted:
            rows: list[Any] = yield from send_one(here.xrevrange("COUNT", wanted), resend=True)
            wanted -= len(rows)
            start = offset_of(rows[-1][0]) if rows else start
    return start


def _read(name: bytes, start: int, count: int) -> Conversation[tuple[Sequence[int], list[Any]]]:
    """(first, last) offset here, and entries from an offset on. Missing ones are left out."""

    def plan(view_of: ViewOf) -> Plan[tuple[Sequence[int], list[Any]]]:
        reply = yield from command(view_of, "TREAD", name, start, count, "WITHINFO", "SKIP")
        extent, entries = entries_read(reply, withinfo=True)
        return extent, entries

    return plan


async def _extent(region: RegionAccess, name: bytes) -> tuple[int, int, str]:
    """First and last offset in a region, or why they are unknown."""
    try:
        (first, last), _ = await region.converse(_read(name, 1, 0))
        return int(first), int(last), ""
    except (BraidError, ServerError, OSError) as error:
        return 0, 0, str(error)
