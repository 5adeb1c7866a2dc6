"""A lake is Delta tables: every reader sees what the streams have, and nothing of an entry is lost."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.model.frontier import name_of_text, name_text
from braidstream.spark.jobs import erasure
from braidstream.spark.jobs.archive import Archiver
from braidstream.spark.jobs.compaction import Compact, Compactor
from braidstream.spark.jobs.erasure import Forget, forget
from braidstream.spark.lake.log import Lake, folder_of
from braidstream.spark.lake.typed_columns import Typing
from braidstream.spark.options import Servers
from tests.support.delta_readers import READERS, Rows
from tests.support.lakes import Run, add, archived, files_with
from tests.support.microbatch import rows_at_once
from tests.support.regions import become, client_of
from tests.support.servers import Engine

LAYOUTS: dict[str, dict[str, Any]] = {
    "a table per stream": {"streams": (b"orders", b"users")},
    "one table": {"streams": (), "pattern": b"*"},
}


def stored(client: Any, *names: bytes) -> Rows:
    """What Redis has, with repeated fields."""
    connection, found = client.connection_pool.get_connection(), Rows()
    for name in names:
        connection.send_command("XRANGE", name, "-", "+")
        for entry, words in connection.read_response(disable_decoding=True):
            pairs = zip((word.decode() for word in words[::2]), words[1::2], strict=True)
            found.append((name_text(name), entry.decode(), tuple(pairs)))
    client.connection_pool.release(connection)
    return sorted(found)


def tables(lake: str) -> list[str]:
    return sorted(str(each.parent) for each in Path(lake).rglob("_delta_log"))


def seen_by(reader: str, lake: str) -> Rows:
    return sorted(row for table in tables(lake) for row in READERS[reader](table))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_reader_agrees_with_redis_after_each_step(
    archive: Run, lake: str, engine: Engine, spark: SparkSession, layout: str
) -> None:
    names = (b"orders", b"users")
    with engine.client() as client:

        def agree(step: str) -> None:
            wanted = stored(client, *names)
            assert {reader: seen_by(reader, lake) == wanted for reader in READERS} == dict.fromkeys(
                READERS, True
            ), step

        for n in range(12):
            entry = f"{1_794_700_000_000 + n * 20_000_000}-0"  # several days
            client.execute_command("XADD", "orders", entry, "n", n, "tag", "a", "tag", "b")
            client.xadd("users", {"user": n % 3, "n": n})
        archive(**LAYOUTS[layout])
        assert len(tables(lake)) == (1 if layout == "one table" else 2)
        agree("archive")
        for name in names:
            client.xdel(name, client.xrange(name)[5][0])
        assert archive(**LAYOUTS[layout]).deleted == 2
        agree("deletion")
        merged = 0
        for n in range(12, 20):
            add(client, n, name="users")
            merged += archive(**LAYOUTS[layout]).merged
        assert merged >= 8
        agree("merge")
        servers = Servers((engine.url,), {})
        compactor = Compactor(
            spark, Compact(lake, servers, (b"users",), key="user", tombstone_sql="false", keep_s=0, grace_s=0)
        )
        assert compactor.round().dropped > 0
        compactor.close()
        agree("compaction")
        Lake(lake).vacuum(grace_s=0)
        agree("vacuum")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_of_an_entry_is_lost_when_it_is_trimmed(
    archive: Run, lake: str, engine: Engine, layout: str
) -> None:
    """Repeated fields, their order, bytes that are no text, and IDs above 2^63."""
    with engine.client() as client:
        client.execute_command("XADD", "orders", "5-1", "b", "1", "a", "2", "b", "3", "", b"\xff\0")
        client.execute_command("XADD", "orders", f"{2**63 - 1}-{2**63}", "n", "1")
        client.execute_command("XADD", "orders", f"{2**64 - 2}-{2**64 - 1}", "n", "2", "n", "2")
        wanted = stored(client, b"orders")
        assert archive(trim=True, **LAYOUTS[layout]).trimmed == 1
    for reader in READERS:
        assert seen_by(reader, lake) == wanted, reader
    rows = rows_at_once({"lake": lake, "streams": "orders"})
    in_order = sorted((entry for _, entry, _ in wanted), key=lambda entry: int(entry.split("-")[0]))
    assert [row["id"] for row in rows] == in_order
    assert dict(rows[0]["fields"]) == {"b": b"3", "a": b"2", "": b"\xff\0"}
    assert [row["timestamp"] is None for row in rows] == [False, True, True]
    late = rows_at_once({"lake": lake, "streams": "orders", "startingOffsets": f'{{"orders": "{2**63}-0"}}'})
    assert [row["id"] for row in late] == [f"{2**64 - 2}-{2**64 - 1}"]


ODD = [(b"\xff", b"1"), (rb"\xff", b"2"), (b"base64:/w==", b"3"), ("\u00e9".encode(), b"4"), (b"\xff", b"5")]


def test_names_of_fields_that_are_no_text_can_be_told_apart(archive: Run, lake: str, engine: Engine) -> None:
    with engine.client() as client:
        client.execute_command("XADD", "orders", "5-1", *(word for pair in ODD for word in pair))
        [live] = rows_at_once({"url": engine.url, "streams": "orders"})
        assert archive(trim=True, schema=Typing.parse("n long, *")).trimmed == 1
    for reader in READERS:
        [(_, _, pairs)] = seen_by(reader, lake)
        assert [(name_of_text(name), value) for name, value in pairs] == ODD, reader
    [row] = rows_at_once({"lake": lake, "streams": "orders"})
    assert row == live
    assert {name_of_text(name): value for name, value in row["fields"].items()} == dict(ODD)
    [typed] = DeltaTable(f"{lake}/orders").to_pyarrow_table().to_pylist()
    assert typed["\u00e9"] == "4"
    rescued = json.loads(typed["_rescued"])
    assert {name_of_text(name): value for name, value in rescued.items()} == {
        b"\xff": ["1", "5"], rb"\xff": "2", b"base64:/w==": "3"
    }  # fmt: skip


def test_statistics_of_a_file_are_its_times_and_strands(archive: Run, lake: str, engine: Engine) -> None:
    with engine.client() as client:
        for day in range(3):
            for ms in (5, 999):
                client.xadd("orders", {"n": day}, id=f"{day * 86_400_000 + ms}-0")
    archive()
    table = DeltaTable(f"{lake}/orders")
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        file = pa.parquet.read_table(f"{lake}/orders/{row['path']}")
        times = sorted(file["timestamp"].to_pylist())
        assert (row["min.timestamp"], row["max.timestamp"], row["num_records"]) == (times[0], times[-1], 2)
        assert (row["min.place"], row["max.place"], row["partition.day"]) == ("p", "p", times[0].date())


NAMES = [b"a/b c%=\xc3\xa9'\"", b"", b"\xff\xfe", b"base64:x", b"_hidden", b"x" * 300, b"..", b"a:b", b"A"]


@pytest.mark.parametrize("pattern", [None, b"*"])
def test_any_name_of_a_stream_is_a_table_or_a_partition(
    archive: Run, lake: str, engine: Engine, pattern: bytes | None
) -> None:
    names = [*NAMES, folder_of("a:b").encode()]
    with engine.client() as client:
        for n, name in enumerate(names):
            client.xadd(name, {"n": n})
        how: dict[str, Any] = {"streams": () if pattern else tuple(names), "pattern": pattern}
        assert archive(**how).entries == len(names)
        client.xdel(names[0], client.xrange(names[0])[0][0])
        client.xadd(names[0], {"n": 99})
        assert archive(**how).entries == 1
    rows = rows_at_once({"lake": lake, "streamPattern": "*"})
    assert {(row["stream"], int(row["fields"]["n"])) for row in rows} == {
        (name_text(name), 99 if n == 0 else n) for n, name in enumerate(names)
    } | {(name_text(names[0]), 0)}


def test_what_another_program_rewrites_stays_right(archive: Run, lake: str, engine: Engine) -> None:
    """OPTIMIZE and DELETE of delta-rs: the view, deletions and merges go on with its files."""
    how = LAYOUTS["one table"]
    with engine.client() as client:
        entries = add(client, *range(3))
        add(client, 0, name="users")
        archive(**how)
        entries += add(client, 3, 4)
        archive(**how)
        table = DeltaTable(lake)
        assert table.optimize.compact()["numFilesRemoved"] > 0
        assert archived(lake) == [0, 1, 2, 3, 4]
        client.xdel("orders", entries[2])
        assert archive(**how).deleted == 1
        DeltaTable(lake).delete(f"stream = 'orders' AND id = '{entries[1].decode()}'")
        add(client, 5)
        assert archive(**how).entries == 1
    assert archived(lake) == [0, 3, 4, 5]


SECRET = b"anna@example.org-0123456789-secret"


def test_what_is_forgotten_is_found_nowhere_on_disk(
    archive: Run, lake: str, engine: Engine, spark: SparkSession
) -> None:
    with engine.client() as client:
        for n in range(6):
            client.xadd("orders", {"n": n, "mail": SECRET if n in (1, 4) else "x"})
        archive(trim=True)
        client.xadd("orders", {"n": 6, "mail": SECRET})
        archive()
        assert files_with(lake, SECRET)
        words = ["spark", "forget", "--lake", lake, "--url", engine.url, "--streams", "orders"]
        words += ["--where", f"fields['mail'] = '{SECRET.decode()}'", "--json"]
        would = CliRunner().invoke(app, [*words, "--dry-run"])
        assert would.exit_code == 0, would.output
        assert {name: json.loads(would.stdout)[name] for name in ("deleted", "dropped")} == {
            "deleted": 1,
            "dropped": 3,
        }
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
        done = json.loads(told.stdout)
        assert (done["deleted"], done["dropped"], done["held"]) == (1, 3, 0)
        assert client.xlen("orders") == 0
    assert archived(lake) == [0, 2, 3, 5]
    assert not files_with(lake, SECRET)


def test_what_a_running_archive_has_read_is_forgotten_too(
    archive: Run, lake: str, engine: Engine, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, what = Archiver._read, Forget(lake, "fields['n'] = '1'", Servers((engine.url,), {}), (b"orders",))

    def overtaken(self: Archiver, work: Any) -> Any:
        files = real(self, work)
        monkeypatch.setattr(Archiver, "_read", real)
        assert forget(spark, what).deleted == 1
        return files

    with engine.client() as client:
        add(client, 0)
        archive(trim=True)
        add(client, 1, 2)
        monkeypatch.setattr(Archiver, "_read", overtaken)
        archive()
        assert archived(lake) == [0, 2]
        on_disk = [pa.parquet.read_table(path) for path in Path(lake).rglob("*.parquet")]
        assert sum(table.num_rows for table in on_disk) == 2


def test_what_a_first_archive_has_read_is_forgotten_too(
    archive: Run, lake: str, engine: Engine, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream has no table yet. The oldest entry: one that is missing later looks as if it was trimmed."""
    real, what = Archiver._read, Forget(lake, "fields['n'] = '1'", Servers((engine.url,), {}), (b"orders",))

    def overtaken(self: Archiver, work: Any) -> Any:
        files = real(self, work)
        monkeypatch.setattr(Archiver, "_read", real)
        assert forget(spark, what).deleted == 1
        return files

    with engine.client() as client:
        add(client, 0, name="users")
        archive(streams=(b"users",))
        add(client, 1, 2)
        monkeypatch.setattr(Archiver, "_read", overtaken)
        archive()
        assert archived(lake) == [2]


def test_what_is_archived_and_trimmed_during_a_search_is_forgotten_too(
    archive: Run, lake: str, engine: Engine, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = erasure.scopes

    def overtaken(*words: Any) -> Any:
        monkeypatch.setattr(erasure, "scopes", real)
        assert archive(trim=True).trimmed == 2
        return real(*words)

    with engine.client() as client:
        add(client, 0)
        archive(trim=True)
        add(client, 1, 2)
        monkeypatch.setattr(erasure, "scopes", overtaken)  # the lake was read, the stream was not
        what = Forget(lake, "fields['n'] = '1'", Servers((engine.url,), {}), (b"orders",))
        assert forget(spark, what).dropped == 1
        assert archived(lake) == [0, 2]


def test_what_the_lake_has_of_a_deleted_stream_is_forgotten_too(
    archive: Run, lake: str, engine: Engine, spark: SparkSession
) -> None:
    become(engine)
    with client_of(engine) as client:
        add(client, 1, 2)
        archive()
        client.delete("orders")
    what = Forget(lake, "fields['n'] = '1'", Servers((engine.url,), {}), (b"orders",))
    assert forget(spark, what).dropped == 1
    assert archived(lake) == [2]


def test_what_a_group_of_a_plain_stream_has_not_acknowledged_is_not_forgotten(
    archive: Run, lake: str, engine: Engine, spark: SparkSession
) -> None:
    with engine.client() as client:
        entries = add(client, *range(6))
        client.xgroup_create("orders", "bills", "0")
        client.xreadgroup("bills", "anna", {"orders": ">"}, count=4)
        client.xack("orders", "bills", entries[0], entries[2], entries[3])
        archive()
        done = forget(spark, Forget(lake, "true", Servers((engine.url,), {}), (b"orders",)))
        assert (done.deleted, done.held, done.dropped) == (3, 3, 6)
        assert [entry for entry, _ in client.xrange("orders")] == [entries[1], *entries[4:]]


def test_nothing_is_forgotten_if_the_lake_is_not_there(lake: str, engine: Engine) -> None:
    with engine.client() as client:
        add(client, 0)
        words = ["--lake", lake, "--url", engine.url, "--streams", "orders", "--where", "true"]
        told = CliRunner().invoke(app, ["spark", "forget", *words])
        assert told.exit_code == 2
        assert "is not a lake" in " ".join(told.output.split())
        assert client.xlen("orders") == 1


def test_jobs_that_start_a_table_at_once_create_it_once(tmp_path: Path) -> None:
    """A second creation would replace the columns of the first."""
    jobs = 4
    for turn in range(10):
        lake, gate = str(tmp_path / str(turn)), Barrier(jobs)

        def start(number: int, lake: str = lake, gate: Barrier = gate) -> None:
            gate.wait()
            Lake(lake, [b"orders"]).widen("orders", pa.schema([(f"column_{number}", pa.int64())]))

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(start, range(jobs)))
        columns = Lake(lake, [b"orders"]).columns("orders")
        assert columns is not None
        assert sorted(columns.names) == [f"column_{number}" for number in range(jobs)]
