"""Random commands: a region answers as the bare engine does.

    BRAID_COMMANDS   how many commands the seeded test compares on each engine (make differential: 1,000,000)
    BRAID_SEED       replay the one sequence of this seed

`tests/oracle/differential` says what is compared and what must differ.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.oracle.differential import Mismatch, Script, Servers, Tally, compare, sequence
from tests.support.servers import Flavour
from tests.support.thinning import NIGHTLY

CI_COMMANDS = 4_000 if NIGHTLY else 2_000
SEEDED_LENGTH = 200
DRAWN_LENGTH = 100
# Hypothesis takes four times as long as a seeded die.
DRAWN_COMMANDS = 2_500 if NIGHTLY else 1_000
REPORT_EVERY_S = 30
# A million commands take as long as they take.
pytestmark = pytest.mark.timeout(0 if "BRAID_COMMANDS" in os.environ else 600)
# Worthless if most of what is compared is refused on both sides.
MOST_ERRORS = 0.4


class SeededDice:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        return int(self._random.random() * n)


class DrawnDice:
    """Hypothesis throws."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def below(self, n: int) -> int:
        found: int = self._draw(_up_to(n))
        return found


_STRATEGIES: dict[int, st.SearchStrategy[int]] = {}


def _up_to(n: int) -> st.SearchStrategy[int]:
    if n not in _STRATEGIES:
        _STRATEGIES[n] = st.integers(0, n - 1)
    return _STRATEGIES[n]


@st.composite
def sequences(draw: Any) -> Script:
    return sequence(DrawnDice(draw), DRAWN_LENGTH)


@pytest.fixture
def servers(flavour: Flavour) -> Iterator[Servers]:
    with Servers(flavour) as both:
        yield both


def say(text: str) -> None:
    """Print past pytest and xdist: a run of a million commands is long."""
    print(text, file=sys.__stderr__, flush=True)


def report(test: str, servers: Servers, tally: Tally) -> None:
    say(f"\ndifferential, {test}, {servers.flavour}: {tally.summary()}")
    assert tally.error_share < MOST_ERRORS, "too many replies are errors to mean anything"


def test_drawn_sequences_get_the_bare_engines_replies(servers: Servers) -> None:
    tally = Tally()

    @settings(
        max_examples=DRAWN_COMMANDS * 3 // 2 // DRAWN_LENGTH,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences())
    def run(spec: Script) -> None:
        compare(servers, spec, tally)

    run()
    report("hypothesis", servers, tally)
    assert tally.total >= DRAWN_COMMANDS


@pytest.mark.every_engine
def test_seeded_sequences_get_the_bare_engines_replies(servers: Servers) -> None:
    wanted = int(os.environ.get("BRAID_COMMANDS", CI_COMMANDS))
    first = random.SystemRandom().randrange(10**9) if "BRAID_COMMANDS" in os.environ else 1
    one = os.environ.get("BRAID_SEED")
    seed = int(one) if one else first
    tally, told = Tally(), time.monotonic()
    say(f"\ndifferential, seeded, {servers.flavour}: first seed {seed}")
    while tally.total < wanted:
        spec, failure = sequence(SeededDice(seed), SEEDED_LENGTH), ""
        try:
            compare(servers, spec, tally)
        except Mismatch as error:
            failure = f"seed {seed} (replay: BRAID_SEED={seed}): {error}"
        if failure:
            pytest.fail(failure, pytrace=False)
        if one:
            return
        seed += 1
        if time.monotonic() - told > REPORT_EVERY_S:
            told = time.monotonic()
            say(f"differential, seeded, {servers.flavour}: {tally.total:,} of {wanted:,}")
    report("seeded", servers, tally)
