"""Progress of `braid region add` and `rejoin`: streams and entries, on a terminal and in a log."""

import io

import pytest
from rich.console import Console

from braidstream.cli import region


@pytest.mark.parametrize("is_terminal", [True, False])
def test_streams_and_entries_are_counted(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "EVERY_S", 0.0)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal, width=100)
    with region.copy_progress(console, "eu-west", 1_200) as done:
        done(5)
        done(2_000)
    assert "from eu-west" in shown.getvalue()
    assert "2 of 1,200 streams, 2,005 entries" in shown.getvalue()
