"""archive: deletions of a stream reach the lake, trims do not; entries lost before are reported."""

from typing import Any

import pytest

from braidstream.errors import DataLossError, LakeError
from braidstream.spark.jobs import deletions
from braidstream.spark.jobs.archive import Archiver
from braidstream.spark.lake.log import Lake
from braidstream.spark.options import Servers
from braidstream.spark.source.survey import Surveyor
from tests.support.lakes import Run, add, archived
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.world import World


def test_deletions_reach_the_lake(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        entries = add(client, *range(10))
        archive()
        client.xdel("orders", entries[4], entries[7])
        assert archive().deleted == 2
        assert archived(lake) == [0, 1, 2, 3, 5, 6, 8, 9]
        client.delete("orders")
        add(client, 10)
        assert archive().deleted == 8
    assert archived(lake) == [10]


def test_a_trim_of_the_users_takes_nothing_out_of_the_lake(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        entries = add(client, *range(10))
        archive()
        client.xtrim("orders", maxlen=4, approximate=False)
        client.xdel("orders", entries[8])
        assert archive().deleted == 1
    assert archived(lake) == [0, 1, 2, 3, 4, 5, 6, 7, 9]


@pytest.mark.parametrize(("left", "gone"), [(4, [8]), (0, [])])
def test_a_trim_while_lake_and_stream_are_compared_takes_nothing_out_of_the_lake(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, left: int, gone: list[int]
) -> None:
    become(engine)
    with client_of(engine) as client:
        entries = add(client, *range(10))
        archive()
        client.xdel("orders", entries[8])
        real = deletions.read

        def overtaken(*how: Any) -> Any:
            client.xtrim("orders", maxlen=left, approximate=False)
            return real(*how)

        monkeypatch.setattr(deletions, "read", overtaken)
        assert archive().deleted == len(gone)
        assert archive().deleted == 0
    assert archived(lake) == [n for n in range(10) if n not in gone]


def test_a_deletion_at_the_head_is_known_by_the_journal(engine: Engine, lake: str, archive: Run) -> None:
    """It looks like a trim. With peers a journal has the deletion, for them and for the lake."""
    with Engine() as other:
        world = World([engine, other])
        try:
            entries = add(world[1], *range(4))
            world.sync()
            archive()
            world[2].xdel("orders", entries[0])
            world.sync()
            assert archive().deleted == 1
        finally:
            world.close()
    assert archived(lake) == [1, 2, 3]


def test_an_archive_in_a_region_that_is_behind_deletes_only_what_was_deleted(
    archive: Run, lake: str, engine: Engine
) -> None:
    with Engine() as two:
        world, there = World([engine, two]), Servers((two.url,), {})
        try:
            entries = add(world[1], *range(10))
            world.sync()
            archive()
            add(world[1], *range(10, 15))
            archive()
            world[2].xdel("orders", entries[4])
            assert archive(servers=there).deleted == 1
        finally:
            world.close()
    assert archived(lake) == [n for n in range(15) if n != 4]


@pytest.mark.parametrize("is_first", [True, False], ids=["before the commit", "after it"])
def test_an_entry_that_is_deleted_while_an_archive_and_a_compaction_run_leaves_the_lake(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The archive has read the entry, the compaction compares lake and stream; which one commits first?"""
    with engine.client() as client:
        add(client, 0, 1)
        archive()
        entries = add(client, 2, 3)
        servers = Servers((engine.url,), {})
        real_read, real_rewrite, real_commit = Archiver._read, deletions.rewrite, Archiver._commit
        surveyor = Surveyor(servers, (b"orders",), None)

        def read(self: Archiver, work: Any) -> Any:
            files = real_read(self, work)
            monkeypatch.undo()
            client.xdel("orders", entries[0])
            if is_first:
                deletions.take_over(None, Lake(lake), surveyor)
            else:
                monkeypatch.setattr(Archiver, "_commit", commit)
            return files

        def commit(self: Archiver, *how: Any) -> None:
            monkeypatch.undo()

            def late(*rest: Any) -> Any:
                real_commit(self, *how)
                return real_rewrite(*rest)

            with monkeypatch.context() as here:
                here.setattr(deletions, "rewrite", late)
                deletions.take_over(None, Lake(lake), surveyor)

        monkeypatch.setattr(Archiver, "_read", read)
        archive()
        archive()
        surveyor.close()
    assert archived(lake) == [0, 1, 3]


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
