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


@pytest.mark.parametrize(("behind_s", "event"), [(0, ""), (5, "clock.skew"), (3600, "clock.apart")])
def test_clocks_that_are_apart_are_told_with_the_region_and_the_offset(
    flavour: Flavour, tmp_path: Path, behind_s: int, event: str
) -> None:
    with Engine(flavour) as one, Engine(flavour, clock_s=-behind_s) as two:
        with replicating(tmp_path, [one, two]) as daemons:
            if event:
                for daemon in daemons:
                    eventually(lambda d=daemon: d.said(event), within_s=WITHIN_S, why="it is told")  # type: ignore[misc]
        told = [daemon.said("clock.skew") + daemon.said("clock.apart") for daemon in daemons]
        with one.client(decode_responses=True) as here:
            noted = here.hget("bs:config", "behind:2")
    if not event:
        assert (told, noted) == ([[], []], None)
        return
    level = "ERROR" if event == "clock.apart" else "WARNING"
    assert f" {level} {event} peer=r2 peer_ahead_s=-" in told[0][0]
    assert f" {level} {event} peer=r1 peer_ahead_s=+" in told[1][0]
    assert [abs(abs(float(lines[0].rpartition("=")[2])) - behind_s) < 1 for lines in told] == [True, True]
    assert (noted is not None) == (event == "clock.apart")
