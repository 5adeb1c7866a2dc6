"""`make losses`: 1,000 seeds on all cores, or one seed step by step (BRAID_SEED=17 make losses)."""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context

from rich.progress import track

from tests.long.losses.run import Outcome, lose_and_repair, three_engines
from tests.support.servers import FLAVOURS

SEEDS = int(os.environ.get("BRAID_SEEDS", "1000"))
FIRST = int(os.environ.get("BRAID_FIRST", "0"))
CORES = len(os.sched_getaffinity(0))  # `taskset -c 0 make losses` takes one
FLAVOUR = FLAVOURS[0] if "BRAID_ENGINE" in os.environ else "redis-8.10"
AT_ONCE = 25


def main() -> int:
    if (one := os.environ.get("BRAID_SEED")) is not None:
        with three_engines(FLAVOUR) as engines:
            outcome = lose_and_repair(int(one), engines)
        print(outcome.text(lines=10_000))
        return int(bool(outcome.broken))
    logging.getLogger("braidstream").setLevel(logging.CRITICAL)
    began, bad, found = time.monotonic(), 0, Counter[str]()
    for outcome in _outcomes():
        bad += 1
        found.update(outcome.broken.keys())
        print(outcome.text(), flush=True)
    took_s = time.monotonic() - began
    print(f"{SEEDS} seeds on {FLAVOUR}, {bad} broke a promise, in {took_s:.0f} s")
    print(", ".join(f"{promise} {seeds}" for promise, seeds in found.most_common()))
    return int(bad > 0)


def _outcomes() -> Iterator[Outcome]:
    """The outcomes that broke a promise, as they are found."""
    firsts = range(FIRST, FIRST + SEEDS, AT_ONCE)
    with get_context("fork").Pool(CORES) as workers:
        found = workers.imap_unordered(_some, firsts)
        for outcomes in track(found, description="losing", total=len(firsts)):
            yield from outcomes


def _some(first: int) -> list[Outcome]:
    """A worker's share, on engines of its own."""
    with three_engines(FLAVOUR) as engines:
        seeds = range(first, min(first + AT_ONCE, FIRST + SEEDS))
        outcomes = [lose_and_repair(seed, engines) for seed in seeds]
    return [outcome for outcome in outcomes if outcome.broken]


if __name__ == "__main__":
    sys.exit(main())
