"""`make cluster-soak`: one engine after the other; ends with 1 if there was an anomaly."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.long.cluster_soak.run import cluster_soak
from tests.long.soak.run import tell
from tests.support.servers import FLAVOURS


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.long.cluster_soak", description=__doc__)
    words.add_argument("--seconds", type=float, default=1800.0, help="traffic on each engine")
    words.add_argument("--engine", choices=FLAVOURS, action="append", help="only this one")
    words.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), help="which slots and primaries"
    )
    given = words.parse_args()
    found = 0
    for flavour in given.engine or FLAVOURS:
        folder = Path(tempfile.mkdtemp(prefix="braid-cluster-soak-"))
        outcome = cluster_soak(flavour, folder, seconds=given.seconds, seed=given.seed)
        tell(outcome, flavour, given.seed)
        found += len(outcome.anomalies)
    return 1 if found else 0


sys.exit(main())
