"""`braid retention`: which entries go by themselves, and when."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from braidstream.cli.frame import Verbs
from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.screen import Screen
from braidstream.cli.system_log import log_change
from braidstream.engine.address import shown
from braidstream.errors import BraidError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text, name_text
from braidstream.model.region import Region
from braidstream.model.retention_policy import STREAM, Policies, Policy
from braidstream.operations.open_region import AnyClient, open_region
from braidstream.operations.retention_trim import Due, find_due, read_policies, trim_step
from braidstream.operations.streams import find_streams
from braidstream.operations.words import size_text
from braidstream.plan.ask_peers import Needs, ask
from braidstream.plan.lookup import read_any_region, read_ms
from braidstream.plan.plan import Plan
from braidstream.plan.view import View

EVERY_S: Final = 60.0
_STREAMS_AT_ONCE: Final = 500

Streams = Annotated[str, typer.Argument(metavar="STREAM", help="A name, or a glob like 'orders*'.")]

app = Verbs("Remove old entries by themselves: a policy for each stream, carried out by the daemons.")


@app.command("set")
def set_policy(
    streams: Streams,
    url: Url,
    max_age: Annotated[
        str | None, typer.Option("--max-age", help="Entries go when they are older: 7d, 12h, 30m.")
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", help="The oldest go while the stream is larger: 2gb, 200mb."),
    ] = None,
    acked: Annotated[
        bool, typer.Option("--acked", help="Only what the groups of all regions have acknowledged.")
    ] = False,
    hold: Annotated[
        str | None, typer.Option("--hold", help="With --acked: older entries go, whatever groups need.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set the policy of a stream, or of all streams that match a glob, also of those that are created later.

    It counts in all regions, wherever you set it. An exact name goes before globs, and of globs the one that
    was set last. With --acked alone, entries go as soon as all groups have acknowledged them.

    Example: braid retention set 'orders*' --max-age 7d --max-bytes 2gb --acked --url redis://localhost:6379
    """
    words = [b"streams", name_of_text(streams)]
    words += [b"max-age", max_age.encode()] if max_age else []
    words += [b"max-bytes", max_bytes.encode()] if max_bytes else []
    words += [b"acked", b"1"] if acked else []
    words += [b"hold", hold.encode()] if hold else []
    try:
        Policy.parse(ids.ZERO, words)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None
    _store(url, words, f"the policy of {streams} is set", as_json)


@app.command("off")
def turn_off(streams: Streams, url: Url, as_json: Json = False) -> None:
    """Take back a policy: give the name or glob as it was set.

    Example: braid retention off 'orders*' --url redis://localhost:6379
    """
    words = [b"streams", name_of_text(streams), b"off", b"1"]
    _store(url, words, f"{streams} has no policy any more", as_json)


def _store(url: str, words: list[bytes], done: str, as_json: bool) -> None:
    with trouble(url, as_json), open_region(url) as client:
        log_change("retention", policy=b" ".join(words).decode("utf-8", "replace"), server=shown(url))
        fields = dict(zip(words[::2], words[1::2], strict=True))
        entry = client.xadd(STREAM, fields)
        named = {word.decode(): value.decode("utf-8", "replace") for word, value in fields.items()}
        entry_id = entry.decode() if isinstance(entry, bytes) else str(entry)
    where = f"in all regions that exchange {STREAM.decode()}"
    report(as_json, {"id": entry_id, **named}, f"{shown(url)}: {done}, {where}.")


@app.command("list")
def list_policies(url: Url, as_json: Json = False) -> None:
    """Show the policies that count, and entries of braid.retention that cannot be read.

    Example: braid retention list --url redis://localhost:6379
    """
    with trouble(url, as_json), open_region(url) as client:
        policies = _policies(client)
    listed = sorted(policies.by_streams.values(), key=lambda policy: policy.streams)
    if as_json:
        report(True, {"policies": [_facts(each) for each in listed], "refused": [*policies.refused]}, "")
        return
    screen = Screen(highlight=False)
    if listed:
        table = Table("streams", "max age", "max size", "acked", "hold", "set", box=None, pad_edge=False)
        for each in listed:
            size = "-" if each.max_bytes is None else size_text(each.max_bytes)
            ages = [_age(each.max_age_s), _age(each.hold_s)]
            table.add_row(
                name_text(each.streams), ages[0], size, _yes(each.acked), ages[1], _time(each.id[0])
            )
        screen.print(table)
    else:
        screen.print("No policies: nothing is removed by itself.")
    for why in policies.refused:
        screen.print(f"cannot be read, and changes nothing: {STREAM.decode()} {why}", markup=False)


def _facts(policy: Policy) -> dict[str, Any]:
    return {
        "streams": name_text(policy.streams),
        "max_age_s": policy.max_age_s,
        "max_bytes": policy.max_bytes,
        "acked": policy.acked,
        "hold_s": policy.hold_s,
        "id": ids.text(policy.id).decode(),
    }


def _age(age_s: int | None) -> str:
    if age_s is None:
        return "-"
    units = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
    return next(f"{age_s // unit}{word}" for unit, word in units if age_s % unit == 0)


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # an ID that somebody chose
        return f"{ms} ms"


@app.command("run")
def run(
    url: Url,
    follow: Annotated[bool, typer.Option("--follow", help="Again every minute, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Carry out the policies now, in this region: for a region without daemons, and to see what happens.

    Example: braid retention run --url redis://localhost:6379
    """
    with trouble(url, as_json), open_region(url) as client:
        while True:
            removed, waits = _run(client)
            lines = [f"{shown(url)}: {removed:,} entries removed."]
            lines += [f"{name} waits for {why}." for name, why in waits.items()]
            report(as_json, {"removed": removed, "waits": waits}, "\n".join(lines))
            if not follow:
                return
            time.sleep(EVERY_S)


def _policies(client: AnyClient) -> Policies:
    return client.run_plan(read_policies(View(client.run_plan(read_any_region()))))


def _run(client: AnyClient) -> tuple[int, dict[str, str]]:
    region, removed, waits = client.run_plan(read_any_region()), 0, dict[str, str]()
    for due, now_ms in _due(client):
        needs = client.run_plan(_needs(region, due)) if due.policy.acked else Needs()
        while (step := client.run_plan(trim_step(due, needs, now_ms))).removed:
            removed += step.removed
        if step.waits:
            waits[name_text(due.name)] = step.waits
    return removed, waits


def _needs(region: Region, due: Due) -> Plan[Needs]:
    return (yield from ask(View(region), due.name))


def _due(client: AnyClient) -> Iterator[tuple[Due, int]]:
    policies = _policies(client)
    found, lost = client.run_on_reachable(lambda: find_streams(b"*"))
    if lost:
        raise BraidError("; ".join(f"{place}: {why}" for place, why in lost.items()))
    names = [name for page in found for name in page]
    for first in range(0, len(names), _STREAMS_AT_ONCE):
        some = names[first : first + _STREAMS_AT_ONCE]
        wanted = {name: policy for name in some if (policy := policies.of(name)) is not None}
        if wanted:
            now_ms = client.run_plan(read_ms())
            found_due, _ = client.run_plan(find_due(wanted, now_ms))
            yield from ((due, now_ms) for due in found_due)
