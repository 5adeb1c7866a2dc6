"""`braid region`: add a region under load, restore one after data loss, or remove one for good."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from braidstream import config as files
from braidstream import lua
from braidstream.admin.diagnosis import missing_rights
from braidstream.admin.membership import initialise, meet, note_marked, part, set_fence
from braidstream.cli.reach import ConfigFile, Json, ask, report, trouble
from braidstream.cli.replicate import durability_of
from braidstream.cli.verbs import Verbs
from braidstream.clients.sync import ServerError
from braidstream.config import Config, RegionConfig, Selection
from braidstream.errors import BraidError, ConfigError
from braidstream.model.ids import LAST_WRITER
from braidstream.model.region_config import Region
from braidstream.net.bulk import shown
from braidstream.net.wire import parse_address
from braidstream.protocol.cache import REGION_FRESH_S
from braidstream.protocol.identify import read_region, refuse_cluster
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.feed import all_streams
from braidstream.replication.flushed import append_aside, home_of, mark_written, set_aside
from braidstream.replication.gate import Gate
from braidstream.replication.identity import check_region
from braidstream.replication.link import Link

app = Verbs("Add or remove a region.")

AT_ONCE: Final = 16
_console = Console(stderr=True)


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
    """Make a server a new region, copy all data to it, and add it to the file.

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
        _refuse_removed(number, [_check(each) for each in others])
        _check_rights(target, others)
        ask(target.url, refuse_cluster(), initialise(number, name), lua.load())
        regions = [_add_writers(each, joined) for each in joined.region]
        if len(others) == 1:
            time.sleep(2 * REGION_FRESH_S)  # until clients of the only region write a journal for peers
        if is_new:
            files.write(config, text)

        def relay(home: Endpoint, gate: Gate, region: Region) -> Callable[[bytes], Awaitable[int]]:
            return partial(_relay, Link(gate, home, here=region, there=regions[-1]))

        entries, streams = asyncio.run(_from_each(others, regions, target, relay))
    facts = {"region": number, "name": name, "streams": streams, "entries": entries}
    text = f"region {number} ({name}) has {streams:,} streams; {entries:,} entries were copied."
    report(as_json, facts, f"{text} Start its daemon: braid replicate --config {config} --region {name}")


def _selection(known: Config, name: str, include: Sequence[str], exclude: Sequence[str]) -> Selection:
    """That of the command; without one, that of the file, if this runs again."""
    if include or exclude:
        return Selection(tuple(include), tuple(exclude))
    return next((each.selection for each in known.region if each.name == name), Selection())


@app.command("rejoin")
def rejoin(
    name: Annotated[str, typer.Argument(help="The region's name or number.")],
    without: Annotated[
        list[str] | None, typer.Option("--without", help="A peer that is down. It is skipped.")
    ] = None,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Restore a region whose server lost its data: it is empty, or from an old backup.

    It copies entries, groups and known messages back from the other regions. Meanwhile clients get LOADING
    errors. Data that no other region has is lost. Stop the region's daemon before, and start it afterwards.
    You can run it again.

    Example: braid region rejoin us-east
    """
    with trouble(config, as_json):
        known = files.load(config)
        lost = known.named(name)
        absent = {known.named(each).name for each in without or ()}
        sources = [each for each in known.peers_of(lost.name) if each.name not in absent]
        if not sources:
            raise BraidError("there is no other region to restore the data from.")
        for each in sources:
            _check(each)
    with trouble(lost.url, as_json):
        _check_rights(lost, sources)
        *_, fenced = ask(
            lost.url,
            refuse_cluster(),
            initialise(lost.id, lost.name, fenced=True),
            lua.load(),
            set_fence(True),
        )
        time.sleep(2 * REGION_FRESH_S)  # until connected clients see the fence
        if fenced.flushed:
            asyncio.run(_mark_written(lost))
        regions = [_add_writers(each, known) for each in (*sources, lost)]

        def recover(home: Endpoint, gate: Gate, region: Region) -> Callable[[bytes], Awaitable[int]]:
            return Link(home, gate, here=regions[-1], there=region).recover

        entries, streams = asyncio.run(_from_each(sources, regions, lost, recover))
        waiting = asyncio.run(_append_aside(lost, sources))
        ask(lost.url, set_fence(False))
    facts = {"region": lost.id, "name": lost.name, "streams": streams, "entries": entries}
    text = f"region {lost.id} ({lost.name}) has {streams:,} streams again; {entries:,} entries were restored."
    if waiting:
        facts["logs_waiting"] = waiting
        text += f" Run it again when the homes of these logs answer: {', '.join(waiting)}."
    report(as_json, facts, f"{text} Start its daemon: braid replicate --config {config} --region {lost.name}")


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="The region's name or number.")],
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Remove a region for good. The others stop waiting for it. Stop its daemons.

    The others keep the entries it wrote, and bring each other up to date on them. Never reuse its number.
    You can run it again.

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
        text = files.without_region(config.read_text(encoding="utf-8"), gone.id)
        _remove_everywhere(gone, rest)
        files.write(config, text)
    left = [each.name for each in rest]
    report(
        as_json,
        {"removed": gone.name, "regions": left},
        f"{gone.name} is removed; {', '.join(left)} remain. Stop its daemon and gateways.",
    )


def _check(each: RegionConfig) -> Region:
    """Before anything is changed: a region in the file must be reachable, and be that region."""
    try:
        [found] = ask(each.url, read_region())
        check_region(found, (each.id, each.name), shown(each.url))
    except (BraidError, ServerError, OSError) as error:
        raise ConfigError(f"region {each.name!r}: {error} Nothing was changed.") from None
    region: Region = found
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
            used = {number for region in others for number in (*region.writers, *region.left)}
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
            ask(each.url, part([gone.id]))
        except (BraidError, ServerError, OSError) as error:
            failed[each.name] = error
    if failed:
        faults = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise BraidError(f"not all regions know that {gone.name} is removed. Run this again. {faults}")


def _add_writers(each: RegionConfig, joined: Config) -> Region:
    """Add all writers to a region, before the first entry of the new one arrives there."""
    [region] = ask(each.url, meet(other.id for other in joined.region))
    known: Region = region
    return known


def _refuse_move(known: Config, target: RegionConfig) -> None:
    """A region that is listed must have the url of the file: two servers with one number share IDs."""
    for each in known.region:
        if each.id == target.id and each.url != target.url:
            raise ConfigError(
                f"region {each.id} ({each.name}) is listed with another url. Nothing was changed. To move it "
                "to another server, make that a replica, promote it and change the url in the file."
            )


async def _mark_written(flushed: RegionConfig) -> None:
    home = Endpoint(parse_address(flushed.url))
    await home.connect()
    await mark_written(home, flushed.id)
    await home.run(note_marked())
    home.close()


async def _append_aside(flushed: RegionConfig, others: list[RegionConfig]) -> list[str]:
    """Append what clients wrote to logs after a FLUSHALL, at their homes. Returns the logs that must wait."""
    region, waiting = Endpoint(parse_address(flushed.url)), list[str]()
    await region.connect()
    urls = {each.id: each.url for each in (flushed, *others)}
    async for name, mark in set_aside(region):
        try:
            home = Endpoint(parse_address(urls[await region.run(home_of(name, flushed.id))]))
            await home.connect()
            await append_aside(name, mark, region, home)
            home.close()
        except (BraidError, OSError, KeyError):
            waiting.append(name.decode(errors="replace"))
    region.close()
    return waiting


# The target, the gate of a source and its region -> a function that copies one stream and counts entries.
CopyFrom = Callable[[Endpoint, Gate, Region], Callable[[bytes], Awaitable[int]]]


async def _from_each(
    sources: list[RegionConfig], regions: list[Region], target: RegionConfig, copy_from: CopyFrom
) -> tuple[int, int]:
    """Copy all streams that are exchanged to the target: (entries, streams). regions: of each source."""
    home = Endpoint(parse_address(target.url))
    await home.connect()
    entries, seen = 0, set[bytes]()
    with Progress(console=_console, transient=True) as progress:
        for each, region in zip(sources, regions, strict=False):
            source = Endpoint(parse_address(each.url))
            await source.connect()
            both = each.selection, target.selection
            found = [name async for page in all_streams(source) for name in page]
            names = [name for name in found if all(chosen.takes(name) for chosen in both)]
            done = partial(progress.advance, progress.add_task(f"from {escape(each.name)}", total=len(names)))
            gate = Gate(source, durability_of(each))
            waiting, one = iter(names), copy_from(home, gate, region)
            entries += sum(await asyncio.gather(*(_each(one, waiting, done) for _ in range(AT_ONCE))))
            seen.update(names)
            gate.close()
            source.close()
    home.close()
    return entries, len(seen)


async def _relay(link: Link, name: bytes) -> int:
    return (await link.sync(name, relay=True)).entries


async def _each(
    copy: Callable[[bytes], Awaitable[int]], waiting: Iterator[bytes], done: Callable[[], None]
) -> int:
    entries = 0
    for name in waiting:
        entries += await copy(name)
        done()
    return entries
