"""A short soak of clusters: slots move and primaries are killed. `make cluster-soak` is the long one."""

from pathlib import Path

import pytest

from tests.long.cluster_soak.regions import KEY_BY_KEY, KILLED
from tests.long.cluster_soak.run import cluster_soak
from tests.support.servers import Flavour


@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_or_skipped_while_slots_move_and_primaries_die(
    flavour: Flavour, tmp_path: Path
) -> None:
    outcome = cluster_soak(flavour, tmp_path, seconds=10, seed=1)
    assert outcome.anomalies == []
    assert {KILLED, KEY_BY_KEY} <= set(outcome.faults)
    assert min(outcome.facts["entries acknowledged"], outcome.facts["delivered to consumers"]) > 100
