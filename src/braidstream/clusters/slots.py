"""Which node of a cluster has which slots: read with CLUSTER SLOTS, and corrected by redirects. For asyncio.

redis-py's cluster clients have a map of their own; this one is for connections of engine/connection.py.
"""

import asyncio
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import shuffle
from typing import Any, Final

from braidstream.engine.address import Address
from braidstream.engine.connection import connect
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.plan.plan import Batch

# ----------------------------------------------------------------------------------------------------
# Which primary of a cluster serves which slots: the reply to CLUSTER SLOTS. No I/O.

SLOTS: Final = 16_384
READ_MAP: Final = ("CLUSTER", "SLOTS")


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


def _place(node: Any, answered_by: str) -> Place:
    """A node names itself with an empty host if it has not learned its own address, or if its cluster shares
    one address."""
    host = bytes(node[0] or b"").decode()
    return (host if host not in ("", "?") else answered_by), int(node[1])


# ----------------------------------------------------------------------------------------------------
# Slots

# Many commands ask for the map at once when a primary is lost.
_AGAIN_AFTER_S: Final = 0.05
_ANSWERS_WITHIN_S: Final = 2.0


class SlotMap:
    """See the top of the file.

    seed: the node in the configuration. All nodes are reached with its user, its password and its TLS.
    only: the one server of `of_one`.
    version: grows when the map changes. unreachable: nodes to which the last connection failed.
    """

    def __init__(self, seed: Address) -> None:
        self.seed = replace(seed, path=None, db=0)
        self.only: Place | None = None
        self.version = 0
        self.unreachable: set[Place] = set()
        self._owners: list[Place | None] = [None] * SLOTS
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

    def note_moved(self, slot: int, place: Place) -> None:
        """A node said that another one has a slot."""
        place = self.named(place)
        if self._owners[slot] != place:
            self._owners[slot] = place
            self.version += 1

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

    async def read_first(self) -> None:
        """Read the map from the seed. Raises if it does not answer, or the cluster has no slots."""
        self._learn(await _slots(self.seed), self.seed.host)

    async def _read(self) -> None:
        try:
            places = [*self.primaries]
            shuffle(places)
            places.sort(key=self.unreachable.__contains__)
            for place in dict.fromkeys((*places, *self._replicas, self.seed.place)):
                try:
                    self._learn(await _slots(self.address(place)), place[0])
                except (BraidError, ValueError):
                    continue
                return
        finally:
            self._read_at = time.monotonic()
            self._reading = None

    def _learn(self, rows: Iterable[Any], host: str) -> None:
        owners: list[Place | None] = [None] * SLOTS
        replicas = list[Place]()
        for part in parse_slots(rows, host):
            owners[part.first : part.last + 1] = [part.primary] * (part.last + 1 - part.first)
            replicas += part.replicas
        if not any(owners):
            raise ReplyError("CLUSTERDOWN no node of the cluster has slots")
        if owners != self._owners:
            self._owners = owners
            self.version += 1
        self._replicas = replicas

    def _count(self) -> None:
        if self._counted != self.version:
            self._primaries = [place for place in dict.fromkeys(self._owners) if place is not None]
            self._mark = zlib.crc32(repr(self._owners).encode())
            self._counted = self.version


async def _slots(address: Address) -> list[Any]:
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            conn = await connect(address)
            try:
                [rows] = await conn.send(Batch([READ_MAP], resend=True, attempt=True))
            finally:
                conn.close()
    except TimeoutError:
        raise LostError(str(address), "it does not answer", wrote=False) from None
    if isinstance(rows, ReplyError):
        raise rows
    return list(rows)
