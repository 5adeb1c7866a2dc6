"""Consumer groups: the lag in every region, who has which pending entries and for how long."""

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from braidstream.admin.link_rights import with_right
from braidstream.admin.stream_overview import StreamRow, read_stream
from braidstream.clients.sync import ServerError
from braidstream.console.page import MissingPageError, Query, render
from braidstream.console.region_access import RegionAccess
from braidstream.console.stream_search import read_rows, search
from braidstream.errors import BraidError, DamagedError, ReplyError
from braidstream.inspection.group_reader import GroupRow, read_consumers, read_groups
from braidstream.inspection.wording import printable

_MOST_PENDING: Final = 50
_MOST_CONSUMERS: Final = 100

# What a region says about groups: rows, or why it cannot.
Answer = tuple[list[GroupRow], str]


async def list_page(request: Request) -> Response:
    """The groups of the streams that a search finds, the largest lag first."""
    query = Query.of(request)
    part = await search(query, query.text("cursor") or "0")
    skipped, damaged = {*part.skipped}, list[DamagedError]()
    streams = [row for row in await read_rows(query.region, part.names, skipped, damaged) if row.groups]
    answers = await asyncio.gather(*(_groups(query.region, row) for row in streams))
    found = [group for groups, _ in answers for group in groups]
    return render(
        request,
        "groups.html",
        page="groups",
        region=query.region.name,
        pattern=query.text("pattern"),
        rows=sorted(found, key=lambda group: (-group.lag, group.stream, group.group)),
        unread=[
            *((each.stream, each.text) for each in damaged),
            *((row.name, why) for row, (_, why) in zip(streams, answers, strict=True) if why),
        ],
        following=part.cursor,
        skipped=sorted(skipped),
        is_first=query.text("cursor") in ("", "0"),
    )


async def _groups(region: RegionAccess, row: StreamRow) -> Answer:
    """An error of one stream does not hide the others."""
    now_ms = round(time.time() * 1000)
    try:
        return await region.converse(read_groups(row.name, now_ms, is_log=row.is_log)), ""
    except (BraidError, ServerError, OSError) as error:
        return [], with_right(str(error))


async def show(request: Request) -> Response:
    query = Query.of(request)
    name, group = query.name(), query.name("group")
    regions = list(query.console.access.values())
    answers = await asyncio.gather(*(_group(region, name, group) for region in regions))
    by_region = [
        (region.name, next((row for row in rows if row.group == group), None), why)
        for region, (rows, why) in zip(regions, answers, strict=True)
    ]
    if not any(row or why for _, row, why in by_region):
        raise MissingPageError(f"no region has the group {printable(group)} of {printable(name)}.")
    try:
        consumers, pending = await query.region.converse(read_consumers(name, group, _MOST_PENDING))
        why = ""
    except (ReplyError, ServerError) as error:
        consumers, pending, why = [], [], with_right(str(error))
    return render(
        request,
        "group.html",
        page="groups",
        region=query.region.name,
        name=name,
        group=group,
        by_region=by_region,
        names={region.id: region.name for region in regions},
        is_once=any(row and row.owned is not None for _, row, _ in by_region),
        consumers=consumers[:_MOST_CONSUMERS],
        left_out=max(0, len(consumers) - _MOST_CONSUMERS),
        pending=pending,
        why=why,
    )


async def _group(region: RegionAccess, name: bytes, group: bytes) -> Answer:
    try:
        row = await region.run(read_stream(name))
    except (BraidError, OSError) as error:
        return [], with_right(str(error))
    return ([], "") if row is None else await _groups(region, row)
