"""What a consumer says to the engine, as plans. `turn` does everything that is due; the two drivers call it.

Each part changes `InHand` only after the engine has answered, so a turn that is cut off by a lost connection
is simply taken again:

- XACK twice does nothing the second time.
- A dead letter and its acknowledgement are one step. If the entry is no longer pending, it ran. On a cluster
  they may be two steps, and the first one appends once, also if it is repeated.
- Counting an attempt sets the number, it does not add to it.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from braidstream.clients.commands import ViewOf, command
from braidstream.clients.shared import Conversation
from braidstream.consumers.dead_letters import DeadLetter, Letter, NotBuried, bury
from braidstream.consumers.handler import Held, Place, Work
from braidstream.consumers.holds import Hold, Pages, prepare, read
from braidstream.consumers.key_order import OrderScan
from braidstream.consumers.later import Later, PutOff, ack_words, again_names
from braidstream.consumers.lifecycle import InHand
from braidstream.consumers.settings import Settings, has_own_name
from braidstream.consumers.team import Partitions
from braidstream.errors import ReplyError
from braidstream.observability.events import emit
from braidstream.plan.lookup import read_registry, registry_of
from braidstream.plan.plan import Batch, Plan, together
from braidstream.plan.view import Carriage

# IDs in one command, and dead letters in one MULTI.
_AT_ONCE: Final = 1000
_DEAD_AT_ONCE: Final = 50
# How long a part rests after the engine refused it.
_REST_S: Final = 1.0


Words = tuple[str | int, ...]
# What a consumer reads with: a command, or a plan.
Read = Words | Conversation[Pages]


def take(settings: Settings, streams: Sequence[str], most: int, block_ms: int) -> Words:
    """The command that reads new entries: at most `most` of each stream."""
    words = ("XREADGROUP", "GROUP", settings.group, settings.name, "COUNT", most, "BLOCK", block_ms)
    return (*words, "STREAMS", *streams, *[">"] * len(streams))


def pages_of(holds: Mapping[str, Hold], settings: Settings, most: int, block_ms: int) -> Conversation[Pages]:
    """The same of partitions that it holds."""
    return lambda view_of: read(view_of, settings, holds, most, block_ms)


def asked(words: Sequence[str | bytes | int]) -> Conversation[Any]:
    """One command by its plan."""
    return lambda view_of: command(view_of, *words)


class Turns:
    """The conversation of one consumer, turn by turn."""

    def __init__(self, settings: Settings, hand: InHand) -> None:
        self.settings, self.hand = settings, hand
        # What is read, also streams in which entries come again. `_unread` are those that do not exist yet.
        self.streams = settings.streams
        names = [] if hand.lanes is not None else again_names(settings.streams, settings.group)
        self._unread = [name for name in names if name not in settings.streams]
        self.counted = list[Work]()
        # By stream: how many entries were taken over, and how many were moved to the dead letters.
        self.claimed, self.buried = Counter[str](), Counter[str]()
        # Dead ones that are neither pending nor moved: they were deleted, and are in memory only.
        self._not_moved = set[Held]()
        self._rests = dict[str, float]()
        # Streams whose group delivers each entry once across regions.
        self._once = set[str]()
        self._has_joined = False
        is_shared = hand.lanes is not None and settings.topic is None
        order = OrderScan(settings, hand.held, hand.lanes) if is_shared and hand.lanes else None
        self.partitions = None if settings.topic is None else Partitions(settings, hand)
        self._parts: list[tuple[str, Callable[[float], bool], Callable[[ViewOf, float], Plan[None]]]] = [
            ("acknowledge", hand.is_ack_due, self._acknowledge),
            ("recover", lambda now: hand.must_recover, self._recover),
            ("extend", lambda now: now >= hand.next_beat, self._extend),
            ("uncount", lambda now: bool(hand.uncounted), self._uncount),
            ("count", lambda now: hand.can_count, self._count),
            ("dead letters", lambda now: bool(hand.dead), self._bury),
            ("claim", hand.is_claim_due, self._claim),
        ]
        if order is not None:
            self._parts.append(("order", order.is_due, order.scan))
        if (mine := self.partitions) is not None:
            self._parts.insert(0, ("team", mine.team.is_due, self._beat))
            self._parts.insert(1, ("take", lambda now: bool(mine.joining and mine.to_take), self._take))
            self._parts.append(("return", lambda now: mine.must_return, self._return))

    def join(self) -> Conversation[None]:
        """Create the group where it is missing. If it was deleted, it gets the scope again that it had."""

        def plan(view_of: ViewOf) -> Plan[None]:
            if self.partitions is not None:
                yield from self.partitions.team.look(view_of)
                self.partitions.join_again()
                self.streams = ()
            for stream in self.settings.streams:
                yield from _refuse_missing_log(view_of, stream)
                is_once = stream in self._once or (self.settings.scope == "ONCE" and not self._has_joined)
                yield from self._create_group(view_of, stream, self.settings.start, is_once=is_once)
            self._note_scopes(view_of)
            for stream in self.streams[len(self.settings.streams) :]:
                yield from self._create_group(view_of, stream, "0", is_once=True)
            yield from self._look_for_again(view_of)
            self._has_joined = True

        return plan

    def _create_group(self, view_of: ViewOf, stream: str, start: str, *, is_once: bool) -> Plan[None]:
        scope = ("SCOPE", "ONCE") if is_once else ()
        words = (stream, self.settings.group, start, "MKSTREAM", *scope)
        try:
            yield from command(view_of, "XGROUP", "CREATE", *words)
        except ReplyError as error:
            if error.code != "BUSYGROUP":
                raise
        yield from read_registry(view_of(Carriage.ALONE), stream.encode())

    def _look_for_again(self, view_of: ViewOf) -> Plan[None]:
        """Read streams in which entries come again from now on, if there are any."""
        for stream in [*self._unread]:
            try:
                if (yield from read_registry(view_of(Carriage.ALONE), stream.encode())).exists:
                    yield from self._read_again(view_of, stream)
            except ReplyError as error:
                if error.code != "NOPERM":
                    raise
                self._unread.remove(stream)  # then nothing is put off either

    def _read_again(self, view_of: ViewOf, stream: str) -> Plan[None]:
        yield from self._create_group(view_of, stream, "0", is_once=True)
        self._unread.remove(stream)
        self.streams = (*self.streams, stream)

    def _note_scopes(self, view_of: ViewOf) -> None:
        """By the cache, which every read keeps current."""
        group = self.settings.group.encode()
        for stream in self.settings.streams:
            known = view_of(Carriage.ALONE).recall(stream.encode())
            if group in known.scopes:
                self._once.add(stream)
            elif group in known.groups:
                self._once.discard(stream)
                self._warn_of_scope(view_of, stream)

    def _warn_of_scope(self, view_of: ViewOf, stream: str) -> None:
        """Once: the group delivers every entry in every region, and nobody has said that it should."""
        region = view_of(Carriage.ALONE).region
        is_shared = self.settings.scope is None and bool(region.peers)
        if (self.settings.scope == "ONCE" or is_shared) and not self._has_joined:
            fix = f"XGROUP SCOPE {stream} {self.settings.group} ONCE"
            emit("consumer.everywhere", group=self.settings.group, stream=stream, fix=fix)

    def is_due(self, now: float) -> bool:
        """Whether a turn has anything to do."""
        return any(is_due(now) and self._rests.get(name, 0) <= now for name, is_due, _ in self._parts)

    def next_time(self, now: float) -> float:
        """When a turn will have something to do, if nothing happens before."""
        if self.is_due(now):
            return now
        rests = [until for until in self._rests.values() if until > now]
        wanted = self.hand.next_time(now)
        if self.partitions is not None:
            wanted = min(wanted, self.partitions.team.next_time(now))
        # A part that rests wants to run at once: its time is when it has rested.
        return min(rests) if rests and wanted <= now else min([wanted, *rests])

    def turn(self, now: float) -> Conversation[dict[str, ReplyError]]:
        """Do what is due. Returns the parts that the engine refused; they are tried again later."""

        def plan(view_of: ViewOf) -> Plan[dict[str, ReplyError]]:
            refused = dict[str, ReplyError]()
            for name, is_due, part in self._parts:
                if not is_due(now) or self._rests.get(name, 0) > now:
                    continue
                try:
                    yield from part(view_of, now)
                except ReplyError as error:
                    refused[name] = error
                    self._rests[name] = now + _REST_S
            return refused

        return plan

    def _acknowledge(self, view_of: ViewOf, now: float) -> Plan[None]:
        yield from together(command(view_of, *words) for words in self._acknowledgements())
        self.acknowledged()

    def acknowledgements(self, now: float) -> list[tuple[str | bytes | int, ...]]:
        """The commands that acknowledge what is due. If they did, call `acknowledged`, else take a turn."""
        is_due = self.hand.is_ack_due(now) and self._rests.get("acknowledge", 0) <= now
        return self._acknowledgements() if is_due else []

    def _acknowledgements(self) -> list[tuple[str | bytes | int, ...]]:
        places = self.hand.done.places[:_AT_ONCE]
        return [ack_words(stream, self.settings.group, texts) for stream, texts in _by_stream(places).items()]

    def acknowledged(self) -> None:
        self.hand.acknowledged(_AT_ONCE)

    def _bury(self, view_of: ViewOf, now: float) -> Plan[None]:
        """Move entries to the dead letters, or to those that wait; each that is still pending for this
        consumer."""
        part, mine = self.hand.dead[:_DEAD_AT_ONCE], list[tuple[Held, str | Later]]()
        for held, reason in part:
            rows = yield from self._pending(view_of, held.stream, held.id, held.id, 1)
            if held in self._not_moved or any(row[1] == self.settings.name.encode() for row in rows):
                mine.append((held, reason))
        letters = [self._letter(held, reason) for held, reason in mine]
        replies = yield from bury(view_of, letters)
        # If an append fails inside MULTI, its entry is acknowledged all the same. It becomes pending again.
        answers = [(held, reply) for (held, _), reply in zip(mine, replies, strict=True)]
        failed = {held: reply for held, reply in answers if isinstance(reply, ReplyError)}
        refused = {held: reply.error for held, reply in answers if isinstance(reply, NotBuried)}
        moved = {held for held, _ in part} - failed.keys() - refused.keys()
        self._not_moved = failed.keys() | (self._not_moved - moved)
        went = [(held, letter) for (held, _), (_, letter) in zip(mine, letters, strict=True) if held in moved]
        self.buried.update(held.message.stream for held, letter in went if isinstance(letter, DeadLetter))
        yield from self._await_again(view_of, [letter for _, letter in went])
        left = [each for each in self.hand.dead if each[0] not in moved]
        # Those that were tried do not hold up the others.
        self.hand.dead = sorted(left, key=lambda each: each[0] in failed or each[0] in refused)
        for held in moved - {held for held, _ in mine}:
            self.hand.another_has(held)
        for held in moved:
            self.hand.forget(held.place)
        for held in failed:
            options = ("RETRYCOUNT", self.hand.count_to_store(held) - 1, "FORCE")
            with contextlib.suppress(ReplyError):  # for example, the node of this stream is full
                if (yield from self._claim_own(view_of, held.stream, [held.id], *options)):
                    self._not_moved.discard(held)
        for error in (*failed.values(), *refused.values()):
            raise error

    def _letter(self, held: Held, reason: str | Later) -> tuple[str, Letter]:
        """Where an entry goes, and as what."""
        message, name = held.message, self.settings.name
        if isinstance(reason, Later):
            put_off = PutOff(held.place, self.settings.group, reason.delay_s, message)
            try:
                return put_off.where, put_off
            except ValueError as error:
                reason = f"raise Later: {error}"
        letter = DeadLetter(
            message.stream,
            message.first_id,
            self.settings.group,
            name,
            held.attempts,
            reason,
            tuple(message.words),
            held.traceback,
            held.place,
        )
        return self.settings.dead_stream(message.stream), letter

    def _await_again(self, view_of: ViewOf, letters: Sequence[Letter]) -> Plan[None]:
        """Read the streams in which what was put off comes again."""
        streams = {each.message.stream for each in letters if isinstance(each, PutOff)}
        for again in again_names(streams, self.settings.group):
            if again in self._unread:
                yield from self._read_again(view_of, again)

    def _count(self, view_of: ViewOf, now: float) -> Plan[None]:
        """Record that attempts start. A lease that ran out is not ours to count on."""
        by_count = defaultdict[tuple[bytes, int], list[Held]](list)
        for held in self.hand.countable():
            if held.lease <= now:
                self.hand.next_beat = now
                self._rests["count"] = now + _REST_S / 10
            else:
                by_count[held.stream, self.hand.count_to_store(held)].append(held)
        yield from together(
            self._count_some(view_of, now, stream, number, helds)
            for (stream, number), helds in by_count.items()
        )

    def _count_some(
        self, view_of: ViewOf, now: float, stream: bytes, number: int, helds: list[Held]
    ) -> Plan[None]:
        mine, plans = self.partitions, list[Plan[Any]]()
        plans.append(self._claim_own(view_of, stream, [held.id for held in helds], "RETRYCOUNT", number))
        if mine is not None:  # if it was frozen, others may have the partition: looked up after the claim
            plans.append(mine.holds.has(stream.decode()))
        kept, *is_held = yield from together(plans)
        if mine is not None and is_held != [True]:
            mine.lost([stream.decode()])
            return
        for held in helds:
            if held.id in kept:
                self.hand.kept(held.place, now)
                self.counted.append(self.hand.counted(held))
            else:
                self.hand.lost(held)

    def _uncount(self, view_of: ViewOf, now: float) -> Plan[None]:
        part = self.hand.uncounted[:_AT_ONCE]
        fresh = [held for held in part if held.attempts == 0 and not (held.is_running or held.is_lost)]
        for stream, texts in _by_stream([held.place for held in fresh]).items():
            yield from self._claim_own(view_of, stream, texts, "RETRYCOUNT", 0)
        del self.hand.uncounted[: len(part)]

    def _claim_own(
        self, view_of: ViewOf, stream: bytes, texts: Iterable[bytes], *options: str | int
    ) -> Plan[set[bytes]]:
        """Claim what this consumer holds: resets the idle time. JUSTID: it does not count as a delivery."""
        names = (self.settings.group, self.settings.name)
        return set((yield from command(view_of, "XCLAIM", stream, *names, 0, *texts, *options, "JUSTID")))

    def _extend(self, view_of: ViewOf, now: float) -> Plan[None]:
        """Reset the idle time of entries in hand: we still work on them."""
        hand = self.hand
        pending = [place for place, held in hand.held.items() if held not in self._not_moved]
        some = [self._extend_some(view_of, now, *each) for each in _by_stream(pending).items()]
        hand.lost_all(set().union(*(yield from together(some))))
        self._note_scopes(view_of)
        yield from self._look_for_again(view_of)
        if self.partitions is not None:
            yield from self.partitions.keep(now)
        hand.after_beat(now)

    def _extend_some(
        self, view_of: ViewOf, now: float, stream: bytes, texts: list[bytes]
    ) -> Plan[set[Place]]:
        """Returns those of a stream that were lost."""
        hand, lost = self.hand, set[bytes]()
        if any(hand.is_over((stream, text), now) for text in texts):
            # We were away long enough for others to claim some.
            own = {row[0] for row in (yield from self._own(view_of, stream))}
            lost = {text for text in texts if text not in own}
            texts = [text for text in texts if text in own]
        for at in range(0, len(texts), _AT_ONCE):
            part = texts[at : at + _AT_ONCE]
            kept = yield from self._claim_own(view_of, stream, part)
            lost.update(text for text in part if text not in kept)
            for text in kept:
                hand.kept((stream, text), now)
        return {(stream, text) for text in lost}

    def _claim(self, view_of: ViewOf, now: float) -> Plan[None]:
        streams = self.streams if self.partitions is None else self.partitions.to_claim()
        yield from self._claim_from(view_of, streams, now)

    def _claim_from(self, view_of: ViewOf, streams: Iterable[str], now: float) -> Plan[None]:
        """Take over entries of consumers that are gone."""
        hand, room = self.hand, self.hand.claim_room
        if self.partitions is not None:
            yield from self._claim_left(view_of, streams, now)
            hand.claims.done(now, has_more=False)
            return
        idle, found, is_full = int(self.settings.claim_after * 1000), 0, False
        for stream in streams:
            rows = yield from self._pending(view_of, stream.encode(), b"-", b"+", room, idle)
            rows = [row for row in rows if (stream.encode(), row[0]) not in hand.held]
            is_full = is_full or len(rows) == room
            adopted = yield from self._adopt(view_of, stream.encode(), rows, idle, now, ours=False)
            self.claimed[stream] += adopted
            found += adopted
        self._tell_claimed(found)
        hand.claims.done(now, has_more=is_full and found > 0)

    def _claim_left(self, view_of: ViewOf, streams: Iterable[str], now: float) -> Plan[list[str]]:
        """Take over what others have left pending in partitions. Returns those of which there is no more."""
        names = [*streams]
        some = yield from together(self._claim_all(view_of, name.encode(), now) for name in names)
        self._tell_claimed(sum(found for found, _ in some))
        return [name for name, (_, has_more) in zip(names, some, strict=True) if not has_more]

    def _claim_all(self, view_of: ViewOf, stream: bytes, now: float) -> Plan[tuple[int, bool]]:
        """At once: only we have the partition. Our own may be in a reply that is on its way. Returns how
        many, and whether there may be more."""
        own = self.settings.name.encode()
        rows, low = list[Any](), b"-"
        while not rows:
            page = yield from self._pending(view_of, stream, low, b"+", _AT_ONCE)
            rows = [row for row in page if (stream, row[0]) not in self.hand.held and row[1] != own]
            if len(page) < _AT_ONCE:
                break
            low = b"(" + page[-1][0]
        adopted = yield from self._adopt(view_of, stream, rows, 0, now, ours=False)
        self.claimed[stream.decode()] += adopted
        return adopted, len(page) == _AT_ONCE

    def _tell_claimed(self, found: int) -> None:
        if found:
            emit("consumer.claimed", group=self.settings.group, entries=found)

    def _recover(self, view_of: ViewOf, now: float) -> Plan[None]:
        """A reply was lost, and with it perhaps entries that are now pending for us."""
        yield from together(self._recover_some(view_of, stream.encode(), now) for stream in self.streams)
        self.hand.claims.sent.clear()
        self.hand.must_recover = False

    def _recover_some(self, view_of: ViewOf, key: bytes, now: float) -> Plan[None]:
        rows = yield from self._own(view_of, key)
        missing = [row for row in rows if (key, row[0]) not in self.hand.held]
        yield from self._adopt(view_of, key, missing, 0, now, ours=True)

    def _adopt(
        self, view_of: ViewOf, stream: bytes, rows: list[Any], idle: int, now: float, *, ours: bool
    ) -> Plan[int]:
        """Claim pending entries without changing their delivery counts."""
        by_count = defaultdict[int, list[bytes]](list)
        for entry, _, _, deliveries in rows:
            by_count[deliveries].append(entry)
            if not ours:
                self.hand.claims.sent[stream, entry] = deliveries
        found, names = 0, (self.settings.group, self.settings.name)
        for deliveries, texts in by_count.items():
            entries = yield from command(
                view_of, "XCLAIM", stream, *names, idle, *texts, "RETRYCOUNT", deliveries
            )
            found += self.hand.claimed(stream, entries, deliveries, now, ours=ours)
            for entry in texts if not ours else ():
                self.hand.claims.sent.pop((stream, entry), None)
        return found

    def _pending(
        self, view_of: ViewOf, stream: bytes, low: bytes, high: bytes, most: int, idle: int = 0
    ) -> Plan[list[Any]]:
        """Pending entries, [id, consumer, idle, deliveries]."""
        since = ("IDLE", idle) if idle else ()
        rows = yield from command(view_of, "XPENDING", stream, self.settings.group, *since, low, high, most)
        return list(rows)

    def _own(self, view_of: ViewOf, stream: bytes) -> Plan[list[Any]]:
        """All entries that are pending for this consumer."""
        found, low, names = list[Any](), b"-", (stream, self.settings.group)
        while True:
            rows = yield from command(view_of, "XPENDING", *names, low, "+", _AT_ONCE, self.settings.name)
            found += rows
            if len(rows) < _AT_ONCE:
                return found
            low = b"(" + rows[-1][0]

    def leave(self, *, is_reading: bool) -> Conversation[int]:
        """Give back what no handler has started, and leave the group. Returns how many were given back.

        is_reading: a read is in flight, and may get entries at any moment.
        """

        def plan(view_of: ViewOf) -> Plan[int]:
            left = self.hand.leftovers()
            given = yield from self._give_back(view_of, left)
            for held in left:
                self.hand.forget(held.place)
            streams = self.streams if not is_reading else ()
            yield from together(self._delete_consumer(view_of, name) for name in streams)
            if (mine := self.partitions) is not None:
                yield from mine.holds.give_up([*mine.holds.taken], mine.team.epoch)
                yield from mine.team.leave()
            return given

        return plan

    def _give_back(self, view_of: ViewOf, left: Sequence[Held]) -> Plan[int]:
        """Entries that no handler has. Returns how many were still pending for this consumer."""
        by_stream = defaultdict[bytes, list[Held]](list)
        for held in left:
            by_stream[held.stream].append(held)
        some = yield from together(self._give_back_some(view_of, *each) for each in by_stream.items())
        return sum(some)

    def _give_back_some(self, view_of: ViewOf, stream: bytes, left: Sequence[Held]) -> Plan[int]:
        given, own = 0, {row[0] for row in (yield from self._own(view_of, stream))}
        for mode, is_fresh in (("SILENT", True), ("FAIL", False)):
            texts = [
                held.id for held in left if held.id in own and self.hand.is_counted_too_much(held) == is_fresh
            ]
            if texts:
                names = (stream, self.settings.group)
                yield from command(view_of, "XNACK", *names, mode, "IDS", len(texts), *texts)
                given += len(texts)
        return given

    def _delete_consumer(self, view_of: ViewOf, name: str) -> Plan[None]:
        """Deleting a consumer deletes what is pending for it, so it must have nothing."""
        if not (yield from self._own(view_of, name.encode())):
            yield from command(
                view_of, "XGROUP", "DELCONSUMER", name, self.settings.group, self.settings.name
            )

    # Partitions of a topic

    def follow_team(self, now: float) -> None:
        """Drop partitions whose session is over, read those that are new, and no others."""
        if (mine := self.partitions) is not None:
            mine.team.check(now)
            mine.follow()
            self.streams = mine.streams

    def _beat(self, view_of: ViewOf, now: float) -> Plan[None]:
        assert self.partitions is not None
        yield from self.partitions.team.beat(view_of, now)
        self.follow_team(now)

    def _take(self, view_of: ViewOf, now: float) -> Plan[None]:
        """Begin with some of the partitions that were given to it: first what others left pending."""
        mine = self.partitions
        assert mine is not None
        some = mine.to_take
        view = view_of(Carriage.ALONE)
        replies = yield Batch([registry_of(name.encode()) for name in some], resend=True)
        for name, reply in zip(some, replies, strict=True):
            view.learn(name.encode(), reply)
        group, is_once = self.settings.group.encode(), self.settings.scope == "ONCE"
        yield from together(
            self._create_group(view_of, name, self.settings.start, is_once=is_once)
            for name in some
            if group not in view.recall(name.encode()).groups
        )
        yield from prepare(view_of, self.settings, some)
        refused = None
        try:
            yield from mine.take(some, now)
        except ReplyError as error:
            refused = error
            mine.team.called()
        taken = [name for name in some if name in mine.holds.taken]
        mine.joined((yield from self._claim_left(view_of, taken, now)))
        self.streams = mine.streams
        if mine.has_lapsed or not has_own_name(self.settings.name):
            self.hand.must_recover = True
        if refused is not None:
            raise refused

    def _return(self, view_of: ViewOf, now: float) -> Plan[None]:
        """Give back what no handler has of partitions that are to be left, and leave those that are done."""
        mine = self.partitions
        assert mine is not None
        left = mine.leftovers
        yield from self._give_back(view_of, left)
        for held in left:
            self.hand.lost(held)
        done = mine.done
        yield from together(self._delete_consumer(view_of, name) for name in done)
        yield from mine.holds.give_up(done, mine.team.epoch)
        for name in done:
            mine.finished(name)


def _refuse_missing_log(view_of: ViewOf, stream: str) -> Plan[None]:
    """A group would make a stream of a log that was deleted, or whose entries have not arrived here."""
    registry = yield from read_registry(view_of(Carriage.ALONE), stream.encode())
    if registry.home is not None and not registry.exists:
        raise ReplyError(
            f"ERR {stream} is a log without entries in this region. Write to it with TWRITE first."
        )


def _by_stream(places: Iterable[Place]) -> dict[bytes, list[bytes]]:
    found = defaultdict[bytes, list[bytes]](list)
    for stream, text in places:
        found[stream].append(text)
    return found
