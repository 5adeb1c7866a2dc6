"""EXPIRE between regions of streams with chosen IDs, which do not show whether an entry is later."""

from collections.abc import Callable

import pytest

from tests.support.expiring import FAR_MS, WAITS, due, entries, now_ms, pass_time, settle
from tests.support.matrix import on_every_engine
from tests.support.world import World

flavour = on_every_engine


def started_again(make_world: Callable[..., World]) -> World:
    """The stream expired; then region 1 wrote 6-6 to it."""
    world = make_world(2, id_mode="liberal")
    world[1].xadd("x", {"n": "old"}, id="5-5")
    world[1].pexpire("x", 300)
    world.sync()
    pass_time(world)
    world[1].xadd("x", {"n": "new"}, id="6-6")
    settle(world)
    return world


def test_chosen_ids_and_a_long_stream_expire_too(make_world: Callable[..., World]) -> None:
    world = make_world(2, id_mode="liberal")
    world[1].xadd("x", {"n": "1"}, id="5-5")
    with world[2].pipeline(transaction=False) as pipe:
        for number in range(3_000):
            pipe.xadd("x", {"n": number})
        pipe.execute()
    world[1].pexpire("x", 500)
    world.sync()
    pass_time(world)
    settle(world)
    assert [world[region].exists("x") for region in world] == [0, 0]


def test_chosen_ids_that_were_written_later_stay(make_world: Callable[..., World]) -> None:
    world = started_again(make_world)
    assert [entries(world[region]) for region in world] == [["6-6"]] * 2
    for engine in world.engines:  # a server that lost what is local, and got the rest back from its peer
        with engine.client() as operator:
            operator.hdel("bs:meta:{x}", "ended")
    settle(world)
    assert [entries(world[region]) for region in world] == [["6-6"]] * 2


def test_a_stream_that_starts_again_with_chosen_ids_keeps_its_groups_when_it_is_empty(
    make_world: Callable[..., World],
) -> None:
    world = started_again(make_world)
    world[1].xgroup_create("x", "g", "0")
    world[1].xdel("x", "6-6")
    settle(world)
    assert [[group["name"] for group in world[region].xinfo_groups("x")] for region in world] == [["g"]] * 2


@pytest.mark.parametrize("how", ["added", "copied"])
def test_chosen_ids_after_the_deadline_stay(make_world: Callable[..., World], how: str) -> None:
    world = make_world(2, id_mode="liberal")
    world[1].xadd("x", {"n": "old"}, id="5-5")
    world[2].xadd("x", {"n": "2"})
    world[1].xadd("y", {"n": "new"}, id="7-7")
    world[1].pexpire("x", 300)
    world.sync()
    pass_time(world)
    assert due(world, 1) == WAITS
    if how == "added":
        world[1].xadd("x", {"n": "new"}, id="7-7")
    else:
        world[1].copy("y", "x", replace=True)
    settle(world)
    assert [entries(world[region]) for region in world] == [["7-7"]] * 2


def test_chosen_ids_that_an_older_release_kept_after_the_deadline_stay(
    make_world: Callable[..., World],
) -> None:
    """Library 23 noted step 1, and not that the stream was used again."""
    world = make_world(2, id_mode="liberal")
    for number in (1, 2):
        world[1].xadd("x", {"n": str(number)}, id=f"1-{number}")
    world.sync()
    for engine in world.engines:
        with engine.client() as operator:
            operator.hset("bs:meta:{x}", mapping={"until": "1 1000", "ended": "1 1"})
    settle(world)
    assert [entries(world[region]) for region in world] == [["1-1", "1-2"]] * 2


def test_a_stream_that_starts_again_after_the_earlier_of_two_deadlines_ends_at_the_later_one(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2, id_mode="liberal")
    world[1].xadd("x", {"n": "old"}, id="5-5")
    world[1].xgroup_create("x", "g", "0")
    world.sync()
    world[2].pexpireat("x", FAR_MS)
    world[1].pexpire("x", 50)
    earlier = world[1].pexpiretime("x")
    with world.engines[0].client() as operator:
        while now_ms(operator) <= earlier:
            pass
    world[1].xadd("x", {"n": "new"}, id="6-6")
    world.sync()
    assert [world[region].pexpiretime("x") for region in world] == [FAR_MS] * 2
    for engine in world.engines:  # so that FAR_MS is over
        with engine.client() as operator:
            operator.hset("bs:meta:{x}", "until", f"1 {earlier + 1}")
    settle(world)
    assert [world[region].exists("x") for region in world] == [0, 0]
