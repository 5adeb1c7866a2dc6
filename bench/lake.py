"""`python -m bench.lake`: a stream archived, read through the combined view, and audited, at three sizes.

Time, entries a second, memory, files and bytes; and whether the cost grows with the size and no faster: the
time of an entry at the largest size against that at the smallest.

--no-spark does the same work in this process and counts its CPU time, which a busy machine does not spoil.
"""

import argparse
import json
import resource
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table

from bench.spark import PAGE, session
from braidstream.spark.lake.log import Lake
from braidstream.spark.options import Servers
from braidstream.spark.pipelines.archive import Archive, Archiver
from braidstream.spark.pipelines.audit import Auditor
from braidstream.spark.rows import META
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


def one_size(spark: Any, entries: int, folder: str) -> dict[str, Any]:
    lake = f"{folder}/{entries}"
    with Engine("redis") as one, Engine("redis") as two:
        become(one)
        fill(one, entries)
        with one.client() as client, two.client() as copy:
            memory = client.info("memory")["used_memory"]
            copy.replicaof("127.0.0.1", one.port)
            eventually(lambda: has(copy, entries), within_s=600, why="there should be a second region")
            copy.replicaof("NO", "ONE")
        servers = Servers((one.url,), {})
        regions = {1: servers, 2: Servers((two.url,), {})}
        auditor = Auditor(spark, regions, streams=(b"orders",), settle_s=0)
        audit_s, report = timed(spark, auditor.run)
        auditor.close()
        assert not report.anomalies
        assert report.rows == 2 * entries
        archiver = Archiver(spark, Archive(lake, servers, (b"orders",), max_entries=2_000_000))
        archive_s, done = timed(spark, lambda: archive_all(archiver))
        assert done == entries
        trim = Archiver(spark, Archive(lake, servers, (b"orders",), trim=True, keep_s=3600))
        trim_s, trimmed = timed(spark, lambda: trim.round().trimmed)
        options = {"url": one.url, "streams": "orders", "lake": lake}
        view_s, seen = timed(spark, lambda: count(spark, options))
        assert seen == entries
        for each in (archiver, trim):
            each.close()
    files = Lake(lake).load().files.values()
    return {
        "entries": entries,
        "archive_s": archive_s,
        "trim_s": trim_s,
        "trimmed": trimmed,
        "view_s": view_s,
        "audit_s": audit_s,
        "files": len(files),
        "lake_bytes": sum(each.bytes for each in files),
        "engine_bytes": memory,
        "driver_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "jvm_or_worker_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    }


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
    table = Table(
        "entries", "archive", "view", "audit", "files", "lake B/entry", "engine B/entry", "driver MB"
    )
    for each in found:
        n = each["entries"]
        rates = [f"{n / each[name]:,.0f}/s" for name in ("archive_s", "view_s", "audit_s")]
        sizes_of = [f"{each[name] / n:.0f}" for name in ("lake_bytes", "engine_bytes")]
        table.add_row(f"{n:,}", *rates, str(each["files"]), *sizes_of, str(each["driver_mb"]))
    Console().print(table)
    for name in ("archive_s", "view_s", "audit_s"):
        ratio = found[-1][name] / found[-1]["entries"] / (found[0][name] / found[0]["entries"])
        Console().print(
            f"{name[:-2]}: an entry costs {ratio:.2f} times as much at the largest size as at the smallest"
        )


if __name__ == "__main__":
    main()
