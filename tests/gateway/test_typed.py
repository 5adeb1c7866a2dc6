"""The tables of AA and the sessions of GR (docs/design/requirements.md), typed into redis-cli at gateways.

`make demo` shows the tables as they are played. The tests are those of the files they are imported from; only
who they talk to is another.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.client.test_guide_groups import *  # noqa: F403
from tests.client.test_guide_groups import Cli
from tests.regions.test_active_active import *  # noqa: F403
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.typist import SHOWN, TypedWorld, Typist, show
from tests.support.world import Pool, pooled

# One engine here: the other is compared by tests/long/test_gateway_differential.py.
FLAVOUR: Flavour = "redis-7.0"


def tell(request: pytest.FixtureRequest, how: str) -> None:
    if SHOWN:
        title = request.node.originalname.removeprefix("test_").replace("_", " ")
        show(f"\n== {title} ({how}) ==\n")


@pytest.fixture
def flavour() -> Flavour:
    return FLAVOUR


@pytest.fixture
def make_world(region_engines: Pool, request: pytest.FixtureRequest) -> Iterator[Callable[..., TypedWorld]]:
    made: list[TypedWorld] = []

    def make(regions: int, id_mode: str = "strict") -> TypedWorld:
        tell(request, f"{regions} regions, {id_mode} IDs")
        made.append(TypedWorld(pooled(region_engines, FLAVOUR, regions), id_mode))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture(params=["one strand", "three strands"])
def cli(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Cli]:
    spread = request.param == "three strands"
    become(engine, id_mode="semi-strict" if spread else "strict")
    tell(request, request.param)
    with client_of(engine, decode_responses=True, protocol=2) as client:
        typist = Typist(engine, client, "guide")
        yield Cli(typist, spread=spread)  # type: ignore[arg-type]
        typist.close()
