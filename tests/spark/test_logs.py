"""Logs under Spark: read by offset in every region, written at their home, archived and audited."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import braidstream
from braidstream.errors import DataLossError, OptionError, SinkError
from braidstream.model.strand import Strand
from braidstream.operations import log_upkeep
from braidstream.spark.jobs.audit import Auditor
from braidstream.spark.jobs.compaction import Compact, Compactor
from braidstream.spark.options import Servers
from braidstream.spark.sink import target
from braidstream.spark.sink.ledger import Publisher
from braidstream.spark.source.rows import LOG_META, META
from pyspark_braidstream import DefaultSource
from tests.support.lakes import Run
from tests.support.microbatch import Killed, Micro, rows_of
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.sinks import Crash, Sink, crash_after
from tests.support.world import World


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    with Engine("valkey-9.1") as other:
        made = World([engine, other])
        yield made
        made.close()


@pytest.fixture
def one(engine: Engine) -> Engine:
    """A single region."""
    become(engine)
    return engine


def write(client: braidstream.Redis, *entries: Any) -> list[int]:
    return list(client.twrite("ledger", entries=[(f"t{each}", str(each)) for each in entries]))


def move(world: World, home: int, to: int, *, force: bool = False) -> int:
    place = world[to if force else home]
    registry = place.run_plan(log_upkeep.read_log(b"ledger"))
    return place.run_plan(log_upkeep.end_epoch(b"ledger", log_upkeep.home_of(registry), to, force=force))


def micro(world: World, region: int, **options: Any) -> Micro:
    url = world.engines[region - 1].url
    return Micro({"logs": "ledger", "url": url, "replicationWait": "0.2s", **options}, schema=LOG_META)


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def batch(engine: Engine, schema: Any = LOG_META, **options: Any) -> list[dict[str, Any]]:
    given = {"url": engine.url, **options}
    reader: Any = DefaultSource({name: str(value) for name, value in given.items()}).reader(schema)  # type: ignore[arg-type]
    return [row for part in reader.partitions() for row in rows_of(reader.read(part))]


def log_sink(engine: Engine, **options: Any) -> Sink:
    return Sink(engine.url, stream=None, log="ledger", **options)


def run(sink: Sink, number: int, *partitions: list[int]) -> None:
    rows = [[{"tag": f"t{n}", "entry": str(n)} for n in each] for each in partitions]
    messages = [sink.write(each) for each in rows]
    sink._writer(pa.schema([("tag", pa.string()), ("entry", pa.string())])).commit(messages, number)


def bodies(client: braidstream.Redis) -> list[int]:
    return [int(row[2]) for row in client.tread("ledger", 1, 1_000) if row is not None]


def test_a_log_has_the_columns_stream_offset_tag_and_entry(one: Engine) -> None:
    with client_of(one) as client:
        write(client, 1, 2, 3)
        client.tevict("ledger", 1)
    assert batch(one, logs="ledger") == [
        {"stream": "ledger", "offset": 2, "tag": b"t2", "entry": b"2"},
        {"stream": "ledger", "offset": 3, "tag": b"t3", "entry": b"3"},
    ]


def test_a_log_is_read_between_two_numbers_both_inclusive(one: Engine) -> None:
    with client_of(one) as client:
        write(client, *range(1, 11))
    some = batch(one, logs="ledger", startingOffsets='{"ledger": 3}', endingOffsets='{"ledger": 6}')
    assert offsets(some) == [3, 4, 5, 6]
    assert offsets(batch(one, logs="ledger", startingOffsets='{"ledger": 0}')) == list(range(1, 11))
    parts = batch(one, logs="ledger", minPartitions=4)
    assert offsets(parts) == list(range(1, 11))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"startingOffsets": '{"ledger": -1}'}, "-1 is not an offset"),
        ({"startingOffsets": '{"ledger": true}'}, "or the offset of"),
        ({"startingTimestamp": "2026-11-01"}, "its entries have no times"),
        ({"endingTimestamp": "2026-11-01"}, "its entries have no times"),
        ({"streams": "other"}, "either streams or logs"),
    ],
)
def test_what_a_log_has_not_is_refused(one: Engine, options: dict[str, str], why: str) -> None:
    with client_of(one) as client:
        write(client, 1)
    with pytest.raises(OptionError, match=why):
        batch(one, logs="ledger", **options)


def test_streams_and_logs_are_not_confused(one: Engine) -> None:
    with client_of(one) as client:
        client.xadd("orders", {"n": 1})
        write(client, 1)
    with pytest.raises(OptionError, match="orders is a stream"):
        batch(one, logs="orders")
    with pytest.raises(OptionError, match="positions are IDs, not numbers"):
        batch(one, streams="orders", startingOffsets='{"orders": 5}')
    with pytest.raises(SinkError, match="name it in the option log"):
        Sink(one.url, stream="ledger").run(0, [1])
    with pytest.raises(SinkError, match="name it in the option stream"):
        Sink(one.url, stream=None, log="orders").write([{"tag": "t", "entry": "e"}])


def test_a_log_named_as_a_stream_shows_ids_and_fields(one: Engine) -> None:
    with client_of(one) as client:
        write(client, 7)
    [row] = batch(one, META, streams="ledger")
    assert (row["id"], row["region"], row["timestamp"]) == ("0-1", 1, None)
    assert dict(row["fields"]) == {"t": b"t7", "e": b"7"}
    schema = StructType().add("_offset", LongType()).add("tag", StringType()).add("entry", LongType())
    assert batch(one, schema, streams="ledger") == [{"_offset": 1, "tag": "t7", "entry": 7}]


def test_a_checkpoint_of_region_1_continues_in_region_2_by_number(world: World) -> None:
    write(world[1], *range(1, 6))
    query = micro(world, 1)
    assert offsets(query.run()) == [1, 2, 3, 4, 5]
    world.sync()
    write(world[1], 6, 7)
    assert move(world, 1, 2) == 8
    world.sync()
    write(world[2], 8, 9)
    query.options["url"] = world.engines[1].url
    assert offsets(query.run()) == [6, 7, 8, 9]
    world[2].tevict("ledger", 9)  # everything that was read
    write(world[2], 10)
    world.sync()
    query.options["url"] = world.engines[0].url
    assert offsets(query.run()) == [10]
    ends = json.loads(query.log[-1])["frontier"]
    assert ends == {"ledger": {"t0.1": "0-7", "t1.2": "0-10"}}


def test_a_limited_query_reads_epochs_in_their_order(world: World) -> None:
    write(world[1], *range(1, 8))
    move(world, 1, 2)
    world.sync()
    write(world[2], *range(8, 15))
    query = micro(world, 2, maxEntriesPerTrigger=3)
    assert offsets(query.run()) == list(range(1, 15))
    assert query.batches == [3, 3, 1, 3, 3, 1]


def test_nothing_is_read_before_what_precedes_it_has_arrived(world: World) -> None:
    write(world[1], 1, 2)
    world.sync()
    write(world[1], 3)
    query = micro(world, 2)
    registry = world[1].run_plan(log_upkeep.read_log(b"ledger"))
    move(world, 1, 2)
    assert registry.home.number == 0
    assert offsets(query.run()) == [1, 2]  # 3 has not arrived
    world.sync()
    write(world[2], 4)
    assert offsets(query.run()) == [3, 4]


def test_entries_beyond_a_forced_move_are_not_read(world: World) -> None:
    write(world[1], 1, 2)
    world.sync()
    query = micro(world, 1)
    write(world[1], 3, 4)
    with pytest.raises(Killed):
        query.run(kill_after="plan")
    assert move(world, 1, 2, force=True) == 3
    write(world[2], 33)
    world.sync()
    with pytest.raises(DataLossError, match="moved by force.*appends them again"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert [(row["offset"], row["entry"]) for row in query.run()] == [(1, b"1"), (2, b"2"), (3, b"33")]
    assert offsets(batch(world.engines[0], logs="ledger")) == [1, 2, 3]


def test_entries_that_were_evicted_unread_are_a_loss(one: Engine) -> None:
    query = Micro({"logs": "ledger", "url": one.url}, schema=LOG_META)
    with client_of(one) as client:
        write(client, *range(1, 6))
        query.run()
        client.tevict("ledger", 5)
        write(client, 6)
        assert offsets(query.run()) == [6]  # those evicted were read
        write(client, 7, 8)
        client.tevict("ledger", 7)
    with pytest.raises(DataLossError, match="trimmed before they were read"):
        query.run()


def test_a_sink_writes_a_log_once_whatever_is_repeated(one: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(one) as client:
        run(log_sink(one), 0, [1, 2, 3])  # creates the log
        write(client, 4)
        with monkeypatch.context() as patched:
            crash_after(patched, Publisher, "_append", 1)
            with pytest.raises(Crash):
                run(log_sink(one), 1, [5, 6, 7], [8, 9])
        write(client, 10)
        run(log_sink(one), 1, [9, 8], [7, 6, 5])
        run(log_sink(one), 1, [5, 6, 7, 8, 9])
        assert sorted(bodies(client)) == list(range(1, 11))
        assert client.tread("ledger", count=0, withinfo=True) == ((1, 10), [])


def test_a_sink_keeps_the_backlog_of_a_log(one: Engine) -> None:
    with client_of(one) as client:
        client.tcfgset("ledger", backlog=100)
        run(log_sink(one, rowsPerStep=500), 0, list(range(1, 1001)))
        (first, last), _ = client.tread("ledger", count=0, withinfo=True)
    assert last == 1000
    assert last - 200 <= first <= last - 99


def test_a_sink_writes_at_the_home_only_and_moves_with_it(world: World) -> None:
    one, two = world.engines
    run(log_sink(one), 0, [1, 2])
    world.sync()
    with pytest.raises(SinkError, match="written in region 1, and this is region 2"):
        run(log_sink(two), 1, [3])
    move(world, 1, 2)
    world.sync()
    with pytest.raises(SinkError, match="written in region 2, and this is region 1"):
        run(log_sink(one), 1, [3])
    run(log_sink(two, fallbackUrls=one.url), 1, [3])
    run(log_sink(two, fallbackUrls=one.url), 1, [3])
    world.sync()
    assert [bodies(world[region]) for region in (1, 2)] == [[1, 2, 3]] * 2


def test_a_home_that_moves_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.engines
    run(log_sink(one), 0, [1])
    with monkeypatch.context() as patched:
        crash_after(patched, Publisher, "_append", 1)
        with pytest.raises(Crash):
            run(log_sink(one), 1, [2, 3, 4, 5])
    move(world, 1, 2)
    world.sync()
    with pytest.raises(SinkError, match=r"home of log 'ledger' is region 2 now.*takeOver"):
        run(log_sink(two, fallbackUrls=one.url), 1, [2, 3, 4, 5])
    assert bodies(world[1]) == [1, 2, 3]
    move(world, 2, 1)
    world.sync()
    run(log_sink(one, fallbackUrls=two.url), 1, [5, 4, 3, 2])
    world.sync()
    assert [bodies(world[region]) for region in (1, 2)] == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"entry": ["x"]}, "needs a column tag"),
        ({"tag": ["x"], "entry": ["y"], "n": [1]}, "must go"),
    ],
)
def test_rows_of_a_log_have_a_tag_and_an_entry(one: Engine, columns: Any, why: str) -> None:
    sink = log_sink(one)
    with pytest.raises(OptionError, match=why):
        sink.write(pa.table(columns).to_pylist())
    with pytest.raises(SinkError, match="no tag or no entry"):
        sink.write([{"tag": None, "entry": "x"}], pa.schema([("tag", pa.string()), ("entry", pa.string())]))


def test_a_log_is_archived_and_viewed_by_offset(one: Engine, archive: Run, lake: str) -> None:
    with client_of(one) as client:
        write(client, *range(1, 8))
        assert archive(streams=(b"ledger",)).entries == 7
        client.tevict("ledger", 6)
        write(client, 8)
    view = batch(one, logs="ledger", lake=lake, startingOffsets='{"ledger": 3}')
    assert [(row["offset"], row["entry"]) for row in view] == [(n, b"%d" % n) for n in range(3, 9)]
    with pytest.raises(OptionError, match="ledger is a log.*braid log evict"):
        archive(streams=(b"ledger",), trim=True)


def test_what_a_forced_move_left_out_of_the_log_is_not_read_from_the_lake(
    world: World, archive: Run, lake: str
) -> None:
    write(world[1], 1, 2)
    world.sync()
    write(world[1], 3)
    archive(streams=(b"ledger",))
    move(world, 1, 2, force=True)
    write(world[2], 33)
    world.sync()
    expected = [(1, b"1"), (2, b"2"), (3, b"33")]
    for _ in range(2):
        view = batch(world.engines[0], logs="ledger", lake=lake)
        assert sorted((row["offset"], row["entry"]) for row in view) == expected
        query = micro(world, 1, lake=lake, startingOffsets="earliest")
        assert sorted((row["offset"], row["entry"]) for row in query.run()) == expected
        archive(streams=(b"ledger",))


def test_a_log_that_two_regions_made_apart_is_viewed_as_the_one_that_was_kept(
    world: World, archive: Run, lake: str
) -> None:
    write(world[1], 1, 2)
    write(world[2], 3)
    for engine in world.engines:
        archive(streams=(b"ledger",), servers=Servers((engine.url,), {}))
    world.sync()
    for engine in world.engines:
        kept = [(row["offset"], row["entry"]) for row in batch(engine, logs="ledger")]
        view = batch(engine, logs="ledger", lake=lake)
        assert sorted((row["offset"], row["entry"]) for row in view) == sorted(kept) != []


def test_a_log_is_not_compacted_by_age(one: Engine) -> None:
    with client_of(one) as client:
        write(client, 1)
    compactor = Compactor(
        None,  # type: ignore[arg-type]
        Compact(None, Servers((one.url,), {}), (b"ledger",), key="t"),
    )
    with pytest.raises(OptionError, match="ledger is a log"):
        compactor.round()
    compactor.close()


def test_an_audit_of_a_log_that_moved_finds_nothing_wrong(world: World) -> None:
    write(world[1], *range(1, 6))
    world.sync()
    move(world, 1, 2)
    world.sync()
    write(world[2], 6, 7)
    world.sync()
    move(world, 2, 1, force=True)
    write(world[2], 8)  # a tail: region 2 does not know yet
    write(world[1], 9)
    world.sync()
    servers = {number: Servers((each.url,), {}) for number, each in enumerate(world.engines, 1)}
    auditor = Auditor(None, servers, streams=[b"ledger"], settle_s=0.5)
    report = auditor.run()
    auditor.close()
    assert not report.anomalies
    assert report.rows == 16  # eight in each region


def test_a_home_that_moves_while_a_task_looks_for_it_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = world.engines
    run(log_sink(one), 0, [1])
    world.sync()
    real = target.ensure_command

    def moving(strand: Strand, bell: bytes, *, known: bool) -> Any:
        monkeypatch.undo()
        move(world, 1, 2)
        return real(strand, bell, known=known)

    monkeypatch.setattr(target, "ensure_command", moving)
    with pytest.raises(SinkError, match="written in region 2, and this is region 1"):
        log_sink(one).write([{"tag": "t", "entry": "e"}])
