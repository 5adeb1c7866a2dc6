"""Acknowledgements on quiet streams reach the links soon, and nothing is asked while nothing is pending."""

import asyncio
from collections.abc import Callable

import pytest

from braidstream.engine.address import parse_address
from braidstream.model.strand import Strand
from braidstream.replication.daemon.daemon import Daemon
from braidstream.replication.detect.acks import AckWatch
from braidstream.replication.detect.sweep import SWEEP_S
from tests.support.servers import Engine, Flavour
from tests.support.world import World, fresh_world

NAME = b"orders"
WITHIN_S = 30


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    made = make_world(1)
    made[1].xgroup_create("orders", "jobs", "0", mkstream=True)
    made[1].xadd("orders", {"n": "1"})
    return made


async def looks(watch: AckWatch, reported: list[bytes]) -> list[bytes]:
    """What one look reports."""
    reported.clear()
    await watch.look()
    return [*reported]


def test_an_acknowledgement_is_reported_once_and_a_busy_link_hears_of_it_again(world: World) -> None:
    one, reported, has_time = world[1], list[bytes](), True
    [[_, [(entry, _)]]] = one.xreadgroup("jobs", "ann", {"orders": ">"})

    def report(name: bytes) -> bool:
        reported.append(name)
        return has_time

    async def run() -> None:
        nonlocal has_time
        watch = AckWatch(world.endpoints[1], report)
        watch.add([Strand(NAME, "s", 1)])
        assert await looks(watch, reported) == [NAME], "an ack may have come before the first look"
        assert await looks(watch, reported) == []
        one.xack("orders", "jobs", entry)
        has_time = False
        assert await looks(watch, reported) == [NAME]
        has_time = True
        assert await looks(watch, reported) == [NAME], "the link had no time for it"
        assert await looks(watch, reported) == []

    asyncio.run(run())


def test_nothing_is_asked_while_no_stream_has_unread_or_pending_entries(world: World) -> None:
    one = world[1]

    async def run() -> None:
        watch = AckWatch(world.endpoints[1], lambda name: True)
        watch.add([Strand(NAME, "s", 1), Strand(b"no-groups", "s", 1)])
        await watch.look()
        watch.discard(NAME, watch.added)
        before = one.info("commandstats")["cmdstat_info"]["calls"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.look(), 0.5)
        assert one.info("commandstats")["cmdstat_info"]["calls"] == before + 1  # ours

    asyncio.run(run())


def test_a_round_that_began_before_an_entry_arrived_does_not_end_the_watch(world: World) -> None:
    async def run() -> None:
        reported = list[bytes]()
        watch = AckWatch(world.endpoints[1], lambda name: not reported.append(name))  # type: ignore[func-returns-value]
        began = watch.added
        watch.add([Strand(NAME, "s", 1)])
        watch.discard(NAME, began)
        assert await looks(watch, reported) == [NAME]

    asyncio.run(run())


def test_what_a_region_acknowledges_of_another_regions_entries_does_not_wait_for_a_sweep(
    flavour: Flavour,
) -> None:
    async def until(reached: Callable[[], object]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not reached():
                await asyncio.sleep(0.01)

    async def acknowledge(engines: dict[int, Engine], world: World) -> None:
        places = {number: parse_address(engine.url) for number, engine in engines.items()}
        daemons = {number: Daemon(place) for number, place in places.items()}
        running = asyncio.gather(*(daemon.run() for daemon in daemons.values()))
        try:
            for number, daemon in daemons.items():
                others = {f"region-{each}": (each, places[each]) for each in places if each != number}
                daemon.set_peers(others)
                await asyncio.wait_for(daemon.ready.wait(), WITHIN_S)
            one, two = world[1], world[2]
            one.xgroup_create("orders", "jobs", "0")
            await until(lambda: two.exists("orders") and two.xinfo_groups("orders"))
            for _ in range(2):  # a sweep comes every 30 s: it cannot bring both
                entry = one.xadd("orders", {"n": "1"})
                await until(lambda: two.xreadgroup("jobs", "bob", {"orders": ">"}))
                two.xack("orders", "jobs", entry)
                async with asyncio.timeout(SWEEP_S / 2):
                    await until(lambda: one.xinfo_groups("orders")[0]["last-delivered-id"] == entry)  # noqa: B023
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with Engine(flavour) as one, Engine(flavour) as two, fresh_world([one, two]) as world:
        asyncio.run(acknowledge({1: one, 2: two}, world))
