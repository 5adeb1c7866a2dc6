"""XREADGROUP and XACK over several strands, against one native stream with the same entries.

Every turn starts the group over (XGROUP SETID), so the same entries are given again and again.
"""

from collections.abc import Callable
from typing import Any

import redis

from bench.append import BARE, OURS
from bench.bed import Bed
from bench.gateway import running
from bench.measure import Case, Figure, Turn
from bench.read import fill
from braidstream.operations.membership import tune_id_mode

ENTRIES, ACKNOWLEDGED = 6_000, 300
GROUP, CONSUMER = "g", "c"
# How many strands there are, how many of them hold the entries; the rate that is wanted, for each COUNT, and
# the engine CPU that is allowed.
SHAPES = (
    (1, 1, {1: 0.9, 10: 0.9, 100: 0.9}, 1.05),
    (3, 1, {1: 0.75, 10: 0.75, 100: 0.75}, 1.15),
    (5, 1, {1: 0.75, 10: 0.75, 100: 0.75}, 1.15),
    (3, 3, {1: 0.8, 10: 0.8, 100: 0.75}, 1.15),
    (5, 3, {1: 0.8, 10: 0.8, 100: 0.75}, 1.15),
)


def _case(*, strands: int, news: int, count: int, rate: float, engine: float) -> Callable[[Bed], Case]:
    def build(bed: Bed) -> Case:
        ours, bare = bed.ours(), bed.bare()
        ours.run_plan(tune_id_mode("strict"))
        bare.hset("bs:config", "writers", " ".join(str(writer) for writer in range(1, strands + 1)))
        fill(bed, news, ENTRIES)
        fresh = bed.ours()  # one that reads who the writers are
        for client, stream in ((fresh, OURS), (bare, BARE)):
            client.xgroup_create(stream, GROUP, "0")
        goals: dict[Figure, float] = {"rate": rate, "engine CPU": engine}
        name = f"XREADGROUP COUNT {count}, news in {news} of {strands}"
        return Case(name, _reads(fresh, OURS, count), _reads(bare, BARE, count), goals)

    return build


def acknowledged_one_by_one(bed: Bed) -> Case:
    ours, bare = bed.ours(), bed.bare()
    ours.run_plan(tune_id_mode("strict"))
    bare.hset("bs:config", "writers", "1 2 3")
    fill(bed, 3, ENTRIES)
    fresh = bed.ours()
    for client, stream in ((fresh, OURS), (bare, BARE)):
        client.xgroup_create(stream, GROUP, "0")

    def acknowledges(client: Any, stream: str) -> Turn:
        def turn() -> None:
            client.xgroup_setid(stream, GROUP, "0")
            [[_, page]] = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=ACKNOWLEDGED)
            for entry, _ in page:
                assert client.xack(stream, GROUP, entry) == 1

        return turn

    goals: dict[Figure, float] = {"rate": 0.75}
    return Case("XACK of one ID, 3 strands", acknowledges(fresh, OURS), acknowledges(bare, BARE), goals)


def through_a_gateway(bed: Bed) -> Case:
    """A worker's loop with redis-py, at a gateway and at the engine."""
    bed.ours().run_plan(tune_id_mode("strict"))
    _, port = bed.enter(running(bed.engine.url, "uvloop"))
    ours, bare = redis.Redis(port=port), bed.bare()
    bare.hset("bs:config", "writers", "1 2 3")
    fill(bed, 3, ENTRIES)
    for client, stream in ((ours, OURS), (bare, BARE)):
        client.xgroup_create(stream, GROUP, "0")

    def works(client: Any, stream: str) -> Turn:
        def turn() -> None:
            client.xgroup_setid(stream, GROUP, "0")
            for _ in range(100):
                [[_, page]] = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=10, block=1000)
                client.xack(stream, GROUP, *[entry for entry, _ in page])

        return turn

    name = "XREADGROUP COUNT 10 + XACK through a gateway, news in 3 of 3"
    return Case(name, works(ours, OURS), works(bare, BARE), {"rate": 0.35})


def _reads(client: Any, stream: str, count: int) -> Turn:
    times = min(200, ENTRIES // count)

    def turn() -> None:
        client.xgroup_setid(stream, GROUP, "0")
        for _ in range(times):
            assert client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=count)

    return turn


CASES = (
    *(
        _case(strands=strands, news=news, count=count, rate=rate, engine=engine)
        for strands, news, rates, engine in SHAPES
        for count, rate in rates.items()
    ),
    acknowledged_one_by_one,
    through_a_gateway,
)
