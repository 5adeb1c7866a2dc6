"""The shared connections of one user to the nodes of a cluster: a lane for each node.

client A --- cluster lane (user) ---+--- lane --- node 1
client B --/                        +--- lane --- node 2      a batch goes where its keys are
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from braidstream.errors import LostError, ReplyError
from braidstream.gateway.backends import Lane
from braidstream.gateway.ready_nodes import ReadyNodes
from braidstream.net.address import Address
from braidstream.net.node_delivery import Delivery
from braidstream.net.reply_shape import resp2
from braidstream.net.routes import slot_of
from braidstream.net.scatter import Leg
from braidstream.net.sentinels import Place
from braidstream.net.wire import Connection
from braidstream.protocol.exchange import Exchange, unpack
from braidstream.protocol.plan import Batch, Replies

# Keys whose lane is remembered.
_KEYS: Final = 10_000


class ClusterLane(Lane):
    """See the top of the file. address: the seed, with the user."""

    def __init__(self, address: Address, on_new: Callable[[], None], nodes: ReadyNodes) -> None:
        super().__init__(address, on_new)
        self._nodes, self._slots = nodes, nodes.slots
        self._lanes = dict[Place, Lane]()
        self._by_key = dict[bytes, Lane]()
        self._version = -1

    def at(self, place: Place) -> Lane:
        lane = self._lanes.get(place)
        if lane is None:
            address = replace(self.address, host=place[0], port=place[1])
            lane = self._lanes[place] = Lane(address, self._on_new)
            lane.most_bytes = self.most_bytes
            if self._closed:  # its last client left while a command runs
                lane.close()
        return lane

    def connection_for(self, key: bytes) -> Connection | None:
        """The open connection to the node of a key. Every append asks for it."""
        if self._version != self._slots.version or len(self._by_key) > _KEYS:
            self._by_key, self._version = {}, self._slots.version
        lane = self._by_key.get(key)
        if lane is None:
            place = self._slots.owner(slot_of(key))
            if place is None:
                return None
            lane = self._by_key[key] = self.at(place)
        conn = lane.conn
        return conn if conn is not None and conn.lost is None and not conn.is_full else None

    @property
    def version(self) -> int:
        """Of the map of slots."""
        return self._slots.version

    @property
    def is_connected(self) -> bool:
        return any(lane.conn is not None and lane.conn.lost is None for lane in self._lanes.values())

    async def send(self, batch: Batch) -> Replies:
        return await self.send_at(None, batch)

    async def send_at(self, home: Place | None, batch: Batch) -> Replies:
        """Send a batch. Commands without keys go to this node; None: to any."""
        found = await Delivery(self._slots, self, home=home).send(batch)
        assert found is not None, "a lane never WATCHes"
        return unpack(batch, found, resp2)

    async def admits(self, connected_at: float) -> bool:
        return await self._ask(lambda lane: lane.admits(connected_at))

    async def is_open(self, connected_at: float) -> bool:
        return await self._ask(lambda lane: lane.is_open(connected_at))

    async def _ask(self, question: Callable[[Lane], Awaitable[bool]]) -> bool:
        """As any node answers: all have the same users."""
        lost: LostError | None = None
        for place in self._slots.homes():
            try:
                return await question(self.at(place))
            except LostError as error:
                lost = error
        raise lost or ReplyError("CLUSTERDOWN no node of the cluster has slots")

    # Carrier

    async def exchange(self, place: Place | None, legs: list[Leg], writes: bool) -> list[list[Any]]:
        batch = Exchange([command for leg in legs for command in leg.wire()], resend=not writes)
        read = await (self.send_to(place, batch) if place is not None else self._send_anywhere(batch))
        answers = list[list[Any]]()
        for leg in legs:
            count = len(leg.wire())
            answers.append(read[:count])
            read = read[count:]
        return answers

    async def send_to(self, place: Place, batch: Batch) -> Replies:
        """Send a batch to one node, whatever its keys."""
        await self._nodes.ready(place)
        return await self.at(place).send(batch)

    async def _send_anywhere(self, batch: Batch) -> Replies:
        """To the first primary that answers."""
        lost: LostError | None = None
        for place in self._slots.homes():
            try:
                return await self.send_to(place, batch)
            except LostError as error:
                if error.wrote:
                    raise
                self._slots.unreachable.add(place)
                lost = error
        raise lost or ReplyError("CLUSTERDOWN no node of the cluster has slots")

    async def race(self, places: list[Place], legs: list[Leg], writes: bool) -> list[list[Any]]:
        raise NotImplementedError("a lane never waits")

    # All lanes

    def leave_silent(self, now: float) -> None:
        for lane in self._lanes.values():
            lane.leave_silent(now)

    def abandon(self, why: str = "it does not answer") -> None:
        for lane in self._lanes.values():
            lane.abandon(why)

    def close(self) -> None:
        super().close()
        for lane in self._lanes.values():
            lane.close()
