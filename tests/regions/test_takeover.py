"""Automatic take-over: a region whose heartbeat stops is replaced, and gets its work back."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import braidstream
from braidstream.config import Selection
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.plan.plan import Plan
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.takeover import Takeover
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually
from tests.support.world import Here, World

WITHIN_S = 120
# On a busy machine a daemon may be late by seconds.
AFTER_S = 6
# Without daemons.
SOON_S = 0.5

T = TypeVar("T")


def owned(client: braidstream.Redis) -> list[str]:
    rows = client.xinfo_groups("orders")
    return rows[0]["owned"] if rows and "scope" in rows[0] else []


def handle(client: braidstream.Redis, seen: Counter[str]) -> int:
    """Read and acknowledge what there is."""
    found = client.xreadgroup("jobs", "ann", {"orders": ">"}, count=100) or []
    for _, entries in found:
        seen.update(fields["n"] for _, fields in entries)
        client.xack("orders", "jobs", *(entry for entry, _ in entries))
    return sum(len(entries) for _, entries in found)


def test_the_work_of_a_killed_region_is_taken_over_and_given_back(flavour: Flavour, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(3)]
        config = write_config(tmp_path / "braid.toml", numbered(engines))
        config.write_text(f"{config.read_text()}[groups]\ntakeover_after_s = {AFTER_S}\n")
        daemons = [stack.enter_context(Daemon(config, f"region-{number}")) for number in (1, 2, 3)]
        for daemon in daemons:
            daemon.tells("daemon.ready", WITHIN_S)
        one, two, three = (stack.enter_context(client_of(each, decode_responses=True)) for each in engines)
        one.execute_command("XGROUP CREATE", "orders", "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")
        sent, seen = list[str](), Counter[str]()
        for number in range(30):
            for name, client in (("1", one), ("2", two), ("3", three)):
                client.xadd("orders", {"n": f"{name}.{number}"})
                sent.append(f"{name}.{number}")
        everywhere = lambda: [client.xlen("orders") for client in (one, two, three)] == [90] * 3  # noqa: E731
        eventually(everywhere, within_s=WITHIN_S, why="all is everywhere")
        eventually(lambda: owned(three) == ["3"], within_s=WITHIN_S, why="the group is everywhere")
        [[_, in_hand]] = three.xreadgroup("jobs", "ann", {"orders": ">"}, count=10)
        three.xack("orders", "jobs", *(entry for entry, _ in in_hand[:5]))
        seen.update(fields["n"] for _, fields in in_hand[:5])
        known = lambda: "s3:0 " in str(one.hget(keys.meta(b"orders"), "k:jobs"))  # noqa: E731
        eventually(known, within_s=WITHIN_S, why="region 1 knows what was acknowledged")

        daemons[2].kill()  # the region is gone for its peers, and its server still has what was in hand
        daemons[0].tells("groups.taken_over region=3 groups=1", WITHIN_S)
        assert owned(one) == ["1", "3"]
        said = lambda: " ".join(braid("status", "--config", str(config)).stdout.split())  # noqa: E731
        line = "it delivers for region 3 in 1 group"
        eventually(lambda: line in said(), within_s=WITHIN_S, why="braid status should show it")
        while handle(one, seen) + handle(two, seen):
            pass
        assert set(seen) == set(sent), "nothing is skipped"
        assert set(seen.values()) == {1}, "what was acknowledged in time is not repeated"

        daemons[2].start()
        daemons[0].tells("groups.given_back region=3 groups=1", WITHIN_S)
        eventually(lambda: owned(three) == ["3"] and owned(one) == ["1"], within_s=WITHIN_S, why="given back")
        three.xadd("orders", {"n": "3.late"})
        eventually(lambda: handle(three, seen), within_s=WITHIN_S, why="it delivers again")
        assert seen["3.late"] == 1
        assert not handle(one, seen)


class Slow(Here):
    """An endpoint on which a take-over waits until it may go on."""

    def __init__(self, client: braidstream.Redis) -> None:
        super().__init__(client)
        self.waits, self.go_on = asyncio.Event(), asyncio.Event()

    async def run(self, plan: Plan[T]) -> T:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "act":
            self.waits.set()
            await self.go_on.wait()
        return await super().run(plan)


class Counting(Here):
    """An endpoint that counts what the engine refuses."""

    refusals = 0

    async def run(self, plan: Plan[T]) -> T:
        try:
            return await super().run(plan)
        except ReplyError:
            self.refusals += 1
            raise


def takeover_of(source: Any, *peers: Peer) -> Takeover:
    """Of region 1, in which region 2 beat once."""
    source.client.hset(keys.BEATS, "2", "1")
    return Takeover(source, lambda: peers, lambda name: True, SOON_S)


async def until(check: Callable[[], bool], *steps: Callable[[], Any]) -> None:
    """Take steps, as a daemon does, until the check succeeds."""
    async with asyncio.timeout(WITHIN_S):
        while not check():
            for step in steps:
                await step()
            await asyncio.sleep(SOON_S / 20)


def test_a_region_beats_while_it_takes_over(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    one = world[1]
    one.execute_command("XGROUP CREATE", "orders", "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")

    async def scenario() -> None:
        source = Slow(one)
        takeover = takeover_of(source)

        async def act() -> None:
            await asyncio.create_task(takeover.act(), name="act")

        acting = asyncio.create_task(until(lambda: owned(one) == ["1", "2"], act))
        await until(source.waits.is_set, takeover.look)
        before = one.hget(keys.BEATS, "1")
        await until(lambda: one.hget(keys.BEATS, "1") != before, takeover.look)
        assert owned(one) == ["1"], "the take-over has not gone on"
        source.go_on.set()
        await until(acting.done, takeover.look)

    asyncio.run(scenario())


def test_a_key_in_place_of_a_registry_stops_no_take_over(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    one = world[1]
    one.execute_command("XGROUP CREATE", "orders", "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")
    with world.engines[0].client() as bare:
        bare.set(keys.meta(b"stray"), "no hash")

    async def scenario() -> None:
        takeover = takeover_of(Here(one))
        await until(lambda: owned(one) == ["1", "2"], takeover.look, takeover.act)

    asyncio.run(scenario())


def test_a_stream_that_the_dead_region_does_not_exchange_is_not_taken_over(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    one = world[1]
    for name in ("local", "orders"):
        one.execute_command("XGROUP CREATE", name, "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")

    async def scenario() -> None:
        two = Peer(2, "region-2", Here(world[2]), selections=(Selection(exclude=("local",)),))  # type: ignore[arg-type]
        takeover = takeover_of(Here(one), two)
        await until(lambda: takeover.taken == {2: 1}, takeover.look, takeover.act)
        assert owned(one) == ["1", "2"]
        assert one.xinfo_groups("local")[0]["owned"] == ["1"]

    asyncio.run(scenario())


def test_a_smaller_region_that_does_not_exchange_a_stream_leaves_it_to_the_next(
    make_world: Callable[..., World],
) -> None:
    """Region 1 lives, but has no stream orders: nobody else would deliver what region 3 wrote there."""
    world = make_world(3)
    two = world[2]
    for name in ("orders", "everywhere"):
        two.execute_command("XGROUP CREATE", name, "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")
    beat = 1

    async def region_1_beats() -> None:
        nonlocal beat
        beat += 1
        two.hset(keys.BEATS, "1", str(beat))

    async def scenario() -> None:
        peers = [
            Peer(1, "region-1", Here(world[1]), selections=(Selection(exclude=("orders",)),)),  # type: ignore[arg-type]
            Peer(3, "region-3", Here(world[3]), selections=(Selection(),)),  # type: ignore[arg-type]
        ]
        two.hset(keys.BEATS, "3", "1")
        takeover = takeover_of(Here(two), *peers)
        steps = (region_1_beats, takeover.look, takeover.act)
        await until(lambda: takeover.taken == {3: 1}, *steps)
        assert owned(two) == ["2", "3"]
        assert two.xinfo_groups("everywhere")[0]["owned"] == ["2"]

    asyncio.run(scenario())


def test_a_give_back_that_was_refused_is_tried_again(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    one, two = world[1], world[2]
    one.execute_command("XGROUP CREATE", "orders", "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")
    one.acl_setuser("daemon", enabled=True, nopass=True, categories=["+@all"], keys=["*"])

    async def scenario() -> None:
        with client_of(world.engines[0], username="daemon", password="any") as client:
            source = Counting(client)
            takeover = takeover_of(source)
            await until(lambda: takeover.taken == {2: 1}, takeover.look, takeover.act)
            beat = 1

            async def region_2_beats() -> None:
                nonlocal beat
                beat += 1
                one.hset(keys.BEATS, "2", str(beat))

            one.acl_setuser("daemon", commands=["-unlink"])
            steps = (region_2_beats, takeover.look, takeover.act)
            await until(lambda: source.refusals > 0, *steps)
            assert takeover.taken == {2: 1}
            one.acl_setuser("daemon", commands=["+unlink"])
            await until(lambda: takeover.taken == {}, *steps)

    try:
        asyncio.run(scenario())
        world.sync()
        assert owned(two) == ["2"]
    finally:
        one.acl_deluser("daemon")


def test_streams_that_a_daemon_gets_later_are_given_back_too(make_world: Callable[..., World]) -> None:
    """Another daemon of the region was killed, and its streams come to this one."""
    world = make_world(2)
    one, held, beat = world[1], {b"orders"}, 1
    for name in ("orders", "others"):
        one.execute_command("XGROUP CREATE", name, "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")

    async def region_2_beats() -> None:
        nonlocal beat
        beat += 1
        one.hset(keys.BEATS, "2", str(beat))

    async def scenario() -> None:
        killed = takeover_of(Here(one))
        await until(lambda: killed.taken == {2: 2}, killed.look, killed.act)
        takeover = Takeover(Here(one), tuple, held.__contains__, SOON_S)  # type: ignore[arg-type]
        steps = (region_2_beats, takeover.look, takeover.act)
        before = {name: one.hget(f"bs:meta:{{{name}}}", "w:jobs") for name in ("orders", "others")}
        await until(lambda: one.hget("bs:meta:{orders}", "w:jobs") != before["orders"], *steps)
        held.add(b"others")
        takeover.missed()
        await until(lambda: one.hget("bs:meta:{others}", "w:jobs") != before["others"], *steps)

    asyncio.run(scenario())
    world.sync()
    assert [world[2].xinfo_groups(name)[0]["owned"] for name in ("orders", "others")] == [["2"], ["2"]]
