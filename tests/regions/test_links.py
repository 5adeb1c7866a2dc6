"""Links stepped by hand through moments that are hard to meet: full journals, full memory."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar

import pytest

import braidstream
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.strand import Strand, facts
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.link.batches import WIDEST
from braidstream.replication.link.flow import Flow, Window
from braidstream.replication.link.link import Link
from braidstream.replication.link.pages import Pages
from tests.support.world import Here, World

pytestmark = pytest.mark.long

T = TypeVar("T")

# journal.lua keeps 10,000; MAXLEN ~ leaves up to a node of 100 more.
OVERFLOW = 10_200


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(3)


def add_many(world: World, region: int) -> list[str]:
    found = list[str]()
    for _ in range(0, OVERFLOW, 600):
        pipeline = world[region].pipeline(transaction=False)
        for number in range(600):
            pipeline.xadd("m", {"n": str(number)})
        found += pipeline.execute()
    return found


def overflow_journal(world: World, region: int, entries: list[str]) -> None:
    """Delete one entry after another: each is one entry of the region's journal."""
    for start in range(0, len(entries), 500):
        pipeline = world[region].pipeline(transaction=False)
        for each in entries[start : start + 500]:
            pipeline.xdel("m", each)
        pipeline.execute()


def texts(world: World) -> list[list[str]]:
    return [[fields["n"] for _, fields in world[number].xrange("m")] for number in world]


def test_an_entry_that_arrives_after_a_comparison_with_its_deleter_is_deleted(world: World) -> None:
    """Region 1 deletes region 3's entry before region 2 has it, and its journal forgets that."""
    world[3].xadd("m", {"n": "stays"})
    entry = world[3].xadd("m", {"n": "goes"})
    world.sync(among=[1, 3])
    world[1].xdel("m", entry)
    overflow_journal(world, 1, add_many(world, 1))
    world.ship(1, 2, "m")  # too far behind for the journal: compared instead
    world.ship(3, 2, "m")  # region 3 has not heard of the deletion
    world.sync()
    assert texts(world) == [["stays"]] * 3


class Between(Here):
    """An endpoint where something happens before the nth plan runs."""

    def __init__(self, here: Here, nth: int, act: Callable[[], None]) -> None:
        super().__init__(here.client)
        self.left, self.act = nth, act

    async def run(self, plan: Plan[T]) -> T:
        self.left -= 1
        if self.left == 0:
            self.act()
        return await super().run(plan)


def test_a_journal_that_overflows_while_a_link_works_loses_no_deletion(world: World) -> None:
    world[1].xadd("m", {"n": "stays"})
    entry = world[1].xadd("m", {"n": "goes"})
    others = add_many(world, 1)
    world.sync()
    world[1].xdel("m", entry)
    source = Between(world.endpoints[1], 2, lambda: overflow_journal(world, 1, others))
    link = Link(source, world.endpoints[2], here=world.region(1), there=world.region(2))
    asyncio.run(link.sync(b"m"))
    assert source.left <= 0
    world.sync()
    assert texts(world) == [["stays"]] * 3


@pytest.mark.parametrize("plans", range(6, 10))
def test_a_journal_that_is_emptied_while_a_link_looks_for_losses_makes_no_deletion_a_loss(
    world: World, caplog: pytest.LogCaptureFixture, plans: int
) -> None:
    for body in ("stays", "goes"):
        entry = world[1].xadd("m", {"n": body})
    world.sync()
    world[1].xdel("m", entry)

    def empty() -> None:
        with world.engines[0].client() as bare:
            bare.xtrim(keys.journal(b"m", 1), maxlen=0, approximate=False)

    source = Between(world.endpoints[1], plans, empty)
    link = Link(source, world.endpoints[2], here=world.region(1), there=world.region(2))
    asyncio.run(link.sync(b"m"))
    assert source.left <= 0
    world.sync()
    assert texts(world) == [["stays"]] * 3
    assert "region.lost_tail" not in caplog.text


def gone(flow: Flow) -> None:
    """Two rounds of one stream share a flow: one is about to ship what the other finds deleted."""
    flow.ends.clear()


def refused(flow: Flow) -> None:
    """A batch of another strand was refused: a link that continued would leave a gap."""
    flow.failed = ReplyError("BSMOVED")


@pytest.mark.parametrize("trouble", [gone, refused])
def test_a_flow_in_trouble_goes_no_further(world: World, trouble: Callable[[Flow], None]) -> None:
    strand = Strand(b"m", "s", 1)
    world[1].xadd("m", {"n": "1"})

    async def ship(step: Callable[[Flow], Coroutine[None, None, None]]) -> None:
        source, target = world.endpoints[1], world.endpoints[2]
        flow = Flow(target, Pages.of_home(source), Window(), facts(world[1].run_plan(_meta())))
        flow.start(strand, (0, 0), 10)
        trouble(flow)
        await step(flow)

    for step in (lambda flow: flow.pump(strand), lambda flow: flow.reach(strand, (1, 0))):
        with pytest.raises(ReplyError, match="BSMOVED"):
            asyncio.run(ship(step))
    assert not world[2].exists("m")


def _meta() -> Plan[list[bytes]]:
    [reply] = yield Batch([registry_of(b"m")])
    return reply


class Held(Here):
    """An endpoint that answers its first page late: what it says is old by then."""

    def __init__(self, here: Here) -> None:
        super().__init__(here.client)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def run(self, plan: Plan[T]) -> T:
        answer = await super().run(plan)
        if plan.__name__ == "_page" and not self.asked.is_set():  # type: ignore[attr-defined]
            self.asked.set()
            await self.go_on.wait()
        return answer


def test_a_page_that_is_older_than_the_state_leaves_no_hole(world: World) -> None:
    """Two links of a daemon read the same page, and between them an entry was added."""
    world[1].xadd("m", {"n": "1"})

    async def both() -> None:
        source = Held(world.endpoints[1])
        pages = Pages.of_home(source)
        links = [
            Link(source, world.endpoints[peer], here=world.region(1), there=world.region(peer), pages=pages)
            for peer in (2, 3)
        ]
        first = asyncio.ensure_future(links[0].sync(b"m"))
        await source.asked.wait()
        world[1].xadd("m", {"n": "2"})
        second = asyncio.ensure_future(links[1].sync(b"m"))
        for _ in range(100):
            await asyncio.sleep(0)
        source.go_on.set()
        await asyncio.gather(first, second)

    asyncio.run(both())
    world.sync()
    assert texts(world) == [["1", "2"]] * 3


@pytest.fixture
def full(world: World) -> Iterator[Callable[[int], None]]:
    """full(2): region 2 takes no more memory, until the test ends."""

    def limit(region: int, limit: str = "1") -> None:
        with world.engines[region - 1].client() as operator:
            operator.config_set("maxmemory", limit)

    yield limit
    for region in world:
        limit(region, "0")


REMOVALS: dict[str, Callable[[braidstream.Redis, list[str]], object]] = {
    "DEL": lambda client, entries: client.delete("m"),
    "XTRIM": lambda client, entries: client.xtrim("m", maxlen=0, approximate=False),
    "XDEL": lambda client, entries: client.xdel("m", *entries),
}


@pytest.mark.parametrize("removal", REMOVALS)
def test_a_region_whose_memory_is_full_is_relieved_by_what_others_delete(
    world: World, full: Callable[[int], None], removal: str
) -> None:
    entries = [world[1].xadd("m", {"n": str(number)}) for number in range(10)]
    world.sync()
    full(2)
    REMOVALS[removal](world[1], entries)
    world.ship(1, 2, "m")
    assert world[2].xlen("m") == 0


def test_a_region_whose_memory_is_full_still_tells_the_others(
    world: World, full: Callable[[int], None]
) -> None:
    entries = [world[1].xadd("m", {"n": str(number)}) for number in range(3)]
    world.ship(1, 2, "m")
    world[1].xadd("m", {"n": "3"})
    full(1)
    world[1].xdel("m", entries[1])
    world.ship(1, 2, "m")
    assert [fields["n"] for _, fields in world[2].xrange("m")] == ["0", "2", "3"]


def test_entries_that_a_full_region_refuses_arrive_when_it_has_room_again(
    world: World, full: Callable[[int], None]
) -> None:
    """Also wide ones, which take another way; and a link keeps nothing of what was refused."""
    world[1].xadd("m", {"n": "1"})
    world.sync()
    full(2)
    for _ in range(3):
        world[1].xadd("m", {"n": "2"})
        world[1].xadd("m", {"n": "3", **{str(number): "" for number in range(WIDEST)}})
    for _ in range(3):
        with pytest.raises(ReplyError, match="OOM"):
            world.ship(1, 2, "m")
    assert world.links[1, 2].window.used == 0
    with world.engines[1].client() as operator:
        operator.config_set("maxmemory", "0")
    world.sync()
    assert texts(world) == [["1", *["2", "3"] * 3]] * 3


def test_a_link_says_which_stream_was_refused_after_it_had_sent_on(
    world: World, full: Callable[[int], None]
) -> None:
    """`follow` does not wait for the reply, and the next comparison of the stream may be far away."""
    world[1].xadd("m", {"n": "1"})
    world.sync()
    link, heard = world.links[1, 2], list[bytes]()

    async def send_on() -> None:
        link.on_refused = heard.append
        await link.sync(b"m")
        full(2)
        world[1].xadd("m", {"n": "2"})
        await link.follow(b"m")
        async with asyncio.timeout(10):
            while not heard:
                await asyncio.sleep(0.01)

    asyncio.run(send_on())
    assert heard == [b"m"]
    with world.engines[1].client() as operator:
        operator.config_set("maxmemory", "0")
    world.sync()
    assert texts(world) == [["1", "2"]] * 3
