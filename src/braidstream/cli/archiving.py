"""`braid spark archive`: copy streams into Delta tables, once or for good."""

import math
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from braidstream.cli.reach import Json, Url, trouble
from braidstream.cli.serving import parse_probes, probes_in_thread
from braidstream.cli.spark_run import (
    Follow,
    Pattern,
    RedisOptions,
    Streams,
    bar,
    check_streams,
    chosen,
    duration_option,
    need_spark,
    print_summary,
    progress_console,
    refuse,
    servers_of,
    spark_trouble,
    spark_when_needed,
    until_stopped,
)
from braidstream.errors import OptionError
from braidstream.model.frontier import name_of_text, name_text
from braidstream.observability.metrics import process_families
from braidstream.observability.probes import Answers
from braidstream.plan.lookup import read_any_region

if TYPE_CHECKING:
    from braidstream.spark.jobs.archive import Archiver, Round
    from braidstream.spark.lake.typed_columns import Typing

SHOW_S: Final = 10.0
NOTE_S: Final = 60.0
UPKEEP_S: Final = 10.0
LOCAL_ENTRIES: Final = 200_000
SUMMED: Final = ("entries", "files", "bytes", "deleted", "trimmed", "merged", "missed", "rescued")


def archive(
    url: Url,
    lake: Annotated[
        str,
        typer.Option(
            help="Lake: a folder that all Spark nodes have at this path, or s3://bucket/path. Its tables are "
            "LAKE/STREAM."
        ),
    ] = "",
    table: Annotated[
        str, typer.Option(help="The table of one stream: LAKE/STREAM. Instead of --lake and --streams.")
    ] = "",
    schema: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help="Typed columns, like 'order long, amount double'. With a * as the last one, a new field "
            "becomes a new column of type string.",
        ),
    ] = "",
    streams: Streams = "",
    pattern: Pattern = "",
    trim: Annotated[
        bool,
        typer.Option("--trim", help="Trim entries that are archived and acknowledged by all groups."),
    ] = False,
    keep: Annotated[
        float,
        duration_option("With --trim, keep entries younger than this."),
    ] = "1h",  # type: ignore[assignment]
    follow: Follow = False,
    every: Annotated[
        float | None,
        duration_option("With --follow, pause between rounds. Default: 1s with --table, else 10s."),
    ] = None,
    max_entries: Annotated[
        int, typer.Option(min=1, help="Maximum number of entries in one round.")
    ] = 5_000_000,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Continue if entries were trimmed before they were archived.")
    ] = False,
    group: Annotated[
        str,
        typer.Option(
            help="A consumer group that moves with the archive, so that ACKED and retention keep what is not "
            "in the lake."
        ),
    ] = "",
    metrics: Annotated[
        str | None,
        typer.Option(
            help="With --follow, serve /metrics, /healthz and /readyz by HTTP here: HOST:PORT, or PORT on "
            "loopback."
        ),
    ] = None,
    redis: RedisOptions = None,
    as_json: Json = False,
) -> None:
    """Copy each entry of a stream once into a Delta table. You can kill and restart it at any time.

    Deletions are applied to the lake. Trims are not: the lake keeps entries that the server trims. A value
    that does not fit its typed column is in the column _rescued.

    Example: braid spark archive --url redis://localhost:6379 --table /lake/orders --follow
    --schema 'order long, amount double'
    """
    need_spark()
    if bool(lake) == bool(table):
        refuse("give either --table /lake/orders, or --lake /lake with --streams or --pattern")
    if table:
        lake, streams = _parted(table, streams, pattern)
    names, glob = chosen(streams, pattern)
    servers, probes = servers_of(url, redis), parse_probes(metrics)
    typing = _typing(schema)
    with trouble(url, as_json):
        check_streams(servers, names, glob, lake)
        if table and typing is None:
            _check_typed(lake, table)
    from braidstream.spark.jobs.archive import Archive, Archiver

    rest_s = (every or (1.0 if table else 10.0)) if follow else None
    what = Archive(lake, servers, names, glob, max_entries, trim, keep, allow_loss, typing)
    what = replace(what, group=name_of_text(group) if group else b"", local_entries=LOCAL_ENTRIES)
    if rest_s is not None and rest_s < UPKEEP_S:
        what = replace(what, upkeep_s=UPKEEP_S)
    with spark_trouble(url, as_json), until_stopped() as stopped, ExitStack() as stack:
        archiver = Archiver(spark_when_needed("archive"), what)
        stack.callback(archiver.close)
        backlog = archiver.backlog()
        if follow and probes is not None:
            answers = _answers(archiver)
            where = stack.enter_context(
                probes_in_thread(probes, answers, option="--metrics", as_json=as_json)
            )
            progress_console.print(f"metrics at http://{where}/metrics", highlight=False)
        done = _rounds(archiver, stopped, rest_s, _Lines(backlog, is_quiet=as_json or not follow))
    print_summary(as_json, f"Archived into {table or lake}", done)
    if done["refused"]:
        raise typer.Exit(1)


def _parted(table: str, streams: str, pattern: str) -> tuple[str, str]:
    """The lake that a table is in, and its stream."""
    from braidstream.spark.lake.log import folder_of

    if pattern or "," in streams:
        refuse("--table is the table of one stream. For several, give --lake /lake")
    root, slash, name = table.rstrip("/").rpartition("/")
    stream = streams or name
    folder = folder_of(name_text(name_of_text(stream)))
    if folder != name:
        refuse(f"the table of stream {stream} is {root}{slash}{folder}: give --table {root}{slash}{folder}")
    return root or slash or ".", stream


def _typing(schema: str) -> "Typing | None":
    from braidstream.spark.lake.typed_columns import Typing

    try:
        return Typing.parse(schema) if schema else None
    except OptionError as error:
        refuse(str(error))


def _check_typed(lake: str, table: str) -> None:
    from braidstream.spark.lake.log import Lake

    if Lake(lake).columns(table.rstrip("/").rpartition("/")[2]) is None:
        refuse(
            f"{table} has no typed columns yet. Give --schema 'order long, amount double', or --schema '*' "
            "for a text column for each field"
        )


def _answers(archiver: "Archiver") -> Answers:
    surveyor, name = archiver.surveyor, ""
    if surveyor.region is not None:
        name = surveyor.run(read_any_region).name

    async def why_not_ready() -> str:
        return "" if archiver.freshness.round_s else "the first round has not ended"

    return Answers(
        name,
        lambda: [*archiver.freshness.families(), *process_families("archive")],
        why_not_ready,
    )


class _Lines:
    """A line every ten seconds: what was archived since the last one."""

    def __init__(self, backlog: int, *, is_quiet: bool) -> None:
        self.backlog, self.is_quiet = backlog, is_quiet
        self._since, self._entries, self._rescued, self._age_s = time.monotonic(), 0, 0, 0.0
        self._noted = dict[str, float]()  # when each note was printed

    def add(self, done: "Round") -> None:
        for note in done.notes:
            if time.monotonic() - self._noted.get(note, -math.inf) >= NOTE_S:
                self._noted[note] = time.monotonic()
                progress_console.print(note, markup=False, highlight=False, soft_wrap=True)
        self._entries += done.entries
        self._rescued += done.rescued
        self._age_s = max(self._age_s, done.age_s or 0.0)
        if self.is_quiet or not self._entries or time.monotonic() - self._since < SHOW_S:
            return
        words = [f"{self._entries:,} entries", f"readable after {self._age_s:.1f} s at most"]
        words += [f"{self._rescued:,} with rescued fields"] if self._rescued else []
        words += [f"{done.left:,} left"] if done.left else []
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {', '.join(words)}"
        progress_console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._since, self._entries, self._rescued, self._age_s = time.monotonic(), 0, 0, 0.0


def _rounds(
    archiver: "Archiver", stopped: threading.Event, rest_s: float | None, lines: _Lines
) -> dict[str, Any]:
    """Rounds until everything is archived, or until the job is stopped. Returns their sums."""
    sums = {**dict.fromkeys(SUMMED, 0), "left": 0, "rounds": 0, "commit": 0, "refused": 0}
    with bar("archiving", lines.backlog) as shown:
        while not stopped.is_set():
            done = archiver.round()
            sums |= {name: sums[name] + getattr(done, name) for name in SUMMED}
            sums |= {"left": done.left, "rounds": sums["rounds"] + 1, "commit": done.version}
            sums["refused"] = done.refused
            total = max(lines.backlog, sums["entries"] + done.left)
            shown.update(shown.task_ids[0], completed=sums["entries"], total=total)
            lines.add(done)
            if not done.left or not done.entries:
                if rest_s is None:
                    break
                stopped.wait(rest_s)
    return sums
