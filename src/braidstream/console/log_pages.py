"""Logs: the home, the epochs, the offsets in every region, and entries by offset."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from braidstream.admin.log_moves import home_of, read_log
from braidstream.clients.log_commands import entries_read
from braidstream.clients.shared import Conversation
from braidstream.clients.sync import ServerError
from braidstream.commands.logs.log_lookup import segments
from braidstream.console.field_values import field_value
from braidstream.console.page import Query, render
from braidstream.console.region_access import RegionAccess
from braidstream.console.stream_search import list_found
from braidstream.consumers.spoken import ViewOf, command
from braidstream.errors import BraidError
from braidstream.model.meta import Registry
from braidstream.model.offset_log import LAST_OFFSET, offset_of
from braidstream.protocol.plan import Plan, send_one

_COUNT: Final = 50


async def list_page(request: Request) -> Response:
    found = await list_found(Query.of(request), logs_only=True)
    return render(request, "logs.html", page="logs", **found)


async def show(request: Request) -> Response:
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
    _, entries = await query.region.converse(_read(name, start, _COUNT))
    following = entries[-1][0] + 1 if len(entries) == _COUNT else last + 1
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
    start, wanted = 0, _COUNT
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
