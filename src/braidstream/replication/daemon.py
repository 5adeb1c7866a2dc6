"""One region's daemon: it detects what changed here, and sends it to every peer.

    own engine --- Feed --+--> Queue of peer 2 ---> Link to 2 ---> engine of region 2
                          `--> Queue of peer 3 ---> Link to 3 ---> engine of region 3

The daemon is stateless. A new process that replaces a killed one starts with a sweep.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from braidstream.admin.daemon_status import EVERY_S, DaemonStatus, forget_status
from braidstream.admin.membership import meet, show_alive
from braidstream.config import Selection
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand
from braidstream.net.wire import Address
from braidstream.observability.events import emit
from braidstream.observability.metrics import Family
from braidstream.observability.repeated import Repeated
from braidstream.observability.traces import Traces
from braidstream.protocol.identify import read_region, refuse_cluster
from braidstream.replication.ack_watch import EVERY_S as ACKS_EVERY_S
from braidstream.replication.ack_watch import AckWatch
from braidstream.replication.carrier import SETTLE_S, Carrier
from braidstream.replication.deadlines import EVERY_S as DEADLINES_EVERY_S
from braidstream.replication.deadlines import Deadlines
from braidstream.replication.endpoint import PEER_REPLY_BYTES, Endpoint, Pinned, back_off, reason
from braidstream.replication.feed import Feed, all_streams
from braidstream.replication.gate import Durability, Gate
from braidstream.replication.glance import differing
from braidstream.replication.group_lags import EVERY_S as GROUPS_EVERY_S
from braidstream.replication.group_lags import GroupLag, Strays, measure
from braidstream.replication.identity import check_pair, check_region, claim, keep_claim
from braidstream.replication.leases import Leases
from braidstream.replication.link import Link
from braidstream.replication.log_rescue import EVERY_S as RESCUES_EVERY_S
from braidstream.replication.log_rescue import LogRescue
from braidstream.replication.pages import Pages
from braidstream.replication.peer import Peer, is_misconfigured, why_down
from braidstream.replication.queue import Need, Queue
from braidstream.replication.raising import raise_home
from braidstream.replication.reporting import families, group_families, report, rescue_families
from braidstream.replication.skew import watch_clock
from braidstream.replication.takeover import EVERY_S as TAKEOVER_EVERY_S
from braidstream.replication.takeover import Takeover

# How many streams one link works on at once.
AT_ONCE: Final = 32
# How often all streams are compared, and at most which part (1/n) of the time that takes.
SWEEP_S: Final = 30.0
SWEEP_PART: Final = 20
# After a link was up for this long, the backoff starts over.
SOUND_S: Final = 10.0
# How long to wait before a retry after an error of the configuration.
MISCONFIGURED_S: Final = 10.0
# How often to check whether a region has got replicas.
CHOOSE_S: Final = 5.0
# How often to record which process serves the region, and its highest ID.
NOTE_S: Final = 1.0
# The timeout for the measurement of a peer's lag.
MEASURE_WITHIN_S: Final = 2.0
# How often a fence is logged.
FENCED_S: Final = 60.0


class Daemon:
    """`run` ends when it is cancelled. `ready` is set once all streams were compared with every peer."""

    def __init__(self, address: Address, durability: Durability | None = None) -> None:
        self.source = Endpoint(address)
        self.gate = Gate(self.source, durability)
        self._pinned = Pinned(self.gate, self.source)
        self._pages = Pages.of_home(self._pinned)
        self.peers: dict[str, Peer] = {}
        self.leases = Leases(self.source, self._missed)
        self.ready = asyncio.Event()
        self.status: DaemonStatus | None = None
        self.group_lags: list[GroupLag] = []
        self.strays: Strays | None = None
        self._acks = AckWatch(self.source, self._acknowledged)
        self._carrier = Carrier(self.peers, self._acks, Traces())
        self.deadlines = Deadlines(self.source, self.leases.mine)
        self.rescue = LogRescue(self.source, self.gate, self.peers.values, self.leases.mine)
        self.takeover = Takeover(self.source, self.peers.values, self.leases.mine)
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
                self._tasks[name] = asyncio.ensure_future(self._serve(peer))

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
                tasks.create_task(self._repeat(self._acks.look, ACKS_EVERY_S))
                tasks.create_task(self._repeat(self.takeover.look, TAKEOVER_EVERY_S))
                tasks.create_task(self._repeat(self.takeover.act, TAKEOVER_EVERY_S))
                tasks.create_task(self._repeat(self.deadlines.look, DEADLINES_EVERY_S))
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
            *group_families(self.group_lags, self.strays),
            *rescue_families(self.rescue.entries),
        ]

    async def why_not_ready(self) -> str:
        """Empty if the own engine is connected. Peers do not matter: a restart of the daemon would not
        help."""
        return (
            "" if self.source.connected else f"the region's engine at {self.source.address} is not connected"
        )

    # Detecting changes

    async def _listen(self) -> None:
        tries, refused, trouble = 0, "", Repeated()
        clock = asyncio.get_running_loop().time
        while True:
            feed: Feed | None = None
            try:
                await self.source.connect()
                await self._show_alive()
                here = await self.source.run(read_region())
                if was := trouble.over(clock()):
                    emit("source.up", **was)
                self._has_new_peer.clear()
                writers = here.writer, {*here.writers, *(peer.id for peer in self.peers.values())}
                feed = Feed(self.source.address, writers, self._heard, self._arrived, self._missed)
                await _until_one_fails(feed.run(), self.source.watch(), self._has_new_peer.wait())
            except Exception as error:  # also for an unexpected reply
                if feed is None or not isinstance(error, ReplyError):
                    where = "" if isinstance(error, LostError) else f"{self.source.address}: "
                    trouble.log("source.lost", clock(), why=f"{where}{why_down(error)}")
                elif str(error) != refused:  # logged once; the sweeps continue
                    refused = str(error)
                    emit("feed.refused", why=error)
            if feed is not None and feed.is_listening:
                tries, refused = 0, ""
            await back_off(tries)
            tries += 1

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
            except Exception as error:  # an unexpected reply, say: the other jobs go on
                trouble.log("job.failed", clock(), job=work.__qualname__, why=reason(error))
            await asyncio.sleep(pause_s)

    async def _show_alive(self) -> None:
        """Record which process serves the region. If it may generate IDs twice, raise the home strands."""
        async with self._noting:
            links = (peer.link for peer in self.peers.values() if peer.link is not None)
            self._highest_ms = max((link.highest_ms for link in links), default=self._highest_ms)
            waits, fenced = await self.source.run(show_alive(self._highest_ms))
            self._log_fence(fenced)
            if not waits:
                return
            here = await self.source.run(read_region())
            peers = {name: (peer.id, peer.endpoint.address) for name, peer in self.peers.items()}
            without = await raise_home(self.source, here, peers)
            await self.source.run(show_alive(self._highest_ms, raised=True))
            emit("region.ids_raised", region=here.name, without=",".join(without))

    async def _report(self) -> None:
        """Store the state of the links for `braid status`."""
        state = report(self.leases.id, self.gate, self.peers.values(), self.takeover.taken)
        self.status = await self.source.run(state)

    async def _measure_lags(self) -> None:
        await asyncio.gather(*(self._measure_lag(peer) for peer in self.peers.values()))

    async def measure_groups(self) -> None:
        """For /metrics, while they are served: the lag of each group, and strays, round after round."""
        while True:
            try:
                self.group_lags, self.strays = await measure(self.source, self.leases.mine)
            except Exception:  # the engine is lost, or has an odd stream: old values would mislead
                self.group_lags, self.strays = [], None
            await asyncio.sleep(GROUPS_EVERY_S)

    async def _measure_lag(self, peer: Peer) -> None:
        """Measure one peer. If it does not answer, or unexpectedly, it keeps its last value; its link logs
        why."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(MEASURE_WITHIN_S):
                if peer.swept and peer.lag.writer:
                    await peer.lag.measure(self.source, peer.endpoint if peer.link is not None else None)

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
        if more:
            self.deadlines.changes.add(name)
            self.rescue.changes.add(name)
        if self.leases.mine(name):
            for peer in self.peers.values():
                if not peer.takes(name):
                    continue
                if not more:
                    peer.lag.changed(name)
                if peer.link is not None:  # else the next link starts with a sweep
                    if more:
                        peer.queue.add(name, Need.SYNC)
                    else:
                        peer.fresh.add(name, Need.FOLLOW)

    def _arrived(self, strand: Strand) -> None:
        if self.leases.mine(strand.name):
            self._acks.add([strand])

    def _acknowledged(self, name: bytes) -> bool:
        """Groups of a quiet stream moved. False if a link is busy: report it again later."""
        links = [peer for peer in self.peers.values() if peer.link is not None and peer.takes(name)]
        idle = [peer for peer in links if len(peer.queue) < AT_ONCE]
        for peer in idle:
            peer.queue.add(name, Need.SYNC)
        return len(idle) == len(links)

    def _missed(self) -> None:
        """Pushes may have been missed: sweep over all streams, for all peers."""
        for peer in self.peers.values():
            peer.sweep.set()
        self.deadlines.changes.missed()
        self.rescue.changes.missed()

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
                ends = self._pin(), Pinned(peer.endpoint, peer.endpoint)
                peer.fresh, peer.queue = Queue(), Queue()
                link = Link(*ends, here=here, there=there, pages=self._pages)
                peer.up(link)
                peer.sweep.set()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(peer.endpoint.watch())
                    tasks.create_task(self._sweep(peer, link))
                    tasks.create_task(keep_claim(peer.endpoint, here))
                    tasks.create_task(watch_clock(self.source, peer.endpoint, there, peer.note_clock))
                    for _ in range(AT_ONCE):
                        tasks.create_task(self._carrier.carry(peer, link, peer.fresh))
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

    def _pin(self) -> Pinned:
        """The own engine on its present connection. All links on it share pages."""
        if not self._pinned.lasts:
            self._pinned = Pinned(self.gate, self.source)
            self._pages = Pages.of_home(self._pinned)
        return self._pinned

    async def _introduce(self, peer: Peer) -> tuple[Region, Region]:
        """Check both regions, and exchange their writers."""
        await self.source.as_own(self._show_alive())
        here = await self.source.as_own(self.source.run(read_region()))
        await peer.endpoint.run(refuse_cluster())
        there = await peer.endpoint.run(read_region())
        check_region(there, (peer.id, peer.name), peer.endpoint.address)
        check_pair(here, there)
        await claim(peer.endpoint, here)
        here = await self.source.as_own(self.source.run(meet(there.writers)))
        return here, await peer.endpoint.run(meet(here.writers))

    async def _sweep(self, peer: Peer, link: Link) -> None:
        """Compare all streams: when the link comes up, after missed pushes, and at intervals."""
        clock = asyncio.get_running_loop().time
        await self.leases.known.wait()
        while True:
            peer.sweep.clear()
            began = clock()
            link.here = await self.source.as_own(self.source.run(read_region()))
            check_pair(link.here, await peer.endpoint.run(read_region()))  # or it was removed meanwhile
            async for names in all_streams(self.source):
                mine = [name for name in names if self.leases.mine(name) and peer.takes(name)]
                for name in await differing(mine, link.here.writers, self.source, peer.endpoint):
                    peer.queue.add(name, Need.RELAY)
                    peer.lag.changed(name)
                while peer.queue.relays > 10 * AT_ONCE:
                    await asyncio.sleep(SETTLE_S / 10)
            emit("link.swept", peer=peer.name)
            peer.swept = True
            if all(each.swept for each in self.peers.values()):
                self.ready.set()
            try:
                async with asyncio.timeout(max(SWEEP_S, SWEEP_PART * (clock() - began))):
                    await peer.sweep.wait()
            except TimeoutError:
                pass


async def _until_one_fails(*works: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    """The first of several errors: the others follow from it."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
