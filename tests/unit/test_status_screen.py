"""The screen of `braid status` in narrow and wide terminals."""

import io

import pytest
from rich.console import Console

from braidstream.cli.status import screen
from braidstream.console.drawing import link_state
from braidstream.model.region import Region
from braidstream.operations.status import LinkStatus, LinkView, Overview, Problem, View
from braidstream.operations.words import daemon_words, link_words

NAMES = ("us-east", "us-west", "eu-west", "eu-north", "ap-south")


def shown(columns: int, names: tuple[str, ...] = NAMES) -> list[str]:
    down = LinkStatus("down", since_ms=0, lag_entries=2853, lag_ms=19_000)
    views = tuple(View(number, name, error="no answer within 2 s") for number, name in enumerate(names, 1))
    links = tuple(LinkView(one, other, down, 3_500) for one in names for other in names if one != other)
    why = "down for 4 s: redis.example:6379: it said nothing for 10 s."
    problem = Problem("link", "us-east -> us-west", why, "Check the network between the two, and the peer.")
    console = Console(width=columns, file=io.StringIO(), highlight=False)
    console.print(screen(Overview(views, links, (problem,)), {}))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("columns", [60, 80, 120, 160])
def test_no_line_is_wider_than_the_screen_and_no_cell_is_broken(columns: int) -> None:
    lines = shown(columns)
    assert max(map(len, lines)) <= columns
    cell = "DOWN 3.5s, 2,853 behind, 19s"
    assert sum(line.count(cell) for line in lines) == 20


def test_links_are_a_table_if_it_fits_and_else_a_list() -> None:
    assert any(line.startswith("from \\ to  us-east") for line in shown(160))
    assert any(line.split() == ["from", "to", "link"] for line in shown(120))
    assert any(line.startswith("from \\ to  us-east") for line in shown(80, NAMES[:2]))


def test_problems_hang() -> None:
    lines = shown(80)
    at = next(at for at, line in enumerate(lines) if line.startswith("  us-east -> us-west: down for 4 s"))
    assert lines[at + 1].startswith("    ")


@pytest.mark.parametrize(("writers", "words"), [((1,), "not needed"), ((1, 2), "none")])
def test_status_and_console_say_whether_a_daemon_is_needed(writers: tuple[int, ...], words: str) -> None:
    view = View(1, "us-east", region=Region(1, "us-east", 1, writers=writers))
    assert daemon_words(view, Overview((view,), (), ())) == words


@pytest.mark.parametrize(("lag_ms", "state"), [(None, "ok"), (900, "ok"), (9_000, "behind")])
def test_a_link_stands_out_only_if_it_is_behind_for_seconds(lag_ms: int | None, state: str) -> None:
    status = LinkStatus("up", since_ms=0, lag_entries=3, lag_ms=lag_ms)
    link = LinkView("us-east", "eu-west", status, 10_000)
    assert link_state(link) == state
    assert link_words(link, 6.0).endswith("behind, 6/s" if lag_ms is None else "s, 6/s")
