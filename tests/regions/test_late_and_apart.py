"""Scenarios that the simulation found, or that its authors thought of: what arrives late, or apart."""

# ruff: noqa: E501

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import redis

from braidstream.model import keys
from braidstream.plan.plan import Plan
from braidstream.replication.link.pages import Pages
from tests.support.rolling_back import assert_alike, ids, meet_again, write
from tests.support.tables import play
from tests.support.world import Here, World

T = TypeVar("T")
Make = Callable[..., World]


class Disturbed(Here):
    """An endpoint where something happens before its n-th request."""

    def __init__(self, end: Here, before: int, happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__(end.client)
        self.left, self.happens = before, happens

    async def run(self, plan: Plan[T]) -> T:
        self.left -= 1
        if self.left == 0:
            await self.happens()
        return await super().run(plan)


def test_a_reader_goes_on_in_another_region_and_skips_nothing(make_world: Make) -> None:
    world = make_world(2)
    first, other = world[1].xadd("x", {"n": 1}), world[2].xadd("x", {"n": 2})
    reader = world[1].reader("x")
    assert [entry for entry, _ in reader] == [first]
    moved = world[2].reader("x", reader.position)
    assert [entry for entry, _ in moved] == [other], "region 2 does not have the first yet"
    world.sync()
    assert [entry for entry, _ in moved] == []
    later = [world[1].xadd("x", {"n": 3}), world[2].xadd("x", {"n": 4})]
    world.sync()
    assert [entry for entry, _ in moved] == later
    assert [entry for entry, _ in reader] == [other, *later]


def test_an_entry_that_arrives_during_a_comparison_with_its_deleter_is_deleted(make_world: Make) -> None:
    world = make_world(3)
    play(world, """
        time | region 1                     | region 2 | region 3
        t1   |                              |          | XADD x 110 f v
        t2   |                              |          | XADD x 120 f v
        t3   | Sync                         |          | Sync
        t4   | XDEL x 120-3                 |          |
    """)  # fmt: skip
    with world.engines[0].client() as client:  # as if 10,000 deletions had come since
        client.xtrim(keys.journal(b"x", 1), maxlen=0, approximate=False)
    link = world.links[1, 2]
    link.pages = Pages.of_home(Disturbed(world.endpoints[1], 1, lambda: world.links[3, 2].sync(b"x")))
    world.ship(1, 2, "x")
    play(world, """
        time | region 1                     | region 2                | region 3
        t5   | Sync                         | Sync                    | Sync
        t6   | XRANGE x - + -> [110-3]      | XRANGE x - + -> [110-3] | XRANGE x - + -> [110-3]
    """)  # fmt: skip


def test_a_trim_reaches_the_peers_of_a_stream_that_took_the_place_of_one_with_later_ids(
    make_world: Make,
) -> None:
    play(make_world(2, id_mode="liberal"), """
        time | region 1                | region 2
        t1   | XADD a 500-5 f v        |
        t2   | XADD b 110 f v          |
        t3   | XADD b 120 f v          |
        t4   | Sync                    | Sync
        t5   | RENAME b a              |
        t6   | Sync                    | Sync
        t7   | XTRIM a MAXLEN 1 -> 1   |
        t8   | Sync                    | Sync
        t9   | XRANGE a - + -> [120-0] | XRANGE a - + -> [120-0]
    """)  # fmt: skip


def test_a_journal_that_reaches_a_peer_while_a_link_looks_for_losses_was_not_lost(
    make_world: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(2)
    play(world, """
        time | region 1                | region 2
        t1   | XADD x 110 f v          |
        t2   | XADD x 120 f v          |
        t3   | XADD x 130 f v          |
        t4   | XDEL x 110-1            |
        t5   | Sync                    | Sync
        t6   | XDEL x 120-1            |
    """)  # fmt: skip
    with world.engines[0].client() as client:
        client.xtrim(keys.journal(b"x", 1), maxlen=1, approximate=False)
    met, earlier = world.link(1, 2), world.links[1, 2]
    met.target = Disturbed(world.endpoints[2], 2, lambda: earlier.sync(b"x"))
    asyncio.run(met.sync(b"x"))
    assert "region.lost_tail" not in caplog.text
    assert world[2].xrange("x") == [("130-1", {"f": "v"})]


def test_what_is_trimmed_while_a_link_looks_for_losses_was_not_lost(
    make_world: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(2)
    play(world, """
        time | region 1                | region 2
        t1   | XADD x 110 f v          |
        t2   | XADD x 120 f v          |
        t3   | Sync                    | Sync
        t4   | XADD x 130 f v          |
        t5   | XDEL x 120-1 130-1      |
    """)  # fmt: skip

    async def trim() -> None:
        world[1].xtrim("x", maxlen=0, approximate=False)

    link = world.link(1, 2)
    link.source = Disturbed(world.endpoints[1], 5, trim)
    asyncio.run(link.sync(b"x"))
    assert "region.lost_tail" not in caplog.text
    world.sync()
    assert world[1].xrange("x") == world[2].xrange("x") == []


def test_what_setid_jumped_over_and_back_is_still_given_in_the_other_region(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                                              | region 2
        t1   | XADD x 110 f v                                        |
        t2   | XADD x 120 f v                                        |
        t3   | XGROUP CREATE x g 0                                   |
        t4   | XGROUP SETID x g 110-1                                |
        t5   | XREADGROUP GROUP g a STREAMS x > -> [120-1]           |
        t6   | XGROUP SETID x g 0                                    |
        t7   | Sync                                                  | Sync
        t8   |                                                       | XREADGROUP GROUP g a STREAMS x > -> [110-1, 120-1]
    """)  # fmt: skip


def lose_copy(world: World, region: int, writer: int) -> None:
    """As an operator's mistake, or an eviction, would."""
    with world.engines[region - 1].client() as client:
        assert client.delete(keys.strand(b"x", "s", writer)) == 1


def test_a_lost_copy_is_copied_again_though_a_group_is_made_meanwhile(make_world: Make) -> None:
    world = make_world(2)
    play(world, """
        time | region 1                | region 2
        t1   | XADD x 110 f v          |
        t2   | Sync                    | Sync
    """)  # fmt: skip
    lose_copy(world, 2, 1)
    play(world, """
        time | region 1                | region 2
        t3   | XADD x 120 f v          | XGROUP CREATE x g 0
        t4   | Sync                    | Sync
        t5   |                         | XRANGE x - + -> [110-1, 120-1]
        t6   |                         | XREADGROUP GROUP g a STREAMS x > -> [110-1, 120-1]
    """)  # fmt: skip


def test_a_lost_copy_is_copied_again_though_a_group_comes_from_a_peer(make_world: Make) -> None:
    world = make_world(2)
    play(world, """
        time | region 1                | region 2
        t1   | XADD x 110 f v          | XADD x 111 f v
        t2   | Sync                    | Sync
    """)  # fmt: skip
    lose_copy(world, 2, 1)
    play(world, """
        time | region 1                | region 2
        t3   | XGROUP CREATE x g 0     |
        t4   | Sync                    | Sync
        t5   |                         | XREADGROUP GROUP g a STREAMS x > -> [110-1, 111-2]
    """)  # fmt: skip


def test_a_deletion_takes_nothing_of_a_copy_that_was_lost(make_world: Make) -> None:
    world = make_world(2)
    play(world, """
        time | region 1                    | region 2
        t1   | XADD x 110 f v              | XADD x 111 f v
        t2   | Sync                        | Sync
    """)  # fmt: skip
    lose_copy(world, 2, 1)
    play(world, """
        time | region 1                    | region 2
        t3   |                             | DEL x
        t4   | Sync                        | Sync
        t5   | XRANGE x - + -> [110-1]     | XRANGE x - + -> [110-1]
    """)  # fmt: skip


def test_a_copy_of_a_stream_that_never_held_an_entry_exists_nowhere(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                    | region 2
        t1   | XGROUP CREATE x g 0         |
        t2   | COPY x y                    |
        t3   | RENAME x z                  |
        t4   | EXISTS y z -> 0             |
        t5   | Sync                        | Sync
        t6   | EXISTS x y z -> 0           | EXISTS x y z -> 0
    """)  # fmt: skip


def test_what_a_deleted_consumer_had_not_acknowledged_counts_as_acknowledged_everywhere(
    make_world: Make,
) -> None:
    """Not what one would wish, but what is so: docs/design/guarantees.md says it under what is not promised."""
    play(make_world(2), """
        time | region 1                                        | region 2
        t1   | XADD x 110 f v                                  |
        t2   | XGROUP CREATE x g 0                             |
        t3   | XREADGROUP GROUP g a STREAMS x > -> [110-1]     |
        t4   | XGROUP DELCONSUMER x g a -> 1                   |
        t5   | Sync                                            | Sync
        t6   | XREADGROUP GROUP g b STREAMS x > -> []          | XREADGROUP GROUP g b STREAMS x > -> []
    """)  # fmt: skip


def test_the_deletion_of_the_last_possible_id_travels(make_world: Make) -> None:
    world = make_world(2, "liberal")
    world[1].xadd("x", {"n": "generated"})
    world[1].xadd("x", {"n": "last of all"}, id="18446744073709551615-18446744073709551615")
    world.sync()
    assert world[2].xlen("x") == 2
    world[1].delete("x")
    world.sync()
    assert [world[number].exists("x") for number in world] == [0, 0]
    with pytest.raises(redis.ResponseError, match="exhausted the last possible ID"):
        world[1].xadd("x", {"n": "generated IDs never go back"})
    again = world[2].xadd("x", {"n": "chosen ones do"}, id="5-1")
    world.sync()
    assert [world[number].xrange("x") for number in world] == [[(again, {"n": "chosen ones do"})]] * 2


def test_a_relay_leaves_deletions_beyond_memory_to_their_region(make_world: Make) -> None:
    """Region 1 has region 3's strand from region 2, which had deleted an entry: it cannot say which."""
    world = make_world(3)
    first, gone, last = write(world, 3, "a", "b", "c")
    world.ship(3, 2, "x")
    [other] = write(world, 2, "d")
    world[2].xdel("x", gone)
    world[2].xdel("x", other)
    with world.engines[1].client() as engine:
        engine.xtrim("bs:2:j:{x}", maxlen=1, approximate=False)
    world.ship(2, 1, "x", relay=True)
    world.ship(1, 3, "x", relay=True)
    assert_alike(world, [first, last])


def test_a_trim_of_a_strand_that_was_there_before_and_went_reaches_the_peers(make_world: Make) -> None:
    """The strand came with a group and went with it, before a link had read it. Then it comes again."""
    world = make_world(2)
    world[1].xgroup_create("x", "first", id="0", mkstream=True)
    world.ship(1, 2, "x")
    world[2].xgroup_destroy("x", "first")
    world.ship(2, 1, "x")
    world[1].xgroup_create("x", "second", id="0", mkstream=True)
    world.ship(1, 2, "x")
    write(world, 2, "a", "b", "c")
    world.ship(2, 1, "x")
    world[2].xtrim("x", maxlen=1, approximate=False)
    meet_again(world)
    assert_alike(world, ids(world, 2))
    assert len(ids(world, 1)) == 1


def test_a_trim_reaches_the_peers_though_a_user_sets_the_count_of_entries(make_world: Make) -> None:
    world = make_world(2)
    entries = write(world, 1, "a", "b", "c", "d")
    world.sync()
    world[1].xtrim("x", maxlen=2, approximate=False)
    world[1].execute_command("XSETID", "x", entries[-1], "ENTRIESADDED", 2)
    assert_alike(world, entries[2:])
