"""spark.read: everything between two positions, from plain streams and from braids."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from braidstream.errors import MalformedError
from braidstream.model.strand import Strand
from tests.spark.conftest import Load, numbers
from tests.support.microbatch import rows_at_once
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

FIRST = 1_700_000_000_000


def fill(engine: Engine, count: int, name: str = "orders") -> None:
    with engine.client() as client:
        pipe = client.pipeline(transaction=False)
        for n in range(count):
            pipe.xadd(name, {"n": n, "text": f"entry {n}"}, id=f"{FIRST + n}-0")  # type: ignore[arg-type]
        pipe.execute()


def test_a_plain_stream_needs_no_braidstream_at_all(load: Load, engine: Engine) -> None:
    fill(engine, 3)
    rows = load(streams="orders").orderBy("id").collect()
    assert [(row.stream, row.id, row.region) for row in rows] == [
        ("orders", f"{FIRST + n}-0", None) for n in range(3)
    ]
    assert rows[1].fields == {"n": b"1", "text": b"entry 1"}
    assert rows[1].timestamp == datetime.fromtimestamp((FIRST + 1) / 1000, UTC).replace(tzinfo=None)


def test_a_braid_is_read_with_the_ids_that_users_see(load: Load, engine: Engine) -> None:
    become(engine)
    with client_of(engine, decode_responses=True) as client:
        ours = [client.xadd("orders", {"n": n}) for n in range(5)]
        client.run_plan(apply(Strand(b"orders", "s", 7), [((5, 0), [b"n", b"5"])]))
        everything = client.xrange("orders")
    rows = load(streams="orders").orderBy("timestamp").collect()
    assert {(row.id, row.fields["n"].decode()) for row in rows} == {(i, f["n"]) for i, f in everything}
    assert {row.id: row.region for row in rows} == {"5-7": 7, **dict.fromkeys(ours, 1)}


def test_chosen_ids_are_read_as_they_are(load: Load, engine: Engine) -> None:
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        client.xadd("orders", {"n": 1}, id="7-5")
        client.delete("orders")
        client.xadd("orders", {"n": 2}, id="3-1")
    assert [(row.id, row.fields) for row in load(streams="orders").collect()] == [("3-1", {"n": b"2"})]


def test_several_streams_and_a_pattern(load: Load, engine: Engine) -> None:
    for name in ("orders-eu", "orders-us", "other"):
        fill(engine, 2, name)
    assert load(streams="orders-eu,other").count() == 4
    found = load(streamPattern="orders-*").groupBy("stream").count().collect()
    assert {(row.stream, row["count"]) for row in found} == {("orders-eu", 2), ("orders-us", 2)}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": f'{{"orders": "{FIRST + 2}-0"}}'}, [3, 4]),
        ({"startingOffsets": f'{{"orders": {{"p": "{FIRST + 3}-0"}}}}'}, [4]),
        ({"startingOffsets": '{"others": "5-0"}'}, [0, 1, 2, 3, 4]),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"orders": {"p": "latest"}}'}, []),
        ({"endingOffsets": '{"orders": {"p": "earliest"}}'}, []),
        ({"endingOffsets": f'{{"orders": "{FIRST + 1}-0"}}'}, [0, 1]),
        ({"startingTimestamp": FIRST + 3}, [3, 4]),
        ({"endingTimestamp": FIRST + 1}, [0]),
        ({"startingTimestamp": "2023-11-14T22:13:20.004Z"}, [4]),
        ({"startingTimestamp": f'{{"orders": {FIRST + 3}}}'}, [3, 4]),
        ({"startingTimestamp": '{"others": "2026-11-01"}'}, [0, 1, 2, 3, 4]),
        ({"endingTimestamp": '{"orders": "2023-11-14T22:13:20.004Z"}'}, [0, 1, 2, 3]),
        ({"endingTimestamp": '{"others": 1}'}, [0, 1, 2, 3, 4]),
    ],
)
def test_positions_and_times_bound_a_read(
    load: Load, engine: Engine, options: dict[str, Any], wanted: list[int]
) -> None:
    fill(engine, 5)
    assert numbers(load(streams="orders", **options).collect()) == wanted


def test_a_skewed_strand_is_split_into_slices_of_about_equal_size(load: Load, engine: Engine) -> None:
    """A long quiet time, then nearly everything within two seconds."""
    with engine.client() as client:
        pipe = client.pipeline(transaction=False)
        for n in range(50):
            pipe.xadd("orders", {"n": n}, id=f"{FIRST + n * 3_600_000}-0")  # type: ignore[arg-type]
        for n in range(50, 4050):
            pipe.xadd("orders", {"n": n}, id=f"{FIRST + 50 * 3_600_000 + n // 2}-{n}")  # type: ignore[arg-type]
        pipe.execute()
    frame = load(streams="orders", minPartitions=4)
    sizes = frame.rdd.glom().map(len).collect()
    assert sum(sizes) == 4050
    assert len(sizes) == 4
    assert max(sizes) < 2 * 4050 / 4
    assert frame.select("id").distinct().count() == 4050


def test_each_stream_may_have_its_own_start_time(load: Load, engine: Engine) -> None:
    for name in ("a", "b", "c"):
        fill(engine, 5, name)
    times = json.dumps({"a": FIRST + 4, "b": "2023-11-14T22:13:20.002Z"})
    found = load(streams="a,b,c", startingTimestamp=times).groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in found} == {"a": 1, "b": 3, "c": 5}


def test_a_partition_has_about_so_many_entries_at_most(load: Load, engine: Engine) -> None:
    fill(engine, 400, "large")
    fill(engine, 5, "small")
    frame = load(streams="large,small", maxEntriesPerPartition=100)
    sizes = sorted(frame.rdd.glom().map(len).collect())
    assert (len(sizes), sizes[0], sum(sizes)) == (5, 5, 405)
    assert sizes[-1] < 200


def test_entries_of_every_kind_arrive_byte_for_byte(load: Load, engine: Engine) -> None:
    wide = {f"f{n}": str(n) for n in range(5000)}
    entries: list[dict[Any, Any]] = [
        {"n": b""},
        {"": b"a field without a name"},
        {"n": b"\x00\xff\r\n*2\r\n$3\r\n5-5\r\n*0"},
        {"n": b"5-5\r\n*0"},
        {b"\xff\xfe": b"a name that is not text"},
        {"one": b"1", "two": b"2"},
        {"n": b"x" * 10_000_000},
        wide,
    ]
    with engine.client() as client:
        for entry in entries:
            client.xadd("odd", entry)
        client.execute_command("XADD", "odd", "*", "twice", "first", "twice", "last")
    rows = load(streams="odd").orderBy("timestamp", "id").collect()
    seen = [{name: bytes(value) for name, value in row.fields.items()} for row in rows]
    assert seen[:4] == [{name: value for name, value in entry.items()} for entry in entries[:4]]
    assert seen[4] == {"base64://4=": b"a name that is not text"}
    assert seen[5] == {"one": b"1", "two": b"2"}
    assert seen[6] == {"n": b"x" * 10_000_000}
    assert seen[7] == {name: value.encode() for name, value in wide.items()}
    assert seen[8] == {"twice": b"last"}


SCHEMA = "n int, price double, ok boolean, at timestamp, day date, raw binary, text string, _id string"


def test_a_schema_casts_the_fields(load: Load, engine: Engine) -> None:
    with engine.client() as client:
        entry = client.xadd(
            "orders",
            {"n": "7", "price": " 1.5 ", "ok": "true", "at": "2026-01-02T03:04:05Z", "day": "2026-01-02",
             "raw": b"\xff", "text": "ä", "more": "is ignored"},
        )  # fmt: skip
        client.xadd("orders", {"n": "8"})
    first, second = load(streams="orders", schema=SCHEMA).orderBy("n").collect()
    assert (first.n, first.price, first.ok, first.text, bytes(first.raw)) == (7, 1.5, True, "ä", b"\xff")
    assert first["_id"] == entry.decode()
    assert first.at == datetime(2026, 1, 2, 3, 4, 5)
    assert str(first.day) == "2026-01-02"
    assert (second.n, second.price, second.raw) == (8, None, None)


def test_what_does_not_fit_is_told_dropped_or_fatal(load: Load, engine: Engine) -> None:
    with engine.client() as client:
        for n in ("1", "two", "3"):
            client.xadd("orders", {"n": n})
        client.xadd("orders", {"n": b"\xff"})
    schema = "n int, _corrupt_record string"
    told = {(row.n, row["_corrupt_record"]) for row in load(streams="orders", schema=schema).collect()}
    assert told == {(1, None), (3, None), (None, '{"n": "two"}'), (None, '{"n": "\\\\xff"}')}
    dropped = load(streams="orders", schema="n int", mode="DROPMALFORMED").collect()
    assert sorted(row.n for row in dropped) == [1, 3]
    with pytest.raises(PySparkException, match="entry .* does not fit the schema"):
        load(streams="orders", schema="n int", mode="FAILFAST").collect()


TIMES = {
    "2026-01-02T03:04:05.123456789Z": (3, 123456),
    "2026-01-02 03:04:05.1234567": (3, 123456),
    "2026-01-02T03:04:05-05": (8, 0),
    "2026-01-02T03:04:05.5+02": (1, 500000),
}


@pytest.mark.parametrize("text", TIMES)
def test_a_timestamp_may_have_nanoseconds_or_a_zone_of_hours(engine: Engine, text: str) -> None:
    with engine.client() as client:
        client.xadd("orders", {"at": text})
    schema = StructType([StructField("at", TimestampType())])
    [row] = rows_at_once({"url": engine.url, "streams": "orders", "mode": "FAILFAST"}, schema)
    hour, micros = TIMES[text]
    assert row["at"] == datetime(2026, 1, 2, hour, 4, 5, micros, UTC)


def test_an_entry_without_a_field_of_a_not_null_column_is_malformed(engine: Engine) -> None:
    with engine.client() as client:
        for fields in ({"n": "1"}, {"other": "2"}, {"n": "three"}):
            client.xadd("orders", fields)  # type: ignore[arg-type]
    source, schema = {"url": engine.url, "streams": "orders"}, StructType().add("n", LongType(), False)
    assert rows_at_once({**source, "mode": "DROPMALFORMED"}, schema) == [{"n": 1}]
    with pytest.raises(MalformedError, match="no value for column n, which is NOT NULL.*DROPMALFORMED"):
        rows_at_once(source, schema)
    with pytest.raises(MalformedError, match="does not fit the schema"):
        rows_at_once({**source, "mode": "FAILFAST"}, schema)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"streams": "a", "maxEntrysPerTrigger": "5"}, "maxentryspertrigger: unknown"),
        ({}, "streams: give either"),
        ({"streams": "a", "startingOffsets": "soon"}, "startingOffsets: neither earliest"),
        ({"streams": "a", "redis.nonsense": "1"}, "redis.nonsense"),
    ],
)
def test_a_wrong_option_is_refused_by_name(load: Load, options: dict[str, Any], told: str) -> None:
    with pytest.raises(PySparkException, match=told):
        load(**options).count()


def test_a_view_in_sql_and_filters_that_are_pushed(spark: SparkSession, load: Load, engine: Engine) -> None:
    fill(engine, 1000)
    spark.sql(
        "CREATE OR REPLACE TEMP VIEW orders_view USING braidstream "
        f"OPTIONS (url '{engine.url}', streams 'orders')"
    )
    assert spark.sql("SELECT count(*) AS c FROM orders_view").first().c == 1000  # type: ignore[union-attr]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(streams="orders", pushFilters="true")
        moment = datetime.fromtimestamp((FIRST + 990) / 1000, UTC)
        with engine.client() as client:
            client.config_resetstat()
            assert frame.where((frame.timestamp >= moment) & (frame.stream == "orders")).count() == 10
            sent = client.info("commandstats")["cmdstat_xrange"]
        assert frame.where(frame.stream == "another").count() == 0
        assert frame.where(frame.id == f"{FIRST}-0").count() == 1
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert sent["calls"] <= 3
