"""XRANGE, XREAD and XLEN over several strands, against one native stream with the same entries.

Two kinds of stream: a short one, which a page of 1,000 reads whole; and a long one, where every strand
is asked for 1,000 entries although 1,000 are wanted in all. Entry n stands in strand n % strands.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

from bench.append import BARE, ENTRY, OURS
from bench.bed import Bed
from bench.measure import Case, Figure, Turn
from braidstream.model.ids import ZERO
from braidstream.model.strand import Strand
from tests.support.regions import apply

PAGE = 1000
LONG = 12_000
APPLIED_AT_ONCE = 500
FIRST_MS = 1_700_000_000_000
FIELDS = [word.encode() for pair in ENTRY.items() for word in pair]


def woven_page(bed: Bed) -> Case:
    return _ranges(bed, "XRANGE of 1,000 entries, 3 strands", strands=3, goals={"rate": 0.50})


def woven_page_of_a_long_stream(bed: Bed) -> Case:
    name = "XRANGE COUNT 1000 of 12,000 entries, 3 strands"
    return _ranges(bed, name, strands=3, entries=LONG, goals={"rate": 0.50})


def woven_page_decoded(bed: Bed) -> Case:
    return _ranges(bed, "XRANGE of 1,000 entries, 3 strands, decoded", strands=3, decode_responses=True)


def page_of_one_strand(bed: Bed) -> Case:
    return _ranges(bed, "XRANGE of 1,000 entries, 1 strand", strands=1)


def read_after(bed: Bed) -> Case:
    def read(client: Any, name: str) -> Any:
        return client.xread({name: "0-0"}, count=100)

    return _reads(bed, "XREAD COUNT 100, 3 strands", read, times=60, goal=0.65)


def length(bed: Bed) -> Case:
    def ask(client: Any, name: str) -> Any:
        return client.xlen(name)

    return _reads(bed, "XLEN, 3 strands", ask, times=300, goal=0.70)


CASES = (
    woven_page,
    woven_page_of_a_long_stream,
    woven_page_decoded,
    page_of_one_strand,
    read_after,
    length,
)


def _ranges(
    bed: Bed,
    name: str,
    *,
    strands: int,
    entries: int = PAGE,
    goals: dict[Figure, float] | None = None,
    **options: Any,
) -> Case:
    fill(bed, strands, entries)

    def page(client: Any, stream: str) -> Turn:
        assert len(client.xrange(stream, count=PAGE)) == PAGE

        def turn() -> None:
            for _ in range(10):
                client.xrange(stream, count=PAGE)

        return turn

    return Case(name, page(bed.ours(**options), OURS), page(bed.bare(**options), BARE), goals or {})


def _reads(bed: Bed, name: str, read: Callable[[Any, str], Any], *, times: int, goal: float) -> Case:
    fill(bed, strands=3, entries=PAGE)

    def repeated(client: Any, stream: str) -> Turn:
        def turn() -> None:
            for _ in range(times):
                read(client, stream)

        return turn

    return Case(name, repeated(bed.ours(), OURS), repeated(bed.bare(), BARE), {"rate": goal})


def fill(bed: Bed, strands: int, entries: int) -> None:
    """The same entries at the same milliseconds for both sides."""
    ours, pipe = bed.ours(), bed.bare().pipeline(transaction=False)
    for n in range(entries):
        pipe.xadd(BARE, ENTRY, id=f"{FIRST_MS + n}-0")  # type: ignore[arg-type]
    pipe.execute()
    for writer in range(1, strands + 1):
        own = iter([((FIRST_MS + n, 0), FIELDS) for n in range(writer - 1, entries, strands)])
        strand, after = Strand(OURS.encode(), "s", writer), ZERO
        while batch := list(islice(own, APPLIED_AT_ONCE)):
            ours.run_plan(apply(strand, batch, after))
            after = batch[-1][0]
