"""`braid region`: add a region under load, restore one after data loss, or remove one for good."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from braidstream import config as files
from braidstream.cli.frame import Verbs
from braidstream.cli.logs import written_in
from braidstream.cli.reach import ConfigFile, Json, ask, report, trouble
from braidstream.cli.regions import add_writers, prepare, reached, region_at, remove_writer
from braidstream.cli.replicate import durability_of
from braidstream.cli.screen import Screen
from braidstream.cli.system_log import log_change
from braidstream.clients.raised import ServerError
from braidstream.config import Config, RegionConfig, Selection, is_exchanged
from braidstream.engine.address import shown
from braidstream.errors import BraidError, ConfigError
from braidstream.model.ids import LAST_WRITER
from braidstream.model.region import Region
from braidstream.operations.doctor import missing_rights
from braidstream.operations.open_region import CLIENT_ERRORS
from braidstream.replication import region_facts as replication_regions
from braidstream.replication.daemon.peer import check_region
from braidstream.replication.detect.feed import all_streams
from braidstream.replication.endpoint import Node, back_off
from braidstream.replication.gate import Gate, NodeGate
from braidstream.replication.heal.flushed import (
    append_aside,
    home_of,
    mark_written,
    set_aside,
    set_reused_aside,
)
from braidstream.replication.link.region_link import RegionLink, Side, directly
from braidstream.replication.region_facts import AWARE_S

# ----------------------------------------------------------------------------------------------------
# How far `braid region add` and `rejoin` have come: a bar on a terminal, lines in a log.

# How often a line is printed where no terminal shows the bar.
EVERY_S: Final = 5.0

# Called with the number of entries after each stream.
Done = Callable[[int], None]


@contextmanager
def copy_progress(console: Screen, source: str, streams: int) -> Iterator[Done]:
    """Show the streams that are done, and the entries copied. source: the region they come from."""
    counts = "{task.completed:,} of {task.total:,} streams, {task.fields[entries]:,} entries"
    bar = Progress(
        TextColumn("from {task.description}"),
        BarColumn(),
        TextColumn(counts),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(escape(source), total=streams, entries=0)
    done, entries, printed_s = 0, 0, time.monotonic()

    def advance(more: int) -> None:
        nonlocal done, entries, printed_s
        done, entries = done + 1, entries + more
        bar.update(task, advance=1, entries=entries)
        if not console.is_terminal and time.monotonic() - printed_s >= EVERY_S:
            printed_s = time.monotonic()
            console.print(
                f"from {source}: {done:,} of {streams:,} streams, {entries:,} entries", markup=False
            )

    with bar:
        yield advance


# ----------------------------------------------------------------------------------------------------
# Region

app = Verbs("Add or remove a region.")

AT_ONCE: Final = 16
# So many names of logs stand in a message.
LISTED: Final = 10
# How often a stream of a cluster is tried: about 15 seconds.
TRIES: Final = 12
_console = Screen(stderr=True)


@app.command("add")
def add(
    number: Annotated[
        int, typer.Option("--id", min=1, max=LAST_WRITER, help="Its number. Entry IDs contain it.")
    ],
    name: Annotated[str, typer.Option(help="Its name, like ap-south.")],
    url: Annotated[str, typer.Option(help="Its server.")],
    gateway: Annotated[str | None, typer.Option(help="Where its gateway listens, HOST:PORT.")] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Exchange only streams that match this glob. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Do not exchange streams that match this glob. Repeatable.")
    ] = None,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Make a server a new region, copy the streams of the others to it, and add it to the file.

    With include and exclude, here or in the file, it copies only the streams that the two regions exchange.

    Works under load. Running daemons reload the file; start one for the new region. If it fails, for
    example because a region is down, run it again.

    Example: braid region add --id 3 --name ap-south --url redis://redis.ap-south:6379
    """
    with trouble(config, as_json):
        known = files.load(config)
        others = [region for region in known.region if (region.id, region.name) != (number, name)]
        chosen = _selection(known, name, include or (), exclude or ())
        new = RegionConfig(
            id=number, name=name, url=url, gateway=gateway, include=chosen.include, exclude=chosen.exclude
        )
        # Refuses two regions with the same number or name.
        listed = {"region": [each.model_dump() for each in (*others, new)]}
        joined = files.parse(listed, str(config), os.environ)
        _refuse_move(known, joined.named(name))
        is_new = len(others) == len(known.region)
        text = files.with_region(config.read_text(encoding="utf-8"), new) if is_new else ""
    with trouble(url, as_json):
        target = joined.named(name)
        known_regions = [_check(each) for each in others]
        _refuse_removed(number, known_regions)
        _check_rights(target, others)
        log_change("region add", region=name, server=shown(target.url))
        prepare(target.url, number, name, among=known_regions)
        regions = [_add_writers(each, joined) for each in joined.region]
        if len(others) == 1:
            time.sleep(AWARE_S)  # until clients of the only region write a journal for peers
        if is_new:
            files.write(config, text)

        def relay(home: Side, source: Side, region: Region) -> Copy:
            link = RegionLink(source, home, here=region, there=regions[-1])
            return link, partial(_relay, link)

        entries, streams = asyncio.run(_from_each(others, regions, target, relay))
    facts = {"region": number, "name": name, "streams": streams, "entries": entries}
    text = f"region {number} ({name}) has {_streams(streams)}; {entries:,} entries were copied."
    # A region without peers needed no daemon.
    first = [each.name for each in others] if len(others) == 1 else []
    daemons = [f"braid replicate --config {config} --region {each}" for each in (*first, name)]
    start = "Start its daemon" if len(daemons) == 1 else "Start a daemon for each region"
    report(as_json, facts, f"{text} {start}: {', and '.join(daemons)}")


def _selection(known: Config, name: str, include: Sequence[str], exclude: Sequence[str]) -> Selection:
    """That of the command; without one, that of the file, if this runs again."""
    if include or exclude:
        return Selection(tuple(include), tuple(exclude))
    return next((each.selection for each in known.region if each.name == name), Selection())


def _streams(count: int) -> str:
    return f"{count:,} stream{'' if count == 1 else 's'}"


@app.command("rejoin")
def rejoin(
    name: Annotated[str, typer.Argument(help="The region's name or number.")],
    without: Annotated[
        list[str] | None, typer.Option("--without", help="A peer that is down. It is skipped.")
    ] = None,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Restore a region whose server or cluster lost data: all of it, or a part.

    It copies entries, groups and known messages back from the other regions. Meanwhile clients get LOADING
    errors. Data that no other region has is lost. Stop the region's daemon before, and start it afterwards.
    You can run it again. If it fails, it says whether clients are served.

    Example: braid region rejoin us-east
    """
    with trouble(config, as_json):
        known = files.load(config)
        lost = known.named(name)
        absent = {known.named(each).name for each in without or ()}
        sources = [each for each in known.peers_of(lost.name) if each.name not in absent]
        if not sources:
            raise BraidError("there is no other region to restore the data from.")
        peers = [_check(each, f"If it is down, add --without {each.name}. ") for each in sources]
    with trouble(lost.url, as_json):
        _check_rights(lost, sources)
        log_change("region rejoin", region=lost.name, server=shown(lost.url))
        with _says_what_is_left(lost):
            prepare(lost.url, lost.id, lost.name, fenced=True, among=peers)
            asyncio.run(_fence(lost, sources))
            regions = [_add_writers(each, known) for each in (*sources, lost)]

            def recover(home: Side, source: Side, region: Region) -> Copy:
                link = RegionLink(home, source, here=regions[-1], there=region)
                return link, link.recover

            entries, streams = asyncio.run(_from_each(sources, regions, lost, recover))
            asyncio.run(_admit_clients(lost))
        waiting = asyncio.run(_append_aside(lost, sources))
    facts = {"region": lost.id, "name": lost.name, "streams": streams, "entries": entries}
    text = (
        f"region {lost.id} ({lost.name}) has {_streams(streams)} again; {entries:,} entries were restored by "
        "this command. Its peers' daemons may have restored others at the same time."
    )
    if waiting:
        facts["logs_waiting"] = waiting
        text += f" Run it again when the homes of these logs answer: {', '.join(waiting)}."
    report(as_json, facts, f"{text} Start its daemon: braid replicate --config {config} --region {lost.name}")


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="The region's name or number.")],
    force: Annotated[bool, typer.Option(help="Remove it though it is the home of logs.")] = False,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Remove a region for good. The others stop waiting for it. Stop its daemons.

    The others keep the entries it wrote, and bring each other up to date on them. Never reuse its number.
    You can run it again. If it is the home of logs, they are listed and nothing is changed: move them first.

    Example: braid region remove ap-south
    """
    with trouble(config, as_json):
        known = files.load(config)
        gone = known.named(name)
        rest = known.peers_of(gone.name)
        if not rest:
            raise BraidError("it is the only region. There is nothing to remove it from.")
        for each in rest:
            _check(each)
        logs = written_in(gone, rest)
        if logs and not force:
            raise BraidError(_advice(gone, rest[0], logs))
        log_change("region remove", region=gone.name, server=shown(gone.url))
        text = files.without_region(config.read_text(encoding="utf-8"), gone.id)
        _remove_everywhere(gone, rest)
        files.write(config, text)
    left = [each.name for each in rest]
    done = f"{gone.name} is removed. Regions left: {', '.join(left)}. Stop its daemon and gateways."
    if logs:
        done += f" Move its logs ({_some(logs)}): braid log move {logs[0]} --to {left[0]} --force"
    report(as_json, {"removed": gone.name, "regions": left, "logs": logs}, done)


def _advice(gone: RegionConfig, other: RegionConfig, logs: list[str]) -> str:
    return (
        f"{gone.name} is the home of {_some(logs)}. Nothing was changed. Move each log first: "
        f"braid log move {logs[0]} --to {other.name}. If {gone.name} is lost, add --force to that. "
        "With --force here the region is removed, and its logs cannot be written until you move them."
    )


def _some(logs: list[str]) -> str:
    more = f" and {len(logs) - LISTED} more" if len(logs) > LISTED else ""
    return ", ".join(logs[:LISTED]) + more


def _check(each: RegionConfig, advice: str = "") -> Region:
    """Before anything is changed: a region in the file must be reachable, and be that region."""
    try:
        region = region_at(each.url)
        check_region(region, (each.id, each.name), shown(each.url))
    except (BraidError, ServerError, OSError) as error:
        raise ConfigError(f"region {each.name!r}: {error} {advice}Nothing was changed.") from None
    return region


def _check_rights(target: RegionConfig, others: Sequence[RegionConfig]) -> None:
    """Before anything is changed: a right that is missing later would leave the target half filled."""
    load = ("FUNCTION", "LOAD", "REPLACE", "text")
    for each, also in ((target, (load,)), *((other, ()) for other in others)):
        [missing] = ask(each.url, missing_rights(*also))
        if missing:
            advice = "Use a copy of the file whose URLs have an administrator's user."
            raise ConfigError(f"region {each.name!r}: {missing} {advice} Nothing was changed.")


def _refuse_removed(number: int, others: Sequence[Region]) -> None:
    """A number is never used again: the others still have entries of the region that had it."""
    for each in others:
        if number in each.left:
            used = {number for region in others for number in region.everyone}
            unused = next((each for each in range(1, LAST_WRITER + 1) if each not in used), None)
            advice = f"Use one that is new, like --id {unused}." if unused else "All numbers are used."
            raise ConfigError(
                f"a region with the number {number} was removed from {each.name} for good. {advice} "
                "If you add its server again, empty it first. Nothing was changed."
            )


def _remove_everywhere(gone: RegionConfig, rest: Sequence[RegionConfig]) -> None:
    """Mark the region as gone in every other one; an error in one does not stop the rest."""
    failed = {}
    for each in rest:
        try:
            remove_writer(each.url, gone.id)
        except (BraidError, ServerError, OSError) as error:
            failed[each.name] = error
    if failed:
        faults = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise BraidError(f"not all regions know that {gone.name} is removed. Run this again. {faults}")


def _add_writers(each: RegionConfig, joined: Config) -> Region:
    """Add all writers to a region, before the first entry of the new one arrives there."""
    return add_writers(each.url, [other.id for other in joined.region])


def _refuse_move(known: Config, target: RegionConfig) -> None:
    """A region that is listed must have the url of the file: two servers with one number share IDs. And its
    patterns: daemons follow the file."""
    for each in known.region:
        if each.id == target.id and each.url != target.url:
            raise ConfigError(
                f"region {each.id} ({each.name}) is listed with another url. Nothing was changed. To move it "
                "to another server, make that a replica, promote it and change the url in the file."
            )
        is_same = each.selection == target.selection and target.gateway in (None, each.gateway)
        if each.id == target.id and not is_same:
            raise ConfigError(
                f"region {each.id} ({each.name}) is listed with another include, exclude or gateway. Nothing "
                "was changed. Change the file first, and leave these options out."
            )


@contextmanager
def _says_what_is_left(lost: RegionConfig) -> Iterator[None]:
    """After an error: lift the fence if the region served clients before. Else say how to get rid of it."""
    try:
        region = region_at(lost.url)
        served = bool(region.library) and not region.fenced
    except BraidError:  # it is not a region, or bs:config lost a part
        served = False
    try:
        yield
    except BaseException as error:
        left = _left(lost, served)
        if not isinstance(error, (BraidError, OSError, *CLIENT_ERRORS)):
            _console.print(left, markup=False)
            raise
        raise BraidError(f"{str(error).rstrip('.')}. {left}") from error


def _left(lost: RegionConfig, served: bool) -> str:
    """What a rejoin that failed leaves behind. served: the region served clients before it."""
    if served:
        try:
            asyncio.run(_admit_clients(lost))
        except (BraidError, OSError):
            served = False
    if served:
        return f"Not everything is restored, and clients of {lost.name} are served as before. Run this again."
    return (
        f"Clients of {lost.name} get LOADING until this command has succeeded. Run it again; add --without "
        "NAME for a peer that is down. If a server must serve them without the rest: "
        "redis-cli -u URL HDEL bs:config fenced"
    )


async def _fence(lost: RegionConfig, sources: Sequence[RegionConfig]) -> None:
    """Refuse clients. What they wrote to an empty server before they noticed is marked."""
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(reached(lost.url))
        fenced = await replication_regions.put_up(home)
        await asyncio.sleep(AWARE_S)  # until connected clients see the fence
        peers = [await stack.enter_async_context(reached(each.url)) for each in sources]
        if fenced.flushed:
            await mark_written(home, lost.id, peers)
            await replication_regions.note_all_marked(home)
        elif fenced.is_cluster:
            await set_reused_aside(home, lost.id, peers)


async def _admit_clients(restored: RegionConfig) -> None:
    async with reached(restored.url) as home:
        await replication_regions.take_down(home)


async def _append_aside(flushed: RegionConfig, others: list[RegionConfig]) -> list[str]:
    """Append what clients wrote to logs after a FLUSHALL, at their homes. Returns the logs that must wait."""
    waiting, urls = list[str](), {each.id: each.url for each in (flushed, *others)}
    async with reached(flushed.url) as region:
        async for name, mark in set_aside(region):
            try:
                async with reached(urls[await region.run(home_of(name, flushed.id))]) as home:
                    await append_aside(name, mark, region, home)
            except (BraidError, OSError, KeyError):
                waiting.append(name.decode(errors="replace"))
    return waiting


# A link, and a function that copies one stream with it and counts entries.
Copy = tuple[RegionLink, Callable[[bytes], Awaitable[int]]]
# From the target, a source, and the region of the source.
CopyFrom = Callable[[Side, Side, Region], Copy]


async def _from_each(
    sources: list[RegionConfig], regions: list[Region], target: RegionConfig, copy_from: CopyFrom
) -> tuple[int, int]:
    """Copy all streams that are exchanged to the target: (entries, streams). regions: of each source."""
    entries, seen = 0, set[bytes]()
    async with reached(target.url) as home:
        for each, region in zip(sources, regions, strict=False):
            async with reached(each.url) as source:
                both = each.selection, target.selection
                found = [name async for page in all_streams(source) for name in page]
                names = [name for name in found if is_exchanged(name, both)]
                gate = Gate(source, durability_of(each))
                copy = copy_from(Side(home, directly), Side(source, partial(_through, gate)), region)
                waiting = iter(names)
                with copy_progress(_console, each.name, len(names)) as done:
                    copied = await asyncio.gather(*(_each(copy, waiting, done) for _ in range(AT_ONCE)))
                entries += sum(copied)
                seen.update(names)
                gate.close()
    return entries, len(seen)


def _through(gate: Gate, node: Node) -> tuple[NodeGate, None]:
    """Read only what the region can no longer lose."""
    return gate.of(node), None


async def _relay(link: RegionLink, name: bytes) -> int:
    return (await link.sync(name, relay=True)).entries


async def _each(copy: Copy, waiting: Iterator[bytes], done: Done) -> int:
    entries = 0
    for name in waiting:
        more = await _copied(copy, name)
        done(more)
        entries += more
    return entries


async def _copied(copy: Copy, name: bytes) -> int:
    """One stream; once more if its slot moves or its node fails over during the copy."""
    link, one = copy
    for tries in range(TRIES):
        try:
            return await one(name)
        except BraidError as error:
            if not link.goes_on(name, error):
                raise
        await back_off(tries)
    return await one(name)
