"""Statistics as pictures: one PNG, or a page with the same picture and the tables."""

from base64 import b64encode
from datetime import datetime
from html import escape
from io import BytesIO
from typing import Any, Final

from braidstream.spark.jobs.stats import Stats

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
