"""The terminal. It shows what others wrote: names, entries, error texts of servers and peers.

A terminal obeys control characters: they move the cursor, change the title, forge lines. So they are escaped.
"""

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console
from rich.segment import Segment

from braidstream.operations.words import printable


def plain_lines(text: str) -> str:
    """A text of several lines, without other control characters."""
    return "\n".join(map(printable, text.split("\n")))


def say(text: str, *, err: bool = False) -> None:
    typer.echo(plain_lines(text), err=err)


class Screen(Console):
    """Rich's console, without control characters in what it shows."""

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=plain_lines(segment.text))
