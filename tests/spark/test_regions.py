"""Three regions that replicate late and out of order while a query runs, moves and is cut off."""

import json
import random
from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest

from braidstream.errors import DataLossError, NotReplicatedError
from braidstream.model.keys import GENERATED
from braidstream.model.strand import Strand
from braidstream.spark.lake.log import Lake
from braidstream.spark.options import Servers
from braidstream.spark.source import offsets
from tests.support.lakes import Run
from tests.support.microbatch import Killed, Micro, number
from tests.support.thinning import NIGHTLY
from tests.support.world import World

OWN = Strand(b"orders", GENERATED, 1)


def urls(world: World, first: int) -> dict[str, str]:
    """The servers of a query that prefers one region."""
    order = [first, *(region for region in world if region != first)]
    listed = [world.engines[region - 1].url for region in order]
    return {"url": listed[0], "fallbackUrls": ",".join(listed[1:])}


@pytest.mark.parametrize("seed", range(12 if NIGHTLY else 4))
def test_every_entry_is_read_once_however_late_it_arrives(world: World, seed: int) -> None:
    """Writers, links and the query take turns by the dice; the query is cut off and moves between regions."""
    dice = random.Random(seed)
    query = Micro(
        {
            "streams": "orders",
            "failOnMissing": "false",
            "maxEntriesPerTrigger": 4,
            "replicationWait": "0.05s",
            **urls(world, 1),
        }
    )
    added = 0
    for _ in range(60):
        turn = dice.random()
        if turn < 0.4:
            world[dice.choice([1, 2, 3])].xadd("orders", {"n": added})
            added += 1
        elif turn < 0.7:
            world.ship(*dice.choice(list(permutations((1, 2, 3), 2))), "orders", relay=dice.random() < 0.3)
        else:
            if dice.random() < 0.3:
                query.options |= urls(world, dice.choice([1, 2, 3]))
            with suppress(Killed, NotReplicatedError):  # a batch that this region does not have yet waits
                query.run(kill_after=dice.choice(["", "", "plan", "read", "commit"]), all_available=False)
    world.sync()
    query.run()
    assert sorted(map(number, query.rows)) == list(range(added))


def test_a_query_goes_on_in_another_region_when_its_own_is_gone(world: World) -> None:
    query = Micro({"streams": "orders", "redis.socket_timeout": "0.3", **urls(world, 1)})
    for n in range(5):
        world[1].xadd("orders", {"n": n})
    assert query.numbers() == [0, 1, 2, 3, 4]
    world.sync()
    world[2].xadd("orders", {"n": 5})
    world.engines[0].pause()
    try:
        assert query.numbers() == [5]
        world[3].xadd("orders", {"n": 6})
        world.sync([2, 3])
        assert query.numbers() == [6]
    finally:
        world.engines[0].resume()


def _count_differently(world: World) -> None:
    """Region 2 never had the first five entries, so it has counted less."""
    for n in range(10):
        world[1].xadd("orders", {"n": n})
    world[1].xtrim("orders", maxlen=5, approximate=False)
    world.sync()
    assert [_added(world, region) for region in (1, 2)] == [10, 5]


def _added(world: World, region: int) -> int:
    with world.engines[region - 1].client() as bare:
        return int(bare.xinfo_stream(OWN.key)["entries-added"])


def _lost_while_planning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Region 1 is lost after the streams were looked at."""
    real = offsets.cut

    def cut(server: Any, *how: Any) -> Any:
        if server.url == world.engines[0].url:
            raise ConnectionError("lost")
        return real(server, *how)

    monkeypatch.setattr(offsets, "cut", cut)


def test_a_query_that_moves_while_it_plans_counts_in_one_region(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _count_differently(world)
    _lost_while_planning(world, monkeypatch)
    query = Micro({"streams": "orders", "maxEntriesPerTrigger": 2, **urls(world, 1)})
    with pytest.raises(Killed):
        query.run(kill_after="plan", all_available=False)
    assert json.loads(query.log[0])["counted"] == {"region": 2, "streams": {"orders": {"s1": 2}}}


def test_an_archive_that_moves_while_it_plans_counts_in_one_region(
    world: World, archive: Run, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _count_differently(world)
    _lost_while_planning(world, monkeypatch)
    servers = Servers(tuple(engine.url for engine in world.engines[:2]), {})
    assert archive(servers=servers, max_entries=2).entries == 2
    offset = Lake(lake).load().offsets["orders"]
    assert (offset.region, dict(offset.counts)) == (2, {OWN: 2})


def test_a_task_that_moves_to_another_region_detects_a_trim_there(world: World) -> None:
    _count_differently(world)
    query = Micro({"streams": "orders", "redis.socket_timeout": "0.3", **urls(world, 1)})
    query.run()
    for n in range(10, 14):
        world[1].xadd("orders", {"n": n})
    world.sync()

    def move() -> None:
        with world.engines[1].client() as bare:
            bare.xtrim(OWN.key, maxlen=1, approximate=False)
        world.engines[0].pause()

    query.before_read = move
    try:
        with pytest.raises(DataLossError, match="may be trimmed too"):
            query.run()
    finally:
        world.engines[0].resume()


def test_a_replayed_batch_waits_for_what_has_not_arrived_and_says_so(world: World) -> None:
    query = Micro({"streams": "orders", "replicationWait": "0.2s", **urls(world, 1)})
    world[1].xadd("orders", {"n": 0})
    with pytest.raises(Killed):
        query.run(kill_after="plan")
    query.options |= urls(world, 2)
    with pytest.raises(NotReplicatedError, match="Nothing is lost"):
        query.run()
    world.sync()
    assert query.numbers() == [0]


def test_a_region_behind_the_query_moves_it_neither_back_nor_on(world: World) -> None:
    query = Micro({"streams": "orders", **urls(world, 1)})
    for n in range(3):
        world[1].xadd("orders", {"n": n})
    query.run()
    query.options |= urls(world, 2)
    assert query.numbers() == []  # region 2 has heard of nothing yet
    world.sync()
    assert query.numbers() == []  # and what arrives now was read
    world[1].xadd("orders", {"n": 3})
    world.sync()
    assert query.numbers() == [3]
