"""`braid spark NAME`: Spark applications on streams and lakes; also ddl, forget and compact."""

import dataclasses
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import Progress
from rich.table import Table

from braidstream.cli.archiving import archive
from braidstream.cli.frame import Verbs
from braidstream.cli.reach import ConfigFile, Json, trouble
from braidstream.cli.screen import Screen
from braidstream.cli.spark_run import (
    Follow,
    LakePath,
    Pattern,
    RedisOptions,
    Streams,
    bar,
    check_regions,
    check_streams,
    chosen,
    duration_option,
    need_spark,
    print_rows,
    print_summary,
    refuse,
    servers_of,
    spark_trouble,
    start_spark,
    until_stopped,
)
from braidstream.config import load
from braidstream.errors import OptionError
from braidstream.model.frontier import name_text

if TYPE_CHECKING:
    from braidstream.spark.jobs.audit import Report
    from braidstream.spark.jobs.compaction import Compactor, Round


# ----------------------------------------------------------------------------------------------------
# `braid spark ddl`: print what registers a table in DuckDB, Spark and Trino.

_DIALECTS: Final = ("duckdb", "spark", "trino")


def ddl(
    table: Annotated[str, typer.Option(help="Folder of a table: LAKE/STREAM.")],
    dialect: Annotated[
        str, typer.Option("--for", metavar="PROGRAM", help="Only for one of them: duckdb, spark or trino.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name that queries use. Default: the name of the folder.")] = "",
) -> None:
    """Print the SQL that registers a table in DuckDB, Spark and Trino.

    Example: braid spark ddl --table /lake/orders --for duckdb
    """
    need_spark()
    from deltalake import DeltaTable

    from braidstream.spark.lake.log import store_of

    if dialect and dialect not in _DIALECTS:
        refuse(f"--for {dialect}: choose one of {', '.join(_DIALECTS)}")
    store = store_of(table)
    if not DeltaTable.is_deltatable(store.uri(""), storage_options=store.options):
        refuse(f"{table} is not a table. `braid spark archive` makes one")
    called = name or store.uri("").rpartition("/")[2]
    for each in (dialect,) if dialect else _DIALECTS:
        typer.echo(_sql(each, called, store.uri("")))


def _sql(dialect: str, name: str, uri: str) -> str:
    where = _quoted(uri, "'")
    if dialect == "duckdb":
        return (
            "-- DuckDB (once before: INSTALL delta)\n"
            f"CREATE OR REPLACE VIEW {_quoted(name, chr(34))} AS SELECT * FROM delta_scan({where});"
        )
    if dialect == "spark":
        of_hadoop = where.replace("'s3://", "'s3a://", 1)  # hadoop-aws has another name for S3
        return (
            "-- Spark, with the jars of Delta Lake\n"
            f"CREATE TABLE IF NOT EXISTS {_quoted(name, '`')} USING delta LOCATION {of_hadoop};"
        )
    location = where if "://" in uri else _quoted(f"file://{uri}", "'")
    called = _quoted(name.lower(), "'")
    return (
        "-- Trino, connector delta_lake, with delta.register-table-procedure.enabled=true\n"
        f"CALL system.register_table(schema_name => 'default', table_name => {called}, "
        f"table_location => {location});"
    )


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark + mark) + mark


# ----------------------------------------------------------------------------------------------------
# `braid spark forget`: delete chosen entries from a lake and its streams, for good.


def forget(
    lake: LakePath,
    where: Annotated[str, typer.Option(help="SQL on stream, id, region, timestamp, fields.")],
    streams: Streams = "",
    pattern: Pattern = "",
    url: Annotated[str, typer.Option(help="Server of the live streams. Omit it for --lake alone.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the entries that would be deleted.")
    ] = False,
    redis: RedisOptions = None,
    as_json: Json = False,
) -> None:
    """Delete the entries that match a condition, for example of a person who asked for it.

    It rewrites the files of the lake without them and deletes the old files at once: queries that read them
    fail. With --url it deletes live entries too, except those that a group has not acknowledged (`held`).

    Example: braid spark forget --lake /lake --url redis://localhost:6379 --streams users
    --where "fields['mail'] = 'anna@example.org'"
    """
    need_spark()
    names, glob = chosen(streams, pattern)
    servers = servers_of(url, redis) if url else None
    if servers is not None:
        with trouble(url, as_json):
            check_streams(servers, names, glob, lake)
    from braidstream.spark.jobs.erasure import Forget
    from braidstream.spark.jobs.erasure import forget as run
    from braidstream.spark.lake.log import check_lake

    try:
        check_lake(lake)
    except OptionError as error:
        refuse(str(error))
    with spark_trouble(url or lake, as_json):
        session = start_spark("forget")
        with bar("rewriting", None):
            done = run(session, Forget(lake, where, servers, names, glob, dry_run))
    title = "Would be forgotten" if dry_run else "Forgotten"
    print_summary(as_json, f"{title}: {streams or pattern}", dataclasses.asdict(done))


# ----------------------------------------------------------------------------------------------------
# `braid spark compact`: keep the last entry of each key.

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
    keep: Annotated[float, duration_option("Keep entries younger than this.")] = "1h",  # type: ignore[assignment]
    grace: Annotated[float, duration_option("Remove tombstones older than this.")] = "1d",  # type: ignore[assignment]
    follow: Follow = False,
    every: Annotated[float, duration_option("With --follow, pause between rounds.")] = "10m",  # type: ignore[assignment]
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


# ----------------------------------------------------------------------------------------------------
# Spark

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
        duration_option("How long to wait for a difference to disappear."),
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
    console = Screen()
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
    window: Annotated[float, duration_option("Time span per batch.")] = "1h",  # type: ignore[assignment]
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
    from braidstream.spark.options import time_ms

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
    from braidstream.spark.jobs import stats
    from braidstream.spark.jobs.stats import collect

    source = _source(streams, pattern, url, lake, startingTimestamp=since, endingTimestamp=until)
    with spark_trouble(url or lake, as_json):
        session = start_spark("stats")
        with bar("reading", None):
            frame = session.read.format("braidstream").options(**source).load()
            found = collect(frame, key=key, url=url)
            if png is not None:
                png.write_bytes(stats.as_png(found))
            if html is not None:
                html.write_text(stats.as_page(found), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), default=str))
        return
    for title in ("streams", "lag", "keys", "fields"):
        print_rows(title, getattr(found, title), stats.shown)
