"""A short soak: real engines and daemons under every kind of fault. `make soak` is the long one."""

from pathlib import Path

import pytest

from tests.long.soak.faults import KINDS
from tests.long.soak.run import soak
from tests.support.servers import Flavour

SECONDS = 36.0
# Seeds whose schedule has every kind of fault within the time.
SEEDS: dict[Flavour, int] = {"redis-7.0": 48, "redis-8.10": 23, "valkey-8.0": 27, "valkey-9.1": 0}


@pytest.mark.timeout(300)
def test_nothing_is_lost_doubled_or_skipped_while_everything_fails_now_and_then(
    flavour: Flavour, tmp_path: Path
) -> None:
    outcome = soak(flavour, tmp_path, seconds=SECONDS, seed=SEEDS[flavour])
    assert outcome.anomalies == []
    assert set(outcome.faults) == set(KINDS)
    assert min(outcome.facts["entries acknowledged"], outcome.facts["delivered to consumers"]) > 100
