"""Carries out retention policies on this region's streams (operations/retention_trim.py).

Every region's daemons do it, each for the streams of its leases, once a minute, and at once when a policy is
set. Streams that have more than half of their max-bytes are looked at every few seconds. Nothing is stored:
what is too old is read from the streams. Policies are read in all regions that answer: a region that was away
may know only one that was taken back meanwhile.

Measured over 10,000 streams with nothing to remove: a look takes 0.57 to 0.68 s of the daemon's CPU and 0.07
to 0.10 s of the engine's. Without policies it takes none.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.retention_policy import STREAM, Policies, Policy
from braidstream.observability.events import Repeated, emit
from braidstream.observability.metrics import Family
from braidstream.operations.retention_trim import Due, find_due, read_entries, trim_step
from braidstream.plan.ask_peers import Needs
from braidstream.plan.lookup import read_ms
from braidstream.plan.view import View
from braidstream.replication.answer_peers import WITHIN_S, ask_peers
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.detect.feed import all_streams
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.region_facts import region_of

EVERY_S: Final = 60.0
# How often to look at streams that may reach their max-bytes before that.
NEAR_S: Final = 5.0
# How long a daemon that has just started waits for links to all peers. Then it believes its own region.
_MEET_WITHIN_S: Final = 60.0
# At most which part (1/n) of a core looking takes: over 10,000 streams a look takes most of a second.
_PART: Final = 100
# How soon to look again while there is more to remove than one look removes.
_AGAIN_S: Final = 1.0
# How many steps of a stream are carried out before other streams have their turn.
_STEPS: Final = 20
_STREAMS_AT_ONCE: Final = 500
# For what a stream waits, if a peer has a later policy for it.
_NEWER: Final = "a later policy of another region to arrive"
# How many streams that wait are named, in events and `braid status`.
NAMED: Final = 20


class Retention:
    """`changed` is called for pushes, `look` again and again. removed: entries since the daemon started.

    waits: streams with entries that are too old, or too many, and for what they wait.
    """

    def __init__(
        self, source: Endpoint, peers: Callable[[], Iterable[Peer]], is_mine: Callable[[bytes], bool]
    ) -> None:
        self._source, self._peers, self._is_mine = source, peers, is_mine
        self.removed = 0
        self.waits = dict[bytes, str]()
        self._looked_s, self._began_s = float("-inf"), float("inf")
        self._pause_s, self._has_more, self._has_met = EVERY_S, False, False
        # Streams that have more than half of their max-bytes.
        self._near = dict[bytes, Policy]()
        self._near_looked_s, self._near_pause_s = float("-inf"), NEAR_S
        self._refused = dict[bytes, Repeated]()
        self._wrong: tuple[str, ...] = ()

    def changed(self, name: bytes) -> None:
        """A stream has new entries: if they are policies, look at once."""
        if name == STREAM:
            self._looked_s = float("-inf")

    @property
    def shown(self) -> dict[str, str]:
        """For `braid status`."""
        return {_text(name): why for name, why in [*self.waits.items()][:NAMED]}

    @property
    def families(self) -> list[Family]:
        """For /metrics."""
        removed = "Entries that retention policies have removed from this region's server."
        waiting = "Streams with entries that a retention policy would remove, if no group needed them."
        return [
            Family.counter("braid_retention_removed_total", removed, {(): self.removed}),
            Family.gauge("braid_retention_waiting_streams", waiting, {(): len(self.waits)}),
        ]

    async def look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._began_s = min(self._began_s, now_s)
        if self._must_meet(now_s):
            return
        if now_s - self._looked_s >= self._pause_s:
            await self._look_at_all(now_s)
        elif self._near and now_s - self._near_looked_s >= self._near_pause_s:
            await self._look_at_near(now_s)

    async def _look_at_all(self, now_s: float) -> None:
        self._looked_s, self._pause_s, self._has_more = now_s, EVERY_S, False
        began_cpu_s = time.process_time()
        here = await region_of(self._source)
        try:
            policies, everywhere = await self._read_policies(here)
        except ReplyError as error:
            self._refuse(STREAM, error)
            return
        self._refused.pop(STREAM, None)
        self._log_wrong(policies)
        self._near = {}
        waits = dict[bytes, str]()
        if policies.by_streams:
            await self._carry_out(here, policies, everywhere, waits)
        self._note(waits)
        self._pause_s = self._until_next(began_cpu_s, EVERY_S)
        self._near_looked_s, self._near_pause_s = now_s, NEAR_S

    async def _look_at_near(self, now_s: float) -> None:
        self._near_looked_s, self._has_more = now_s, False
        began_cpu_s = time.process_time()
        here = await region_of(self._source)
        near, self._near = {name: each for name, each in self._near.items() if self._is_mine(name)}, {}
        waits = {name: why for name, why in self.waits.items() if name not in near}
        names = [*near]
        try:
            for first in range(0, len(names), _STREAMS_AT_ONCE):
                some = names[first : first + _STREAMS_AT_ONCE]
                await self._look_at(here, {name: near[name] for name in some}, waits)
        except BraidError as error:
            self._near |= near
            if not self._source.spares(error):
                raise
        self._note(waits)
        self._near_pause_s = self._until_next(began_cpu_s, NEAR_S)

    def _note(self, waits: dict[bytes, str]) -> None:
        for name in [*waits.keys() - self.waits.keys()][:NAMED]:
            emit("retention.waits", stream=name, why=waits[name])
        self.waits = waits

    def _until_next(self, began_cpu_s: float, every_s: float) -> float:
        spent_s = time.process_time() - began_cpu_s
        return _AGAIN_S if self._has_more else max(every_s, _PART * spent_s)

    def _must_meet(self, now_s: float) -> bool:
        """Whether to wait for the first links to all peers: they may know of newer policies."""
        has_all = all(peer.link is not None and peer.clock_ms is not None for peer in self._knowing())
        self._has_met = self._has_met or has_all
        return not self._has_met and now_s - self._began_s < _MEET_WITHIN_S

    def _knowing(self) -> list[Peer]:
        return [peer for peer in self._peers() if peer.takes(STREAM)]

    def _ahead_ms(self) -> int:
        """How far this region's clock is ahead of the slowest: by a wrong one everything would be too old."""
        linked = [peer for peer in self._peers() if peer.link is not None]
        return max([0, *(-(peer.clock_ms or 0) for peer in linked)])

    async def _read_policies(self, here: Region) -> tuple[Policies, Policies]:
        """Those of this region, and what they will be when those of the peers have arrived."""

        async def ask(peer: Peer) -> dict[Id, list[bytes]]:
            if peer.link is None:
                return {}
            try:
                async with asyncio.timeout(WITHIN_S):
                    entries = await peer.endpoint.run(read_entries(View(peer.link.there)))
                Policies.of_entries(entries.items())
            except Exception:  # also for an unexpected reply; its link says what is wrong
                return {}
            return entries

        own = await self._source.run(read_entries(View(here)))
        found = dict[Id, list[bytes]]()
        for more in await asyncio.gather(*map(ask, self._knowing())):
            found |= more
        return Policies.of_entries(own.items()), Policies.of_entries((found | own).items())

    async def _carry_out(
        self, here: Region, policies: Policies, everywhere: Policies, waits: dict[bytes, str]
    ) -> None:
        try:
            async for names in all_streams(self._source):
                for first in range(0, len(names), _STREAMS_AT_ONCE):
                    some = names[first : first + _STREAMS_AT_ONCE]
                    mine = {
                        name: each for name in some if self._is_mine(name) and (each := policies.of(name))
                    }
                    if policies.by_streams != everywhere.by_streams:
                        # A peer's policy counts when it has arrived: only then did it have the right to.
                        newer = {name for name, policy in mine.items() if everywhere.of(name) != policy}
                        waits.update(dict.fromkeys(newer, _NEWER))
                        mine = {name: policy for name, policy in mine.items() if name not in newer}
                    if mine:
                        await self._look_at(here, mine, waits)
        except BraidError as error:
            if not self._source.spares(error):
                raise

    async def _look_at(self, here: Region, mine: dict[bytes, Policy], waits: dict[bytes, str]) -> None:
        now_ms = await self._source.run(read_ms()) - self._ahead_ms()
        found, near = await self._source.run(find_due(mine, now_ms))
        self._near |= {name: mine[name] for name in near}
        for due in found:
            try:
                if why := await self._trim(here, due, now_ms):
                    waits[due.name] = why
                self._refused.pop(due.name, None)
            except ReplyError as error:  # this stream has to wait, and the others go on
                self._refuse(due.name, error)
            except BraidError as error:
                if not self._source.spares(error):
                    raise

    async def _trim(self, here: Region, due: Due, now_ms: int) -> str:
        """Some steps. Returns for what the rest waits."""
        needs = Needs()
        if due.policy.acked and here.peers:
            needs = await ask_peers(due.name, here, self._peers(), due.reply, due.registry.strands)
        for _ in range(_STEPS):
            step = await self._source.run(trim_step(due, needs, now_ms))
            self.removed += step.removed
            if not step.removed:
                return step.waits
        self._has_more = True
        return ""

    def _refuse(self, name: bytes, error: ReplyError) -> None:
        trouble = self._refused.setdefault(name, Repeated())
        trouble.log("retention.refused", asyncio.get_running_loop().time(), stream=name, why=error.text)

    def _log_wrong(self, policies: Policies) -> None:
        for why in policies.refused if policies.refused != self._wrong else ():
            emit("retention.refused", stream=STREAM, why=why)
        self._wrong = policies.refused


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
