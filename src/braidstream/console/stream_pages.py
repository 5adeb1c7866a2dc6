"""Streams: search with bounds, and one stream with its strands."""

import time

from starlette.requests import Request
from starlette.responses import Response

from braidstream.admin.stream_overview import read_detail, read_entries
from braidstream.console.charts import draw
from braidstream.console.page import MissingPageError, Query, render
from braidstream.console.stream_rates import SPAN_S
from braidstream.console.stream_search import list_found
from braidstream.consumers import dead_letters
from braidstream.inspection.wording import printable
from braidstream.model import ids


async def list_page(request: Request) -> Response:
    found = await list_found(Query.of(request))
    return render(request, "streams.html", page="streams", now_ms=time.time() * 1000, **found)


async def show(request: Request) -> Response:
    query = Query.of(request)
    name = query.name()
    detail = await query.region.run(read_detail(name))
    if detail is None:
        raise MissingPageError(f"there is no stream {printable(name)} in {query.region.name}.")
    series = query.console.rates.note(query.region.name, name, detail.strands)
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
        has_dead_letters=await _has_dead_letters(query, name),
        chart=chart,
        now_ms=time.time() * 1000,
    )


async def _has_dead_letters(query: Query, name: bytes) -> bool:
    """Whether the newest entry is a dead letter."""
    newest = await query.region.run(read_entries(name, ids.ZERO, ids.LAST, 1, reverse=True))
    return any(dead_letters.parse(entry[3]) is not None for entry in newest)
