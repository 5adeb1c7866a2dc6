"""What both consumers share: arguments, the handler, logs, when to do what."""

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from braidstream.consumers.handler import (
    Failure,
    Fresh,
    Handler,
    Held,
    Message,
    Place,
    Reject,
    Work,
    described,
    traced,
)
from braidstream.consumers.lifecycle import InHand
from braidstream.consumers.middleware import Observer
from braidstream.consumers.settings import Key, Settings, own_name, stream_names
from braidstream.consumers.turn import Turns
from braidstream.errors import ReplyError
from braidstream.observability.events import emit
from braidstream.operations.open_region import CLIENT_ERRORS, UNREACHABLE

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry

F = TypeVar("F", bound=Callable[..., Any])
Client = TypeVar("Client")

# How long a read waits for new entries, and so how long it takes at most until a signal stops it.
BLOCK_MS: Final = 500
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

        found.append(ConsumerTraces(tracer, settings.group, settings.name))
    if metrics is not None:
        if not hasattr(metrics, "register"):
            raise TypeError(
                f"metrics: {metrics!r} given, it must be a registry, like prometheus_client.REGISTRY."
            )
        from braidstream.consumers.middleware import ConsumerMetrics

        found.append(ConsumerMetrics(metrics, settings.group, settings.name))
    return found


def place_of(client: Any) -> Any:
    """The region that a MultiRegion client uses now; another client itself."""
    return getattr(client, "active", client)


class ConsumerBase(Generic[Client]):
    """The state of one consumer.

    clients, module: the clients that it takes, and where users find them.
    """

    clients: ClassVar[tuple[type, ...]]
    module: ClassVar[str]
    # Errors that pass when the engine comes back.
    unreachable = UNREACHABLE
    # What a client raises.
    failed = (*CLIENT_ERRORS, OSError)

    def __init__(
        self,
        client: Client,
        streams: str | Sequence[str],
        *,
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
        stop_timeout: float = 25.0,
        metrics: "CollectorRegistry | None" = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        """client: where the streams are. The consumer uses two of its connections.
        streams: a stream, or several.
        group: created if it is missing, from `start` on: "0" for all entries, "$" for new ones.
        scope: of a group that it creates. "ONCE": one region delivers an entry; "EVERYWHERE": each does.
        name: of this consumer in the group. Every running consumer needs its own; the default is unique.
        concurrency: how many handlers run at once.
        attempts: how often an entry may fail. Then it goes to the dead letters.
        dead_letter: the stream of dead letters; by default the name of the stream and ".dead".
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
        if not isinstance(client, self.clients):
            given = f"{type(client).__module__}.{type(client).__name__}"
            ours = f"{self.module}.Redis or {self.module}.RedisCluster"
            raise TypeError(f"client: {given} given, it must be {ours}.")
        self._client, self._body = client, body
        # Where it works now. A MultiRegion client changes its region; the consumer follows (`is_following`).
        self.place: Any = place_of(client)
        self._leave_by: float | None = None
        self.settings = settings = settings_of(locals())
        self.observers = observers_of(settings, metrics, tracer)
        self._handler: Handler | None = None
        self.hand = InHand(settings, random.random, time.monotonic())
        self.turns = Turns(settings, self.hand)
        # What was handled in calls of their own: places of fresh entries. Workers append; the keeper takes
        # them out.
        self.handled = deque[Place | Held]()
        self.must_join = False
        self.is_reading = False
        self._failures = 0
        self._resume_at = 0.0
        self._has_run = self._is_plain = False
        self._stop_at: float | None = None
        self._is_hurried = False
        self.set_up()

    def set_up(self) -> None:
        """The end of the constructor."""

    def handler(self, function: F) -> F:
        """Decorator: the function that handles entries."""
        if self._handler is not None:
            raise ValueError("this consumer has a handler already. Make one consumer for each handler.")
        self.check_handler(function)
        self._handler = Handler(function, is_batch=self.settings.batch is not None, body=self._body)
        return function

    def check_handler(self, function: Callable[..., Any]) -> None:
        """Refuse what the consumer cannot call."""

    @property
    def wanted(self) -> Handler:
        if self._handler is None:
            raise ValueError("this consumer has no handler. Decorate a function with @consumer.handler.")
        return self._handler

    def begin(self, *, surrounded: bool) -> None:
        """A consumer runs once. surrounded: by middleware."""
        # Whether nothing surrounds the handler, and it takes a message as it is: the cheapest call.
        self._is_plain = self.wanted.takes_message and not (surrounded or self.observers)
        self._function = self.wanted.function
        if self._has_run:
            raise ValueError("this consumer has run already. Make another one.")
        self._has_run = True

    def stop(self, *, now: bool = False) -> None:
        """Take no more entries, finish what runs, acknowledge it, and let `run()` return.

        now: do not wait for running handlers. Their entries stay pending, and another consumer claims them.
        """
        self._is_hurried = self._is_hurried or now
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self.settings.stop_timeout
        self.ring()

    def stop_by_signal(self, *_: object) -> None:
        """The second signal does not wait."""
        self.stop(now=self._stop_at is not None)

    def ring(self) -> None:
        """Wake the keeper."""

    def take_back(self) -> list[Work]:
        """Work that was handed out, and that no handler has started."""
        return []

    def is_done(self) -> bool:
        """Whether the keeper may end: it was stopped, and all is done or the time is over."""
        if self._stop_at is None:
            return False
        self.hand.is_stopping = True
        self.hand.withdraw()
        for work in self.take_back():
            self.hand.not_started(work)
        if self._is_hurried or time.monotonic() >= self._stop_at:
            return True
        return self._is_settled

    @property
    def _is_settled(self) -> bool:
        return self.hand.is_idle and not self.is_reading

    # Another region

    def is_following(self) -> bool:
        """Whether to go now where the client has gone. From a region that answers it first finishes what
        handlers have, for as long as `stop_timeout`: elsewhere that would be delivered again."""
        if place_of(self._client) is self.place or self._stop_at is not None:
            return False
        if self._leave_by is None:
            self._leave_by = time.monotonic() + self.settings.stop_timeout
        self.hand.is_stopping = True
        self.hand.withdraw()
        for work in self.take_back():
            self.hand.not_started(work)
        if self.is_reading:
            return False
        return self.place.is_lost or self.hand.is_idle or time.monotonic() >= self._leave_by

    def followed(self, left: list[Held]) -> None:
        """It has left a region. What no handler had is delivered again in the next one."""
        self.place, self._leave_by = place_of(self._client), None
        self.hand.start_again(left)
        self.must_join, self._resume_at = True, 0.0
        emit("consumer.followed", group=self.settings.group, region=self.place.name)

    # Handlers

    def prepare(
        self, messages: Sequence[Message], rejected: dict[Message, Reject]
    ) -> tuple[list[Message], Callable[[], Any]]:
        """The valid messages, and the call of the handler with them. Others are put into `rejected`."""
        handler = self.wanted
        valid, models = list[Message](), list[Any]()
        for message in messages:
            try:
                models.append(handler.decode(message) if handler.decodes else None)
                valid.append(message)
            except Reject as error:
                rejected[message] = error
        arguments = handler.arguments(valid, models) if valid else ()
        return valid, partial(handler.function, *arguments)

    def observed(self, messages: Sequence[Message]) -> ExitStack:
        """Surrounds the call of a handler."""
        stack = ExitStack()
        for each in self.observers:
            stack.enter_context(each.handling(messages))
        return stack

    def too_late(self) -> TimeoutError:
        return TimeoutError(f"the handler did not end within {self.settings.timeout} s")

    def finished(
        self, task: Work | Fresh, error: BaseException | None, rejected: dict[Message, Reject]
    ) -> None:
        work = [self.hand.failed_first(task)] if isinstance(task, tuple) else task
        failures = self.hand.finished(work, error, rejected, time.monotonic())
        for failure in failures:
            _tell(failure)
        for each in self.observers:
            handled = len(work) - len(failures)
            if handled:
                each.ended(work[0].message.stream, "handled", handled)
            for failure in failures:
                outcome = "rejected" if isinstance(failure.error, Reject) else "failed"
                each.ended(failure.held.message.stream, outcome)

    def hear_handled(self) -> None:
        """All that was handled until now. Workers may go on appending."""
        ended = [self.handled.popleft() for _ in range(len(self.handled))]
        if not ended:
            return
        places = self.hand.succeeded(ended, time.monotonic())
        for each in self.observers:
            for stream, entries in Counter(stream for stream, _ in places).items():
                each.ended(stream.decode(), "handled", entries)

    def tell_observers(self) -> None:
        """What has happened since the last turn."""
        for each in self.observers:
            for stream, entries in self.turns.claimed.items():
                each.claimed(stream, entries)
            for stream, entries in self.turns.buried.items():
                each.ended(stream, "dead", entries)
            each.in_hand(len(self.hand.held), self.hand.running)
        self.turns.claimed.clear()
        self.turns.buried.clear()

    # The engine

    def hear(self, event: Any) -> None:
        """What a worker or the taker says: work that is done, a reply, an error; None only wakes."""
        if event is None:
            return
        if isinstance(event, tuple):
            self.finished(*event)
            return
        self.is_reading = False
        if isinstance(event, Exception):
            self.pause(event)
        else:
            self.took(event)

    def tell_refused(self, refused: dict[str, ReplyError]) -> None:
        for what, error in refused.items():
            self.must_join = self.must_join or error.code == "NOGROUP"
            emit("consumer.refused", group=self.settings.group, what=what, why=str(error))

    def took(self, reply: Any) -> None:
        """The reply to a read; by RESP3 a mapping."""
        self.reached()
        now = time.monotonic()
        for name, entries in reply.items() if isinstance(reply, dict) else reply:
            stream = name.encode() if isinstance(name, str) else name
            count = self.hand.taken(stream, entries, now)
            for each in self.observers:
                each.taken(stream.decode(), count)

    def reached(self) -> None:
        self._failures = 0

    def unreached(self, error: BaseException) -> float:
        """The engine cannot be reached, or refuses. Returns how long to wait."""
        self._failures += 1
        self.must_join = self.must_join or "NOGROUP" in str(error)
        emit("consumer.unreached", group=self.settings.group, why=str(error))
        self.hand.unreached(time.monotonic())
        full: float = min(_MOST_PAUSE_S, 0.05 * 2.0 ** min(self._failures, 10))
        return full * (0.5 + random.random() / 2)

    def pause(self, error: BaseException) -> None:
        """Leave the engine alone for a while."""
        self._resume_at = time.monotonic() + self.unreached(error)

    def may_read(self, now: float) -> bool:
        if self.is_reading or self.hand.is_stopping or self._stop_at is not None or now < self._resume_at:
            return False
        if self.must_join or self.hand.must_recover:
            return False
        return self.hand.room > 0

    @property
    def most(self) -> int:
        """How many entries to read: of few different numbers, because the client remembers each command."""
        room = self.hand.room
        return room - room % _STEP if room > _STEP else room

    def may_turn(self, now: float) -> bool:
        """After a lost reply a turn waits for the running read: what that gets is not lost."""
        if now < self._resume_at or (self.hand.must_recover and self.is_reading):
            return False
        return self.must_join or self.turns.is_due(now)

    def next_time(self, now: float) -> float:
        """When to look again, if nothing happens before."""
        if self._stop_at is not None and self._is_settled:
            return now
        if self.hand.must_recover and self.is_reading:
            until = now + BLOCK_MS / 1000  # the end of the read is an event
        else:
            until = max(self.turns.next_time(now), self._resume_at)
        return until if self._stop_at is None else min(until, max(self._stop_at, now))


def _tell(failure: Failure) -> None:
    message = failure.held.message
    why = described(failure.error)
    facts = {"stream": message.stream, "id": message.id, "attempt": message.attempt, "why": why}
    if trace := traced(failure.error):
        facts["traceback"] = trace
    if failure.delay is None:
        emit("consumer.dead", **facts)
    else:
        emit("consumer.failed", **facts, retry_in_s=round(failure.delay, 3))
