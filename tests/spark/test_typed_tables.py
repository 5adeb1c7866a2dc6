"""Every stream is a table: typed columns, new fields, values that do not fit; each entry once."""

import json
import math
import multiprocessing
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from duckdb_extensions import import_extension
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.errors import LakeError
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.jobs.erasure import Forget, forget
from braidstream.spark.lake import rewrite
from braidstream.spark.lake.log import Change, Lake, State
from braidstream.spark.lake.typed_columns import RESCUED, Typing
from braidstream.spark.options import Servers
from braidstream.spark.source.rows import position
from tests.support.cli import BRAID
from tests.support.delta_readers import READERS
from tests.support.lakes import Run, archived, files_with
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

SCHEMA = Typing.parse("n long, amount double")
OPEN = Typing.parse("n long, amount double, *")


def query(lake: str, columns: str, table: str = "orders") -> list[tuple[Any, ...]]:
    """What a data engineer sees in DuckDB."""
    import_extension("delta")
    found = duckdb.sql(f"SELECT {columns} FROM delta_scan('{lake}/{table}') ORDER BY position")
    return found.fetchall()


def files_on_disk(lake: str) -> set[str]:
    return {str(each.relative_to(lake)) for each in Path(lake).rglob("*.parquet")} - {
        str(each.relative_to(lake)) for each in Path(lake).rglob("_delta_log/*")
    }


def test_a_stream_is_a_table_with_typed_columns(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        entries = [client.xadd("orders", {"n": n, "amount": f"{n}.50"}).decode() for n in range(3)]
        client.execute_command("XADD", "orders", "*", "n", "3", "amount", "cheap", "n", "4", "note", b"\xff")
    assert archive(schema=SCHEMA).entries == 4
    *rows, last = query(lake, "id, n, amount, _rescued")
    assert rows == [(entry, n, n + 0.5, None) for n, entry in enumerate(entries)]
    assert last[1:3] == (4, None)
    assert json.loads(last[3]) == {"n": ["3", "4"], "amount": "cheap", "note": "base64:/w=="}
    assert duckdb.sql(f"SELECT sum(n) FROM delta_scan('{lake}/orders')").fetchone() == (7,)
    assert pa.schema(DeltaTable(f"{lake}/orders").schema().to_arrow()).field("n").type == pa.int64()


def test_a_table_has_its_columns_before_its_first_entry(archive: Run, lake: str, engine: Engine) -> None:
    with engine.client() as client:
        client.xgroup_create("orders", "bills", mkstream=True)
    archive(schema=SCHEMA)
    assert query(lake, "n, amount, _rescued") == []


@pytest.mark.parametrize("how", [{}, {"streams": (), "pattern": b"*"}], ids=["own table", "one table"])
def test_typed_columns_survive_deletions_merges_and_vacuum(
    archive: Run, lake: str, engine: Engine, how: dict[str, Any]
) -> None:
    table = "" if how else "orders"
    with engine.client() as client:
        client.xadd("orders", {"n": 0, "amount": "x"})
        archive(**how)  # a file without the columns
        entries = [client.xadd("orders", {"n": 1, "amount": "y"})]
        merged = 0
        for n in range(2, 12):
            entries.append(client.xadd("orders", {"n": n, "amount": n / 2}))
            merged += archive(schema=SCHEMA, **how).merged
        assert merged >= 8
        client.xdel("orders", entries[4])
        assert archive(**how).deleted == 1  # also by an archive without a schema
        Lake(lake).vacuum(grace_s=0)
        rows = query(lake, "n, amount, _rescued", table)
        kept = [n for n in range(2, 12) if n != 5]
        assert rows == [
            (None, None, None),
            (1, None, '{"amount":"y"}'),
            *((n, n / 2, None) for n in kept),
        ]
        assert archived(lake) == [0, 1, *kept]
        for reader in READERS.values():
            assert len(reader(f"{lake}/{table}".rstrip("/"))) == len(kept) + 2


def test_a_new_field_becomes_a_column_only_if_the_schema_is_open(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        client.xadd("orders", {"n": 1, "tag": "a"})
        archive(schema=SCHEMA)
        client.xadd("orders", {"n": 2, "tag": "b", "id": "x", "Tag": "c", "a b": "d"})
        assert archive(schema=OPEN).entries == 1
        client.xadd("orders", {"n": 3, "tag": "e"})
        assert archive().entries == 1  # an archive without a schema fills the columns that exist
        client.xadd("orders", {"n": 4, "tag": "f", "more": "g"})
        assert archive(schema=SCHEMA).entries == 1
    assert query(lake, 'n, "Tag", id_, _rescued') == [
        (1, None, None, '{"tag":"a"}'),
        (2, "c", "x", '{"tag":"b","a b":"d"}'),
        (3, None, None, '{"tag":"e"}'),
        (4, None, None, '{"tag":"f","more":"g"}'),
    ]
    assert files_on_disk(lake) == set(Lake(lake).load().files)  # nothing is left of the first attempt
    assert archived(lake) == [1, 2, 3, 4]


def test_new_fields_of_many_tasks_become_columns_under_spark(
    archive: Run, lake: str, engine: Engine, spark: SparkSession
) -> None:
    with engine.client() as client:
        for n in range(40):
            client.xadd(f"s{n % 4}", {"n": n, f"f{n % 8}": n})
    names = tuple(b"s%d" % n for n in range(4))
    assert archive(spark, streams=names, schema=OPEN).entries == 40
    for n in range(4):
        rows = query(lake, f"n, f{n}, f{n + 4}, _rescued", f"s{n}")
        assert rows == [
            (each, *(str(each) if each % 8 == n + more else None for more in (0, 4)), None)
            for each in range(n, 40, 4)
        ]


def test_a_column_keeps_its_type_and_a_schema_may_add_columns(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        client.xadd("orders", {"n": 1, "amount": "2", "tag": "7"})
        archive(schema=SCHEMA)
        with pytest.raises(LakeError, match="column amount is double, in the schema amount is int64"):
            archive(schema=Typing.parse("amount long"))
        client.xadd("orders", {"n": 2, "amount": "3", "tag": "8"})
        assert archive(schema=Typing.parse("n long, tag int")).entries == 1
    assert query(lake, "n, amount, tag, _rescued") == [(1, 2.0, None, '{"tag":"7"}'), (2, 3.0, 8, None)]


def test_a_pattern_with_a_schema_types_each_table_of_a_lake_of_many(
    archive: Run, lake: str, engine: Engine
) -> None:
    """Those that have no columns yet, new ones, and those of streams that come later."""
    servers = Servers((engine.url,), {})
    with engine.client() as client:
        client.xadd("a", {"n": 1})
        archive(streams=(b"a",))
        client.xadd("a", {"n": 2})
        client.xadd("b", {"n": 3, "tag": "x"})
        archiver = Archiver(None, Archive(lake, servers, pattern=b"*", schema=OPEN))
        assert archiver.round().entries == 2
        client.xadd("c", {"n": "many"})
        # A pattern is searched again after a while, longer on a slow machine.
        eventually(lambda: archiver.round().entries == 1, within_s=60, why="the new stream was found")
        archiver.close()
    assert sorted(each.name for each in Path(lake).iterdir() if each.name != "_braid") == ["a", "b", "c"]
    assert query(lake, "n, _rescued", "a") == [(None, None), (2, None)]
    assert query(lake, "n, tag, _rescued", "b") == [(3, "x", None)]
    assert query(lake, "n, _rescued", "c") == [(None, '{"n":"many"}')]


class Killed(Exception):
    """The round ended where the test wanted it to."""


def test_a_round_that_is_killed_after_it_added_a_column_is_done_again(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Killed

    with engine.client() as client:
        client.xadd("orders", {"n": 1})
        archive(schema=OPEN)
        client.xadd("orders", {"n": 2, "tag": "a"})
        with monkeypatch.context() as here:
            here.setattr(Lake, "commit", die)
            with pytest.raises(Killed):
                archive(schema=OPEN)
        assert query(lake, "n, tag") == [(1, None)]
        assert archive(schema=OPEN).entries == 1
    assert query(lake, "n, tag, _rescued") == [(1, None, None), (2, "a", None)]


def test_of_two_archives_that_add_columns_at_once_each_entry_is_there_once(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, raced = Lake.commit, list[int]()

    def race(self: Lake, state: State, change: Change) -> State:
        if not raced:
            raced.append(0)
            with engine.client() as client:
                client.xadd("orders", {"n": 2, "b": "y"})
            raced.append(archive(schema=OPEN).entries)  # the other one adds columns and commits first
        return real(self, state, change)

    with engine.client() as client:
        client.xadd("orders", {"n": 1, "a": "x"})
    monkeypatch.setattr(Lake, "commit", race)
    assert archive(schema=OPEN).entries == 0
    assert raced[1] == 2
    assert query(lake, "n, a, b, _rescued") == [(1, "x", None, None), (2, None, "y", None)]


SECRET = b"anna@example.org-0123456789-secret"


def test_what_is_forgotten_is_in_no_column_and_in_no_statistics(
    archive: Run, lake: str, engine: Engine, spark: SparkSession
) -> None:
    mail = Typing.parse("n long, mail string")
    with engine.client() as client:
        for n in range(4):
            client.xadd("orders", {"n": n, "mail": SECRET if n == 1 else "x"})
        client.execute_command("XADD", "orders", "*", "n", 4, "mail", SECRET, "mail", SECRET)
        client.xadd("orders", {"n": 5, "note": SECRET})
    archive(schema=mail)
    assert files_with(lake, SECRET)
    where = f"fields['mail'] = '{SECRET.decode()}' OR fields['note'] = '{SECRET.decode()}'"
    assert forget(spark, Forget(lake, where, None, (b"orders",))).dropped == 3
    assert not files_with(lake, SECRET)
    assert query(lake, f"n, mail, {RESCUED}") == [(0, "x", None), (2, "x", None), (3, "x", None)]


def test_what_another_program_rewrites_keeps_its_columns(archive: Run, lake: str, engine: Engine) -> None:
    """OPTIMIZE and DELETE of delta-rs; then deletions, merges and new columns of the archive."""
    schema = Typing.parse("n long, amount decimal(9, 2), at timestamp, tag string")
    with engine.client() as client:

        def send(n: int, **more: str) -> Any:
            fields = {"n": n, "amount": f"{n}.25", "at": f"2026-11-16T00:00:{n:02}Z", "tag": f"t{n}"}
            return client.xadd("orders", {**fields, **more})

        entries = [send(n) for n in range(3)]
        archive(schema=schema)
        entries.append(send(3, amount="free"))
        archive(schema=schema)
        assert DeltaTable(f"{lake}/orders").optimize.compact()["numFilesRemoved"] == 2
        client.xdel("orders", entries[1])
        assert archive().deleted == 1
        DeltaTable(f"{lake}/orders").delete(f"id = '{entries[0].decode()}'")
        merged = 0
        for n in range(4, 12):
            send(n, more="x")
            merged += archive(schema=replace(schema, is_open=True)).merged
        assert merged >= 8
    rows = query(lake, 'n, amount::TEXT, epoch("at")::INT % 60, tag, more, _rescued')
    assert rows[0] == (2, "2.25", 2, "t2", None, None)
    assert rows[1] == (3, None, 3, "t3", None, '{"amount":"free"}')
    assert rows[2:] == [(n, f"{n}.25", n, f"t{n}", "x", None) for n in range(4, 12)]
    assert archived(lake) == list(range(2, 12))


def follow(url: str, lake: str) -> None:
    """An archive that never ends, with upkeep in every round."""
    what = Archive(lake, Servers((url,), {}), (b"orders",), schema=OPEN, trim=True, keep_s=0)
    archiver = Archiver(None, what)
    while True:
        archiver.round()
        time.sleep(0.1)  # its pace


def test_each_entry_is_in_the_table_once_whenever_archives_are_killed(lake: str, engine: Engine) -> None:
    """Two archives at once, which add columns, merge and trim; one or the other is killed."""
    become(engine)
    dice, spawn, sent = random.Random(7), multiprocessing.get_context("spawn"), 0
    with client_of(engine) as client:
        client.xadd("orders", {"n": sent})
        running = [spawn.Process(target=follow, args=(engine.url, lake)) for _ in range(2)]
        for each in running:
            each.start()
        for kill in range(6):
            deadline = time.monotonic() + dice.uniform(1, 3)
            while time.monotonic() < deadline:
                sent += 1
                client.xadd("orders", {"n": sent, "amount": sent / 4, f"f{sent % (kill + 1)}": sent})
            victim = running.pop(0)
            assert victim.is_alive()
            victim.kill()
            victim.join()
            running.append(spawn.Process(target=follow, args=(engine.url, lake)))
            running[-1].start()
        for each in running:
            each.kill()
            each.join()
    last = Archiver(None, Archive(lake, Servers((engine.url,), {}), (b"orders",), schema=OPEN))
    last.round()
    last.close()
    rows = query(lake, "n, amount, _rescued")
    assert rows == [(0, None, None), *((n, n / 4, None) for n in range(1, sent + 1))]
    assert archived(lake) == list(range(sent + 1))


def test_a_merge_that_loses_against_a_deletion_leaves_no_file(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has what was deleted: `forget` would not find it, because no commit names it."""
    real, raced = rewrite._replace, list[int]()

    def late(here: Lake, streams: Any, made: Any, what: str) -> rewrite.Dropped:
        if made and not raced:
            raced.append(len(made))
            other = Lake(lake)
            state = other.load()
            path, file = next(iter(state.files.items()))
            drops = [(path, "p", position(file.first))]
            rewrite.rewrite(None, other, state, rewrite.without(state, drops), "forget")
            other.vacuum(grace_s=0)
        return real(here, streams, made, what)

    monkeypatch.setattr(rewrite, "_replace", late)
    with engine.client() as client:
        for n in range(8):
            client.xadd("orders", {"n": n})
            archive(schema=SCHEMA)
    assert raced == [1]
    assert len(query(lake, "n")) == 7
    assert files_on_disk(lake) == set(Lake(lake).load().files)


def braid(*words: str) -> Any:
    return CliRunner().invoke(app, ["spark", *words])


def test_the_ddl_for_duckdb_registers_the_table(archive: Run, lake: str, engine: Engine) -> None:
    with engine.client() as client:
        client.xadd("my-orders", {"n": 7})
    archive(streams=(b"my-orders",), schema=SCHEMA)
    told = braid("ddl", "--table", f"{lake}/my-orders", "--for", "duckdb")
    assert told.exit_code == 0, told.output
    import_extension("delta")
    with duckdb.connect() as session:
        session.execute(told.stdout)
        assert session.sql('SELECT n, amount FROM "my-orders"').fetchall() == [(7, None)]
    everything = braid("ddl", "--table", f"{lake}/my-orders", "--name", "Orders").stdout
    assert f"CREATE TABLE IF NOT EXISTS `Orders` USING delta LOCATION '{lake}/my-orders';" in everything
    assert f"table_name => 'orders', table_location => 'file://{lake}/my-orders'" in everything
    assert "is not a table" in " ".join(braid("ddl", "--table", f"{lake}/none").output.split())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--table", "/x/orders", "--lake", "/x"], "give either --table"),
        ([], "give either --table"),
        (["--table", "/x/orders", "--schema", "n"], "'n' is not a column"),
        (["--table", "/x/other", "--streams", "orders"], "the table of stream orders is /x/orders"),
        (["--table", "/x/orders", "--pattern", "*"], "--table is the table of one stream"),
        (["--table", "/x/orders"], "has no typed columns yet. Give --schema"),
    ],
)
def test_what_cannot_be_a_table_is_refused_before_spark_starts(
    engine: Engine, words: list[str], why: str
) -> None:
    with engine.client() as client:
        client.xadd("orders", {"n": 1})
    told = braid("archive", "--url", engine.url, *words)
    assert told.exit_code == 2
    assert why in " ".join(told.output.split())


def test_a_followed_table_is_fresh_says_so_and_ends_on_sigterm(lake: str, engine: Engine) -> None:
    become(engine)
    words = ["spark", "archive", "--url", engine.url, "--table", f"{lake}/orders", "--schema", "n long, *"]
    words += ["--follow", "--every", "100ms", "--metrics", "0", "--json"]
    with client_of(engine) as client, ThreadPoolExecutor(1) as reader:
        client.xadd("orders", {"n": 0})
        process = subprocess.Popen([*BRAID, *words], stdout=-1, stderr=-1, text=True)
        try:
            assert process.stderr is not None
            line = reader.submit(_line_with, process.stderr, "metrics at ").result()
            page = line.split()[-1]
            eventually(lambda: Path(lake, "orders/_delta_log").exists(), within_s=30, why="a table")
            for n in range(1, 6):
                client.xadd("orders", {"n": "x" if n == 3 else n, "tag": "a"})
                there = partial(lambda wanted: len(query(lake, "n")) == wanted, n + 1)
                eventually(there, within_s=30, why="the entry should be readable")
            assert query(lake, "n, tag")[1:4] == [(1, "a"), (2, "a"), (None, "a")]
            told = urlopen(page, timeout=10).read().decode()
            assert 'braid_lake_entries_total{region="us-east",stream="orders"} 6' in told
            assert 'braid_lake_rescued_total{region="us-east",stream="orders"} 1' in told
            assert 'braid_lake_freshness_seconds_count{region="us-east",stream="orders"}' in told
            assert urlopen(page.replace("/metrics", "/readyz"), timeout=10).status == 200
        finally:
            process.terminate()
            out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    done = json.loads(out)
    assert (done["entries"], done["rescued"], done["left"]) == (6, 1, 0)


def _line_with(lines: Any, wanted: str) -> str:
    return next(line for line in lines if wanted in line)


def test_upkeep_runs_now_and_then_while_rounds_run_all_the_time(lake: str, engine: Engine) -> None:
    servers = Servers((engine.url,), {})
    how = Archive(lake, servers, (b"orders",), keep_s=0, trim=True, upkeep_s=3600, local_entries=1000)
    with engine.client() as client:
        archiver = Archiver(None, how)
        try:
            for n in range(20):
                last = client.xadd("orders", {"n": n})
                done = archiver.round()
                assert done.entries == 1
                assert done.age_s is not None
                assert 0 <= done.age_s < 60
                assert done.trimmed == (n == 0)
            client.xdel("orders", last)
            assert archiver.round().deleted == 0
            archiver._kept_up = -math.inf
            done = archiver.round()
        finally:
            archiver.close()
    assert (done.deleted, done.trimmed, done.merged) == (1, 18, 19)
    assert archived(lake) == list(range(19))
