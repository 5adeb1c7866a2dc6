"""stats: rates and sizes over time, by stream and region; the most common fields and keys; the lag of groups.

Every function takes a frame with the source's columns and returns a small one; `collect` runs them all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from braidstream.clients.any_region import open_region

BUCKETS: Final = 60
TOP: Final = 10


@dataclass(frozen=True, slots=True)
class Stats:
    """streams: stream, region, entries, bytes, first, last. series: at, stream, entries, bytes. fields, keys:
    name, entries, bytes. lag: stream, group, lag, pending (lag is None if the engine does not know it)."""

    streams: list[dict[str, Any]]
    series: list[dict[str, Any]]
    fields: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    lag: list[dict[str, Any]]
    bucket_s: int


def sized(frame: DataFrame) -> DataFrame:
    """With the bytes of each entry's names and values."""
    size = "octet_length(each.key) + octet_length(each.value)"
    return frame.withColumn(
        "bytes", f.expr(f"aggregate(map_entries(fields), 0L, (sum, each) -> sum + {size})")
    )


def by_stream(frame: DataFrame) -> DataFrame:
    return (
        frame.groupBy("stream", "region")
        .agg(
            f.count("*").alias("entries"),
            f.sum("bytes").alias("bytes"),
            f.min("timestamp").alias("first"),
            f.max("timestamp").alias("last"),
        )
        .orderBy("stream", "region")
    )


def by_time(frame: DataFrame, bucket_s: int) -> DataFrame:
    at = f.timestamp_seconds(f.floor(f.unix_seconds("timestamp") / bucket_s) * bucket_s)
    counts = (f.count("*").alias("entries"), f.sum("bytes").alias("bytes"))
    timed = frame.where("timestamp is not null")
    return timed.groupBy(at.alias("at"), "stream").agg(*counts).orderBy("at", "stream")


def by_field(frame: DataFrame, top: int = TOP) -> DataFrame:
    """The fields that most entries have."""
    each = frame.select(f.explode("fields").alias("name", "value"))
    counts = (f.count("*").alias("entries"), f.sum(f.octet_length("value")).alias("bytes"))
    return each.groupBy("name").agg(*counts).orderBy(f.desc("entries"), "name").limit(top)


def by_key(frame: DataFrame, key: str, top: int = TOP) -> DataFrame:
    """The values of a field that most entries have: where a partition would be hot."""
    value = f.col("fields")[key].cast("string").alias("name")
    counts = (f.count("*").alias("entries"), f.sum("bytes").alias("bytes"))
    return frame.groupBy(value).agg(*counts).orderBy(f.desc("entries"), "name").limit(top)


def bucket_of(first_s: float, last_s: float) -> int:
    """A round number of seconds that makes about BUCKETS of a range."""
    wanted = (last_s - first_s) / BUCKETS
    steps = (1, 5, 15, 60, 300, 900, 3600, 10_800, 43_200, 86_400, 604_800)
    return next((step for step in steps if step >= wanted), steps[-1])


def lag_of(url: str, streams: Iterable[str]) -> list[dict[str, Any]]:
    """How far every group is behind, now."""
    found = list[dict[str, Any]]()
    with open_region(url, decode_responses=True) as client:
        for stream in streams:
            groups: Any = client.xinfo_groups(stream) if client.exists(stream) else []
            for group in groups:
                numbers = {"lag": group.get("lag"), "pending": group["pending"]}
                found.append({"stream": stream, "group": group["name"], **numbers})
    return found


def collect(frame: DataFrame, *, key: str = "", url: str = "") -> Stats:
    """All of it. Reads the source once."""
    whole = sized(frame).cache()
    try:
        streams = _rows(by_stream(whole))
        times = [each[name].timestamp() for each in streams for name in ("first", "last") if each[name]]
        bucket_s = bucket_of(min(times, default=0.0), max(times, default=0.0))
        return Stats(
            streams=streams,
            series=_rows(by_time(whole, bucket_s)),
            fields=_rows(by_field(whole)),
            keys=_rows(by_key(whole, key)) if key else [],
            lag=lag_of(url, dict.fromkeys(each["stream"] for each in streams)) if url else [],
            bucket_s=bucket_s,
        )
    finally:
        whole.unpersist()


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
