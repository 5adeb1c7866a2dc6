"""The entries that a consumer has in hand, and what happens to each next. No I/O, no clock, no threads.

    taken ---> fresh or ready ---> running ---> done ---> acknowledged
                   ^                  |
                   |                  +-------> waiting for the next attempt ---> due
    claimed -----> due                |
                                      +-------> dead ---> moved to the dead letters

    fresh: with prefetch, without keys and batches, workers take it without being told
    due: ready as soon as the engine has counted the attempt

`turn.py` talks to the engine about them; `threads.py` and `tasks.py` run the handlers.

How attempts are counted. The engine counts deliveries, and that number survives a crash of the process.

    prefetch=0    entries are taken only for idle handlers. Delivered means started: count = attempts.
    prefetch>0    entries are taken ahead. A first delivery does not mean that the handler was started, so
                  it is not held against the entry: count = attempts + 1.

Every later attempt is counted in the engine (`due`) before it starts.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice, takewhile
from math import inf
from typing import Any, Final

from braidstream.consumers.handler import (
    Failure,
    Fresh,
    Held,
    Message,
    Place,
    Reject,
    Work,
    described,
    traced,
)
from braidstream.consumers.key_order import KeyLanes
from braidstream.consumers.later import Later, message_kind
from braidstream.consumers.settings import Settings

# ----------------------------------------------------------------------------------------------------
# How many entries handlers finish in a short time: that many are worth having at hand.

WINDOW_S: Final = 0.1


class Pace:
    """Counts in windows of a tenth of a second. Grows at once, and shrinks by half in each window."""

    __slots__ = ("_began", "_count", "ahead")

    def __init__(self, now: float) -> None:
        self.ahead = 0
        self._count, self._began = 0, now

    def note(self, finished: int, now: float) -> None:
        self._count += finished
        passed = now - self._began
        if passed < WINDOW_S:
            self.ahead = max(self._count, self.ahead)
        else:
            seen = int(self._count * WINDOW_S / passed)
            self.ahead = max(seen, self.ahead // 2)
            self._count, self._began = 0, now


# ----------------------------------------------------------------------------------------------------
# Entries that wait for their next attempt.


class Backoff:
    """A heap by time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Held]] = []
        self._numbers = count()

    def add(self, held: Held, until: float) -> None:
        heapq.heappush(self._heap, (until, next(self._numbers), held))

    def over(self, now: float) -> Iterator[Held]:
        """Those that have waited long enough. They leave."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    @property
    def next_time(self) -> float:
        return self._heap[0][0] if self._heap else inf


# ----------------------------------------------------------------------------------------------------
# Entries that handlers are done with, and when to acknowledge them.

# While handlers are busy, entries are acknowledged together: this many, or those of this many seconds.
_AT_ONCE: Final = 500
_WITHIN_S: Final = 0.005


class Done:
    """The entries, in the order in which they were done."""

    def __init__(self) -> None:
        self.places = list[Place]()
        self._since = inf

    def add(self, places: Iterable[Place], now: float) -> None:
        self.places += places
        self._since = min(self._since, now)

    def remove(self, count: int) -> list[Place]:
        """The first ones are acknowledged."""
        first, self.places = self.places[:count], self.places[count:]
        if not self.places:
            self._since = inf
        return first

    @property
    def due_at(self) -> float:
        """When they must be acknowledged at the latest."""
        return self._since if len(self.places) >= _AT_ONCE else self._since + _WITHIN_S


# ----------------------------------------------------------------------------------------------------
# When a consumer takes over entries that others have left pending. `lifecycle.py` says how many. No I/O.

# Claims are tried at least this often.
_EVERY_S: Final = 5.0


class ClaimTimes:
    """The time of the next claim, and the claims that have no reply yet."""

    def __init__(self, claim_after: float, random: Callable[[], float], now: float) -> None:
        self._claim_after, self._random = claim_after, random
        self._every = min(claim_after / 2, _EVERY_S)
        self._next = now + random() * self._every
        self._has_more = False
        # By stream and ID: the delivery count of an entry whose claim was sent.
        self.sent = dict[tuple[bytes, bytes], int]()

    def next_time(self, now: float, *, room: int, claim_room: int) -> float:
        """room: how many handlers have nothing to do. claim_room: how many entries may be claimed."""
        if self._has_more and room:
            return now
        return self._next if claim_room else inf

    def done(self, now: float, *, has_more: bool) -> None:
        """has_more: others may have left more. They are claimed as soon as a handler has nothing to do."""
        self._has_more = has_more
        self._next = now + self._every * (0.75 + self._random() / 2)

    def unreached(self, now: float) -> None:
        """The connection was lost. Others get time to extend what they hold."""
        self._has_more = False
        self._next = max(self._next, now + self._claim_after / 2)


# ----------------------------------------------------------------------------------------------------
# In hand

# No more entries are taken while at least this many wait for their next attempt, or for their key.
_MOST_WAITING: Final = 1000
# With `key=`, this many entries are claimed at once for each handler. Most of them wait for each other, and
# each claim reads the list of pending entries.
_CLAIMED_WITH_KEYS: Final = 10
# XNACK FATAL sets the count to 2**63 - 1. Such an entry counts as failed for good.
_FATAL: Final = 2**62
CRASHED: Final = "the process that handled it crashed, or lost its connection for too long"


class InHand:
    """All entries in hand. Only one thread may use it; but workers take from `fresh`.

    held: those in their first attempt, or before it, are messages only.
    """

    def __init__(self, settings: Settings, random: Callable[[], float], now: float) -> None:
        self.settings, self._random = settings, random
        self.held = dict[Place, Held | Message]()
        self.fresh = deque[Fresh]()
        self.ready = deque[Held]()
        self.due = deque[Held]()
        self.done = Done()
        # Those that leave for another stream, and why: what failed too often, and what is put off.
        self.dead = list[tuple[Held, str | Later]]()
        self.uncounted = list[Held]()
        is_alone = settings.topic is not None
        self.lanes = KeyLanes(is_alone=is_alone) if settings.keeps_order else None
        self.is_stopping = False
        self.must_recover = False
        self.next_beat = now + settings.claim_after / 3
        self.claims = ClaimTimes(settings.claim_after, random, now)
        self._backoff = Backoff()
        self._running = self._again_running = self._suspects_running = 0
        # Entries that are fresh, or were when their handler started, and until when none is claimed.
        self._first, self._first_lease = 0, now
        self._oldest_ready: float | None = None
        self._pace = Pace(now)

    @property
    def is_exact(self) -> bool:
        """Whether a delivery means that the handler was started."""
        return self.settings.prefetch == 0

    @property
    def is_simple(self) -> bool:
        """Whether handlers may start with new entries at any time and in any order, each alone."""
        return not (self.is_exact or self.settings.batch or self.lanes is not None or self.is_stopping)

    @property
    def _size(self) -> int:
        """How many entries a handler gets at most."""
        return self.settings.batch or 1

    # What comes in

    def taken(self, stream: bytes, entries: Iterable[Sequence[Any]], now: float) -> int:
        """New entries of a stream, [id, [field, value, ...]]. Returns how many."""
        (kind, name), lease = message_kind(stream), now + self.settings.claim_after
        fresh = {
            (stream, entry): kind(name, entry.decode(), words)
            for entry, words in entries
            if words is not None
        }
        if not self.held.keys().isdisjoint(fresh):
            fresh = {place: message for place, message in fresh.items() if place not in self.held}
        if self.is_simple:
            self._first_lease = min(self._first_lease, lease) if self._first else lease
            self._first += len(fresh)
            self.held.update(fresh)
            self.fresh.extend(fresh.items())
            return len(fresh)
        helds = {place: Held(message, *place, 0, True, lease) for place, message in fresh.items()}
        self.held.update(helds)
        self._queue(helds.values(), self.ready)
        if self.is_exact:
            idle = (self.settings.concurrency - self._running) * self._size
            for _ in range(len(self.ready) - max(idle, 0)):
                self._uncount(self.ready.pop())
        if self.ready and self._oldest_ready is None:
            self._oldest_ready = now
        return len(fresh)

    def claimed(
        self, stream: bytes, entries: Iterable[Sequence[Any]], deliveries: int, now: float, *, ours: bool
    ) -> int:
        """Entries that were pending, all delivered so often. Returns how many.

        ours: they were pending for this consumer, because a reply was lost. They were never started.
        """
        (kind, name), lease = message_kind(stream), now + self.settings.claim_after
        before = len(self.held)
        for entry, words in entries:
            if (stream, entry) in self.held:
                continue
            known = self.claims.sent.pop((stream, entry), None)
            attempts = deliveries if self.is_exact else deliveries - 1
            if ours and known is None and deliveries == 1:
                attempts = 0
            attempts = max(attempts, 0)
            held = Held(kind(name, entry.decode(), words), stream, entry, attempts, False, lease)
            held.is_suspect = not ours and attempts > 0
            self.held[stream, entry] = held
            if attempts >= self.settings.attempts:
                held.attempts = min(attempts, self.settings.attempts) if attempts >= _FATAL else attempts
                self._bury(held, CRASHED)
            else:
                self._queue([held], self.due)
        return len(self.held) - before

    def _uncount(self, held: Held) -> None:
        """It was delivered and cannot start at once: the engine must not count that as an attempt."""
        held.is_counted = False
        self.uncounted.append(held)
        self.due.append(held)

    def _queue(self, helds: Iterable[Held], where: deque[Held]) -> None:
        if self.lanes is None:
            where.extend(helds)
            return
        for held in helds:
            try:
                held.key = self.settings.key_of(held.message)
                hash(held.key)
            except Exception as error:
                held.traceback = traced(error)
                self._bury(held, f"key= failed: {described(error)}")
                continue
            self.lanes.add(held)
            if self.is_exact and held.is_counted:
                held.is_counted = False
                self.uncounted.append(held)

    # What goes out

    def next_work(self, now: float) -> list[Work]:
        """What handlers should start with now, in this order."""
        found = list[Work]()
        if self.is_stopping:
            return found
        size, most = self._size, self._most_works
        while self.ready and self._running < most:
            if size > 1 and not self._is_full(size, now):
                break
            if size == 1:
                work = [self.ready.popleft()]
            else:
                work = [self.ready.popleft() for _ in range(min(size, len(self.ready)))]
            found.append(self._start(work))
        if not self.ready:
            self._oldest_ready = None
        return found

    @property
    def _most_works(self) -> int:
        """How many works may be handed out: one for each handler, and some ahead."""
        return self.settings.concurrency + self.ahead // self._size

    def _is_full(self, size: int, now: float) -> bool:
        """Whether a batch may start: it has its size, or has waited long enough."""
        if len(self.ready) >= size or not self.settings.batch_wait or self._oldest_ready is None:
            return True
        return now >= self._oldest_ready + self.settings.batch_wait

    @property
    def _countable(self) -> int:
        """An entry whose last attempt ended in a crash retries alone, so that a second crash counts against
        it only."""
        if self.is_stopping or not self.due or self._suspects_running:
            return 0
        busy = self._running if self.is_exact else self._again_running
        free = max(self.settings.concurrency - busy, 0)
        if self.due[0].is_suspect:
            return 0 if self._again_running else min(free, 1)
        return sum(1 for _ in takewhile(lambda held: not held.is_suspect, islice(self.due, free)))

    @property
    def can_count(self) -> bool:
        return self._countable > 0

    def countable(self) -> list[Held]:
        """Entries whose next attempt may start once the engine has counted it. Until then they stay due."""
        return list(islice(self.due, self._countable))

    def counted(self, held: Held) -> Work:
        """The engine has counted the next attempt."""
        self.due.remove(held)
        held.is_counted = held.is_again = True
        self._again_running += 1
        self._suspects_running += held.is_suspect
        return self._start([held])

    def _start(self, work: Work) -> Work:
        self._running += 1
        for held in work:
            held.attempts += 1
            held.message.attempt = held.attempts
            held.is_running = True
        return work

    def failed_first(self, fresh: Fresh) -> Held:
        """The first attempt has failed: now the entry needs facts of its own."""
        place, message = fresh
        known = self.held.get(place)
        self._first -= 1
        self._running += 1
        if isinstance(known, Held):  # it is lost
            return known
        held = self.held[place] = Held(message, *place, 1, False, self._first_lease, is_running=True)
        return held

    def withdraw(self) -> None:
        """The consumer stops: what no handler has started is given back."""
        for place, message in self._take_fresh():
            self.held[place] = Held(message, *place, 0, True, self._first_lease)

    def _take_fresh(self) -> list[Fresh]:
        """All that is fresh. Workers may take some meanwhile."""
        found = list[Fresh]()
        with suppress(IndexError):
            while True:
                found.append(self.fresh.popleft())
        self._first -= len(found)
        return found

    def not_started(self, work: Work) -> None:
        """The consumer stops, and no handler has started with this work: it is given back."""
        self._running -= 1
        if work[0].is_again:
            self._again_running -= 1
            self._suspects_running -= work[0].is_suspect
        for held in work:
            held.attempts -= 1
            held.is_running = False

    def is_counted_too_much(self, held: Held) -> bool:
        """Whether the engine counts an attempt that did not start."""
        return held in self.uncounted or (held.is_counted and (self.is_exact or held.is_again))

    def count_to_store(self, held: Held) -> int:
        """The delivery count that says that its next attempt has started."""
        return held.attempts + (1 if self.is_exact else 2)

    # What handlers say

    def succeeded(self, ended: Sequence[Place | Held], now: float) -> list[Place]:
        """Handlers are done with these entries, each in a call of its own: places of those that were fresh.
        The same as `finished`, for the most common case. Returns where they are."""
        helds = [each for each in ended if isinstance(each, Held)]
        for held in helds:
            if held.is_again:
                self._again_running -= 1
                self._suspects_running -= held.is_suspect
            held.is_running = held.is_counted = held.is_again = held.is_suspect = False
            self._next_of_lane(held)
        self._running -= len(helds)
        self._first -= len(ended) - len(helds)
        places = [each.place if isinstance(each, Held) else each for each in ended]
        self.done.add(places, now)
        self._pace.note(len(places), now)
        return places

    def finished(
        self, work: Work, error: BaseException | None, rejected: dict[Message, Reject], now: float
    ) -> list[Failure]:
        """A handler is done with its work. error: of all of it; rejected: those that it could not get."""
        self._running -= 1
        if work[0].is_again:
            self._again_running -= 1
            self._suspects_running -= work[0].is_suspect
        failures = list[Failure]()
        for held in work:
            held.is_running = held.is_counted = held.is_again = held.is_suspect = False
            if (mine := rejected.get(held.message, error)) is None:
                self.done.add([held.place], now)
                self._next_of_lane(held)
            elif isinstance(mine, Later) and not held.is_lost:
                failures.append(self._put_off(held, mine, now))
            elif not held.is_lost:
                failures.append(self._failed(held, mine, now, is_alone=len(work) == 1))
            else:
                self.forget(held.place)
        self._pace.note(len(work), now)
        return failures

    def _next_of_lane(self, held: Held) -> None:
        """Of a topic the next entry does not wait for the acknowledgement: no other process may start it. If
        this one crashes, both are handled again, in order."""
        if self.lanes is not None and self.settings.topic is not None:
            self.lanes.remove(held)

    def _failed(self, held: Held, error: BaseException, now: float, *, is_alone: bool) -> Failure:
        """is_alone: else it failed in a batch, perhaps because of another entry."""
        may_retry = self.settings.is_retried(error) or not (is_alone or isinstance(error, Reject))
        if not may_retry or held.attempts >= self.settings.attempts:
            held.traceback = traced(error)
            self._bury(held, described(error))
            return Failure(held, error, None)
        delay = self.settings.delay(held.attempts, self._random)
        self._backoff.add(held, now + delay)
        return Failure(held, error, delay)

    def _put_off(self, held: Held, later: Later, now: float) -> Failure:
        if self.lanes is not None:
            refused = Reject(
                "raise Later: not with key= or topic=, the next entry of the key would overtake this one"
            )
            return self._failed(held, refused, now, is_alone=True)
        self.dead.append((held, later))
        return Failure(held, later, None)

    def _bury(self, held: Held, reason: str) -> None:
        self.dead.append((held, reason))

    def wake(self, now: float) -> None:
        """Entries become due: those that have waited for their next attempt, or for their key."""
        self.due.extend(held for held in self._backoff.over(now) if not held.is_lost)
        if self.lanes is not None:
            for held in self.lanes.startable():
                (self.ready if held.is_counted else self.due).append(held)

    # What the engine says

    def is_ack_due(self, now: float) -> bool:
        """Whether to acknowledge finished entries now. While handlers are busy, those of a few
        milliseconds share one command, unless others wait for them: those with the same key."""
        if not self.done.places:
            return False
        others_wait = self.lanes is not None and self.settings.topic is None
        if not self.running or others_wait or self.is_exact or self.is_stopping:
            return True
        return now >= self.done.due_at

    def acknowledged(self, count: int) -> None:
        """The first ones that are done."""
        for place in self.done.remove(count):
            self.forget(place)

    def forget(self, place: Place) -> None:
        """It is acknowledged, moved to the dead letters, or lost."""
        held = self.held.pop(place, None)
        if self.lanes is not None and isinstance(held, Held):
            self.lanes.remove(held)

    def lost(self, held: Held) -> None:
        """Another consumer has claimed it. If its handler runs and succeeds, it is acknowledged anyway."""
        held.is_lost = True
        self.another_has(held)
        if not held.is_running and held.place not in self.done.places:
            for queue in (self.ready, self.due):
                if held in queue:
                    queue.remove(held)
            self.dead = [each for each in self.dead if each[0] is not held]
            self.forget(held.place)

    def lost_all(self, places: set[Place]) -> None:
        """The same for several, also for those in their first attempt."""
        if not places:
            return
        for place, message in self._take_fresh():
            if place in places:
                self.forget(place)
            else:
                self._first += 1
                self.fresh.append((place, message))
        for place in places & self.held.keys():
            held = self.held[place]
            if isinstance(held, Held):
                self.lost(held)
            else:  # its handler has started
                lost = Held(held, *place, 1, False, self._first_lease, is_running=True, is_lost=True)
                self.held[place] = lost

    def start_again(self, left: Iterable[Held]) -> None:
        """The consumer works in another region now. left: entries that no handler had."""
        for held in left:
            held.is_lost = True
            self.forget(held.place)
        self.ready.clear()
        self.due.clear()
        self.claims.sent.clear()
        self._oldest_ready = None
        self.is_stopping, self.must_recover = False, True

    def another_has(self, held: Held) -> None:
        """Those behind it with the same key wait until that consumer is done with it."""
        if self.lanes is not None:
            self.lanes.doubt(held)

    def is_over(self, place: Place, now: float) -> bool:
        """Whether another consumer may have claimed it."""
        held = self.held[place]
        return now >= (held.lease if isinstance(held, Held) else self._first_lease)

    def kept(self, place: Place, now: float) -> None:
        held = self.held[place]
        if isinstance(held, Held):
            held.lease = now + self.settings.claim_after

    def unreached(self, now: float) -> None:
        """The connection was lost: replies may be lost too."""
        self.must_recover = True
        self.claims.unreached(now)

    # When and how much

    @property
    def ahead(self) -> int:
        """How many entries are taken beyond those that handlers work on: about as many as they finish in a
        tenth of a second, so that slow handlers leave entries to other processes."""
        return min(self.settings.prefetch, self._pace.ahead)

    @property
    def room(self) -> int:
        """How many entries may be taken now."""
        active = self._first + self._running * self._size + len(self.ready) + len(self.due)
        if len(self.held) - active >= max(_MOST_WAITING, 10 * self.settings.concurrency):
            return 0
        busy = self.settings.concurrency * self._size
        room = busy + self.ahead - active
        # As long as handlers have enough to do, few large reads are cheaper than many small ones.
        return room if active < busy or room >= self.ahead // 2 else 0

    @property
    def claim_room(self) -> int:
        """How many entries may be claimed now. Order per key needs those of others in any case."""
        return max(self.room, 0 if self.lanes is None else _CLAIMED_WITH_KEYS * self.settings.concurrency)

    def _claim_time(self, now: float) -> float:
        if self.is_stopping:
            return inf
        return self.claims.next_time(now, room=self.room, claim_room=self.claim_room)

    def is_claim_due(self, now: float) -> bool:
        return now >= self._claim_time(now)

    @property
    def running(self) -> int:
        """How many handlers run, or have their work already."""
        return self._first + self._running

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and the engine knows all results."""
        return not (self.running or self.done.places or self.dead)

    def leftovers(self) -> list[Held]:
        """Entries that no handler has, and that wait for nothing in the engine: they are given back."""
        settled = {*self.done.places, *(held.place for held, _ in self.dead)}
        helds = [held for held in self.held.values() if isinstance(held, Held)]
        return [held for held in helds if not held.is_running and held.place not in settled]

    @property
    def _is_filling(self) -> bool:
        """Whether a batch waits for more entries, and not for a handler."""
        if self._oldest_ready is None or not self.settings.batch_wait or self.is_stopping:
            return False
        return self._running < self._most_works

    def next_time(self, now: float) -> float:
        """When to look again, if nothing happens before."""
        times = [self.next_beat, self._claim_time(now), self._backoff.next_time, self.done.due_at]
        if self._is_filling:
            times.append((self._oldest_ready or now) + self.settings.batch_wait)
        if self.lanes is not None and self.lanes.next_scan is not None:
            times.append(self.lanes.next_scan)
        return max(min(times), now)

    def after_beat(self, now: float) -> None:
        """Every entry in hand was extended."""
        self._first_lease = now + self.settings.claim_after
        self.next_beat = now + self.settings.claim_after / 3
