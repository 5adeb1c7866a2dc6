"""New entries of many streams, few of each, are read in one exchange and sent in one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import pytest

from braidstream.engine.address import parse_address
from braidstream.model import keys
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.link.batches import BATCH_BYTES, FEW, WIDEST
from braidstream.replication.link.link import Link
from braidstream.replication.link.pages import Pages
from tests.support.matrix import on_every_engine
from tests.support.observed import observed
from tests.support.rolling_back import bring_back, snapshot
from tests.support.world import World

T = TypeVar("T")
flavour = on_every_engine
STREAMS = [f"s{number}".encode() for number in range(50)]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(3)


class Counted(Endpoint):
    """Counts exchanges."""

    exchanges = 0

    async def run(self, plan: Plan[T]) -> T:
        def count(batch: Batch) -> None:
            self.exchanges += 1

        return await super().run(observed(plan, count))


class Links:
    """From region 1 to 2 and to 3, as a daemon has them."""

    def __init__(self, world: World) -> None:
        self.home, *self.targets = (Counted(parse_address(engine.url)) for engine in world.engines)
        pages, here = Pages.of_home(self.home), world.region(1)
        self.to = {
            number: Link(self.home, target, here=here, there=world.region(number), pages=pages)
            for number, target in zip((2, 3), self.targets, strict=True)
        }

    def exchanges(self) -> list[int]:
        return [end.exchanges for end in (self.home, *self.targets)]


def with_links(world: World, work: Callable[[Links], Awaitable[None]]) -> None:
    async def run() -> None:
        links = Links(world)
        ends = (links.home, *links.targets)
        await asyncio.gather(*(end.connect() for end in ends))
        try:
            await work(links)
        finally:
            for end in ends:
                end.close()

    asyncio.run(run())


def write(world: World, names: Iterable[bytes] = STREAMS, entries: int = 1, size: int = 10) -> None:
    pipe = world[1].pipeline(transaction=False)
    for name in names:
        for number in range(entries):
            pipe.xadd(name, {"n": str(number), "text": "x" * size})
    pipe.execute()


async def start(link: Link, names: Iterable[bytes] = STREAMS) -> None:
    for name in names:
        await link.sync(name)


async def behind(world: World, links: Links) -> Link:
    """The link to region 2. It knows all streams, and each of them has got an entry since."""
    write(world)
    await start(links.to[2])
    write(world)
    return links.to[2]


def copies(world: World, region: int, names: Iterable[bytes] = STREAMS) -> list[object]:
    with world.engines[region - 1].client() as engine:
        return [engine.xrange(keys.strand(name, keys.GENERATED, 1)) for name in names]


async def until_copied(world: World, region: int, names: Iterable[bytes] = STREAMS) -> None:
    async with asyncio.timeout(20):
        while copies(world, region, names) != copies(world, 1, names):
            await asyncio.sleep(0.01)


async def until_refused(refused: list[bytes], count: int) -> None:
    async with asyncio.timeout(20):
        while len(refused) < count:
            await asyncio.sleep(0.01)


def test_entries_of_many_streams_take_one_exchange_with_each_engine(world: World) -> None:
    async def work(links: Links) -> None:
        write(world)
        await start(links.to[2])
        write(world, entries=3)
        before = links.exchanges()
        done = await links.to[2].follow_some(STREAMS)
        assert {name: each.entries for name, each in done.items()} == dict.fromkeys(STREAMS, 3)
        await until_copied(world, 2)
        assert [after - then for after, then in zip(links.exchanges(), before, strict=True)] == [1, 1, 0]
        again = await links.to[2].follow_some(STREAMS)
        assert {name: each.entries for name, each in again.items()} == dict.fromkeys(STREAMS, 0)

    with_links(world, work)


def test_first_visits_take_few_exchanges(world: World) -> None:
    async def work(links: Links) -> None:
        write(world, entries=3)
        before = links.exchanges()
        done = await links.to[2].follow_some(STREAMS)
        assert {name: each.entries for name, each in done.items()} == dict.fromkeys(STREAMS, 3)
        await until_copied(world, 2)
        # Which process serves it, and the streams; what the peer knows of them, and the entries.
        assert [after - then for after, then in zip(links.exchanges(), before, strict=True)] == [2, 2, 0]
        write(world)
        before = links.exchanges()
        assert {*await links.to[2].follow_some(STREAMS)} == {*STREAMS}
        await until_copied(world, 2)
        assert [after - then for after, then in zip(links.exchanges(), before, strict=True)] == [1, 1, 0]
        for name in STREAMS:
            assert not (await links.to[2].sync(name)).moved

    with_links(world, work)


def delete_and_write(client: Any, name: bytes) -> None:
    client.delete(name)
    client.xadd(name, {"n": "again"})


def delete_one(client: Any, name: bytes) -> None:
    client.xdel(name, client.xadd(name, {"n": "gone"}))


UNUSUAL: dict[str, Callable[[Any, bytes], object]] = {
    "a group": lambda client, name: client.xgroup_create(name, "g", id="0"),
    "a deletion": delete_one,
    "a trim": lambda client, name: client.xtrim(name, maxlen=0, approximate=False),
    "deleted and written again": delete_and_write,
    "a deadline": lambda client, name: client.expire(name, 1000),
    "a message": lambda client, name: client.xadd(name, {"n": 1}, idmp=("p", "1")),
    "settings": lambda client, name: client.xcfgset(name, idmp_duration=500),
    "many entries": lambda client, name: [client.xadd(name, {"n": 1}) for _ in range(FEW)],
}


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_an_unusual_stream_is_visited_alone(world: World, unusual: str) -> None:
    odd, plain = STREAMS[0], STREAMS[1:5]

    async def work(links: Links) -> None:
        write(world, STREAMS[:5])
        UNUSUAL[unusual](world[1], odd)
        assert {*await links.to[2].follow_some(STREAMS[:5])} == {*plain}
        await links.to[2].sync(odd)
        await until_copied(world, 2, plain)

    with_links(world, work)
    assert world[2].xrange(odd) == world[1].xrange(odd)


def test_a_stream_that_the_peer_knows_is_visited_alone(world: World) -> None:
    """Also one whose entries it had, and that are deleted."""

    async def work(links: Links) -> None:
        write(world, STREAMS[:5])
        world[2].xadd(STREAMS[0], {"n": "theirs"})
        world[2].xadd(STREAMS[1], {"n": "theirs"})
        world[2].delete(STREAMS[1])
        assert {*await links.to[2].follow_some(STREAMS[:5])} == {*STREAMS[2:5]}
        await until_copied(world, 2, STREAMS[2:5])

    with_links(world, work)


def test_a_first_visit_that_another_link_has_just_made_sends_nothing_twice(world: World) -> None:
    async def work(links: Links) -> None:
        write(world)
        again = Link(links.home, links.targets[0], here=world.region(1), there=world.region(2))
        await asyncio.gather(*(each.follow_some(STREAMS) for each in (links.to[2], again)))
        for name in STREAMS:
            await again.sync(name)
        assert copies(world, 2) == copies(world, 1)

    with_links(world, work)


def test_links_that_ask_at_the_same_time_read_once(world: World) -> None:
    async def work(links: Links) -> None:
        write(world)
        for link in links.to.values():
            await start(link)
        write(world)
        before = links.exchanges()
        await asyncio.gather(*(link.follow_some(STREAMS) for link in links.to.values()))
        for region in links.to:
            await until_copied(world, region)
        assert [after - then for after, then in zip(links.exchanges(), before, strict=True)] == [1, 1, 1]

    with_links(world, work)


def test_a_read_that_is_under_way_is_not_shared(world: World) -> None:
    """What was written after it began would be missed."""

    async def work(links: Links) -> None:
        write(world)
        for link in links.to.values():
            await start(link)
        before = links.home.exchanges
        read = asyncio.ensure_future(links.to[2].follow_some(STREAMS))
        while links.home.exchanges == before:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # a connection sends at the end of a turn of the loop
        write(world)
        await links.to[3].follow_some(STREAMS)
        await read
        await until_copied(world, 3)

    with_links(world, work)


@pytest.mark.parametrize(
    ("entries", "size"),
    [pytest.param(FEW, 10, id="many entries"), pytest.param(2, 50_000, id="large entries")],
)
def test_streams_out_of_the_ordinary_go_alone_and_hold_up_no_other(
    world: World, entries: int, size: int
) -> None:
    odd, plain = STREAMS[:5], STREAMS[5:]

    async def work(links: Links) -> None:
        write(world)
        write(world, odd, 2, size)
        await start(links.to[2])
        write(world, plain)
        write(world, odd, entries, size)
        assert {*await links.to[2].follow_some(STREAMS)} == {*plain}
        await until_copied(world, 2, plain)
        for name in odd:
            await links.to[2].follow(name)
        await until_copied(world, 2)

    with_links(world, work)


def test_an_entry_with_very_many_fields_goes_alone(world: World) -> None:
    async def work(links: Links) -> None:
        link = await behind(world, links)
        world[1].execute_command("XADD", STREAMS[0], "*", *(str(word) for word in range(WIDEST + 2)))
        assert {*await link.follow_some(STREAMS)} == {*STREAMS[1:]}
        await link.follow(STREAMS[0])
        await until_copied(world, 2)

    with_links(world, work)


def test_entries_never_arrive_before_an_older_change_of_their_stream(world: World) -> None:
    """A stream that was deleted and written again: its registry says so."""

    async def work(links: Links) -> None:
        write(world)
        await start(links.to[2])
        world[1].delete(STREAMS[0])
        write(world)
        assert {*await links.to[2].follow_some(STREAMS)} == {*STREAMS[1:]}
        await until_copied(world, 2, STREAMS[1:])
        await links.to[2].follow(STREAMS[0])
        assert world[2].xrange(STREAMS[0]) == world[1].xrange(STREAMS[0])

    with_links(world, work)


def test_a_stream_that_is_no_stream_any_more_holds_up_no_other(world: World) -> None:
    async def work(links: Links) -> None:
        link = await behind(world, links)
        with world.engines[0].client() as engine:
            engine.set(keys.strand(STREAMS[0], keys.GENERATED, 1), "text")
        assert {*await link.follow_some(STREAMS)} == {*STREAMS[1:]}
        await until_copied(world, 2, STREAMS[1:])

    with_links(world, work)


def test_a_target_that_lost_entries_of_some_streams_refuses_these_only(world: World) -> None:
    refused = list[bytes]()

    async def work(links: Links) -> None:
        link = links.to[2]
        link.on_refused = refused.append
        write(world)
        await start(link)
        earlier = snapshot(world.engines[1])
        write(world, STREAMS[:5])
        assert {*await link.follow_some(STREAMS)} == {*STREAMS}
        await until_copied(world, 2)
        bring_back(world.engines[1], earlier)
        write(world)
        await link.follow_some(STREAMS)
        await until_copied(world, 2, STREAMS[5:])
        await until_refused(refused, 5)
        assert sorted(refused) == STREAMS[:5]
        assert not {*await link.follow_some(STREAMS[:5])}
        for name in STREAMS[:5]:
            await link.follow(name)
        assert copies(world, 2) == copies(world, 1)

    with_links(world, work)


def test_a_stream_that_is_being_compared_goes_alone(world: World) -> None:
    async def work(links: Links) -> None:
        link = await behind(world, links)
        comparison = asyncio.ensure_future(link.sync(STREAMS[0]))
        while not (flow := link._known[STREAMS[0]].flow).lock.locked():
            await asyncio.sleep(0)
        assert {*await link.follow_some(STREAMS)} == {*STREAMS[1:]}
        await comparison
        assert not flow.lock.locked()
        await until_copied(world, 2)

    with_links(world, work)


def test_a_bundle_that_is_cancelled_leaves_its_streams_to_others(world: World) -> None:
    async def work(links: Links) -> None:
        link = await behind(world, links)
        bundle = asyncio.ensure_future(link.follow_some(STREAMS))
        await asyncio.sleep(0)
        bundle.cancel()
        await asyncio.gather(bundle, return_exceptions=True)
        assert {*await link.follow_some(STREAMS)} == {*STREAMS}
        await until_copied(world, 2)

    with_links(world, work)


def test_streams_with_many_entries_do_not_keep_a_bundle_waiting(world: World) -> None:
    """Their batches are smaller than a bundle, so each of them would fit in before it."""
    busy, few = [b"busy1", b"busy2", b"busy3"], STREAMS[:40]

    async def work(links: Links) -> None:
        link = links.to[2]
        write(world, [*busy, *few])
        await start(link, [*busy, *few])
        write(world, busy, 10_000, 1_000)
        write(world, few, 15, 1_800)
        link.window.most = 4 * BATCH_BYTES
        many = [asyncio.ensure_future(link.follow(name)) for name in busy]
        while link.window.used < 3 * BATCH_BYTES:
            await asyncio.sleep(0)
        assert {*await link.follow_some(few)} == {*few}
        assert not any(each.done() for each in many)
        await asyncio.gather(*many)
        await until_copied(world, 2, [*busy, *few])

    with_links(world, work)


def test_a_target_that_answers_oddly_has_refused_the_entries(world: World) -> None:
    """Its functions are not ours, say."""
    odd = "#!lua name=braidstream\nredis.register_function('bs_strand_apply', function() return 'odd' end)"
    refused = list[bytes]()

    async def work(links: Links) -> None:
        link = await behind(world, links)
        link.on_refused = refused.append
        with world.engines[1].client() as engine:
            ours = engine.function_dump()
            engine.function_load(odd, replace=True)
            await link.follow_some(STREAMS)
            await until_refused(refused, len(STREAMS))
            engine.function_restore(ours, "REPLACE")
        await start(link)
        assert copies(world, 2) == copies(world, 1)

    with_links(world, work)


def test_who_stops_waiting_for_a_bundle_does_not_stop_it(world: World) -> None:
    """A comparison waits until the entries of its stream have arrived."""
    refused = list[bytes]()

    async def work(links: Links) -> None:
        link = await behind(world, links)
        link.on_refused = refused.append
        with world.engines[1].paused():
            await link.follow_some(STREAMS)
            landing = asyncio.ensure_future(link._known[STREAMS[0]].flow.landed())
            await asyncio.sleep(0)
            landing.cancel()
            await asyncio.gather(landing, return_exceptions=True)
        await until_copied(world, 2)
        await link._known[STREAMS[0]].flow.landed()
        assert not refused

    with_links(world, work)
