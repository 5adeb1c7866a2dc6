"""Which node of a cluster has which slots: read with CLUSTER SLOTS, and corrected by redirects. For asyncio.

redis-py's cluster clients have a map of their own; this one is for connections of engine/connection.py.

A node that was cut off from the others may be wrong. It has an older epoch, because each failover raises the
epoch of the cluster. So an older map is not taken, unless all primaries know older ones, or no node has known
the present one for OLDER_S: then the cluster was created again.
"""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from random import shuffle
from typing import Any, Final

from braidstream.engine.address import Address
from braidstream.engine.connection import connect
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.plan.lookup import info_facts
from braidstream.plan.plan import Batch, Plan, arun

# ----------------------------------------------------------------------------------------------------
# Which primary of a cluster serves which slots: the reply to CLUSTER SLOTS. No I/O.

SLOTS: Final = 16_384
READ_SLOTS: Final = ("CLUSTER", "SLOTS")


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Both ends are included."""

    first: int
    last: int
    primary: Place
    replicas: tuple[Place, ...]


def parse_slots(reply: Iterable[Any], answered_by: str) -> Iterator[SlotRange]:
    """answered_by: the host of the node that replied."""
    for first, last, *nodes in reply:
        primary, *replicas = (_place(node, answered_by) for node in nodes)
        yield SlotRange(int(first), int(last), primary, tuple(replicas))


def node_places(reply: Iterable[Any], answered_by: str) -> dict[str, Place]:
    """Where clients reach the nodes that serve slots, by node ID."""
    return {bytes(node[2]).decode(): _place(node, answered_by) for _, _, *nodes in reply for node in nodes}


def _place(node: Any, answered_by: str) -> Place:
    """A node names itself with an empty host if it has not learned its own address, or if its cluster shares
    one address."""
    host = bytes(node[0] or b"").decode()
    return (host if host not in ("", "?") else answered_by), int(node[1])


# The epoch of a cluster, and who serves which slots.
KnownMap = tuple[int, list[SlotRange]]


def read_map(host: str) -> Plan[KnownMap]:
    """What the node at a host knows. Epoch 0 if the user may not read it."""
    slots, info = yield Batch([READ_SLOTS, ("CLUSTER", "INFO")], resend=True, attempt=True)
    if isinstance(slots, ReplyError):
        raise slots
    return int(info_facts(info).get(b"cluster_current_epoch", b"0")), [*parse_slots(slots, host)]


# ----------------------------------------------------------------------------------------------------
# Slots

# Many commands ask for the map at once when a primary is lost.
_AGAIN_AFTER_S: Final = 0.05
_ANSWERS_WITHIN_S: Final = 2.0
# After how long an older map is taken, if no node knows the present one any more.
OLDER_S: Final = 15.0


class SlotMap:
    """See the top of the file.

    seed: the node in the configuration. All nodes are reached with its user, its password and its TLS.
    ask: what the node at a place knows; without it, each question opens a connection.
    only: the one server of `of_one`.
    version: grows when the map changes. changed: called then.
    unreachable: nodes to which the last connection failed.
    """

    def __init__(self, seed: Address, ask: Callable[[Place], Awaitable[KnownMap]] | None = None) -> None:
        self.seed = replace(seed, path=None, db=0)
        self.only: Place | None = None
        self.version = 0
        self.changed: Callable[[], None] = lambda: None
        self.unreachable: set[Place] = set()
        self._ask = ask or self.ask
        self._epoch = 0
        self._older_s: float | None = None  # since when nodes know only older maps
        self._owners: list[Place | None] = [None] * SLOTS
        self._versions = [0] * SLOTS
        self._replicas: list[Place] = []
        self._primaries: list[Place] = []
        self._counted = -1  # the version of _primaries and _mark
        self._mark = 0
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    def of_one(cls, server: Address) -> "SlotMap":
        """One server, in no cluster: it has every slot, and none moves."""
        slots = cls(server)
        slots.seed, slots.only = server, server.place
        slots._owners = [server.place] * SLOTS
        return slots

    def address(self, place: Place) -> Address:
        """A node, as the user of the seed."""
        return replace(self.seed, host=place[0], port=place[1])

    def owner(self, slot: int) -> Place | None:
        return self._owners[slot]

    @property
    def primaries(self) -> list[Place]:
        """Every node that has slots, the one with the lowest slot first."""
        self._count()
        return self._primaries

    @property
    def by_lowest_slot(self) -> dict[int, Place]:
        """Every node that has slots, by its lowest one, which it keeps when a replica takes over."""
        return {self._owners.index(place): place for place in self.primaries}

    @property
    def mark(self) -> int:
        """Checksum of the map. It changes when a slot moves."""
        self._count()
        return self._mark

    def homes(self) -> list[Place]:
        """Where commands without keys go: to the first of these that can be reached."""
        return sorted(self.primaries, key=self.unreachable.__contains__)

    def version_of(self, slot: int) -> int:
        """Another number after a slot has moved."""
        return self._versions[slot]

    def note_moved(self, slot: int, place: Place) -> None:
        """A node said that another one has a slot."""
        place = self.named(place)
        if self._owners[slot] != place:
            self._owners[slot] = place
            self._note([slot])

    def _note(self, moved: Iterable[int]) -> None:
        for slot in moved:
            self._versions[slot] += 1
        self.version += 1
        self.changed()

    def named(self, place: Place) -> Place:
        """The place in a redirect. A node without a name of its own has that of the seed."""
        return (self.seed.host, place[1]) if place[0] in ("", "?") else place

    async def read(self) -> None:
        """Read the map from any node. If none answers, the old one stays. Concurrent calls share it."""
        if self.only is not None:
            return
        if self._reading is None:
            if time.monotonic() - self._read_at < _AGAIN_AFTER_S:
                return
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            with suppress(BraidError, ValueError):
                await self.read_now()
        finally:
            self._read_at = time.monotonic()
            self._reading = None

    async def read_now(self) -> None:
        """Read the map. Raises if no node answers, or the cluster has no slots."""
        places = [*self.primaries]
        shuffle(places)
        places.sort(key=self.unreachable.__contains__)
        older = dict[Place, KnownMap]()
        fault: Exception | None = None
        for place in dict.fromkeys((*places, *self._replicas, self.seed.place)):
            try:
                async with asyncio.timeout(_ANSWERS_WITHIN_S):
                    epoch, ranges = await self._ask(place)
                if not ranges:
                    raise ReplyError("CLUSTERDOWN no node of the cluster has slots")
            except TimeoutError:
                fault = LostError("{}:{}".format(*place), "it does not answer", wrote=False)
            except (BraidError, ValueError) as error:
                fault = error
            else:
                if epoch >= self._epoch:
                    self.learn(epoch, ranges)
                    return
                older[place] = epoch, ranges
        if older:
            now_s = time.monotonic()
            self._older_s = now_s if self._older_s is None else self._older_s
            if older.keys() >= {*places} or now_s - self._older_s >= OLDER_S:
                self.learn(*max(older.values(), key=lambda each: each[0]))
        elif fault is not None:
            raise fault

    async def ask(self, place: Place) -> KnownMap:
        """What the node at a place knows, by a connection of its own. A replica answers too."""
        conn = await connect(self.address(place))
        try:
            return await arun(read_map(place[0]), conn.send)
        finally:
            conn.close()

    def learn(self, epoch: int, ranges: Iterable[SlotRange]) -> None:
        """Take what a node knows."""
        self._epoch, self._older_s, self._replicas = epoch, None, []
        owners: list[Place | None] = [None] * SLOTS
        for part in ranges:
            owners[part.first : part.last + 1] = [part.primary] * (part.last + 1 - part.first)
            self._replicas += part.replicas
        if owners != self._owners:
            moved = [slot for slot in range(SLOTS) if owners[slot] != self._owners[slot]]
            self._owners = owners
            self._note(moved)

    def _count(self) -> None:
        if self._counted != self.version:
            self._primaries = [place for place in dict.fromkeys(self._owners) if place is not None]
            self._mark = zlib.crc32(repr(self._owners).encode())
            self._counted = self.version
