"""A Spark application on a standalone cluster, in which tasks lag behind and executors die.

    python -m tests.support.standalone_job MASTER URL        writes 0..399 to `lags`, then to `dies`

In `lags` the first attempt of a task stops after half of its rows and waits: Spark starts a twin on another
host. In `dies` it kills its executor there. Each attempt leaves its number in the list attempts:<stream>.
Later ones wait for the first: on a busy machine a twin may be done before the first has come to Python.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import redis
from pyspark import TaskContext
from pyspark.sql import SparkSession

from scripts import spark_classes

ROWS: Final = 400
PARTITIONS: Final = 4
_BATCH: Final = 10
_PATIENCE_S: Final = 300

Trouble = Callable[[Any], None]


def session(master: str) -> SparkSession:
    made = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.extraJavaOptions", spark_classes.SHORT_LIVED)
        .config("spark.executor.extraJavaOptions", spark_classes.OPTIONS)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BATCH))
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "1s")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    return made


def lag(client: Any) -> None:
    client.blpop("never", timeout=_PATIENCE_S)


def die(client: Any) -> None:
    """Kill the JVM above: a worker's parent is Python's daemon, whose parent is the executor."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(executor, signal.SIGKILL)
    lag(client)


def troubled(
    url: str, stream: str, trouble: Trouble, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    with redis.Redis.from_url(url, socket_timeout=None) as client:
        is_watched = task.partitionId() == 0
        if is_watched:
            attempts = f"attempts:{stream}"
            if task.attemptNumber() > 0:
                assert client.blmove(attempts, attempts, _PATIENCE_S, "LEFT", "LEFT") == b"0"
            client.rpush(attempts, task.attemptNumber())
        for at, batch in enumerate(batches):
            if is_watched and task.attemptNumber() == 0 and at * _BATCH == ROWS // PARTITIONS // 2:
                trouble(client)
            yield batch


def main(master: str, url: str) -> None:
    spark = session(master)
    for stream, trouble in (("lags", lag), ("dies", die)):
        numbers = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("CAST(id AS STRING) AS n")
        frame = numbers.mapInArrow(partial(troubled, url, stream, trouble), "n string")
        writer = frame.write.format("braidstream").mode("append")
        writer.options(url=url, stream=stream, rowsPerStep="7").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
