"""What was deleted in the engine leaves the lake; what was trimmed stays."""

from typing import Any

import pytest

from braidstream.spark.jobs import deletions
from braidstream.spark.jobs.archive import Archiver
from braidstream.spark.lake import rewrite
from braidstream.spark.lake.log import Lake
from braidstream.spark.options import Servers
from braidstream.spark.source.rows import position
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


def test_a_trim_that_spares_pending_entries_takes_nothing_out_of_the_lake(
    archive: Run, lake: str, engine: Engine
) -> None:
    """XTRIM ACKED removes single entries after the first, and the journal has them."""
    with Engine() as two:
        world, there = World([engine, two]), Servers((two.url,), {})
        try:
            entries = add(world[1], *range(20))
            world[1].xgroup_create("orders", "jobs", id="0")
            world[1].xreadgroup("jobs", "c", {"orders": ">"})
            world[1].xack("orders", "jobs", *entries[1:])
            world.sync()
            archive()
            with world.answering():
                assert world[1].execute_command("XTRIM", "orders", "MAXLEN", 5, "ACKED") == 15
            assert archive().deleted == 0
            world.sync()
            assert world[2].xlen("orders") == 5
            assert archive(servers=there).deleted == 0
            world[2].xdel("orders", entries[18])
            assert archive(servers=there).deleted == 1
        finally:
            world.close()
    assert archived(lake) == [n for n in range(20) if n != 18]


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

            def late(*rest: Any, local: int) -> Any:
                real_commit(self, *how)
                return real_rewrite(*rest, local=local)

            with monkeypatch.context() as here:
                here.setattr(deletions, "rewrite", late)
                deletions.take_over(None, Lake(lake), surveyor)

        monkeypatch.setattr(Archiver, "_read", read)
        archive()
        archive()
        surveyor.close()
    assert archived(lake) == [0, 1, 3]


@pytest.mark.parametrize(
    "step", [(deletions, "_journals"), (rewrite, "small_files")], ids=["compare", "merge"]
)
def test_files_that_another_job_deletes_while_they_are_read_stop_no_archive(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    """`forget` deletes files that it has replaced at once. The next round does what this one could not."""
    real = getattr(*step)

    def late(*how: Any, **more: Any) -> Any:
        done = real(*how, **more)
        monkeypatch.undo()
        other = Lake(lake)
        state = other.load()
        file = min(state.files.values(), key=lambda each: each.first)
        tasks = rewrite.without(state, [(file.path, "p", position(file.first))])
        rewrite.rewrite(None, other, state, tasks, "forget")
        assert other.vacuum(grace_s=0)
        return done

    with engine.client() as client:
        entries = list[bytes]()
        for n in range(rewrite.SMALL - 1):
            entries += add(client, 2 * n, 2 * n + 1)
            archive()
        client.xdel("orders", entries[3])
        add(client, 14, 15)
        monkeypatch.setattr(*step, late)
        assert archive().entries == 2
        assert archive().entries == 0
    assert archived(lake) == [1, 2, *range(4, 16)]
    assert len(Lake(lake).load().files) == 1
