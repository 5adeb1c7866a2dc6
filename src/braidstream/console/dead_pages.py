"""Dead letters: a list, and with --allow-write retry and drop."""

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from braidstream.console.entry_pages import FieldValue, field_value
from braidstream.console.page import Query, QueryError, form_of, link_to, render
from braidstream.consumers import dead_letters
from braidstream.consumers.dead_letters import DeadLetter
from braidstream.model import ids
from braidstream.observability.events import emit

_PAGE: Final = 50
_MOST_AT_ONCE: Final = 100
_DONE: Final = ("retried", "dropped")


async def list_page(request: Request) -> Response:
    """The oldest dead letters of a stream first."""
    query = Query.of(request)
    stream = _stream(query)
    start = query.text("at")
    if start and ids.parse(start.encode()) is None:
        raise QueryError("at is no ID.")
    low = f"({start}" if start else "-"
    found = await query.region.converse(dead_letters.page(stream, low, "+", _PAGE))
    rows = [(entry.decode(), letter, _fields(letter)) for entry, letter in found if letter is not None]
    return render(
        request,
        "dead.html",
        page="streams",
        region=query.region.name,
        name=query.name(),
        rows=rows,
        others=len(found) - len(rows),
        following=found[-1][0].decode() if len(found) == _PAGE else "",
        is_first=not start,
        done=query.text("done") if query.text("done") in _DONE else "",
        count=query.number("count", 1, _MOST_AT_ONCE),
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
        return _back(query, "retried", 0)
    stream = _stream(query)
    strange = [letter.stream for _, letter in chosen if not dead_letters.belongs(stream, letter)]
    if strange:
        raise QueryError(f"nothing was retried: {dead_letters.refusal(stream, strange)}")
    made = await query.region.converse(dead_letters.retry(stream, chosen, None))
    _log(request, query, "dead letters retried", len(made) - made.count(None))
    return _back(query, "retried", len(made) - made.count(None))


async def drop(request: Request) -> Response:
    query, chosen = await _chosen(request)
    if chosen:
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
    if not 0 < len(wanted) <= _MOST_AT_ONCE or any(ids.parse(each.encode()) is None for each in wanted):
        raise QueryError(f"choose 1 to {_MOST_AT_ONCE} dead letters.")
    found = list[tuple[bytes, DeadLetter]]()
    for each in dict.fromkeys(wanted):
        for entry, letter in await query.region.converse(dead_letters.page(_stream(query), each, each, 1)):
            if letter is not None:
                found.append((entry, letter))
    return query, found


def _back(query: Query, done: str, count: int) -> Response:
    words = {
        "region": query.region.name,
        "name": query.name(),
        "done": done if count else "",
        "count": count or "",
    }
    return RedirectResponse(link_to("/dead", **words), 303)
