"""The first page: the regions with their links, what is wrong, rates and lag over time."""

from starlette.requests import Request
from starlette.responses import Response

from braidstream.console.charts import draw
from braidstream.console.map_drawing import draw_map, link_state
from braidstream.console.page import console_of, render
from braidstream.console.samples import SPAN_S
from braidstream.inspection.status_words import daemon_words, link_words, memory_words


async def show(request: Request) -> Response:
    console = console_of(request)
    sampler, names = console.sampler, [each.name for each in console.regions.region]
    found = await sampler.newest()
    rates = sampler.rates
    links = [
        (link, link_state(link), link_words(link, rates.get((link.source, link.target), 0.0)))
        for link in found.links
    ]
    lags = {name: sampler.worst_lags(name) for name in names}
    shipped = {name: sampler.shipped(name) for name in names}
    charts = [
        draw("Lag of the slowest peer, by source region", lags, unit="s", span_s=SPAN_S),
        draw("Entries shipped to peers, by source region", shipped, unit="/s", span_s=SPAN_S),
    ]
    return render(
        request,
        "regions.html",
        page="map",
        found=found,
        map=draw_map(found, rates),
        links=links,
        regions=[
            (view, memory_words(view), daemon_words(view, found)) for view in found.views if not view.error
        ],
        charts=charts if len(names) > 1 else [],
    )
