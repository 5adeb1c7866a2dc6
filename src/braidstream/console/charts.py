"""Time series as geometry: where the curves of a chart run. templates/chart.html draws it."""

import math
import time
from dataclasses import dataclass
from typing import Final

from braidstream.console.samples import Point, spans
from braidstream.inspection.wording import age

WIDTH: Final = 560
HEIGHT: Final = 180
LEFT: Final = 52
RIGHT: Final = 8
TOP: Final = 10
BOTTOM: Final = 24
_LINES: Final = 4
# A chart covers the first of these that shows all.
_SPANS: Final = (60.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """number: which colour. paths: of SVG, one for each stretch. last: the newest value, as text."""

    name: str
    number: int
    paths: tuple[str, ...]
    last: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line and what it is labelled with."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    curves: tuple[Curve, ...]
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    is_empty: bool


def draw(title: str, series: dict[str, list[Point]], *, unit: str, span_s: float) -> Chart:
    """A chart whose right edge is now, over at most `span_s`."""
    now = time.time()
    oldest = min((points[0][0] for points in series.values() if points), default=now)
    span_s = next((span for span in _SPANS if now - oldest <= span < span_s), span_s)
    known = [value for points in series.values() for _, value in points if value is not None]
    top = _round_up(max(known, default=0.0))

    def place(at: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (1 - min(now - at, span_s) / span_s)
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)
        return f"{x:.1f} {y:.1f}"

    curves = []
    for number, (name, points) in enumerate(series.items()):
        recent = [(at, value) for at, value in points if now - at <= span_s]
        paths = tuple("M" + "L".join(place(*point) for point in part) for part in spans(recent))
        last = recent[-1][1] if recent else None
        curves.append(Curve(name, number % 8, paths, "?" if last is None else _text(last, unit)))
    rows = tuple(
        Tick(TOP + (HEIGHT - TOP - BOTTOM) * (1 - line / _LINES), _text(top * line / _LINES, unit))
        for line in range(_LINES + 1)
    )
    columns = tuple(
        Tick(
            LEFT + (WIDTH - LEFT - RIGHT) * (1 - part),
            f"-{age(round(span_s * part * 1000))}" if part else "now",
        )
        for part in (1, 0.75, 0.5, 0.25, 0)
    )
    return Chart(title, tuple(curves), rows, columns, not known)


def _round_up(value: float) -> float:
    """1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power)


def _text(value: float, unit: str) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k{unit}"
    return f"{value:,.3g}{unit}" if value < 1000 else f"{value:,.0f}{unit}"
