"""`braid later`: entries that wait until they are due."""

import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from braidstream.cli.frame import Verbs
from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.screen import Screen
from braidstream.commands.xread import read_range
from braidstream.engine.address import shown
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text, name_text
from braidstream.model.later import due_of, later_name, target_for, target_of, without_control
from braidstream.model.region import Region
from braidstream.operations.later_promotion import (
    AGAIN_MS,
    Item,
    Soon,
    Waiting,
    find_strands,
    promote,
    read_waiting,
)
from braidstream.operations.open_region import AnyClient, open_region
from braidstream.operations.streams import find_streams
from braidstream.operations.words import age, printable
from braidstream.plan.lookup import read_any_region, read_ms
from braidstream.plan.view import Carriage, View

PAUSE_S: Final = 0.5
# How often to look for streams that are new.
_FIND_S: Final = 10.0
_AT_ONCE: Final = 100

app = Verbs("Entries that wait for later: those of a stream, and their promotion without a daemon.")


@app.command("list")
def list_waiting(
    stream: Annotated[str, typer.Argument(help="The stream that they wait for.")],
    url: Url,
    limit: Annotated[int, typer.Option(help="The most entries that are read, oldest first.", min=1)] = 1_000,
    as_json: Json = False,
) -> None:
    """Show the entries that wait for a stream, the first that is due first.

    Example: braid later list orders --url redis://localhost:6379
    """
    try:
        name = later_name(name_of_text(stream))
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None
    argv = [b"XRANGE", name, b"-", b"+", b"COUNT", b"%d" % limit]
    with trouble(url, as_json), open_region(url) as client:
        now_ms = client.run_plan(read_ms())
        entries = client.converse(lambda view_of: read_range(view_of(Carriage.ALONE), argv)) or []
    found = sorted((_facts(*each) for each in entries), key=lambda each: (not each["due_ms"], each["due_ms"]))
    if as_json:
        report(True, {"stream": stream, "waiting": found}, "")
        return
    screen = Screen(highlight=False, soft_wrap=True)
    if not found:
        screen.print(f"Nothing waits for {stream}.", markup=False)
        return
    table = Table("due", "in", "ID", "fields", box=None, pad_edge=False)
    for each in found:
        rest = age(max(0, each["due_ms"] - now_ms)) if each["due_ms"] else "-"
        fields = " ".join(f"{field}={value}" for field, value in each["fields"])
        only = f"only group {each['group']}: " if each["group"] else ""
        table.add_row(_time(each["due_ms"]), rest, each["id"], escape(each["why"] or f"{only}{fields}"[:200]))
    screen.print(table)


def _facts(entry: bytes, words: list[bytes]) -> dict[str, Any]:
    due_ms, group, why = 0, None, ""
    try:
        due_ms, group = due_of(int(entry.partition(b"-")[0]), words)
    except ValueError as error:
        why = f"never: {error}"
    kept = [printable(word) for word in without_control(words)]
    return {
        "id": entry.decode(),
        "due_ms": due_ms,
        "group": None if group is None else printable(group),
        "why": why,
        "fields": [
            [printable(field), printable(value)] for field, value in zip(kept[::2], kept[1::2], strict=True)
        ],
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "-"


@app.command("run")
def run(
    url: Url,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Append what is due to its stream: for a region without a daemon. It does what the daemon does.

    Example: braid later run --follow --url redis://localhost:6379
    """
    soon, names, find_s = Soon(), list[bytes](), 0.0
    with trouble(url, as_json), open_region(url) as client:
        while True:
            if time.monotonic() >= find_s:
                names, find_s = _names(client), time.monotonic() + _FIND_S
            if soon.must_read:
                soon = Soon()
            region = client.run_plan(read_any_region()).require_open()
            why = _read(client, region, soon, names)
            promoted, refused = _promote(client, region, soon)
            why += refused
            if promoted or why or not follow:
                lines = [f"{shown(url)}: {promoted:,} entries promoted.", *why]
                report(as_json, {"promoted": promoted, "refused": why}, "\n".join(lines))
            if not follow:
                return
            time.sleep(PAUSE_S)


def _names(client: AnyClient) -> list[bytes]:
    found, lost = client.run_on_reachable(lambda: find_streams(b"*"))
    if lost:
        raise ReplyError("; ".join(f"{place}: {why}" for place, why in lost.items()))
    return [name for page in found for name in page if target_of(name) is not None]


def _read(client: AnyClient, region: Region, soon: Soon, names: list[bytes]) -> list[str]:
    """Read what is new. Returns what cannot be read."""
    wrong, mine = list[str](), (region.writer, *region.left)
    found = client.run_plan(find_strands(names)) if names else {}

    def take(waiting: Waiting) -> None:
        soon.add(waiting)
        if waiting.why:
            wrong.append(f"{name_text(waiting.strand.name)} {waiting.user_id}: {waiting.why}")

    for strand in (each for strands in found.values() for each in strands if each.writer in mine):
        after = soon.read.get(strand, ids.ZERO)
        soon.read[strand] = client.run_plan(read_waiting(strand, after, take))
    return wrong


def _promote(client: AnyClient, region: Region, soon: Soon) -> tuple[int, list[str]]:
    """How many entries were promoted, and why some were not."""
    now_ms, promoted, refused = client.run_plan(read_ms()), 0, list[str]()
    while due := soon.take(now_ms, _AT_ONCE):
        by_target = defaultdict[tuple[bytes, bytes | None], list[Item]](list)
        for item in due:
            by_target[soon.strands[item[2]].name, item[3]].append(item)
        for (name, group), items in by_target.items():
            entries = [(soon.strands[key], entry) for _, entry, key, _ in items]
            try:
                done = client.run_plan(promote(View(region), target_for(name, group), entries))
            except (ReplyError, ValueError) as error:
                done = [ReplyError(str(error))] * len(items)
            promoted += sum(isinstance(each, bytes) for each in done)
            wrong = [
                (item, each) for item, each in zip(items, done, strict=True) if isinstance(each, ReplyError)
            ]
            refused += sorted({f"{name_text(name)}: {error.text}" for _, error in wrong})
            soon.give_back([item for item, _ in wrong], now_ms + AGAIN_MS)
    return promoted, refused
