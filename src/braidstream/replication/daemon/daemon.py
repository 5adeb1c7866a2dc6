"""One region's daemon: it detects what changed here, and sends it to every peer.

    own engine --- Feed --+--> Queue of peer 2 ---> Link to 2 ---> engine of region 2
                          `--> Queue of peer 3 ---> Link to 3 ---> engine of region 3

The daemon is stateless. A new process that replaces a killed one starts with a sweep.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from braidstream.config import Selection
from braidstream.engine.address import Address
from braidstream.errors import BraidError, LostError, LostPartError, ReplyError
from braidstream.lua import read_changed
from braidstream.model.region import Region
from braidstream.model.retention_policy import STREAM as POLICIES
from braidstream.model.strand import Strand
from braidstream.observability.events import Repeated, emit
from braidstream.observability.metrics import Family
from braidstream.observability.traces import Traces
from braidstream.operations.membership import Waiting, show_alive
from braidstream.operations.status import EVERY_S, DaemonStatus, forget_status
from braidstream.replication.answer_peers import PeerGroups
from braidstream.replication.daemon.carrier import BUNDLES, Carrier
from braidstream.replication.daemon.leases import Leases
from braidstream.replication.daemon.peer import (
    Peer,
    apart,
    check_pair,
    check_region,
    claim,
    is_misconfigured,
    keep_claim,
    why_down,
)
from braidstream.replication.daemon.peer_lag import watch_clock
from braidstream.replication.daemon.queue import AT_ONCE, Need, Queue
from braidstream.replication.daemon.reporting import EVERY_S as GROUPS_EVERY_S
from braidstream.replication.daemon.reporting import (
    DamageLog,
    EngineState,
    FileState,
    GroupMetrics,
    families,
    group_families,
    link_traffic,
    measure,
    own_families,
    read_engine,
    report,
    rescue_families,
)
from braidstream.replication.deadlines import EVERY_S as DEADLINES_EVERY_S
from braidstream.replication.deadlines import Deadlines
from braidstream.replication.detect.acks import EVERY_S as ACKS_EVERY_S
from braidstream.replication.detect.acks import AckWatch
from braidstream.replication.detect.feed import Feed, Feeds
from braidstream.replication.detect.sweep import Changes, Sweeper
from braidstream.replication.endpoint import (
    PEER_REPLY_BYTES,
    Endpoint,
    Node,
    back_off,
    reason,
    until_one_ends,
)
from braidstream.replication.gate import HELD_S, Durability, Gate
from braidstream.replication.heal.raising import raise_home, raise_logs
from braidstream.replication.later_job import EVERY_S as LATER_EVERY_S
from braidstream.replication.later_job import Later
from braidstream.replication.link.region_link import Homes, RegionLink, Side, pinned
from braidstream.replication.log_homes import EVERY_S as RESCUES_EVERY_S
from braidstream.replication.log_homes import LogRescue
from braidstream.replication.region_facts import Completion, await_journal, meet_region, region_of
from braidstream.replication.retention_job import Retention
from braidstream.replication.schedules import EVERY_S as SCHEDULES_EVERY_S
from braidstream.replication.schedules import Schedules
from braidstream.replication.takeover import EVERY_S as TAKEOVER_EVERY_S
from braidstream.replication.takeover import Takeover

# After a link was up for this long, the backoff starts over.
SOUND_S: Final = 10.0
# How long to wait before a retry after an error of the configuration.
MISCONFIGURED_S: Final = 3.0
# How often to check whether a region has got replicas.
CHOOSE_S: Final = 5.0
# How often to check whether a cluster has got primaries.
COMPLETE_S: Final = 2.0
# How often to record which process serves the region, and its highest ID.
NOTE_S: Final = 1.0
# The timeout for the measurement of a peer's lag.
MEASURE_WITHIN_S: Final = 2.0
# How often the text of the functions is compared.
FUNCTIONS_EVERY_S: Final = 60.0
# How often to see whether it is time to carry out retention policies.
RETENTION_LOOKS_S: Final = 0.5
# How often a fence is logged.
FENCED_S: Final = 60.0


class Daemon:
    """`run` ends when it is cancelled. `ready` is set once all streams were compared with every peer."""

    def __init__(self, address: Address, durability: Durability | None = None) -> None:
        self.source = Endpoint(address)
        self.source.changed = self._missed
        self.gate = Gate(self.source, durability)
        self._durability: tuple[Durability | None, float | None] = durability, None
        self._tuned = ""
        self._homes = Homes(self.gate)
        self.peers: dict[str, Peer] = {}
        self.leases = Leases(self.source, self._missed)
        self.ready = asyncio.Event()
        self.status: DaemonStatus | None = None
        self.groups = GroupMetrics()
        self.engine, self.file = EngineState(), FileState()
        self._broken = Repeated()
        self._changed, self._check_at = "", 0.0
        self._acks = AckWatch(self.source, self._acknowledged)
        self._completion = Completion(self.source)
        self._sweeper = Sweeper(self.source, self.leases, self._swept)
        self._carrier = Carrier(self.peers, self._acks, Traces())
        self._changes = Changes(self.source)
        self.deadlines = Deadlines(
            self.source, self._changes, self.leases.mine, lambda name: apart(self.peers.values(), name)
        )
        self.rescue = LogRescue(self.source, self._changes, self.gate, self.peers.values, self.leases.mine)
        self.peer_groups = PeerGroups(self.source, self.peers.values, self.leases.mine)
        self.retention = Retention(self.source, self.peers.values, self.leases.mine)
        self.takeover = Takeover(self.source, self.peers.values, self.leases.mine)
        self.later = Later(self.source, self._changes, self.peers.values, self.leases.mine, self.takeover)
        self.schedules = Schedules(self.source, self.leases.mine, self.takeover)
        self._has_new_peer = asyncio.Event()
        self._noting = asyncio.Lock()
        self._highest_ms = 0
        self._fence_logged_s = -FENCED_S
        self._is_stopping = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending = set[asyncio.Task[None]]()  # of peers that were removed

    def set_peers(self, peers: dict[str, tuple[int, Address]]) -> None:
        """Set the peers: number and address by name. Call it while `run` runs."""
        for name, peer in [*self.peers.items()]:
            if (peer.id, peer.endpoint.address) != peers.get(name):
                ended = self._tasks.pop(name)
                ended.cancel()
                self._ending.add(ended)
                ended.add_done_callback(self._ending.discard)
                self.peers.pop(name).endpoint.close()
        for name, (number, address) in peers.items():
            if name not in self.peers:
                self._has_new_peer.set()
                self.peers[name] = peer = Peer(number, name, Endpoint(address, PEER_REPLY_BYTES))
                peer.endpoint.changed = peer.sweep.set
                self._tasks[name] = asyncio.ensure_future(self._serve(peer))

    def set_durability(self, wanted: Durability | None, timeout_s: float | None) -> None:
        """What the file says. `braid tune durability` goes before it."""
        self._durability = wanted, timeout_s
        self.gate.want(Durability.parse(self._tuned) if self._tuned else wanted, timeout_s)

    def select(self, chosen: Mapping[str, tuple[Selection, ...]]) -> None:
        """Set which streams are exchanged with each peer."""
        for name, peer in self.peers.items():
            if peer.selections != chosen.get(name, ()):
                peer.select(chosen.get(name, ()))

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen())
                tasks.create_task(self.leases.run())
                tasks.create_task(self._repeat(self.gate.choose, CHOOSE_S))
                tasks.create_task(self._repeat(self._show_alive, NOTE_S))
                tasks.create_task(self._repeat(self._completion.look, COMPLETE_S))
                tasks.create_task(self._repeat(self._acks.look, ACKS_EVERY_S))
                tasks.create_task(self._repeat(self.takeover.look, TAKEOVER_EVERY_S))
                tasks.create_task(self._repeat(self.takeover.act, TAKEOVER_EVERY_S))
                tasks.create_task(self._repeat(self.deadlines.look, DEADLINES_EVERY_S))
                tasks.create_task(self.peer_groups.run())
                tasks.create_task(self._repeat(self.retention.look, RETENTION_LOOKS_S))
                tasks.create_task(self._repeat(self.later.look, LATER_EVERY_S))
                tasks.create_task(self._repeat(self.later.act, LATER_EVERY_S))
                tasks.create_task(self._repeat(self.schedules.look, SCHEDULES_EVERY_S))
                tasks.create_task(self._repeat(self.rescue.look, RESCUES_EVERY_S))
                tasks.create_task(self._repeat(self._measure_lags, EVERY_S))
                tasks.create_task(self._repeat(self._report, EVERY_S))
        finally:
            self._is_stopping = True
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), *self._ending, return_exceptions=True)
            await self.leases.release()
            with contextlib.suppress(BraidError):
                await self.source.run(forget_status(self.leases.id))
            self.gate.close()
            self.source.close()

    def families(self) -> list[Family]:
        """For /metrics. Without the own engine the links are unknown: its last status is old."""
        is_up = self.source.connected
        return [
            *families(self.status if is_up else None, is_up),
            *own_families(self.engine if is_up else EngineState(), self.file),
            *group_families(self.groups),
            *rescue_families(self.rescue.entries),
            *self.retention.families,
            *self.later.families,
            *self.schedules.families,
            *link_traffic(self.peers.values()),
        ]

    async def why_not_ready(self) -> str:
        """Empty if the own engine is connected and has its region. Peers do not matter: a restart of the
        daemon would not help."""
        if not self.source.connected:
            return f"the region's engine at {self.source.address} is not connected"
        return self.engine.why_broken

    def note(self) -> str:
        """For /readyz: why a daemon that is ready sends nothing. Empty if it does."""
        if self.status is None or self.gate.held_s < HELD_S:
            return ""
        waits = f"replication waits for durability {self.gate.durability} since {self.gate.held_s:.0f} s"
        return f"{waits}: {self.gate.held_why}"

    # Detecting changes

    async def _listen(self) -> None:
        tries, refused, trouble = 0, "", Repeated()
        clock = asyncio.get_running_loop().time
        while True:
            feed: Feeds | None = None
            try:
                await self.source.connect()
                await self._show_alive()
                here = await self._own_region()
                if was := trouble.over(clock()):
                    emit("source.up", **was)
                self._has_new_peer.clear()
                writers = here.writer, {*here.writers, *(peer.id for peer in self.peers.values())}
                feed = self._feed(writers)
                await until_one_ends(feed.run(), self.source.watch(), self._has_new_peer.wait())
            except Exception as error:  # also for an unexpected reply
                if isinstance(error, LostPartError):
                    pass  # `_report` logs it
                elif feed is None or not isinstance(error, ReplyError):
                    where = "" if isinstance(error, LostError) else f"{self.source.address}: "
                    trouble.log("source.lost", clock(), why=f"{where}{why_down(error)}")
                elif str(error) != refused:  # logged once; the sweeps continue
                    refused = str(error)
                    emit("feed.refused", why=error)
            if feed is not None and feed.is_listening:
                tries, refused = 0, ""
            await back_off(tries)
            tries += 1

    def _feed(self, writers: tuple[int, set[int]]) -> Feeds:
        def make(node: Node) -> Feed:
            return Feed(
                node.address, writers, self._heard, self._arrived, self._missed, self.peer_groups.asked
            )

        return Feeds(self.source, make)

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        """Repeat work on the own engine. `_listen` logs a lost engine; an unexpected error is logged here."""
        clock, trouble = asyncio.get_running_loop().time, Repeated()
        while True:
            try:
                await self.source.connect()
                await work()
                trouble.over(clock())
            except BraidError:
                pass
            except Exception as error:  # for example, an unexpected reply: the other jobs go on
                trouble.log("job.failed", clock(), job=work.__qualname__, why=reason(error))
            await asyncio.sleep(pause_s)

    async def _show_alive(self) -> None:
        """Record which process serves the region. If it may give IDs twice, raise the home strands.

        A cluster has many processes, and records none of them.
        """
        if self.source.is_cluster:
            self._log_fence((await region_of(self.source)).fenced)
            return
        async with self._noting:
            links = (peer.link for peer in self.peers.values() if peer.link is not None)
            self._highest_ms = max((link.highest_ms for link in links), default=self._highest_ms)
            waits, fenced = await self.source.run(show_alive(self._highest_ms))
            self._log_fence(fenced)
            if waits is Waiting.NOBODY:
                return
            here = await region_of(self.source)
            peers = {name: (peer.id, peer.endpoint.address) for name, peer in self.peers.items()}
            raises = raise_logs if waits is Waiting.LOGS else raise_home
            without = await raises(self.source, here, peers)
            await self.source.run(show_alive(self._highest_ms, raised=True))
            if waits is Waiting.EVERYBODY:
                emit("region.ids_raised", region=here.name, without=",".join(without))
            elif without:
                emit("region.offsets_unknown", region=here.name, without=",".join(without))

    async def _report(self) -> None:
        """Store the state of the links for `braid status`."""
        if not self.source.is_cluster:
            self.engine = await self.source.run(read_engine())
            self._log_broken(self.engine)
            await self._check_functions()
        state = report(
            self.leases.id,
            self.gate,
            self.peers.values(),
            self.file,
            self._changed,
            taken=self.takeover.taken,
            waits=self.peer_groups.waits,
            retention=self.retention.shown,
        )
        self.status = await self.source.run(state)
        if self.status.tuned != self._tuned:
            self._tuned = self.status.tuned
            self.set_durability(*self._durability)
            emit("gate.tuned", durability=self._tuned or "file")

    async def _check_functions(self) -> None:
        """Whether the functions are those that we ship: their text is long, so now and then."""
        now = asyncio.get_running_loop().time()
        if now < self._check_at:
            return
        self._check_at = now + FUNCTIONS_EVERY_S
        changed = await self.source.run(read_changed())
        if changed and changed != self._changed:
            emit("functions.changed", server=self.source.address, why=changed)
        self._changed = changed

    def _log_broken(self, engine: EngineState) -> None:
        """The server lost its data or its functions. Its connection does not end by that."""
        now = asyncio.get_running_loop().time()
        if not engine.why_broken:
            self._broken.over(now)
        else:
            event = "region.lost" if engine.lost else "functions.missing"
            self._broken.log(event, now, server=self.source.address, why=engine.why_broken)

    async def _measure_lags(self) -> None:
        await asyncio.gather(*(self._measure_lag(peer) for peer in self.peers.values()))

    async def measure_groups(self) -> None:
        """For /metrics, while they are served: the lag of each group, and strays, round after round."""
        await self.leases.known.wait()
        damage = DamageLog()
        while True:
            pause_s = GROUPS_EVERY_S
            try:
                found = await measure(self.source, self.leases.mine, self.groups.streams)
            except Exception:  # the engine is lost, or has an odd stream: old values would mislead
                self.groups = replace(self.groups, lags=[], strays=None)
                pause_s = EVERY_S
            else:
                damage.log(found.damaged, asyncio.get_running_loop().time())
                for right in found.denied.keys() - self.groups.denied.keys():
                    emit("metrics.refused", metrics=found.denied[right], right=right)
                self.groups = found
            await asyncio.sleep(pause_s)

    async def _measure_lag(self, peer: Peer) -> None:
        """Measure one peer. If it does not answer it keeps its last value; its link logs why."""
        if not peer.swept or not peer.lag.writer:
            return
        now_ms = round(time.time() * 1000)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(MEASURE_WITHIN_S):
                try:
                    await peer.lag.measure(self.source, peer.endpoint if peer.link is not None else None)
                    peer.measured_ms = now_ms
                except ReplyError:
                    # One of the two cannot be read, as if its functions are missing. If it is the peer, count
                    # from where the peer was. If it is the own engine, the lag is unknown.
                    peer.lag.behind = None
                    if peer.link is not None:
                        peer.lag.unread(peer.measured_ms or now_ms)
                    await peer.lag.measure(self.source, None)

    def _log_fence(self, fenced: bool) -> None:
        """A region can be fenced while its daemon runs: a backup that was made during a rejoin has a
        fence."""
        now = asyncio.get_running_loop().time()
        if not fenced:
            self._fence_logged_s = -FENCED_S
        elif now - self._fence_logged_s >= FENCED_S:
            self._fence_logged_s = now
            emit("region.fenced", server=self.source.address)

    def _heard(self, name: bytes, more: bool) -> None:
        self.retention.changed(name)
        self.later.changed(name)
        if more:
            self._changes.add(name)
        if self.leases.mine(name):
            for peer in self.peers.values():
                if not peer.takes(name):
                    continue
                if not more:
                    peer.lag.changed(name)
                if peer.link is not None:  # else the next link starts with a sweep
                    if more:
                        queue = peer.queue if peer.link.has_met(name) else peer.fresh
                        queue.add(name, Need.SYNC, peer.pause_s(name))
                    else:
                        peer.fresh.add(name, Need.FOLLOW)

    def _arrived(self, strand: Strand) -> None:
        self.retention.changed(strand.name)
        self.later.changed(strand.name)
        if self.leases.mine(strand.name):
            self._acks.add([strand])

    def _acknowledged(self, name: bytes) -> bool:
        """Groups of a quiet stream moved. False if a link is busy: report it again later."""
        links = [peer for peer in self.peers.values() if peer.link is not None and peer.takes(name)]
        idle = [peer for peer in links if peer.queue.in_work < AT_ONCE]
        for peer in idle:
            peer.queue.add(name, Need.SYNC)
        return len(idle) == len(links)

    def _missed(self) -> None:
        """Pushes may have been missed: sweep over all streams, for all peers."""
        for peer in self.peers.values():
            peer.sweep.set()
        self._changes.missed()
        self.retention.changed(POLICIES)
        self.later.missed()
        self.takeover.missed()

    # Sending

    async def _serve(self, peer: Peer) -> None:
        """Keep the link to one peer up, until the peer is removed.

        An error ends this link only, and is retried.
        """
        tries, clock = 0, asyncio.get_running_loop().time
        # Checked, because an error at the same time may swallow the cancellation.
        while not self._is_stopping and self.peers.get(peer.name) is peer:
            began, pause_s = clock(), 0.0
            try:
                await self.source.as_own(self.source.connect())
                await peer.endpoint.connect()
                here, there = await self._introduce(peer)
                ends = Side(self.source, self._homes.of), Side(peer.endpoint, pinned)
                peer.fresh, peer.alone, peer.queue = Queue(), Queue(), Queue()
                link = RegionLink(*ends, here=here, there=there)
                link.on_refused = partial(self._carrier.refused, peer)
                link.on_compare = peer.queue.will_compare
                peer.up(link)
                peer.sweep.set()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(peer.endpoint.watch())
                    tasks.create_task(self._sweeper.run(peer, link))
                    tasks.create_task(keep_claim(peer.endpoint, here))
                    tasks.create_task(watch_clock(self.source, peer.endpoint, there, peer.note_clock))
                    for _ in range(BUNDLES):
                        tasks.create_task(self._carrier.bundle(peer, link))
                    for _ in range(AT_ONCE):
                        tasks.create_task(self._carrier.carry(peer, link, peer.alone))
                        tasks.create_task(self._carrier.carry(peer, link, peer.queue))
            except* Exception as errors:
                error = _first(errors)
                peer.down(error, self.source)
                pause_s = MISCONFIGURED_S if is_misconfigured(error) else 0.0
            finally:
                peer.link = None
                peer.endpoint.close()
            tries = 0 if clock() - began > SOUND_S else tries + 1
            await asyncio.sleep(pause_s)
            await back_off(tries)

    async def _own_region(self) -> Region:
        here = await region_of(self.source)
        check_region(here, (here.id, here.name), self.source.address)
        return here

    async def _introduce(self, peer: Peer) -> tuple[Region, Region]:
        """Check both regions, and exchange their writers."""
        await self.source.as_own(self._show_alive())
        here = await self.source.as_own(self._own_region())
        there = await region_of(peer.endpoint)
        check_region(there, (peer.id, peer.name), peer.endpoint.address)
        check_pair(here, there)
        await claim(peer.endpoint, here)
        # A region that our file does not name introduces itself, if it may. A hostile peer may name all.
        named = {each.id for each in self.peers.values()}
        here = await self.source.as_own(meet_region(self.source, named.intersection(there.writers)))
        there = await meet_region(peer.endpoint, here.writers)
        await self.source.as_own(await_journal(self.source, here))
        await await_journal(peer.endpoint, there)
        return here, there

    def _swept(self, peer: Peer) -> None:
        peer.swept = True
        if all(each.swept for each in self.peers.values()):
            self.ready.set()


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    """The first of several errors: the others follow from it."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
