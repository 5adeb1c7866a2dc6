"""Tables of AA (docs/design/requirements.md), typed into redis-cli at the gateways of `braid up`."""

from collections.abc import Callable, Iterator

import pytest

from tests.regions import test_active_active as tables
from tests.support.servers import Flavour
from tests.support.typist import SHOWN, show
from tests.support.up import braid_up
from tests.support.up_world import UpWorld

pytestmark = pytest.mark.long

# In this order: a stream with IDs of now cannot go back to millisecond 110.
PLAYED: list[Callable[..., None]] = [
    tables.test_groups_travel_and_consumers_stay,
    tables.test_a_stream_written_in_two_regions_becomes_the_same_in_both,
    tables.test_a_deletion_takes_only_what_its_region_had_seen,
    tables.test_xread_with_one_id_skips_what_arrives_late,
    tables.test_groups_created_apart_are_in_both_regions,
    tables.test_a_deletion_wins_over_a_group_it_had_not_seen,
]
CHOSEN: list[Callable[..., None]] = [
    tables.test_an_acknowledgement_travels_once_all_before_it_are_acknowledged,
    tables.test_liberal_mode_makes_milliseconds_sequence_zero,
]


@pytest.fixture(scope="module", params=["strict", "liberal"])
def world(request: pytest.FixtureRequest) -> Iterator[tuple[str, UpWorld]]:
    flavour: Flavour = "redis-8.10" if request.param == "strict" else "valkey-9.1"
    with braid_up(2, flavour, "--id-mode", request.param) as up:
        made = UpWorld(up)
        try:
            yield request.param, made
        finally:
            made.close()


def test_the_conflict_tables_hold_with_real_daemons(world: tuple[str, UpWorld]) -> None:
    mode, regions = world
    for table in PLAYED if mode == "strict" else CHOSEN:
        if SHOWN:
            show(f"\n== {table.__name__.removeprefix('test_').replace('_', ' ')} (braid up, {mode}) ==\n")
        regions.flush()
        table(lambda number, id_mode=mode: regions)
