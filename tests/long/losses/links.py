"""Links as the daemons of three regions run them, one step after the other."""

from collections.abc import Callable, Sequence
from itertools import permutations
from random import Random
from typing import Final, TypeVar

from braidstream.errors import BraidError
from braidstream.model import ids, keys
from braidstream.operations.membership import meet, show_alive
from braidstream.plan.lookup import read_region
from braidstream.plan.plan import Batch, Plan, arun, send_one
from braidstream.replication.detect.feed import streams_of
from braidstream.replication.detect.sweep import differing
from braidstream.replication.link.flow import Progress
from braidstream.replication.link.link import Link
from braidstream.replication.link.pages import Pages, Source, find_splice
from tests.long.losses.users import Ledger
from tests.long.simulation.seat import Seat

T = TypeVar("T")
Pair = tuple[int, int]
FACTS: Final = ("entries", "merged", "trimmed", "deletions", "healed", "waiting")
# After a sweep, links compare again what has changed. They come to rest in a few rounds.
ROUNDS: Final = 6


class End:
    """A region, as a link takes it."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._send)

    async def _send(self, batch: Batch) -> list[object]:
        return self.seat.send(batch)


class Links:
    """Of all regions to all others. stepped: called after each step, with its words.

    refused: what links failed with in the latest sweep.
    """

    def __init__(self, dice: Random, seats: dict[int, Seat], names: Sequence[str], ledger: Ledger) -> None:
        self.dice, self.seats, self.names, self.ledger = dice, seats, names, ledger
        self.stepped: Callable[[str], None] = lambda shown: None
        self.refused: list[str] = []
        self.tolerant = False
        self.links: dict[Pair, Link] = {}
        self.connect(*seats)

    def connect(self, *regions: int) -> None:
        """What daemons do on a new connection to or from these regions."""
        for region in regions:
            self.note_process(region)
            self.seats[region].run(meet(self.seats))
        for source, target in permutations(self.seats, 2):
            if source in regions or target in regions:
                ends = End(self.seats[source]), End(self.seats[target])
                here, there = (self.seats[region].run(read_region()) for region in (source, target))
                pages = Pages(Source(ends[0], splice=find_splice()))
                self.links[source, target] = Link(*ends, here=here, there=there, pages=pages)

    def note_process(self, region: int) -> None:
        """A daemon does that every second."""
        highest = max(
            (link.highest_ms for (source, _), link in self.links.items() if source == region), default=0
        )
        waits, _ = self.seats[region].run(show_alive(highest))
        if waits:
            self.seats[region].run(show_alive(highest, raised=True))

    async def some(self) -> None:
        """Some links move, as it happens in a busy world."""
        pairs = self.dice.sample(list(self.links), self.dice.randint(1, len(self.links)))
        for pair in pairs:
            for name in self.names:
                how = self.dice.choice(("follow", "sync", "sync", "relay"))
                await self._step(pair, name.encode(), how)

    async def all(self) -> None:
        """Until nothing moves."""
        for _ in range(ROUNDS):
            if not await self._round():
                return

    async def sweep(self) -> bool:
        """All links compare all streams by their digests, relay what differs, and then what has changed."""
        self.refused = []
        moved = False
        for pair in self._shuffled():
            moved = await self._sweep(pair) or moved
        rounds = 0
        while rounds < ROUNDS and await self._round():
            moved, rounds = True, rounds + 1
        return moved

    async def _sweep(self, pair: Pair) -> bool:
        link, moved = self.links[pair], False
        link.here = self.seats[pair[0]].run(read_region())
        async for found in streams_of(link.source):
            for name in sorted(await differing(sorted(found), link.here.writers, link.source, link.target)):
                moved = await self._step(pair, name, "relay") or moved
        return moved

    async def _round(self) -> bool:
        self.refused = []
        moved = False
        for pair in self._shuffled():
            for name in self.names:
                moved = await self._step(pair, name.encode(), "sync") or moved
        return moved

    def _shuffled(self) -> list[Pair]:
        return self.dice.sample(list(self.links), len(self.links))

    async def _step(self, pair: Pair, name: bytes, how: str) -> bool:
        link, shown = self.links[pair], f"{pair[0]}>{pair[1]} {how} {name.decode()}"
        try:
            if how == "follow":
                progress = (await link.follow_some([name])).get(name) or await link.follow(name)
            else:
                progress = await link.sync(name, relay=how == "relay")
                self._trim_journal(pair[0], name)
        except BraidError as error:
            self.ledger.tell(f"{shown} -> {str(error)[:200]}")
            if not self.tolerant:
                raise
            self.refused.append(f"{shown}: {str(error)[:200]}")
            link.forget(name)
            return False
        did = _brief(progress)
        if did:
            self.ledger.tell(f"{shown} -> {did}")
        self.stepped(shown)
        return progress.moved or progress.waiting

    def _trim_journal(self, source: int, name: bytes) -> None:
        """As the carrier does: up to what every peer has applied."""
        done = min(link.applied(name) for pair, link in self.links.items() if pair[0] == source)
        if done > ids.ZERO:
            trim = ("XTRIM", keys.journal(name, source), "MINID", "=", ids.text(done))
            self.seats[source].run(send_one(trim))


def _brief(progress: Progress) -> str:
    found = ((fact, getattr(progress, fact)) for fact in FACTS)
    return " ".join(f"{fact} {int(value)}" for fact, value in found if value)
