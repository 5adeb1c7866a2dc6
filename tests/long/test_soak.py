"""A short soak: real engines and daemons under every kind of fault. `make soak` is the long one."""

from pathlib import Path

import pytest

from tests.long.soak.faults import KINDS
from tests.long.soak.run import soak
from tests.support.servers import Flavour

SECONDS = 40.0
SEED = 23  # its schedule has every kind of fault within the time


@pytest.mark.timeout(300)
def test_nothing_is_lost_doubled_or_skipped_while_everything_fails_now_and_then(
    flavour: Flavour, tmp_path: Path
) -> None:
    outcome = soak(flavour, tmp_path, seconds=SECONDS, seed=SEED)
    assert outcome.anomalies == []
    assert set(outcome.faults) == set(KINDS)
    assert min(outcome.facts["entries acknowledged"], outcome.facts["delivered to consumers"]) > 100
