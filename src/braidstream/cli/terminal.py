"""What `braid spark` prints in a terminal: errors, a progress bar, tables."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

progress_console = Console(stderr=True)


@contextmanager
def logs_above_bars() -> Iterator[None]:
    """Processes that are started inside get a pipe as stderr; what they write is printed above progress bars.

    Without it, log lines of the JVM and the bar would share lines. Nothing to do if stderr is no terminal.
    """
    if not progress_console.is_terminal:
        yield
        return
    reader, writer = os.pipe()
    terminal = os.dup(2)
    progress_console.file = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
    threading.Thread(target=_print_lines, args=(reader,), daemon=True, name="braid-logs").start()
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _print_lines(reader: int) -> None:
    with os.fdopen(reader, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            progress_console.print(line.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)


def refuse(text: str) -> NoReturn:
    """A usage error: exit code 2."""
    Console(stderr=True, highlight=False).print(f"[bold red]error[/] {escape(text)}", soft_wrap=True)
    raise typer.Exit(2)


class _Count(MofNCompleteColumn):
    """Done and total; empty while the total is unknown."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


def bar(what: str, total: float | None) -> Progress:
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Count(),
        TimeElapsedColumn(),
        console=progress_console,
        transient=True,
    )
    shown.add_task(what, total=total)
    return shown


def print_summary(as_json: bool, title: str, facts: dict[str, Any]) -> None:
    """The summary of a run: one line of JSON, or a table."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table("what", "how much", title=escape(title), title_justify="left")
    table.columns[1].justify = "right"
    for name, value in facts.items():
        number = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        table.add_row(name.replace("_", " "), escape(number))
    Console().print(table)


def print_rows(title: str, rows: list[dict[str, Any]], shown: Callable[[Any], str]) -> None:
    """A table of rows; nothing if there are none."""
    if rows:
        table = Table(*map(escape, rows[0]), title=title, title_justify="left")
        for row in rows:
            table.add_row(*(escape(shown(value)) for value in row.values()))
        Console().print(table)
