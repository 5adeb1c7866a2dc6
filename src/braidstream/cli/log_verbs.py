"""`braid log`: create a log, show and move its home, change its settings, evict and follow entries."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from braidstream import config as files
from braidstream.admin import log_compaction, log_moves
from braidstream.cli.reach import ConfigFile, Json, report, trouble
from braidstream.cli.replicate import durability_of
from braidstream.cli.spark_run import duration
from braidstream.cli.terminal import bar
from braidstream.cli.verbs import Verbs
from braidstream.clients.sync import Redis, ServerError
from braidstream.config import Config, RegionConfig
from braidstream.errors import BraidError, ClusterError, LostError
from braidstream.model.meta import Registry
from braidstream.model.offset_log import DEFAULT_PENDING
from braidstream.net.wire import parse_address
from braidstream.protocol.identify import refuse_cluster
from braidstream.protocol.plan import Plan
from braidstream.replication import log_homes
from braidstream.replication.endpoint import Endpoint, PlanRunner
from braidstream.replication.gate import Gate

app = Verbs("Logs: entries with offsets.")

T = TypeVar("T")
Work = Callable[[PlanRunner, PlanRunner], Awaitable[T]]

Name = Annotated[str, typer.Argument(help="The log.")]

# How long to wait until a region can no longer lose what was written.
SAFE_WITHIN_S: Final = 30.0


@contextmanager
def _opened(config: Path, as_json: bool) -> Iterator[Config]:
    with trouble(config, as_json):
        yield files.load(config)


def _client(region: RegionConfig) -> Redis:
    return Redis.from_url(region.url, decode_responses=True)


def _home(known: Config, name: str) -> tuple[RegionConfig, Registry]:
    """The region that a log is written in, as the regions that answer know it. The latest epoch counts."""
    found, errors = list[Registry](), list[str]()
    for region in known.region:
        try:
            with _client(region) as client:
                client.run_plan(refuse_cluster())
                found.append(client.run_plan(log_moves.read_log(name.encode())))
        except (BraidError, ServerError, OSError) as error:
            if getattr(error, "code", "") == ClusterError.code:
                raise
            errors.append(f"{region.name}: {error}")
    if not found:
        raise BraidError(f"no region has the log {name!r}. " + "; ".join(errors))
    registry = max(found, key=lambda each: log_moves.home_of(each))
    return known.named(str(log_moves.home_of(registry).writer)), registry


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
    with _opened(config, as_json) as known:
        region = known.named(home)
        with _client(region) as client:
            if not client.exists(name):
                client.tcfgset(name, pending=DEFAULT_PENDING)
            registry = client.run_plan(log_moves.read_log(name.encode()))
    writer = log_moves.home_of(registry).writer
    text = f"log {name} is written in region {writer}."
    report(as_json, {"log": name, "home": writer}, text)


@app.command("info")
def info(name: Name, config: ConfigFile = Path("braid.toml"), as_json: Json = False) -> None:
    """Show the home of a log, its epochs, and the first and last offset in every region.

    Example: braid log info payments
    """
    with _opened(config, as_json) as known:
        home, registry = _home(known, name)
        rows = list[dict[str, Any]]()
        for region in known.region:
            try:
                with _client(region) as client:
                    (first, last), _ = client.tread(name, count=0, withinfo=True)
                    rows.append({"region": region.name, "first": first, "last": last})
            except (BraidError, ServerError, OSError) as error:
                rows.append({"region": region.name, "error": str(error)})
    epochs = [{"epoch": each.number, "region": each.writer, "first": each.first} for each in registry.epochs]
    facts = {"log": name, "home": home.name, "epochs": epochs, "regions": rows}
    lines = [f"log {name}, home {home.name}"]
    lines += [
        f"  epoch {each['epoch']}: region {each['region']}, from offset {each['first']}" for each in epochs
    ]
    lines += [
        f"  {row['region']}: {row.get('error') or 'offsets {} to {}'.format(row['first'], row['last'])}"
        for row in rows
    ]
    report(as_json, facts, "\n".join(lines))


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
    with _opened(config, as_json) as known:
        target, (home, registry) = known.named(to), _home(known, name)
        _refuse_local(name, home, target)
        epoch = log_moves.home_of(registry)
        if home.id == target.id:
            first = epoch.first
            if not force and len(registry.epochs) > 1:
                former = known.named(str(registry.epochs[-2].writer))
                asyncio.run(_between(former, target, partial(_bring, name.encode())))
        elif force:
            _collect(known, name.encode(), target, lost=home)
            with _client(target) as client:
                first = client.run_plan(log_moves.end_epoch(name.encode(), epoch, target.id, force=True))
        else:
            moving = partial(log_homes.move_home, name.encode(), epoch=epoch, to=target.id)
            first = asyncio.run(_between(home, target, moving))
    text = f"log {name} is written in {target.name} from offset {first} on."
    report(as_json, {"log": name, "home": target.name, "first": first}, text)


def _refuse_local(name: str, *regions: RegionConfig) -> None:
    """Its entries would not get from one home to the other."""
    local = [each.name for each in regions if not each.selection.takes(name.encode())]
    if local:
        raise BraidError(
            f"log {name} stays local in {' and '.join(local)}: `include` and `exclude` in the file say so. "
            "Change them first."
        )


def _collect(known: Config, log: bytes, target: RegionConfig, *, lost: RegionConfig) -> None:
    """Bring what other regions have of the lost home's entries: then these keep their offsets."""
    for region in known.region:
        if region.id not in (target.id, lost.id):
            at_once = region.model_copy(update={"durability": "none"})  # these are copies
            with suppress(BraidError, OSError):  # it does not answer either
                asyncio.run(_between(at_once, target, partial(_bring, log, relay=True)))


async def _between(source: RegionConfig, target: RegionConfig, work: Work[T]) -> T:
    """Connect to two regions and do some work, whether daemons run or not."""
    ends = [_Safe(source), _Safe(target)]
    try:
        for end in ends:
            await end.endpoint.connect()
        return await work(*ends)
    finally:
        for end in ends:
            end.gate.close()
            end.endpoint.close()


class _Safe:
    """Runs plans in a region, and returns what it can no longer lose (`durability`)."""

    def __init__(self, region: RegionConfig) -> None:
        self.region, self.endpoint = region, Endpoint(parse_address(region.url))
        self.gate = Gate(self.endpoint, durability_of(region))

    async def run(self, plan: Plan[T]) -> T:
        try:
            async with asyncio.timeout(SAFE_WITHIN_S):
                return await self.gate.run(plan)
        except TimeoutError:
            raise BraidError(
                f"region {self.region.name} could still lose what was written: its `durability` is "
                f"{self.gate.durability}. Bring its replicas back or change it, and run this again."
            ) from None
        except LostError as error:
            raise LostError(error.address, error.why, wrote=True) from error  # the gate cannot know


async def _bring(name: bytes, source: PlanRunner, target: PlanRunner, *, relay: bool = False) -> None:
    """relay: also what other regions wrote."""
    await (await log_homes.link_of(source, target)).sync(name, relay=relay)


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
    with _opened(config, as_json) as known:
        home, registry = _home(known, name)
        _refuse_local(name, home)
        present = {region.id for region in known.region}
        removed = sorted({epoch.writer for epoch in registry.epochs} - present)
        for region in known.region:
            if not region.selection.takes(log):
                continue  # there it stays local
            work = log_homes.rescue_tails if region.id == home.id else log_homes.rescue
            try:
                rescued += asyncio.run(_between(region, home, partial(work, log, writer=region.id)))
                if removed and region.id != home.id:
                    asyncio.run(_between(region, home, partial(_bring, log, relay=True)))
            except (BraidError, OSError) as error:
                failed[region.name] = str(error)
        for writer in removed:
            rescued += asyncio.run(_between(home, home, partial(log_homes.rescue_tails, log, writer=writer)))
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
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Change the settings of a log, in all regions.

    Example: braid log set payments --backlog 1000000
    """
    with _opened(config, as_json) as known:
        home, _ = _home(known, name)
        with _client(home) as client:
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
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Evict old entries of a log.

    Example: braid log evict payments --keep 1000000
    """
    if [keep, before, older].count(None) != 2:
        raise typer.BadParameter("give --keep, --before or --older.")
    with _opened(config, as_json) as known:
        home, _ = _home(known, name)
        with _client(home) as client:
            if older is not None:
                gone = client.tevict(name, older=round(older * 1000))
            else:
                gone = client.tevict(name, keep=keep) if before is None else client.tevict(name, before - 1)
    report(as_json, {"log": name, "evicted": gone}, f"{gone} entries of {name} were evicted.")


@app.command("compact")
def compact(name: Name, config: ConfigFile = Path("braid.toml"), as_json: Json = False) -> None:
    """Keep only the last entry of each tag, and free the memory of the others, in all regions.

    Readers get nil for the offsets that are gone. Entries with an empty tag stay, and so does everything from
    the first entry on that a group has not acknowledged, in any region: every region must answer. The log can
    be used while this runs. You can run it again if it fails.

    Example: braid log compact prices
    """
    with _opened(config, as_json) as known, ExitStack() as opened:
        home, _ = _home(known, name)
        clients = {region.id: opened.enter_context(_client(region)) for region in known.region}
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
        for region in known.region:
            if region.id != home.id:
                asyncio.run(_between(home, region, partial(_bring, log)))
            client = clients[region.id]
            for part in client.run_plan(log_compaction.read_segments(log)):
                if client.run_plan(log_compaction.has_deleted(part.strand)):
                    client.run_plan(log_compaction.rewrite(part.strand, token))
        after = _memory(clients, log)
    memory = {
        region.name: {"before": before[region.id], "after": after[region.id]} for region in known.region
    }
    lines = [f"{gone:,} entries of {name} are gone, {verdicts.kept:,} stay."]
    lines += [
        f"  {where}: {bytes_['before'] / 1e6:,.1f} MB before, {bytes_['after'] / 1e6:,.1f} MB now"
        for where, bytes_ in memory.items()
    ]
    report(as_json, {"log": name, "deleted": gone, "kept": verdicts.kept, "memory": memory}, "\n".join(lines))


def _memory(clients: dict[int, Redis], log: bytes) -> dict[int, int]:
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
    as_json: Json = False,
) -> None:
    """Show the entries of a log, and new ones as they are written.

    Example: braid log tail payments --from 1000
    """
    with _opened(config, as_json) as known:
        place = _home(known, name)[0] if region is None else known.named(region)
        with _client(place) as client:
            if start is None:
                start = client.tread(name, count=0, withinfo=True)[0][1] + 1
            shown = 0
            while count is None or shown < count:
                wanted = 100 if count is None else min(100, count - shown)
                for offset, tag, entry in client.tread(name, start, wanted, block=1_000, skip=True):
                    facts = {"offset": offset, "tag": tag, "entry": entry}
                    typer.echo(json.dumps(facts) if as_json else f"{offset}  {tag}  {entry}")
                    start, shown = offset + 1, shown + 1
