"""`braid topic`: creates and shows topics, which are streams in several partitions."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from braidstream.cli.frame import Verbs
from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.screen import Screen
from braidstream.cli.system_log import log_change
from braidstream.clients.commands import read_topics
from braidstream.engine.address import shown
from braidstream.model.frontier import name_of_text, name_text
from braidstream.model.topic import refusal
from braidstream.operations.open_region import open_region

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]

app = Verbs("Topics: one stream in several partitions, on as many servers as a cluster has.")


@app.command("create")
def create(
    name: Name,
    url: Url,
    partitions: Annotated[int, typer.Option(help="How many: the most workers that share its work.")],
    as_json: Json = False,
) -> None:
    """Create a topic, in all regions. It is no error if it exists with as many partitions.

    Entries with the same key are in one partition. The number of partitions cannot be changed later.

    Example: braid topic create orders --partitions 64 --url redis://localhost:6379
    """
    if (why := refusal(name_of_text(name), partitions)) is not None:
        raise typer.BadParameter(f"{why}.")
    with trouble(url, as_json), open_region(url) as client:
        log_change("topic", topic=name, partitions=partitions, server=shown(url))
        client.topic(name_of_text(name)).create(partitions)
    report(
        as_json,
        {"topic": name, "partitions": partitions},
        f"{shown(url)}: topic {name} has {partitions} partitions, in all regions.",
    )


@app.command("list")
def list_topics(url: Url, as_json: Json = False) -> None:
    """List the topics of a region.

    Example: braid topic list --url redis://localhost:6379
    """
    with trouble(url, as_json), open_region(url) as client:
        found = client.converse(read_topics)
    topics = sorted(found.values(), key=lambda each: each.name)
    if as_json:
        facts = [{"topic": name_text(each.name), "partitions": each.partitions} for each in topics]
        report(True, {"topics": facts}, "")
        return
    if not topics:
        typer.echo("There are no topics. Create one: braid topic create NAME --partitions 64 --url URL")
        return
    table = Table("topic", "partitions", box=None, pad_edge=False)
    for each in topics:
        table.add_row(escape(name_text(each.name)), f"{each.partitions:,}")
    Screen(highlight=False).print(table)


@app.command("info")
def info(name: Name, url: Url, as_json: Json = False) -> None:
    """Show the partitions of a topic: the stream of each, and how many entries it has.

    Example: braid topic info orders --url redis://localhost:6379
    """
    with trouble(url, as_json), open_region(url) as client:
        streams = client.topic(name_of_text(name)).streams()
        pipe = client.pipeline(transaction=False)
        for stream in streams:
            pipe.xlen(stream)
        lengths = pipe.execute()
    rows = [
        {"partition": number, "stream": name_text(stream), "entries": length}
        for number, (stream, length) in enumerate(zip(streams, lengths, strict=True))
    ]
    if as_json:
        report(True, {"topic": name, "partitions": rows}, "")
        return
    table = Table("partition", "stream", "entries", box=None, pad_edge=False)
    for row in rows:
        table.add_row(str(row["partition"]), escape(str(row["stream"])), f"{row['entries']:,}")
    Screen(highlight=False, soft_wrap=True).print(table)
