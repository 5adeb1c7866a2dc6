"""How far `braid region add` and `rejoin` have come: a bar on a terminal, lines in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

# How often a line is printed where no terminal shows the bar.
EVERY_S: Final = 5.0

# Called with the number of entries after each stream.
Done = Callable[[int], None]


@contextmanager
def copy_progress(console: Console, source: str, streams: int) -> Iterator[Done]:
    """Show the streams that are done, and the entries copied. source: the region they come from."""
    counts = "{task.completed:,} of {task.total:,} streams, {task.fields[entries]:,} entries"
    bar = Progress(
        TextColumn("from {task.description}"),
        BarColumn(),
        TextColumn(counts),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task, done, entries, printed_s = (
        bar.add_task(escape(source), total=streams, entries=0),
        0,
        0,
        time.monotonic(),
    )

    def advance(more: int) -> None:
        nonlocal done, entries, printed_s
        done, entries = done + 1, entries + more
        bar.update(task, advance=1, entries=entries)
        if not console.is_terminal and time.monotonic() - printed_s >= EVERY_S:
            printed_s = time.monotonic()
            console.print(
                f"from {source}: {done:,} of {streams:,} streams, {entries:,} entries", markup=False
            )

    with bar:
        yield advance
