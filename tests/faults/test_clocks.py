"""Engines whose wall clocks step, or are apart."""

from pathlib import Path

import pytest

from tests.support.regions import client_of
from tests.support.replicating import replicating
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 30


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_streams_go_on_when_the_clock_steps_and_the_daemon_is_killed(
    flavour: Flavour, tmp_path: Path, step_s: float
) -> None:
    """What the dead one left behind must not look alive for as long as the clock went back."""
    with (
        Engine(flavour, clock_s=0) as one,
        Engine(flavour) as two,
        replicating(tmp_path, [one, two]) as daemons,
        client_of(one) as here,
        client_of(two) as there,
    ):
        names = [f"stream-{number}" for number in range(64)]
        daemons[0].kill()
        one.set_clock(step_s)
        daemons[0].start()
        for name in names:
            here.xadd(name, {"n": "1"})
        eventually(
            lambda: [name for name in names if not there.exists(name)] == [],
            within_s=WITHIN_S,
            why="every stream should be replicated",
        )
