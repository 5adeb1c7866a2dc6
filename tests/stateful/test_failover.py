"""Producers that change regions at any moment: each message stands once in every region, by its smallest ID.

`make failover` plays many seeds; CI a few. A seed decides all: who sends what where, which links move when,
which region is cut off, and when replies are lost (then the same message is sent again, there or elsewhere).
"""

import os
import random
from collections.abc import Iterator

import pytest

from tests.support.servers import Engine, Flavour
from tests.support.world import World

SEEDS = int(os.environ.get("BRAID_SEEDS", "20"))
REGIONS = 3
STEPS = 40


class Producer:
    """Sends numbered messages, now here and now there; one whose reply was lost it sends again, later."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name, self.dice = name, dice
        self.sent, self.doubtful = 0, list[int]()
        self.region = dice.randrange(REGIONS) + 1

    def send(self, world: World, accepted: dict[str, set[str]]) -> None:
        if self.dice.random() < 0.2:
            self.region = self.dice.randrange(REGIONS) + 1
        again = self.doubtful and self.dice.random() < 0.6
        number = self.doubtful.pop(0) if again else self.sent
        self.sent += not again
        body = f"{self.name}-{number}"
        client = world[self.region]
        if self.name.startswith("auto"):
            entry = client.xadd("s", {"n": body}, idmpauto=self.name)
        else:
            entry = client.xadd("s", {"n": body}, idmp=(self.name, b"%d" % number))
        accepted.setdefault(body, set()).add(entry)
        if self.dice.random() < 0.4:  # its reply is lost
            self.doubtful.append(number)

    def settle(self, world: World, accepted: dict[str, set[str]]) -> None:
        while self.doubtful:
            self.send(world, accepted)


@pytest.fixture(scope="module")
def engines_of() -> Iterator[dict[Flavour, list[Engine]]]:
    started: dict[Flavour, list[Engine]] = {}
    yield started
    for engines in started.values():
        for engine in engines:
            engine.stop()


def order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_message_stands_once_in_every_region(
    flavour: Flavour, engines_of: dict[Flavour, list[Engine]], seed: int
) -> None:
    dice = random.Random(seed)
    if flavour not in engines_of:
        engines_of[flavour] = [Engine(flavour).start() for _ in range(REGIONS)]
    for engine in engines_of[flavour]:
        engine.flush()
    world = World(engines_of[flavour])
    try:
        producers = [Producer(name, dice) for name in ("p", "q", "auto")]
        accepted: dict[str, set[str]] = {}
        pairs = list(world.links)
        alone = 0
        for _ in range(STEPS):
            what = dice.random()
            if what < 0.05:  # a region is cut off, another comes back; links start with no memory
                alone = dice.randrange(REGIONS + 1)
                world.links = {pair: world.link(*pair) for pair in pairs}
            elif what < 0.35:
                open_ = [pair for pair in pairs if alone not in pair]
                world.ship(*dice.choice(open_), "s", relay=dice.random() < 0.3)
            else:
                dice.choice(producers).send(world, accepted)
        for producer in producers:
            producer.settle(world, accepted)
        world.sync()
        found = [world[region].xrange("s") for region in world]
        wanted = {(min(entries, key=order), body) for body, entries in accepted.items()}
        for region, entries in enumerate(found, 1):
            seen = {(entry, fields["n"]) for entry, fields in entries}
            assert seen == wanted, f"region {region}, seed {seed}"
            assert len(entries) == len(wanted)
        assert found[0] == found[1] == found[2]
    finally:
        world.close()
