"""Interleave two ways to do one thing, and compare what they cost.

    round 1   ours  bare
    round 2   bare  ours         a turn is the same number of operations for both, some 20..100 ms
    round 3   ours  bare

Each turn reads three clocks: the wall, the CPU of this process, the CPU of the engine. A figure is the
**median of the ratios of the rounds**. The machine is shared: load from a neighbour lasts longer than a
round, so it slows both turns and cancels; a burst that hits one turn spoils one ratio, which the median
ignores. The ratio of the minimums was the alternative: over ten runs of the control case (redis-py
against itself, so 1.00 is right) it strayed by up to 0.055, the median by up to 0.029.
Who goes first alternates, so what a turn leaves behind for the next one favours nobody.

Python's collector is tidied before each turn, and what setting up has left is frozen. Otherwise a full
collection of this program's own heap, 10 ms, hits any turn. What a turn itself allocates is still collected
within it, and counts.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

# It may return when its work was done, as a float: a consumer takes a while to stop.
Turn = Callable[[], object]
Figure = Literal["rate", "client CPU", "engine CPU"]
FIGURES: tuple[Figure, ...] = ("rate", "client CPU", "engine CPU")

LEAST_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Case:
    """One thing done both ways. `goals` has the figures that must reach something; the rest is reported."""

    name: str
    ours: Turn
    bare: Turn
    goals: Mapping[Figure, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one turn took, in seconds."""

    wall: float
    client: float
    engine: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """ours / bare. `low` and `high` are the quartiles of the rounds: how much the figure can be trusted."""

    value: float
    low: float
    high: float
    rounds: int


def compare(case: Case, engine_cpu: Callable[[], float], *, budget_s: float) -> dict[Figure, Ratio]:
    """Take turns for `budget_s` seconds. The first round is a warm-up and counts for nothing."""
    case.ours()
    case.bare()
    gc.freeze()
    try:
        rounds = _rounds(case, engine_cpu, budget_s)
    finally:
        gc.unfreeze()
    return {
        "rate": _ratio([bare.wall / ours.wall for ours, bare in rounds]),
        "client CPU": _ratio([ours.client / bare.client for ours, bare in rounds]),
        "engine CPU": _ratio([ours.engine / bare.engine for ours, bare in rounds]),
    }


def _rounds(case: Case, engine_cpu: Callable[[], float], budget_s: float) -> list[tuple[Cost, Cost]]:
    until = time.perf_counter() + budget_s
    rounds = list[tuple[Cost, Cost]]()
    while time.perf_counter() < until or len(rounds) < LEAST_ROUNDS:
        if len(rounds) % 2:
            bare = _cost(case.bare, engine_cpu)
            ours = _cost(case.ours, engine_cpu)
        else:
            ours = _cost(case.ours, engine_cpu)
            bare = _cost(case.bare, engine_cpu)
        rounds.append((ours, bare))
    return rounds


def _cost(turn: Turn, engine_cpu: Callable[[], float]) -> Cost:
    gc.collect()
    engine, client, wall = engine_cpu(), time.process_time(), time.perf_counter()
    done = turn()
    if not isinstance(done, float):
        done = time.perf_counter()
    return Cost(done - wall, time.process_time() - client, engine_cpu() - engine)


def _ratio(rounds: list[float]) -> Ratio:
    low, _, high = statistics.quantiles(rounds, n=4)
    return Ratio(statistics.median(rounds), low, high, len(rounds))
