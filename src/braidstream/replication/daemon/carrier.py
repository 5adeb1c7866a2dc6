"""Takes streams from the queues of a peer, replicates them, and schedules the next check.

    a push of the registry or the journal, an acknowledgement, a sweep  --->  compare at once
    new entries  --->  send them in a bundle or alone (replication/link/link.py), and compare later:
                       in 0.1 s if few streams wait for that
                       `--> else spaced, so that a link makes about CHECKS such comparisons a second

A comparison costs about as much as a visit that sends one entry. Those after new entries bring trims, and
what the others have missed. A sweep finds that too: if it comes first, the comparison is left to it.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from braidstream.errors import LostError
from braidstream.model import ids, keys
from braidstream.model.journal import KEPT, KEPT_MS
from braidstream.observability.events import Repeated, emit
from braidstream.observability.traces import Traces
from braidstream.plan.plan import send_one
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.daemon.queue import AT_ONCE, Need, Queue
from braidstream.replication.detect.acks import AckWatch
from braidstream.replication.detect.sweep import SWEEP_S
from braidstream.replication.endpoint import reason
from braidstream.replication.link.flow import Progress
from braidstream.replication.link.region_link import RegionLink

# After new entries, when to check for changes without a push: trims and acknowledgements.
SETTLE_S: Final = 0.1
# If more than AT_ONCE streams wait for that, how many are checked in a second.
CHECKS: Final = 50
REFUSED_S: Final = 1.0
# The most streams of a bundle, and how many bundles a link has at once: a bundle waits for the gate.
BUNDLE_STREAMS: Final = 500
BUNDLES: Final = 8


@dataclass(frozen=True, slots=True)
class Carrier:
    """peers: all of the daemon, by name. acks: streams whose groups have pending entries."""

    peers: Mapping[str, Peer]
    acks: AckWatch
    traces: Traces

    async def bundle(self, peer: Peer, link: RegionLink) -> None:
        """Send new entries of many streams together until the link is lost, and make first visits. Streams
        that must go alone are left to `carry`."""
        clock, trouble = asyncio.get_running_loop().time, Repeated()
        while True:
            needs = dict(await peer.fresh.take_some(BUNDLE_STREAMS))
            began = time.perf_counter()
            done = dict[bytes, Progress]()
            try:
                done = await link.follow_some(
                    name
                    for name, need in needs.items()
                    if peer.takes(name) and (need is Need.FOLLOW or not link.has_met(name))
                )
            except LostError:
                raise
            except Exception as error:  # an unexpected reply: all go alone, and one of them gets the error
                trouble.log("job.failed", clock(), job="bundle", why=reason(error))
            finally:
                for name in needs:
                    peer.fresh.done(name)
            for name, need in needs.items():
                if (progress := done.get(name)) is not None:
                    self._again(peer, name, Need.FOLLOW, progress, began)
                else:
                    (peer.alone if need is Need.FOLLOW else peer.queue).add(name, need)

    async def carry(self, peer: Peer, link: RegionLink, queue: Queue) -> None:
        """Work on one queue until the link is lost. An error of one stream holds up no other."""
        while True:
            name, need = await queue.take()
            if not peer.takes(name):  # not any more
                queue.done(name)
                continue
            added, began = self.acks.added, time.perf_counter()
            try:
                if need is Need.FOLLOW:
                    progress = await link.follow(name)
                else:
                    progress = await link.sync(name, relay=need is Need.RELAY)
                    await self._trim_journal(link, name, progress)
                if need is not Need.FOLLOW and not progress.restless:
                    self.acks.discard(name, added)
                self._again(peer, name, need, progress, began)
            except Exception as error:  # lost, refused, or an unexpected reply
                if link.goes_on(name, error):  # a node is lost: that is logged once, not for each stream
                    peer.queue.add(name, max(need, Need.SYNC), peer.later(name, SETTLE_S))
                    continue
                if isinstance(error, LostError):
                    raise
                peer.queue.add(name, Need.SYNC, peer.later(name, REFUSED_S))
                peer.refuse(name, error)
            finally:
                queue.done(name)

    def _again(self, peer: Peer, name: bytes, need: Need, progress: Progress, began: float) -> None:
        """Log what was sent, and schedule the next check of the stream."""
        if progress.entries:
            emit("link.shipped", peer=peer.name, stream=name, entries=progress.entries)
            if self.traces.enabled:
                self.traces.replicated(name, peer.name, progress.entries, began)
        if progress.trimmed:
            peer.note_trim(name)
        moved, waits = need is Need.FOLLOW or progress.moved, progress.restless or progress.waiting
        if progress.restless:
            self.acks.add(progress.strands)
        if moved or not waits:
            peer.restless.pop(name, None)
        if moved or waits:
            delay_s = 0.0 if progress.waiting else spacing_s(len(peer.queue))
            if delay_s < SWEEP_S:
                peer.queue.add(name, Need.SYNC, max(delay_s, peer.later(name, SETTLE_S)))

    def refused(self, peer: Peer, name: bytes) -> None:
        """Entries did not arrive that `follow` had sent. A sync that runs gets the error itself."""
        if not peer.queue.is_taken(name):
            peer.queue.add(name, Need.SYNC, SETTLE_S)

    async def _trim_journal(self, link: RegionLink, name: bytes, progress: Progress) -> None:
        """Trim from our journal what every peer has applied and is old; the last such entry stays as a mark.

        Only if all links use the same connection to our engine. After it was lost, another server may have
        taken over, and a link that has not looked for losses yet needs the journal for that (search.py).
        """
        journal, old_ms = progress.journal, round(time.time() * 1000) - KEPT_MS
        if journal is None or journal.length < 2 or journal.first is None:
            return
        if journal.length <= KEPT and journal.first[0] >= old_ms:
            return
        links, source = [peer.link for peer in self.peers.values()], link.source_of(name)
        if source is None:
            return
        done = min(
            each.applied(name) if each is not None and each.source_of(name) is source else ids.ZERO
            for each in links
        )
        if journal.length <= KEPT:
            done = min(done, (old_ms, 0))
        if done > journal.first:
            await source.run(
                send_one(("XTRIM", keys.journal(name, link.here.writer), "MINID", "=", ids.text(done)))
            )


def spacing_s(waiting: int) -> float:
    """How long a check waits at least, if `waiting` streams wait for one."""
    return max(0, waiting - AT_ONCE) / CHECKS
