"""`python -m bench.spark`: what source and sink reach, interleaved with the engine's own figures in one run.

    read     Spark to `noop` with two partitions, against receiving the same bytes and parsing nothing;
             with a schema of two fields instead of the map; and the CPU that each process takes for a row
    write    exactly once with two partitions, against the same rows with idempotence none
    latency  XADD to foreachBatch, one entry after another, with both of Spark's ways to write checkpoint
             files; and which step of a micro-batch takes how long, as Spark reports it

Rounds alternate; a figure is the median of the rounds, with the quartiles. Goals are issue 6's.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from braidstream.clusters.bulk import Server
from braidstream.model import ids
from braidstream.spark.source import columns
from tests.support.servers import Engine

RESULTS = Path(__file__).parent / "results" / "spark.json"
PAGE = 5_000
STEPS = ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
# Spark's default for a checkpoint on a local disk runs `chmod` for every file, unless Hadoop's native library
# is there; the other one does not.
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINTS = {
    name: f"org.apache.spark.sql.execution.streaming.checkpointing.{name}BasedCheckpointFileManager"
    for name in ("FileContext", "FileSystem")
}
WARM_UP = 2  # rounds that the JVM compiles in
PAYLOAD = b"x" * 68
READ_GOAL, RECEIVED_GOAL, WRITE_GOAL, LATENCY_GOAL_MS = 600_000, 0.40, 200_000, 200


def session() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.streaming.pollingDelay", "1ms")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    return made


def fill(engine: Engine, rows: int) -> None:
    with engine.client() as client:
        for start in range(0, rows, PAGE):
            pipe = client.pipeline(transaction=False)
            for n in range(start, min(rows, start + PAGE)):
                pipe.xadd("in", {"order": b"%016d" % n, "payload": PAYLOAD})
            pipe.execute()


def receive_only(engine: Engine) -> None:
    """The bytes of every page, from one connection, in turn."""
    server, after = Server(engine.url), (0, 0)
    with server.wire(b"in") as wire:
        while True:
            reply = wire.receive(wire.send(("XRANGE", "in", b"(" + ids.text(after), "+", "COUNT", PAGE)))
            last = columns.last_id(reply)
            if last is None:
                break
            after = last
    server.close()


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def reads(
    spark: Any, engine: Engine, rows: int, rounds: int, tick: Callable[[], None]
) -> dict[str, list[float]]:
    reader = spark.read.format("braidstream").options(url=engine.url, streams="in", minPartitions=2)
    whole, columns = reader.load(), reader.schema("order string, payload binary").load()
    made = defaultdict[str, list[float]](list)
    for at in range(rounds + WARM_UP):
        before = cpu_s()
        ours = timed(lambda: whole.write.format("noop").mode("overwrite").save())
        spent = {name: taken - before.get(name, 0) for name, taken in cpu_s().items()}
        bare = timed(lambda: receive_only(engine))
        own = timed(lambda: columns.write.format("noop").mode("overwrite").save())
        tick()
        if at >= WARM_UP:
            made["read rows/s"].append(rows / ours)
            made["read rows/s, own schema"].append(rows / own)
            made["receive only rows/s"].append(rows / bare)
            made["read / receive only"].append(bare / ours)
            for name in ("java", "python", "redis-server"):
                made[f"read, CPU us/row, {name}"].append(1e6 * spent.get(name, 0) / rows)
    return made


def cpu_s() -> dict[str, float]:
    """The CPU that this process's children and theirs have used, dead ones too, by program."""
    parents, used, names = dict[int, int](), dict[int, float](), dict[int, str]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, tail = stat.read_text().rsplit(")", 1)
            pid, facts = int(stat.parent.name), tail.split()
            parents[pid], names[pid] = int(facts[1]), head.split("(", 1)[1]
            used[pid] = sum(map(int, facts[11:15])) / os.sysconf("SC_CLK_TCK")
    total = defaultdict[str, float](float)
    for pid, taken in used.items():
        above = parents[pid]
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid():
            total[names[pid]] += taken
    return total


def writes(
    spark: Any, engine: Engine, rows: int, rounds: int, tick: Callable[[], None]
) -> dict[str, list[float]]:
    frame = spark.range(0, rows, 1, 2).selectExpr("lpad(id, 16, '0') as order", "repeat('x', 68) as payload")
    made: dict[str, list[float]] = {"write rows/s, exactly once": [], "write rows/s, idempotence none": []}

    def save(idempotence: str) -> None:
        options = {"url": engine.url, "stream": "out", "idempotence": idempotence}
        frame.write.format("braidstream").options(**options).mode("append").save()

    for at in range(rounds + WARM_UP):
        once, plain = timed(lambda: save("exactly-once")), timed(lambda: save("none"))
        with engine.client() as client:
            assert client.xlen("out") == 2 * rows
            client.unlink("out")
        tick()
        if at >= WARM_UP:
            made["write rows/s, exactly once"].append(rows / once)
            made["write rows/s, idempotence none"].append(rows / plain)
    return made


def latency(
    spark: Any, engine: Engine, entries: int, tick: Callable[[], None], checkpoint: str
) -> dict[str, list[float]]:
    seen, stream = dict[int, float](), f"live-{checkpoint}"
    spark.conf.set(MANAGER, CHECKPOINTS[checkpoint])

    def note(frame: Any, batch: int) -> None:
        rows = frame.collect()
        now = time.perf_counter()
        seen.update({int(row.fields["n"]): now for row in rows})

    frame = spark.readStream.format("braidstream").options(url=engine.url, streams=stream).load()
    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.foreachBatch(note).option("checkpointLocation", folder).start()
        delays = list[float]()
        with engine.client() as client:
            for n in range(entries):
                sent = time.perf_counter()
                client.xadd(stream, {"n": n})
                while n not in seen:
                    time.sleep(0.001)
                delays.append((seen[n] - sent) * 1000)
                tick()
        steps = [progress.durationMs for progress in query.recentProgress if progress.numInputRows]
        query.stop()
    made = {f"latency ms, {checkpoint}": delays[entries // 3 :]}
    for step in STEPS:
        made[f"  {step}, ms ({checkpoint})"] = [float(each.get(step, 0)) for each in steps[len(steps) // 3 :]]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=90, help="for each latency")
    chosen = parser.parse_args()
    spark = session()
    with Engine() as engine, Progress(transient=True) as progress:
        total = 2 * (chosen.rounds + WARM_UP) + chosen.entries * len(CHECKPOINTS)
        bar = progress.add_task("measuring", total=total)
        fill(engine, chosen.rows)
        made = reads(spark, engine, chosen.rows, chosen.rounds, lambda: progress.advance(bar))
        made |= writes(spark, engine, chosen.rows, chosen.rounds, lambda: progress.advance(bar))
        for checkpoint in CHECKPOINTS:
            made |= latency(spark, engine, chosen.entries, lambda: progress.advance(bar), checkpoint)
    spark.stop()
    goals = {
        "read rows/s": READ_GOAL,
        "read / receive only": RECEIVED_GOAL,
        "write rows/s, exactly once": WRITE_GOAL,
        "latency ms, FileContext": LATENCY_GOAL_MS,
        "latency ms, FileSystem": LATENCY_GOAL_MS,
    }
    table = Table("figure", "median", "quartiles", "goal")
    results = []
    for name, values in made.items():
        low, middle, high = statistics.quantiles(values, n=4)
        form = "{:.2f}" if middle < 10 else "{:,.0f}"
        shown = [form.format(value) for value in (middle, low, high)]
        table.add_row(name, shown[0], f"{shown[1]} .. {shown[2]}", str(goals.get(name, "")))
        results.append({"name": name, "median": middle, "low": low, "high": high, "goal": goals.get(name)})
    Console(width=100).print(table)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
