"""`braid spark NAME`: Spark applications on streams and lakes. With spark-submit: docs/guides/lake.md."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from braidstream.cli.archiving import archive
from braidstream.cli.compact import compact
from braidstream.cli.forget import forget
from braidstream.cli.reach import ConfigFile, Json, trouble
from braidstream.cli.spark_run import (
    Pattern,
    Streams,
    check_regions,
    check_streams,
    chosen,
    duration,
    need_spark,
    servers_of,
    spark_trouble,
    start_spark,
)
from braidstream.cli.table_ddl import ddl
from braidstream.cli.terminal import bar, print_rows, print_summary, refuse
from braidstream.cli.verbs import Verbs
from braidstream.config import load
from braidstream.model.frontier import name_text

if TYPE_CHECKING:
    from braidstream.spark.jobs.audit import Report

app = Verbs("Spark applications on streams and lakes.")
app.command("archive")(archive)
app.command("compact")(compact)
app.command("ddl")(ddl)
app.command("forget")(forget)

SHOWN: Final = 20  # anomalies listed in a terminal


@app.command("audit")
def audit(
    config: ConfigFile = Path("braid.toml"),
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
    names, glob = chosen(streams, pattern)
    with trouble(config, as_json):
        known = load(config)
        regions = {region.id: servers_of(region.url) for region in known.region}
        for name in names:
            if local := known.local_to(name):
                refuse(
                    f"stream {name_text(name)} stays local in {', '.join(local)}: there is nothing to compare"
                )
        check_regions(regions, names, glob)
    from braidstream.spark.jobs.audit import Auditor
    from braidstream.spark.jobs.audit_report import as_facts, as_page, verdict
    from braidstream.spark.jobs.repair import repair as heal

    with spark_trouble(config, as_json):
        spark = start_spark("audit")
        auditor = Auditor(
            spark, regions, streams=names, pattern=glob, is_local=known.local_to, settle_s=settle
        )
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


@app.command("replay")
def replay(
    to_url: Annotated[str, typer.Option(help="Server of the target stream.")],
    to: Annotated[str, typer.Option(help="Stream to write to.")],
    job: Annotated[str, typer.Option(help="Name of this replay. A restart with the same name resumes it.")],
    since: Annotated[str, typer.Option(help="Start time: ISO, or milliseconds since 1970.")],
    until: Annotated[str, typer.Option(help="End time (exclusive).")],
    streams: Streams = "",
    pattern: Pattern = "",
    url: Annotated[str, typer.Option(help="Server to read from. Omit it to read only --lake.")] = "",
    lake: Annotated[str, typer.Option(help="Lake to read from. With --url, both.")] = "",
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
    if not url and not lake:
        refuse("give --lake, or --url, or both")
    names, glob = chosen(streams, pattern)
    with trouble(to_url, as_json):
        check_streams(servers_of(to_url), (), b"*")
        if url:
            check_streams(servers_of(url), names, glob, lake)
    from braidstream.spark.jobs.replay import Replay, check
    from braidstream.spark.jobs.replay import replay as run
    from braidstream.spark.option_values import time_ms

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
        session = start_spark("replay")
        with bar("replaying", what.until_ms - what.since_ms) as shown:
            task = shown.task_ids[0]

            def show(entries: int, upto_ms: int) -> None:
                description = f"replaying, {entries:,} entries"
                shown.update(task, completed=upto_ms - what.since_ms, description=description)

            entries = run(session, what, show)
    print_summary(as_json, f"Replayed into {to}", {"entries": entries, "job": job})


def _source(streams: str, pattern: str, url: str, lake: str, **more: str) -> dict[str, str]:
    """Options of a batch read, without those that are empty."""
    options = {"streams": streams, "streamPattern": pattern, "url": url, "lake": lake, **more}
    return {name: value for name, value in options.items() if value}


@app.command("stats")
def stats(
    streams: Streams = "",
    pattern: Pattern = "",
    url: Annotated[str, typer.Option(help="Server to read from. Omit it to read only --lake.")] = "",
    lake: Annotated[str, typer.Option(help="Lake to read from. With --url, both.")] = "",
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
    if not url and not lake:
        refuse("give --lake, or --url, or both")
    names, glob = chosen(streams, pattern)
    if url:
        with trouble(url, as_json):
            check_streams(servers_of(url), names, glob, lake)
    from braidstream.spark.jobs import stats_plots
    from braidstream.spark.jobs.stats import collect

    source = _source(streams, pattern, url, lake, startingTimestamp=since, endingTimestamp=until)
    with spark_trouble(url or lake, as_json):
        session = start_spark("stats")
        with bar("reading", None):
            frame = session.read.format("braidstream").options(**source).load()
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
