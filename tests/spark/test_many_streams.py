"""Many small streams: the driver looks at them in a few round trips, and a task reads many of them."""

import json
from typing import Any

import pytest

import braidstream
from braidstream.errors import DataLossError
from braidstream.model.strand import Strand
from braidstream.spark.options import Servers
from braidstream.spark.source import survey
from braidstream.spark.source.offsets import Offset
from braidstream.spark.source.read_slice import read
from braidstream.spark.source.rows import META, Rows, Shape
from braidstream.spark.source.slices import Range, Slice
from braidstream.spark.source.survey import Surveyor
from braidstream.spark.tasks import cores
from pyspark_braidstream import DefaultSource
from tests.spark.conftest import Load, numbers
from tests.support.microbatch import Micro, number, rows_of
from tests.support.regions import become, client_of
from tests.support.servers import Engine

STREAMS, PLAIN = 300, 30


def fill(engine: Engine, first: int = 0, each: int = 2) -> list[int]:
    """Some entries in each of many streams, some of them plain. Returns their numbers."""
    numbers = list(range(first, first + STREAMS * each))
    with client_of(engine) as client, engine.client() as native:
        for target, few in ((native, numbers[: PLAIN * each]), (client, numbers[PLAIN * each :])):
            pipe: Any = target.pipeline(transaction=False)
            for n in few:
                pipe.xadd(f"s{(n - first) // each}", {"n": n})
            pipe.execute()
    return numbers


@pytest.fixture
def region(engine: Engine) -> Engine:
    become(engine)
    return engine


def stat(engine: Engine, section: str, name: str, default: Any = 0) -> Any:
    with engine.client() as client:
        return client.info(section).get(name, default)


def reader(engine: Engine, **options: Any) -> Any:
    texts = {"url": engine.url, "streamPattern": "s*", **{name: str(each) for name, each in options.items()}}
    return DefaultSource(texts).streamReader(META)  # type: ignore[arg-type]


def test_a_read_of_many_streams_has_few_tasks_and_each_entry_once(load: Load, region: Engine) -> None:
    wanted = fill(region)
    frame = load(streamPattern="s*", minPartitions=3)
    sizes = frame.rdd.glom().map(len).collect()
    assert sizes == [STREAMS * 2 // 3] * 3
    assert numbers(frame.collect()) == wanted


def test_a_query_over_many_streams_has_few_tasks_and_each_entry_once(region: Engine) -> None:
    wanted = fill(region)
    query = Micro({"url": region.url, "streamPattern": "s*"})
    assert query.numbers() == wanted
    more = fill(region, 1000)
    source = reader(region)
    start = source.initialOffset()
    assert len(source.partitions(start, source.latestOffset(start, source.getDefaultReadLimit()))) == cores()
    source.stop()
    assert query.numbers() == more
    with client_of(region) as client:
        client.xadd("s77", {"n": 5000})
    assert query.numbers() == [5000]


def test_a_look_at_many_streams_takes_few_round_trips(region: Engine) -> None:
    fill(region)
    names = [b"s%d" % n for n in range(STREAMS)]
    surveyor = Surveyor(Servers((region.url,), {}), names, None)
    surveyor.survey()
    before = stat(region, "stats", "total_reads_processed")
    assert len(surveyor.survey()) == STREAMS
    assert stat(region, "stats", "total_reads_processed") - before < STREAMS / 5
    surveyor.close()


def test_a_trigger_looks_only_at_streams_with_something_new(
    region: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new entry, an entry of a new region, and a stream that is deleted and created again."""
    fill(region)
    source = reader(region)

    def looked(since: int) -> int:
        return int(stat(region, "commandstats", "cmdstat_xinfo|stream")["calls"]) - since

    def latest(at: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = source.latestOffset(at, source.getDefaultReadLimit())
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    monkeypatch.setattr(survey, "LOOK_AGAIN_S", 3600.0)
    at = latest(source.initialOffset())
    since = looked(0)
    assert latest(at) == at
    assert looked(since) <= 1
    with client_of(region) as client, region.client() as native:
        client.xadd("s77", {"n": "1"})
        native.xadd("s7", {"n": "2"})
        other = Strand(b"s200", "s", 2)
        native.execute_command(*other.apply((0, 0), [(b"5-0", [b"n", b"3"])], (0, 0)))
    new = latest(at)
    assert looked(since) <= 6
    moved = Offset.parse(new).frontier
    assert moved[other] == (5, 0)
    before = Offset.parse(at).frontier
    assert {strand.name for strand in moved if moved[strand] != before[strand]} == {b"s7", b"s77", b"s200"}
    assert sum(len(part.parts) for part in source.partitions(at, new)) == 3
    assert latest(new) == new
    with client_of(region) as client:
        client.delete("s77")
        client.xadd("s77", {"n": "4"})
    monkeypatch.setattr(survey, "LOOK_AGAIN_S", 0.001)
    assert latest(new) != new
    source.stop()


def test_a_limit_that_is_not_reached_reads_no_entries_on_the_driver(region: Engine) -> None:
    fill(region)
    source = reader(region, maxEntriesPerTrigger=STREAMS * 2)
    before = stat(region, "commandstats", "cmdstat_xrange", None)
    source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    assert stat(region, "commandstats", "cmdstat_xrange", None) == before
    source.stop()
    limited = Micro({"url": region.url, "streamPattern": "s*", "maxEntriesPerTrigger": STREAMS})
    assert len(limited.run()) == STREAMS * 2
    assert max(limited.batches) <= STREAMS


def test_one_trimmed_stream_among_many_fails_the_batch_and_is_named(region: Engine) -> None:
    fill(region)
    query = Micro({"url": region.url, "streamPattern": "s*"})
    query.run()
    fill(region, 1000)

    def trim() -> None:
        with client_of(region) as client:
            client.xtrim("s150", maxlen=1, approximate=False)

    query.before_read = trim
    with pytest.raises(DataLossError, match="stream s150, writer 1: entries were trimmed"):
        query.run()


@pytest.mark.parametrize("weight", [0, 3, 100])
def test_small_ranges_that_have_more_entries_than_planned_are_read_to_their_end(
    region: Engine, weight: int
) -> None:
    with braidstream.Redis.from_url(region.url) as client:
        for n in range(40):
            client.xadd(f"s{n % 2}", {"n": n} if n != 7 else {"other": "\r\n*1\r\n", "n": n})
    strands = [Strand(name, "s", 1) for name in (b"s0", b"s1")]
    surveyor = Surveyor(Servers((region.url,), {}), (b"s0", b"s1"), None)
    infos = surveyor.survey()
    surveyor.close()
    parts = [Range(each, (0, 0), infos[each].last, guarded=True, weight=weight, count=0) for each in strands]
    rows = Rows(Shape(META, "PERMISSIVE", "_corrupt_record"), strands[0])
    found = rows_of(read(Slice(parts, 0), Servers((region.url,), {}), rows.of, 1.0))
    assert sorted(map(number, found)) == list(range(40))
    assert {row["stream"] for row in found if number(row) % 2} == {"s1"}
