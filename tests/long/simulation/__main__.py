"""`make simulate`: many seeds on all cores, or one seed step by step (BRAID_SEED=17 make simulate)."""

import os
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context

from rich.progress import track

from tests.long.simulation.simulator import OPERATIONS, Outcome, pool, simulate

SEEDS = int(os.environ.get("BRAID_SEEDS", "10000"))
FIRST = int(os.environ.get("BRAID_FIRST", "0"))
# Users also change the scope of groups, and take and give strands.
SCOPES = bool(os.environ.get("BRAID_SCOPES"))
# Users also set deadlines, and regions carry them out.
DEADLINES = bool(os.environ.get("BRAID_DEADLINES"))
# Users also write entries for later, and daemons promote them and carry out retention policies.
CHORES = bool(os.environ.get("BRAID_CHORES"))
CORES = len(os.sched_getaffinity(0))  # `taskset -c 0 make simulate` takes one
AT_ONCE = 25


def main() -> int:
    if (one := os.environ.get("BRAID_SEED")) is not None:
        with pool() as engines:
            outcome = simulate(int(one), engines, scopes=SCOPES, deadlines=DEADLINES, chores=CHORES)
        print(outcome)
        return int(bool(outcome.trouble))
    began, bad = time.monotonic(), 0
    for outcome in _outcomes():
        bad += 1
        print(outcome)
    took_s = time.monotonic() - began
    print(f"{SEEDS} seeds of {OPERATIONS} operations, {bad} with anomalies, in {took_s:.0f} s")
    return int(bad > 0)


def _outcomes() -> Iterator[Outcome]:
    """The outcomes with trouble, as they are found."""
    firsts = range(FIRST, FIRST + SEEDS, AT_ONCE)
    with get_context("fork").Pool(CORES) as workers:
        found = workers.imap_unordered(_some, firsts)
        for outcomes in track(found, description="simulating", total=len(firsts)):
            yield from outcomes


def _some(first: int) -> list[Outcome]:
    """A worker's share: engines are started for each, which costs little against the runs."""
    with pool() as engines:
        outcomes = [
            simulate(seed, engines, scopes=SCOPES, deadlines=DEADLINES, chores=CHORES)
            for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS))
        ]
    return [outcome for outcome in outcomes if outcome.trouble]


if __name__ == "__main__":
    sys.exit(main())
