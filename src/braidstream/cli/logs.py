"""`braid log`: create a log, show and move its home, rescue, change its settings, evict, compact, follow."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from braidstream import config as files
from braidstream.cli.frame import Verbs
from braidstream.cli.reach import ConfigFile, Json, JsonLines, report, trouble
from braidstream.cli.regions import reached
from braidstream.cli.replicate import durability_of
from braidstream.cli.spark_run import bar, duration
from braidstream.config import Config, RegionConfig
from braidstream.errors import BraidError, LostError
from braidstream.model.frontier import name_text
from braidstream.model.registry import DEFAULT_PENDING, Epoch, Registry
from braidstream.operations import log_upkeep
from braidstream.operations.open_region import CLIENT_ERRORS, AnyClient, open_region
from braidstream.plan.plan import Plan
from braidstream.replication import log_homes as replication_logs
from braidstream.replication.endpoint import Endpoint, PlanRunner
from braidstream.replication.gate import Gate

# ----------------------------------------------------------------------------------------------------
# What the verbs of `braid log` share: finding a log among the regions, and work between two of them.

T = TypeVar("T")
Work = Callable[[PlanRunner, PlanRunner], Awaitable[T]]

# What a client of a region raises.
UNREAD: Final = (BraidError, OSError, *CLIENT_ERRORS)
# How long to wait until a region can no longer lose what was written.
SAFE_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log. regions: those that exchange it, or the one in which it stays local.

    home: None if that region is not in the file: it was removed.
    """

    regions: tuple[RegionConfig, ...]
    home: RegionConfig | None
    registry: Registry

    @property
    def home_name(self) -> str:
        if self.home is None:
            return f"region {log_upkeep.home_of(self.registry).writer} (not in the file)"
        return self.home.name

    def require_home(self, name: str) -> RegionConfig:
        """Its home; an error if that was removed."""
        self.refuse_local_home(name)
        if self.home is None:
            raise BraidError(
                f"log {name} is written in {self.home_name}. If that was removed, move the log: "
                f"braid log move {name} --to {self.regions[0].name} --force"
            )
        return self.home

    def refuse_local_home(self, name: str) -> None:
        """An error if its home has become a region that no longer exchanges it."""
        if self.home is not None and self.home not in self.regions:
            refuse_local(name, self.home)
            raise BraidError(
                f"log {name} stays local in {self.regions[0].name}, and its home is {self.home.name}, from "
                "before. Let both exchange it again, or delete it there."
            )


@contextmanager
def opened(config: Path, as_json: bool) -> Iterator[Config]:
    with trouble(config, as_json):
        yield files.load(config)


def client_of(region: RegionConfig) -> AnyClient:
    return open_region(region.url, decode_responses=True)


def find(known: Config, name: str, local_to: str | None = None) -> FoundLog:
    """A log, as the regions that answer know it. The latest epoch counts.

    local_to: a region. If the log stays local there, this is the log of that region alone.
    """
    regions = _sharing(known, name, local_to)
    found, errors = list[Registry](), list[str]()
    for region in regions:
        try:
            with client_of(region) as client:
                found.append(client.run_plan(log_upkeep.read_log(name.encode())))
        except UNREAD as error:
            errors.append(f"{region.name}: {error}")
    if not found:
        raise BraidError(f"no region has the log {name!r}. " + "; ".join(errors + _local(known, name)))
    registry = max(found, key=log_upkeep.home_of)
    writer = log_upkeep.home_of(registry).writer
    home = next((region for region in known.region if region.id == writer), None)
    return FoundLog(regions, home, registry)


def written_in(gone: RegionConfig, others: Iterable[RegionConfig]) -> list[str]:
    """The logs whose home is a region, as the others know it. The latest epoch counts."""
    homes = dict[bytes, Epoch]()
    for region in others:
        with client_of(region) as client:
            for found in client.run_on_primaries(log_upkeep.find_homes):
                homes |= {name: max(epoch, homes.get(name, epoch)) for name, epoch in found.items()}
    return sorted(name_text(name) for name, epoch in homes.items() if epoch.writer == gone.id)


def _sharing(known: Config, name: str, local_to: str | None) -> tuple[RegionConfig, ...]:
    """In the other regions the name is another log, or a stream, that is not exchanged."""
    if local_to is not None:
        region = known.named(local_to)
        if not region.selection.takes(name.encode()):
            return (region,)
    return tuple(region for region in known.region if region.selection.takes(name.encode()))


def _local(known: Config, name: str) -> list[str]:
    return [f"{where}: it stays local there (see --region)" for where in known.local_to(name.encode())]


def refuse_local(name: str, *regions: RegionConfig) -> None:
    """Its entries would not get from one home to the other."""
    local = [each.name for each in regions if not each.selection.takes(name.encode())]
    if local:
        raise BraidError(
            f"log {name} stays local in {' and '.join(local)}: `include` and `exclude` in the file say so. "
            "Change them first."
        )


async def between(log: bytes, source: RegionConfig, target: RegionConfig, work: Work[T]) -> T:
    """Connect to two regions and do some work on a log, whether daemons run or not."""
    async with _safe(log, source) as here, _safe(log, target) as there:
        return await work(here, there)


@asynccontextmanager
async def _safe(log: bytes, region: RegionConfig) -> AsyncIterator["_Safe"]:
    async with reached(region.url) as endpoint:
        found = _Safe(log, region, endpoint)
        try:
            yield found
        finally:
            found.gate.close()


class _Safe:
    """Runs plans where a region holds a log, and returns what it can no longer lose (`durability`)."""

    def __init__(self, log: bytes, region: RegionConfig, endpoint: Endpoint) -> None:
        self.log, self.region, self.endpoint = log, region, endpoint
        self.gate = Gate(endpoint, durability_of(region))

    async def run(self, plan: Plan[T]) -> T:
        gate = self.gate.of(self.endpoint.node_of(self.log))
        try:
            async with asyncio.timeout(SAFE_WITHIN_S):
                return await gate.run(plan)
        except TimeoutError:
            raise BraidError(
                f"region {self.region.name} could still lose what was written: its `durability` is "
                f"{gate.durability}. Bring its replicas back or change it, and run this again."
            ) from None
        except LostError as error:
            raise LostError(error.address, error.why, wrote=True) from error  # the gate cannot know


async def bring(name: bytes, source: PlanRunner, target: PlanRunner, *, relay: bool = False) -> None:
    """relay: also what other regions wrote."""
    await (await replication_logs.link_of(source, target)).sync(name, relay=relay)


# ----------------------------------------------------------------------------------------------------
# Logs

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
            registry = client.run_plan(log_upkeep.read_log(name.encode()))
    writer = log_upkeep.home_of(registry).writer
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
        registry, epoch = found.registry, log_upkeep.home_of(found.registry)
        if force:
            _collect(found, name.encode(), target)
            with client_of(target) as client:
                first = client.run_plan(log_upkeep.end_epoch(name.encode(), epoch, target.id, force=True))
        elif (home := found.require_home(name)).id == target.id:
            first = epoch.first
            for former in found.regions:
                if former.id in [each.writer for each in registry.epochs[-2:-1]]:
                    work = partial(bring, name.encode(), relay=True)
                    asyncio.run(between(name.encode(), former, target, work))
        else:
            moving = partial(replication_logs.move_home, name.encode(), epoch=epoch, to=target.id)
            first = asyncio.run(between(name.encode(), home, target, moving))
    text = f"log {name} is written in {target.name} from offset {first} on."
    report(as_json, {"log": name, "home": target.name, "first": first}, text)


def _collect(found: FoundLog, log: bytes, target: RegionConfig) -> None:
    """Bring what other regions have of the lost home's entries: then these keep their offsets."""
    for region in found.regions:
        if region.id not in (target.id, log_upkeep.home_of(found.registry).writer):
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
            work = replication_logs.rescue_tails if region.id == home.id else replication_logs.rescue
            try:
                rescued += asyncio.run(between(log, region, home, partial(work, log, writer=region.id)))
                if removed and region.id != home.id:
                    asyncio.run(between(log, region, home, partial(bring, log, relay=True)))
            except (BraidError, OSError) as error:
                failed[region.name] = str(error)
        for writer in removed:
            rescued += asyncio.run(
                between(log, home, home, partial(replication_logs.rescue_tails, log, writer=writer))
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
    keep: Annotated[int | None, typer.Option(min=0, help="Keep at least this many entries.")] = None,
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
        needed = min(client.run_plan(log_upkeep.needed_from(log)) for client in clients.values())
        verdicts, before = log_upkeep.Verdicts(needed), _memory(clients, log)
        with bar(f"compacting {name}", at_home.xlen(name)) as shown:
            for part in reversed(at_home.run_plan(log_upkeep.read_segments(log))):
                upto = part.last
                while page := at_home.run_plan(log_upkeep.read_tags(part, upto)):
                    gone += at_home.run_plan(log_upkeep.delete(part.strand, verdicts.obsolete(page)))
                    upto = page[-1][0] - 1
                    shown.advance(shown.task_ids[0], len(page))
        for each in found.regions:
            if each != home:
                asyncio.run(between(log, home, each, partial(bring, log)))
            client = clients[each.id]
            for part in client.run_plan(log_upkeep.read_segments(log)):
                if client.run_plan(log_upkeep.has_deleted(part.strand)):
                    client.run_plan(log_upkeep.rewrite(part.strand, token))
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
        number: client.run_plan(log_upkeep.memory_of(client.run_plan(log_upkeep.read_segments(log))))
        for number, client in clients.items()
    }


@app.command("tail")
def tail(
    name: Name,
    start: Annotated[int | None, typer.Option("--from", min=1, help="The first offset to show.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many entries.")] = None,
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
                    report(as_json, facts, f"{offset}  {tag}  {entry}")
                    start, shown = offset + 1, shown + 1
