"""archive: copies streams into a lake, exactly once, whatever is killed; a trim removes nothing needed."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructType
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.errors import LakeError
from braidstream.model.strand import Strand
from braidstream.spark.jobs.archive import Archiver, Round
from braidstream.spark.lake.log import RETENTION, Lake
from braidstream.spark.lake.rewrite import tidy
from braidstream.spark.options import Servers
from tests.spark.conftest import Load
from tests.support.cli import braid
from tests.support.lakes import Run, add, archived
from tests.support.microbatch import rows_at_once
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.world import World


def test_a_round_takes_what_came_since_the_last(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        add(client, *range(10))
        assert archive().entries == 10
        add(client, 10, 11)
        assert archive().entries == 2
        assert archive() == Round(version=Lake(lake).load().version)
    assert archived(lake) == list(range(12))


def test_rows_of_the_lake_are_those_of_the_stream(archive: Run, lake: str, engine: Engine) -> None:
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        client.xadd("orders", {"n": 1, "": b"\xff\0"}, id="5-7")
        client.execute_command("XADD", "orders", "6-0", "n", 3, "n", 4, b"\xff", b"\xff")
        client.xadd("orders", {"n": 2, "w\u00f6rd": "x" * 100_000})
        client.xadd("orders", {"n": 3}, id="999999999999999-18446744073709551615")
    live = rows_at_once({"url": engine.url, "streams": "orders"})
    archive()
    history = {"lake": lake, "streams": "orders"}
    assert sorted(rows_at_once(history), key=str) == sorted(live, key=str)
    assert dict(next(row["fields"] for row in live if row["id"] == "6-0")) == {
        "n": b"4",
        "base64:/w==": b"\xff",
    }
    mine = StructType().add("n", IntegerType()).add("_id", StringType()).add("_region", IntegerType())
    typed = rows_at_once(history, mine)
    assert sorted(row["n"] for row in typed) == [1, 2, 3, 4]
    assert {(row["_id"], row["_region"]) for row in typed} == {(row["id"], row["region"]) for row in live}


def test_a_bound_of_entries_makes_several_rounds(archive: Run, lake: str, engine: Engine) -> None:
    with engine.client() as client:
        add(client, *range(10))
    sizes = []
    while (done := archive(max_entries=4)).entries:
        sizes.append((done.entries, done.left))
    assert sizes == [(4, 6), (4, 2), (2, 0)]
    assert archived(lake) == list(range(10))


class Killed(Exception):
    """The round ended where the test wanted it to."""


STEPS = {
    "before the commit": (Lake, "commit"),
    "in the commit, before it counts": (DeltaTable, "create_write_transaction"),
    "after the commit": (Archiver, "_tend"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_round_that_is_killed_is_done_again_or_was_done(
    archive: Run, lake: str, engine: Engine, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.client() as client:
        add(client, *range(5))
        archive()
        add(client, *range(5, 10))

        def die(*_: Any, **__: Any) -> None:
            raise Killed(step)

        with monkeypatch.context() as here:
            here.setattr(*STEPS[step], die)
            with pytest.raises(Killed):
                archive()
        add(client, 10)
    archive()
    assert archived(lake) == list(range(11))


def test_of_two_archives_at_once_one_starts_over(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.client() as client:
        add(client, *range(5))
    real, raced = Archiver._read, list[Round]()

    def race(self: Archiver, work: Any) -> Any:
        files = real(self, work)
        if not raced:
            raced.append(Round())
            raced.append(archive())  # the other one commits while our files are written
        return files

    monkeypatch.setattr(Archiver, "_read", race)
    assert archive().entries == 0
    assert raced[1].entries == 5
    assert archived(lake) == list(range(5))


def test_a_trim_leaves_what_a_group_needs(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine, decode_responses=True) as client:
        entries = add(client, *range(10))
        client.xgroup_create("orders", "bills", "0")
        client.xgroup_create("orders", "mails", "0")
        client.xreadgroup("bills", "b", {"orders": ">"})
        client.xack("orders", "bills", *entries[:3], *entries[4:])
        client.xreadgroup("mails", "m", {"orders": ">"}, count=6)
        client.xack("orders", "mails", *entries[:6])
        assert archive(trim=True).trimmed == 3  # bills has not acknowledged the fourth
        client.xack("orders", "bills", entries[3])
        assert archive(trim=True).trimmed == 3  # mails was given six
        assert [entry for entry, _ in client.xrange("orders")] == entries[6:]
        assert client.xinfo_groups("orders")[1]["lag"] == 4
    assert archived(lake) == list(range(10))


def test_a_trim_keeps_what_is_young_and_what_is_not_archived(archive: Run, engine: Engine) -> None:
    become(engine, id_mode="liberal")
    long_ago = int(time.time() * 1000) - 7_200_000
    with client_of(engine) as client:
        client.xadd("orders", {"n": 0}, id=f"{long_ago}-1")
        add(client, 1, 2)
        assert archive(trim=True, keep_s=3600).trimmed == 1
        assert client.xlen("orders") == 2
        assert archive(trim=True, keep_s=0, max_entries=1).trimmed == 2


def test_a_deletion_between_comparing_and_trimming_is_not_lost(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.client() as client:
        entries = add(client, *range(6))
        archive()
        real = Archiver._trim

        def late(self: Archiver, *how: Any) -> int:
            client.xdel("orders", entries[2])
            return real(self, *how)

        with monkeypatch.context() as here:
            here.setattr(Archiver, "_trim", late)
            assert archive(trim=True).trimmed == 0
        done = archive(trim=True)
    assert (done.deleted, done.trimmed) == (1, 5)
    assert archived(lake) == [0, 1, 3, 4, 5]


def test_small_files_are_merged_and_sorted_by_id(archive: Run, lake: str, engine: Engine) -> None:
    with Engine() as other:
        world = World([engine, other])
        try:
            for n in range(8):
                add(world[1 + n % 2], n)
                world.sync()
                archive()
        finally:
            world.close()
    [file] = Lake(lake).load().files.values()
    assert (file.rows, file.places, len(list(Path(lake).rglob("day=*/*.parquet")))) == (8, ("s1", "s2"), 9)
    rows = [row["id"] for row in rows_at_once({"lake": lake, "streams": "orders"})]
    assert rows == sorted(rows)
    assert archived(lake) == list(range(8))


def test_files_that_nobody_needs_go_after_a_while(archive: Run, lake: str, engine: Engine) -> None:
    home = Lake(lake)
    with engine.client() as client:
        for n in range(8):
            add(client, n)
            archive()
    stray = Path(lake, "orders/day=2026-11-15/stray.parquet")
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"left by a task that was killed")
    document = Path(lake, "orders/_braid/0000000000000001.json")
    document.write_text("left by a job that lost a race")
    assert home.vacuum() == 0
    assert home.vacuum(grace_s=0) == 8
    assert stray.exists()
    os.utime(stray, (0, 0))
    assert home.vacuum() == 1
    files = [str(path.relative_to(lake)) for path in Path(lake).rglob("day=*/*.parquet")]
    assert files == list(home.load().files)
    assert not document.exists()
    assert archived(lake) == list(range(8))


def test_an_archive_of_a_few_entries_needs_no_java(lake: str, engine: Engine) -> None:
    with engine.client() as client:
        for n in range(8):  # the last time it merges
            add(client, n)
            words = ("spark", "archive", "--url", engine.url, "--lake", lake, "--streams", "orders", "--json")
            done = braid(*words, env={"JAVA_HOME": "/nowhere"})
            assert done.returncode == 0, done.stderr
    assert archived(lake) == list(range(8))


def test_replaced_files_stay_as_long_as_the_table_says(archive: Run, lake: str, engine: Engine) -> None:
    """So time travel holds, and a streaming read of the table that lags."""
    with engine.client() as client:
        for n in range(8):
            add(client, n)
            archive()
    home = Lake(lake)
    for kept, gone in (("interval 2 weeks", 0), ("interval 1 days", 0), ("interval 0 hours", 8)):
        table = DeltaTable(f"{lake}/orders")
        before = len(DeltaTable(f"{lake}/orders", version=3).to_pyarrow_table()) if not gone else 0
        table.alter.set_table_properties({RETENTION: kept}, raise_if_not_exists=False)
        assert home.vacuum() == gone
        if not gone:
            assert len(DeltaTable(f"{lake}/orders", version=3).to_pyarrow_table()) == before > 0
    assert archived(lake) == list(range(8))


@pytest.mark.parametrize("hours", [23, 25])
def test_what_a_slow_round_has_written_is_not_taken_for_left_over_or_not_committed(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    with engine.client() as client:
        add(client, *range(5))
        archive()
        add(client, *range(5, 10))
        real = Archiver._read

        def slow(self: Archiver, work: Any) -> Any:
            files, began = real(self, work), time.time() - hours * 3600
            for each in files:
                os.utime(Path(lake) / each.path, (began, began))
            tidy(None, Lake(lake))  # another process of the same lake
            return files

        with monkeypatch.context() as here:
            here.setattr(Archiver, "_read", slow)
            if hours > 24:
                with pytest.raises(LakeError, match="was deleted before its commit.* Nothing was committed"):
                    archive(trim=True)
                assert client.xlen("orders") == 10
            else:
                assert archive(trim=True).trimmed == 10
    archive()
    assert archived(lake) == list(range(10))


def test_the_position_survives_checkpoints_and_its_form_is_checked(
    archive: Run, lake: str, engine: Engine
) -> None:
    """Delta forgets what a commit says about itself when old commits are cleaned up, not its transaction."""
    with engine.client() as client:
        add(client, *range(3))
        archive()
        table = DeltaTable(f"{lake}/orders")
        table.create_checkpoint()
        for each in sorted(Path(lake, "orders/_delta_log").glob("*.json"))[:-1]:
            each.unlink()
        add(client, 3)
        assert archive().entries == 1
    assert archived(lake) == list(range(4))
    document = max(Path(lake, "orders/_braid").iterdir())
    document.write_text('{"form": 99}')
    with pytest.raises(LakeError, match="has format 99, this braidstream supports 1"):
        Lake(lake).load()
    document.unlink()
    with pytest.raises(LakeError, match="cannot be read .* Restore it from a backup"):
        Lake(lake).load()


def test_a_lake_of_three_regions_goes_on_from_any_of_them(archive: Run, lake: str, engine: Engine) -> None:
    """The position is a frontier: what arrives late is taken when it arrives, from whichever region."""
    with Engine() as two, Engine("valkey-9.1") as three:
        world = World([engine, two, three])
        try:
            add(world[2], 0)
            add(world[1], 1)
            archive()
            world.sync()
            add(world[3], 2)
            assert archive(servers=Servers((two.url,), {})).entries == 1
            world.sync()
            add(world[1], 3)
            world.sync()
            assert archive(servers=Servers((three.url,), {})).entries == 2
            assert archive().entries == 0
        finally:
            world.close()
    assert archived(lake) == [0, 1, 2, 3]
    assert Strand(b"orders", "s", 3) in Lake(lake).load().frontier


def test_braid_spark_archive_does_it_under_spark(
    spark: SparkSession, load: Load, lake: str, engine: Engine
) -> None:
    become(engine)
    with client_of(engine) as client:
        add(client, *range(20), name="orders-1")
        add(client, *range(20, 30), name="orders-2")
    words = ["spark", "archive", "--url", engine.url, "--lake", lake, "--pattern", "orders-*", "--json"]
    told = CliRunner().invoke(app, [*words, "--trim", "--keep", "0s", "--max-entries", "12"])
    assert told.exit_code == 0, told.output
    seen = json.loads(told.stdout)
    assert {name: seen[name] for name in ("entries", "trimmed", "left", "rounds")} == {
        "entries": 30,
        "trimmed": 30,
        "left": 0,
        "rounds": 3,
    }
    with client_of(engine) as client:
        assert client.xlen("orders-1") == 0
        add(client, 30, name="orders-2")
    both = load(lake=lake, streamPattern="orders-*")
    assert sorted(int(row.fields["n"]) for row in both.collect()) == list(range(31))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        one = load(lake=lake, streamPattern="orders-*", pushFilters="true").where("stream = 'orders-1'")
        assert one.count() == 20
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
