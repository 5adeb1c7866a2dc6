"""Which engines a test runs on. A module that wants all of them, not only the oldest and newest, says

flavour = on_every_engine

and one for which the newest of each family is enough: on_the_newest.
"""

import os

import pytest

from tests.support.servers import EVERY, FLAVOURS, NEWEST, PROGRAMS, Flavour


def installed(flavour: Flavour) -> Flavour:
    """The flavour, unless a Debian suite no longer has it."""
    if not (PROGRAMS / f"{flavour}-server").exists():
        pytest.skip(f"{flavour} is not installed: scripts/engines.sh could not get it")
    return flavour


@pytest.fixture(params=FLAVOURS if "BRAID_ENGINE" in os.environ else EVERY)
def on_every_engine(request: pytest.FixtureRequest) -> Flavour:
    return installed(request.param)


@pytest.fixture(params=NEWEST)
def on_the_newest(request: pytest.FixtureRequest) -> Flavour:
    return installed(request.param)
