"""archive: the lake keeps what a server has lost, and reports what was lost before it was archived."""

import time
from typing import Any

import pytest

from braidstream.errors import DataLossError, LakeError
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.plan.plan import Plan
from braidstream.spark.jobs import deletions, removal
from braidstream.spark.jobs.removal import trim
from braidstream.spark.lake.log import Lake
from braidstream.spark.options import Servers
from braidstream.spark.source.survey import Surveyor
from tests.support.lakes import Run, add, archived
from tests.support.limited_rights import OWN, ship
from tests.support.regions import become, client_of
from tests.support.rolling_back import roll_back, snapshot
from tests.support.servers import Engine
from tests.support.world import World


def test_the_lake_keeps_entries_that_a_server_has_lost(archive: Run, lake: str, engine: Engine) -> None:
    """A failover to a replica that lags: entries 15 to 19 are missing, and they were not deleted."""
    with engine.client() as client:
        entries = add(client, *range(15))
        client.xdel("orders", entries[3])
        replica = client.dump("orders")
        add(client, *range(15, 20))
        archive()
        client.restore("orders", 0, replica, replace=True)
        later = add(client, *range(20, 24))
        archive()
        client.xdel("orders", entries[5])
        assert archive().deleted == 1
        client.xdel("orders", later[0])
        [note] = archive().notes
        assert "stream orders, strand p:" in note
        assert archived(lake) == [n for n in range(24) if n not in (3, 5)]
        last = add(client, 24, 25)
        archive()
        client.xdel("orders", last[0])
        assert archive().deleted == 1  # what comes after the loss is compared as before
    assert archived(lake) == [n for n in range(26) if n not in (3, 5, 24)]


def lose_key(engine: Engine) -> None:
    """The key of a strand is deleted by hand, or evicted: the registry still has the strand."""
    with engine.client() as client:
        assert client.delete("bs:1:s:{orders}") == 1


def test_the_lake_keeps_a_stream_whose_key_was_lost(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        add(client, *range(10))
        archive(trim=True)
        add(client, *range(10, 20))
        archive()
        lose_key(engine)
        add(client, 20)
        done = archive()
        assert (done.entries, done.deleted) == (1, 0)
        assert "the server has lost its key" in done.notes[0]
        assert archived(lake) == archived(lake, url=engine.url) == list(range(21))
        [last] = add(client, 21)
        assert archive().notes == ()
        client.xdel("orders", last)
        assert archive().deleted == 1
        lose_key(engine)
        add(client, *range(22, 30))
        client.xtrim("orders", maxlen=2, approximate=False)
        with pytest.raises(DataLossError, match="6 entries after .* were trimmed before they were archived"):
            archive()
        client.delete("orders")
        add(client, 30)
        assert archive().deleted == 21
    assert archived(lake) == [30]


def test_the_lake_deletes_what_a_peer_deleted_after_a_key_was_lost(
    archive: Run, lake: str, engine: Engine
) -> None:
    with Engine() as two:
        world = World([engine, two])
        try:
            add(world[1], *range(3))
            world.sync()
            archive()
            lose_key(engine)
            add(world[1], 3)
            world[2].delete("orders")
            world.ship(2, 1, "orders")
            assert archive().deleted == 3
        finally:
            world.close()
    assert archived(lake) == [3]


def test_a_trim_after_a_loss_takes_nothing_out_of_a_peers_lake(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Region 1 cannot restore what it has lost. Its later trims remove single entries in region 2."""
    with Engine() as two, engine.client() as server:
        world, there = World([engine, two]), Servers((two.url,), {})
        try:
            add(world[1], *range(3))
            earlier = server.dump("bs:1:s:{orders}")
            add(world[1], 3, 4, 5)
            world.sync()
            server.restore("bs:1:s:{orders}", 0, earlier, replace=True)
            engine.replace_process()
            later = add(world[1], *range(6, 12))
            ship(world, "orders", OWN)
            assert archive(servers=there).entries == 12
            world[1].xtrim("orders", maxlen=2, approximate=False)
            ship(world, "orders", OWN)
            assert world[2].xlen("orders") == 3 + 2
            assert archive(servers=there).deleted == 0
            world[2].xdel("orders", later[-1])
            world[1].xtrim("orders", maxlen=1, approximate=False)
            real = deletions.read

            def overtaken(*how: Any) -> Any:
                ship(world, "orders", OWN)
                return real(*how)

            monkeypatch.setattr(deletions, "read", overtaken)
            assert archive(servers=there).deleted == 1
            assert archive(servers=there).deleted == 0
            assert world[2].xlen("orders") == 3
        finally:
            world.close()
            server.execute_command("ACL DELUSER daemon")
    assert archived(lake) == list(range(11))


def restore(engine: Engine, common: bytes, native: bytes, n: int) -> None:
    """As a link does that has found a lost entry."""
    with engine.client() as server:
        began = server.hget("bs:meta:{orders}", "n:s1")
        words = ("s1", 0, "", common, 1, began or "", 0, 0, native, 2, "n", n)
        mend = ("bs_strand_mend", 2, "bs:meta:{orders}", "bs:1:s:{orders}", *words)
        assert server.execute_command("FCALL", *mend) == 1


def test_entries_that_come_back_inside_a_restored_range_are_archived_before_they_are_trimmed(
    archive: Run, lake: str, engine: Engine
) -> None:
    become(engine)
    with client_of(engine) as client, engine.client() as server:
        add(client, 0, 1)
        ((last, _),) = server.xrevrange("bs:1:s:{orders}", count=1)
        ms, seq = last.split(b"-")
        lost = [b"%b-%d" % (ms, int(seq) + above) for above in (1, 2, 3)]
        while server.time()[0] * 1000 + server.time()[1] // 1000 <= int(ms):
            pass
        add(client, 5)
        archive()
        restore(engine, last, lost[0], 2)
        restore(engine, last, lost[2], 4)
        assert archive().entries == 2
        restore(engine, last, lost[1], 3)
        surveyor = Surveyor(Servers((engine.url,), {}), (b"orders",), None)
        assert set(trim(surveyor, Lake(lake).load(), keep_s=0, now_s=time.time())[0].values()) <= {0}
        surveyor.close()
        assert archive(trim=True).trimmed > 0
    assert archived(lake) == [0, 1, 2, 3, 4, 5]


def test_entries_that_come_back_below_the_position_are_archived_before_they_are_trimmed(
    archive: Run, lake: str, engine: Engine
) -> None:
    """Region 1 loses 5 to 8 and writes on; the archive follows; then region 2 restores them."""
    with Engine() as two:
        world = World([engine, two])
        try:
            add(world[1], *range(5))
            archive()
            world.sync()
            earlier = snapshot(engine)
            entries = add(world[1], 5, 6, 7, 8)
            archive(max_entries=2)
            world.sync()
            world[2].xdel("orders", entries[1])
            roll_back(world, 1, earlier)
            add(world[1], 9, 10)
            archive()
            assert archived(lake) == [0, 1, 2, 3, 4, 5, 6, 9, 10]
            world.sync()
            surveyor = Surveyor(Servers((engine.url,), {}), (b"orders",), None)
            assert set(trim(surveyor, Lake(lake).load(), keep_s=0, now_s=time.time())[0].values()) <= {0}
            surveyor.close()
            with world.answering():
                assert archive(trim=True).trimmed > 0
            assert world[1].xlen("orders") == 0
        finally:
            world.close()
    assert archived(lake) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]


def test_a_region_that_answers_in_the_middle_of_a_trim_is_not_trimmed(
    archive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine() as one, Engine() as two:
        world, both = World([one, two]), Servers((one.url, two.url), {})
        try:
            for region in (1, 2):
                add(world[region], 0, 1)
            world.sync()
            archive(servers=both)
            real, trimmed = removal.acknowledged, list[bytes]()

            def lost(strand: Strand) -> Plan[Id]:
                if trimmed:
                    one.kill()
                trimmed.append(strand.label)
                return real(strand)

            monkeypatch.setattr(removal, "acknowledged", lost)
            with world.answering():
                assert archive(servers=both, trim=True).trimmed == 2
            assert world[2].xlen("orders") == 4
        finally:
            world.close()


def test_what_was_trimmed_before_it_was_archived_is_a_loss(archive: Run, engine: Engine) -> None:
    with engine.client() as client:
        add(client, *range(5))
        archive()
        add(client, *range(5, 10))
        client.xtrim("orders", maxlen=2, approximate=False)
        with pytest.raises(DataLossError, match="3 entries after .* were trimmed before they were archived"):
            archive()
        done = archive(allow_loss=True)
    assert (done.entries, done.missed) == (2, 3)


def test_a_deletion_does_not_hide_what_was_trimmed_before_it_was_archived(
    archive: Run, engine: Engine
) -> None:
    with engine.client() as client:
        add(client, *range(5))
        archive()
        entries = add(client, *range(5, 20))
        client.xdel("orders", entries[-1])
        client.xtrim("orders", maxlen=2, approximate=False)
        with pytest.raises(DataLossError, match="13 entries after .* trimmed, or deleted .* archived"):
            archive()
        assert archive(allow_loss=True).entries == 2
        assert archive().entries == 0


def test_a_loss_is_told_in_a_region_that_the_archive_has_not_read_before(
    archive: Run, lake: str, engine: Engine
) -> None:
    with Engine() as two:
        world, there = World([engine, two]), Servers((two.url,), {})
        try:
            add(world[1], *range(5))
            world.sync()
            archive()
            add(world[1], *range(5, 20))
            world.sync()
            world[2].xtrim("orders", maxlen=2, approximate=False)
            with pytest.raises(
                DataLossError, match="in region 2 all archived entries are trimmed.* in region 1 only"
            ):
                archive(servers=there)
            assert archive().entries == 15  # nothing is lost where the trim has not arrived
            world.sync()
            assert archive(servers=there).entries == 0  # from here on it counts in region 2
            world[2].xtrim("orders", maxlen=0, approximate=False)
            add(world[1], 20, 21)
            world.sync()
            assert archive(servers=there).entries == 2
        finally:
            world.close()
    assert archived(lake) == list(range(22))


def test_what_was_deleted_before_it_was_archived_is_no_loss(archive: Run, lake: str, engine: Engine) -> None:
    with engine.client() as client:
        add(client, *range(5))
        archive(trim=True)
        entries = add(client, *range(5, 8))
        client.xdel("orders", entries[0])
        assert archive().missed == 1
    assert archived(lake) == [0, 1, 2, 3, 4, 6, 7]


def test_a_stream_whose_entries_were_all_deleted_is_no_loss(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        client.xdel("orders", *add(client, 1, 2))
        archive()
        add(client, 3)
        archive()
    assert archived(lake) == [3]


def test_the_lake_keeps_a_plain_stream_that_was_deleted_and_refuses_it_anew(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        add(client, 0)
        archive()
        client.delete("orders")
        assert archive().deleted == 0
        assert archived(lake) == archived(lake, url=engine.url) == [0]
        client.xadd("orders", {"n": 1}, id="5-0")
    with pytest.raises(LakeError, match="deleted and created again"):
        archive()


def test_a_stream_that_is_refused_stops_no_other(archive: Run, lake: str, engine: Engine) -> None:
    how: Any = {"streams": (), "pattern": b"*", "trim": True}
    with engine.client() as client:
        for name in ("orders", "again", "early"):
            add(client, 0, 1, name=name)
        archive(**how)
        client.delete("again")
        client.xadd("again", {"n": 7}, id="5-0")
        add(client, *range(2, 9), name="early")
        client.xtrim("early", maxlen=2, approximate=False)
        add(client, 2)
        done = archive(**how)
        assert (done.entries, done.refused) == (1, 2)
        assert ["deleted and created again" in note for note in done.notes] == [True, False]
        assert ["were trimmed before they were archived" in note for note in done.notes] == [False, True]
        assert (client.xlen("again"), client.xlen("early"), client.xlen("orders")) == (1, 2, 0)
    assert archived(lake) == [0, 1, 2]
    assert archived(lake, streams="again") == archived(lake, streams="early") == [0, 1]
