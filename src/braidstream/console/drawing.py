"""Geometry of the pictures: curves of charts, and the map of regions. Templates draw it."""

import math
import time
from dataclasses import dataclass
from typing import Final

from braidstream.console.samples import Point, spans
from braidstream.operations.read_regions import Rates
from braidstream.operations.status import LinkView, Overview, View
from braidstream.operations.words import (
    age,
    daemon_words,
    is_broken,
    is_held,
    is_slow,
    link_words,
    memory_words,
)

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


# ----------------------------------------------------------------------------------------------------
# The map of regions as geometry: boxes on an ellipse, an arrow for each link. regions.html draws it.

MAP_WIDTH: Final = 1000
BOX: Final = (190, 74)
# Between the arrows of the two directions.
_APART: Final = 9
# Between an arrow and a box; how long its tip is.
_GAP: Final = 3
_TIP: Final = 5


@dataclass(frozen=True, slots=True)
class Box:
    """A region. state: a class of the style sheet: ok, warn, bad."""

    name: str
    x: float
    y: float
    state: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrow:
    """One direction of a link. text: what is said about it on the map; empty if all is well."""

    source: str
    target: str
    x1: float
    y1: float
    x2: float
    y2: float
    state: str
    text: str
    text_x: float
    text_y: float


@dataclass(frozen=True, slots=True)
class RegionMap:
    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def draw_map(found: Overview, rates: Rates) -> RegionMap:
    places, height = _places(len(found.views))
    at = {view.name: place for view, place in zip(found.views, places, strict=True)}
    boxes = tuple(Box(view.name, *at[view.name], *_region(view, found)) for view in found.views)
    arrows = tuple(_arrow(link, at, rates) for link in found.links if link.target in at)
    return RegionMap(MAP_WIDTH, height, boxes, arrows)


def link_state(link: LinkView) -> str:
    """A class of the style sheet: ok, behind, bad, unknown."""
    if link.status is None:
        return "unknown"
    if is_broken(link):
        return "bad"
    return "behind" if is_slow(link) else "ok"


def _region(view: View, found: Overview) -> tuple[str, tuple[str, ...]]:
    """State and text of a box."""
    if view.error:
        return "bad", (view.trouble[0],)
    state = "warn" if is_held(view) else "ok"
    lacks_daemon = found.needs_daemon(view) and not view.live
    if lacks_daemon or view.is_full or view.writes_refused or (view.region and view.region.fenced):
        state = "bad"
    return state, (f"{view.engine}, {memory_words(view)}", f"daemon: {daemon_words(view, found)}")


def _places(count: int) -> tuple[list[tuple[float, float]], int]:
    """The middle of each box, and the height of the picture."""
    if count <= 2:
        return ([(MAP_WIDTH / 2, 60)] if count == 1 else [(190, 60), (MAP_WIDTH - 190, 60)]), 120
    angles = [-math.pi / 2 + 2 * math.pi * number / count for number in range(count)]
    if count == 4:
        angles = [angle - math.pi / 4 for angle in angles]
    rx, ry = MAP_WIDTH / 2 - 130, 150 if count < 5 else 230
    top = min(math.sin(angle) for angle in angles)
    bottom = max(math.sin(angle) for angle in angles)
    places = [
        (MAP_WIDTH / 2 + rx * math.cos(angle), BOX[1] / 2 + 10 + ry * (math.sin(angle) - top))
        for angle in angles
    ]
    return places, round(ry * (bottom - top) + BOX[1] + 20)


def _arrow(link: LinkView, at: dict[str, tuple[float, float]], rates: Rates) -> Arrow:
    (x1, y1), (x2, y2) = at[link.source], at[link.target]
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    # To the right of the way: the two directions do not cover each other.
    right = (-dy * _APART, dx * _APART)
    begin, end = _to_edge(right, (dx, dy)) + _GAP, _to_edge(right, (-dx, -dy)) + _GAP + _TIP
    x1, y1, x2, y2 = (
        x1 + right[0] + dx * begin,
        y1 + right[1] + dy * begin,
        x2 + right[0] - dx * end,
        y2 + right[1] - dy * end,
    )
    words = link_words(link, rates.get((link.source, link.target), 0.0))
    text = words.removeprefix("ok").lstrip(", ")
    # A third of the way along, and next to the line.
    text_x = x1 + (x2 - x1) * 0.34 - dy * 14
    text_y = y1 + (y2 - y1) * 0.34 + dx * 12 + 4
    return Arrow(link.source, link.target, x1, y1, x2, y2, link_state(link), text, text_x, text_y)


def _to_edge(start: tuple[float, float], way: tuple[float, float]) -> float:
    """How far it is from a place in a box to its edge. Both are relative to the middle of the box."""
    return min(
        (half - at if step > 0 else half + at) / abs(step)
        for half, at, step in zip((BOX[0] / 2, BOX[1] / 2), start, way, strict=True)
        if step
    )
