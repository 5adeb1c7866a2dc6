"""Small entries, then large ones: no reply is larger than a peer's may be.

A tenth of the real sizes: entries of 50 KB, and replies of at most 6.4 MB instead of 64 MB.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import braidstream
from braidstream.engine.address import parse_address
from braidstream.errors import LostError
from braidstream.model import ids
from braidstream.model.strand import Strand
from braidstream.replication.endpoint import PEER_REPLY_BYTES, Endpoint
from braidstream.replication.heal import compare
from braidstream.replication.link.link import Link
from braidstream.replication.link.pages import Pages
from braidstream.replication.link.stream_state import Extent, read_state
from tests.support.limited_rights import PEER
from tests.support.world import Here, World

SMALL, LARGE = 2_000, 200
STRAND = Strand(b"m", "s", 1)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(2)


def write(world: World, count: int, size: int) -> None:
    pipe = world[1].pipeline(transaction=False)
    for number in range(count):
        pipe.xadd("m", {"n": str(number), "body": "x" * size})
    pipe.execute()


def linked(
    world: World,
    work: Callable[[Link], Awaitable[object]],
    *,
    near: bool = False,
    most: int | None = None,
) -> None:
    """Run work with a new link from region 1 to 2. Peers' replies have a limit. near: region 1 is not a peer,
    its limit is `most`."""

    async def run() -> None:
        limits = (most if near else PEER_REPLY_BYTES // 10, PEER_REPLY_BYTES // 10)
        addresses = [parse_address(each.url) for each in world.engines]
        ends = [Endpoint(*each) for each in zip(addresses, limits, strict=True)]
        for end in ends:
            await end.connect()
        pages = Pages.of_home(ends[0]) if near else None
        await work(Link(ends[0], ends[1], here=world.region(1), there=world.region(2), pages=pages))
        for end in ends:
            end.close()

    asyncio.run(run())


def lose(world: World, *written: tuple[int, int]) -> None:
    """Region 1 writes entries (count, size) and replicates them. Then it is as it was before."""
    with world.engines[0].client() as engine:
        earlier = engine.dump(STRAND.key)
        for count, size in written:
            write(world, count, size)
        linked(world, lambda link: link.sync(b"m"), near=True)
        engine.restore(STRAND.key, 0, earlier, replace=True)


def restored(world: World, count: int) -> None:
    """A link brings back what was lost: both regions have so many entries."""
    linked(world, lambda link: link.sync(b"m"))
    assert world[1].xlen("m") == count
    assert world[2].xrange("m") == world[1].xrange("m")


@pytest.mark.parametrize("near", [True, False])
def test_small_entries_and_then_large_ones_are_replicated(world: World, near: bool) -> None:
    write(world, SMALL, 100)
    write(world, LARGE, 50_000)
    write(world, 1, 100)  # the last one does not show that there are large ones
    linked(world, lambda link: link.sync(b"m"), near=near)
    assert world[2].xrange("m") == world[1].xrange("m")


def test_the_own_server_is_not_read_in_large_replies_either(world: World) -> None:
    write(world, 600, 100)
    write(world, 600, 100_000)
    linked(world, lambda link: link.sync(b"m"), near=True, most=PEER_REPLY_BYTES // 10)
    assert world[2].xlen("m") == 1200


@pytest.mark.parametrize("goes_on", [True, False])
def test_large_entries_that_were_lost_are_restored(world: World, goes_on: bool) -> None:
    write(world, 10, 100)
    lose(world, (500, 100), (LARGE, 50_000), (1, 100))
    if goes_on:
        write(world, 1, 100)
    restored(world, 10 + 500 + LARGE + 1 + goes_on)


@pytest.mark.parametrize("goes_on", [True, False])
def test_very_large_entries_that_were_lost_are_restored(world: World, goes_on: bool) -> None:
    """Of which the limit allows only a few at once, and the last one does not show that."""
    write(world, 1, 100)
    lose(world, (20, 500_000), (60, 150_000), (1, 10_000))
    if goes_on:
        write(world, 1, 100)
    restored(world, 1 + 20 + 60 + 1 + goes_on)


def test_what_was_restored_before_a_reply_was_too_large_stays(world: World) -> None:
    """The first of these replies comes after 201 small entries, and ends the connection."""
    write(world, 1, 100)
    lose(world, (201, 100), (100, 100_000))
    write(world, 1, 100)
    with pytest.raises(LostError, match="more than"):
        linked(world, lambda link: link.sync(b"m"))
    restored(world, 1 + 201 + 100 + 1)


def test_what_follows_restored_entries_is_moved_a_few_times_only(world: World) -> None:
    """The engine serves nobody else while it moves entries."""
    write(world, 1, 100)
    lose(world, (60, 100_000))
    write(world, 30, 100_000)
    with world.engines[0].client() as engine:
        engine.config_resetstat()
        linked(world, lambda link: link.sync(b"m"))
        appended = engine.info("commandstats")["cmdstat_xadd"]["calls"]
    assert world[1].xlen("m") == 1 + 60 + 30
    assert appended < 60 + 3 * 30


def test_very_large_entries_are_recovered(world: World) -> None:
    write(world, 60, 150_000)
    write(world, 1, 10_000)
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete(STRAND.key, "bs:meta:{m}")
    linked(world, lambda link: link.recover(b"m"))
    assert world[1].xlen("m") == 61


def test_a_comparison_lists_large_entries_in_parts_and_misses_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "LISTED_BYTES", compare.LISTED_BYTES // 10)
    write(world, 100, 100)
    write(world, LARGE, 50_000)
    world.sync()
    page, following = world[1].run_plan(compare.list_ids(STRAND, ids.ZERO, ids.LAST))
    assert 100 < len(page) < 100 + LARGE
    assert following is not None
    every = [entry for entry, _ in world[1].xrange("m")]
    world[1].xdel("m", *every[:3], every[-50])
    with world.engines[0].client() as engine:
        engine.xtrim("bs:1:j:{m}", maxlen=0)
    linked(world, lambda link: link.sync(b"m"))
    assert [entry for entry, _ in world[2].xrange("m")] == [*every[3:-50], *every[-49:]]


def copied(world: World, region: int, work: Callable[[], None]) -> int:
    """How often the engine copies the first and the last entry of a stream during the work: XINFO STREAM."""
    with world.engines[region - 1].client() as engine:
        engine.config_resetstat()
        work()
        return int(engine.info("commandstats").get("cmdstat_xinfo|stream", {"calls": 0})["calls"])


def look(world: World, times: int = 1) -> None:
    """As links do, also those of other daemons."""
    for _ in range(times):
        for region in world:
            for home in (region, 0):
                world[region].run_plan(read_state(b"m", [STRAND], [1, 2], home=home))


def test_links_copy_a_large_entry_once_to_learn_ids(world: World) -> None:
    def append() -> None:
        write(world, 1, 1_000_000)
        world.sync()
        look(world, 5)

    assert copied(world, 1, append) == 1
    assert copied(world, 1, append) == 0  # they read the new entry alone
    assert copied(world, 2, append) == 0


def test_links_do_not_copy_a_large_first_entry_for_each_later_one(world: World) -> None:
    write(world, 1, 1_000_000)
    world.sync()

    def append() -> None:
        for _ in range(5):
            write(world, 2, 10)
            world.ship(1, 2, "m")
            look(world)

    assert copied(world, 1, append) == 0
    assert copied(world, 2, append) == 0
    assert world[2].xrange("m") == world[1].xrange("m")


def test_large_entries_are_replicated_with_the_guides_rights_at_a_peer(world: World) -> None:
    with world.engines[1].client() as engine:
        engine.execute_command("ACL", "SETUSER", "link", "reset", "on", "nopass", *PEER)
    url = world.engines[1].url.replace("//", "//link:any@", 1)
    with braidstream.Redis.from_url(url) as limited:
        ends = world.endpoints[1], Here(limited)
        link = Link(*ends, here=world.region(1), there=world.region(2))
        for _ in range(3):
            write(world, 1, 100_000)
            asyncio.run(link.sync(b"m"))
    with world.engines[1].client() as engine:
        engine.execute_command("ACL", "DELUSER", "link")
    assert world[2].xrange("m") == world[1].xrange("m")


def test_what_links_remember_of_large_entries_holds_only_while_it_is_true(world: World) -> None:
    """After each change they know what XINFO STREAM says."""
    client = world[1]

    def change(*command: str | int) -> None:
        client.execute_command(*command)
        with world.engines[0].client() as engine:
            info = engine.xinfo_stream(STRAND.key)
            seen = client.run_plan(read_state(b"m", [STRAND], [])).strands[STRAND]
            first, last = info["first-entry"], info["last-entry"]
            assert seen == Extent(
                last=ids.native(info["last-generated-id"]),
                first=ids.native(first[0]) if first else None,
                length=info["length"],
                added=info["entries-added"],
                width=seen.width,
                tail=ids.native(last[0]) if last else None,
                deleted=ids.native(info["max-deleted-entry-id"]),
            )

    write(world, 3, 100_000)
    world.sync()
    look(world)
    change("XADD", "m", "*", "a", "b")
    later = [client.xadd("m", {"n": "1"}) for _ in range(2)]
    change("XDEL", "m", later[1])  # added and deleted since: only the last ID shows it
    change("XTRIM", "m", "MAXLEN", 3)
    change("XADD", "m", "MAXLEN", 3, "*", "large", "x" * 100_000)
    change("XSETID", "m", "99999999999999-0")
    change("XTRIM", "m", "MAXLEN", 0)
    change("XADD", "m", "*", "large", "x" * 100_000)
    client.delete("m")
    change("XADD", "m", "*", "large", "x" * 100_000)
