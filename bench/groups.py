"""XREADGROUP of new entries over several strands, against one native stream with the same entries.

Every turn starts the group over (XGROUP SETID), so the same entries are given again and again.
"""

from collections.abc import Callable
from typing import Any

from bench.append import BARE, OURS
from bench.bed import Bed
from bench.measure import Case, Figure, Turn
from bench.read import fill
from braidstream.commands.region import tune_id_mode

ENTRIES = 6_000
GROUP, CONSUMER = "g", "c"


def _case(name: str, *, news: int, strands: int, count: int, goal: float | None) -> Callable[[Bed], Case]:
    """`news` of the `strands` hold the entries; the others are there and empty."""

    def build(bed: Bed) -> Case:
        ours, bare = bed.ours(), bed.bare()
        ours.run_plan(tune_id_mode("strict"))
        bare.hset("bs:config", "writers", " ".join(str(writer) for writer in range(1, strands + 1)))
        fill(bed, news, ENTRIES)
        fresh = bed.ours()  # one that reads who the writers are
        for client, stream in ((fresh, OURS), (bare, BARE)):
            client.xgroup_create(stream, GROUP, "0")
        goals: dict[Figure, float] = {} if goal is None else {"engine CPU": goal}
        return Case(name, _reads(fresh, OURS, count), _reads(bare, BARE, count), goals)

    return build


def _reads(client: Any, stream: str, count: int) -> Turn:
    times = min(200, ENTRIES // count)

    def turn() -> None:
        client.xgroup_setid(stream, GROUP, "0")
        for _ in range(times):
            assert client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=count)

    return turn


CASES = (
    _case("XREADGROUP COUNT 10, 1 strand", news=1, strands=1, count=10, goal=1.5),
    *(
        _case(f"XREADGROUP COUNT {count}, 1 of 3 strands has news", news=1, strands=3, count=count, goal=1.5)
        for count in (1, 10, 100)
    ),
    *(
        _case(f"XREADGROUP COUNT {count}, 3 of 3 strands have news", news=3, strands=3, count=count, goal=2.5)
        for count in (1, 10, 100)
    ),
)
