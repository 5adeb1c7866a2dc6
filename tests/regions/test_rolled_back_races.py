"""A region is given back what it lost while its clients go on: what they delete meanwhile stays deleted."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TypeVar

import pytest

from braidstream.errors import BraidError, ReplyError
from braidstream.model import keys
from braidstream.model.fields import MetaField
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Plan
from braidstream.replication.link import Link
from tests.support.rolling_back import Make, assert_alike, ids, meet_again, roll_back, snapshot, write
from tests.support.world import Here, World

T = TypeVar("T")


class Interrupted(Here):
    """Just before a function is called in this region for the first time, something happens."""

    def __init__(
        self, world: World, region: int, act: Callable[[], object], before: str = "bs_strand_mend"
    ) -> None:
        super().__init__(world[region])
        self.act: Callable[[], object] | None = act
        self.before = before

    async def run(self, plan: Plan[T]) -> T:
        return await super().run(self._watched(plan))

    def _watched(self, plan: Plan[T]) -> Plan[T]:
        try:
            batch = next(plan)
            while True:
                if any(self.before in command for command in batch.commands):
                    self._interrupt()
                try:
                    replies = yield batch
                except ReplyError as error:
                    batch = plan.throw(error)
                else:
                    batch = plan.send(replies)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _interrupt(self) -> None:
        if self.act is not None:
            act, self.act = self.act, None
            thread = Thread(target=act)  # a loop runs here
            thread.start()
            thread.join()

    @property
    def happened(self) -> bool:
        return self.act is None


def lose(world: World) -> tuple[list[str], list[str], list[str]]:
    """Region 1 goes back to what it had before it wrote the second list, and writes on."""
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d", "e")
    world.sync()
    roll_back(world, 1, earlier)
    return before, lost, write(world, 1, "f")


def lose_what_one_peer_has(world: World) -> tuple[list[str], list[str]]:
    """Region 1 goes back to what it had before it wrote the second list, which only region 2 has received."""
    before = write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d", "e")
    world.ship(1, 2, "x")
    roll_back(world, 1, earlier)
    return before, lost


def heal(world: World, act: Callable[[], object]) -> None:
    """The link from region 1 to region 2 finds the loss, and is interrupted."""
    home = Interrupted(world, 1, act)
    link = Link(home, world.endpoints[2], here=world.region(1), there=world.region(2))
    asyncio.run(link.sync(b"x"))
    assert home.happened


def test_what_is_deleted_while_it_comes_back_stays_deleted(make_world: Make) -> None:
    world = make_world(3)
    before, lost, later = lose(world)

    def act() -> None:
        world.ship(1, 3, "x")
        assert world[1].xdel("x", lost.pop(1)) == 1

    heal(world, act)
    assert_alike(world, before + lost + later)


@pytest.mark.parametrize("healed", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_a_stream_that_is_deleted_while_its_entries_come_back_stays_deleted(
    make_world: Make, healed: bool, writes: bool
) -> None:
    world = make_world(3)
    lose(world)
    later = list[str]()

    def act() -> None:
        if healed:
            world.ship(1, 3, "x")
        world[1].delete("x")
        if writes:
            later.extend(write(world, 1, "g"))

    heal(world, act)
    assert_alike(world, later)


def test_what_is_deleted_while_it_is_passed_on_stays_deleted(make_world: Make) -> None:
    """Region 3 got less of what region 1 lost, and has gone on without the rest."""
    world = make_world(3)
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f")
    world.ship(1, 3, "x")
    world.ship(1, 2, "x")

    def act() -> None:
        assert world[1].xdel("x", lost.pop(1)) == 1
        world.ship(1, 3, "x")

    there = Interrupted(world, 3, act)
    link = Link(world.endpoints[1], there, here=world.region(1), there=world.region(3))
    asyncio.run(link.sync(b"x"))
    assert there.happened
    assert_alike(world, before + lost + later)


@pytest.mark.parametrize("writes", [True, False])
def test_a_deletion_right_after_a_loss_takes_what_its_region_has(make_world: Make, writes: bool) -> None:
    """What it had lost at that moment survives, everywhere."""
    world = make_world(3)
    write(world, 1, "a", "b")
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "c", "d")
    world.ship(1, 2, "x")
    lost += write(world, 1, "e")
    world.ship(1, 3, "x")
    roll_back(world, 1, earlier)
    world[1].delete("x")
    later = write(world, 1, "f") if writes else []
    assert_alike(world, lost + later)
    world[1].delete("x")
    assert_alike(world, [])
    assert ids(world, 1) == []


def test_a_region_does_not_delete_again_what_a_peer_has_never_had(make_world: Make) -> None:
    """Region 2 has lost its journal. Region 3, which it meets later, lacks what region 1 has lost since."""
    world = make_world(3)
    before = write(world, 1, "a", "b", "c")
    world.sync()
    earlier = snapshot(world.engines[1])
    world[2].xdel("x", before.pop(1))
    world.sync()
    roll_back(world, 2, earlier)
    world.sync([1, 2])
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "d", "e")
    world.ship(1, 2, "x")
    roll_back(world, 1, earlier)
    later = write(world, 1, "f", "g")
    world.ship(1, 3, "x")
    world[3].xdel("x", later.pop())
    world.ship(2, 3, "x")
    assert_alike(world, before + lost + later)


def test_a_lost_journal_is_done_again_once(make_world: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that cannot be written to keeps the old end of it."""
    world = make_world(2)
    before = write(world, 1, "a", "b", "c")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].xdel("x", before.pop(1))
    world.sync()
    roll_back(world, 1, earlier)
    with world.engines[1].client() as engine:
        engine.config_set("min-replicas-to-write", 1)
        for _ in range(2):
            with pytest.raises(ReplyError, match="NOREPLICAS"):
                world.ship(1, 2, "x")
            meet_again(world)
        engine.config_set("min-replicas-to-write", 0)
    assert caplog.text.count("region.lost_tail") == 1
    assert_alike(world, before)


def test_what_is_written_below_the_lost_entries_reaches_the_peers(make_world: Make) -> None:
    """The clock of the server that comes back is behind."""
    world = make_world(3, id_mode="semi-strict")
    before = [world[1].xadd("x", {"n": "a"}, id=ms) for ms in ("100", "101")]
    gone = world[1].xadd("x", {"n": "b"}, id="102")
    world.sync()
    earlier = snapshot(world.engines[0])
    world[1].xdel("x", gone)
    lost = [world[1].xadd("x", {"n": "c"}, id=ms) for ms in ("500", "501")]
    world.sync()
    roll_back(world, 1, earlier)
    later = [world[1].xadd("x", {"n": "d"}, id=ms) for ms in ("200", "201")]
    assert_alike(world, before + later + lost)


def delete_beyond_memory(world: World, *entries: str) -> None:
    """Region 3 deletes entries, and its journal no longer reaches back to them."""
    journal = keys.journal(b"x", 3)
    with world.engines[2].client() as client:
        for entry in entries:
            assert world[3].xdel("x", entry) == 1
            client.xtrim(journal, maxlen=1, approximate=False)


@pytest.mark.parametrize("deletes_later", [True, False])
def test_what_came_back_is_not_deleted_for_a_peer_that_has_never_had_it(
    make_world: Make, deletes_later: bool
) -> None:
    """Region 3 went on without the entries, and compares its copy with that of region 1."""
    world = make_world(3)
    gone = write(world, 3, "y", "z")
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f", "g")
    world.ship(1, 3, "x")
    world.ship(1, 2, "x")
    delete_beyond_memory(world, *gone, *(later[:1] if deletes_later else ()))
    world.ship(3, 1, "x")
    assert_alike(world, before + lost + later[int(deletes_later) :])


def test_what_a_region_lost_is_not_deleted_where_it_is_left(make_world: Make) -> None:
    """Region 3 went on without the entries, and compares its copy with the last that has them."""
    world = make_world(3)
    gone = write(world, 3, "y", "z")
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f")
    world.ship(1, 3, "x")
    delete_beyond_memory(world, *gone)
    world.ship(3, 2, "x")
    assert_alike(world, before + lost + later)


def test_after_all_came_back_a_comparison_deletes_again(make_world: Make) -> None:
    """Once region 3 has what came back to region 1, what region 3 deletes of it is deleted."""
    world = make_world(3)
    before, lost, later = lose(world)
    world.sync()
    delete_beyond_memory(world, *lost[:2])
    world.ship(3, 1, "x")
    assert_alike(world, before + lost[2:] + later)


def flush(world: World, region: int) -> None:
    """What somebody types by mistake. The functions stay."""
    with world.engines[region - 1].client() as client:
        client.flushall()


def test_what_a_region_deletes_again_is_not_taken_from_a_peer_that_is_flushed(make_world: Make) -> None:
    """FLUSHALL breaks no connection: between two commands of a link the peer's copy is gone."""
    world = make_world(2)
    written = write(world, 1, "a", "b", "c", "d")
    world.sync()
    earlier = snapshot(world.engines[0])
    assert world[1].xdel("x", written[1]) == 1
    world.sync()
    roll_back(world, 1, earlier)
    peer = Interrupted(world, 2, partial(flush, world, 2), before="bs_entry_list")
    link = Link(world.endpoints[1], peer, here=world.region(1), there=world.region(2))
    with contextlib.suppress(ReplyError, BraidError):
        asyncio.run(link.sync(b"x"))
    assert peer.happened
    assert set(written) - {written[1]} <= set(ids(world, 1))


def test_a_comparison_deletes_nothing_for_a_server_that_is_flushed(make_world: Make) -> None:
    world = make_world(3)
    written, gone = write(world, 1, "a", "b"), write(world, 3, "y", "z")
    world.sync()
    delete_beyond_memory(world, *gone, written[1])
    source = Interrupted(world, 3, partial(flush, world, 3), before="bs_entry_list")
    link = Link(source, world.endpoints[1], here=world.region(3), there=world.region(1))
    with contextlib.suppress(ReplyError, BraidError):
        asyncio.run(link.sync(b"x"))
    assert source.happened
    assert written[0] in ids(world, 1)


def test_a_copy_that_began_late_is_not_complete_when_lost_entries_reach_it(make_world: Make) -> None:
    """Region 3 was flushed and got only newer entries. It does not make others trim the older ones."""
    world = make_world(3)
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f")
    world.ship(1, 3, "x")
    strand = Strand(b"x", keys.GENERATED, 1)
    with world.engines[2].client() as client:
        [(first, _)] = client.xrevrange(strand.key, count=1)
        client.xtrim(strand.key, minid=first, approximate=False)
        client.hset(keys.meta(b"x"), MetaField.NEW + strand.label, first)
    world.ship(1, 2, "x")
    world.ship(1, 3, "x")
    world.ship(3, 2, "x")
    world.ship(3, 1, "x")
    assert ids(world, 1) == ids(world, 2) == before + lost + later
