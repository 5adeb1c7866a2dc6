"""Reach one server: the options every verb shares, how plans run there, how trouble is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import typer
from rich.console import Console

from braidstream.drivers.sync import Redis, ServerError
from braidstream.errors import BraidError
from braidstream.plan import Plan

T = TypeVar("T")

Url = Annotated[
    str, typer.Option(help="Server, like redis://user:password@host:6379/0 or rediss:// for TLS.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]

_errors = Console(stderr=True, highlight=False)


def shown(url: str) -> str:
    """The address without its secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@contextmanager
def trouble(url: str, as_json: bool) -> Iterator[None]:
    """Errors end the command with one message and exit code 1, never with a traceback."""
    try:
        yield
    except (BraidError, ServerError, OSError, ValueError) as error:
        code = getattr(error, "code", "ERR")
        if as_json:
            typer.echo(json.dumps({"error": str(error), "code": code, "url": shown(url)}))
        else:
            _errors.print(f"[bold red]error[/] {shown(url)}: ", end="")
            _errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def ask(url: str, *plans: Plan[Any]) -> list[Any]:
    """Run plans on a server, one after the other."""
    with Redis.from_url(url) as client:
        return [client.run_plan(plan) for plan in plans]


def report(as_json: bool, facts: dict[str, Any], text: str) -> None:
    typer.echo(json.dumps(facts) if as_json else text)
