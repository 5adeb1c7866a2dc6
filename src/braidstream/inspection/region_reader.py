"""Reads the state of all regions at once, and how fast links ship. What it means: admin/region_status.py."""

import asyncio
import time
from dataclasses import replace
from typing import Final

from braidstream.admin.region_status import Overview, View, read_view
from braidstream.config import Config, RegionConfig
from braidstream.errors import BraidError
from braidstream.net.wire import connect, parse_address
from braidstream.protocol.plan import arun

WITHIN_S: Final = 2.0

# Entries per second of each link, by (source, target).
Rates = dict[tuple[str, str], float]


async def look(regions: Config) -> list[View]:
    """Read all regions at once. One that does not answer is a view with an error."""
    return [*await asyncio.gather(*(_look(region, regions) for region in regions.region))]


async def _look(region: RegionConfig, regions: Config) -> View:
    peers = [each.id for each in regions.region if each.id != region.id]
    try:
        async with asyncio.timeout(WITHIN_S):
            conn = await connect(parse_address(region.url))
            try:
                began = time.time()
                view = await arun(read_view(region.id, region.name, peers), conn.send)
                ended = time.time()
            finally:
                conn.close()
    except TimeoutError:
        return View(region.id, region.name, error=f"no answer within {WITHIN_S:g} s")
    except (BraidError, OSError) as error:
        why = getattr(error, "why", "") or str(error)
        return View(region.id, region.name, error=why, code=getattr(error, "code", ""))
    middle = (began + ended) / 2 * 1000
    return replace(view, clock_ms=view.now_ms - middle, clock_error_ms=(ended - began) * 500)


def rates_between(before: Overview, now: Overview, seconds: float) -> Rates:
    """Entries per second of each link. A daemon that restarted in between has no rate."""
    counts = {(link.source, link.target): link.status.entries for link in before.links if link.status}
    found = Rates()
    for link in now.links:
        was = counts.get((link.source, link.target))
        if was is not None and link.status is not None and link.status.entries >= was:
            found[link.source, link.target] = (link.status.entries - was) / seconds
    return found
