"""`python -m bench.lake`: a stream audited, archived, trimmed, read through the combined view, replayed and
compacted, at three sizes.

Time, entries a second, peak memory of driver, JVM and Python workers, files and bytes; and whether the cost
grows with the size and no faster: the time of an entry at the largest size against that at the smallest.

--no-spark does the same work in this process and counts its CPU time, which a busy machine does not spoil.
A replay and a compaction need Spark.
"""

import argparse
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table

from bench.spark import PAGE, session
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.jobs.audit import Auditor
from braidstream.spark.jobs.compaction import Compact, Compactor
from braidstream.spark.jobs.replay import Replay, replay
from braidstream.spark.lake.log import Lake
from braidstream.spark.lake.typed_columns import Typing
from braidstream.spark.options import Servers
from braidstream.spark.source.rows import META
from pyspark_braidstream import DefaultSource
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually

RESULTS = Path(__file__).parent / "results" / "lake.json"
KEY = "bs:1:s:{orders}"


def fill(engine: Engine, entries: int) -> None:
    """Like an application in region 1, only faster: an hour ago, a thousand entries in a millisecond."""
    first_ms = int(time.time() * 1000) - 7_200_000
    with engine.client() as client:
        client.hset("bs:meta:{orders}", "s1", "0:+:0-0")
        for start in range(0, entries, PAGE):
            pipe = client.pipeline(transaction=False)
            for n in range(start, min(entries, start + PAGE)):
                fields = {"order": b"%016d" % n, "payload": secrets.token_bytes(34).hex()}
                pipe.xadd(KEY, fields, id=f"{first_ms + n // 1000}-{n % 1000}")
            pipe.execute()


def timed(spark: Any, work: Callable[[], Any]) -> tuple[float, Any]:
    clock = time.perf_counter if spark is not None else time.process_time
    began = clock()
    found = work()
    return clock() - began, found


def count(spark: Any, options: dict[str, str]) -> int:
    if spark is None:
        reader: Any = DefaultSource(options).reader(META)  # type: ignore[arg-type]
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    return int(spark.read.format("braidstream").options(**options).load().count())


def has(client: Any, entries: int) -> bool:
    """Whether a replica has everything; not while it loads."""
    try:
        return bool(client.exists(KEY)) and client.xlen(KEY) == entries
    except RedisError:
        return False


class Memory:
    """The most that the driver, the JVM and all Python workers together held, in MB, looked at five times a
    second. What processes share counts for each."""

    def __init__(self, spark: Any) -> None:
        self.jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid()) if spark is not None else 0
        self.peak = {"driver_mb": 0, "jvm_mb": 0, "workers_mb": 0, "workers": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            workers = [held for held in map(resident_mb, descendants(self.jvm)) if held]
            now = (resident_mb(os.getpid()), resident_mb(self.jvm), sum(workers), len(workers))
            self.peak = {
                name: max(before, seen) for (name, before), seen in zip(self.peak.items(), now, strict=True)
            }


def resident_mb(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    except OSError:
        return 0


def descendants(pid: int) -> list[int]:
    try:
        tasks = [Path(each) / "children" for each in Path(f"/proc/{pid}/task").iterdir()]
        children = [int(child) for task in tasks for child in task.read_text().split()]
    except OSError:
        return []
    return [one for child in children for one in (child, *descendants(child))]


def one_size(spark: Any, entries: int, folder: str) -> dict[str, Any]:
    lake, took = f"{folder}/{entries}", dict[str, float]()
    with Engine() as one, Engine() as two, Memory(spark) as memory:
        become(one)
        fill(one, entries)
        servers = Servers((one.url,), {})
        with one.client() as client, two.client() as copy:
            engine_bytes = client.info("memory")["used_memory"]
            copy.replicaof("127.0.0.1", one.port)
            eventually(lambda: has(copy, entries), within_s=600, why="there should be a second region")
            copy.replicaof("NO", "ONE")
        auditor = Auditor(spark, {1: servers, 2: Servers((two.url,), {})}, streams=(b"orders",), settle_s=0)
        took["audit_s"], report = timed(spark, auditor.run)
        auditor.close()
        assert not report.anomalies
        assert report.rows == 2 * entries
        two.flush()
        archiver = Archiver(spark, Archive(lake, servers, (b"orders",), max_entries=2_000_000))
        took["archive_s"], done = timed(spark, lambda: archive_all(archiver))
        assert done == entries
        archiver.close()
        files = Lake(lake).load().files.values()
        sizes = {"files": len(files), "lake_bytes": sum(each.bytes for each in files)}
        if spark is not None:
            took |= summed(spark, f"{lake}-typed", servers, entries)
        trim = Archiver(spark, Archive(lake, servers, (b"orders",), trim=True, keep_s=3600))
        took["trim_s"], trimmed = timed(spark, lambda: trim.round().trimmed)
        assert trimmed == entries
        trim.close()
        options = {"url": one.url, "streams": "orders", "lake": lake}
        took["view_s"], seen = timed(spark, lambda: count(spark, options))
        assert seen == entries
        if spark is not None:
            took["replay_s"] = replayed(spark, options, two, entries)
            took["compact_s"] = compacted(spark, lake, servers, entries)
    return {"entries": entries, **took, **sizes, "engine_bytes": engine_bytes, **memory.peak}


def replayed(spark: Any, source: dict[str, str], target: Engine, entries: int) -> float:
    """From the lake into another region, half a million entries at once, exactly once."""
    become(target, region=2, name="eu-west")
    with target.client() as client:
        first_ms = min(file.first[0] for file in Lake(source["lake"]).load().files.values())
        ends = first_ms, first_ms + entries // 1000 + 1
        what = Replay(source, target.url, "again", "bench", *ends, window_ms=500)
        took, done = timed(spark, lambda: replay(spark, what))
        assert done == entries
        assert client.xlen("bs:2:s:{again}") == entries
    return took


def summed(spark: Any, lake: str, servers: Servers, entries: int) -> dict[str, float]:
    """The sum of a field: with braidstream's source (lake and stream), and of the table's column."""
    archiver = Archiver(spark, Archive(lake, servers, (b"orders",), schema=Typing.parse("order long")))
    archive_all(archiver)
    archiver.close()
    options = {"url": servers.urls[0], "streams": "orders", "lake": lake}
    source = spark.read.format("braidstream").schema("order long").options(**options).load()
    table = spark.read.parquet(*DeltaTable(f"{lake}/orders").file_uris())
    took = dict[str, float]()
    for name, frame in (("sum_by_source_s", source), ("sum_of_table_s", table)):
        took[name], total = timed(spark, lambda frame=frame: frame.agg({"order": "sum"}).first()[0])
        assert total == entries * (entries - 1) // 2
    return took


def compacted(spark: Any, lake: str, servers: Servers, entries: int) -> float:
    """A thousand keys: nearly everything goes."""
    key = "right(CAST(fields['order'] AS STRING), 3)"
    compactor = Compactor(spark, Compact(lake, servers, (b"orders",), key_sql=key))
    took, done = timed(spark, compactor.round)
    compactor.close()
    assert done.dropped == entries - 1000
    return took


def archive_all(archiver: Archiver) -> int:
    entries = 0
    while (done := archiver.round()).entries:
        entries += done.entries
        if not done.left:
            break
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="2500000,5000000,10000000")
    parser.add_argument("--no-spark", action="store_true")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    spark, found = None if given.no_spark else session(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        one_size(spark, 10_000, folder)  # a JVM that has run once
        for size in sizes:
            found.append(one_size(spark, size, folder))
            Console(stderr=True).print(found[-1])
    if spark is not None:
        spark.stop()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


def show(found: list[dict[str, Any]]) -> None:
    phases = [name for name in found[0] if name.endswith("_s")]
    table = Table("entries", *(name[:-2] for name in phases), title="seconds, entries a second")
    for each in found:
        n = each["entries"]
        table.add_row(f"{n:,}", *(f"{each[name]:.1f} s\n{n / each[name]:,.0f}/s" for name in phases))
    Console(width=120).print(table)
    table = Table("entries", "files", "lake B/entry", "engine B/entry", "driver MB", "JVM MB", "workers MB")
    for each in found:
        sizes = [f"{each[name] / each['entries']:.0f}" for name in ("lake_bytes", "engine_bytes")]
        workers = f"{each['workers_mb']} in {each['workers']}"
        table.add_row(
            f"{each['entries']:,}",
            str(each["files"]),
            *sizes,
            str(each["driver_mb"]),
            str(each["jvm_mb"]),
            workers,
        )
    Console(width=120).print(table)
    for name in phases:
        ratio = found[-1][name] / found[-1]["entries"] / (found[0][name] / found[0]["entries"])
        Console().print(
            f"{name[:-2]}: an entry costs {ratio:.2f} times as much at the largest size as at the smallest"
        )


if __name__ == "__main__":
    main()
