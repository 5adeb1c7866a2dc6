"""The link between two regions, if one of them is a cluster: a `Link` for each pair of nodes.

    cluster                      peer                       a stream uses the link of the two nodes that
    node 1 ----- 1,4 ----------- node 4                     hold it; links share the window
    node 2 ----- 2,4 -----------'
           `---- 2,5 ----------- node 5

A `Link` stays on two connections. When one of them is lost, the next one to that node may reach an engine
that lost data, so its streams get a new `Link`, which reads both states again. The same if slots move. A lost
node ends the work on its streams only (`goes_on`).
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
from braidstream.replication.endpoint import ClusterEndpoint, Endpoint, Pinned, PlanRunner, is_away
from braidstream.replication.gate import Gate
from braidstream.replication.link.flow import Progress, Window
from braidstream.replication.link.link import REMEMBERED, Link
from braidstream.replication.link.pages import Pages

# How long a bundle waits for one of several nodes.
NODE_WITHIN_S: Final = 0.5

# How a link runs plans on a node, and the pages that it shares with other links; None: it has its own.
RunnerOf = Callable[[Endpoint], tuple[PlanRunner, Pages | None]]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two regions. runner_of: how its nodes are used."""

    region: Endpoint
    runner_of: RunnerOf


def directly(node: Endpoint) -> tuple[PlanRunner, Pages | None]:
    return node, None


def pinned(node: Endpoint) -> tuple[PlanRunner, Pages | None]:
    """On its present connection."""
    return Pinned(node, node), None


class Homes:
    """The servers of the own region, each on its present connection. All links on one share its pages."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._found: dict[Endpoint, tuple[Pinned, Pages]] = {}

    def of(self, node: Endpoint) -> tuple[Pinned, Pages]:
        found = self._found.get(node)
        if found is None or not found[0].is_same_connection:
            self._found = {each: one for each, one in self._found.items() if one[0].is_same_connection}
            engine = Pinned(self._gate.of(node), node)
            found = self._found[node] = engine, Pages.of_home(engine)
        return found


class ClusterLink:
    """The same as `Link` for its users."""

    def __init__(self, source: Side, target: Side, *, here: Region, there: Region) -> None:
        self._source, self._target = source, target
        self._here, self.there = here, there
        self.window = Window()
        self.on_refused: Callable[[bytes], None] = lambda name: None
        self.on_compare: Callable[[bytes], None] = lambda name: None
        self._links: dict[tuple[Connection | None, Connection | None], Link] = {}
        # Which link a stream uses, and the versions of its slot in both maps.
        self._used: OrderedDict[bytes, tuple[Link, int, int]] = OrderedDict()
        self._highest_ms = 0
        # Of a single server: the connection of this link. A cluster has none.
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
        used = self._used.get(strand.name)
        return None if used is None else used[0].sent_upto(strand)

    def applied(self, name: bytes) -> Id:
        used = self._used.get(name)
        return ids.ZERO if used is None else used[0].applied(name)

    def source_of(self, name: bytes) -> PlanRunner | None:
        """Where a stream was last read; None if it was not, or is not there any more."""
        used = self._used.get(name)
        return None if used is None else used[0].source

    def target_of(self, name: bytes) -> PlanRunner:
        return self._link(name).target

    async def sync(self, name: bytes, *, relay: bool = False) -> Progress:
        return await self._link(name).sync(name, relay=relay)

    async def follow(self, name: bytes) -> Progress:
        return await self._link(name).follow(name)

    async def follow_some(self, names: Iterable[bytes]) -> dict[bytes, Progress]:
        """A node that is lost, silent or held by its gate concerns its streams only: they go alone, and
        those of the other nodes do not wait for them."""
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
        """Whether an error ends only the work on this stream, because of one node: it is lost, it starts, or
        the slot moves. LostError if one of the regions is lost as a whole."""
        if is_away(error):
            self._used.pop(name, None)
            self._source.region.look_again()
            self._target.region.look_again()
            return True
        if not isinstance(error, LostError):
            return False
        self._used.pop(name, None)
        for side, conn in zip((self._source, self._target), self._conns, strict=True):
            if not side.region.connected or side.region.conn is not conn:
                raise LostError(str(side.region.address), error.why, wrote=error.wrote) from error
        return True

    def _link(self, name: bytes) -> Link:
        """The link of the two nodes that hold a stream. A cached state of the stream is dropped if it was on
        another node since."""
        ours, theirs = (_connected(side.region.node_of(name)) for side in (self._source, self._target))
        link = self._links.get((ours.conn, theirs.conn))
        if link is None:
            link = self._open(ours, theirs)
        now = link, self._source.region.version_of(name), self._target.region.version_of(name)
        if self._used.get(name) != now:
            if (before := self._used.get(name)) is not None:
                before[0].forget(name)
            link.forget(name)
            self._used[name] = now
            if len(self._used) > REMEMBERED:
                self._used.popitem(last=False)
        return link

    def _open(self, ours: Endpoint, theirs: Endpoint) -> Link:
        self._highest_ms = self.highest_ms
        self._links = {conns: link for conns, link in self._links.items() if _are_up(*conns)}
        (source, pages), (target, _) = self._source.runner_of(ours), self._target.runner_of(theirs)
        link = Link(source, target, here=self.here, there=self.there, pages=pages)
        link.window, link.on_refused, link.on_compare = self.window, self.on_refused, self.on_compare
        self._links[ours.conn, theirs.conn] = link
        return link


def _connected(node: Endpoint) -> Endpoint:
    if not node.connected:
        raise LostError(str(node.address), "not connected", wrote=False)
    return node


def _are_up(*conns: Connection | None) -> bool:
    return all(conn is not None and conn.lost is None for conn in conns)


AnyLink = Link | ClusterLink


def link_between(source: Side, target: Side, *, here: Region, there: Region) -> AnyLink:
    """A link between two regions, whatever they are."""
    if any(isinstance(side.region, ClusterEndpoint) for side in (source, target)):
        return ClusterLink(source, target, here=here, there=there)
    (ours, pages), (theirs, _) = source.runner_of(source.region), target.runner_of(target.region)
    return Link(ours, theirs, here=here, there=there, pages=pages)
