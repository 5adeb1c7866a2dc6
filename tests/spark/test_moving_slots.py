"""Source and sink on a region that is a cluster, while slots of it move from node to node."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession
from redis.crc import key_slot

import braidstream
from braidstream.errors import LibraryError
from braidstream.model import keys
from braidstream.spark.sink.ledger import Book, Publisher
from braidstream.spark.source import read_slice
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.microbatch import Micro
from tests.support.sinks import Sink

NAMES = ["out", "in-1", "in-2", "in-3", "a}b"]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Any]:
    become_cluster(cluster)
    with braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as opened:
        yield opened


def slot(name: str) -> int:
    return int(key_slot(keys.meta(name.encode())))


def fill(client: Any, *names: str, count: int = 30) -> list[int]:
    with client.pipeline() as pipe:
        for at, name in enumerate(names):
            for n in range(count):
                pipe.xadd(name, {"n": at * count + n})
        pipe.execute()
    return list(range(len(names) * count))


def numbers(client: Any, name: str = "out") -> list[int]:
    return [int(fields["n"]) for _, fields in client.xrange(name)]


def test_a_cluster_is_recognised_and_its_region_known(cluster: Cluster, client: Any) -> None:
    assert {cluster.owner(slot(name)) for name in NAMES} == set(cluster.nodes)
    wanted = fill(client, *NAMES)
    query = Micro({"url": cluster.nodes[1].url, "streams": ",".join(NAMES), "group": "lag"})
    assert query.numbers() == wanted
    assert {row["region"] for row in query.rows} == {1}
    assert {group["name"] for group in client.xinfo_groups("in-1")} == {"lag"}
    found = Micro({"url": cluster.url, "streamPattern": "in-*", "maxEntriesPerTrigger": 25})
    assert found.numbers() == wanted[30:120]
    Sink(cluster.nodes[2].url, stream="made").run(0, [1, 2, 3])
    assert numbers(client, "made") == [1, 2, 3]
    with cluster.owner(slot("made")).client() as bare:
        assert bare.xlen(keys.strand(b"made", "s", 1)) == 3


def test_a_stream_is_read_while_and_after_its_slot_moves(
    cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_slice, "PAGE_ROWS", 4)
    wanted = fill(client, "in-1", "in-2")
    options = {"url": cluster.url, "streams": "in-1,in-2"}
    with SlotMove(cluster, slot("in-1")) as move:
        move.move()  # the slot is open, its keys are at the target: ASK
        assert Micro(options).numbers() == wanted
        assert Micro(options, before_read=move.finish).numbers() == wanted  # planned here, read there: MOVED


def test_a_slot_moves_between_two_pages(
    cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_slice, "PAGE_ROWS", 4)
    wanted = fill(client, "in-1")
    with SlotMove(cluster, slot("in-1")) as move:
        steps = iter([move.move, move.finish])
        before_call(
            monkeypatch, read_slice.columns, "last_id", {3: lambda: next(steps)(), 5: lambda: next(steps)()}
        )
        assert Micro({"url": cluster.url, "streams": "in-1"}).numbers() == wanted
        assert next(steps, None) is None


@pytest.mark.parametrize(("kind", "step"), [(Publisher, "_append"), (Publisher, "_step"), (Book, "_change")])
def test_a_batch_is_published_once_though_its_slot_moves(
    cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch, kind: type, step: str
) -> None:
    moved = slot("out") if kind is Publisher else int(key_slot(keys.sink_ledger(b"query-1")))
    with moving_later(cluster, moved) as move:
        before_call(monkeypatch, kind, step, {2: move})
        Sink(cluster.url).run(0, list(range(8)), [8, 9])
        Sink(cluster.url).run(0, list(range(8)), [8, 9])
        Sink(cluster.url).run(1, [10])
        assert numbers(client) == list(range(11))


def test_rows_are_staged_and_appended_though_their_slot_moves(cluster: Cluster, client: Any) -> None:
    fill(client, "out", count=1)
    with moving_later(cluster, slot("out")) as move:
        sink = Sink(cluster.url)
        message = sink.write([{"n": 1}, {"n": 2}])
        move()
        more = sink.write([{"n": 3}])
        sink.commit(0, message, more)
        Sink(cluster.url, idempotence="none").write([{"n": 4}])
    Sink(cluster.url, idempotence="none").write([{"n": 5}])
    assert numbers(client) == [0, 1, 2, 3, 4, 5]


def test_a_node_without_the_functions_gets_no_rows_beside_the_region(cluster: Cluster, client: Any) -> None:
    owner = cluster.owner(slot("out"))
    with owner.client() as bare:
        bare.function_flush("SYNC")
        with pytest.raises(LibraryError, match="lacks the braidstream functions"):
            Sink(cluster.url).run(0, [1])
        assert bare.exists("out") == 0


def test_a_query_of_spark_reads_and_writes_while_a_slot_moves(
    cluster: Cluster, client: Any, spark: SparkSession, tmp_path: Any
) -> None:
    wanted = fill(client, "in-1", "in-2", count=200)
    with SlotMove(cluster, slot("in-1")) as move:
        move.move()
        frame = spark.readStream.format("braidstream").options(url=cluster.url, streams="in-1,in-2")
        rows = frame.option("maxEntriesPerTrigger", 150).load().selectExpr("cast(fields['n'] as string) n")
        query = (
            rows.writeStream.format("braidstream")
            .options(url=cluster.url, stream="out", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        move.finish()
        query.awaitTermination()
    assert sorted(numbers(client)) == wanted


@contextmanager
def moving_later(cluster: Cluster, slot: int) -> Iterator[Callable[[], None]]:
    """A function that moves a slot. At the end it is moved back."""
    move = SlotMove(cluster, slot)

    def now() -> None:
        move.begin()
        move.finish()

    yield now
    move.__exit__(None, None, None)


def before_call(
    monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, events: dict[int, Callable[[], Any]]
) -> None:
    """Let something happen before some calls of a function, by their number."""
    real, calls = getattr(holder, name), [0]

    def called(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        events.get(calls[0], lambda: None)()
        return real(*args, **options)

    monkeypatch.setattr(holder, name, called)
