"""A seed for each kind of loss. `make losses` runs 1,000, BRAID_SEED=n one of them."""

from collections.abc import Iterator

import pytest

from tests.long.losses.damage import KINDS
from tests.long.losses.run import lose_and_repair, three_engines
from tests.support.servers import Engine, Flavour

AT_ONCE = 5


@pytest.fixture
def three(flavour: Flavour) -> Iterator[list[Engine]]:
    with three_engines(flavour) as engines:
        yield engines


@pytest.mark.parametrize("first", range(0, len(KINDS), AT_ONCE))
def test_no_healthy_region_deletes_for_a_damaged_one_and_every_hole_is_refilled(
    three: list[Engine], first: int
) -> None:
    for seed in range(first, first + AT_ONCE):
        outcome = lose_and_repair(seed, three)
        assert not outcome.broken, f"\n{outcome.text()}"


def test_a_seed_is_a_run(three: list[Engine]) -> None:
    first, second = (lose_and_repair(8, three).history for _ in range(2))
    assert first == second
