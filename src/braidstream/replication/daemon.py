"""One region's daemon: hears what changed here, and pushes it to every peer.

    own engine --- Feed --+--> Queue of peer 2 ---> Link to 2 ---> engine of region 2
                          `--> Queue of peer 3 ---> Link to 3 ---> engine of region 3

Nothing here is worth keeping. A process that is killed is replaced by another one, which sweeps.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.admin.membership import meet, show_alive
from braidstream.errors import BraidError, ConfigError, LostError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.region_config import Region
from braidstream.net.wire import Address
from braidstream.observability.events import emit
from braidstream.protocol.identify import read_region, refuse_cluster
from braidstream.protocol.plan import send_one
from braidstream.replication.endpoint import PEER_REPLY_BYTES, Endpoint, Pinned, back_off, reason
from braidstream.replication.feed import Feed, all_streams
from braidstream.replication.gate import Durability, Gate
from braidstream.replication.glance import differing
from braidstream.replication.identity import check_pair, check_region, claim, keep_claim
from braidstream.replication.leases import Leases
from braidstream.replication.link import Link, Progress
from braidstream.replication.pages import Pages
from braidstream.replication.queue import Need, Queue
from braidstream.replication.raising import raise_home
from braidstream.replication.skew import watch_clock

# How many streams one link works on at once.
AT_ONCE: Final = 32
# After new entries, when to look at what pushes do not tell: trims and acknowledgements.
SETTLE_S: Final = 0.1
RESTLESS_S: Final = 5.0
# All streams are compared now and then, and that takes at most a part of the time.
SWEEP_S: Final = 30.0
SWEEP_PART: Final = 20
REFUSED_S: Final = 1.0
# A link that was up for so long was sound: when it ends, the next try comes soon.
SOUND_S: Final = 10.0
# A fault of the configuration is told again and again, but not often.
MISCONFIGURED_S: Final = 10.0
# How often a region without replicas is asked whether it has one now.
CHOOSE_S: Final = 5.0
# How often we note which process serves the region, and how far its IDs are.
NOTE_S: Final = 1.0
# How often a fence is told.
FENCED_S: Final = 60.0


@dataclass(slots=True)
class Peer:
    """A peer, the link to it while it is up, and the streams that wait for the link.

    fresh: those that got entries. They are followed while others, or the same, are looked at as a whole.
    refused, told_s: refusals since we told of one, and when that was.
    """

    id: int
    name: str
    endpoint: Endpoint
    link: Link | None = None
    fresh: Queue = field(default_factory=Queue)
    queue: Queue = field(default_factory=Queue)
    sweep: asyncio.Event = field(default_factory=asyncio.Event)
    swept: bool = False
    journals: dict[bytes, Id] = field(default_factory=dict)
    restless: dict[bytes, float] = field(default_factory=dict)
    refused: int = 0
    told_s: float = 0.0

    def later(self, name: bytes, first_s: float) -> float:
        """When to look at a stream again that keeps us waiting: later each time, up to a cap."""
        delay = self.restless[name] = min(RESTLESS_S, 2 * self.restless.get(name, first_s / 2))
        return delay


class Daemon:
    """`run` ends when it is cancelled. `ready` is set once every peer was reached and looked at."""

    def __init__(self, address: Address, durability: Durability | None = None) -> None:
        self.source = Endpoint(address)
        self.gate = Gate(self.source, durability)
        self._pinned = Pinned(self.gate, self.source)
        self._pages = Pages(self._pinned)
        self.peers: dict[str, Peer] = {}
        self.leases = Leases(self.source, self._missed)
        self.ready = asyncio.Event()
        self._noting = asyncio.Lock()
        self._highest_ms = 0
        self._fence_told_s = -FENCED_S
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def set_peers(self, peers: dict[str, tuple[int, Address]]) -> None:
        """These are the peers from now on: number and address by name. To be called while `run` runs."""
        for name, peer in [*self.peers.items()]:
            if (peer.id, peer.endpoint.address) != peers.get(name):
                self._tasks.pop(name).cancel()
                self.peers.pop(name).endpoint.close()
        for name, (number, address) in peers.items():
            if name not in self.peers:
                self.peers[name] = peer = Peer(number, name, Endpoint(address, PEER_REPLY_BYTES))
                self._tasks[name] = asyncio.ensure_future(self._serve(peer))

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen())
                tasks.create_task(self.leases.run())
                tasks.create_task(self._again_and_again(self.gate.choose, CHOOSE_S))
                tasks.create_task(self._again_and_again(self._show_alive, NOTE_S))
        finally:
            for task in self._tasks.values():
                task.cancel()
            await self.leases.release()
            self.gate.close()
            self.source.close()

    # Hearing

    async def _listen(self) -> None:
        tries, refused = 0, ""
        while True:
            feed: Feed | None = None
            try:
                await self.source.connect()
                await self._show_alive()
                here = await self.source.run(read_region())
                feed = Feed(self.source.address, (here.writer,), self._heard, self._missed)
                await _until_one_fails(feed.run(), self.source.watch())
            except Exception as error:  # also a reply that nobody understands
                if feed is None or not isinstance(error, ReplyError):
                    emit("source.lost", why=reason(error))
                elif str(error) != refused:  # said once; the sweeps go on meanwhile
                    refused = str(error)
                    emit("feed.refused", why=error)
            if feed is not None and feed.is_listening:
                tries, refused = 0, ""
            await back_off(tries)
            tries += 1

    async def _again_and_again(self, look: Callable[[], Awaitable[None]], pause_s: float) -> None:
        """Look at the own engine. That it cannot be reached is told by `_listen`."""
        while True:
            with contextlib.suppress(BraidError):
                await self.source.connect()
                await look()
            await asyncio.sleep(pause_s)

    async def _show_alive(self) -> None:
        """Note which process serves the region. If it may give out IDs again, see to it that it does not."""
        async with self._noting:
            links = (peer.link for peer in self.peers.values() if peer.link is not None)
            self._highest_ms = max((link.highest_ms for link in links), default=self._highest_ms)
            waits, fenced = await self.source.run(show_alive(self._highest_ms))
            self._tell_fence(fenced)
            if not waits:
                return
            here = await self.source.run(read_region())
            peers = {name: (peer.id, peer.endpoint.address) for name, peer in self.peers.items()}
            without = await raise_home(self.source, here, peers)
            await self.source.run(show_alive(self._highest_ms, raised=True))
            emit("region.ids_raised", region=here.name, without=",".join(without))

    def _tell_fence(self, fenced: bool) -> None:
        """The region may be fenced under a running daemon: by a backup that was made during a rejoin."""
        now = asyncio.get_running_loop().time()
        if not fenced:
            self._fence_told_s = -FENCED_S
        elif now - self._fence_told_s >= FENCED_S:
            self._fence_told_s = now
            emit("region.fenced", server=self.source.address)

    def _heard(self, name: bytes, more: bool) -> None:
        if self.leases.mine(name):
            for peer in self.peers.values():
                if peer.link is not None:  # else everything is looked at when it is up again
                    if more:
                        peer.queue.add(name, Need.SYNC)
                    else:
                        peer.fresh.add(name, Need.FOLLOW)

    def _missed(self) -> None:
        """Something may have changed unheard: look at all streams, for all peers."""
        for peer in self.peers.values():
            peer.sweep.set()

    # Telling

    async def _serve(self, peer: Peer) -> None:
        """Keep the link to one peer up, as long as it is one.

        Whatever goes wrong ends this link only, and it is tried again: other peers are none the worse.
        """
        tries, clock = 0, asyncio.get_running_loop().time
        while self.peers.get(peer.name) is peer:  # a failure in the same moment may swallow a cancellation
            began, pause_s = clock(), 0.0
            try:
                await self.source.connect()
                await peer.endpoint.connect()
                here, there = await self._introduce(peer)
                ends = self._pin(), Pinned(peer.endpoint, peer.endpoint)
                peer.fresh, peer.queue = Queue(), Queue()
                peer.link = Link(*ends, here=here, there=there, pages=self._pages)
                peer.sweep.set()
                emit("link.up", peer=peer.name)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(peer.endpoint.watch())
                    tasks.create_task(self._sweep(peer, peer.link))
                    tasks.create_task(keep_claim(peer.endpoint, here))
                    tasks.create_task(
                        watch_clock(self.source, peer.endpoint, peer=peer.name, writer=there.writer)
                    )
                    for _ in range(AT_ONCE):
                        tasks.create_task(self._carry(peer, peer.link, peer.fresh))
                        tasks.create_task(self._carry(peer, peer.link, peer.queue))
            except* ConfigError as errors:
                _tell_end(peer.name, _first(errors))
                pause_s = MISCONFIGURED_S
            except* Exception as errors:
                _tell_end(peer.name, _first(errors))
            finally:
                peer.link = None
                peer.endpoint.close()
            tries = 0 if clock() - began > SOUND_S else tries + 1
            await asyncio.sleep(pause_s)
            await back_off(tries)

    def _pin(self) -> Pinned:
        """The own engine on its present connection; all links on it share the pages that they read."""
        if not self._pinned.lasts:
            self._pinned = Pinned(self.gate, self.source)
            self._pages = Pages(self._pinned)
        return self._pinned

    async def _introduce(self, peer: Peer) -> tuple[Region, Region]:
        """Both regions, each knowing the other's writers."""
        await self._show_alive()
        here = await self.source.run(read_region())
        await peer.endpoint.run(refuse_cluster())
        there = await peer.endpoint.run(read_region())
        check_region(there, (peer.id, peer.name), peer.endpoint.address)
        check_pair(here, there)
        await claim(peer.endpoint, here)
        here = await self.source.run(meet(there.writers))
        return here, await peer.endpoint.run(meet(here.writers))

    async def _sweep(self, peer: Peer, link: Link) -> None:
        """All streams: when the link comes up, when something may have been missed, and now and then."""
        clock = asyncio.get_running_loop().time
        await self.leases.known.wait()
        while True:
            peer.sweep.clear()
            began = clock()
            link.here = await self.source.run(read_region())
            check_pair(link.here, await peer.endpoint.run(read_region()))  # or it was removed meanwhile
            async for names in all_streams(self.source):
                mine = [*filter(self.leases.mine, names)]
                for name in await differing(mine, link.here.writers, self.source, peer.endpoint):
                    peer.queue.add(name, Need.RELAY)
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

    async def _carry(self, peer: Peer, link: Link, queue: Queue) -> None:
        """Take a stream, bring it over, and see when it wants to be looked at again."""
        while True:
            name, need = await queue.take()
            try:
                if need is Need.FOLLOW:
                    progress = await link.follow(name)
                else:
                    progress = await link.sync(name, relay=need is Need.RELAY)
                    await self._trim_journal(peer, name, progress)
                self._again(peer, name, need, progress)
            except LostError:
                raise
            except Exception as error:  # refused, or a reply that nobody understands
                self._refused(peer, name, error)
            finally:
                queue.done(name)

    def _refused(self, peer: Peer, name: bytes, error: Exception) -> None:
        """Try again, later each time; one line a second, however many streams a full peer refuses."""
        peer.queue.add(name, Need.SYNC, peer.later(name, REFUSED_S))
        peer.refused += 1
        now = asyncio.get_running_loop().time()
        if now - peer.told_s >= REFUSED_S:
            emit("link.refused", peer=peer.name, stream=name, times=peer.refused, why=reason(error))
            peer.told_s, peer.refused = now, 0

    def _again(self, peer: Peer, name: bytes, need: Need, progress: Progress) -> None:
        if progress.entries:
            emit("link.shipped", peer=peer.name, stream=name, entries=progress.entries)
        moved, waits = need is Need.FOLLOW or progress.moved, progress.restless or progress.waiting
        if moved or not waits:
            peer.restless.pop(name, None)
        if moved or waits:
            peer.queue.add(name, Need.SYNC, peer.later(name, SETTLE_S))

    async def _trim_journal(self, peer: Peer, name: bytes, progress: Progress) -> None:
        """What every peer has done of our journal goes; the last such entry stays as a mark."""
        if progress.journal == ids.ZERO or peer.journals.get(name) == progress.journal or peer.link is None:
            return
        peer.journals[name] = progress.journal
        done = min(each.journals.get(name, ids.ZERO) for each in self.peers.values())
        if done > ids.ZERO:
            journal = keys.journal(name, peer.link.here.writer)
            await self.source.run(send_one(("XTRIM", journal, "MINID", "=", ids.text(done))))


async def _until_one_fails(*works: Coroutine[Any, Any, None]) -> None:
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


def _tell_end(peer: str, error: Exception) -> None:
    """Why a link has ended."""
    event = "link.lost" if isinstance(error, LostError) else "link.failed"
    emit("peer.misconfigured" if isinstance(error, ConfigError) else event, peer=peer, why=reason(error))
