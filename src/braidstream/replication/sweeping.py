"""Compare all streams of a region with a peer: when a link comes up, after missed pushes, and at intervals.

A lost node of a cluster, here or at the peer, leaves its streams out. They are compared when it is back.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from braidstream.errors import BraidError, LostError
from braidstream.observability.events import emit
from braidstream.replication.cluster_endpoint import spares_others
from braidstream.replication.cluster_link import AnyLink
from braidstream.replication.cluster_region import region_of
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.feed import all_streams
from braidstream.replication.glance import differing
from braidstream.replication.identity import check_pair
from braidstream.replication.leases import Leases
from braidstream.replication.peer import Peer
from braidstream.replication.queue import AT_ONCE, Need

# How often all streams are compared, and at most which part (1/n) of the time that takes.
SWEEP_S: Final = 30.0
SWEEP_PART: Final = 20
# How soon it is repeated at the earliest, if a node was lost. When the node is back, it is at once.
AGAIN_S: Final = 1.0
# How often to look whether the link has room for more streams.
ROOM_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Sweeper:
    """source: the own region. swept: called when all streams were compared with a peer."""

    source: Endpoint
    leases: Leases
    swept: Callable[[Peer], None]

    async def run(self, peer: Peer, link: AnyLink) -> None:
        """Until the link ends."""
        clock = asyncio.get_running_loop().time
        await self.leases.known.wait()
        while True:
            peer.sweep.clear()
            began, least_s = clock(), AGAIN_S
            if await self._sweep(peer, link):
                emit("link.swept", peer=peer.name)
                self.swept(peer)
                least_s = SWEEP_S
            try:
                async with asyncio.timeout(max(least_s, SWEEP_PART * (clock() - began))):
                    await peer.sweep.wait()
            except TimeoutError:
                pass

    async def _sweep(self, peer: Peer, link: AnyLink) -> bool:
        """Whether all servers of both regions were read."""
        link.here = await self.source.as_own(region_of(self.source))
        link.refresh()
        check_pair(link.here, await region_of(peer.endpoint))  # it may have been removed since
        done = True
        for node in self.source.nodes:
            try:
                done = await self._compare(node, peer, link) and done
            except BraidError as error:
                if not spares_others(error, self.source):
                    raise
                done = False
        return done

    async def _compare(self, node: Endpoint, peer: Peer, link: AnyLink) -> bool:
        """The streams of one server. Whether all of them could be compared."""
        done = True
        async for names in all_streams(node):
            mine = [name for name in names if self.leases.mine(name) and peer.takes(name)]
            there = [name for name in mine if _is_reached(peer.endpoint, name)]
            done = done and there == mine
            for name in await differing(there, link.here.writers, node, peer.endpoint):
                peer.queue.add(name, Need.RELAY)
                peer.lag.changed(name)
            while peer.queue.relays > 10 * AT_ONCE:
                await asyncio.sleep(ROOM_S)
        return done


def _is_reached(region: Endpoint, name: bytes) -> bool:
    try:
        return region.node_of(name).connected
    except LostError:  # no node serves its slot
        return False
