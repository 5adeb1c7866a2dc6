"""One run: three regions at work, a loss in one of them, two sweeps, and what is promised then."""

import asyncio
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from braidstream.plan.plan import Batch
from tests.long.losses.damage import KINDS, Damage, restart
from tests.long.losses.links import Links
from tests.long.losses.promises import Promises
from tests.long.losses.users import Ledger, Users
from tests.long.simulation.seat import Seat
from tests.support.servers import Engine, Flavour

REGIONS: Final = range(1, 4)
NAMES: Final = ("x", "y")
SHOWN: Final = 20  # lines of the history before the loss


@dataclass(frozen=True, slots=True)
class Outcome:
    """broken: what was found, by promise."""

    seed: int
    history: list[str]
    broken: dict[str, list[str]]

    def text(self, lines: int = SHOWN) -> str:
        """The history since some lines before the loss, and what was found."""
        loss = next((at for at, line in enumerate(self.history) if line.startswith("---")), 0)
        found = [f"{promise}: {what}" for promise, several in self.broken.items() for what in several[:5]]
        replay = f"replay: BRAID_SEED={self.seed} make losses"
        return "\n".join(
            [f"BRAID_SEED={self.seed}", *self.history[max(0, loss - lines) :], "", *found, replay]
        )


def lose_and_repair(seed: int, engines: Sequence[Engine]) -> Outcome:
    """Run a seed. The same seed does the same, whatever ran before."""
    dice, ledger = Random(seed), Ledger()
    seats = dict[int, Seat]()
    mode = dice.choice(("strict", "strict", "strict", "semi-strict", "liberal"))
    try:
        for number, engine in zip(REGIONS, engines, strict=True):
            seats[number] = Seat(engine, number, REGIONS, mode)
        run = Run(dice, seats, ledger)
        try:
            asyncio.run(run.whole(list(KINDS)[seed % len(KINDS)]))
        except Exception:  # where none may be
            run.promises.broken["failed"].append(traceback.format_exc(limit=-3))
        return Outcome(seed, ledger.history, dict(run.promises.broken))
    finally:
        for seat in seats.values():
            seat.close()


class Run:
    """The dice choose who acts, and what is lost."""

    def __init__(self, dice: Random, seats: dict[int, Seat], ledger: Ledger) -> None:
        self.dice, self.seats, self.ledger = dice, seats, ledger
        names = NAMES[: dice.choice((1, 1, 2))]
        # With small nodes, trims with `~` trim.
        self.node_entries = dice.choice((3, 100))
        for region in seats:
            self._configure(region)
        self.users = Users(dice, seats, names, ledger)
        self.links = Links(dice, seats, names, ledger)
        self.promises = Promises(seats, names, ledger)
        self.links.stepped = self._stepped
        self.names = names
        self.catching_up = 0.0  # how likely after a step, from the loss to the end of the first sweep
        self._noted_ms = 0

    async def whole(self, kind: str) -> None:
        await self._work(self.dice.randint(15, 60), list(self.seats))
        if self.dice.random() < 0.5:
            await self.links.all()
        damaged = self.dice.choice(list(self.seats))
        self._lose(damaged, kind)
        self.users.tolerant = self.links.tolerant = True
        self.catching_up = self.dice.choice((0.0, 0.1, 0.5))
        self._write(self.dice.choice((0, 0, 2, 6)), [damaged])
        self._write(self.dice.choice((0, 3)), list(self.seats))
        self._catch_up(damaged)
        self.links.connect(damaged)
        await self._work(self.dice.choice((0, 0, 10)), list(self.seats))
        await self.links.sweep()
        self.catching_up = 0.0
        self.promises.settled()
        self.ledger.tell("--- swept once")
        self._write(self.dice.choice((0, 0, 4)), list(self.seats))
        await self.links.sweep()
        self.ledger.tell("--- swept twice")
        moved = await self.links.sweep()
        self.promises.check(moved=moved, refused=self.links.refused)
        self.promises.check_groups(self.users)

    async def _work(self, steps: int, regions: Sequence[int]) -> None:
        for _ in range(steps):
            if self.dice.random() < 0.2:
                await self.links.some()
                self.promises.watch()
            else:
                self._write(1, regions)

    def _write(self, commands: int, regions: Sequence[int]) -> None:
        for _ in range(commands):
            region = self.dice.choice(regions)
            self._tick()
            self.users.act(region)
            self.promises.acted(region)

    def _catch_up(self, region: int) -> None:
        """Groups may acknowledge what follows a hole that no link has seen yet."""
        if self.dice.random() < self.catching_up:
            self.users.catch_up(region)
            self.promises.acted(region)

    def _stepped(self, shown: str) -> None:
        self.promises.stepped(shown)
        self._catch_up(self.dice.choice(list(self.seats)))

    def _tick(self) -> None:
        """Time goes by, and daemons note every second which process serves their region."""
        now_ms = self.seats[1].clock_ms + self.dice.choices((1, 50, 700, 90_000), (4, 4, 2, 0.2))[0]
        for seat in self.seats.values():
            seat.clock_ms = now_ms
        if now_ms - self._noted_ms > 1000 and not self.users.tolerant:
            self._noted_ms = now_ms
            for region in self.seats:
                self.links.note_process(region)

    def _lose(self, region: int, kind: str) -> None:
        self.promises.lose(region)
        self.ledger.tell(f"--- region {region} restarts without")
        damage = Damage(self.dice, self.seats[region], self.names)
        more = self.dice.sample(list(KINDS), self.dice.choice((0, 0, 1, 3)))
        for each in (kind, *more):
            for what in damage.do(each):
                self.ledger.tell(f"          {what}")
        restart(self.seats[region])
        self._configure(region)
        self.users.forget(region)
        self.promises.lost()

    def _configure(self, region: int) -> None:
        self.seats[region].send(Batch([("CONFIG", "SET", "stream-node-max-entries", self.node_entries)]))


@contextmanager
def three_engines(flavour: Flavour) -> Iterator[list[Engine]]:
    """For many runs."""
    started = list[Engine]()
    try:
        for _ in REGIONS:
            started.append(Engine(flavour, unixsocket=True).start())
        yield started
    finally:
        for engine in started:
            engine.stop()
