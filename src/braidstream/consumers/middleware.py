"""What surrounds a handler: middleware, and the hooks for metrics and traces.

    @consumer.middleware
    def timed(messages: Sequence[Message], call_next: Callable[[], None]) -> None:
        began = time.monotonic()
        call_next()
        print(messages[0].id, time.monotonic() - began)

The first middleware is the outermost. It runs where the handler runs, within its timeout, and may raise.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from braidstream.consumers.handler import TRACE_FIELDS, Message

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Tracer
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


Middleware = Callable[[Sequence[Message], Callable[[], None]], None]
AsyncMiddleware = Callable[[Sequence[Message], Callable[[], Awaitable[None]]], Awaitable[None]]


class Observer:
    """What metrics and traces are made of. Called from the threads or tasks of a consumer."""

    def taken(self, stream: str, entries: int) -> None:
        """New entries were taken."""

    def claimed(self, stream: str, entries: int) -> None:
        """Entries of other consumers were taken over."""

    def ended(self, stream: str, outcome: str, entries: int = 1) -> None:
        """outcome: handled, failed, rejected, later, or dead. What is dead has failed or was rejected."""

    def in_hand(self, entries: int, running: int) -> None:
        """How many entries are in hand now, and how many handlers run or are next."""

    def handling(self, messages: Sequence[Message]) -> AbstractContextManager[object]:
        """Surrounds the middleware and the handler. Errors pass through it."""
        return nullcontext()


def wrapped(
    messages: Sequence[Message], middleware: Sequence[Middleware], handle: Callable[[], None]
) -> Callable[[], None]:
    """A handler inside its middleware."""
    for each in reversed(middleware):
        handle = partial(each, messages, handle)
    return handle


def wrapped_async(
    messages: Sequence[Message], middleware: Sequence[AsyncMiddleware], handle: Callable[[], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    for each in reversed(middleware):
        handle = partial(each, messages, handle)
    return handle


# ----------------------------------------------------------------------------------------------------
#
# Prometheus metrics of consumers: `Consumer(..., metrics=prometheus_client.REGISTRY)`.
#
# Consumers of one process share a registry; each has its own labels.

_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)


@dataclass(frozen=True, slots=True)
class _Collectors:
    entries: "Counter"
    taken: "Counter"
    claimed: "Counter"
    seconds: "Histogram"
    in_hand: "Gauge"
    running: "Gauge"


_known: "WeakKeyDictionary[CollectorRegistry, _Collectors]" = WeakKeyDictionary()


def _collectors(registry: "CollectorRegistry") -> _Collectors:
    found = _known.get(registry)
    if found is None:
        from prometheus_client import Counter, Gauge, Histogram

        both = ("stream", "group")
        consumer = ("group", "consumer")
        found = _known[registry] = _Collectors(
            Counter(
                "braid_consumer_entries",
                "Entries by outcome: handled, failed (one attempt), rejected, dead (a dead letter).",
                (*both, "outcome"),
                registry=registry,
            ),
            Counter("braid_consumer_taken", "New entries taken from the stream.", both, registry=registry),
            Counter(
                "braid_consumer_claimed", "Entries taken over from other consumers.", both, registry=registry
            ),
            Histogram(
                "braid_consumer_handler_seconds",
                "Duration of the handler, failed or not.",
                both,
                registry=registry,
                buckets=_SECONDS,
            ),
            Gauge(
                "braid_consumer_in_hand",
                "Entries that are taken and neither acknowledged nor moved yet.",
                consumer,
                registry=registry,
                multiprocess_mode="livesum",
            ),
            Gauge(
                "braid_consumer_running",
                "Handlers that run or are next.",
                consumer,
                registry=registry,
                multiprocess_mode="livesum",
            ),
        )
    return found


class ConsumerMetrics(Observer):
    """The metrics of one consumer. Partitions count as their topic: they would be too many labels."""

    def __init__(
        self, registry: "CollectorRegistry", group: str, consumer: str, topic: str | None = None
    ) -> None:
        self._all, self._group, self._topic = _collectors(registry), group, topic
        self._in_hand = self._all.in_hand.labels(group, consumer)
        self._running = self._all.running.labels(group, consumer)
        self._seconds: dict[str, Histogram] = {}

    def taken(self, stream: str, entries: int) -> None:
        self._all.taken.labels(self._topic or stream, self._group).inc(entries)

    def claimed(self, stream: str, entries: int) -> None:
        self._all.claimed.labels(self._topic or stream, self._group).inc(entries)

    def ended(self, stream: str, outcome: str, entries: int = 1) -> None:
        self._all.entries.labels(self._topic or stream, self._group, outcome).inc(entries)

    def in_hand(self, entries: int, running: int) -> None:
        self._in_hand.set(entries)
        self._running.set(running)

    @contextmanager
    def handling(self, messages: Sequence[Message]) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self._seconds_of(self._topic or messages[0].stream).observe(perf_counter() - began)

    def _seconds_of(self, stream: str) -> "Histogram":
        if stream not in self._seconds:
            self._seconds[stream] = self._all.seconds.labels(stream, self._group)
        return self._seconds[stream]


# ----------------------------------------------------------------------------------------------------
#
# OpenTelemetry: a producer writes the trace into the entry, and the consumer's span links to it.
#
# The trace stands in the fields `traceparent` and `tracestate` of an entry, as W3C Trace Context defines
# them.


def trace_fields() -> dict[str, str]:
    """The fields that carry the current trace; none if there is no trace, or OpenTelemetry is not installed.

    client.xadd("orders", {"order": 7, **braidstream.trace_fields()})
    """
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return {}
    found = dict[str, str]()
    TraceContextTextMapPropagator().inject(found)
    return found


class ConsumerTraces(Observer):
    """A span for each call of a handler, linked to the spans that appended its entries."""

    def __init__(self, tracer: "Tracer", group: str, consumer: str, topic: str | None = None) -> None:
        self._tracer, self._group, self._consumer, self._topic = tracer, group, consumer, topic

    @contextmanager
    def handling(self, messages: Sequence[Message]) -> Iterator[None]:
        from opentelemetry.trace import SpanKind

        first, name = messages[0], self._topic or messages[0].stream
        attributes: dict[str, str | int] = {
            "messaging.system": "redis",
            "messaging.operation.type": "process",
            "messaging.destination.name": name,
            "messaging.consumer.group.name": self._group,
            "messaging.client.id": self._consumer,
            "braidstream.attempt": first.attempt,
        }
        if len(messages) == 1:
            attributes["messaging.message.id"] = first.id
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        links = [link for message in messages if (link := _link(message)) is not None]
        with self._tracer.start_as_current_span(
            f"process {name}", kind=SpanKind.CONSUMER, links=links, attributes=attributes
        ):
            yield


def _link(message: Message) -> "Link | None":
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    raw = message.raw
    carrier = {
        name: raw[name.encode()].decode("ascii", "replace") for name in TRACE_FIELDS if name.encode() in raw
    }
    if not carrier:
        return None
    context = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    return Link(context, {"messaging.message.id": message.id}) if context.is_valid else None
