"""The link between two regions: a `Link` for each pair of nodes.

    region                       peer                       a stream uses the link of the two nodes that
    node 1 ----- 1,4 ----------- node 4                     hold it; links share the window
    node 2 ----- 2,4 -----------'
           `---- 2,5 ----------- node 5

A `Link` stays on two connections. When one of them is lost, the next one to that node may reach an engine
that lost data, so its streams get a new `Link`, which reads both states again. The same if slots move. A lost
node of a cluster ends the work on its streams only (`goes_on`). If a region is one server, its connection
is that of the whole link.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from braidstream.engine.connection import Connection
from braidstream.errors import BraidError, LostError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.strand import Strand
from braidstream.replication.endpoint import Endpoint, Node, Pinned, PlanRunner, is_away
from braidstream.replication.gate import Gate
from braidstream.replication.link.flow import Progress, Window
from braidstream.replication.link.link import REMEMBERED, Link
from braidstream.replication.link.pages import Pages

# How long a bundle waits for one of several nodes.
NODE_WITHIN_S: Final = 0.5

# How a link runs plans on a node, and the pages that it shares with other links; None: it has its own.
RunnerOf = Callable[[Node], tuple[PlanRunner, Pages | None]]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two regions. runner_of: how its nodes are used."""

    region: Endpoint
    runner_of: RunnerOf


def directly(node: Node) -> tuple[PlanRunner, Pages | None]:
    return node, None


def pinned(node: Node) -> tuple[PlanRunner, Pages | None]:
    """On its present connection."""
    return Pinned(node, node), None


class Homes:
    """The servers of the own region, each on its present connection. All links on one share its pages."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._found: dict[Node, tuple[Pinned, Pages]] = {}

    def of(self, node: Node) -> tuple[Pinned, Pages]:
        found = self._found.get(node)
        if found is None or not found[0].is_same_connection:
            self._found = {each: one for each, one in self._found.items() if one[0].is_same_connection}
            engine = Pinned(self._gate.of(node), node)
            found = self._found[node] = engine, Pages.of_home(engine)
        return found


class RegionLink:
    """From one region to another. Most of it is described in `Link`."""

    def __init__(self, source: Side, target: Side, *, here: Region, there: Region) -> None:
        self._source, self._target = source, target
        self._here, self.there = here, there
        self.window = Window()
        self.on_refused: Callable[[bytes], None] = lambda name: None
        self.on_compare: Callable[[bytes], None] = lambda name: None
        self._links: dict[tuple[Connection | None, Connection | None], Link] = {}
        self._only: Link | None = None  # between two servers
        # Which link a stream uses, and the versions of its slot in both maps.
        self._used: OrderedDict[bytes, tuple[Link, int, int]] = OrderedDict()
        self._highest_ms = 0
        # Of one server: the connection of this link. A cluster has none.
        self._conns = source.region.conn, target.region.conn

    @property
    def here(self) -> Region:
        return self._here

    @here.setter
    def here(self, here: Region) -> None:
        self._here = here
        for link in self._links.values():
            link.here = here

    def refresh(self) -> None:
        for link in self._links.values():
            link.refresh()

    @property
    def holes(self) -> dict[tuple[Strand, str], str]:
        return {where: text for link in self._links.values() for where, text in link.holes.items()}

    @property
    def highest_ms(self) -> int:
        self._highest_ms = max((link.highest_ms for link in self._links.values()), default=self._highest_ms)
        return self._highest_ms

    def sent_upto(self, strand: Strand) -> Id | None:
        link = self._used_by(strand.name)
        return None if link is None else link.sent_upto(strand)

    def has_met(self, name: bytes) -> bool:
        """Whether a stream was visited before, as far as the link remembers."""
        link = self._used_by(name)
        return link is not None and link.has_met(name)

    def applied(self, name: bytes) -> Id:
        link = self._used_by(name)
        return ids.ZERO if link is None else link.applied(name)

    def source_of(self, name: bytes) -> PlanRunner | None:
        """Where a stream was last read; None if it was not, or is not there any more."""
        link = self._used_by(name)
        return None if link is None else link.source

    def _used_by(self, name: bytes) -> Link | None:
        """The link that a stream used last."""
        used = self._used.get(name)
        return self._only if used is None else used[0]

    def target_of(self, name: bytes) -> PlanRunner:
        return self._link(name).target

    async def sync(self, name: bytes, *, relay: bool = False) -> Progress:
        return await self._link(name).sync(name, relay=relay)

    async def follow(self, name: bytes) -> Progress:
        return await self._link(name).follow(name)

    async def follow_some(self, names: Iterable[bytes]) -> dict[bytes, Progress]:
        """A node that is lost, silent or held by its gate concerns its streams only: they go alone, and
        those of the other nodes do not wait for them."""
        if self._only is not None:
            return await self._only.follow_some(names)
        by_link = dict[Link, list[bytes]]()
        for name in names:
            with suppress(BraidError):
                by_link.setdefault(self._link(name), []).append(name)
        works = [asyncio.ensure_future(link.follow_some(some)) for link, some in by_link.items()]
        progress = dict[bytes, Progress]()
        if not works:
            return progress
        try:
            done, _ = await asyncio.wait(works, timeout=NODE_WITHIN_S)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        for each in done:
            with suppress(BraidError):
                progress |= each.result()
        return progress

    async def recover(self, name: bytes) -> int:
        return await self._link(name).recover(name)

    def goes_on(self, name: bytes, error: Exception) -> bool:
        """Whether an error ends only the work on this stream, because of one node of a cluster: it is lost,
        it starts, or the slot moves. LostError if one of the regions is lost as a whole."""
        regions = self._source.region, self._target.region
        if not any(region.is_cluster for region in regions):
            return False
        if is_away(error):
            self._used.pop(name, None)
            for region in regions:
                region.look_again()
            return True
        if not isinstance(error, LostError):
            return False
        self._used.pop(name, None)
        for region, conn in zip(regions, self._conns, strict=True):
            if not region.connected or region.conn is not conn:
                raise LostError(str(region.address), error.why, wrote=error.wrote) from error
        return True

    def _link(self, name: bytes) -> Link:
        """The link of the two nodes that hold a stream. A cached state of the stream is dropped if it was on
        another node since."""
        if self._only is not None:
            return self._only
        ours, theirs = (_connected(side.region.node_of(name)) for side in (self._source, self._target))
        link = self._links.get((ours.conn, theirs.conn)) or self._open(ours, theirs)
        if not (self._source.region.is_cluster or self._target.region.is_cluster):
            self._only = link
            return link
        now = link, self._source.region.version_of(name), self._target.region.version_of(name)
        before = self._used.get(name)
        if before != now:
            if before is not None:
                before[0].forget(name)
            link.forget(name)
            self._used[name] = now
            if len(self._used) > REMEMBERED:
                self._used.popitem(last=False)
        self._used.move_to_end(name)
        return link

    def _open(self, ours: Node, theirs: Node) -> Link:
        for side, conn in zip((self._source, self._target), self._conns, strict=True):
            if side.region.conn is not conn:
                raise LostError(str(side.region.address), "reconnected: it may be another server", wrote=True)
        self._highest_ms = self.highest_ms
        self._links = {conns: link for conns, link in self._links.items() if _are_up(*conns)}
        (source, pages), (target, _) = self._source.runner_of(ours), self._target.runner_of(theirs)
        link = Link(source, target, here=self.here, there=self.there, pages=pages)
        link.window, link.on_refused, link.on_compare = self.window, self.on_refused, self.on_compare
        self._links[ours.conn, theirs.conn] = link
        return link


def _connected(node: Node) -> Node:
    if not node.connected:
        raise LostError(str(node.address), "not connected", wrote=False)
    return node


def _are_up(*conns: Connection | None) -> bool:
    return all(conn is not None and conn.lost is None for conn in conns)
