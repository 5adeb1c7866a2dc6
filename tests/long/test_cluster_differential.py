"""Random commands through `braidstream.RedisCluster`: a cluster answers as one bare engine does.

BRAID_COMMANDS   how many commands (make cluster-differential: 300,000)
BRAID_FIRST      the first seed, to go on after one that failed
BRAID_SEED       replay the one sequence of this seed
"""

import os

import pytest

from tests.long.test_differential import SEEDED_LENGTH, SeededDice, report
from tests.oracle.differential import Mismatch, Tally, compare, sequence
from tests.oracle.differential.cluster_side import ClusterServers, for_cluster
from tests.support.servers import Flavour

CI_COMMANDS = 1_000
pytestmark = pytest.mark.timeout(0 if "BRAID_COMMANDS" in os.environ else 600)


def test_seeded_sequences_on_a_cluster_get_the_bare_engines_replies(flavour: Flavour) -> None:
    wanted, one, tally = (
        int(os.environ.get("BRAID_COMMANDS", CI_COMMANDS)),
        os.environ.get("BRAID_SEED"),
        Tally(),
    )
    seed = int(one or os.environ.get("BRAID_FIRST", 5000))
    with ClusterServers(flavour) as servers:
        while tally.total < wanted:
            script = for_cluster(sequence(SeededDice(seed), SEEDED_LENGTH), spread=seed % 2 == 1)
            try:
                compare(servers, script, tally)
            except Mismatch as error:
                pytest.fail(
                    f"seed {seed} after {tally.total:,} commands (replay: BRAID_SEED={seed}): {error}",
                    pytrace=False,
                )
            if one:
                break
            seed += 1
        report("cluster", servers, tally)
