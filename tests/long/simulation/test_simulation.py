"""Seeds 0 to 5, or as many as BRAID_SEEDS says; one of them by BRAID_SEED. `make simulate` runs 10,000."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.long.simulation.simulator import pool, simulate
from tests.support.servers import Engine

SEEDS = int(os.environ.get("BRAID_SEEDS", "6"))
# Without the gate these lose or change something.
GATELESS: Final = (7, 53)
ONE = os.environ.get("BRAID_SEED")
AT_ONCE = 3


@pytest.fixture(scope="session")
def simulated() -> Iterator[list[Engine]]:
    with pool() as engines:
        yield engines


@pytest.mark.parametrize("first", [int(ONE)] if ONE else range(0, SEEDS, AT_ONCE))
def test_regions_converge_and_nothing_is_lost_doubled_skipped_or_brought_back(
    simulated: list[Engine], first: int
) -> None:
    for seed in range(first, first + (1 if ONE else AT_ONCE)):
        outcome = simulate(seed, simulated)
        assert not outcome.trouble, f"\n{outcome}"


@pytest.mark.parametrize("first", range(0, SEEDS // 2, AT_ONCE))
def test_groups_that_give_once_skip_nothing_and_agree_on_who_gives_what(
    simulated: list[Engine], first: int
) -> None:
    """`BRAID_SCOPES=1 make simulate` runs more."""
    for seed in range(first, first + AT_ONCE):
        outcome = simulate(seed, simulated, scopes=True)
        assert not outcome.trouble, f"\n{outcome}"


@pytest.mark.parametrize("first", range(0, SEEDS // 2, AT_ONCE))
def test_deadlines_that_regions_carry_out_apart_lose_nothing_else(
    simulated: list[Engine], first: int
) -> None:
    """`BRAID_DEADLINES=1 make simulate` runs more."""
    for seed in range(first, first + AT_ONCE):
        outcome = simulate(seed, simulated, deadlines=True)
        assert not outcome.trouble, f"\n{outcome}"


@pytest.mark.parametrize("first", range(0, SEEDS // 2, AT_ONCE))
def test_entries_for_later_fire_once_and_policies_remove_nothing_that_is_needed(
    simulated: list[Engine], first: int
) -> None:
    """`BRAID_CHORES=1 make simulate` runs more."""
    for seed in range(first, first + AT_ONCE):
        outcome = simulate(seed, simulated, chores=True)
        assert not outcome.trouble, f"\n{outcome}"


def test_a_trim_holds_in_a_strand_that_was_created_for_a_group(simulated: list[Engine]) -> None:
    outcome = simulate(25, simulated, chores=True)
    assert not outcome.trouble, f"\n{outcome}"


def test_a_seed_is_a_run(simulated: list[Engine]) -> None:
    first, second = (simulate(7, simulated).history for _ in range(2))
    assert first.table() == second.table()


def test_without_the_durability_gate_the_search_finds_what_a_failover_loses(simulated: list[Engine]) -> None:
    """So that a clean search means something: in each of these seeds a lagging replica is promoted."""
    found = {seed: list(simulate(seed, simulated, gate=False).trouble) for seed in GATELESS}
    assert any(found.values()), found
    assert not any(simulate(seed, simulated).trouble for seed in found)
