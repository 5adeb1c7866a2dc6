"""A region lost entries, and its daemon's user may not restore them: no peer deletes its copies."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

import braidstream
from braidstream.errors import ReplyError
from braidstream.plan.plan import Plan
from braidstream.replication.heal.heal import Pair
from braidstream.replication.link.link import Link
from tests.support.limited_rights import OWN, ship
from tests.support.world import Here, World

T = TypeVar("T")


@pytest.fixture
def world(make_world: Callable[..., World]) -> Iterator[World]:
    world = make_world(2)
    yield world
    with world.engines[0].client() as engine:
        engine.execute_command("ACL DELUSER daemon")


def lose(world: World) -> list[str]:
    """Region 1 loses entries that 2 has, and goes on."""
    before = [world[1].xadd("m", {"n": str(number)}) for number in range(5)]
    with world.engines[0].client() as engine:
        earlier = engine.dump("bs:1:s:{m}")
        lost = [world[1].xadd("m", {"n": str(number)}) for number in range(5)]
        world.sync()
        engine.restore("bs:1:s:{m}", 0, earlier, replace=True)
    world.engines[0].replace_process()
    return before + lost


def test_what_the_guides_rights_do_not_restore_stays_at_the_peer(world: World) -> None:
    kept = lose(world)
    gone, later = (world[1].xadd("m", {"n": text}) for text in ("gone", "later"))
    ship(world, "m", OWN)
    world[1].xdel("m", gone)
    with world.engines[0].client() as engine:
        engine.xtrim("bs:1:j:{m}", maxlen=0)  # so all entries are compared
    ship(world, "m", OWN)
    there = [entry for entry, _ in world[2].xrange("m")]
    assert there[: len(kept)] == kept
    assert there[-1] == later


def test_a_loss_that_cannot_be_noted_is_an_error_and_nothing_is_sent(world: World) -> None:
    kept = lose(world)
    world[1].xadd("m", {"n": "later"})
    with pytest.raises(ReplyError, match="It lost entries"):
        ship(world, "m", [right for right in OWN if right != "+hset"])
    assert [entry for entry, _ in world[2].xrange("m")] == kept


def test_what_is_written_after_a_loss_is_trimmed_at_the_peer_too(world: World) -> None:
    kept = lose(world)
    later = [world[1].xadd("m", {"n": str(number)}) for number in range(3)]
    ship(world, "m", OWN)
    assert [entry for entry, _ in world[2].xrange("m")] == kept + later
    world[1].xtrim("m", maxlen=1, approximate=False)
    ship(world, "m", OWN)
    assert [entry for entry, _ in world[2].xrange("m")] == kept[5:] + later[-1:]  # it had trimmed the others


def test_a_strand_that_was_lost_before_a_peer_had_it_is_trimmed_there(world: World) -> None:
    world[1].xadd("m", {"n": "lost"})
    with world.engines[0].client() as engine:
        engine.delete("bs:1:s:{m}")
    later = [world[1].xadd("m", {"n": str(number)}) for number in range(3)]
    world.sync()
    world[1].xtrim("m", maxlen=1, approximate=False)
    world.sync()
    assert [entry for entry, _ in world[2].xrange("m")] == later[-1:]


def test_what_is_written_after_a_peer_deleted_a_strand_that_was_lost_is_trimmed_there(world: World) -> None:
    world[1].xadd("m", {"n": "lost"})
    world.sync()
    world[2].xtrim("m", maxlen=0, approximate=False)
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete("bs:1:s:{m}")
    world[1].xadd("m", {"n": "again"})
    world.sync()
    world[2].delete("m")
    world.ship(2, 1, "m")
    for text in ("c", "d", "e"):
        world[1].xadd("m", {"n": text})
    world.ship(1, 2, "m")
    last = world[1].xadd("m", {"n": "f"})
    world[1].xtrim("m", minid=last, approximate=False)
    world.sync()
    assert [entry for entry, _ in world[2].xrange("m")] == [last]


def fill(client: braidstream.Redis, count: int) -> list[str]:
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.xadd("m", {"n": str(number)})
        return pipe.execute()  # type: ignore[no-any-return]


@pytest.mark.parametrize("why", ["rights", "size"])
def test_a_strand_that_another_link_has_restored_is_not_marked(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Two links find a loss. The slower one may not restore it, or too many entries follow now."""
    world = make_world(3)
    kept = lose(world)
    later, real = [world[1].xadd("m", {"n": "later"})], Pair.put_back

    async def late(pair: Pair, *words: Any) -> int:
        if pair.writer == 3 and len(later) == 1:
            await world.link(1, 2).sync(b"m")
            later.extend(fill(world[1], 3_001 if why == "size" else 1))
        return await real(pair, *words)

    monkeypatch.setattr(Pair, "put_back", late)
    ship(world, "m", OWN if why == "rights" else ["~*", "allcommands"], to=3)
    assert len(later) > 1
    assert world[1].hget("bs:meta:{m}", "l:s1") is None
    world.sync()
    for region in world:
        assert [entry for entry, _ in world[region].xrange("m")] == kept + later


def test_a_restore_goes_on_if_more_is_written_meanwhile_than_one_call_moves(world: World) -> None:
    """The key of a strand was lost, and clients go on: many entries follow the second batch."""
    kept = fill(world[1], 1_100)
    world.sync()
    with world.engines[0].client() as engine:
        engine.delete("bs:1:s:{m}")
        fill(world[1], 2_900)

        class Busy(Here):
            async def run(self, plan: Plan[T]) -> T:
                if engine.xlen("bs:1:s:{m}") in range(2_901, 4_000):  # the first batch is restored
                    fill(world[1], 1_100)
                return await super().run(plan)

        link = Link(world.endpoints[1], Busy(world[2]), here=world.region(1), there=world.region(2))
        asyncio.run(link.sync(b"m"))
    world.sync()
    assert [entry for entry, _ in world[1].xrange("m", count=len(kept))] == kept
    assert world[1].xlen("m") == 2_900 + 1_100 + len(kept)
    assert world[2].xrange("m") == world[1].xrange("m")
