"""The entries of a stream: pages by time or ID, one entry in full, a filter, and a live tail."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from braidstream.admin.stream_overview import ends_before, follow, read_entries
from braidstream.console.field_values import LONG, entry_row, has
from braidstream.console.page import TEMPLATES, MissingPageError, Query, QueryError, render
from braidstream.model import ids
from braidstream.model.frontier import Frontier
from braidstream.model.ids import Id
from braidstream.model.strand import Entry

_COUNT: Final = 50
_MOST_COUNT: Final = 200
# A filter reads so many entries for one page, then offers to continue.
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
        rows=[entry_row(entry) for entry in found.entries],
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
    except (ValueError, TypeError, AttributeError):
        raise QueryError("cursor is none of ours.") from None
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
