"""`braid topic`: creates and shows topics, which are streams in several partitions."""

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from braidstream.cli.frame import Verbs
from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.screen import Screen
from braidstream.cli.system_log import log_change
from braidstream.clients.commands import read_topics
from braidstream.engine.address import shown
from braidstream.errors import BraidError
from braidstream.model.frontier import name_of_text, name_text
from braidstream.model.topic import Topic, missing, refusal
from braidstream.operations.open_region import open_region
from braidstream.operations.topics import TopicGroup, read_topic

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
    """Show the partitions of a topic, and its groups: how much they have not read, and their consumers.

    Example: braid topic info orders --url redis://localhost:6379
    """
    topic, lengths, groups = _read(name, url, as_json)
    rows = [
        {"partition": number, "stream": name_text(stream), "entries": length}
        for number, (stream, length) in enumerate(zip(topic.streams, lengths, strict=True))
    ]
    if as_json:
        report(True, {"topic": name, "partitions": rows, "groups": [_facts(each) for each in groups]}, "")
        return
    table = Table("partition", "stream", "entries", box=None, pad_edge=False)
    for row in rows:
        table.add_row(str(row["partition"]), escape(str(row["stream"])), f"{row['entries']:,}")
    screen = Screen(highlight=False, soft_wrap=True)
    screen.print(table)
    if groups:
        table = Table("group", "lag", "pending", "consumers", box=None, pad_edge=False)
        for each in groups:
            counts = sum(each.lag.values()), each.pending, len(each.members)
            table.add_row(escape(name_text(each.group)), *(f"{count:,}" for count in counts))
        screen.print(table)


@app.command("members")
def members(
    name: Name,
    url: Url,
    group: Annotated[str | None, typer.Option("--group", help="Only this group. Default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Show which consumer works on which partitions, and how many entries of those are not read.

    Partitions without a consumer are given to one within seconds, if there is any.

    Example: braid topic members orders --group billing --url redis://localhost:6379
    """
    _, _, groups = _read(name, url, as_json)
    groups = [each for each in groups if group is None or each.group == name_of_text(group)]
    if as_json:
        report(True, {"topic": name, "groups": [_facts(each) for each in groups]}, "")
        return
    if not groups:
        typer.echo(f"Topic {name} has no such group." if group else f"Topic {name} has no groups.")
        return
    table = Table("group", "consumer", "partitions", "lag", box=None, pad_edge=False)
    for each in groups:
        for member in sorted(each.members, key=lambda member: member.name):
            lag = each.lag_of(member.partitions)
            who = escape(name_text(each.group)), escape(name_text(member.name))
            table.add_row(*who, _ranges(member.partitions), f"{lag:,}")
        taken = {number for member in each.members for number in member.partitions}
        if left := sorted(each.lag.keys() - taken):
            table.add_row(escape(name_text(each.group)), "nobody", _ranges(left), f"{each.lag_of(left):,}")
    Screen(highlight=False, soft_wrap=True).print(table)


def _read(name: str, url: str, as_json: bool) -> tuple[Topic, list[int], list[TopicGroup]]:
    with trouble(url, as_json), open_region(url) as client:
        found = client.converse(read_topics).get(name_of_text(name))
        if found is None:
            raise BraidError(missing(name_of_text(name)))
        return found, *client.converse(read_topic(found))


def _facts(group: TopicGroup) -> dict[str, Any]:
    return {
        "group": name_text(group.group),
        "lag": sum(group.lag.values()),
        "pending": group.pending,
        "members": [
            {
                "name": name_text(member.name),
                "partitions": member.partitions,
                "lag": group.lag_of(member.partitions),
            }
            for member in group.members
        ],
    }


def _ranges(numbers: list[int]) -> str:
    """`0-3 7` of 0, 1, 2, 3 and 7."""
    found = list[list[int]]()
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return " ".join("-".join(map(str, each)) for each in found)
