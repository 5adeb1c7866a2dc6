"""`braid log`: create a log, show and move its home, change its settings, evict and follow entries."""

import asyncio
import json
import secrets
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from braidstream.admin import log_compaction, log_moves
from braidstream.cli.log_reach import UNREAD, FoundLog, between, bring, client_of, find, opened, refuse_local
from braidstream.cli.reach import ConfigFile, Json, JsonLines, report
from braidstream.cli.spark_run import duration
from braidstream.cli.terminal import bar
from braidstream.cli.verbs import Verbs
from braidstream.clients.any_region import AnyClient
from braidstream.config import RegionConfig
from braidstream.errors import BraidError
from braidstream.model.offset_log import DEFAULT_PENDING
from braidstream.replication import log_homes

app = Verbs("Logs: entries with offsets.")

Name = Annotated[str, typer.Argument(help="The log.")]
LocalTo = Annotated[
    str | None, typer.Option("--region", help="The log of this region, if it stays local there.")
]

# Of a region that does not have the log in common with the others.
_OTHER = "not exchanged (`include`, `exclude`)"


@app.command("create")
def create(
    name: Name,
    home: Annotated[str, typer.Option(help="The region that writes it: its name or number.")],
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Create an empty log and choose its home, before several regions write it at once.

    Example: braid log create payments --home us-east
    """
    with opened(config, as_json) as known:
        region = known.named(home)
        with client_of(region) as client:
            if not client.exists(name):
                client.tcfgset(name, pending=DEFAULT_PENDING)
            registry = client.run_plan(log_moves.read_log(name.encode()))
    writer = log_moves.home_of(registry).writer
    text = f"log {name} is written in region {writer}."
    report(as_json, {"log": name, "home": writer}, text)


@app.command("info")
def info(
    name: Name, region: LocalTo = None, config: ConfigFile = Path("braid.toml"), as_json: Json = False
) -> None:
    """Show the home of a log, its epochs, and the first and last offset in every region.

    Example: braid log info payments
    """
    with opened(config, as_json) as known:
        found = find(known, name, region)
        rows = [_extent(name, each) for each in found.regions]
        rows += [{"region": each.name, "error": _OTHER} for each in known.region if each not in found.regions]
    epochs = [
        {"epoch": each.number, "region": each.writer, "first": each.first} for each in found.registry.epochs
    ]
    facts = {"log": name, "home": found.home_name, "epochs": epochs, "regions": rows}
    lines = [f"log {name}, home {found.home_name}"]
    lines += [
        f"  epoch {each['epoch']}: region {each['region']}, from offset {each['first']}" for each in epochs
    ]
    lines += [f"  {row['region']}: {row.get('error') or _offsets(row)}" for row in rows]
    report(as_json, facts, "\n".join(lines))


def _offsets(row: dict[str, Any]) -> str:
    if row["first"] > row["last"]:
        return f"no entries; the next offset is {row['first']}"
    return f"offsets {row['first']} to {row['last']}"


def _extent(name: str, region: RegionConfig) -> dict[str, Any]:
    """The first and the last offset in a region."""
    try:
        with client_of(region) as client:
            (first, last), _ = client.tread(name, count=0, withinfo=True)
            return {"region": region.name, "first": first, "last": last}
    except UNREAD as error:
        return {"region": region.name, "error": str(error)}


@app.command("move")
def move(
    name: Name,
    to: Annotated[str, typer.Option(help="The new home: its name or number.")],
    force: Annotated[
        bool, typer.Option(help="The old home is lost. Entries that have not arrived get new offsets later.")
    ] = False,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Move the home of a log to another region. You can run it again if it fails.

    The offsets continue without a gap. Writes in the old home are forwarded to the new one by gateways and
    clients that know the regions; others get HOME errors. With --force the new home continues after the last
    entry that a region has which answers. When the old home is back, its daemon appends what it wrote since,
    with new offsets. Without daemons, run `braid log rescue`.

    Example: braid log move payments --to eu-west
    """
    with opened(config, as_json) as known:
        target = known.named(to)
        refuse_local(name, target)
        found = find(known, name)
        found.refuse_local_home(name)
        registry, epoch = found.registry, log_moves.home_of(found.registry)
        if force:
            _collect(found, name.encode(), target)
            with client_of(target) as client:
                first = client.run_plan(log_moves.end_epoch(name.encode(), epoch, target.id, force=True))
        elif (home := found.require_home(name)).id == target.id:
            first = epoch.first
            for former in found.regions:
                if former.id in [each.writer for each in registry.epochs[-2:-1]]:
                    work = partial(bring, name.encode(), relay=True)
                    asyncio.run(between(name.encode(), former, target, work))
        else:
            moving = partial(log_homes.move_home, name.encode(), epoch=epoch, to=target.id)
            first = asyncio.run(between(name.encode(), home, target, moving))
    text = f"log {name} is written in {target.name} from offset {first} on."
    report(as_json, {"log": name, "home": target.name, "first": first}, text)


def _collect(found: FoundLog, log: bytes, target: RegionConfig) -> None:
    """Bring what other regions have of the lost home's entries: then these keep their offsets."""
    for region in found.regions:
        if region.id not in (target.id, log_moves.home_of(found.registry).writer):
            at_once = region.model_copy(update={"durability": "none"})  # these are copies
            with suppress(BraidError, OSError):  # it does not answer either
                asyncio.run(between(log, at_once, target, partial(bring, log, relay=True)))


@app.command("rescue")
def rescue(name: Name, config: ConfigFile = Path("braid.toml"), as_json: Json = False) -> None:
    """Append what former homes wrote after their epochs had ended, with new offsets, at the home.

    For `braid log move --force`, and if two regions created one log at once. The daemons do the same by
    themselves, except for a region that was removed from the file: its entries are taken from the other
    regions. Each entry is appended once, also if you run it again or daemons do it at the same time. If a
    former home does not answer, run it again when that is back.

    Example: braid log rescue payments
    """
    rescued, failed, log = 0, dict[str, str](), name.encode()
    with opened(config, as_json) as known:
        found = find(known, name)
        home, present = found.require_home(name), {region.id for region in known.region}
        removed = sorted({epoch.writer for epoch in found.registry.epochs} - present)
        for region in found.regions:
            work = log_homes.rescue_tails if region.id == home.id else log_homes.rescue
            try:
                rescued += asyncio.run(between(log, region, home, partial(work, log, writer=region.id)))
                if removed and region.id != home.id:
                    asyncio.run(between(log, region, home, partial(bring, log, relay=True)))
            except (BraidError, OSError) as error:
                failed[region.name] = str(error)
        for writer in removed:
            rescued += asyncio.run(
                between(log, home, home, partial(log_homes.rescue_tails, log, writer=writer))
            )
    facts: dict[str, Any] = {"log": name, "rescued": rescued}
    lines = [f"{rescued} entries of {name} have new offsets."]
    lines += [f"  {where} was left out: {why}" for where, why in failed.items()]
    report(as_json, {**facts, "failed": failed} if failed else facts, "\n".join(lines))
    if failed:
        raise typer.Exit(1)


@app.command("set")
def set_(
    name: Name,
    pending: Annotated[int | None, typer.Option(help="How many entries of a group may be pending.")] = None,
    backlog: Annotated[int | None, typer.Option(help="How many entries stay at least; 0: all.")] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="How long entries stay, like 7d; 0s: for ever."
        ),
    ] = None,
    region: LocalTo = None,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Change the settings of a log, in all regions that exchange it.

    Example: braid log set payments --backlog 1000000
    """
    with opened(config, as_json) as known:
        home = find(known, name, region).require_home(name)
        with client_of(home) as client:
            age = None if max_age is None else round(max_age * 1000)
            client.tcfgset(name, pending=pending, backlog=backlog, maxage=age)
            facts = client.xinfo_stream(name)
    now = {"pending": facts["pending-max"], "backlog": facts["backlog"], "max_age_ms": facts["max-age"]}
    text = f"log {name}: pending {now['pending']}, backlog {now['backlog']}, max age {now['max_age_ms']} ms"
    report(as_json, {"log": name, **now}, text)


@app.command("evict")
def evict(
    name: Name,
    keep: Annotated[int | None, typer.Option(min=0, help="Keep at least so many entries.")] = None,
    before: Annotated[int | None, typer.Option(min=1, help="Evict entries before this offset.")] = None,
    older: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Evict entries that are older, like 7d."),
    ] = None,
    region: LocalTo = None,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Evict old entries of a log.

    Example: braid log evict payments --keep 1000000
    """
    if [keep, before, older].count(None) != 2:
        raise typer.BadParameter("give --keep, --before or --older.")
    with opened(config, as_json) as known:
        home = find(known, name, region).require_home(name)
        with client_of(home) as client:
            if older is not None:
                gone = client.tevict(name, older=round(older * 1000))
            else:
                gone = client.tevict(name, keep=keep) if before is None else client.tevict(name, before - 1)
    report(as_json, {"log": name, "evicted": gone}, f"{gone} entries of {name} were evicted.")


@app.command("compact")
def compact(
    name: Name, region: LocalTo = None, config: ConfigFile = Path("braid.toml"), as_json: Json = False
) -> None:
    """Keep only the last entry of each tag, and free the memory of the others, in all regions.

    Readers get nil for the offsets that are gone. Entries with an empty tag stay, and so does everything from
    the first entry on that a group has not acknowledged, in any region: every region that exchanges the log
    must answer. The log can be used while this runs. You can run it again if it fails.

    Example: braid log compact prices
    """
    with opened(config, as_json) as known, ExitStack() as stack:
        found = find(known, name, region)
        home = found.require_home(name)
        clients = {each.id: stack.enter_context(client_of(each)) for each in found.regions}
        log, at_home, gone = name.encode(), clients[home.id], 0
        token = secrets.token_hex(8).encode()
        needed = min(client.run_plan(log_compaction.needed_from(log)) for client in clients.values())
        verdicts, before = log_compaction.Verdicts(needed), _memory(clients, log)
        with bar(f"compacting {name}", at_home.xlen(name)) as shown:
            for part in reversed(at_home.run_plan(log_compaction.read_segments(log))):
                upto = part.last
                while page := at_home.run_plan(log_compaction.read_tags(part, upto)):
                    gone += at_home.run_plan(log_compaction.delete(part.strand, verdicts.obsolete(page)))
                    upto = page[-1][0] - 1
                    shown.advance(shown.task_ids[0], len(page))
        for each in found.regions:
            if each != home:
                asyncio.run(between(log, home, each, partial(bring, log)))
            client = clients[each.id]
            for part in client.run_plan(log_compaction.read_segments(log)):
                if client.run_plan(log_compaction.has_deleted(part.strand)):
                    client.run_plan(log_compaction.rewrite(part.strand, token))
        after = _memory(clients, log)
    memory = {each.name: {"before": before[each.id], "after": after[each.id]} for each in found.regions}
    lines = [f"{gone:,} entries of {name} are gone, {verdicts.kept:,} stay."]
    lines += [
        f"  {where}: {bytes_['before'] / 1e6:,.1f} MB before, {bytes_['after'] / 1e6:,.1f} MB now"
        for where, bytes_ in memory.items()
    ]
    report(as_json, {"log": name, "deleted": gone, "kept": verdicts.kept, "memory": memory}, "\n".join(lines))


def _memory(clients: dict[int, AnyClient], log: bytes) -> dict[int, int]:
    return {
        number: client.run_plan(log_compaction.memory_of(client.run_plan(log_compaction.read_segments(log))))
        for number, client in clients.items()
    }


@app.command("tail")
def tail(
    name: Name,
    start: Annotated[int | None, typer.Option("--from", min=1, help="The first offset to show.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many entries.")] = None,
    region: Annotated[str | None, typer.Option(help="Read here. Default: at the home.")] = None,
    config: ConfigFile = Path("braid.toml"),
    as_json: JsonLines = False,
) -> None:
    """Show the entries of a log, and new ones as they are written.

    Example: braid log tail payments --from 1000
    """
    with opened(config, as_json) as known:
        place = known.named(region) if region else find(known, name).require_home(name)
        with client_of(place) as client:
            if start is None:
                start = client.tread(name, count=0, withinfo=True)[0][1] + 1
            shown = 0
            while count is None or shown < count:
                wanted = 100 if count is None else min(100, count - shown)
                for offset, tag, entry in client.tread(name, start, wanted, block=1_000, skip=True):
                    facts = {"offset": offset, "tag": tag, "entry": entry}
                    typer.echo(json.dumps(facts) if as_json else f"{offset}  {tag}  {entry}")
                    start, shown = offset + 1, shown + 1
