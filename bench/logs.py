"""Logs: TWRITE, TREAD, TREAD GROUP RETRY with TACK, against native commands on a stream of the same entries.

`python -m bench.logs`: the memory of an entry, and what a seek costs in a log of ten million.
"""

import argparse
import random
import time
from typing import Any, Final

from bench.append import BARE, ONE_BY_ONE, OURS, PIPELINE
from bench.bed import NEWEST, Bed
from bench.measure import Case, Turn, compare
from braidstream.model.keys import LOG
from braidstream.model.strand import Strand
from tests.support.servers import EVERY, Flavour

TAG, BODY = "customer-4711", "0123456789abcdef" * 3
ENTRIES: Final = 6_000
PAGE: Final = 10
GROUP, CONSUMER = "g", "c"
PAUSE_S: Final = 0.00012  # about what our client computes more for a command
TIMES: Final = (30_000, 3_600_000)
SMALL, LARGE, QUICK_LARGE = 1_000, 10_000_000, 1_000_000
FILLED_AT_ONCE: Final = 10_000
# Fills a stream with IDs 0-1, 0-2, ... as TWRITE does.
_FILL: Final = """
for _ = 1, ARGV[1] do redis.call('XADD', KEYS[1], '0-*', 't', ARGV[2], 'e', ARGV[3]) end
"""


def writes(bed: Bed) -> Case:
    ours = bed.ours()

    def twrite() -> None:
        for _ in range(ONE_BY_ONE):
            ours.twrite(OURS, TAG, BODY)

    return Case("log: TWRITE one by one", twrite, _xadds(bed.bare()), {"rate": 0.85, "engine CPU": 1.15})


def native_writes(bed: Bed) -> Case:
    """What TWRITE sends, by the same client as the XADD: the cost of the command itself."""
    bare, key = bed.bare(), _home(OURS)
    bed.ours().twrite(OURS, TAG, BODY)

    def of_log() -> None:
        for _ in range(ONE_BY_ONE):
            bare.execute_command("XADD", key, "NOMKSTREAM", "0-*", "t", TAG, "e", BODY)  # type: ignore[no-untyped-call]

    name = "log: the native command of TWRITE, by redis-py"
    return Case(name, of_log, _xadds(bare), {"engine CPU": 1.15})


def paused_writes(bed: Bed) -> Case:
    """A control: how much more the same XADD costs the engine if its client computes between two of them."""
    bare = bed.bare()

    def paused() -> None:
        for _ in range(ONE_BY_ONE):
            bare.xadd(BARE, {"t": TAG, "e": BODY})
            until = time.thread_time() + PAUSE_S
            while time.thread_time() < until:
                pass

    return Case("log: control: XADD with pauses, against itself", paused, _xadds(bare))


def _xadds(client: Any) -> Turn:
    def turn() -> None:
        for _ in range(ONE_BY_ONE):
            client.xadd(BARE, {"t": TAG, "e": BODY})

    return turn


def piped_writes(bed: Bed) -> Case:
    ours, bare = bed.ours(), bed.bare()
    ours.twrite(OURS, TAG, BODY)

    def twrites() -> None:
        pipe = ours.pipeline(transaction=False)
        for _ in range(PIPELINE):
            pipe.twrite(OURS, TAG, BODY)
        pipe.execute()

    def xadds() -> None:
        pipe = bare.pipeline(transaction=False)
        for _ in range(PIPELINE):
            pipe.xadd(BARE, {"t": TAG, "e": BODY})
        pipe.execute()

    return Case(f"log: TWRITE in pipelines of {PIPELINE}", twrites, xadds, {"rate": 1.0, "engine CPU": 1.15})


def reads(bed: Bed) -> Case:
    ours, bare = bed.ours(), bed.bare()
    _fill_both(bed, ENTRIES)
    starts = random.Random(1).sample(range(1, ENTRIES - PAGE), 300)

    def tread() -> None:
        for offset in starts:
            assert len(ours.tread(OURS, offset, PAGE)) == PAGE

    def xrange() -> None:
        for offset in starts:
            assert len(bare.xrange(BARE, f"0-{offset}", f"0-{offset + PAGE - 1}")) == PAGE  # type: ignore[arg-type]

    return Case(f"log: TREAD of {PAGE}", tread, xrange, {"engine CPU": 1.3})


def shares(bed: Bed) -> Case:
    ours, bare = bed.ours(), bed.bare()
    _fill_both(bed, ENTRIES)
    ours.xgroup_create(OURS, GROUP, "0")
    bare.xgroup_create(BARE, GROUP, "0")

    def tread() -> None:
        ours.xgroup_setid(OURS, GROUP, "0")
        for _ in range(200):
            rows: Any = ours.tread(OURS, count=PAGE, group=GROUP, retry=TIMES)
            assert ours.tack(OURS, GROUP, *(row[0] for row in rows)) == PAGE

    def xreadgroup() -> None:
        bare.xgroup_setid(BARE, GROUP, "0")
        for _ in range(200):
            [(_, rows)] = bare.xreadgroup(GROUP, CONSUMER, {BARE: ">"}, count=PAGE)  # type: ignore[misc]
            assert bare.xack(BARE, GROUP, *(row[0] for row in rows)) == PAGE

    return Case(f"log: TREAD GROUP RETRY of {PAGE} + TACK", tread, xreadgroup, {"engine CPU": 1.25})


CASES = (writes, native_writes, paused_writes, piped_writes, reads, shares)


def _fill(client: Any, key: bytes | str, entries: int) -> None:
    for start in range(0, entries, FILLED_AT_ONCE):
        client.eval(_FILL, 1, key, min(FILLED_AT_ONCE, entries - start), TAG, BODY)


def _home(name: str) -> bytes:
    return Strand(name.encode(), LOG, 1).key


def _fill_both(bed: Bed, entries: int) -> None:
    """The first entry creates the log; the rest goes to its strand, as TWRITE would write it."""
    bed.ours().twrite(OURS, TAG, BODY)
    _fill(bed.bare(), _home(OURS), entries - 1)
    _fill(bed.bare(), BARE, entries)


def memory(bed: Bed, entries: int = 500_000) -> tuple[float, float]:
    """Bytes for each entry: of a log, and of a stream with generated IDs and the same fields."""
    bare, ours = bed.bare(), bed.ours()
    ours.twrite(OURS, TAG, BODY)
    _fill(bare, _home(OURS), entries - 1)
    fill = _FILL.replace("'0-*'", "'*'")
    for start in range(0, entries, FILLED_AT_ONCE):
        bare.eval(fill, 1, BARE, min(FILLED_AT_ONCE, entries - start), TAG, BODY)
    used = [bare.memory_usage(key, samples=0) or 0 for key in (_home(OURS), BARE)]
    return used[0] / entries, used[1] / entries


def seek(bed: Bed, large: int) -> Case:
    """TREAD of one entry at a random offset of a large log, against the same in a small one."""
    ours, bare = bed.ours(), bed.bare()
    for name, entries in ((OURS, large), (BARE, SMALL)):
        ours.twrite(name, TAG, BODY)
        _fill(bare, _home(name), entries - 1)
    dice = random.Random(1)

    def treads(name: str, entries: int) -> Turn:
        def turn() -> None:
            for _ in range(300):
                assert ours.tread(name, dice.randrange(1, entries), 1)

        return turn

    name = f"log: seek in {large:,} entries, against {SMALL:,}"
    return Case(name, treads(OURS, large), treads(BARE, SMALL), {"engine CPU": 3.0})


def _measure(flavour: Flavour, *, quick: bool) -> None:
    with Bed(flavour) as bed:
        log, stream = memory(bed, 100_000 if quick else 500_000)
        print(
            f"{flavour}: bytes for each entry: log {log:.1f}, stream {stream:.1f}, ratio {log / stream:.3f}"
        )
    with Bed(flavour) as bed:
        case = seek(bed, QUICK_LARGE if quick else LARGE)
        ratio = compare(case, bed.engine_cpu, budget_s=3.0)["engine CPU"]
        spread = f"{ratio.low:.2f}..{ratio.high:.2f}"
        print(f"{flavour}: {case.name}: engine CPU {ratio.value:.2f} ({spread}), goal 3.0")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.logs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a million entries instead of ten")
    parser.add_argument("--engine", choices=EVERY, action="append", help="another one")
    chosen = parser.parse_args()
    for flavour in chosen.engine or NEWEST:
        _measure(flavour, quick=chosen.quick)


if __name__ == "__main__":
    main()
