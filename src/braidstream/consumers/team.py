"""Which partitions of a topic a consumer works on: its membership in the team of its group (lua/team.lua).

    beat  --->  the partitions that it may work on        every two seconds, and at once when it is called
    call  --->  something has changed                     blocks in the engine, on a connection of its own

    has  --- no longer in the list --->  leaves  --- nothing is in hand --->  returned, with the next beat

If no beat arrives for the length of a session, the engine gives the partitions to others. The member knows it
by its own clock, a bit earlier, and drops them. If it was frozen it does not know yet: its reads are refused
(holds.py), and no handler starts before it has looked at the clock. No I/O, no clock.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Any, Final

from braidstream.clients.commands import ViewOf, read_topics
from braidstream.clients.shared import Conversation
from braidstream.consumers.handler import Held
from braidstream.consumers.holds import Hold, Holds
from braidstream.consumers.lifecycle import InHand
from braidstream.consumers.settings import Settings
from braidstream.errors import ReplyError
from braidstream.model import keys, topic
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Plan

SESSION_S: Final = 6.0
# So many beats in a session.
_BEATS: Final = 3
# A member believes in its session for this part of it: its clock and that of the engine may differ a bit.
_BELIEVED: Final = 0.9
# Of so many partitions a member looks for late entries at once: it must not miss a beat.
_CLAIMED_AT_ONCE: Final = 50
_BLOCK_MS: Final = 2_000
# How often it looks whether the topic has more partitions now.
_LOOK_S: Final = 60.0
# How often it says that it has its holds: they expire after a day.
_KEEP_S: Final = 3_600.0
# Partitions that it begins with in one turn.
_TAKEN_AT_ONCE: Final = 200


class Team:
    """The membership of one consumer. has: partitions that it works on; leaves: those that it only finishes.

    life: another number whenever it has lost everything, even if it has the same partitions again.
    """

    def __init__(self, name: str, group: str, member: str, *, session_s: float = SESSION_S) -> None:
        self.name, self._member, self._session_s = name.encode(), member.encode(), session_s
        self._keys = keys.team(self.name, group.encode())
        self.has, self.leaves, self._returned = set[int](), set[int](), set[int]()
        self.epoch = self.life = 0
        self._topic: topic.Topic | None = None
        self._look_at = 0.0
        self.drop_all()

    def drop_all(self) -> None:
        """It has nothing any more, and becomes a member again with the next beat."""
        self.has, self.leaves, self._returned = set(), set(), set()
        self._mark, self._beat_at, self._ends_at = b"", 0.0, inf
        self.life += 1

    @property
    def streams(self) -> tuple[bytes, ...]:
        """The streams of all partitions of the topic."""
        return () if self._topic is None else self._topic.streams

    def is_due(self, now: float) -> bool:
        return now >= self._beat_at or bool(self._returned)

    def next_time(self, now: float) -> float:
        """When to beat, or to drop what it has."""
        return now if self._returned else min(self._beat_at, self._ends_at)

    def called(self) -> None:
        """Something has changed: beat at once."""
        self._beat_at = 0.0

    def finished(self, partition: int) -> None:
        """Nothing of a partition that it leaves is in hand: others may have it."""
        self.leaves.discard(partition)
        self._returned.add(partition)

    def is_over(self, now: float) -> bool:
        """Whether others may have what it has. Any thread may ask."""
        return now >= self._ends_at

    def check(self, now: float) -> None:
        """Drop everything if the session is over."""
        if self.is_over(now):
            self.drop_all()

    def beat(self, view_of: ViewOf, now: float) -> Plan[None]:
        """now: not later than the time at which the engine gets it."""
        if now >= self._look_at:
            yield from self.look(view_of)
            self._look_at = now + _LOOK_S
        returned = sorted(self._returned)
        reply = yield from self._say(int(1000 * self._session_s), returned)
        mark, self.epoch, again_ms, is_new, *listed = reply
        self._returned.difference_update(returned)
        self._ends_at = now + _BELIEVED * self._session_s
        self._mark = bytes(mark)
        self._beat_at = now + (again_ms / 1000 if again_ms else self._session_s / _BEATS)
        if is_new:
            self.has, self.leaves = set(), set()
            self.life += 1
        if listed:
            told = {int(number) for number in listed[0].split()}
            self.leaves = (self.leaves | self.has) - told
            self.has = told

    def look(self, view_of: ViewOf) -> Plan[None]:
        """Read how many partitions there are. ReplyError if there is no such topic."""
        self._topic = (yield from read_topics(view_of)).get(self.name, self._topic)
        if self._topic is None:
            raise ReplyError(f"ERR {topic.missing(self.name)}")

    def leave(self) -> Plan[None]:
        """Give everything to the others."""
        if self._topic is not None:
            yield from self._say(0, [])
        self.drop_all()

    def _say(self, session_ms: int, returned: list[int]) -> Plan[list[Any]]:
        partitions = 0 if self._topic is None else self._topic.partitions
        text = " ".join(map(str, returned))
        call: Command = ("FCALL", "bs_team_beat", 3, *self._keys, self._member)
        [reply] = yield Batch([(*call, session_ms, partitions, self._mark, text)], resend=True)
        return list(reply)

    def wait(self, last: bytes) -> Conversation[bytes]:
        """Wait for the next call, after the one with this ID. Returns its ID, or `last` if none came."""

        def plan(view_of: ViewOf) -> Plan[bytes]:
            words: Command = ("XREAD", "BLOCK", _BLOCK_MS, "STREAMS", self._keys[2], last)
            [reply] = yield Batch([words], resend=True, block_ms=_BLOCK_MS)
            return bytes(reply[0][1][-1][0]) if reply else last

        return plan


class Partitions:
    """What a consumer does about the partitions of its membership: which it reads, begins with, and finishes.

    joining: given to it, and not read yet: what others left pending comes first.
    holds: of those that it reads, leaves or begins with.
    has_lapsed: a session of it was over: what is pending under its name may not be in hand.
    """

    def __init__(self, settings: Settings, hand: InHand) -> None:
        assert settings.topic is not None
        self.team = Team(settings.topic, settings.group, settings.name, session_s=SESSION_S)
        self._hand = hand
        self.holds, self._keep_at = Holds(settings.group), inf
        # The streams of the read that is on its way, if one is.
        self._in_read = frozenset[str]()
        self.joining, self._read, self._leaving = dict[str, int](), dict[str, int](), dict[str, int]()
        # Those of `_leaving` that the read which is on its way may bring.
        self._awaited = set[str]()
        # Those that the hooks of the user know of, and those that others may have when the hooks are done.
        self._told, self._ending = set[int](), set[int]()
        self._has_changed, self._claimed = False, 0
        self._seen, self._life, self._life_of_read = self.team.has, self.team.life, 0
        self.has_lapsed = False

    @property
    def streams(self) -> tuple[str, ...]:
        """Those to read."""
        return tuple(self._read)

    def to_claim(self) -> tuple[str, ...]:
        """Of which partitions to look next for what others have taken late: a few at a time, in turn."""
        streams, first = self.streams, self._claimed % max(len(self._read), 1)
        self._claimed = first + _CLAIMED_AT_ONCE
        return (*streams[first:], *streams[:first])[:_CLAIMED_AT_ONCE]

    def follow(self) -> None:
        """Do as the team says."""
        team = self.team
        if team.life != self._life:
            self._life, self.has_lapsed = team.life, True
            self._hand.lost_all({*self._hand.held})
            for each in (self.joining, self._read, self._leaving, self._awaited, self._ending):
                each.clear()
            self.holds.taken.clear()
        elif team.has is self._seen:
            return
        self._has_changed = True
        self._seen, names = team.has, team.streams
        wanted = {names[number].decode(): number for number in team.has}
        for name in [*self.joining.keys() - wanted.keys()]:
            team.finished(self.joining.pop(name))
        for name in [*self._read.keys() - wanted.keys()]:
            self._leaving[name] = self._read.pop(name)
            if name in self._in_read:
                self._awaited.add(name)
        for name in wanted.keys() - self._read.keys():
            self._leaving.pop(name, None)
            self.joining[name] = wanted[name]

    def join_again(self) -> None:
        """Their groups may be missing."""
        self.joining |= self._read
        self._read.clear()

    @property
    def to_take(self) -> list[str]:
        """Those to begin with now. What is pending there is claimed in parts."""
        in_hand = Counter(stream for stream, _ in self._hand.held) if self.joining else Counter[bytes]()
        found = list[str]()
        for name in self.joining:
            is_held = name in self.holds.taken
            if not in_hand[name.encode()] if is_held else name not in self._in_read:
                found.append(name)
        return found[:_TAKEN_AT_ONCE]

    def take(self, names: Iterable[str], now: float) -> Plan[None]:
        """Hold them, so that nobody else reads them from now on."""
        missing = [name for name in names if name not in self.holds.taken]
        if missing:
            self._keep_at = min(self._keep_at, now + _KEEP_S)
            yield from self.holds.take(missing, self.team.epoch)

    def keep(self, now: float) -> Plan[None]:
        if now >= self._keep_at:
            yield from self.holds.keep(self.team.epoch)
            self._keep_at = now + _KEEP_S

    def lost(self, names: Iterable[str]) -> None:
        """Others have taken them, or their holds are lost: ask the team, and begin again."""
        for name in names:
            self.holds.taken.pop(name, None)
            self._hand.lost_all({place for place in self._hand.held if place[0] == name.encode()})
            if name in self._read:
                self.joining[name] = self._read.pop(name)
            self.has_lapsed = self._has_changed = True
            self.team.called()

    def joined(self, names: Iterable[str]) -> None:
        self._has_changed = True
        for name in names:
            if name in self.joining:
                self._read[name] = self.joining.pop(name)

    def change(self) -> tuple[list[int], list[int]] | None:
        """What hooks are to be told: partitions that are given to it, and those that are taken from it."""
        if not self._has_changed:
            return None
        has = {*self._read.values(), *self._leaving.values()}
        found = sorted(has - self._told), sorted(self._told - has)
        return found if any(found) else None

    def told(self) -> None:
        """The hooks are done: others may have what is taken."""
        if not self._has_changed:
            return
        self._has_changed = False
        self._told = {*self._read.values(), *self._leaving.values()}
        for number in self._ending:
            self.team.finished(number)
        self._ending.clear()

    def stopped(self) -> None:
        """Nothing is in hand any more: hooks are to be told that everything is taken."""
        for each in (self.joining, self._read, self._leaving):
            each.clear()
        self._has_changed = True

    def expects(self, stream: str) -> bool:
        """Whether what was just read is its own: not if its session has ended meanwhile. Then others
        may have claimed it."""
        is_ours = stream in self._read or stream in self._leaving or stream in self.joining
        return is_ours and self._life_of_read == self.team.life

    def began_to_read(self, streams: Iterable[str]) -> dict[str, Hold]:
        """Returns their holds."""
        holds = {name: self.holds.taken[name] for name in streams if name in self.holds.taken}
        self._in_read, self._life_of_read = frozenset(holds), self.team.life
        return holds

    def ended_to_read(self) -> None:
        self._in_read = frozenset()
        self._awaited.clear()

    @property
    def leftovers(self) -> list[Held]:
        """What is in hand of partitions that are to be left, and no handler has. A read may bring more: if a
        partition comes back after that, its entries would be out of order."""
        names = {name.encode() for name in self._leaving.keys() - self._awaited}
        return [held for held in self._hand.leftovers() if held.stream in names]

    @property
    def done(self) -> list[str]:
        """Partitions that are to be left, and of which nothing is in hand."""
        busy = {stream for stream, _ in self._hand.held}
        return [name for name in self._leaving if name.encode() not in busy and name not in self._awaited]

    @property
    def must_return(self) -> bool:
        return bool(self._leaving) and bool(self.leftovers or self.done)

    def finished(self, name: str) -> None:
        self._ending.add(self._leaving.pop(name))
        self._has_changed = True
