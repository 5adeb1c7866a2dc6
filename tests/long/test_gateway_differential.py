"""Random commands through the gateway: a region in liberal mode writes replies as the bare engine does.

By RESP2 and RESP3, one by one, in pipelines and in MULTI; types on the wire are compared too.
"""

import os

import pytest

from tests.long.test_differential import SEEDED_LENGTH, SeededDice
from tests.oracle.differential import Mismatch, Servers, Tally, compare, sequence
from tests.support.servers import Flavour

CI_COMMANDS = 1_500


def test_seeded_sequences_through_the_gateway_are_answered_as_by_the_bare_engine(flavour: Flavour) -> None:
    wanted, seed, tally = int(os.environ.get("BRAID_COMMANDS", CI_COMMANDS)), 1000, Tally()
    one = os.environ.get("BRAID_SEED")
    seed = int(one) if one else seed
    with Servers(flavour, gateway=True) as servers:
        while tally.total < wanted:
            try:
                compare(servers, sequence(SeededDice(seed), SEEDED_LENGTH), tally)
            except Mismatch as error:
                pytest.fail(f"seed {seed} (replay: BRAID_SEED={seed}): {error}", pytrace=False)
            if one:
                break
            seed += 1
    assert one or tally.total >= wanted
