"""FLUSHALL breaks no connection: between two commands of a link a server is empty, or has begun again.
No other region loses anything by it."""

import asyncio
import contextlib
from functools import partial
from pathlib import Path

import pytest
import redis

import braidstream
from braidstream import lua as functions
from braidstream.errors import BraidError, ReplyError
from braidstream.model import keys
from braidstream.model.fields import MetaField
from braidstream.model.strand import Strand
from braidstream.operations.membership import initialise, meet
from braidstream.replication.link.link import Link
from tests.support.cli import braid
from tests.support.daemons import write_config
from tests.support.rolling_back import (
    Interrupted,
    Make,
    assert_alike,
    delete_beyond_memory,
    ids,
    lose_what_one_peer_has,
    meet_again,
    roll_back,
    served_by,
    snapshot,
    write,
)
from tests.support.world import World


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


def test_a_link_creates_no_strand_that_clients_of_a_flushed_server_write_to(make_world: Make) -> None:
    """A group needs it to wait for entries. Clients that remember the region would append to it."""
    world = make_world(2)
    write(world, 1, "a")
    world[1].xgroup_create("x", "g", "0")
    world.sync()
    link = world.link(2, 1)
    flush(world, 1)
    write(world, 2, "b")
    with contextlib.suppress(ReplyError, BraidError):
        asyncio.run(link.sync(b"x"))
    with world.engines[0].client() as client:
        assert client.exists(Strand(b"x", keys.GENERATED, 2).key), "the link works until it notices"
        assert not client.exists(Strand(b"x", keys.GENERATED, 1).key)


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
        begin_late(client, strand)
    world.ship(1, 2, "x")
    world.ship(1, 3, "x")
    world.ship(3, 2, "x")
    world.ship(3, 1, "x")
    assert ids(world, 1) == ids(world, 2) == before + lost + later


def begin_late(client: redis.Redis, strand: Strand) -> None:
    """The server was flushed, and got only the last entry back."""
    [(first, _)] = client.xrevrange(strand.key, count=1)
    client.xtrim(strand.key, minid=first, approximate=False)
    client.hset(keys.meta(strand.name), MetaField.NEW + strand.label, first)
    client.hdel(keys.meta(strand.name), MetaField.HEAD + strand.label)


def test_a_region_that_lost_its_journal_keeps_what_a_flushed_peer_lacks(make_world: Make) -> None:
    """Region 2 has only the last of its own entries back, when region 1 asks what it has to delete again."""
    world = make_world(2)
    theirs, ours = write(world, 2, "a", "b", "c"), write(world, 1, "d", "e")
    world.sync()
    earlier = snapshot(world.engines[0])
    assert world[1].xdel("x", ours[0]) == 1
    world.sync()
    with world.engines[1].client() as client:
        begin_late(client, Strand(b"x", keys.GENERATED, 2))
    roll_back(world, 1, earlier)
    world.ship(1, 2, "x")
    assert set(ids(world, 1)) == {*theirs, ours[1]}


def test_restored_entries_do_not_begin_a_copy_that_was_flushed(make_world: Make) -> None:
    """If they did, the copy would look complete, and all regions would trim what is before them."""
    world = make_world(3)
    before, lost = lose_what_one_peer_has(world)
    later = write(world, 1, "f")
    world.ship(1, 3, "x")
    world.ship(1, 2, "x")
    strand = Strand(b"x", keys.GENERATED, 1)

    def act() -> None:
        flush(world, 3)
        with world.engines[2].client() as client:  # as a link that merges the registry
            client.hset(keys.meta(b"x"), strand.label, "0:+:0-0")
            client.xgroup_create(strand.key, "g", mkstream=True)
            client.xgroup_destroy(strand.key, "g")

    there = Interrupted(world, 3, act)
    link = Link(world.endpoints[1], there, here=world.region(1), there=world.region(3))
    with contextlib.suppress(ReplyError, BraidError):
        asyncio.run(link.sync(b"x"))
    assert there.happened
    back = Link(world.endpoints[3], world.endpoints[1], here=link.there, there=link.here, heals=False)
    with contextlib.suppress(ReplyError, BraidError):
        asyncio.run(back.sync(b"x", relay=True))
    assert ids(world, 1) == ids(world, 2) == before + lost + later


def test_a_region_that_lost_entries_which_were_deleted_elsewhere_hears_of_later_deletions(
    make_world: Make,
) -> None:
    """Its own strand is there again, empty: deletions of what it lost must not hold up those that follow."""
    world = make_world(2)
    ours = write(world, 1, "a", "b")
    world.sync()
    theirs = write(world, 2, "c", "d", "e")
    assert world[2].xdel("x", *ours) == 2
    with world.engines[0].client() as client:
        client.delete(keys.meta(b"x"), *client.keys("bs:*{x}*"))
    world[1].xgroup_create("x", "g", mkstream=True)
    meet_again(world)
    world.sync()
    assert world[2].xdel("x", theirs.pop(1)) == 1
    world.sync()
    assert ids(world, 1) == ids(world, 2) == theirs


def forget_stream(world: World, region: int) -> None:
    """All of the stream is gone in one region."""
    with world.engines[region - 1].client() as client:
        client.delete(*client.keys("bs:*{x}*"))


def test_a_copy_that_was_made_after_a_deletion_which_was_lost_gets_the_entry(make_world: Make) -> None:
    """Region 2 was flushed and copied the stream from region 1, which then went back to before the deletion.
    Only the journal could say so, and it was trimmed."""
    world = make_world(3)
    written = write(world, 1, "a", "b", "c", "d")
    world.sync()
    earlier = snapshot(world.engines[0])
    assert world[1].xdel("x", written[1]) == 1
    with world.engines[0].client() as client:
        client.xtrim(keys.journal(b"x", 1), maxlen=0, approximate=False)
    forget_stream(world, 2)
    meet_again(world)
    lost = write(world, 1, "e")
    world.ship(1, 2, "x")
    assert ids(world, 2) == [written[0], *written[2:], *lost]
    roll_back(world, 1, earlier)
    later = write(world, 1, "f")
    assert_alike(world, written + lost + later)


def test_what_only_one_peer_has_in_the_middle_comes_back_to_a_region_that_lost_all(make_world: Make) -> None:
    world = make_world(3)
    written = write(world, 1, "a", "b", "c", "d")
    world.sync()
    with world.engines[1].client() as client:
        client.xdel(Strand(b"x", keys.GENERATED, 1).key, written[1].replace("-1", "-0"))
    forget_stream(world, 1)
    meet_again(world)
    for peer in (2, 3):
        asyncio.run(world.link(1, peer).recover(b"x"))
    assert ids(world, 1) == written
    meet_again(world)
    assert_alike(world, written)


def test_the_oldest_entries_that_one_peer_has_left_are_not_trimmed_for_another(make_world: Make) -> None:
    """Region 3 never got what region 1 lost, and all before it is deleted there: its copy begins later."""
    world = make_world(3)
    served_by(world, 1, "one process")
    before, lost = lose_what_one_peer_has(world)
    served_by(world, 1, "another process")
    meet_again(world)
    later = write(world, 1, "f")
    world.ship(1, 3, "x")
    assert world[3].xdel("x", *before) == 2
    world.ship(3, 2, "x")
    world.ship(3, 1, "x")
    world.ship(1, 2, "x")
    world.ship(3, 1, "x")
    assert_alike(world, lost + later)


def test_a_region_that_lost_its_journal_keeps_what_its_peer_has_just_lost(make_world: Make) -> None:
    """Region 1 went back to an earlier state, and has not looked for losses yet."""
    world = make_world(2)
    served_by(world, 1, "one process")
    written = write(world, 1, "a", "b", "c")
    world.sync()
    assert world[2].xdel("x", written[0]) == 1
    world.sync()
    earlier = snapshot(world.engines[0])
    lost = write(world, 1, "d")
    world.sync()
    roll_back(world, 1, earlier)
    served_by(world, 1, "another process")
    assert world[1].xdel("x", *write(world, 1, "e")) == 1
    with world.engines[1].client() as client:
        client.delete(keys.journal(b"x", 2))
    meet_again(world)
    world.ship(2, 1, "x")
    assert_alike(world, written[1:] + lost)


def test_a_log_that_a_peer_restores_before_a_rejoin_looks_is_not_appended_again(
    make_world: Make, tmp_path: Path
) -> None:
    """The rejoin has put up the fence and failed then, or waits for clients to see it."""
    world = make_world(2)
    urls = {number: engine.url for number, engine in enumerate(world.engines, 1)}
    config = write_config(tmp_path / "braid.toml", urls)
    world[1].twrite("log", entries=[("t", "1"), ("t", "2"), ("t", "3")])
    world.sync()
    flush(world, 1)
    with braidstream.Redis.from_url(world.engines[0].url) as operator:
        operator.run_plan(initialise(1, "region-1", fenced=True))
        operator.run_plan(functions.load())
        operator.run_plan(meet((1, 2)))
    meet_again(world)
    world.ship(2, 1, "log", relay=True)
    assert world.engines[0].client().xlen("bs:1:t:{log}") == 3
    done = braid("region", "rejoin", "region-1", "--config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    meet_again(world)
    world.sync()
    assert [[row[2] for row in world[number].tread("log")] for number in world] == [["1", "2", "3"]] * 2
    assert world[1].twrite("log", "t", "4") == 4


@pytest.mark.parametrize("flushed", [1, 2])
def test_what_was_written_to_a_log_after_a_flush_gets_new_offsets(
    make_world: Make, tmp_path: Path, flushed: int
) -> None:
    """Also where it is not written: that region took it for a new log, and must not become its home."""
    world, config = make_world(2), tmp_path / "braid.toml"
    regions = enumerate(world.engines, 1)
    config.write_text(
        "\n".join(
            f'[[region]]\nid = {number}\nname = "region-{number}"\nurl = "{engine.url}"'
            for number, engine in regions
        )
    )
    world[1].twrite("log", entries=[("t", "1"), ("t", "2"), ("t", "3")])
    world.sync()
    flush(world, flushed)
    with world.engines[flushed - 1].client() as client:  # as a client that has not noticed yet
        for name in (b"log", b"new"):
            strand = Strand(name, keys.LOG, flushed)
            client.execute_command("FCALL", "bs_log_ensure", 2, keys.meta(name), strand.key, strand.label)
            client.execute_command("XADD", strand.key, "0-*", "t", "t", "e", "late")
    done = braid("region", "rejoin", f"region-{flushed}", "--config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    meet_again(world)
    world.sync()
    for name, expected in (("log", ["1", "2", "3", "late"]), ("new", ["late"])):
        assert [[row[2] for row in world[number].tread(name)] for number in world] == [expected] * 2
    assert world[1].twrite("log", "t", "5") == 5
    assert [world.engines[0].client().keys("bs:aside:*"), world[1].xinfo_stream("log")["home"]] == [[], 1]
