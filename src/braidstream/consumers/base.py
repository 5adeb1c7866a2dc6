"""What both consumers share: arguments, the handler, logs, when to do what, how they talk to the engine."""

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from redis import exceptions

from braidstream.clients.raised import advised
from braidstream.clients.routes import MISS
from braidstream.consumers.handler import (
    Failure,
    Fresh,
    Handler,
    Held,
    LapsedError,
    Message,
    Place,
    Reject,
    Work,
    described,
    traced,
)
from braidstream.consumers.holds import Pages
from braidstream.consumers.later import Later
from braidstream.consumers.lifecycle import InHand
from braidstream.consumers.middleware import Observer
from braidstream.consumers.settings import Key, Settings, own_name, stream_names
from braidstream.consumers.turn import Read, Turns, asked, pages_of, take
from braidstream.engine.awaiting import awaited
from braidstream.errors import ReplyError
from braidstream.observability.events import emit
from braidstream.operations.open_region import CLIENT_ERRORS, UNREACHABLE

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry

F = TypeVar("F", bound=Callable[..., Any])
Client = TypeVar("Client")

# How long a read waits for new entries, and so how long it takes at most until a signal stops it: after a
# read that got some, the shortest time; then twice as long each time, up to the longest.
_SHORTEST_MS: Final = 25
_LONGEST_MS: Final = 500
# A partition is given back after the read that may bring entries of it.
_LONGEST_OF_TOPIC_MS: Final = 200
# So many entries of a partition are read at once, if fewer are in hand.
_OF_A_PARTITION: Final = 50
# An event: something has changed in the team.
CALLED: Final = object()
# How soon to wait for calls again after an error.
_CALL_AGAIN_S: Final = 1.0
# Larger reads are multiples of this.
_STEP: Final = 100
# The longest pause between attempts to reach the engine.
_MOST_PAUSE_S: Final = 5.0


def settings_of(arguments: dict[str, Any]) -> Settings:
    """Settings from the arguments of a constructor, by their names."""
    given = {each.name: arguments[each.name] for each in fields(Settings)}
    given["streams"] = stream_names(given["streams"])
    given["name"] = given["name"] or own_name()
    return Settings(**given)


def observers_of(
    settings: Settings, metrics: "CollectorRegistry | None", tracer: "Tracer | None"
) -> list[Observer]:
    """Imported where they are wanted: both packages are optional."""
    found = list[Observer]()
    if tracer is not None:
        from braidstream.consumers.middleware import ConsumerTraces

        found.append(ConsumerTraces(tracer, settings.group, settings.name, settings.topic))
    if metrics is not None:
        if not hasattr(metrics, "register"):
            raise TypeError(
                f"metrics: {metrics!r} given, it must be a registry, like prometheus_client.REGISTRY."
            )
        from braidstream.consumers.middleware import ConsumerMetrics

        found.append(ConsumerMetrics(metrics, settings.group, settings.name, settings.topic))
    return found


def place_of(client: Any) -> Any:
    """The region that a MultiRegion client uses now; another client itself."""
    return getattr(client, "_active", client)


class ConsumerBase(Generic[Client]):
    """The state of one consumer.

    clients, module: the clients that it takes, and where users find them.
    """

    _clients: ClassVar[tuple[type, ...]]
    _module: ClassVar[str]
    # Errors that pass when the engine comes back.
    _unreachable = UNREACHABLE
    # What a client raises.
    _failed = (*CLIENT_ERRORS, OSError)

    def __init__(
        self,
        client: Client,
        streams: str | Sequence[str] = (),
        *,
        topic: str | None = None,
        group: str,
        name: str | None = None,
        concurrency: int = 8,
        attempts: int = 5,
        dead_letter: str | None = None,
        backoff: float = 1.0,
        max_backoff: float = 60.0,
        timeout: float | None = None,
        claim_after: float = 60.0,
        prefetch: int = 1000,
        key: Key | None = None,
        batch: int | None = None,
        batch_wait: float = 0.0,
        body: str | None = None,
        start: str = "0",
        scope: str | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
        stop_timeout: float = 25.0,
        metrics: "CollectorRegistry | None" = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        """client: where the streams are. The consumer uses two of its connections.
        streams: a stream, or several.
        topic: instead of streams. All consumers of the group share its partitions, and each handles the
            entries of a partition one after the other.
        group: created if it is missing, from `start` on: "0" for all entries, "$" for new ones.
        scope: of a group that it creates. "ONCE": one region delivers an entry; "EVERYWHERE": each does.
        name: of this consumer in the group. Every running consumer needs its own; the default is unique.
        concurrency: how many handlers run at once.
        attempts: how often an entry may fail. Then it goes to the dead letters.
        dead_letter: the stream of dead letters; by default the name of the stream and ".dead".
        retry_on: the errors after which an entry is tried again; after others it is a dead letter at once.
            By default all errors but `Reject`.
        backoff, max_backoff: seconds until the second attempt, doubled for each further one, up to a maximum.
        timeout: seconds after which a handler counts as failed.
        claim_after: seconds after which entries of a silent consumer are taken over. Equal in all processes.
        prefetch: how many entries may be taken ahead at most. 0: none, and each crash counts as an attempt.
        key: keeps the order of entries with the same key: a field, or a function of the message.
        batch: the handler gets a list of up to so many entries. batch_wait: seconds to wait for more of them.
        body: the field that has the whole message as JSON, for handlers with a model.
        stop_timeout: how many seconds running handlers get to finish when the consumer is stopped.
        metrics: a registry of prometheus_client. tracer: one of OpenTelemetry, for a span per handler call.
        """
        if not isinstance(client, self._clients):
            given = f"{type(client).__module__}.{type(client).__name__}"
            ours = f"{self._module}.Redis or {self._module}.RedisCluster"
            raise TypeError(f"client: {given} given, it must be {ours}.")
        self._client, self._body = client, body
        # Where it works now. A MultiRegion client changes its region; the consumer follows (`_is_following`).
        self._place: Any = place_of(client)
        self._leave_by: float | None = None
        self._settings = settings = settings_of(locals())
        self._observers, self._has_metrics = observers_of(settings, metrics, tracer), metrics is not None
        self._handler: Handler | None = None
        # By the value of one field; the handler above is for all others.
        self._field, self._routes = "", dict[bytes, Handler]()
        self._starts, self._stops = list[Callable[[], Any]](), list[Callable[[], Any]]()
        self._changes = list[Callable[[list[int], list[int]], Any]]()
        self._hand = InHand(settings, random.random, time.monotonic())
        self._turns = Turns(settings, self._hand)
        # What was handled in calls of their own: places of fresh entries. Workers append; the keeper takes
        # them out.
        self._handled = deque[Place | Held]()
        self._must_join = False
        self._is_reading = self._is_ended = False
        self._failures = 0
        self._resume_at = 0.0
        self._has_run = self._is_plain = self._is_joined = False
        self._until_empty = self._was_empty = False
        self._block_ms = _SHORTEST_MS
        self._stop_at: float | None = None
        self._is_hurried = False
        self._set_up()

    def _set_up(self) -> None:
        """The end of the constructor."""

    def handler(self, function: F) -> F:
        """Decorator: the function that handles entries."""
        if self._handler is not None:
            raise ValueError("this consumer has a handler already. For several: consumer.on(field, value).")
        self._check_handler(function)
        self._handler = Handler(function, is_batch=self._settings.batch is not None, body=self._body)
        return function

    def on(self, field: str, *values: str) -> Callable[[F], F]:
        """Decorator: the function that handles entries whose field has one of these values.

        Others go to the function of `handler`; without one, to the dead letters.
        """
        if not values or self._field not in ("", field) or self._settings.batch is not None:
            raise ValueError(
                'on: name a field, the same for all handlers, and its values: @consumer.on("type", "paid"). '
                "A consumer with batch= takes no such handlers."
            )

        def add(function: F) -> F:
            self._check_handler(function)
            handler = Handler(function, is_batch=False, body=self._body)
            for value in values:
                if value.encode() in self._routes:
                    raise ValueError(f"on: there is a handler for {field}={value!r} already.")
                self._routes[value.encode()] = handler
            self._field = field
            return function

        return add

    def on_start(self, function: F) -> F:
        """Decorator: a function without arguments, called before the first entry is taken."""
        self._check_handler(function)
        self._starts.append(function)
        return function

    def on_stop(self, function: F) -> F:
        """Decorator: a function without arguments, called after the last handler has ended."""
        self._check_handler(function)
        self._stops.append(function)
        return function

    def on_partitions(self, function: F) -> F:
        """Decorator: a function of two lists of partitions: given to this consumer, and taken from it.

        Called before the first entry of a partition is handled, and after the last, before others have it. If
        the session was over (no connection for 6 seconds), others may have it already.
        """
        self._check_handler(function)
        self._changes.append(function)
        return function

    def _check_handler(self, function: Callable[..., Any]) -> None:
        """Refuse what the consumer cannot call."""

    def _handler_of(self, message: Message) -> Handler:
        value = message.raw.get(self._field.encode(), b"") if self._routes else b""
        found = self._routes.get(value, self._handler)
        if found is None:
            raise Reject(f"there is no handler for the value of its field {self._field!r}")
        return found

    def _begin(self, *, surrounded: bool, until_empty: bool) -> None:
        """A consumer runs once. surrounded: by middleware."""
        if self._handler is None and not self._routes:
            raise ValueError("this consumer has no handler. Decorate a function with @consumer.handler.")
        # Whether nothing surrounds the handler, and it takes a message as it is: the cheapest call.
        if self._handler is not None:
            is_bare = not (surrounded or self._observers or self._routes)
            self._is_plain, self._function = is_bare and self._handler.takes_message, self._handler.function
        self._until_empty = until_empty
        if self._has_run:
            raise ValueError("this consumer has run already. Make another one.")
        self._has_run = True

    @property
    def is_ready(self) -> bool:
        """Whether it has joined its group, and its server has answered last time. For a readiness probe."""
        return self._is_joined and not self._failures and self._stop_at is None

    def stop(self, *, now: bool = False) -> None:
        """Take no more entries, finish what runs, acknowledge it, and let `run()` return.

        now: do not wait for running handlers. Their entries stay pending, and another consumer claims them.
        """
        self._is_hurried = self._is_hurried or now
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._settings.stop_timeout
        self._ring()

    def _stop_by_signal(self, *_: object) -> None:
        """The second signal does not wait."""
        self.stop(now=self._stop_at is not None)

    def _ring(self) -> None:
        """Wake the keeper."""

    def _sleep(self, seconds: float) -> Any:
        """Pause the keeper."""

    def _say(self, event: Any) -> None:
        """Wake the keeper, and tell it this."""

    def _take_back(self) -> list[Work]:
        """Work that was handed out, and that no handler has started."""
        return []

    def _put_urgent(self, works: list[Work]) -> None:
        """Hand work out before all other."""

    def _is_done(self) -> bool:
        """Whether the keeper may end: it was stopped, and all is done or the time is over."""
        if self._stop_at is None:
            return False
        self._withdraw()
        if self._is_hurried or time.monotonic() >= self._stop_at:
            return True
        return self._is_settled

    def _withdraw(self) -> None:
        """Start nothing more."""
        self._hand.is_stopping = True
        self._hand.withdraw()
        for work in self._take_back():
            self._hand.not_started(work)

    @property
    def _is_settled(self) -> bool:
        return self._hand.is_idle and not self._is_reading

    # Another region

    def _is_following(self) -> bool:
        """Whether to go now where the client has gone. From a region that answers it first finishes what
        handlers have, for as long as `stop_timeout`: elsewhere that would be delivered again. If the client
        is back before that, it leaves all the same, and joins again."""
        is_leaving = self._leave_by is not None or place_of(self._client) is not self._place
        if not is_leaving or self._stop_at is not None:
            return False
        if self._leave_by is None:
            self._leave_by = time.monotonic() + self._settings.stop_timeout
        self._withdraw()
        if self._is_reading:
            return False
        return self._place.is_lost or self._hand.is_idle or time.monotonic() >= self._leave_by

    async def _follow(self) -> None:
        """Go where a MultiRegion client has gone. What no handler had is delivered again there."""
        if not self._is_following():
            return
        left = self._hand.leftovers()
        if not self._place.is_lost:
            with suppress(*self._failed):
                await awaited(self._place.converse(self._turns.leave(is_reading=False)))
        self._place, self._leave_by = place_of(self._client), None
        self._hand.start_again(left)
        if self._turns.partitions is not None:
            self._turns.partitions.team.drop_all()
        self._must_join, self._resume_at = True, 0.0
        emit("consumer.followed", group=self._settings.group, region=self._place.name)

    # The keeper and the engine: coroutines, which threads run to their end

    async def _join(self) -> None:
        while self._stop_at is None:
            self._place = place_of(self._client)
            try:
                await awaited(self._place.converse(self._turns.join()))
            except self._unreachable as error:
                await awaited(self._sleep(self._unreached(error)))
            except exceptions.NoPermissionError as error:
                raise exceptions.NoPermissionError(self._why(error)) from None
            else:
                self._reached()
                self._is_joined = True
                emit("consumer.ready", group=self._settings.group, name=self._settings.name)
                return

    async def _turn(self, now: float) -> None:
        await self._converse(now)
        await self._tell_partitions()

    async def _converse(self, now: float) -> None:
        if not self._may_turn(now):
            return
        try:
            if self._must_join:
                await awaited(self._place.converse(self._turns.join()))
                self._must_join = False
            await self._acknowledge(now)
            if self._turns.is_due(now):
                self._tell_refused(await awaited(self._place.converse(self._turns.turn(now))))
            self._reached()
        except self._failed as error:
            self._pause(error)
        self._put_urgent(self._turns.counted)
        self._turns.counted.clear()
        self._tell_observers()

    async def _acknowledge(self, now: float) -> None:
        """By the short way. What it does not acknowledge, the turn does."""
        commands = self._turns.acknowledgements(now)
        if self._turns.partitions is not None and len(commands) > 1:
            return  # the turn does it in one round trip
        for words in commands:
            if await awaited(self._place.routed(*words)) is MISS:
                return
        if commands:
            self._turns.acknowledged()

    async def _tell_partitions(self) -> None:
        if (mine := self._turns.partitions) is None:
            return
        if (change := mine.change()) is not None:
            for hook in self._changes:
                await awaited(hook(*change))
        mine.told()

    async def _await_calls(self) -> None:
        """Tell the keeper when something has changed in the team. On a thread, or a task, of its own."""
        assert self._turns.partitions is not None
        team, last = self._turns.partitions.team, b"0-0"
        while not self._is_ended:
            try:
                seen = await awaited(self._place.converse(team.wait(last)))
            except Exception:  # the keeper notices too, and says so
                await awaited(self._sleep(_CALL_AGAIN_S))
                continue
            if seen != last:
                last = seen
                self._say(CALLED)

    async def _leave(self) -> None:
        if self._turns.partitions is not None:
            self._turns.partitions.stopped()
            await self._tell_partitions()
        try:
            await awaited(self._place.converse(self._turns.leave(is_reading=self._is_reading)))
        except self._failed as error:
            emit("consumer.unreached", group=self._settings.group, why=str(error))

    # Handlers

    def _prepare(
        self, messages: Sequence[Message], rejected: dict[Message, Reject]
    ) -> tuple[list[Message], Callable[[], Any]]:
        """The valid messages, and the call of the handler with them. Others are put into `rejected`."""
        valid, models = list[Message](), list[Any]()
        for message in messages:
            try:
                handler = self._handler_of(message)
                models.append(handler.decode(message) if handler.decodes else None)
                valid.append(message)
            except Reject as error:
                rejected[message] = error
        if not valid:
            return valid, lambda: None
        return valid, partial(handler.function, *handler.arguments(valid, models))  # one, also for a batch

    def _observed(self, messages: Sequence[Message]) -> ExitStack:
        """Surrounds the call of a handler."""
        stack = ExitStack()
        for each in self._observers:
            stack.enter_context(each.handling(messages))
        return stack

    @property
    def _has_lapsed(self) -> bool:
        """Whether others may have its partitions: it may have been frozen. Then no handler starts."""
        mine = self._turns.partitions
        return mine is not None and mine.team.is_over(time.monotonic())

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"the handler did not end within {self._settings.timeout} s")

    def _finished(
        self, task: Work | Fresh, error: BaseException | None, rejected: dict[Message, Reject]
    ) -> None:
        work = [self._hand.failed_first(task)] if isinstance(task, tuple) else task
        if isinstance(error, LapsedError):
            self._turns.follow_team(time.monotonic())  # now all is lost
            self._hand.finished(work, error, rejected, time.monotonic())
            return
        failures = self._hand.finished(work, error, rejected, time.monotonic())
        for failure in failures:
            _tell(failure)
        for each in self._observers:
            handled = len(work) - len(failures)
            if handled:
                each.ended(work[0].message.stream, "handled", handled)
            for failure in failures:
                each.ended(failure.held.message.stream, _outcome(failure.error))

    def _hear_handled(self) -> None:
        """All that was handled until now. Workers may go on appending."""
        ended = [self._handled.popleft() for _ in range(len(self._handled))]
        if not ended:
            return
        places = self._hand.succeeded(ended, time.monotonic())
        for each in self._observers:
            for stream, entries in Counter(stream for stream, _ in places).items():
                each.ended(stream.decode(), "handled", entries)

    def _tell_observers(self) -> None:
        """What has happened since the last turn."""
        for each in self._observers:
            for stream, entries in self._turns.claimed.items():
                each.claimed(stream, entries)
            for stream, entries in self._turns.buried.items():
                each.ended(stream, "dead", entries)
            each.in_hand(len(self._hand.held), self._hand.running)
        self._turns.claimed.clear()
        self._turns.buried.clear()

    # The engine

    def _hear(self, event: Any) -> None:
        """What a worker or the taker says: work that is done, a reply, an error; None only wakes."""
        if event is None:
            return
        if event is CALLED:
            if (mine := self._turns.partitions) is not None:
                mine.team.called()
            return
        if isinstance(event, tuple):
            self._finished(*event)
            return
        self._is_reading = False
        if (mine := self._turns.partitions) is not None:
            mine.ended_to_read()
        if isinstance(event, Exception):
            self._pause(event)
        else:
            self._took(event)

    def _tell_refused(self, refused: dict[str, ReplyError]) -> None:
        for what, error in refused.items():
            self._must_join = self._must_join or error.code == "NOGROUP"
            emit("consumer.refused", group=self._settings.group, what=what, why=self._why(error))

    def _took(self, reply: Any) -> None:
        """The reply to a read; by RESP3 a mapping."""
        self._reached()
        if isinstance(reply, Pages) and self._turns.partitions is not None:
            self._turns.partitions.lost(reply.lost)
            reply = reply.found
        if self._until_empty and self._was_empty and not reply:
            self.stop()
        mine, now = self._turns.partitions, time.monotonic()
        longest = _LONGEST_MS if mine is None else _LONGEST_OF_TOPIC_MS
        self._block_ms = _SHORTEST_MS if reply or self._until_empty else min(2 * self._block_ms, longest)
        for name, entries in reply.items() if isinstance(reply, dict) else reply:
            stream = name.encode() if isinstance(name, str) else name
            if mine is not None and not mine.expects(stream.decode()):
                continue  # others have it now, and claim what this read has taken
            count = self._hand.taken(stream, entries, now)
            for each in self._observers:
                each.taken(stream.decode(), count)

    def _reached(self) -> None:
        if self._failures:
            self._failures = 0
            emit("consumer.reached", group=self._settings.group)

    def _unreached(self, error: BaseException) -> float:
        """The engine cannot be reached, or refuses. Returns how long to wait."""
        self._failures += 1
        self._must_join = self._must_join or "NOGROUP" in str(error)
        emit("consumer.unreached", group=self._settings.group, why=self._why(error))
        self._hand.unreached(time.monotonic())
        full: float = min(_MOST_PAUSE_S, 0.05 * 2.0 ** min(self._failures, 10))
        return full * (0.5 + random.random() / 2)

    def _why(self, error: BaseException) -> str:
        """The text of an error. If a right is missing: with the command that prints those of a worker."""
        is_denied = isinstance(error, exceptions.NoPermissionError) or getattr(error, "code", "") == "NOPERM"
        pool = getattr(self._client, "connection_pool", None)
        user = getattr(pool, "connection_kwargs", {}).get("username")
        if is_denied and self._settings.topic is not None:
            topic = self._settings.topic
            return (
                f"{error}. To print the rights of a worker: braid acl worker --topics {topic} --user {user}"
            )
        return advised(str(error), user, {"worker"}, self._settings.streams) if is_denied else str(error)

    def _pause(self, error: BaseException) -> None:
        """Leave the engine alone for a while."""
        self._resume_at = time.monotonic() + self._unreached(error)

    def _may_read(self, now: float) -> bool:
        if self._is_reading or self._hand.is_stopping or self._stop_at is not None or now < self._resume_at:
            return False
        if self._must_join or self._hand.must_recover:
            return False
        if self._until_empty and self._turns.partitions is not None and self._turns.partitions.joining:
            return False
        return self._hand.room > 0 and bool(self._readable)

    def _will_read(self) -> Read:
        """The next read begins."""
        self._is_reading, self._was_empty = True, not self._hand.held
        if (mine := self._turns.partitions) is None:
            return take(self._settings, self._readable, self._most, self._block_ms)
        holds = mine.began_to_read(self._readable)
        return pages_of(holds, self._settings, min(self._most, _OF_A_PARTITION), self._block_ms)

    async def _read(self, how: Read) -> Any:
        """Run a read. On a thread, or a task, of its own."""
        if not isinstance(how, tuple):
            return await awaited(self._place.converse(how))
        reply = await awaited(self._place.routed(*how))
        if reply is MISS:
            reply = await awaited(self._place.converse(asked(how)))
        return reply or []

    @property
    def _readable(self) -> tuple[str, ...]:
        """The streams to read. Of partitions, those of which little is in hand: their entries are handled one
        after the other, and who takes them over begins with all that is in hand."""
        streams, held = self._turns.streams, self._hand.held
        if self._turns.partitions is None or len(held) < _OF_A_PARTITION:
            return streams
        in_hand = Counter(stream for stream, _ in held)
        return tuple(each for each in streams if in_hand[each.encode()] < _OF_A_PARTITION)

    @property
    def _most(self) -> int:
        """How many entries to read: of few different numbers, because the client remembers each command."""
        room = self._hand.room
        return room - room % _STEP if room > _STEP else room

    def _may_turn(self, now: float) -> bool:
        """After a lost reply a turn waits for the running read: what that gets is not lost."""
        if now < self._resume_at or (self._hand.must_recover and self._is_reading):
            return False
        return self._must_join or self._turns.is_due(now)

    def _next_time(self, now: float) -> float:
        """When to look again, if nothing happens before."""
        ends = self._leave_by if self._stop_at is None else self._stop_at
        if ends is not None and self._is_settled:
            return now
        if self._hand.must_recover and self._is_reading:
            until = now + _LONGEST_MS / 1000  # the end of the read is an event
        else:
            until = max(self._turns.next_time(now), self._resume_at)
        return until if ends is None else min(until, max(ends, now))


def _outcome(error: BaseException) -> str:
    if isinstance(error, Later):
        return "later"
    return "rejected" if isinstance(error, Reject) else "failed"


def _tell(failure: Failure) -> None:
    if isinstance(failure.error, Later):
        return
    message = failure.held.message
    why = described(failure.error)
    facts = {"stream": message.stream, "id": message.id, "attempt": message.attempt, "why": why}
    if trace := traced(failure.error):
        facts["traceback"] = trace
    if failure.delay is None:
        emit("consumer.dead", **facts)
    else:
        emit("consumer.failed", **facts, retry_in_s=round(failure.delay, 3))
