"""Automatic take-over: if a region's heartbeat stops, another one delivers for it, to groups of scope ONCE.

    every second    our own beat rises; beats are exchanged with every peer that we reach (model/beat.py),
                    so a region that any of them reaches counts as alive
    beat stops      after `takeover_after_s`: the live region with the smallest number takes what the dead
                    region owned, if it sees at least half of the regions
    beat is back    for `takeover_after_s` without a gap: what was taken is given back (XGROUP GIVE)

The registry says what was taken automatically (lua/scope.lua), so the daemon stores nothing else. Streams are
read only when a region dies or comes back. Without `takeover_after_s` none of this happens.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from braidstream.commands.groups.group_scope import change_scope
from braidstream.errors import ReplyError
from braidstream.model.beat import Beat, Pulses, newer, read_beats
from braidstream.model.command import Command
from braidstream.model.keys import BEATS
from braidstream.model.meta import Registry
from braidstream.model.region_config import Region
from braidstream.model.scope import Scope
from braidstream.observability.events import emit
from braidstream.protocol.identify import read_region
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.feed import all_streams
from braidstream.replication.peer import Peer

EVERY_S: Final = 1.0
# How long to wait for the answer of a peer.
_WITHIN_S: Final = 1.0
# While a region is dead, how often to look for groups that were created since; at least `takeover_after_s`.
_AGAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Duty:
    """dead: regions whose strands this region has to deliver. steady: regions that get theirs back."""

    dead: frozenset[int] = frozenset()
    steady: frozenset[int] = frozenset()


def duty_of(here: Region, pulses: Pulses, now_s: float) -> Duty:
    """What this region has to do, as far as it can see."""
    others = {*here.writers} - {here.writer, *here.left}
    known, alive = pulses.known(others), pulses.alive(others, now_s)
    sees_half = 2 * (len(alive) + 1) >= len(known) + 1
    is_first = here.writer < min(alive, default=here.writer + 1)
    dead = known - alive if sees_half and is_first else set[int]()
    return Duty(frozenset(dead), frozenset(pulses.steady(others, now_s)))


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
        self._is_off = False
        self._looked_s = 0.0
        # What was last seen, what was last done, and whether a part of that was refused.
        self._here: Region | None = None
        self._duty = self._done = Duty()
        self._has_failed = False
        self._again_s = 0.0

    async def look(self) -> None:
        """Beat, and see which regions do."""
        if self.after_s is None and self._is_off:
            return
        here = await self._source.run(read_region())
        stored, now_ms = await self._source.run(_read())
        if self.after_s is None:
            await self._turn_off(here.writer, stored)
            return
        self._is_off = False
        last_ms = stored[here.writer].ms if here.writer in stored else 0
        beats = {**stored, here.writer: Beat(max(now_ms, last_ms + 1))}
        for theirs in await asyncio.gather(*(_exchange(peer, beats) for peer in self._peers())):
            listed = {region: beat for region, beat in theirs.items() if region in here.writers}
            beats |= newer(listed, beats)
        await self._source.run(_write(newer(beats, stored)))
        self._here, self._duty = here, self._note(here, beats, self.after_s)
        self._looked_s = asyncio.get_running_loop().time()

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
        if after_s is None or self._here is None or now_s - self._looked_s > after_s / 2:
            return
        must_repeat = bool(duty.dead) or self._has_failed
        if duty == self._done and not (must_repeat and now_s >= self._again_s):
            return
        counts = _Counts()
        async for names in all_streams(self._source):
            for name, registry in await self._source.run(_with_scopes([*filter(self._is_mine, names)])):
                for group, scope in registry.scopes.items():
                    await self._settle(name, group, scope, counts)
            if self.after_s is None:
                return
        for region, groups in counts.took.items():
            emit("groups.taken_over", region=region, groups=groups)
        for region, groups in counts.gave.items():
            emit("groups.given_back", region=region, groups=groups)
        self.taken, self._done, self._has_failed = dict(counts.taken), duty, counts.failed > 0
        self._again_s = now_s + (after_s if self._has_failed else max(_AGAIN_S, after_s))

    async def _settle(self, name: bytes, group: bytes, scope: Scope, counts: "_Counts") -> None:
        """Take and give what one group needs, by what is known now: a region may be back meanwhile."""
        here, duty, after_s = self._here, self._duty, self.after_s
        if here is None or after_s is None:
            return
        for writer in to_take(here, scope, duty):
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
        """Whether it was done. If not, the group was deleted meanwhile, or the engine refuses."""
        try:
            await self._source.run(change_scope(View(here), name, group, words))
        except ReplyError:
            return False
        return True


@dataclass(slots=True)
class _Counts:
    """Groups, by the region whose strands were taken or given, and are taken now. failed: changes."""

    took: Counter[int] = field(default_factory=Counter)
    gave: Counter[int] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)
    failed: int = 0


def to_take(here: Region, scope: Scope, duty: Duty) -> list[int]:
    """The regions whose strands a dead region owns; also such that were removed for good."""
    writers = {*here.writers, *here.left, *scope.owners}
    return [writer for writer in sorted(writers) if scope.owner(writer, here) in duty.dead]


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
        async with asyncio.timeout(_WITHIN_S):
            theirs, _ = await peer.endpoint.run(_read())
            await peer.endpoint.run(_write(newer(beats, theirs)))
            return theirs
    return {}


def _read() -> Plan[tuple[dict[int, Beat], int]]:
    """The beats, and the time (ms). One round trip."""
    stored, now = yield Batch([("HGETALL", BEATS), ("TIME",)], resend=True)
    return read_beats(stored), int(now[0]) * 1000 + int(now[1]) // 1000


def _write(beats: dict[int, Beat]) -> Plan[None]:
    """A server that takes no writes (full, say) keeps what it has."""
    if beats:
        words = [word for region, beat in beats.items() for word in (region, beat.text)]
        yield Batch([("HSET", BEATS, *words)], attempt=True)


def _with_scopes(names: list[bytes]) -> Plan[list[tuple[bytes, Registry]]]:
    """Streams with groups of scope ONCE. One round trip."""
    if not names:
        return []
    replies = yield Batch([registry_of(name) for name in names], resend=True)
    found = [(name, Registry.parse(name, reply)) for name, reply in zip(names, replies, strict=True)]
    return [(name, registry) for name, registry in found if registry.exists and registry.scopes]
