"""How far a query is behind, per stream, as Prometheus gauges.

    spark.streams.addListener(LagListener())        # then start_http_server() of prometheus_client

A progress report has the end of the batch and the end of the streams at that time; the difference is the lag:
in entries, if one region counted both (offsets.py), and in seconds, by the IDs. While
nothing of a stream was read, its position has no time: the lag is then how long the listener has seen that.
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from braidstream.model import ids
from braidstream.model.frontier import name_text
from braidstream.model.strand import Strand
from braidstream.spark.source.offsets import Offset


class LagListener(StreamingQueryListener):
    """Gauges `braidstream_spark_lag_entries` and `braidstream_spark_lag_seconds`, by query and stream."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        labels = ("query", "stream")
        self._entries = Gauge(
            "braidstream_spark_lag_entries", "Entries not read yet.", labels, registry=registry
        )
        self._seconds = Gauge(
            "braidstream_spark_lag_seconds",
            "Time between the last entry read and the last one there is, by their IDs.",
            labels,
            registry=registry,
        )
        self._unread_since = dict[tuple[str, str], float]()
        self._labels = dict[str, set[tuple[str, str]]]()  # of each run of a query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        for labels in self._labels.pop(str(event.runId), set()):
            self._unread_since.pop(labels, None)
            for gauge in (self._entries, self._seconds):
                _remove(gauge, labels)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query = progress.name or str(progress.id)
        for source in progress.sources:
            end, latest = _offset(source.endOffset), _offset(source.latestOffset)
            if end is not None and latest is not None:
                noted = self.note(query, end, latest, time.monotonic())
                self._labels.setdefault(str(progress.runId), set()).update(noted)

    def note(self, query: str, end: Offset, latest: Offset, now_s: float) -> list[tuple[str, str]]:
        """Set the gauges of a batch's streams; returns their labels. now_s: monotonic."""
        unread, noted = never_read(end, latest), list[tuple[str, str]]()
        for stream, entries, seconds in lags(end, latest):
            labels = query, stream
            noted.append(labels)
            if stream in unread:
                seconds = max(seconds, now_s - self._unread_since.setdefault(labels, now_s))
            else:
                self._unread_since.pop(labels, None)
            self._seconds.labels(*labels).set(seconds)
            if entries is None:
                _remove(self._entries, labels)
            else:
                self._entries.labels(*labels).set(entries)
        return noted


def _remove(gauge: Gauge, labels: tuple[str, str]) -> None:
    with suppress(KeyError):  # never set
        gauge.remove(*labels)


def _offset(stored: Any) -> Offset | None:
    """An offset of this source; None for other sources."""
    try:
        found = json.loads(stored) if isinstance(stored, str) else stored
        is_ours = isinstance(found, dict) and not found.keys().isdisjoint(("frontier", "packed"))
        return Offset.parse(found) if is_ours else None
    except (ValueError, TypeError):
        return None


def never_read(end: Offset, latest: Offset) -> set[str]:
    """Streams with an unread strand: it has entries, and none was read. Not logs, which have no times."""
    return {
        name_text(strand.name)
        for strand in latest.frontier
        if not strand.is_of_log and end.frontier[strand] == ids.ZERO < latest.frontier[strand]
    }


def lags(end: Offset, latest: Offset) -> Iterator[tuple[str, int | None, float]]:
    """(stream, entries behind or None if unknown, seconds behind) for every stream."""
    streams = dict[bytes, list[Strand]]()
    for strand in latest.frontier:
        streams.setdefault(strand.name, []).append(strand)
    for name, strands in sorted(streams.items()):
        counts = [(end.count(strand, latest.region), latest.counts.get(strand)) for strand in strands]
        known = [(there - here) for here, there in counts if here is not None and there is not None]
        entries = sum(known) if len(known) == len(strands) else None
        behind = [
            latest.frontier[strand][0] - end.frontier[strand][0]
            for strand in strands
            if end.frontier[strand] < latest.frontier[strand] and end.frontier[strand][0]
        ]
        yield name_text(name), entries, max(behind, default=0) / 1000
