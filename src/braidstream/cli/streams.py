"""`braid streams`, `braid groups`, `braid group`, `braid tail`: what is in a region, without Spark."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from braidstream.cli.frame import Verbs
from braidstream.cli.reach import Json, JsonLines, Url, report, trouble
from braidstream.cli.screen import Screen, say
from braidstream.errors import BraidError, DamagedError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text
from braidstream.model.region import Region
from braidstream.model.registry import Scope, parse_each
from braidstream.model.strand import Entry
from braidstream.operations.open_region import CLIENT_ERRORS, AnyClient, open_region
from braidstream.operations.read_regions import GroupRow, read_groups
from braidstream.operations.streams import (
    StreamRow,
    ends_before,
    find_native,
    find_streams,
    follow,
    read_native,
    try_stream,
)
from braidstream.operations.words import age, printable, short, size_text
from braidstream.plan.lookup import current, read_any_region, read_ms, registry_of
from braidstream.plan.plan import Plan, send_one

_BLOCK_MS: Final = 1_000
_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "red")

Pattern = Annotated[str, typer.Option("--pattern", help="Only streams that match a glob, like 'orders-*'.")]
Group = Annotated[str | None, typer.Option("--group", help="Only this group. Default: all.")]
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many streams.")]


def streams(url: Url, pattern: Pattern = "*", limit: Limit = 100, as_json: Json = False) -> None:
    """List the streams of a region: length, memory, groups, age of the last entry.

    Native streams are listed too. They are not replicated: see `braid adopt`. If a primary of a cluster
    cannot be reached, it lists the streams of the others, and the exit code is 1.

    Example: braid streams --url redis://localhost:6379 --pattern 'orders*'
    """
    with trouble(url, as_json), open_region(url) as client:
        region = client.run_plan(read_any_region())
        now_ms = client.run_plan(read_ms())
        names, lost = _names(client, pattern)
        damaged = list[DamagedError]()
        rows = [*_rows(client, names, limit, damaged)]
    if as_json:
        facts = (
            {**_stream_facts(row), "last_ms": row.last_ms, "last_offset": row.last_offset} for row in rows
        )
        _print_json({"streams": [*facts]}, lost, damaged)
    table = _table("stream", "entries", "memory", "groups", "strands", "last entry")
    for row in rows:
        last = _last(row, now_ms)
        size = "?" if row.size is None else size_text(row.size)
        strands = "native" if row.is_native else str(row.strands)
        table.add_row(_shown(row.name), f"{row.length:,}", size, str(row.groups), strands, last)
    _print(table, rows, limit, "streams", region, pattern)
    _report_lost(lost, damaged)


def groups(
    url: Url, pattern: Pattern = "*", group: Group = None, limit: Limit = 100, as_json: Json = False
) -> None:
    """List the consumer groups of a region: lag, pending entries, the oldest of them, consumers, scope.

    The lag is the number of entries that the group has not read yet, correct after XDEL and XTRIM. For scope
    ONCE, "1 by 2" means that region 2 delivers the entries of region 1.

    Example: braid groups --url redis://localhost:6379 --pattern 'orders*'
    """
    found = list[dict[str, Any]]()
    wanted = None if group is None else name_of_text(group)
    with trouble(url, as_json), open_region(url) as client:
        region = client.run_plan(read_any_region())
        now_ms = client.run_plan(read_ms())
        names, lost = _names(client, pattern)
        damaged = list[DamagedError]()
        rows = [row for row in _rows(client, names, limit, damaged) if row.groups]
        for row in rows:
            scopes = {} if row.is_native else client.run_plan(current(row.name)).scopes
            for each in client.converse(read_groups(row.name, now_ms, is_log=row.is_log)):
                if wanted in (None, each.group):
                    found.append(_group(each, scopes.get(each.group), region))
    if as_json:
        _print_json({"groups": found}, lost, damaged)
    table = _table("stream", "group", "lag", "pending", "oldest pending", "consumers", "delivered by", left=2)
    for each in sorted(found, key=lambda each: -each["lag"]):
        oldest = "-" if each["oldest_pending_ms"] is None else age(each["oldest_pending_ms"])
        counts = (f"{each['lag']:,}", f"{each['pending']:,}", oldest, str(each["consumers"]))
        owners = ", ".join(f"{writer} by {owner}" for writer, owner in each["owners"].items())
        table.add_row(escape(each["stream"]), escape(each["group"]), *counts, owners or "each region")
    _print(table, rows, limit, "groups", region, pattern)
    _report_lost(lost, damaged)


def tail(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    url: Url,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Show this many entries first.")] = 10,
    follow_: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new entries.")] = True,
    as_json: JsonLines = False,
) -> None:
    """Print the last entries of a stream, and new ones as they arrive, from all regions.

    Entries that arrive late from another region are shown when they arrive. The colour and the number
    after the ID tell the region that wrote the entry.

    Example: braid tail orders --url redis://localhost:6379
    """
    name, console = name_of_text(stream), Screen(highlight=False)
    with trouble(url, as_json), open_region(url) as client:
        client.run_plan(read_any_region())
        if client.type(name) not in (b"stream", "stream"):
            raise BraidError(
                f"there is no stream {stream!r} in this region. List them: braid streams --url URL"
            )
        ends = client.run_plan(ends_before(name, count))
        first = client.run_plan(follow(name, ends, 1)) or []
        try:
            _show(console, first[-count:] if count else [], as_json)
            while follow_:
                found = client.run_plan(follow(name, ends, _BLOCK_MS))
                if found is None:  # deleted; it may be written again
                    time.sleep(_BLOCK_MS / 1000)
                _show(console, found or [], as_json)
        except KeyboardInterrupt:
            pass


def _names(client: AnyClient, pattern: str) -> tuple[list[bytes], dict[str, str]]:
    """The streams that match, by name, and why primaries of a cluster cannot be reached, by address."""
    wanted = name_of_text(pattern)
    found, lost = client.run_on_reachable(lambda: _find(wanted))
    return sorted({name for names in found for name in names}), lost


def _find(pattern: bytes) -> Plan[list[bytes]]:
    return [*(yield from find_streams(pattern)), *(yield from find_native(pattern))]


def _print_json(facts: dict[str, Any], lost: dict[str, str], damaged: list[DamagedError]) -> NoReturn:
    if lost:
        facts["unreachable"] = lost
    if damaged:
        facts["damaged"] = {printable(each.stream): each.text for each in damaged}
    typer.echo(json.dumps(facts))
    raise typer.Exit(1 if lost or damaged else 0)


def _report_lost(lost: dict[str, str], damaged: list[DamagedError]) -> None:
    for each in damaged:
        say(f"error {each.text}", err=True)
    for address, why in lost.items():
        say(f"error the primary {address} cannot be reached, its streams are not listed: {why}", err=True)
    if lost or damaged:
        raise typer.Exit(1)


def _rows(
    client: AnyClient, names: Iterable[bytes], limit: int, damaged: list[DamagedError]
) -> Iterator[StreamRow]:
    """The first streams that still exist. Those that cannot be read go to `damaged`."""
    shown = 0
    for name in names:
        row = client.run_plan(try_stream(name)) or client.run_plan(read_native(name))
        if isinstance(row, DamagedError):
            damaged.append(row)
        elif row is not None:
            yield row
            shown += 1
        if shown == limit:
            return


def _last(row: StreamRow, now_ms: int) -> str:
    if row.last_ms is None:
        return f"offset {row.last_offset}"
    return "-" if row.last == ids.ZERO else f"{age(now_ms - row.last_ms)} ago"


def _group(row: GroupRow, scope: Scope | None, region: Region) -> dict[str, Any]:
    owners = {} if scope is None else {str(each): scope.owner(each, region) for each in region.writers}
    return {
        "stream": printable(row.stream),
        "group": printable(row.group),
        "lag": row.lag,
        "pending": row.pending,
        "oldest_pending_ms": row.oldest_ms,
        "consumers": row.consumers,
        "scope": _scope(scope),
        "owners": owners,
    }


def _show(console: Screen, entries: Iterable[Entry], as_json: bool) -> None:
    for ms, seq, writer, fields in entries:
        pairs = [printable(word) for word in fields]
        if as_json:
            facts = {
                "id": f"{ms}-{seq}",
                "region": writer,
                "fields": dict(zip(pairs[::2], pairs[1::2], strict=True)),
            }
            typer.echo(json.dumps(facts))
            continue
        line = Text(f"{ms}-{seq}", style=_COLOURS[writer % len(_COLOURS)])
        when = f"  {time.strftime('%H:%M:%S', time.localtime(ms / 1000))}" if ms else ""  # a log: no time
        line.append(f"{when}  region {writer}  ", style="dim")
        line.append("  ".join(f"{name}={value}" for name, value in zip(pairs[::2], pairs[1::2], strict=True)))
        console.print(line, soft_wrap=True)


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False)
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < left else "right", overflow="fold")
    return table


def _print(table: Table, rows: list[StreamRow], limit: int, what: str, region: Region, pattern: str) -> None:
    console = Screen(highlight=False)
    if not table.row_count:
        if pattern != "*":
            what = f"{'groups of ' if what == 'groups' else ''}streams that match {pattern}"
        console.print(f"{region.name} has no {what}.", markup=False)
        return
    console.print(table)
    if len(rows) == limit:
        console.print(
            f"Only the first {short(limit)} streams by name. Use --pattern or --limit.", style="dim"
        )


def _stream_facts(row: StreamRow) -> dict[str, Any]:
    return {"name": printable(row.name), "entries": row.length, "bytes": row.size, "groups": row.groups,
            "strands": row.strands, "native": row.is_native}  # fmt: skip


def _shown(name: bytes) -> str:
    return escape(printable(name))


# ----------------------------------------------------------------------------------------------------
# `braid group`: the scope of groups, and which region delivers what, for one stream or many.

app = Verbs("Change the scope of groups; take and give the work of a region.")

Streams = Annotated[str, typer.Option("--streams", help="A stream, or a glob like 'orders-*'.")]
# How a region refuses a GIVE that only the owner can carry out (lua/scope.lua).
_ELSEWHERE: Final = "Run this XGROUP GIVE in region"
From = Annotated[int, typer.Option("--from", help="Number of the region whose entries are meant.")]


class ScopeName(StrEnum):
    """Scopes of a group."""

    everywhere = "everywhere"
    once = "once"


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group of a stream; scope: None if every region delivers everything."""

    stream: bytes
    group: bytes
    scope: Scope | None


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
        found = [*_groups(client, streams, group)]
        if not found:
            raise BraidError(f"no stream that matches {streams!r} has a group {group!r}. See: braid groups")
        rows = [row for row in found if _scope(row.scope) != value]
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
        rows, refused = list[GroupLine](), list[tuple[GroupLine, str]]()
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
    rows: list[GroupLine], as_json: bool, done: str, refused: Sequence[tuple[GroupLine, str]] = ()
) -> None:
    result = f": {done}" if rows else ""
    lines = [f"{len(rows)} group{'' if len(rows) == 1 else 's'} changed{result}."]
    lines += [f"Refused: {_text(row.stream)} {_text(row.group)}: {why}" for row, why in refused]
    facts = {"groups": [_named(row) for row in rows]}
    facts |= {"refused": [{**_named(row), "why": why} for row, why in refused]} if refused else {}
    report(as_json, facts, "\n".join(lines))


def _named(row: GroupLine) -> dict[str, str]:
    return {"stream": _text(row.stream), "group": _text(row.group)}


def _groups(client: AnyClient, streams: str, group: str | None) -> Iterator[GroupLine]:
    pattern = name_of_text(streams)
    found = client.run_on_primaries(lambda: find_streams(pattern))
    wanted = None if group is None else name_of_text(group)
    for name in sorted({name for names in found for name in names}):
        registry = parse_each([name], [client.run_plan(send_one(registry_of(name), resend=True))])[name]
        if registry.damaged is not None:
            say(f"error {registry.damaged.text}", err=True)
        for each in registry.groups if registry.exists else ():
            if wanted in (None, each):
                yield GroupLine(name, each, registry.scopes.get(each))


def _scope(scope: Scope | None) -> str:
    return ScopeName.everywhere.value if scope is None else ScopeName.once.value


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
