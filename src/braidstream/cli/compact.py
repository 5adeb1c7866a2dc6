"""`braid spark compact`: keep the last entry of each key."""

import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from braidstream.cli.reach import Json, trouble
from braidstream.cli.spark_run import (
    Follow,
    Pattern,
    RedisOptions,
    Streams,
    check_streams,
    chosen,
    duration,
    need_spark,
    servers_of,
    spark_trouble,
    start_spark,
    until_stopped,
)
from braidstream.cli.terminal import bar, print_summary, refuse
from braidstream.errors import OptionError

if TYPE_CHECKING:
    from braidstream.spark.jobs.compaction import Compactor, Round

TRIES = 5  # rounds of a run without --follow, while entries are left and each round removes some


def compact(
    streams: Streams = "",
    pattern: Pattern = "",
    url: Annotated[
        str, typer.Option(help="Server of the live streams. Omit it to compact only --lake.")
    ] = "",
    lake: Annotated[str, typer.Option(help="Lake to compact. With --url, both.")] = "",
    key: Annotated[str, typer.Option(help="Field that contains the key.")] = "",
    key_expr: Annotated[
        str, typer.Option(help="Or key as SQL on stream, id, region, timestamp, fields.")
    ] = "",
    tombstone: Annotated[
        str,
        typer.Option(
            help="SQL condition for tombstones: the key is deleted. Default with --key: entries that "
            "have no other field; with --key-expr: none."
        ),
    ] = "",
    keep: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="Keep entries younger than this.")
    ] = "1h",  # type: ignore[assignment]
    grace: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="Remove tombstones older than this.")
    ] = "1d",  # type: ignore[assignment]
    follow: Follow = False,
    every: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="With --follow, pause between rounds.")
    ] = "10m",  # type: ignore[assignment]
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the entries that would be removed.")
    ] = False,
    redis: RedisOptions = None,
    as_json: Json = False,
) -> None:
    """Keep the last entry of each key, in a lake, in live streams or in both. Keep entries without the key.

    It removes nothing that a group has not read and acknowledged. You can kill and restart it at any time,
    and run it in several regions at once. Compact an archived stream together with its lake.

    Example: braid spark compact --url redis://localhost:6379 --lake /lake --streams users --key user
    """
    need_spark()
    names, glob = chosen(streams, pattern)
    servers, folder = servers_of(url, redis) if url else None, lake or None
    from braidstream.spark.jobs.compaction import Compact, Compactor, check

    what = Compact(folder, servers, names, glob, key, key_expr, tombstone, keep, grace, dry_run)
    try:
        check(what)
    except OptionError as error:
        refuse(str(error))
    if servers is not None:
        with trouble(url, as_json):
            check_streams(servers, names, glob, lake)
    with spark_trouble(url or lake, as_json), until_stopped() as stopped:
        session = start_spark("compact")
        with bar("reading", None) as shown:
            compactor = Compactor(session, what, _shows(shown))
            try:
                rounds = _rounds(compactor, stopped, every if follow else None)
            finally:
                compactor.close()
    title = "Would be compacted" if dry_run else "Compacted"
    print_summary(as_json, f"{title}: {streams or pattern}", _summed(rounds))


def _shows(shown: Progress) -> Any:
    def show(phase: str, done: int, total: int | None) -> None:
        shown.update(shown.task_ids[0], description=phase, completed=done, total=total)

    return show


def _rounds(compactor: "Compactor", stopped: threading.Event, rest_s: float | None) -> "list[Round]":
    rounds = list[Any]()
    while not stopped.is_set():
        done = compactor.round()
        rounds.append(done)
        if rest_s is not None:
            compactor.show("waiting", 0, None)
            stopped.wait(rest_s)
        elif not done.left or not done.deleted + done.dropped or len(rounds) == TRIES:
            break
    return rounds


def _summed(rounds: "list[Round]") -> dict[str, Any]:
    last = {name: getattr(rounds[-1], name) if rounds else 0 for name in ("entries", "held", "left")}
    names = ("deleted", "dropped", "tombstones", "files")
    sums = {name: sum(getattr(each, name) for each in rounds) for name in names}
    return {**last, **sums, "rounds": len(rounds)}
