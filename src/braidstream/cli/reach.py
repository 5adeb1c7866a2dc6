"""One server: the options that every command shares, how plans run there, how errors are reported."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from braidstream.cli.screen import Screen, say
from braidstream.clients.sync import Redis
from braidstream.engine.address import Listen, parse_address, shown
from braidstream.errors import BraidError, ConfigError
from braidstream.operations.open_region import CLIENT_ERRORS, SLOT_MOVES
from braidstream.operations.rights import with_right
from braidstream.plan.plan import Plan

T = TypeVar("T")

Url = Annotated[
    str,
    typer.Option(
        help="Server: redis://user:password@host:6379/0, rediss:// for TLS, or redis+sentinel://host:26379,host:26379/service."
    ),
]
ConfigFile = Annotated[
    Path, typer.Option("--config", envvar="BRAID_CONFIG", help="The file that lists the regions.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print each entry as one line of JSON.")]

# As redis-py 8 has it. redis-py 7 would wait for a frozen server for ever.
_WITHIN_S: Final = 5.0
_errors = Screen(stderr=True, highlight=False)


@contextmanager
def trouble(where: str | Path | Listen, as_json: bool) -> Iterator[None]:
    """Turn errors into one message and exit code 1, never a traceback.

    where: the URL of the server, the file or folder, or the address to listen on that the message names.
    """
    try:
        yield
    except SLOT_MOVES:
        _fail(where, as_json, "a slot is moving to another node. Run it again when it has moved.", "TRYAGAIN")
    except (BraidError, OSError, *CLIENT_ERRORS) as error:
        _fail(where, as_json, with_right(str(error)), getattr(error, "code", "ERR"))
    except (ValueError, TypeError) as error:
        if isinstance(error, ValueError) and isinstance(where, str) and _is_readable(where):
            text = f"braidstream failed: {type(error).__name__}: {error}. Please report it with this text."
            _fail(where, as_json, text, "ERR")
        # redis-py's text may contain a part of the URL, and with it a password.
        text = "it cannot be read. Write redis://user:password@host:port/db, special characters escaped."
        _fail(where, as_json, text, "URL")


def _is_readable(url: str) -> bool:
    try:
        parse_address(url)
    except ConfigError:
        return False
    return True


def _fail(where: str | Path | Listen, as_json: bool, text: str, code: str) -> NoReturn:
    if isinstance(where, str):
        about = {"url": shown(where)}
    else:
        about = {"listen" if isinstance(where, Listen) else "file": str(where)}
    [place] = about.values()
    text = text.removeprefix(f"{place}: ")
    if as_json:
        typer.echo(json.dumps({"error": text, "code": code} | about))
    else:
        _errors.print("[bold red]error[/] ", end="")
        _errors.print(f"{place}: {text}", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def ask(url: str, *plans: Plan[Any]) -> list[Any]:
    """Run plans on a server, one after the other."""
    with Redis.from_url(url, socket_timeout=_WITHIN_S, socket_connect_timeout=_WITHIN_S) as client:
        return [client.run_plan(plan) for plan in plans]


def report(as_json: bool, facts: dict[str, Any], text: str) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        say(text)
