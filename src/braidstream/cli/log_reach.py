"""What the verbs of `braid log` share: finding a log among the regions, and work between two of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from braidstream import config as files
from braidstream.admin import log_moves
from braidstream.cli.reach import trouble
from braidstream.cli.region_reach import reached
from braidstream.cli.replicate import durability_of
from braidstream.clients.any_region import CLIENT_ERRORS, AnyClient, open_region
from braidstream.config import Config, RegionConfig
from braidstream.errors import BraidError, LostError
from braidstream.model.frontier import name_text
from braidstream.model.meta import Registry
from braidstream.model.offset_log import Epoch
from braidstream.protocol.plan import Plan
from braidstream.replication import log_homes
from braidstream.replication.cluster_gate import gate_for
from braidstream.replication.endpoint import Endpoint, PlanRunner

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
            return f"region {log_moves.home_of(self.registry).writer} (not in the file)"
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
                found.append(client.run_plan(log_moves.read_log(name.encode())))
        except UNREAD as error:
            errors.append(f"{region.name}: {error}")
    if not found:
        raise BraidError(f"no region has the log {name!r}. " + "; ".join(errors + _local(known, name)))
    registry = max(found, key=log_moves.home_of)
    writer = log_moves.home_of(registry).writer
    home = next((region for region in known.region if region.id == writer), None)
    return FoundLog(regions, home, registry)


def written_in(gone: RegionConfig, others: Iterable[RegionConfig]) -> list[str]:
    """The logs whose home is a region, as the others know it. The latest epoch counts."""
    homes = dict[bytes, Epoch]()
    for region in others:
        with client_of(region) as client:
            for found in client.run_on_primaries(log_moves.find_homes):
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
        self.gate = gate_for(endpoint, durability_of(region))

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
    await (await log_homes.link_of(source, target)).sync(name, relay=relay)
