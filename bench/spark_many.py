"""`make bench-spark-many`: the Spark source over many small streams, each with a strand for every region.

    look   how long the driver needs to find the end of every strand
    read   a batch read of everything to `noop`
    batch  a micro-batch with one new entry in every stream

Seconds are medians of the rounds; CPU is that of this process, where the look runs.
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.spark import session, timed
from braidstream.model import ids
from braidstream.model.strand import Command, Strand
from braidstream.spark.options import Servers
from braidstream.spark.source.survey import Surveyor
from tests.support.regions import become, client_of
from tests.support.servers import Engine

ROUNDS = 3
FIELDS = [b"order", b"1", b"payload", b"x" * 68]
STEPS = ("triggerExecution", "latestOffset", "addBatch")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_many", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--regions", type=int, default=1)
    parser.add_argument("--no-spark", action="store_true", help="only the look")
    chosen = parser.parse_args()
    with Engine("redis-8.10") as engine:
        become(engine)
        names = [b"s%06d" % n for n in range(chosen.streams)]
        append(engine, names)
        for writer in range(2, chosen.regions + 1):
            one = [(ids.text((1_700_000_000_000, 1)), FIELDS)]
            send(engine, [Strand(name, "s", writer).apply(ids.ZERO, one, ids.ZERO) for name in names])
        found = looks(engine, names)
        if not chosen.no_spark:
            found |= queries(engine, names)
    table = Table("figure", "", title=f"{chosen.streams:,} streams, {chosen.regions} regions")
    for what, figure in found.items():
        table.add_row(what, figure)
    Console().print(table)


def append(engine: Engine, names: list[bytes]) -> None:
    """One entry to every stream."""
    with client_of(engine) as client:
        for at in range(0, len(names), 1000):
            pipe = client.pipeline(transaction=False)
            for name in names[at : at + 1000]:
                pipe.xadd(name, {b"order": b"1", b"payload": FIELDS[3]})
            pipe.execute()


def send(engine: Engine, commands: list[Command]) -> None:
    with engine.client() as client:
        for at in range(0, len(commands), 1000):
            pipe: Any = client.pipeline(transaction=False)
            for command in commands[at : at + 1000]:
                pipe.execute_command(*command)
            pipe.execute()


def looks(engine: Engine, names: list[bytes]) -> dict[str, str]:
    surveyor = Surveyor(Servers((engine.url,), {}), names, None)
    walls, cpus = list[float](), list[float]()
    for _ in range(ROUNDS):
        began = time.process_time()
        walls.append(timed(surveyor.survey))
        cpus.append(time.process_time() - began)
    surveyor.close()
    return {"look": middle(walls), "look, CPU": middle(cpus)}


def queries(engine: Engine, names: list[bytes]) -> dict[str, str]:
    spark = session()
    options = {"url": engine.url, "streamPattern": "s*"}
    frame = spark.read.format("braidstream").options(**options).load()

    def save() -> None:
        frame.write.format("noop").mode("overwrite").save()

    found = {"tasks": str(frame.rdd.getNumPartitions()), "read": middle(timed(save) for _ in range(ROUNDS))}
    with TemporaryDirectory() as folder:
        stream = spark.readStream.format("braidstream").options(**options).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        durations = list[dict[str, int]]()
        for _ in range(ROUNDS + 1):  # the first one reads everything
            append(engine, names)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            durations.append(query.recentProgress[0].durationMs)
        for step in STEPS:
            found[f"batch, {step}"] = middle(each[step] / 1000 for each in durations[1:])
    spark.stop()
    return found


def middle(seconds: Iterable[float]) -> str:
    return f"{statistics.median(seconds):.2f} s"


if __name__ == "__main__":
    main()
