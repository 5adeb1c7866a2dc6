"""A link sends an entry once, also if several reasons to send it come at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from braidstream.engine.address import parse_address
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.link.link import Link
from braidstream.replication.link.pages import Pages
from tests.support.matrix import on_every_engine
from tests.support.observed import observed
from tests.support.world import World

T = TypeVar("T")
flavour = on_every_engine
EVEN, MIXED = "bs_strand_apply_even", "bs_strand_apply"
READS = {"bs_braid_look", "bs_braid_state"}
ENTRIES = 3_000


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(2)


class Target(Endpoint):
    """Counts the entries that are sent. A state that it read waits until `may_answer` is set."""

    sent = 0
    has_read: asyncio.Event
    may_answer: asyncio.Event

    async def run(self, plan: Plan[T]) -> T:
        functions = list[object]()
        reply = await super().run(observed(plan, lambda batch: functions.append(self._count(batch))))
        if READS.intersection(functions):
            self.has_read.set()
            await self.may_answer.wait()
        return reply

    def _count(self, batch: Batch) -> object:
        words = batch.commands[0]
        if words[1] in (EVEN, MIXED):
            self.sent += entries_in(words)
        return words[1]


def entries_in(call: Command) -> int:
    """How many entries a call appends."""
    at, found = 3 + int(call[2]) + 5, 0  # after the keys, and what is said about the strand
    if call[1] == EVEN:
        return int(call[at])
    while at < len(call):
        at += 2 + int(call[at + 1])  # ID, number of words, words
        found += 1
    return found


def linked(world: World, work: Callable[[Link, Target], Awaitable[object]]) -> int:
    """Run work with a new link from region 1 to 2, as a daemon has it. Returns how many entries were sent."""

    async def run() -> int:
        home = Endpoint(parse_address(world.engines[0].url))
        target = Target(parse_address(world.engines[1].url))
        target.has_read, target.may_answer = asyncio.Event(), asyncio.Event()
        target.may_answer.set()
        for end in (home, target):
            await end.connect()
        try:
            here, there = world.region(1), world.region(2)
            await work(Link(home, target, here=here, there=there, pages=Pages.of_home(home)), target)
        finally:
            for end in (home, target):
                end.close()
        return target.sent

    return asyncio.run(run())


def write(world: World, count: int = ENTRIES) -> None:
    pipe = world[1].pipeline(transaction=False)
    for number in range(count):
        pipe.xadd("m", {"n": str(number), "text": "text"})
    pipe.execute()


def arrived(world: World) -> int:
    with world.engines[1].client() as engine:
        return int(engine.xlen("bs:1:s:{m}"))


def test_entries_that_are_added_while_a_new_link_catches_up_make_it_send_nothing_twice(world: World) -> None:
    """A link came up, and compares a stream that is written to: the push for it comes during that."""
    write(world)

    async def work(link: Link, _: Target) -> None:
        await asyncio.gather(link.sync(b"m", relay=True), link.follow(b"m"))

    assert linked(world, work) == ENTRIES
    assert arrived(world) == ENTRIES


def test_what_arrives_after_the_target_was_read_is_not_sent_again(world: World) -> None:
    """The target's answer is old: other entries were sent, and arrived, before the link looks at it."""

    async def work(link: Link, target: Target) -> None:
        write(world)
        await link.sync(b"m")
        write(world)
        target.has_read.clear()
        target.may_answer.clear()
        comparison = asyncio.ensure_future(link.sync(b"m"))
        await target.has_read.wait()
        await link.follow(b"m")
        while arrived(world) < 2 * ENTRIES:
            await asyncio.sleep(0.01)
        target.may_answer.set()
        await comparison

    assert linked(world, work) == 2 * ENTRIES
    assert arrived(world) == 2 * ENTRIES


def test_what_another_link_has_brought_is_not_sent_again(world: World) -> None:
    async def work(link: Link, _: Target) -> None:
        write(world, 10)
        await link.sync(b"m")
        write(world, 10)
        await asyncio.to_thread(world.ship, 1, 2, "m")
        assert (await link.sync(b"m")).entries == 0

    assert linked(world, work) == 10
    assert arrived(world) == 20


def test_entries_that_are_added_while_a_new_link_finds_nothing_to_send_are_sent(world: World) -> None:
    """Nothing else says that they are there: the push for them has come."""
    write(world, 10)
    world.sync()

    async def work(link: Link, target: Target) -> None:
        target.may_answer.clear()
        comparison = asyncio.ensure_future(link.sync(b"m"))
        await target.has_read.wait()
        write(world, 10)
        follower = asyncio.ensure_future(link.follow(b"m"))
        await asyncio.sleep(0)
        target.may_answer.set()
        await asyncio.gather(comparison, follower)

    assert linked(world, work) == 10
    assert arrived(world) == 20
