"""stats: rates and sizes over time, by stream and region; the most common fields and keys; the lag of groups.

Every function takes a frame with the source's columns and returns a small one; `collect` runs them all.
"""

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from html import escape
from io import BytesIO
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from braidstream.operations.open_region import open_region

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


def by_field(frame: DataFrame) -> DataFrame:
    """The fields that most entries have."""
    each = frame.select(f.explode("fields").alias("name", "value"))
    counts = (f.count("*").alias("entries"), f.sum(f.octet_length("value")).alias("bytes"))
    return each.groupBy("name").agg(*counts).orderBy(f.desc("entries"), "name").limit(TOP)


def by_key(frame: DataFrame, key: str) -> DataFrame:
    """The values of a field that most entries have: where a partition would be hot."""
    value = f.col("fields")[key].cast("string").alias("name")
    counts = (f.count("*").alias("entries"), f.sum("bytes").alias("bytes"))
    return frame.groupBy(value).agg(*counts).orderBy(f.desc("entries"), "name").limit(TOP)


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


# ----------------------------------------------------------------------------------------------------
# Statistics as pictures: one PNG, or a page with the same picture and the tables.

COLOURS: Final = ("#2b6777", "#c8553d", "#4c956c", "#e9b44c", "#6d597a", "#8d99ae")
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
body { color: #222; background: #fff }
img { max-width: 100% } table { border-collapse: collapse; margin: .5rem 0 1.5rem }
td, th { padding: .2rem 1rem .2rem 0; text-align: left } td.n { text-align: right }
h2 { font-size: 1.1rem }
"""


def as_png(stats: Stats) -> bytes:
    """Entries and bytes over time, by stream; the most common fields, or keys."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 9), layout="constrained")
    FigureCanvasAgg(figure)
    rates, sizes, tops = figure.subplots(3, 1)
    _series(rates, stats, "entries", f"entries in {_span(stats.bucket_s)}")
    _series(sizes, stats, "bytes", f"bytes in {_span(stats.bucket_s)}")
    _tops(
        tops, stats.keys or stats.fields, "the most common keys" if stats.keys else "the most common fields"
    )
    out = BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def _series(axes: Any, stats: Stats, what: str, title: str) -> None:
    streams = list(dict.fromkeys(row["stream"] for row in stats.series))
    times = sorted({row["at"] for row in stats.series})
    base = [0] * len(times)
    for at, stream in enumerate(streams[: len(COLOURS)]):
        found = {row["at"]: row[what] for row in stats.series if row["stream"] == stream}
        values = [found.get(time, 0) for time in times]
        width = stats.bucket_s / 86_400 * 0.9
        axes.bar(times, values, width, bottom=base, color=COLOURS[at], label=stream[:30], align="edge")
        base = [low + value for low, value in zip(base, values, strict=True)]
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if len(streams) > 1:
        axes.legend(frameon=False, fontsize=9, ncols=3)


def _tops(axes: Any, rows: list[dict[str, Any]], title: str) -> None:
    names = ["(none)" if row["name"] is None else str(row["name"])[:40] for row in reversed(rows)]
    axes.barh(names, [row["entries"] for row in reversed(rows)], color=COLOURS[0])
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


_SPANS: Final = {1: "a second", 60: "a minute", 3600: "an hour", 86_400: "a day", 604_800: "a week"}


def _span(seconds: int) -> str:
    if seconds in _SPANS:
        return _SPANS[seconds]
    if seconds < 60:
        return f"{seconds} seconds"
    return f"{seconds // 60} minutes" if seconds < 3600 else f"{seconds // 3600} hours"


def as_page(stats: Stats) -> str:
    picture = b64encode(as_png(stats)).decode()
    tables = "".join(
        _table(title, rows)
        for title, rows in (
            ("Streams", stats.streams),
            ("Groups", stats.lag),
            ("Keys", stats.keys),
            ("Fields", stats.fields),
        )
        if rows
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>braid stats</title>"
        f"<style>{_STYLE}</style><h1>Streams</h1>"
        f"<img alt='entries and bytes over time' src='data:image/png;base64,{picture}'>"
        f"{tables}</html>\n"
    )


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(title: str, rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{lines}</table>"


def _cell(value: Any) -> str:
    side = " class='n'" if isinstance(value, int) else ""
    return f"<td{side}>{escape(shown(value))}</td>"
