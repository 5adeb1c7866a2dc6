"""What the sink makes of rows: their columns as fields, and rows that it refuses."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from braidstream.errors import OptionError, SinkError
from tests.support.microbatch import Micro
from tests.support.servers import Engine
from tests.support.sinks import Sink, entries, plain_and_region

place = plain_and_region


def test_streams_by_column_fields_by_map_and_nulls(place: Engine) -> None:
    schema = pa.schema([("stream", pa.string()), ("fields", pa.map_(pa.string(), pa.binary()))])
    rows = [
        {"stream": "a", "fields": [("n", b"\xff\r\n"), ("", b"")]},
        {"stream": "b", "fields": [("m", b"1"), ("gone", None)]},
        {"stream": "a", "fields": [("n", b"2")]},
    ]
    sink = Sink(place.url, stream=None)
    sink.commit(0, sink.write(rows, schema))
    assert entries(place, "a") == [{b"n": b"\xff\r\n", b"": b""}, {b"n": b"2"}]
    assert entries(place, "b") == [{b"m": b"1"}]


def test_names_in_a_map_may_be_bytes(place: Engine) -> None:
    schema = pa.schema([("fields", pa.map_(pa.binary(), pa.binary()))])
    sink = Sink(place.url)
    sink.commit(0, sink.write([{"fields": [(b"\xff\r\n", b"1"), (b"n", b"2")]}], schema))
    assert entries(place) == [{b"\xff\r\n": b"1", b"n": b"2"}]


def test_bytes_of_large_types_stay_as_they_are(place: Engine) -> None:
    """Spark sends those with spark.sql.execution.arrow.useLargeVarTypes."""
    sink = Sink(place.url)
    mapped = pa.schema([("fields", pa.map_(pa.large_string(), pa.large_binary()))])
    sink.commit(0, sink.write([{"fields": [("n", b"\xff")]}], mapped))
    columns = pa.schema([("n", pa.large_binary()), ("s", pa.large_string())])
    sink.commit(1, sink.write([{"n": b"\xfe", "s": "\u00e4"}], columns))
    assert entries(place) == [{b"n": b"\xff"}, {b"n": b"\xfe", b"s": "\u00e4".encode()}]


def test_columns_become_text(place: Engine) -> None:
    row = {"i": 7, "f": 1.5, "ok": True, "s": "ä", "b": b"\xff", "d": date(2026, 1, 2), "none": None,
           "at": datetime(2026, 1, 2, 3, 4, 5, 678), "dec": Decimal("1.20")}  # fmt: skip
    schema = pa.schema(
        [("i", pa.int64()), ("f", pa.float64()), ("ok", pa.bool_()), ("s", pa.string()), ("b", pa.binary()),
         ("d", pa.date32()), ("none", pa.string()), ("at", pa.timestamp("us", "UTC")),
         ("dec", pa.decimal128(10, 2))]
    )  # fmt: skip
    sink = Sink(place.url)
    sink.commit(0, sink.write([row], schema))
    assert entries(place) == [
        {b"i": b"7", b"f": b"1.5", b"ok": b"true", b"s": "ä".encode(), b"b": b"\xff", b"d": b"2026-01-02",
         b"at": b"2026-01-02T03:04:05.000678Z", b"dec": b"1.20"}
    ]  # fmt: skip


def test_a_timestamp_is_told_in_utc_whatever_the_zone_of_the_session(engine: Engine) -> None:
    row = {"at": datetime(2026, 7, 2, 3, 4, 5, 678, UTC), "wall": datetime(2026, 7, 2, 3, 4, 5)}
    schema = pa.schema([("at", pa.timestamp("us", "Europe/Berlin")), ("wall", pa.timestamp("us"))])
    sink = Sink(engine.url)
    sink.commit(0, sink.write([row], schema))
    assert entries(engine) == [
        {b"at": b"2026-07-02T03:04:05.000678Z", b"wall": b"2026-07-02T03:04:05.000000"}  # a timestamp_ntz
    ]


def test_large_and_wide_rows(place: Engine) -> None:
    wide = {f"f{n}": str(n) for n in range(5000)}
    sink = Sink(place.url)
    sink.commit(0, sink.write([{"n": "x" * 10_000_000}, {"n": "y"}]), sink.write([wide]))
    big, small, many = entries(place)
    assert (len(big[b"n"]), small[b"n"], len(many)) == (10_000_000, b"y", 5000)


def test_what_cannot_be_written_is_refused_before_anything_is(place: Engine) -> None:
    sink = Sink(place.url)
    with pytest.raises(SinkError, match="no field that is not null"):
        sink.write([{"n": None}], pa.schema([("n", pa.string())]))
    with pytest.raises(SinkError, match="to_json"):
        sink.write([{"n": [1]}])
    with pytest.raises(OptionError, match="no column stream"):
        Sink(place.url, stream=None).write([{"n": 1}])
    with place.client() as client:
        client.set("out", "a string")
    with pytest.raises(SinkError, match="another kind of key"):
        sink.run(0, [1])


def test_what_the_sink_wrote_the_source_reads(place: Engine) -> None:
    Sink(place.url).run(0, list(range(100)))
    assert Micro({"url": place.url, "streams": "out"}).numbers() == list(range(100))
