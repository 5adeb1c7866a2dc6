"""Every engine function with hostile words and a hostile registry. Long: make fuzz-functions."""

import os

from tests.long.fuzz_functions import MEMORY_BYTES, PEER_US, REPLY_BYTES, fuzz
from tests.support.servers import Flavour
from tests.support.world import Pool, pooled

CALLS = int(os.environ.get("BRAID_CALLS", "1500"))
SEED = int(os.environ.get("BRAID_SEED", "1"))


def test_no_hostile_call_keeps_an_engine_busy(flavour: Flavour, region_engines: Pool) -> None:
    found = fuzz(pooled(region_engines, flavour, 2), CALLS, SEED)
    print(found)
    assert found.too_slow == []
    assert found.peer_us < PEER_US
    assert found.reply_bytes < REPLY_BYTES
    assert found.memory_bytes < MEMORY_BYTES
