"""Engines whose wall clocks step, or are apart."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from braidstream import Redis
from tests.support.daemons import all_replicating, numbered
from tests.support.regions import client_of
from tests.support.replicas import site
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 30


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_streams_go_on_when_the_clock_steps_and_the_daemon_is_killed(
    flavour: Flavour, tmp_path: Path, step_s: float
) -> None:
    """What the dead one left behind must not look alive for as long as the clock went back."""
    with (
        Engine(flavour, clock_s=0) as one,
        Engine(flavour) as two,
        all_replicating(tmp_path, numbered([one, two])) as daemons,
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
        with all_replicating(tmp_path, numbered([one, two])) as daemons:
            if event:
                for daemon in daemons:
                    eventually(lambda d=daemon: d.said(event), within_s=WITHIN_S, why="the event is logged")  # type: ignore[misc]
        told = [daemon.said("clock.skew") + daemon.said("clock.apart") for daemon in daemons]
        with one.client(decode_responses=True) as here:
            noted = here.hget("bs:config", "behind:2")
    if not event:
        assert (told, noted) == ([[], []], None)
        return
    level = "ERROR" if event == "clock.apart" else "WARNING"
    assert f" {level} {event} peer=region-2 peer_ahead_s=-" in told[0][0]
    assert f" {level} {event} peer=region-1 peer_ahead_s=+" in told[1][0]
    assert [abs(abs(float(lines[0].rpartition("=")[2])) - behind_s) < 1 for lines in told] == [True, True]
    assert (noted is not None) == (event == "clock.apart")


@pytest.mark.parametrize("clock_s", [-1, pytest.param(-10, marks=pytest.mark.nightly("In CI: a second"))])
def test_no_id_stands_for_two_entries_after_a_failover_to_a_replica_with_a_slow_clock(
    flavour: Flavour, tmp_path: Path, clock_s: float
) -> None:
    """The new primary generates the old one's last IDs again. No peer has seen those entries."""
    with ExitStack() as stack:
        home = stack.enter_context(site(flavour, clock_s=clock_s, second=True))
        peer = stack.enter_context(Engine(flavour))
        stack.enter_context(all_replicating(tmp_path, numbered([home, peer])))
        one = stack.enter_context(Redis.from_url(home.url, decode_responses=True))
        two = stack.enter_context(client_of(peer, decode_responses=True))
        kept = [one.xadd("m", {"n": f"kept {number}"}) for number in range(5)]
        eventually(lambda: two.xlen("m") == 5, within_s=WITHIN_S, why="the link should work")

        home.deafen()
        old = _write_for(1.5, one, "old")
        home.fail_over()
        new = _write_for(2, one, "new")
        one.xdel("m", kept[0])

        wanted = {**{entry: f"kept {number}" for number, entry in enumerate(kept)}, **new}
        del wanted[kept[0]]
        for client in (one, two):
            eventually(
                lambda client=client: {entry: fields["n"] for entry, fields in client.xrange("m")} == wanted,  # type: ignore[misc]
                within_s=WITHIN_S,
                why="both regions should have what was kept and what is new, and nothing of the lost tail",
            )
        assert clock_s != -1 or old.keys() & new.keys(), (
            "the clock was not slow enough to generate an ID again"
        )


def _write_for(seconds: float, client: Redis, what: str) -> dict[str, str]:
    """As many entries as possible: what was acknowledged, by ID."""
    done, end = dict[str, str](), time.monotonic() + seconds
    while time.monotonic() < end:
        values = [f"{what} {len(done) + number}" for number in range(20)]
        pipe = client.pipeline(transaction=False)
        for value in values:
            pipe.xadd("m", {"n": value})
        try:
            done |= dict(zip(pipe.execute(), values, strict=True))
        except redis.ConnectionError:
            continue
    return done
