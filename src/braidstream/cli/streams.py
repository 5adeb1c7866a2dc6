"""`braid streams`, `braid groups`, `braid tail`: what is in a region, without Spark."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from braidstream.admin.stream_overview import StreamRow, ends_before, find_streams, follow, try_stream
from braidstream.cli.reach import Json, JsonLines, Url, trouble
from braidstream.clients.any_region import AnyClient, open_region
from braidstream.errors import BraidError, DamagedError
from braidstream.inspection.group_reader import GroupRow, read_groups
from braidstream.inspection.wording import age, printable, short, size_text
from braidstream.model import ids
from braidstream.model.frontier import name_of_text
from braidstream.model.strand import Entry
from braidstream.protocol.identify import read_any_region, read_ms

_BLOCK_MS: Final = 1_000
_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "red")

Pattern = Annotated[str, typer.Option("--pattern", help="Only streams that match a glob, like 'orders-*'.")]
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many streams.")]


def streams(url: Url, pattern: Pattern = "*", limit: Limit = 100, as_json: Json = False) -> None:
    """List the streams of a region: length, memory, groups, age of the last entry.

    If a primary of a cluster cannot be reached, it lists the streams of the others, and the exit code is 1.

    Example: braid streams --url redis://localhost:6379 --pattern 'orders*'
    """
    with trouble(url, as_json), open_region(url) as client:
        client.run_plan(read_any_region())
        now_ms = client.run_plan(read_ms())
        names, lost = _names(client, pattern)
        damaged = list[DamagedError]()
        rows = [*_rows(client, names, limit, damaged)]
    if as_json:
        facts = ({**_facts(row), "last_ms": row.last_ms, "last_offset": row.last_offset} for row in rows)
        _print_json({"streams": [*facts]}, lost, damaged)
    table = _table("stream", "entries", "memory", "groups", "strands", "last entry")
    for row in rows:
        last = _last(row, now_ms)
        size = "?" if row.size is None else size_text(row.size)
        table.add_row(_shown(row.name), f"{row.length:,}", size, str(row.groups), str(row.strands), last)
    _print(table, rows, limit)
    _report_lost(lost, damaged)


def groups(url: Url, pattern: Pattern = "*", limit: Limit = 100, as_json: Json = False) -> None:
    """List the consumer groups of a region: lag, pending entries, the oldest of them, consumers.

    The lag is the number of entries that the group has not read yet, correct after XDEL and XTRIM.

    Example: braid groups --url redis://localhost:6379 --pattern 'orders*'
    """
    found = list[dict[str, Any]]()
    with trouble(url, as_json), open_region(url) as client:
        client.run_plan(read_any_region())
        now_ms = client.run_plan(read_ms())
        names, lost = _names(client, pattern)
        damaged = list[DamagedError]()
        rows = [row for row in _rows(client, names, limit, damaged) if row.groups]
        for row in rows:
            found += map(_group, client.converse(read_groups(row.name, now_ms, is_log=row.is_log)))
    if as_json:
        _print_json({"groups": found}, lost, damaged)
    table = _table("stream", "group", "lag", "pending", "oldest pending", "consumers", left=2)
    for each in sorted(found, key=lambda each: -each["lag"]):
        oldest = "-" if each["oldest_pending_ms"] is None else age(each["oldest_pending_ms"])
        counts = (f"{each['lag']:,}", f"{each['pending']:,}", oldest, str(each["consumers"]))
        table.add_row(escape(each["stream"]), escape(each["group"]), *counts)
    _print(table, rows, limit)
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
    name, console = name_of_text(stream), Console(highlight=False)
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
    found, lost = client.run_on_reachable(lambda: find_streams(wanted))
    return sorted({name for names in found for name in names}), lost


def _print_json(facts: dict[str, Any], lost: dict[str, str], damaged: list[DamagedError]) -> NoReturn:
    if lost:
        facts["unreachable"] = lost
    if damaged:
        facts["damaged"] = {printable(each.stream): each.text for each in damaged}
    typer.echo(json.dumps(facts))
    raise typer.Exit(1 if lost or damaged else 0)


def _report_lost(lost: dict[str, str], damaged: list[DamagedError]) -> None:
    for each in damaged:
        typer.echo(f"error {each.text}", err=True)
    for address, why in lost.items():
        typer.echo(
            f"error the primary {address} cannot be reached, its streams are not listed: {why}", err=True
        )
    if lost or damaged:
        raise typer.Exit(1)


def _rows(
    client: AnyClient, names: Iterable[bytes], limit: int, damaged: list[DamagedError]
) -> Iterator[StreamRow]:
    """The first streams that still exist. Those that cannot be read go to `damaged`."""
    shown = 0
    for name in names:
        row = client.run_plan(try_stream(name))
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


def _group(row: GroupRow) -> dict[str, Any]:
    return {
        "stream": printable(row.stream),
        "group": printable(row.group),
        "lag": row.lag,
        "pending": row.pending,
        "oldest_pending_ms": row.oldest_ms,
        "consumers": row.consumers,
    }


def _show(console: Console, entries: Iterable[Entry], as_json: bool) -> None:
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


def _print(table: Table, rows: list[StreamRow], limit: int) -> None:
    console = Console(highlight=False)
    if not table.row_count:
        console.print("Nothing found.")
        return
    console.print(table)
    if len(rows) == limit:
        console.print(
            f"Only the first {short(limit)} streams by name. Use --pattern or --limit.", style="dim"
        )


def _facts(row: StreamRow) -> dict[str, Any]:
    return {"name": printable(row.name), "entries": row.length, "bytes": row.size, "groups": row.groups,
            "strands": row.strands}  # fmt: skip


def _shown(name: bytes) -> str:
    return escape(printable(name))
