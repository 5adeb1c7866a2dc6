"""`braid spark forget`: delete chosen entries from a lake and its streams, for good."""

import dataclasses
from typing import Annotated

import typer

from braidstream.cli.reach import Json, trouble
from braidstream.cli.spark_run import (
    LakePath,
    Pattern,
    RedisOptions,
    Streams,
    check_streams,
    chosen,
    need_spark,
    servers_of,
    spark_trouble,
    start_spark,
)
from braidstream.cli.terminal import bar, print_summary, refuse
from braidstream.errors import OptionError


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
