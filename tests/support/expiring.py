"""Streams with deadlines in several regions, and the steps that their daemons would do."""

import redis

from braidstream.commands.expire import carry_out
from braidstream.plan.lookup import read_region
from braidstream.plan.view import View
from tests.support.world import World

FAR_MS = 4_102_444_800_000
MORE, WAITS = 2, 3


def due(world: World, region: int, name: str = "x") -> int:
    """What the daemon of a region does every second."""
    client = world[region]
    while True:
        done = client.run_plan(carry_out(View(client.run_plan(read_region())), name.encode()))
        if done != MORE:
            return done


def pass_time(world: World, name: str = "x") -> None:
    """Until the deadline is over, on the clock of every engine."""
    until = max(world[region].pexpiretime(name) for region in world)
    for engine in world.engines:
        with engine.client() as client:
            while now_ms(client) <= until:
                pass


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def entries(client: redis.Redis, name: str = "x") -> list[str]:
    return [entry for entry, _ in client.xrange(name)]


def settle(world: World) -> None:
    for _ in range(3):
        world.sync()
        for region in world:
            due(world, region)
    world.sync()
