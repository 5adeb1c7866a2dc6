"""Jobs of a daemon share what is read of the registries."""

import asyncio
from collections.abc import Callable

import pytest

from braidstream.engine.address import parse_address
from braidstream.replication.deadlines import Deadlines
from braidstream.replication.detect import sweep
from braidstream.replication.detect.sweep import Changes
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.gate import Gate
from braidstream.replication.log_homes import LogRescue
from tests.support.world import World

STREAMS = 3
FIELDS = 3  # the deadline, the fence, the homes of a log


def test_two_jobs_read_the_registries_of_a_region_once(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    for number in range(STREAMS):
        world[1].xadd(f"stream-{number}", {"n": "1"})

    async def look() -> None:
        source = Endpoint(parse_address(world.engines[0].url))
        gate = Gate(source)
        await source.connect()
        changes = Changes(source)
        deadlines = Deadlines(source, changes, lambda _: True)
        rescue = LogRescue(source, changes, gate, lambda: (), lambda _: True)
        await asyncio.gather(deadlines.look(), rescue.look())
        changes.add(b"stream-0")
        await asyncio.gather(deadlines.look(), rescue.look())
        gate.close()
        source.close()

    with world.engines[0].client() as engine:
        engine.config_resetstat()
        asyncio.run(look())
        found = engine.info("commandstats")
    calls = {name: found[f"cmdstat_{name}"]["calls"] for name in ("scan", "hget")}
    assert calls == {"scan": 1, "hget": (STREAMS + 1) * FIELDS}


def test_all_registries_are_read_again_at_a_pace_or_at_once_if_changes_were_missed(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_ALL_EVERY_S", 0.0)
    monkeypatch.setattr(sweep, "_RATE", 0.001)
    world = make_world(1)
    for number in range(STREAMS):
        world[1].xadd(f"stream-{number}", {"n": "1"})
    reads = list[int]()

    async def look() -> None:
        source = Endpoint(parse_address(world.engines[0].url))
        await source.connect()
        changes = Changes(source)
        deadlines = Deadlines(source, changes, lambda _: True)
        for missed in (False, False, False, True):
            if missed:
                changes.missed()
            await deadlines.look()
            reads.append(engine.info("commandstats")["cmdstat_hget"]["calls"])
        source.close()

    with world.engines[0].client() as engine:
        engine.config_resetstat()
        asyncio.run(look())
    once = STREAMS * (FIELDS - 1)  # the homes of a log are another job
    assert reads == [once, 2 * once, 2 * once, 3 * once]


def test_a_value_that_is_no_deadline_stops_no_other(make_world: Callable[..., World]) -> None:
    """Written with a bare client: merges refuse it."""
    world = make_world(2)
    for name in ("x", "y"):
        world[1].xadd(name, {"n": "1"})
        world[1].xgroup_create(name, "g", 0)
    world[1].pexpire("y", 1)

    async def look() -> None:
        source = Endpoint(parse_address(world.engines[0].url))
        await source.connect()
        deadlines = Deadlines(source, Changes(source), lambda _: True)
        async with asyncio.timeout(30):
            while world[1].exists("y"):
                await deadlines.look()
        source.close()

    with world.engines[0].client() as operator:
        operator.hset("bs:meta:{x}", "until", "1 x")
        asyncio.run(look())
        assert operator.xlen("bs:1:s:{x}") == 1
