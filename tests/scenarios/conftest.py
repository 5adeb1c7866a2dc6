"""Worlds of several regions for scenarios."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.servers import Engine, Flavour
from tests.support.world import World


@pytest.fixture(scope="session")
def region_engines() -> Iterator[dict[tuple[Flavour, int], Engine]]:
    started: dict[tuple[Flavour, int], Engine] = {}
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture
def make_world(
    flavour: Flavour, region_engines: dict[tuple[Flavour, int], Engine]
) -> Iterator[Callable[..., World]]:
    """make_world(3, id_mode="liberal"): three empty regions."""
    made: list[World] = []

    def make(regions: int, id_mode: str = "strict") -> World:
        engines = []
        for number in range(regions):
            if (flavour, number) not in region_engines:
                region_engines[flavour, number] = Engine(flavour).start()
            engines.append(region_engines[flavour, number])
            engines[-1].flush()
        made.append(World(engines, id_mode))
        return made[-1]

    yield make
    for world in made:
        world.close()
