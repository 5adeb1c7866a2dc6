"""The first minutes with the source: typos are errors of one sentence, and values are text if one asks."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from braidstream.errors import OptionError
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.options import Servers, sink_options, source_options
from tests.support.regions import become, client_of
from tests.support.servers import Engine


def first_line(work: Callable[[], object]) -> str:
    """The first line of the error of a query."""
    with pytest.raises(PySparkException) as raised:
        work()
    return str(raised.value).splitlines()[0]


def frame(spark: SparkSession, engine: Engine, **options: str) -> DataFrame:
    given = {"url": engine.url, "streams": "orders"} | options
    return spark.read.format("braidstream").options(**given).load()


def test_a_missing_stream_is_an_error_unless_one_allows_it(
    spark: SparkSession, engine: Engine, tmp_path: Path
) -> None:
    become(engine)
    with client_of(engine) as client:
        client.xadd("orders", {"n": "1"})
        client.xadd("gone", {"n": "1"})
        client.delete("gone")
    said = first_line(lambda: frame(spark, engine, streams="orders,gone,order").count())
    assert "there is no stream 'gone', 'order'. Check the names. Or set failOnMissing to" in said
    assert frame(spark, engine, streams="orders,order", failOnMissing="false").count() == 1
    source = spark.readStream.format("braidstream").options(url=engine.url, streams="later")
    sink = {"queryName": "later", "checkpointLocation": str(tmp_path / "c")}
    said = first_line(
        lambda: source.load().writeStream.format("memory").options(**sink).start().processAllAvailable()
    )
    assert "there is no stream 'later'" in said
    sink["checkpointLocation"] = str(tmp_path / "d")
    patient = source.option("failOnMissing", "false").load()
    query = patient.writeStream.format("memory").options(**sink).queryName("patient").start()
    try:
        query.processAllAvailable()
        with client_of(engine) as client:
            client.xadd("later", {"n": "1"})
            query.processAllAvailable()
            assert spark.table("patient").count() == 1
            client.delete("later")  # a query that has begun is not stopped
            query.processAllAvailable()
    finally:
        query.stop()


def test_values_are_text_if_one_asks(spark: SparkSession, engine: Engine, tmp_path: Path) -> None:
    become(engine)
    lake = str(tmp_path / "lake")
    with client_of(engine) as client:
        client.xadd("orders", {"order": "1", "item": "b\u00fccher"})
        archiver = Archiver(None, Archive(lake, Servers((engine.url,), {}), (b"orders",)))
        client.xadd("orders", {b"order": b"\xff2"})
        archiver.round()
        archiver.close()
        client.xadd("orders", {"order": "3", "item": "pen"})
        client.xadd("orders", {b"order": b"4", b"raw": b"\x00\xfe"})
    wanted = [
        {"order": "1", "item": "b\u00fccher"},
        {"order": "\\xff2"},
        {"order": "3", "item": "pen"},
        {"order": "4", "raw": "\x00\\xfe"},
    ]
    for more in ({}, {"lake": lake}):
        text = frame(spark, engine, valueType="string", **more).orderBy("id")
        assert dict(text.dtypes)["fields"] == "map<string,string>"
        assert [row.fields for row in text.collect()] == wanted
    raw = frame(spark, engine).orderBy("id")
    assert [bytes(row.fields["order"]) for row in raw.collect()] == [b"1", b"\xff2", b"3", b"4"]
    own = spark.read.format("braidstream").schema("order string, _fields map<string,string>")
    [row] = own.options(url=engine.url, streams="orders").load().where("order = '3'").collect()
    assert row._fields == wanted[2]


def test_an_error_is_one_sentence_first(spark: SparkSession, engine: Engine) -> None:
    for options, sentence in (
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger: unknown. Did you mean maxEntries"),
        ({"valueType": "hex"}, "option valueType: 'hex' is neither binary nor string"),
        ({"url": "redis://127.0.0.1:1"}, "redis://127.0.0.1:1: Error 111 connecting to 127.0.0.1:1"),
    ):
        said = first_line(lambda options=options: frame(spark, engine, **options).count())  # type: ignore[misc]
        assert sentence in said
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("given", "named", "meant"),
    [
        ("subscribe", "subscribe", "streams"),
        ("subscribepattern", "subscribePattern", "streamPattern"),
        ("kafka.bootstrap.servers", "kafka.bootstrap.servers", "url"),
        ("minoffsetspertrigger", "minOffsetsPerTrigger", "minEntriesPerTrigger"),
        ("failondatalos", "failondatalos", "failOnDataLoss"),
        ("startingoffset", "startingoffset", "startingOffsets"),
    ],
)
def test_kafkas_names_and_typos_get_a_hint(given: str, named: str, meant: str) -> None:
    with pytest.raises(OptionError) as raised:
        source_options({"url": "redis://x", "streams": "s", given: "1"})
    assert str(raised.value).startswith(f"option {named}: unknown. Did you mean {meant}?")


def test_options_are_checked_at_load(spark: SparkSession, engine: Engine) -> None:
    for reader in (spark.read, spark.readStream):
        said = first_line(
            lambda reader=reader: reader.format("braidstream").option("inferSchema", "true").load()
        )  # type: ignore[misc]
        assert "option url: missing" in said
    said = first_line(lambda: frame(spark, engine, inferSchema="true"))
    assert "option inferschema: unknown" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka.bootstrap.servers": "h:9092", "subscribe": "a"}, "Did you mean url? That is its name here."),
        (
            {"url": "redis://h", "streams": "a", "includeHeaders": "true"},
            "Leave it out: what headers would have",
        ),
        (
            {"url": "redis://h", "streams": "a", "kafka.security.protocol": "SSL"},
            "rediss://USER:PASSWORD@HOST",
        ),
        ({"url": "redis://h", "streams": "a", "kafka.sasl.mechanism": "PLAIN"}, "A login is part of url"),
        ({"url": "redis://h", "streams": "a", "kafka.ssl.truststore.location": "x"}, "redis.ssl_ca_certs"),
        ({"url": "redis://h", "streams": "a", "kafka.fetch.max.bytes": "1"}, "It is for Kafka's client"),
    ],
)
def test_who_comes_from_kafka_is_told_what_to_write(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        source_options(given)
    assert said in str(raised.value)


def test_the_sink_hints_at_its_own_options() -> None:
    with pytest.raises(OptionError, match=r"^option topic: unknown\. Did you mean stream\?"):
        sink_options({"url": "redis://x", "topic": "s"})
    with pytest.raises(OptionError, match=r"^option nonsense: unknown\. The options are: "):
        sink_options({"url": "redis://x", "nonsense": "s"})
