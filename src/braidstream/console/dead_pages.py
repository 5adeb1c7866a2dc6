"""Dead letters: the streams that have some, a list of them, and with --allow-write retry and drop."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from braidstream.console.access import RegionAccess
from braidstream.console.entry_pages import FieldValue, field_value
from braidstream.console.page import Query, QueryError, form_of, link_to, render, time_text
from braidstream.console.stream_pages import read_rows, search
from braidstream.consumers import dead_letters
from braidstream.consumers.dead_letters import DeadLetter
from braidstream.errors import DamagedError
from braidstream.model import ids
from braidstream.observability.events import emit
from braidstream.operations.streams import StreamRow, read_entries

_PAGE: Final = 50
_MOST_AT_ONCE: Final = 100
_NONE: Final = "none"
_DONE: Final = ("retried", "dropped", _NONE)


async def list_page(request: Request) -> Response:
    """The oldest dead letters of a stream first; without a name the streams that have some."""
    query = Query.of(request)
    return await (_show(request, query) if query.text("name") else _streams_page(request, query))


# Where consumers put dead letters unless they say otherwise.
_USUAL: Final = "*.dead"


@dataclass(frozen=True, slots=True)
class DeadStream:
    """A stream of dead letters, and its newest one. died_ms: when its entry was given up."""

    row: StreamRow
    letter: DeadLetter
    died_ms: int


async def _streams_page(request: Request, query: Query) -> Response:
    """Streams whose newest entry is a dead letter, the newest first."""
    part = await search(query, query.text("cursor") or "0", _USUAL)
    skipped, damaged = {*part.skipped}, list[DamagedError]()
    rows = await read_rows(query.region, part.names, skipped, damaged)
    found = await asyncio.gather(*(_newest(query.region, row) for row in rows if row.length))
    return render(
        request,
        "dead_streams.html",
        page="dead",
        region=query.region.name,
        pattern=query.text("pattern"),
        rows=sorted((each for each in found if each), key=lambda each: -each.died_ms),
        following=part.cursor,
        skipped=sorted(skipped),
        unread=[(each.stream, each.text) for each in damaged],
        is_first=query.text("cursor") in ("", "0"),
        now_ms=time.time() * 1000,
    )


async def _newest(region: RegionAccess, row: StreamRow) -> DeadStream | None:
    found = await region.run(read_entries(row.name, ids.ZERO, ids.LAST, 1, reverse=True))
    letter = dead_letters.parse(found[0][3]) if found else None
    return None if letter is None else DeadStream(row, letter, found[0][0])


async def _show(request: Request, query: Query) -> Response:
    stream = _stream(query)
    start = query.text("at")
    if start and ids.parse(start.encode()) is None:
        raise QueryError("at is no ID.")
    low = f"({start}" if start else "-"
    found = await query.region.converse(dead_letters.page(stream, low, "+", _PAGE))
    rows = [
        (entry.decode(), time_text(ids.native(entry)[0]), letter, _fields(letter))
        for entry, letter in found
        if letter is not None
    ]
    return render(
        request,
        "dead.html",
        page="dead",
        region=query.region.name,
        name=query.name(),
        rows=rows,
        others=len(found) - len(rows),
        following=found[-1][0].decode() if len(found) == _PAGE else "",
        at=start,
        done=query.text("done") if query.text("done") in _DONE else "",
        count=query.number("count", 0, _MOST_AT_ONCE),
    )


def _stream(query: Query) -> str:
    try:
        return query.name().decode()
    except UnicodeDecodeError:
        raise QueryError("the name of this stream is not text.") from None


def _fields(letter: DeadLetter) -> tuple[FieldValue, ...]:
    pairs = zip(letter.words[::2], letter.words[1::2], strict=True)
    return tuple(field_value(name, value) for name, value in pairs)


async def retry(request: Request) -> Response:
    """Append the entries to their stream again, and delete their dead letters, in one step."""
    query, chosen = await _chosen(request)
    if not chosen:
        return _back(query, _NONE)
    stream = _stream(query)
    strange = [letter.stream for _, letter in chosen if not dead_letters.belongs(stream, letter)]
    if strange:
        raise QueryError(f"nothing was retried: {dead_letters.refusal(stream, strange)}")
    made = await query.region.converse(dead_letters.retry(stream, chosen, None))
    _log(request, query, "dead letters retried", len(made) - made.count(None))
    return _back(query, "retried", len(made) - made.count(None))


async def drop(request: Request) -> Response:
    query, chosen = await _chosen(request)
    if not chosen:
        return _back(query, _NONE)
    await query.region.converse(dead_letters.drop(_stream(query), [entry for entry, _ in chosen]))
    _log(request, query, "dead letters dropped", len(chosen))
    return _back(query, "dropped", len(chosen))


def _log(request: Request, query: Query, what: str, count: int) -> None:
    who = query.console.visitors.user(request)
    place = "" if request.client is None else request.client.host
    facts = {"what": what, "count": count, "region": query.region.name, "stream": _stream(query)}
    emit("console.changed", **facts, user=who or "-", client=place)


async def _chosen(request: Request) -> tuple[Query, list[tuple[bytes, DeadLetter]]]:
    """The dead letters that a form names, as far as they are still there."""
    form = await form_of(request)
    query = Query.of(request, form.words)
    if not query.console.allow_write:
        raise QueryError("this console is read-only. Start it with --allow-write.")
    wanted = form.lists.get("id", [])
    if len(wanted) > _MOST_AT_ONCE or any(ids.parse(each.encode()) is None for each in wanted):
        raise QueryError(f"choose at most {_MOST_AT_ONCE} dead letters.")
    found = list[tuple[bytes, DeadLetter]]()
    for each in dict.fromkeys(wanted):
        for entry, letter in await query.region.converse(dead_letters.page(_stream(query), each, each, 1)):
            if letter is not None:
                found.append((entry, letter))
    return query, found


def _back(query: Query, done: str, count: int = 0) -> Response:
    """To the list, where the visitor was."""
    words = {"region": query.region.name, "name": query.name(), "done": done, "count": count or ""}
    return RedirectResponse(link_to("/dead", at=query.text("at"), **words), 303)
