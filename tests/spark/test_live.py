"""Queries under Spark while streams are written: three regions that replicate late, and a least number."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Load
from tests.support.servers import Engine
from tests.support.waiting import eventually
from tests.support.world import World


class Live:
    """A query that runs until it is stopped, again from the same checkpoint when it is started again."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches = list[list[int]]()

    @property
    def seen(self) -> list[int]:
        return sorted(n for batch in self.batches for n in batch)

    @contextmanager
    def running(self, frame: DataFrame) -> Iterator[Any]:
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query = writer.start()
        try:
            yield query
        finally:
            query.stop()

    def _take(self, frame: DataFrame, batch: int) -> None:
        numbers = [int(row.fields["n"]) for row in frame.collect()]
        if len(self.batches) > batch:
            self.batches[batch] = numbers  # a batch that was stopped before Spark noted that it is done
        else:
            self.batches.append(numbers)

    def wait_for(self, wanted: list[int], query: Any) -> None:
        def is_there() -> bool:
            assert query.exception() is None, query.exception()
            return len(self.seen) >= len(wanted)

        eventually(is_there, within_s=300, why=f"the query should read {wanted}")
        assert self.seen == wanted


@pytest.mark.timeout(1000)
def test_three_regions_replicate_late_and_out_of_order_while_a_query_runs_and_moves(
    spark: SparkSession, tmp_path: Path
) -> None:
    dice, live, added = random.Random(5), Live(tmp_path / "checkpoint"), 0
    with Engine() as one, Engine("valkey-9.1") as two, Engine() as three:
        world = World([one, two, three])

        def orders(*regions: int) -> DataFrame:
            urls = [world.engines[region - 1].url for region in regions]
            options = {"url": urls[0], "fallbackUrls": ",".join(urls[1:]), "maxEntriesPerTrigger": "7"}
            return (
                spark.readStream.format("braidstream")
                .options(streams="orders", failOnMissing="false", **options)
                .load()
            )

        def traffic(turns: int) -> int:
            for n in range(turns):
                world[dice.choice([1, 2, 3])].xadd("orders", {"n": added + n})
                if dice.random() < 0.7:
                    pair = dice.choice(list(permutations((1, 2, 3), 2)))
                    world.ship(*pair, "orders", relay=dice.random() < 0.3)
            return turns

        for regions in ((1, 2, 3), (3, 1, 2)):
            added += traffic(10)  # while no query runs
            with live.running(orders(*regions)) as query:
                added += traffic(20)
                world.sync()
                live.wait_for(list(range(added)), query)
        world.close()


@pytest.mark.timeout(1000)
def test_a_query_waits_for_the_least_number_of_entries(load: Load, engine: Engine, tmp_path: Path) -> None:
    live = Live(tmp_path / "checkpoint")
    with engine.client() as client:
        client.xadd("orders", {"n": 0})
        for n in range(1, 3):
            client.xadd("orders", {"n": n})

        def looks() -> int:
            return int(client.info("commandstats").get("cmdstat_xinfo|stream", {"calls": 0})["calls"])

        with live.running(load(stream=True, streams="orders", minEntriesPerTrigger=5)) as query:
            eventually(lambda: looks() >= 5, within_s=300, why="the query should look for entries")
            assert live.seen == []
            for n in range(3, 5):
                client.xadd("orders", {"n": n})
            live.wait_for(list(range(5)), query)
    assert [batch for batch in live.batches if batch] == [[0, 1, 2, 3, 4]]
