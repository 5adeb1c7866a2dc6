"""The map of regions as geometry: boxes on an ellipse, an arrow for each link. regions.html draws it."""

import math
from dataclasses import dataclass
from typing import Final

from braidstream.admin.region_status import LinkView, Overview, View
from braidstream.inspection.region_reader import Rates
from braidstream.inspection.status_words import daemon_words, is_broken, is_held, link_words, memory_words

WIDTH: Final = 1000
BOX: Final = (190, 74)
# Between the arrows of the two directions.
_APART: Final = 9


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
    boxes = tuple(Box(view.name, *at[view.name], *_region(view)) for view in found.views)
    arrows = tuple(_arrow(link, at, rates) for link in found.links)
    return RegionMap(WIDTH, height, boxes, arrows)


def link_state(link: LinkView) -> str:
    """A class of the style sheet: ok, behind, bad, unknown."""
    if link.status is None:
        return "unknown"
    if is_broken(link):
        return "bad"
    return "behind" if link.status.lag_entries else "ok"


def _region(view: View) -> tuple[str, tuple[str, ...]]:
    """State and text of a box."""
    if view.error:
        return "bad", ("unreachable",)
    state = "warn" if is_held(view) else "ok"
    if not view.live or view.is_full or view.writes_refused or (view.region and view.region.fenced):
        state = "bad"
    return state, (f"{view.engine}, {memory_words(view)}", f"daemon: {daemon_words(view)}")


def _places(count: int) -> tuple[list[tuple[float, float]], int]:
    """The middle of each box, and the height of the picture."""
    if count == 1:
        return [(WIDTH / 2, 80)], 160
    if count == 2:
        return [(170, 90), (WIDTH - 170, 90)], 180
    height = 430 if count < 5 else 560
    rx, ry = WIDTH / 2 - 130, height / 2 - 60
    angles = [-math.pi / 2 + 2 * math.pi * number / count for number in range(count)]
    if count == 4:
        angles = [angle - math.pi / 4 for angle in angles]
    return [(WIDTH / 2 + rx * math.cos(angle), height / 2 + ry * math.sin(angle)) for angle in angles], height


def _arrow(link: LinkView, at: dict[str, tuple[float, float]], rates: Rates) -> Arrow:
    (x1, y1), (x2, y2) = at[link.source], at[link.target]
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    # To the right of the way: the two directions do not cover each other.
    x1, y1, x2, y2 = (x1 - dy * _APART, y1 + dx * _APART, x2 - dy * _APART, y2 + dx * _APART)
    gap = min(_to_edge(dx, dy) + 4, length / 2 - 20)
    x1, y1, x2, y2 = x1 + dx * gap, y1 + dy * gap, x2 - dx * (gap + 6), y2 - dy * (gap + 6)
    words = link_words(link, rates.get((link.source, link.target), 0.0))
    text = words.removeprefix("ok").strip()
    # A third of the way, and beside the line.
    text_x = x1 + (x2 - x1) * 0.34 - dy * 12
    text_y = y1 + (y2 - y1) * 0.34 + dx * 12 + 4
    return Arrow(link.source, link.target, x1, y1, x2, y2, link_state(link), text, text_x, text_y)


def _to_edge(dx: float, dy: float) -> float:
    """From the middle of a box to its edge."""
    across = BOX[0] / 2 / abs(dx) if dx else math.inf
    down = BOX[1] / 2 / abs(dy) if dy else math.inf
    return min(across, down)
