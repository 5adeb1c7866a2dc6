"""Reads the state of all regions at once, their groups, and how fast links ship. Its meaning: status.py."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from braidstream.clients.commands import ViewOf, command
from braidstream.clients.shared import Conversation
from braidstream.clusters.raw_sender import BatchCarrier
from braidstream.clusters.slots import SlotMap, SlotRange
from braidstream.config import Config, RegionConfig
from braidstream.engine.address import Address, parse_address
from braidstream.engine.connection import Connection, connect
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, ClusterError, LostError
from braidstream.model import ids
from braidstream.model.strand import facts
from braidstream.operations.cluster_map import ClusterNode, read_nodes
from braidstream.operations.cluster_status import NodeView, join_nodes, read_node_view
from braidstream.operations.status import Overview, View, read_view
from braidstream.plan.lookup import ask_is_cluster
from braidstream.plan.plan import Batch, Plan, Replies, arun

# ----------------------------------------------------------------------------------------------------
# Connections to the nodes of a cluster, for programs that look at each of them and change nothing.

T = TypeVar("T")


async def nodes_at(conn: Connection) -> list[ClusterNode] | None:
    """The nodes of the cluster that a server belongs to; None if it belongs to none."""
    is_cluster = await arun(ask_is_cluster(), conn.send)
    return await arun(read_nodes(conn.place[0]), conn.send) if is_cluster else None


async def connect_node(seed: Address, node: ClusterNode, silence_s: float | None = None) -> Connection:
    """As the user of the address in the file, with its TLS."""
    return await connect(replace(seed, host=node.host, port=node.port, path=None), silence_s=silence_s)


class NodeLines(BatchCarrier):
    """A connection to each node that answers."""

    def __init__(self, seed: Address, nodes: Sequence[ClusterNode], silence_s: float) -> None:
        self._seed, self._nodes, self._silence_s = seed, nodes, silence_s
        self._conns = dict[Place, Connection]()
        self._slots = SlotMap(seed)
        self._slots.learn(0, [SlotRange(*span, node.place, ()) for node in nodes for span in node.slots])

    async def open(self) -> None:
        reached = await asyncio.gather(*map(self._reach, self._nodes))
        self._conns = {node.place: conn for node, conn in zip(self._nodes, reached, strict=True) if conn}

    async def _reach(self, node: ClusterNode) -> Connection | None:
        try:
            return await connect_node(self._seed, node, self._silence_s)
        except (BraidError, OSError):
            return None

    def close(self) -> None:
        for conn in self._conns.values():
            conn.close()

    @property
    def reached(self) -> list[ClusterNode]:
        return [node for node in self._nodes if node.place in self._conns]

    async def send_to(self, place: Place | None, batch: Batch) -> Replies:
        if place not in self._conns:
            raise LostError("the cluster", "a node cannot be reached", wrote=False)
        return await self._conns[place].send(batch)

    async def run(self, home: ClusterNode, plan: Plan[T]) -> T:
        """Run a plan; each command on the node of its key, those without keys on one node."""

        def send(batch: Batch) -> Awaitable[Replies]:
            return self.deliver(batch, self._slots, home=home.place, keeps_losses=True, waits=False)

        return await arun(plan, send)


# ----------------------------------------------------------------------------------------------------
# Regions

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


# ----------------------------------------------------------------------------------------------------
# Consumer groups of a stream as operators see them: behind `braid groups` and the console.


@dataclass(frozen=True, slots=True)
class GroupRow:
    """lag: entries not delivered yet. oldest_ms: the age of the oldest pending entry, if it is known.
    owned: the regions whose entries it delivers here, in scope ONCE; None if it delivers all."""

    stream: bytes
    group: bytes
    lag: int
    pending: int
    oldest_ms: int | None
    consumers: int
    owned: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """idle_ms: since it last asked for entries."""

    name: bytes
    pending: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class PendingRow:
    """idle_ms: since it was last delivered. consumer: empty if it has no owner."""

    id: str
    consumer: bytes
    idle_ms: int
    deliveries: int


def read_groups(name: bytes, now_ms: int, *, is_log: bool) -> Conversation[list[GroupRow]]:
    """All groups of a stream. More round trips if entries must be counted for a lag."""

    def plan(view_of: ViewOf) -> Plan[list[GroupRow]]:
        found = list[GroupRow]()
        for reply in (yield from command(view_of, "XINFO", "GROUPS", name)):
            info = facts(reply)
            group, oldest = bytes(info[b"name"]), None
            if info[b"pending"] and not is_log:
                _, first, *_ = yield from command(view_of, "XPENDING", name, group)
                oldest = None if not first else now_ms - ids.native(first)[0]
            counts: dict[bytes, Any] = info
            owned = tuple(map(int, counts[b"owned"])) if b"owned" in counts else None
            found.append(
                GroupRow(name, group, counts[b"lag"], counts[b"pending"], oldest, counts[b"consumers"], owned)
            )
        return found

    return plan


def read_consumers(
    name: bytes, group: bytes, most: int
) -> Conversation[tuple[list[ConsumerRow], list[PendingRow]]]:
    """The consumers of a group, those with the most pending entries first, and its oldest pending entries."""

    def plan(view_of: ViewOf) -> Plan[tuple[list[ConsumerRow], list[PendingRow]]]:
        consumers = yield from command(view_of, "XINFO", "CONSUMERS", name, group)
        pending = yield from command(view_of, "XPENDING", name, group, "-", "+", most)
        rows = [ConsumerRow(info[b"name"], info[b"pending"], info[b"idle"]) for info in map(facts, consumers)]
        rows.sort(key=lambda row: (-row.pending, row.name))
        return rows, [
            PendingRow(bytes(entry).decode(), who, idle, count) for entry, who, idle, count in pending
        ]

    return plan
