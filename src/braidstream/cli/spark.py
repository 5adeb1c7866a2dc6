"""`braid spark NAME`: Spark applications on streams and lakes. By spark-submit too: docs/guides/lake.md."""

import contextlib
import dataclasses
import importlib.util
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from braidstream.cli.server import Json, Url, trouble
from braidstream.config import load
from braidstream.frontier import name_of_text

if TYPE_CHECKING:
    from braidstream.spark.options import Servers
    from braidstream.spark.pipelines.archive import Round
    from braidstream.spark.pipelines.audit import Report

app = typer.Typer(help="Spark applications on streams and lakes.", no_args_is_help=True)

LakePath = Annotated[Path, typer.Option("--lake", help="Folder of the lake; every Spark node sees it there.")]
Streams = Annotated[str, typer.Option("--streams", help="Streams by name: a,b,c.")]
Pattern = Annotated[str, typer.Option("--pattern", help="Streams by a glob, like 'orders-*'.")]

SHOWN = 20  # anomalies that a terminal lists
progress_console = Console(stderr=True)


def duration(text: str) -> float:
    """500ms, 30s, 15m, 1h, 7d as seconds."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    number = text.strip().rstrip("mshd")
    try:
        return float(number) * units[text.strip()[len(number) :] or "s"]
    except (ValueError, KeyError):
        raise typer.BadParameter(f"{text!r} is no duration; one is like 500ms, 30s, 15m, 1h, 7d") from None


def need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        _refuse("Spark is not installed here. Run: pip install 'braidstream[spark]'")


def _refuse(text: str) -> NoReturn:
    Console(stderr=True, highlight=False).print(f"[bold red]error[/] {text}", soft_wrap=True)
    raise typer.Exit(2)


def chosen(streams: str, pattern: str) -> tuple[tuple[bytes, ...], bytes | None]:
    if bool(streams) == bool(pattern):
        _refuse("give either --streams a,b,c or --pattern 'orders-*'")
    names = tuple(name_of_text(each.strip()) for each in streams.split(",") if each.strip())
    return names, name_of_text(pattern) if pattern else None


def servers_of(url: str) -> "Servers":
    from braidstream.spark.options import Servers

    return Servers((url,), {})


@contextlib.contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: work ends at the next good moment."""
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def bar(what: str, total: float | None) -> Progress:
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=progress_console,
        transient=True,
    )
    shown.add_task(what, total=total)
    return shown


def tell(as_json: bool, title: str, facts: dict[str, Any]) -> None:
    """The summary of a run: one line of JSON, or a table."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table("what", "how much", title=title, title_justify="left")
    table.columns[1].justify = "right"
    for name, value in facts.items():
        number = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        table.add_row(name.replace("_", " "), number)
    Console().print(table)


@app.command("archive")
def archive(
    url: Url,
    lake: LakePath,
    streams: Streams = "",
    pattern: Pattern = "",
    trim: Annotated[
        bool,
        typer.Option("--trim", help="Cut from the server what is archived and all groups acknowledged."),
    ] = False,
    keep: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="With --trim, keep what is younger.")
    ] = "1h",  # type: ignore[assignment]
    follow: Annotated[bool, typer.Option("--follow", help="Go on until stopped.")] = False,
    every: Annotated[
        float, typer.Option(parser=duration, metavar="DURATION", help="With --follow, rest between rounds.")
    ] = "10s",  # type: ignore[assignment]
    max_entries: Annotated[int, typer.Option(min=1, help="Entries of one round and commit.")] = 5_000_000,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on if entries were trimmed before they were archived.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy streams into a Parquet lake, each entry once; safe to kill and to start again at any moment.

    Deletions reach the lake as deletions. Trims do not: the lake keeps what the server lets go.

    Example: braid spark archive --url redis://localhost:6379 --streams orders --lake /lake --trim --keep 24h
    """
    need_spark()
    from braidstream.spark.pipelines.archive import Archive, Archiver
    from braidstream.spark.session import open_session

    names, glob = chosen(streams, pattern)
    what = Archive(str(lake), servers_of(url), names, glob, max_entries, trim, keep, allow_loss)
    with trouble(url, as_json), until_stopped() as stopped:
        archiver = Archiver(open_session("archive"), what)
        try:
            rounds = _rounds(archiver.backlog(), archiver.round, stopped, every if follow else None)
        finally:
            archiver.close()
    tell(as_json, f"Archived into {lake}", _summed(rounds))


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
    told = {name: sum(getattr(each, name) for each in rounds) for name in names}
    last = dataclasses.asdict(rounds[-1]) if rounds else {"left": 0, "version": 0}
    return {**told, "left": last["left"], "rounds": len(rounds), "commit": last["version"]}


@app.command("audit")
def audit(
    config: Annotated[Path, typer.Option("--config", help="The file that lists the regions.")] = Path(
        "braid.toml"
    ),
    streams: Streams = "",
    pattern: Pattern = "",
    settle: Annotated[
        float,
        typer.Option(parser=duration, metavar="DURATION", help="How long what looks wrong may take to heal."),
    ] = "10s",  # type: ignore[assignment]
    repair: Annotated[bool, typer.Option("--repair", help="Heal what another region still has.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with a picture for each pair.")] = None,
    as_json: Json = False,
) -> None:
    """Compare all regions' copies of streams; name what is lost, duplicated, diverged or resurrected.

    What is still replicating is counted and is not wrong. Exit code 1 if something is wrong and not healed.

    Example: braid spark audit --config braid.toml --pattern '*' --html audit.html
    """
    need_spark()
    from braidstream.spark.pipelines.audit import Auditor
    from braidstream.spark.pipelines.audit_report import as_facts, as_page, verdict
    from braidstream.spark.pipelines.repair import repair as heal
    from braidstream.spark.session import open_session

    names, glob = chosen(streams, pattern)
    with trouble(str(config), as_json):
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
