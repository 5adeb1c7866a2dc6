"""The region of a cluster: like database.py, but every node knows the region, and any node is asked."""

import asyncio
import time
from functools import partial
from typing import Final

from braidstream.errors import LostError
from braidstream.gateway.cluster_lane import ClusterLane
from braidstream.gateway.database import Database
from braidstream.gateway.ready_nodes import ReadyNodes
from braidstream.model.region_config import Region, ServerInfo
from braidstream.net.address import Address
from braidstream.protocol.identify import read_node
from braidstream.protocol.plan import arun

# A node that does not say which region it is within this time is passed over.
_ANSWERS_WITHIN_S: Final = 2.0


class ClusterDatabase(Database):
    """See the top of the file. Its lane has the gateway's own rights."""

    def __init__(self, address: Address, nodes: ReadyNodes) -> None:
        super().__init__(address)
        self._slots = nodes.slots
        self.nodes_lane = self.lane = ClusterLane(address, self.forget, nodes)

    @property
    def is_connected(self) -> bool:
        return self.nodes_lane.is_connected

    @property
    def is_fresh(self) -> bool:
        # Every lane forgets the streams when it connects to a node again.
        return self.cache.is_fresh(time.monotonic())

    async def _read(self) -> tuple[Region, ServerInfo]:
        """From the first node that answers: a node in trouble must not stop commands of other nodes."""
        lost = LostError("the cluster", "no primary answers", wrote=False)
        for place in self._slots.homes():
            try:
                async with asyncio.timeout(_ANSWERS_WITHIN_S):
                    return await arun(read_node(), partial(self.nodes_lane.send_to, place))
            except TimeoutError:
                self._slots.unreachable.add(place)
            except LostError as error:
                self._slots.unreachable.add(place)
                lost = error
        await self._slots.read()
        raise lost
