"""The source under Spark itself: restarts from a checkpoint, progress reports, the lag for Prometheus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import QueryProgressEvent

from braidstream.spark.lag import LagListener
from tests.spark.conftest import Load, Query
from tests.support.servers import Engine
from tests.support.waiting import eventually

Make = Callable[..., Query]


def add(engine: Engine, *numbers: int, name: str = "orders") -> None:
    with engine.client() as client:
        for n in numbers:
            client.xadd(name, {"n": n})


def test_a_query_restarts_from_its_checkpoint_and_a_loss_fails_it(query: Make, engine: Engine) -> None:
    orders = query(streams="orders", maxEntriesPerTrigger=4)
    add(engine, *range(10))
    assert orders.numbers() == list(range(10))
    assert [size for size in orders.batches if size] == [4, 4, 2]
    add(engine, 10)
    assert orders.numbers() == [10]
    add(engine, 11, 12)
    with engine.client() as client:
        client.xtrim("orders", maxlen=1, approximate=False)
    with pytest.raises(
        StreamingQueryException, match="stream orders: entries were trimmed before they were read"
    ):
        orders.run()


def test_the_first_batch_under_latest_begins_where_it_began(
    query: Make, engine: Engine, tmp_path: Path
) -> None:
    add(engine, 0)
    orders = query(streams="orders", startingOffsets="latest")
    orders.run()
    for log in (tmp_path / "checkpoint" / "commits").iterdir():
        log.unlink()  # as if Spark was killed before it noted that batch 0 was done
    add(engine, 1)
    assert orders.numbers() == [1]


def test_progress_tells_the_latest_offset_and_the_lag_per_stream(
    spark: Any, load: Load, engine: Engine, tmp_path: Path
) -> None:
    registry, labels = CollectorRegistry(), {"query": "billing", "stream": "orders"}
    seen = list[float | None]()

    def lag() -> float | None:
        return registry.get_sample_value("braidstream_spark_lag_entries", labels)

    class Watched(LagListener):
        """Reads the gauge after each report: the end of the query removes it a moment after the last."""

        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            super().onQueryProgress(event)
            seen.append(lag())

    listener = Watched(registry)
    spark.streams.addListener(listener)
    add(engine, *range(10))
    try:
        writer = load(stream=True, streams="orders", maxEntriesPerTrigger=4).writeStream.format("noop")
        writer = writer.queryName("billing").option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(availableNow=True).start().awaitTermination()
        eventually(lambda: 0.0 in seen, within_s=60, why="the last report should say that nothing is left")
        eventually(lambda: lag() is None, within_s=60, why="a query that has ended has no lag")
    finally:
        spark.streams.removeListener(listener)
    assert set(seen) <= {6.0, 2.0, 0.0}
