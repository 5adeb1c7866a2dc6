"""`braid spark NAME`: Spark applications on streams and lakes. With spark-submit: docs/guides/lake.md."""

import contextlib
import dataclasses
import importlib.util
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from braidstream.cli.reach import Json, Url, trouble
from braidstream.cli.secret import UrlCommand
from braidstream.cli.terminal import bar, print_rows, print_summary, refuse
from braidstream.config import load
from braidstream.errors import JobError
from braidstream.model.frontier import name_of_text
from braidstream.spark.option_values import duration_s

if TYPE_CHECKING:
    from braidstream.spark.jobs.archive import Round
    from braidstream.spark.jobs.audit import Report
    from braidstream.spark.options import Servers

app = typer.Typer(help="Spark applications on streams and lakes.", no_args_is_help=True)

LakePath = Annotated[
    Path, typer.Option("--lake", help="Folder of the lake. All Spark nodes need it at this path.")
]
Streams = Annotated[str, typer.Option("--streams", help="Streams by name: a,b,c.")]
Pattern = Annotated[str, typer.Option("--pattern", help="Streams that match a glob, like 'orders-*'.")]

RedisOptions = Annotated[
    list[str] | None, typer.Option("--redis", help="An option of redis-py, like cluster=true. Repeatable.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Run until stopped.")]

SHOWN = 20  # anomalies listed in a terminal


def duration(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no duration; one is like 500ms, 30s, 15m, 1h, 7d") from None


def need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        refuse("Spark is not installed here. Run: pip install 'braidstream[spark]'")


def chosen(streams: str, pattern: str) -> tuple[tuple[bytes, ...], bytes | None]:
    if bool(streams) == bool(pattern):
        refuse("give either --streams a,b,c or --pattern 'orders-*'")
    names = tuple(name_of_text(each.strip()) for each in streams.split(",") if each.strip())
    return names, name_of_text(pattern) if pattern else None


def servers_of(url: str, redis: list[str] | None = None) -> "Servers":
    from braidstream.spark.options import Servers

    pairs = [each.partition("=") for each in redis or ()]
    if any(not name or not equals for name, equals, _ in pairs):
        refuse("write --redis name=value, like --redis cluster=true")
    return Servers((url,), {name: value for name, _, value in pairs})


@contextlib.contextmanager
def spark_trouble(where: str | Path, as_json: bool) -> Iterator[None]:
    """As `trouble`; for an error of a Spark job, the last error line only, without Spark's stack traces."""
    from braidstream.spark.jobs.spark_session import JOB_ERRORS

    with trouble(where, as_json):
        try:
            yield
        except JOB_ERRORS as error:
            lines = [line.strip() for line in str(error).splitlines() if "Error: " in line]
            raise JobError(lines[-1] if lines else str(error).splitlines()[0]) from None


@contextlib.contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: the job ends after the current round."""
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command("archive", cls=UrlCommand)
def archive(
    url: Url,
    lake: LakePath,
    streams: Streams = "",
    pattern: Pattern = "",
    trim: Annotated[
        bool,
        typer.Option("--trim", help="Trim entries that are archived and acknowledged by all groups."),
    ] = False,
    keep: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="DURATION", help="With --trim, keep entries younger than this."
        ),
    ] = "1h",  # type: ignore[assignment]
    follow: Follow = False,
    every: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="With --follow, pause between rounds.")
    ] = "10s",  # type: ignore[assignment]
    max_entries: Annotated[
        int, typer.Option(min=1, help="Maximum number of entries in one round.")
    ] = 5_000_000,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Continue if entries were trimmed before they were archived.")
    ] = False,
    redis: RedisOptions = None,
    as_json: Json = False,
) -> None:
    """Copy each entry of a stream once into a Parquet lake. You can kill and restart it at any time.

    Deletions are applied to the lake. Trims are not: the lake keeps entries that the server trims.

    Example: braid spark archive --url redis://localhost:6379 --streams orders --lake /lake --trim --keep 24h
    """
    need_spark()
    from braidstream.spark.jobs.archive import Archive, Archiver
    from braidstream.spark.jobs.spark_session import open_session

    names, glob = chosen(streams, pattern)
    what = Archive(str(lake), servers_of(url, redis), names, glob, max_entries, trim, keep, allow_loss)
    with spark_trouble(url, as_json), until_stopped() as stopped:
        archiver = Archiver(open_session("archive"), what)
        try:
            rounds = _rounds(archiver.backlog(), archiver.round, stopped, every if follow else None)
        finally:
            archiver.close()
    print_summary(as_json, f"Archived into {lake}", _summed(rounds))


def _rounds(
    backlog: int, one: "Callable[[], Round]", stopped: threading.Event, rest_s: float | None
) -> "list[Round]":
    rounds = list[Any]()
    with bar("archiving", backlog) as shown:
        task = shown.task_ids[0]
        while not stopped.is_set():
            done = one()
            rounds.append(done)
            archived = sum(each.entries for each in rounds)
            shown.update(task, completed=archived, total=max(backlog, archived + done.left))
            if not done.left or not done.entries:
                if rest_s is None:
                    break
                stopped.wait(rest_s)
    return rounds


def _summed(rounds: "list[Round]") -> dict[str, Any]:
    names = ("entries", "files", "bytes", "deleted", "trimmed", "merged", "missed")
    sums = {name: sum(getattr(each, name) for each in rounds) for name in names}
    last = dataclasses.asdict(rounds[-1]) if rounds else {"left": 0, "version": 0}
    return {**sums, "left": last["left"], "rounds": len(rounds), "commit": last["version"]}


@app.command("audit")
def audit(
    config: Annotated[Path, typer.Option("--config", help="The file that lists the regions.")] = Path(
        "braid.toml"
    ),
    streams: Streams = "",
    pattern: Pattern = "",
    settle: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="DURATION", help="How long to wait for a difference to disappear."
        ),
    ] = "10s",  # type: ignore[assignment]
    repair: Annotated[bool, typer.Option("--repair", help="Repair from regions that have the data.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with a picture for each pair of regions.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the streams of all regions. List lost, duplicated, diverged and resurrected entries.

    Entries that are still being replicated are only counted. Exit code 1 if unrepaired anomalies remain.

    Example: braid spark audit --config braid.toml --pattern '*' --html audit.html
    """
    need_spark()
    from braidstream.spark.jobs.audit import Auditor
    from braidstream.spark.jobs.audit_report import as_facts, as_page, verdict
    from braidstream.spark.jobs.repair import repair as heal
    from braidstream.spark.jobs.spark_session import open_session

    names, glob = chosen(streams, pattern)
    with spark_trouble(config, as_json):
        regions = {region.id: servers_of(region.url) for region in load(config).region}
        auditor = Auditor(open_session("audit"), regions, streams=names, pattern=glob, settle_s=settle)
        try:
            with bar("comparing regions", None):
                report = auditor.run()
                if repair:
                    report = dataclasses.replace(report, anomalies=heal(auditor, report.anomalies))
        finally:
            auditor.close()
    if html is not None:
        html.write_text(as_page(report), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(as_facts(report)))
    else:
        _show_audit(report, verdict(report)[0])
    raise typer.Exit(1 if report.wrong else 0)


def _show_audit(report: "Report", sentence: str) -> None:
    table = Table(
        "region", "entries not seen yet", "still to remove", "wrong", title=sentence, title_justify="left"
    )
    for region in report.regions:
        wrong = sum(each.region == region and not each.healed for each in report.anomalies)
        counts = (report.behind[region], report.removing[region], wrong)
        table.add_row(str(region), *(f"{count:,}" for count in counts))
    console = Console()
    console.print(table)
    for each in report.anomalies[:SHOWN]:
        healed = ", healed" if each.healed else ""
        note = f" ({each.note})" if each.note else ""
        line = f"{each.kind} in region {each.region}: {each.stream} {each.place} {each.id}{note}{healed}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(report.anomalies) > SHOWN:
        console.print(f"and {len(report.anomalies) - SHOWN:,} more: --json or --html lists them")


@app.command("replay", cls=UrlCommand)
def replay(
    to_url: Annotated[str, typer.Option(help="Server of the target stream.")],
    to: Annotated[str, typer.Option(help="Stream to write to.")],
    job: Annotated[str, typer.Option(help="Name of this replay. A restart with the same name resumes it.")],
    since: Annotated[str, typer.Option(help="Start time: ISO, or milliseconds since 1970.")],
    until: Annotated[str, typer.Option(help="End time (exclusive).")],
    streams: Streams = "",
    pattern: Pattern = "",
    url: Annotated[str, typer.Option(help="Server to read from. Omit it to read only --lake.")] = "",
    lake: Annotated[Path | None, typer.Option(help="Lake to read from. With --url, both.")] = None,
    where: Annotated[str, typer.Option(help="SQL on stream, id, region, timestamp, fields.")] = "",
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Maximum number of entries per second.")
    ] = None,
    speed: Annotated[float | None, typer.Option(min=0.001, help="Speed-up factor, e.g. 10.")] = None,
    window: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="Time span per batch.")
    ] = "1h",  # type: ignore[assignment]
    keep_ids: Annotated[bool, typer.Option("--keep-ids", help="Keep the entries' IDs.")] = False,
    as_json: Json = False,
) -> None:
    """Copy entries of a lake or stream into a stream, in the order of their IDs, each exactly once.

    To resume it after a crash, run it again with the same arguments. Each window is one transaction.

    Example: braid spark replay --lake /lake --streams orders --since 2026-11-01 --until 2026-11-02
    --to-url redis://localhost:6379 --to orders-again --job nov-1 --where "fields['tag'] = 'eu'" --speed 10
    """
    need_spark()
    from braidstream.spark.jobs.replay import Replay, check
    from braidstream.spark.jobs.replay import replay as run
    from braidstream.spark.jobs.spark_session import open_session
    from braidstream.spark.option_values import time_ms

    if not url and lake is None:
        refuse("give --lake, or --url, or both")
    source = _source(streams, pattern, url, lake)
    with spark_trouble(to_url, as_json):
        ends = time_ms("since", since), time_ms("until", until)
        what = check(
            Replay(
                source,
                to_url,
                to,
                job,
                *ends,
                where=where,
                window_ms=max(1, int(window * 1000)),
                rate=rate,
                speed=speed,
                keep_ids=keep_ids,
            )
        )
        with bar("replaying", what.until_ms - what.since_ms) as shown:
            task = shown.task_ids[0]

            def show(entries: int, upto_ms: int) -> None:
                description = f"replaying, {entries:,} entries"
                shown.update(task, completed=upto_ms - what.since_ms, description=description)

            entries = run(open_session("replay"), what, show)
    print_summary(as_json, f"Replayed into {to}", {"entries": entries, "job": job})


def _source(streams: str, pattern: str, url: str, lake: Path | None, **more: str) -> dict[str, str]:
    """Options of a batch read, without those that are empty."""
    options = {"streams": streams, "streamPattern": pattern, "url": url, "lake": str(lake or ""), **more}
    return {name: value for name, value in options.items() if value}


@app.command("stats", cls=UrlCommand)
def stats(
    streams: Streams = "",
    pattern: Pattern = "",
    url: Annotated[str, typer.Option(help="Server to read from. Omit it to read only --lake.")] = "",
    lake: Annotated[Path | None, typer.Option(help="Lake to read from. With --url, both.")] = None,
    since: Annotated[str, typer.Option(help="Start time: ISO, or milliseconds since 1970.")] = "",
    until: Annotated[str, typer.Option(help="End time (exclusive).")] = "",
    key: Annotated[str, typer.Option(help="Field whose most common values are counted.")] = "",
    png: Annotated[Path | None, typer.Option(help="Write the plots to a PNG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write plots and tables to an HTML file.")] = None,
    as_json: Json = False,
) -> None:
    """Report rates and sizes over time, the most common fields and keys, and the lag of groups.

    Example: braid spark stats --url redis://localhost:6379 --streams orders --key tag --html stats.html
    """
    need_spark()
    from braidstream.spark.jobs import stats_plots
    from braidstream.spark.jobs.spark_session import open_session
    from braidstream.spark.jobs.stats import collect

    if not url and lake is None:
        refuse("give --lake, or --url, or both")
    chosen(streams, pattern)
    source = _source(streams, pattern, url, lake, startingTimestamp=since, endingTimestamp=until)
    with spark_trouble(url or lake or "", as_json), bar("reading", None):
        frame = open_session("stats").read.format("braidstream").options(**source).load()
        found = collect(frame, key=key, url=url)
        if png is not None:
            png.write_bytes(stats_plots.as_png(found))
        if html is not None:
            html.write_text(stats_plots.as_page(found), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), default=str))
        return
    for title in ("streams", "lag", "keys", "fields"):
        print_rows(title, getattr(found, title), stats_plots.shown)
