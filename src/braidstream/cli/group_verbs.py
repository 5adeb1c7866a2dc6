"""`braid group`: the scope of groups, and which region delivers what, for one stream or many."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from braidstream.admin.stream_overview import find_streams
from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.verbs import Verbs
from braidstream.clients.any_region import CLIENT_ERRORS, AnyClient, open_region
from braidstream.model.frontier import name_of_text
from braidstream.model.meta import parse_each
from braidstream.model.region_config import Region
from braidstream.model.scope import Scope
from braidstream.protocol.identify import read_any_region
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import send_one

app = Verbs("List groups and their scope; take and give the work of a region.")

Streams = Annotated[str, typer.Option("--streams", help="A stream, or a glob like 'orders-*'.")]
Group = Annotated[str | None, typer.Option("--group", help="Only this group. Default: all.")]
# How a region refuses a GIVE that only the owner can carry out (lua/scope.lua).
_ELSEWHERE: Final = "Run this XGROUP GIVE in region"
From = Annotated[int, typer.Option("--from", help="Number of the region whose entries are meant.")]


class ScopeName(StrEnum):
    """Scopes of a group."""

    everywhere = "everywhere"
    once = "once"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of a stream; scope: None if every region delivers everything."""

    stream: bytes
    group: bytes
    scope: Scope | None

    def owners(self, region: Region) -> dict[int, int]:
        """The owner of each region's strands."""
        if self.scope is None:
            return {}
        return {writer: self.scope.owner(writer, region) for writer in region.writers}


@app.command("list")
def list_(url: Url, streams: Streams = "*", group: Group = None, as_json: Json = False) -> None:
    """List groups with their scope. For scope ONCE: which region delivers the entries of which region.

    Example: braid group list --url redis://localhost:6379 --streams 'orders-*'
    """
    with trouble(url, as_json), open_region(url) as client:
        region = client.run_plan(read_any_region())
        rows = [*_groups(client, streams, group)]
    if as_json:
        typer.echo(json.dumps({"groups": [_facts(row, region) for row in rows]}))
        return
    table = Table("stream", "group", "scope", "delivered by", box=None)
    for row in rows:
        owners = ", ".join(f"{writer} by {owner}" for writer, owner in row.owners(region).items())
        table.add_row(
            escape(_text(row.stream)), escape(_text(row.group)), _scope(row), owners or "each region"
        )
    Console(highlight=False, soft_wrap=True).print(table if rows else "No groups.")


@app.command("scope")
def scope(
    value: Annotated[ScopeName, typer.Argument(metavar="SCOPE", help="once, or everywhere.")],
    url: Url,
    streams: Streams,
    group: Annotated[str, typer.Option("--group", help="The group.")],
    as_json: Json = False,
) -> None:
    """Set the scope of a group, in all regions: once delivers each entry in one region.

    Example: braid group scope once --streams orders --group billing --url redis://localhost:6379
    """
    with trouble(url, as_json), open_region(url) as client:
        client.run_plan(read_any_region())
        rows = [row for row in _groups(client, streams, group) if _scope(row) != value]
        for row in rows:
            client.execute_command("XGROUP SCOPE", row.stream, row.group, value.value)
    _report(rows, as_json, f"the scope is now {value.value}")


@app.command("take")
def take(url: Url, of: From, streams: Streams = "*", group: Group = None, as_json: Json = False) -> None:
    """Let this region deliver the entries of another one, after that one failed.

    It starts after what was acknowledged there. Entries in hand there are delivered again.

    Example: braid group take --from 1 --streams 'orders-*' --url redis://localhost:6379
    """
    _change(url, as_json, streams, group, ("TAKE", of, ()))


@app.command("give")
def give(
    url: Url,
    of: From,
    to: Annotated[int, typer.Option("--to", help="Number of the region that continues.")],
    streams: Streams = "*",
    group: Group = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for acknowledgements; 0: no limit.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Hand the entries of a region over to another one, without a repeat.

    The present owner delivers nothing new. When everything is acknowledged, the other region continues. In a
    region that is not the owner, this asks the owner to do so.

    Example: braid group give --from 1 --to 2 --timeout 60 --url redis://localhost:6379
    """
    limit = ("TIMEOUT", max(1, round(timeout_s * 1000))) if timeout_s else ()
    _change(url, as_json, streams, group, ("GIVE", of, ("TO", "REGION", to, *limit)))


def _change(
    url: str, as_json: bool, streams: str, group: str | None, how: tuple[str, int, tuple[Any, ...]]
) -> None:
    verb, of, rest = how
    with trouble(url, as_json), open_region(url) as client:
        client.run_plan(read_any_region())
        rows, refused = list[GroupRow](), list[tuple[GroupRow, str]]()
        for row in _groups(client, streams, group):
            if row.scope is None:
                continue
            try:
                client.execute_command(f"XGROUP {verb}", row.stream, row.group, "REGION", of, *rest)
                rows.append(row)
            except CLIENT_ERRORS as error:
                if _ELSEWHERE not in str(error):
                    raise
                refused.append((row, str(error)))
    done = f"this region now delivers the entries of region {of}"
    if verb == "GIVE":
        done = f"region {rest[2]} delivers the entries of region {of} after the hand-over"
    _report(rows, as_json, done, refused)
    if refused:
        raise typer.Exit(1)


def _report(
    rows: list[GroupRow], as_json: bool, done: str, refused: Sequence[tuple[GroupRow, str]] = ()
) -> None:
    result = f": {done}" if rows else ""
    lines = [f"{len(rows)} group{'' if len(rows) == 1 else 's'} changed{result}."]
    lines += [f"Refused: {_text(row.stream)} {_text(row.group)}: {why}" for row, why in refused]
    facts = {"groups": [_named(row) for row in rows]}
    facts |= {"refused": [{**_named(row), "why": why} for row, why in refused]} if refused else {}
    report(as_json, facts, "\n".join(lines))


def _named(row: GroupRow) -> dict[str, str]:
    return {"stream": _text(row.stream), "group": _text(row.group)}


def _groups(client: AnyClient, streams: str, group: str | None) -> Iterator[GroupRow]:
    pattern = name_of_text(streams)
    found = client.run_on_primaries(lambda: find_streams(pattern))
    wanted = None if group is None else name_of_text(group)
    for name in sorted({name for names in found for name in names}):
        registry = parse_each([name], [client.run_plan(send_one(registry_of(name), resend=True))])[name]
        if registry.damaged is not None:
            typer.echo(f"error {registry.damaged.text}", err=True)
        for each in registry.groups if registry.exists else ():
            if wanted in (None, each):
                yield GroupRow(name, each, registry.scopes.get(each))


def _facts(row: GroupRow, region: Region) -> dict[str, Any]:
    owners = {str(writer): owner for writer, owner in row.owners(region).items()}
    return {"stream": _text(row.stream), "group": _text(row.group), "scope": _scope(row), "owners": owners}


def _scope(row: GroupRow) -> str:
    return ScopeName.everywhere.value if row.scope is None else ScopeName.once.value


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
