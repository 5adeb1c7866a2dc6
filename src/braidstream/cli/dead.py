"""`braid dead`: list, show, retry and drop dead letters of consumers."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from braidstream.cli.frame import Verbs
from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.screen import Screen
from braidstream.consumers import dead_letters
from braidstream.consumers.dead_letters import DeadLetter
from braidstream.errors import BraidError
from braidstream.operations.open_region import AnyClient, open_region

_PAGE: Final = 100

app = Verbs("List, show, retry and drop dead letters of consumers.")

Stream = Annotated[str, typer.Argument(help="Stream of dead letters, like orders.dead.")]
Ids = Annotated[list[str] | None, typer.Argument(help="IDs of dead letters.")]
All = Annotated[bool, typer.Option("--all", help="All that are there now, instead of IDs.")]
Reason = Annotated[str, typer.Option(help="Only those whose reason contains this text.")]
Group = Annotated[str | None, typer.Option(help="Only those of this group.")]


@app.command("list")
def list_(
    stream: Stream,
    url: Url,
    count: Annotated[int, typer.Option(min=1, help="How many to show at most, oldest first.")] = 20,
    reason: Reason = "",
    group: Group = None,
    as_json: Json = False,
) -> None:
    """List dead letters, oldest first.

    Example: braid dead list orders.dead --url redis://localhost:6379
    """
    table = Table("ID", "from", "group", "attempts", "reason", box=None)
    shown = list[dict[str, Any]]()
    with trouble(url, as_json), open_region(url) as client:
        for entry, letter in _chosen(client, stream, None, reason, group):
            shown.append(_facts(entry, letter))
            place, attempts = f"{letter.stream} {letter.id}", str(letter.attempts)
            table.add_row(entry, *map(escape, (place, letter.group, attempts, letter.reason)))
            if len(shown) == count:
                break
        if not shown and not client.exists(stream):
            raise BraidError(f"there is no stream {stream!r}. Dead letters of orders are in orders.dead.")
    if as_json:
        typer.echo(json.dumps({"stream": stream, "letters": shown}))
    elif shown:
        Screen(highlight=False, soft_wrap=True).print(table)
    else:
        typer.echo(f"{stream} has no dead letters.")


@app.command("show")
def show(
    stream: Stream,
    entry: Annotated[str, typer.Argument(metavar="ID", help="ID of the dead letter.")],
    url: Url,
    as_json: Json = False,
) -> None:
    """Show a dead letter and the entry in it.

    Example: braid dead show orders.dead 1794787738772-1 --url redis://localhost:6379
    """
    with trouble(url, as_json), open_region(url) as client:
        found = list(_chosen(client, stream, [entry], "", None))
    _missing(stream, [] if found else [entry], as_json)
    [(name, letter)] = found
    facts = _facts(name, letter) | {"fields": _fields(letter)}
    lines = [f"{field}: {value}" for field, value in facts.items() if field not in ("traceback", "fields")]
    lines += [f"traceback:\n{letter.traceback}"] if letter.traceback else []
    lines += [f"  {field} = {value}" for field, value in _fields(letter)]
    report(as_json, facts, "\n".join(lines))


@app.command("retry")
def retry(
    stream: Stream,
    url: Url,
    ids: Ids = None,
    every: All = False,
    to: Annotated[
        str | None, typer.Option(help="Append to this stream, not to the one that the name implies.")
    ] = None,
    source: Annotated[str | None, typer.Option("--from", help="Only those of this stream.")] = None,
    reason: Reason = "",
    group: Group = None,
    as_json: Json = False,
) -> None:
    """Append entries to their stream again, and delete their dead letters, in one step.

    Those in orders.dead go to orders. Dead letters that name another stream are left and listed: use --to.
    Entries get new IDs, and every group of the stream receives them, not only the one that failed.

    Example: braid dead retry orders.dead --all --reason ConnectionError --url redis://localhost:6379
    """
    _require(ids, every)
    done, left = list[dict[str, str]](), dict[str, str]()
    with trouble(url, as_json), open_region(url) as client:
        found = list[tuple[str, DeadLetter]]()
        for each in _chosen(client, stream, ids, reason, group):
            name, letter = each
            if source not in (None, letter.stream):
                continue
            if to is None and not dead_letters.belongs(stream, letter):
                left[name] = letter.stream
                continue
            found.append(each)
            if len(found) == _PAGE:
                done += _retried(client, stream, found, to)
                found = []
        done += _retried(client, stream, found, to)
    seen = left.keys() | {each["id"] for each in done}
    if left:
        why = dead_letters.refusal(stream, left.values())
        facts = {"error": why, "code": "OTHERSTREAM", "stream": stream, "retried": done, "left": left}
        report(as_json, facts, f"{len(done)} retried, {len(left)} left: {why}")
        raise typer.Exit(1)
    _missing(stream, [name for name in ids or () if name not in seen], as_json)
    report(as_json, {"stream": stream, "retried": done}, f"{len(done)} retried.")


@app.command("drop")
def drop(
    stream: Stream,
    url: Url,
    ids: Ids = None,
    every: All = False,
    reason: Reason = "",
    group: Group = None,
    as_json: Json = False,
) -> None:
    """Delete dead letters.

    Example: braid dead drop orders.dead 1794787738772-1 --url redis://localhost:6379
    """
    _require(ids, every)
    with trouble(url, as_json), open_region(url) as client:
        found = [name for name, _ in _chosen(client, stream, ids, reason, group)]
        for at in range(0, len(found), _PAGE):
            part = [name.encode() for name in found[at : at + _PAGE]]
            client.converse(dead_letters.drop(stream, part))
    _missing(stream, [name for name in ids or () if name not in found], as_json)
    report(as_json, {"stream": stream, "dropped": len(found)}, f"{len(found)} dropped.")


def _require(ids: list[str] | None, every: bool) -> None:
    if bool(ids) == every:
        raise typer.BadParameter("name dead letters by their IDs, or use --all.")


def _missing(stream: str, ids: list[str], as_json: bool) -> None:
    if ids:
        text = f"{stream} has no dead letter {', '.join(ids)}."
        report(as_json, {"error": text, "code": "NODEADLETTER"}, text)
        raise typer.Exit(1)


def _chosen(
    client: AnyClient, stream: str, ids: list[str] | None, reason: str, group: str | None
) -> Iterator[tuple[str, DeadLetter]]:
    """Dead letters by their IDs, or all that exist at the start of the command."""
    last = client.converse(dead_letters.last_id(stream))
    low: str | None = "-" if last is not None and not ids else None
    for name in ids or ():
        for entry, letter in client.converse(dead_letters.page(stream, name, name, 1)):
            if letter is not None:
                yield entry.decode(), letter
    while low is not None and last is not None:
        rows = client.converse(dead_letters.page(stream, low, last, _PAGE))
        for entry, letter in rows:
            if letter is not None and reason in letter.reason and group in (None, letter.group):
                yield entry.decode(), letter
        low = f"({rows[-1][0].decode()}" if len(rows) == _PAGE else None


def _retried(
    client: AnyClient, stream: str, found: list[tuple[str, DeadLetter]], to: str | None
) -> list[dict[str, str]]:
    letters = [(name.encode(), letter) for name, letter in found]
    new = client.converse(dead_letters.retry(stream, letters, to)) if letters else []
    return [
        {"id": name, "stream": to or letter.stream, "as": entry}
        for (name, letter), entry in zip(found, new, strict=True)
        if entry is not None
    ]


def _facts(entry: str, letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": entry,
        "stream": letter.stream,
        "original": letter.id,
        "group": letter.group,
        "consumer": letter.consumer,
        "attempts": letter.attempts,
        "reason": letter.reason,
        **({"traceback": letter.traceback} if letter.traceback else {}),
    }


def _fields(letter: DeadLetter) -> list[tuple[str, str]]:
    text = [word.decode("utf-8", "backslashreplace") for word in letter.words]
    return list(zip(text[::2], text[1::2], strict=True))
