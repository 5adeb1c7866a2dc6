"""Streams: search with bounds, and one stream with its strands."""

import asyncio
import re
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from braidstream.admin.stream_overview import list_streams, read_detail, read_stream
from braidstream.commands.glob import matcher
from braidstream.console.charts import draw
from braidstream.console.page import MissingPageError, Query, QueryError, render
from braidstream.console.region_access import RegionAccess
from braidstream.console.stream_rates import SPAN_S, StreamRates
from braidstream.inspection.wording import printable
from braidstream.model.frontier import name_of_text

# A search ends after so many found streams, pages of keys, or seconds, and can be continued.
_MOST_FOUND: Final = 50
_PAGE: Final = 200
_MOST_PAGES: Final = 100
_WITHIN_S: Final = 1.0
_CURSOR: Final = re.compile(r"[0-9]{1,20}\Z")

_rates: Final = StreamRates()


async def list_page(request: Request) -> Response:
    query = Query.of(request)
    cursor = query.text("cursor") or "0"
    if not _CURSOR.match(cursor):
        raise QueryError("cursor is no number.")
    names, following = await _search(query.region, query.text("pattern"), int(cursor))
    found = await asyncio.gather(*(query.region.run(read_stream(name)) for name in names))
    return render(
        request,
        "streams.html",
        page="streams",
        region=query.region.name,
        pattern=query.text("pattern"),
        rows=[row for row in found if row is not None],
        following=following,
        is_first=cursor == "0",
        now_ms=time.time() * 1000,
    )


async def _search(region: RegionAccess, pattern: str, cursor: int) -> tuple[list[bytes], int]:
    """Names of streams that match, and where to continue; 0 at the end."""
    glob = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
    matches, names, began = matcher(name_of_text(glob)), set[bytes](), time.monotonic()
    for _ in range(_MOST_PAGES):
        cursor, page = await region.run(list_streams(cursor, _PAGE))
        names.update(name for name in page if matches(name))
        if not cursor or len(names) >= _MOST_FOUND or time.monotonic() - began > _WITHIN_S:
            break
    return sorted(names), cursor


async def show(request: Request) -> Response:
    query = Query.of(request)
    name = query.name()
    detail = await query.region.run(read_detail(name))
    if detail is None:
        raise MissingPageError(f"there is no stream {printable(name)} in {query.region.name}.")
    series = _rates.note(query.region.name, name, detail.strands)
    named = {query.console.region_name(writer): points for writer, points in series.items()}
    chart = draw("Entries that arrive here, by the region that wrote them", named, unit="/s", span_s=SPAN_S)
    return render(
        request,
        "stream.html",
        page="streams",
        region=query.region.name,
        name=name,
        row=detail.row,
        strands=detail.strands,
        groups=detail.groups,
        chart=chart,
        now_ms=time.time() * 1000,
    )
