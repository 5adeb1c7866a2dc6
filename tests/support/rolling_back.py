"""An engine goes back to an earlier state, as after a failover to a replica that lagged, or from a backup."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

import redis

from braidstream.model import keys
from braidstream.plan.plan import Batch, Plan
from tests.support.observed import observed
from tests.support.servers import Engine
from tests.support.world import Here, World

T = TypeVar("T")

Make = Callable[..., World]
Snapshot = dict[bytes, bytes]


def snapshot(engine: Engine) -> Snapshot:
    """All keys of an engine, as a replica has them that hears nothing from now on."""
    with redis.Redis(port=engine.port) as client:
        return {key: client.dump(key) for key in client.keys("*")}  # type: ignore[misc, union-attr]


def bring_back(engine: Engine, to: Snapshot) -> None:
    """The engine has this again, and nothing else. It counts as another process."""
    with redis.Redis(port=engine.port) as client:
        client.delete(*client.keys("*"))  # type: ignore[misc]
        for key, value in to.items():
            client.restore(key, 0, value)  # type: ignore[arg-type]
    engine.replace_process()


def roll_back(world: World, region: int, to: Snapshot) -> None:
    """The engine has this again; every link to and from it is a new one."""
    bring_back(world.engines[region - 1], to)
    meet_again(world)


def served_by(world: World, region: int, process: str) -> None:
    """What its daemon notes every few seconds."""
    engine = world.engines[region - 1]
    with engine.client() as client:
        client.execute_command("FCALL", "bs_region_alive", 1, "bs:config", process)
    engine.replace_process()


def meet_again(world: World) -> None:
    world.links = {pair: world.link(*pair) for pair in world.links}


def write(world: World, region: int, *texts: str) -> list[str]:
    return [world[region].xadd("x", {"n": text}) for text in texts]


def ids(world: World, region: int) -> list[str]:
    return [entry for entry, _ in world[region].xrange("x")]


def assert_alike(world: World, expected: list[str]) -> None:
    world.sync()
    assert {region: ids(world, region) for region in world} == {region: expected for region in world}


class Interrupted(Here):
    """Just before a function is called in this region for the first time, something happens.

    before: the function's name, or another word of the call.
    """

    def __init__(
        self, world: World, region: int, act: Callable[[], object], before: str | bytes = "bs_strand_mend"
    ) -> None:
        super().__init__(world[region])
        self.act: Callable[[], object] | None = act
        self.before = before

    async def run(self, plan: Plan[T]) -> T:
        return await super().run(observed(plan, self._interrupt))

    def _interrupt(self, batch: Batch) -> None:
        if self.act is not None and any(self.before in command for command in batch.commands):
            act, self.act = self.act, None
            thread = Thread(target=act)  # a loop runs here
            thread.start()
            thread.join()

    @property
    def happened(self) -> bool:
        return self.act is None


def lose(world: World) -> tuple[list[str], list[str], list[str]]:
    """Region 1 goes back to what it had before it wrote the second list, and writes on."""
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d", "e")
    world.sync()
    roll_back(world, 1, earlier)
    return before, lost, write(world, 1, "f")


def lose_what_one_peer_has(world: World) -> tuple[list[str], list[str]]:
    """Region 1 goes back to what it had before it wrote the second list, which only region 2 has received."""
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d", "e")
    world.ship(1, 2, "x")
    roll_back(world, 1, earlier)
    return before, lost


def delete_beyond_memory(world: World, *entries: str) -> None:
    """Region 3 deletes entries, and its journal no longer reaches back to them."""
    journal = keys.journal(b"x", 3)
    with world.engines[2].client() as client:
        for entry in entries:
            assert world[3].xdel("x", entry) == 1
            client.xtrim(journal, maxlen=1, approximate=False)
