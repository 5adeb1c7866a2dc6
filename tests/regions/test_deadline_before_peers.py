"""A deadline that was set before the region got peers: at that time, the region deletes what it wrote."""

from collections.abc import Callable
from dataclasses import replace

import redis

from braidstream.commands.expire import expire_at
from braidstream.plan.view import View
from tests.support.waiting import eventually
from tests.support.world import World

SOON_MS = 1500


def test_the_deadline_deletes_what_its_region_wrote_in_all_regions(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    world[1].xadd("x", {"n": "1"})
    alone = View(replace(world.region(1), writers=(1,)))
    seconds, micros = world[1].time()
    world[1].run_plan(expire_at(alone, b"x", seconds * 1000 + micros // 1000 + SOON_MS))
    theirs = world[2].xadd("x", {"n": "2"})
    world[1].xgroup_create("x", "g", 0)
    world.sync()
    options = world[1].connection_pool.connection_kwargs
    with redis.Redis(host=options["host"], port=options["port"]) as operator:
        eventually(lambda: not operator.exists("bs:1:s:{x}"), within_s=30, why="the strand should expire")
    world.sync()
    for region in world:
        assert [entry for entry, _ in world[region].xrange("x")] == [theirs]
        assert world[region].ttl("x") == -1
    added = world[1].xadd("x", {"n": "3"})
    world.sync()
    for region in world:
        assert {entry for entry, _ in world[region].xrange("x")} == {theirs, added}
