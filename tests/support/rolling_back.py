"""An engine goes back to an earlier state, as after a failover to a replica that lagged, or from a backup."""

from collections.abc import Callable

import redis

from tests.support.servers import Engine
from tests.support.world import World

Make = Callable[..., World]
Snapshot = dict[bytes, bytes]


def snapshot(engine: Engine) -> Snapshot:
    """All keys of an engine, as a replica has them that hears nothing from now on."""
    with redis.Redis(port=engine.port) as client:
        return {key: client.dump(key) for key in client.keys("*")}  # type: ignore[misc, union-attr]


def roll_back(world: World, region: int, to: Snapshot) -> None:
    """The engine has this again; every link to and from it is a new one."""
    with redis.Redis(port=world.engines[region - 1].port) as client:
        client.delete(*client.keys("*"))  # type: ignore[misc]
        for key, value in to.items():
            client.restore(key, 0, value)  # type: ignore[arg-type]
    meet_again(world)


def served_by(world: World, region: int, process: str) -> None:
    """What its daemon notes every few seconds."""
    with world.engines[region - 1].client() as client:
        client.execute_command("FCALL", "bs_region_alive", 1, "bs:config", process)


def meet_again(world: World) -> None:
    world.links = {pair: world.link(*pair) for pair in world.links}


def write(world: World, region: int, *texts: str) -> list[str]:
    return [world[region].xadd("x", {"n": text}) for text in texts]


def ids(world: World, region: int) -> list[str]:
    return [entry for entry, _ in world[region].xrange("x")]


def assert_alike(world: World, expected: list[str]) -> None:
    world.sync()
    assert {region: ids(world, region) for region in world} == {region: expected for region in world}
