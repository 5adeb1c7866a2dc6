"""Goes through all streams of a region: compares them with a peer, and reads their registries for other jobs.

    differing    which of many streams differ between two regions, by their digests
    Changes      fields of registries, for deadlines.py, later_job.py and log_homes.py
    Sweeper      compares all streams with a peer: when its link starts, and at intervals

A lost node of a cluster, here or at the peer, leaves its streams out. They are read when it is back.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from braidstream.errors import BraidError, LostError
from braidstream.model import keys
from braidstream.model.fields import LOCAL
from braidstream.model.strand import Command, Strand
from braidstream.observability.events import emit
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.daemon.leases import Leases
from braidstream.replication.daemon.peer import Peer, check_pair
from braidstream.replication.daemon.queue import AT_ONCE, Need
from braidstream.replication.detect.feed import all_streams, streams_of
from braidstream.replication.endpoint import Endpoint, Node, PlanRunner, is_away
from braidstream.replication.link.region_link import RegionLink
from braidstream.replication.region_facts import region_of

# ----------------------------------------------------------------------------------------------------
#
# Which of many streams differ between two regions: the first step of a sweep, hundreds per round trip.
#
#     names ---> a digest of each from both regions ---> equal: nothing to do
#                                                   `--> different: compare the states (link.py)
#
# A daemon that starts, or whose link was lost, checks every stream. Nearly all are equal in both regions,
# and comparing digests costs a tenth of comparing states.

DIGESTS_AT_ONCE: Final = 250

_PREFIXES: Final = b" ".join(LOCAL)


async def differing(
    names: Sequence[bytes], writers: Sequence[int], source: PlanRunner, target: PlanRunner
) -> list[bytes]:
    """The streams that the target may lack a part of, or whose groups moved in the source."""
    found = list[bytes]()
    for at in range(0, len(names), DIGESTS_AT_ONCE):
        some = names[at : at + DIGESTS_AT_ONCE]
        commands = [glance_command(name, writers) for name in some]
        ours, theirs = await asyncio.gather(source.run(_send(commands)), target.run(_send(commands)))
        found += [
            name for name, here, there in zip(some, ours, theirs, strict=True) if not _alike(here, there)
        ]
    return found


def _send(commands: Sequence[Command]) -> Plan[list[object]]:
    return (yield Batch(commands, resend=True, attempt=True))


def glance_command(name: bytes, writers: Sequence[int]) -> Command:
    strands = [Strand(name, keys.GENERATED, writer) for writer in writers]
    where = (
        keys.meta(name),
        *(strand.key for strand in strands),
        *(keys.journal(name, writer) for writer in writers),
    )
    labels = (*(strand.registration for strand in strands), *(b"" for _ in writers))
    return ("FCALL_RO", "bs_braid_glance", len(where), *where, _PREFIXES, *labels)


def _alike(here: object, there: object) -> bool:
    """Whether two digests are equal. No, if one is an error or empty, or ours ends in `!` (lua/acks.lua)."""
    return isinstance(here, bytes) and isinstance(there, bytes) and bool(here) and here == there.rstrip(b"!")


# ----------------------------------------------------------------------------------------------------
#
# Reads the registries of streams for jobs of the daemon: all when it starts, later again page by page, and
# those that have changed. So the jobs store nothing.
#
#     deadlines.py and others  --- fields --->  Changes  --- names and values --->  their `read`
#
# The jobs share one `Changes`, so a registry is read once for all of them.

# How often all streams are read again. Changes are noticed at once; this is for those that were missed.
_ALL_EVERY_S: Final = 300.0
# Streams a second, here and in a sweep: a million idle streams take a few percent of a core.
_RATE: Final = 250
# How soon again if a node of a cluster was lost. When it is back, `missed` is called.
_AGAIN_S: Final = 10.0
_AT_ONCE: Final = 500

# The value of each field that a job wants; None if a registry lacks it.
Values = tuple[bytes | None, ...]
Read = Callable[[dict[bytes, Values]], Awaitable[None]]


@dataclass(slots=True)
class _Job:
    """error: of its last `read`. It is raised for this job alone."""

    fields: tuple[bytes, ...]
    read: Read
    error: Exception | None = None


class Changes:
    """`serve` adds a job."""

    def __init__(self, source: Endpoint) -> None:
        self._source = source
        self._jobs: list[_Job] = []
        self._looking = asyncio.Lock()
        self._changed = set[bytes]()
        # Of the reading of all streams that is under way.
        self._pages: AsyncIterator[list[bytes]] | None = None
        self._has_missed, self._next_s = True, 0.0

    def serve(self, fields: tuple[bytes, ...], read: Read) -> Callable[[], Awaitable[None]]:
        """Pass these fields of registries to `read`, some streams at a time; maybe again after an error.

        Returns what the job calls again and again, before it acts.
        """
        job = _Job(fields, read)
        self._jobs.append(job)
        return partial(self._look, job)

    def add(self, name: bytes) -> None:
        """The registry of a stream has changed."""
        self._changed.add(name)

    def missed(self) -> None:
        """Changes may have been missed: read all streams again."""
        self._has_missed = True

    async def _look(self, job: _Job) -> None:
        async with self._looking:
            if self._has_missed or asyncio.get_running_loop().time() >= self._next_s:
                await self._read_all(at_once=self._has_missed)
            changed, self._changed = self._changed, set()
            try:
                await self._read_some(changed)
            except BaseException:
                self._changed |= changed
                raise
            error, job.error = job.error, None
            if error is not None:
                raise error

    async def _read_all(self, *, at_once: bool) -> None:
        """All streams; or the next page of them."""
        clock = asyncio.get_running_loop().time
        if at_once or self._pages is None:
            self._pages = all_streams(self._source)
        self._has_missed = False  # before the read: `missed` may be called during it
        try:
            async for names in self._pages:
                await self._read_some(names)
                if not at_once:
                    self._next_s = clock() + len(names) / _RATE
                    return
        except BaseException as error:
            self._pages, self._next_s = None, clock() + _AGAIN_S
            if not self._source.spares(error):
                self.missed()
                raise
        else:
            self._pages, self._next_s = None, clock() + _ALL_EVERY_S

    async def _read_some(self, names: Iterable[bytes]) -> None:
        listed = [*names]
        for first in range(0, len(listed), _AT_ONCE):
            some = listed[first : first + _AT_ONCE]
            replies = await self._source.run(self._replies(some))
            away = {name for name, about in replies.items() if any(map(is_away, about))}
            self._changed |= away  # they are read again
            begin = 0
            for job in self._jobs:
                end = begin + len(job.fields)
                found = {name: _values(replies[name][begin:end]) for name in some if name not in away}
                begin = end
                try:
                    await job.read(found)
                except Exception as error:  # the other jobs go on
                    job.error = error
                    self._changed.update(some)

    def _replies(self, names: list[bytes]) -> Plan[dict[bytes, list[Any]]]:
        """By stream, the fields of all jobs."""
        fields = [field for job in self._jobs for field in job.fields]
        commands = [("HGET", keys.meta(name), field) for name in names for field in fields]
        replies = iter((yield Batch(commands, resend=True, attempt=True)))  # no hash: it stops no other
        return {name: [next(replies) for _ in fields] for name in names}


def _values(replies: list[Any]) -> Values:
    return tuple(reply if isinstance(reply, bytes) else None for reply in replies)


# ----------------------------------------------------------------------------------------------------
# Sweep

# How often all streams are compared, if there are not too many for _RATE.
SWEEP_S: Final = 30.0
# How soon a sweep is repeated if a node was lost. When the node is back, it is repeated at once.
AGAIN_S: Final = 1.0
# How often to look whether the link has room for more streams.
ROOM_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Sweeper:
    """source: the own region. swept: called when all streams were compared with a peer."""

    source: Endpoint
    leases: Leases
    swept: Callable[[Peer], None]

    async def run(self, peer: Peer, link: RegionLink) -> None:
        """Until the link ends. The first sweep, and those after something was missed, take no pauses."""
        clock, at_once = asyncio.get_running_loop().time, True
        await self.leases.known.wait()
        while True:
            peer.sweep.clear()
            next_s = clock() + AGAIN_S
            if await self._sweep(peer, link, at_once=at_once):
                emit("link.swept", peer=peer.name)
                self.swept(peer)
                next_s += SWEEP_S - AGAIN_S
            at_once = await _is_set(peer.sweep, max(next_s - clock(), AGAIN_S))

    async def _sweep(self, peer: Peer, link: RegionLink, *, at_once: bool) -> bool:
        """Whether all servers of both regions were read."""
        await self._check(peer, link)
        done = True
        for node in self.source.nodes:
            try:
                done = await self._compare(node, peer, link, at_once=at_once) and done
            except BraidError as error:
                if not self.source.spares(error):
                    raise
                done = False
        return done

    async def _check(self, peer: Peer, link: RegionLink) -> None:
        """A region may have been added or removed since."""
        link.here = await self.source.as_own(region_of(self.source))
        link.refresh()
        check_pair(link.here, await region_of(peer.endpoint))

    async def _compare(self, node: Node, peer: Peer, link: RegionLink, *, at_once: bool) -> bool:
        """The streams of one server. Whether all of them could be compared."""
        done, pause_s = True, 0.0
        async for names in streams_of(node):
            if pause_s and not at_once:
                at_once = await _is_set(peer.sweep, pause_s)
                await self._check(peer, link)
            mine = [name for name in names if self.leases.mine(name) and peer.takes(name)]
            there = [name for name in mine if _is_reached(peer.endpoint, name)]
            done = done and there == mine
            for name in await differing(there, link.here.writers, node, peer.endpoint):
                peer.fresh.add(name, Need.RELAY)
                peer.lag.changed(name)
            while peer.fresh.relays + peer.queue.relays > 10 * AT_ONCE:
                await asyncio.sleep(ROOM_S)
            pause_s = len(names) / _RATE
        return done


async def _is_set(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def _is_reached(region: Endpoint, name: bytes) -> bool:
    try:
        return region.node_of(name).connected
    except LostError:  # no node serves its slot
        return False
