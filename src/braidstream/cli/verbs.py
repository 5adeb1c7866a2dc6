"""A group of commands, like `braid region`, with our help and BRAID_URL.

app = Verbs("Add or remove a region.")

@app.command("add")
def add(...): ...
"""

import inspect
from collections.abc import Callable
from typing import Any

import typer

from braidstream.cli.help import SETTINGS, HelpCommand, HelpGroup
from braidstream.cli.secret import UrlCommand


class Verbs(typer.Typer):
    """Commands with --url also take --url-file and BRAID_URL."""

    def __init__(self, text: str = "") -> None:
        super().__init__(
            help=text,
            no_args_is_help=True,
            rich_markup_mode=None,
            add_completion=False,
            context_settings=dict(SETTINGS),
            cls=HelpGroup,
        )
        self.callback()(_always_a_group)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            has_url = "url" in inspect.signature(function).parameters
            cls = UrlCommand if has_url else HelpCommand
            return super(Verbs, self).command(name, cls=cls, **options)(function)

        return register


def _always_a_group() -> None:
    """Without a callback, Typer makes a group of one command that command."""
