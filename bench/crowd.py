"""How long a waiting consumer takes to get an entry: a crowd blocked on one group, ours against bare.

    writer      XADD strand 1    XADD strand 2    XADD strand 3    one entry at a time, with its time
    crowd       64 consumers blocked in XREADGROUP; each notes how old its entries are

The bare side is the engine's own blocking XREADGROUP on one stream. Rounds alternate. Writer and crowd
share this process and its event loop, on both sides, so a figure holds the loop's own delay too.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from rich.console import Console
from rich.table import Table

import braidstream.asyncio
from bench.append import BARE, OURS
from bench.bed import Bed
from bench.report import Result
from braidstream.model.strand import Strand
from tests.support.servers import Flavour

NAME = "waiting consumers"
CROWD = 64
WRITERS = (1, 2, 3)
GROUP = "g"
GOAL = 1.6
ENTRIES, PAUSE_S = 300, 0.001  # of one round
ROUNDS, QUICK_ROUNDS = 10, 3
ROUND_WITHIN_S = 120
# COUNT 1 is less than the strands, so there consumers wait without taking (commands/xreadgroup.py).
COUNTS = (10, 1)


@dataclass(frozen=True, slots=True)
class Ages:
    """How old entries were when they were received, in ms."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Wakeups:
    """One crowd on one engine: round by round, and how many entries each consumer of ours got."""

    name: str
    rounds: Sequence[tuple[Ages, Ages]]
    served: Sequence[int]

    def ratio(self, which: str) -> float:
        return statistics.median(getattr(ours, which) / getattr(bare, which) for ours, bare in self.rounds)

    def results(self) -> list[Result]:
        p50, p99 = (round(self.ratio(which), 3) for which in ("p50", "p99"))
        return [
            Result(f"{self.name}: wake-up p50", p50, "ours/bare", GOAL, p50 <= GOAL),
            Result(f"{self.name}: wake-up p99", p99, "ours/bare", None, True),
        ]


def measure(flavour: Flavour, *, quick: bool) -> list[Wakeups]:
    found = []
    for count in COUNTS:
        with Bed(flavour) as bed:
            operator = bed.bare()
            operator.hset("bs:config", "writers", " ".join(map(str, WRITERS)))
            bed.ours().xgroup_create(OURS, GROUP, "0", mkstream=True)
            operator.xgroup_create(BARE, GROUP, "0", mkstream=True)
            found.append(asyncio.run(_measure(bed, count, QUICK_ROUNDS if quick else ROUNDS)))
    return found


async def _measure(bed: Bed, count: int, rounds: int) -> Wakeups:
    strands = [Strand(OURS.encode(), "s", writer).key for writer in WRITERS]
    served, ages = [0] * CROWD, list[tuple[Ages, Ages]]()
    port = bed.engine.port
    async with braidstream.asyncio.Redis(port=port) as ours, redis.asyncio.Redis(port=port) as bare:
        for number in range(rounds):
            end = f"end of round {number}".encode()
            async with asyncio.timeout(ROUND_WITHIN_S):
                mine = await _round(_Crowd(ours, OURS, count, end), bare, strands, served)
                theirs = await _round(_Crowd(bare, BARE, count, end), bare, [BARE.encode()], [0] * CROWD)
            ages.append((mine, theirs))
    name = f"{bed.engine.flavour}: {CROWD} {NAME}, COUNT {count}, {len(WRITERS)} strands"
    return Wakeups(name, ages, served)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """Who reads, what, how much at once, and the value that ends the round.

    Each round has its own: more end marks are written than consumers are left, and the next round reads them.
    """

    client: Any
    stream: str
    count: int
    end: bytes


async def _round(crowd: _Crowd, writer: Any, keys: Sequence[bytes], served: list[int]) -> Ages:
    ages = list[float]()

    async def consume(me: int) -> None:
        while True:
            reply = await crowd.client.xreadgroup(
                GROUP, f"c{me}", {crowd.stream: ">"}, count=crowd.count, block=60_000
            )
            now = time.perf_counter()
            values = [value for _, entries in reply for _, fields in entries for value in fields.values()]
            times = [float(value) for value in values if not value.startswith(b"end")]
            served[me] += len(times)
            ages.extend(now - sent for sent in times)
            if crowd.end in values:
                return

    consumers = [asyncio.create_task(consume(me)) for me in range(CROWD)]
    while (await writer.info("clients"))["blocked_clients"] < CROWD:
        await asyncio.sleep(0.01)
    for n in range(ENTRIES):
        await writer.xadd(keys[n % len(keys)], {"at": repr(time.perf_counter())})
        await asyncio.sleep(PAUSE_S)
    while not all(consumer.done() for consumer in consumers):
        await writer.xadd(keys[0], {"at": crowd.end})
        await asyncio.sleep(PAUSE_S)
    assert len(ages) == ENTRIES, "lost or duplicated"
    cuts = statistics.quantiles(ages, n=100)
    return Ages(cuts[49] * 1000, cuts[98] * 1000)


def show(measured: Sequence[Wakeups]) -> None:
    table = Table(title="Wake-up in ms, median of the rounds: ours / bare = ratio")
    for heading in ("crowd", "p50", "p99", "entries a consumer"):
        table.add_column(heading)
    for each in measured:
        cells = []
        for which in ("p50", "p99"):
            ours, bare = (
                statistics.median(getattr(both[side], which) for both in each.rounds) for side in (0, 1)
            )
            cells.append(f"{ours:.2f} / {bare:.2f} = {each.ratio(which):.2f}")
        table.add_row(each.name, *cells, f"{min(each.served)} to {max(each.served)}")
    Console(width=140).print(table)
