"""Prometheus metrics of consumers: `Consumer(..., metrics=prometheus_client.REGISTRY)`.

Consumers of one process share a registry; each has its own labels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from braidstream.consumers.hooks import Observer
from braidstream.consumers.message import Message

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
            ),
            Gauge("braid_consumer_running", "Handlers that run or are next.", consumer, registry=registry),
        )
    return found


class ConsumerMetrics(Observer):
    """The metrics of one consumer."""

    def __init__(self, registry: "CollectorRegistry", group: str, consumer: str) -> None:
        self._all, self._group = _collectors(registry), group
        self._in_hand = self._all.in_hand.labels(group, consumer)
        self._running = self._all.running.labels(group, consumer)
        self._seconds: dict[str, Histogram] = {}

    def taken(self, stream: str, entries: int) -> None:
        self._all.taken.labels(stream, self._group).inc(entries)

    def claimed(self, stream: str, entries: int) -> None:
        self._all.claimed.labels(stream, self._group).inc(entries)

    def ended(self, stream: str, outcome: str, entries: int = 1) -> None:
        self._all.entries.labels(stream, self._group, outcome).inc(entries)

    def in_hand(self, entries: int, running: int) -> None:
        self._in_hand.set(entries)
        self._running.set(running)

    @contextmanager
    def handling(self, messages: Sequence[Message]) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self._seconds_of(messages[0].stream).observe(perf_counter() - began)

    def _seconds_of(self, stream: str) -> "Histogram":
        if stream not in self._seconds:
            self._seconds[stream] = self._all.seconds.labels(stream, self._group)
        return self._seconds[stream]
