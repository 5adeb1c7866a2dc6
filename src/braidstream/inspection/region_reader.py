"""Reads the state of all regions at once, and how fast links ship. What it means: admin/region_status.py."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from braidstream.admin.cluster_map import ClusterNode
from braidstream.admin.cluster_status import NodeView, join_nodes, read_node_view
from braidstream.admin.region_status import Overview, View, read_view
from braidstream.config import Config, RegionConfig
from braidstream.errors import BraidError, ClusterError
from braidstream.inspection.node_lines import connect_node, nodes_at
from braidstream.net.address import Address
from braidstream.net.wire import connect, parse_address
from braidstream.protocol.plan import arun

WITHIN_S: Final = 2.0

# Entries per second of each link, by (source, target).
Rates = dict[tuple[str, str], float]


async def look(regions: Config) -> list[View]:
    """Read all regions at once. One that does not answer is a view with an error."""
    return [*await asyncio.gather(*(_look(region, regions) for region in regions.region))]


async def _look(region: RegionConfig, regions: Config) -> View:
    peers, nodes = [each.id for each in regions.region if each.id != region.id], None
    try:
        async with asyncio.timeout(WITHIN_S):
            address = parse_address(region.url)
            conn = await connect(address)
            try:
                began = time.time()
                view = _timed(began, await arun(read_view(region.id, region.name, peers), conn.send))
                if view.code == ClusterError.code:
                    nodes = await nodes_at(conn)
            finally:
                conn.close()
    except (TimeoutError, BraidError, OSError) as error:
        return _unread(View(region.id, region.name), error)
    if nodes is None:
        return view
    views = await asyncio.gather(*(_look_at_node(address, node, view, peers) for node in nodes))
    return join_nodes(region.id, region.name, views)


async def _look_at_node(seed: Address, node: ClusterNode, whole: View, peers: Sequence[int]) -> NodeView:
    try:
        async with asyncio.timeout(WITHIN_S):
            conn = await connect_node(seed, node)
            try:
                began = time.time()
                found = await arun(read_node_view(whole.id, node, peers), conn.send)
                return replace(found, view=_timed(began, found.view))
            finally:
                conn.close()
    except (TimeoutError, BraidError, OSError) as error:
        return NodeView(node, _unread(View(whole.id, node.name), error))


def _unread(view: View, error: Exception) -> View:
    if isinstance(error, TimeoutError):
        return replace(view, error=f"no answer within {WITHIN_S:g} s")
    why = getattr(error, "why", "") or str(error)
    return replace(view, error=why, code=getattr(error, "code", ""))


def _timed(began: float, view: View) -> View:
    """A view that was just read, with the difference of the clocks."""
    ended = time.time()
    if view.error:
        return view
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
