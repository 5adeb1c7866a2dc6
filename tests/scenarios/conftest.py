"""Worlds of several regions for scenarios."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.servers import Flavour
from tests.support.world import Pool, World, pooled


@pytest.fixture(scope="session")
def region_engines() -> Iterator[Pool]:
    started: Pool = {}
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture
def make_world(flavour: Flavour, region_engines: Pool) -> Iterator[Callable[..., World]]:
    """make_world(3, id_mode="liberal"): three empty regions."""
    made: list[World] = []

    def make(regions: int, id_mode: str = "strict") -> World:
        made.append(World(pooled(region_engines, flavour, regions), id_mode))
        return made[-1]

    yield make
    for world in made:
        world.close()
