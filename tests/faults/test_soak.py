"""A short soak: real engines and daemons under nearly every kind of fault. `make soak` is the long one."""

from pathlib import Path

import pytest

from tests.faults.soak.faults import KINDS
from tests.faults.soak.run import soak
from tests.support.servers import Flavour

# After these two, deletions of that moment may stay undone in one region (docs/design/guarantees.md), so only
# `make soak` has them.
IN_CI = tuple(kind for kind in KINDS if kind not in ("backup restored", "engine emptied"))
SECONDS = 24.0
# Seeds whose schedule has every kind of fault within the time.
SEEDS: dict[Flavour, int] = {"redis-7.0": 3, "redis-8.10": 1, "valkey-8.0": 10, "valkey-9.1": 4}


@pytest.mark.timeout(300)
def test_nothing_is_lost_doubled_or_skipped_while_everything_fails_now_and_then(
    flavour: Flavour, tmp_path: Path
) -> None:
    outcome = soak(flavour, tmp_path, seconds=SECONDS, seed=SEEDS[flavour], kinds=IN_CI)
    assert outcome.anomalies == []
    assert set(outcome.faults) == set(IN_CI)
    assert min(outcome.facts["entries acknowledged"], outcome.facts["delivered to consumers"]) > 100
