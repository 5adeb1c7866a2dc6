"""Automatic take-over: if a region's heartbeat stops, another one delivers for it, to groups of scope ONCE.

    every second    our own beat rises; beats are exchanged with every peer that we reach (model/region.py),
                    so a region that any of them reaches counts as alive
    beat stops      after `takeover_after_s`: the live region with the smallest number, of those that exchange
                    the stream, takes what the dead region owned, if it sees at least half of the regions
    beat is back    for `takeover_after_s` without a gap: what was taken is given back (XGROUP GIVE)

The registry says what was taken automatically (lua/scope.lua), so the daemon stores nothing else. Streams are
read only when a region dies or comes back. Without `takeover_after_s` none of this happens.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from braidstream.commands.xgroup import change_scope
from braidstream.config import Selection
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.model.keys import BEATS
from braidstream.model.region import Beat, Pulses, Region, newer, read_beats
from braidstream.model.registry import Registry, Scope, parse_each
from braidstream.model.strand import Command
from braidstream.observability.events import emit
from braidstream.plan.lookup import info_facts, ms_of, registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from braidstream.replication.daemon.peer import Peer, apart
from braidstream.replication.detect.feed import all_streams
from braidstream.replication.endpoint import Endpoint, is_away
from braidstream.replication.region_facts import WITHIN_S, ask_nodes, region_of

T = TypeVar("T")

EVERY_S: Final = 1.0
# While a region is dead, how often to look for groups that were created since; at least `takeover_after_s`.
_AGAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Duty:
    """dead: regions whose strands another one has to deliver; empty if too few regions are seen.
    alive: the others. steady: regions that get theirs back."""

    dead: frozenset[int] = frozenset()
    alive: frozenset[int] = frozenset()
    steady: frozenset[int] = frozenset()

    def dead_for(self, own: int, away: set[int]) -> frozenset[int]:
        """Whose strands of a stream this region has to deliver: it has the smallest number of those alive.

        away: regions that do not exchange the stream. They deliver what they have by themselves.
        """
        is_first = own < min(self.alive - away, default=own + 1)
        return self.dead - away if is_first else frozenset()


def duty_of(here: Region, pulses: Pulses, now_s: float) -> Duty:
    """What this region has to do, as far as it can see."""
    others = {*here.writers} - {here.writer, *here.left}
    known, alive = pulses.known(others), pulses.alive(others, now_s)
    sees_half = 2 * (len(alive) + 1) >= len(known) + 1
    dead = known - alive if sees_half else set[int]()
    return Duty(frozenset(dead), frozenset(alive), frozenset(pulses.steady(others, now_s)))


class Takeover:
    """`look` and `act` are called again and again. after_s: None turns it off.

    taken: regions whose strands this region delivers by itself, and in how many groups.
    """

    def __init__(
        self,
        source: Endpoint,
        peers: Callable[[], Iterable[Peer]],
        is_mine: Callable[[bytes], bool],
        after_s: float | None = None,
    ) -> None:
        self._source, self._peers, self._is_mine = source, peers, is_mine
        self.after_s = after_s
        self.taken: dict[int, int] = {}
        self._pulses: Pulses | None = None
        self._beats: dict[int, Beat] = {}  # of the last look
        self._is_off = False
        self._looked_s = 0.0
        # What was last seen, what was last done, and whether a part of that was refused.
        self._here: Region | None = None
        self._duty = self._done = Duty()
        self._has_failed = False
        self._has_more = False
        self._again_s = 0.0

    def missed(self) -> None:
        """There may be streams that were not looked at: this daemon is responsible for more of them now."""
        self._has_more = True

    @property
    def dead(self) -> frozenset[int]:
        """The silent regions; none if this one has not looked lately, or does not take over."""
        return self._duty.dead if self._has_looked else frozenset()

    def dead_for(self, here: Region, name: bytes) -> frozenset[int]:
        """The silent regions for which this one acts on a stream."""
        return self._duty.dead_for(here.writer, apart(self._peers(), name)) if self.dead else frozenset()

    def is_first(self, here: Region, name: bytes) -> bool:
        """Whether this region has the smallest number of those that exchange a stream and are not silent."""
        away = apart(self._peers(), name)
        return here.writer == min({*here.writers} - away - self.dead_for(here, name), default=0)

    @property
    def _has_looked(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return (
            self.after_s is not None and self._here is not None and now_s - self._looked_s <= self.after_s / 2
        )

    async def look(self) -> None:
        """Beat, and see which regions do."""
        if self.after_s is None and self._is_off:
            return
        if self.after_s is None:
            here, (stored, _) = await region_of(self._source), await self._source.run(_read())
            await self._turn_off(here.writer, stored)
            return
        here, (own, now_ms) = await asyncio.gather(region_of(self._source), self._read_own())
        stored = self._beats if own is None else own
        self._is_off = False
        last_ms = stored[here.writer].ms if here.writer in stored else 0
        beats = {**stored, here.writer: Beat(max(now_ms, last_ms + 1))}
        for theirs in await asyncio.gather(*(_exchange(peer, beats) for peer in self._peers())):
            listed = {region: beat for region, beat in theirs.items() if region in here.writers}
            beats |= newer(listed, beats)
        self._beats = beats
        if own is not None:
            await self._unless_lost(self._source.run(_write(newer(beats, stored))))
        self._here, self._duty = here, self._note(here, beats, self.after_s)
        self._looked_s = asyncio.get_running_loop().time()

    async def _read_own(self) -> tuple[dict[int, Beat] | None, int]:
        """The own beats and the time. No beats while the node of a cluster that has them is lost or hangs:
        the region beats on from the last ones, in its peers. An error if the cluster as a whole is down."""
        if not self._source.is_cluster:
            return await self._source.run(_read())
        reading = self._unless_lost(self._source.run(_read()))
        found, now_ms = await asyncio.gather(reading, _ms_of_running(self._source))
        return (None if found is None else found[0]), now_ms

    async def _unless_lost(self, work: Awaitable[T]) -> T | None:
        """The result; None if one node of a cluster is lost, or the server does not answer soon."""
        try:
            async with asyncio.timeout(WITHIN_S):
                return await work
        except TimeoutError:
            return None
        except BraidError as error:
            if not self._source.spares(error):
                raise
            return None

    def _note(self, here: Region, beats: dict[int, Beat], after_s: float) -> Duty:
        now_s = asyncio.get_running_loop().time()
        if self._pulses is None:
            self._pulses = Pulses(after_s)
        elif now_s - self._looked_s > after_s / 2:  # suspended, or the own engine was lost
            self._pulses.begin_again(now_s)
        self._pulses.after_s = after_s
        self._pulses.note(beats, now_s)
        return duty_of(here, self._pulses, now_s)

    async def _turn_off(self, own: int, stored: dict[int, Beat]) -> None:
        """Tell the others once that the silence of this region means nothing."""
        self._pulses, self.taken, self._has_failed = None, {}, False
        self._duty = self._done = Duty()
        if own in stored and not stored[own].is_off:
            await self._source.run(_write({own: Beat(stored[own].ms + 1, True)}))
        self._is_off = True

    async def act(self) -> None:
        """Take over and give back. It may read all streams, while `look` goes on."""
        after_s, duty, now_s = self.after_s, self._duty, asyncio.get_running_loop().time()
        if after_s is None or self._here is None or not self._has_looked:
            return
        must_repeat = self._may_take(self._here, duty) or self._has_failed
        is_due = self._has_more or (must_repeat and now_s >= self._again_s)
        if duty == self._done and not is_due:
            return
        counts, self._has_more = _Counts(), False
        try:
            async for names in all_streams(self._source):
                await self._settle_all([*filter(self._is_mine, names)], counts)
                if self.after_s is None:
                    return
        except BraidError as error:  # a lost node of a cluster: its streams are tried again
            if not self._source.spares(error):
                raise
            counts.failed += 1
        for region, groups in counts.took.items():
            emit("groups.taken_over", region=region, groups=groups)
        for region, groups in counts.gave.items():
            emit("groups.given_back", region=region, groups=groups)
        self.taken, self._done, self._has_failed = dict(counts.taken), duty, counts.failed > 0
        self._again_s = now_s + (after_s if self._has_failed else max(_AGAIN_S, after_s))

    def _may_take(self, here: Region, duty: Duty) -> bool:
        """Whether groups that are created now may have to be taken over."""
        away = {peer.id for peer in self._peers() if any(each != Selection() for each in peer.selections)}
        return bool(duty.dead) and (bool(duty.dead_for(here.writer, set())) or bool(away & duty.alive))

    async def _settle_all(self, names: list[bytes], counts: "_Counts") -> None:
        found, away = await self._source.run(_with_scopes(names))
        counts.failed += away
        for name, registry in found:
            for group, scope in registry.scopes.items():
                await self._settle(name, group, scope, counts)

    async def _settle(self, name: bytes, group: bytes, scope: Scope, counts: "_Counts") -> None:
        """Take and give what one group needs, by what is known now: a region may be back meanwhile."""
        here, duty, after_s = self._here, self._duty, self.after_s
        if here is None or after_s is None:
            return
        for writer in to_take(here, scope, duty.dead_for(here.writer, apart(self._peers(), name))):
            if await self._change(here, name, group, ("take", writer, "automatic")):
                counts.took[writer] += 1
                counts.taken[writer] += 1
            else:
                counts.failed += 1
        for writer, heir in taken_for(here, scope).items():
            give = ("give", writer, heir, max(1, round(after_s * 1000)))
            if heir in duty.steady and await self._change(here, name, group, give):
                counts.gave[writer] += 1
            else:
                counts.taken[writer] += 1
                counts.failed += heir in duty.steady

    async def _change(self, here: Region, name: bytes, group: bytes, words: Command) -> bool:
        """Whether it was done. If not: the group was deleted before, the engine refuses, or it is lost."""
        try:
            await self._source.run(change_scope(View(here), name, group, words))
        except BraidError as error:
            if isinstance(error, ReplyError) or self._source.spares(error):
                return False
            raise
        return True


@dataclass(slots=True)
class _Counts:
    """Groups, by the region whose strands were taken or given, and are taken now. failed: changes."""

    took: Counter[int] = field(default_factory=Counter)
    gave: Counter[int] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)
    failed: int = 0


def to_take(here: Region, scope: Scope, dead: Container[int]) -> list[int]:
    """The regions whose strands a dead region owns; also such that were removed for good."""
    writers = {*here.everyone, *scope.owners}
    return [writer for writer in sorted(writers) if scope.owner(writer, here) in dead]


def taken_for(here: Region, scope: Scope) -> dict[int, int]:
    """The regions whose strands this region has taken automatically, and who gets each back: the region
    itself. If it was removed for good: the one that owns its strands by default."""
    found = dict[int, int]()
    for writer, claim in scope.owners.items():
        heir = Scope().owner(writer, here)
        if claim.is_automatic and claim.owner == here.writer != heir:
            found[writer] = heir
    return found


async def _exchange(peer: Peer, beats: dict[int, Beat]) -> dict[int, Beat]:
    """What a peer knows; it gets what it lacks. Nothing, if it does not answer: its link logs why."""
    if peer.link is None:
        return {}
    with contextlib.suppress(Exception):
        async with asyncio.timeout(WITHIN_S):
            theirs, _ = await peer.endpoint.run(_read())
            await peer.endpoint.run(_write(newer(beats, theirs)))
            return theirs
    return {}


def _read() -> Plan[tuple[dict[int, Beat], int]]:
    """The beats, and the time (ms). One round trip."""
    stored, now = yield Batch([("HGETALL", BEATS), ("TIME",)], resend=True)
    return read_beats(stored), ms_of(now)


async def _ms_of_running(cluster: Endpoint) -> int:
    """The time, of a node for which the cluster works. LostError if it works for none: clients can do nothing
    then, so the region must not beat. Without the right to CLUSTER INFO it counts as working."""
    for found in await ask_nodes(cluster, _read_state):
        if not isinstance(found, BaseException) and found is not None:
            return found
    raise LostError(str(cluster.address), "the cluster is down", wrote=False)


def _read_state() -> Plan[int | None]:
    """The time; None if the cluster is down for this node."""
    now, info = yield Batch([("TIME",), ("CLUSTER", "INFO")], resend=True, attempt=True)
    if isinstance(now, ReplyError):
        raise now
    is_down = not isinstance(info, ReplyError) and info_facts(info).get(b"cluster_state") != b"ok"
    return None if is_down else ms_of(now)


def _write(beats: dict[int, Beat]) -> Plan[None]:
    """A server that takes no writes (for example, it is full) keeps what it has."""
    if beats:
        words = [word for region, beat in beats.items() for word in (region, beat.text)]
        yield Batch([("HSET", BEATS, *words)], attempt=True)


def _with_scopes(names: list[bytes]) -> Plan[tuple[list[tuple[bytes, Registry]], int]]:
    """Streams with groups of scope ONCE, and how many streams could not be read now. One round trip."""
    if not names:
        return [], 0
    replies = yield Batch([registry_of(name) for name in names], resend=True, attempt=True)
    read = [(name, reply) for name, reply in zip(names, replies, strict=True) if not _is_unread(reply)]
    found = parse_each((name for name, _ in read), (reply for _, reply in read))
    scoped = [(name, registry) for name, registry in found.items() if registry.exists and registry.scopes]
    return scoped, sum(map(is_away, replies))


def _is_unread(reply: Any) -> bool:
    """A lost node, or a key of another type, written with a bare client: it stops no other."""
    if isinstance(reply, ReplyError) and reply.code != "WRONGTYPE" and not is_away(reply):
        raise reply
    return isinstance(reply, ReplyError)
