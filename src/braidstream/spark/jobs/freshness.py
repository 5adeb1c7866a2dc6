"""How fresh the tables of a lake are: for Prometheus, and for people who watch an archive.

The age of a commit is the age of its oldest entry, by its ID, when readers can see it. So no entry of the
commit took longer from XADD to the table. Logs have no times in their IDs: they have no age.
"""

import json
import time
from collections.abc import Iterable
from typing import Final

from braidstream.observability.metrics import Family, Histogram
from braidstream.spark.lake.lake_state import File
from braidstream.spark.lake.typed_columns import RESCUED

MOST_STREAMS: Final = 64  # of others the label is `other`
OTHER: Final = "other"


class Freshness:
    """Counts of one archive job since it started."""

    def __init__(self) -> None:
        self.entries = dict[str, int]()
        self.rescued = dict[str, int]()
        self.ages = dict[str, Histogram]()
        self.left, self.refused, self.round_s = 0, 0, 0.0

    def committed(self, files: Iterable[File]) -> float | None:
        """Note files that readers can see from now on. Returns the age of the oldest entry."""
        now_s, oldest = time.time(), dict[str, float]()
        for each in files:
            stream = self._label(each.stream)
            self.entries[stream] = self.entries.get(stream, 0) + each.rows
            self.rescued[stream] = self.rescued.get(stream, 0) + rescued_of(each)
            if "timestamp" in json.loads(each.stats)["minValues"]:
                oldest[stream] = max(oldest.get(stream, 0.0), now_s - each.first[0] / 1000)
        for stream, age_s in oldest.items():
            self.ages.setdefault(stream, Histogram()).observe(age_s)
        return max(oldest.values(), default=None)

    def ended(self, left: int, refused: int) -> None:
        """A round has ended: so many entries are still to be archived, so many streams were refused."""
        self.left, self.refused, self.round_s = left, refused, time.time()

    def _label(self, stream: str) -> str:
        return stream if stream in self.entries or len(self.entries) < MOST_STREAMS else OTHER

    def families(self) -> list[Family]:
        def by_stream(counts: dict[str, int]) -> dict[tuple[str, ...], float]:
            return {(stream,): count for stream, count in dict(counts).items()}

        return [
            Family.counter(
                "braid_lake_entries_total", "Entries archived.", by_stream(self.entries), ("stream",)
            ),
            Family.counter(
                "braid_lake_rescued_total",
                "Archived entries with something in `_rescued`: a value that does not fit its column, a "
                "repeated field, or a field without a column.",
                by_stream(self.rescued),
                ("stream",),
            ),
            Family.histogram(
                "braid_lake_freshness_seconds",
                "Time from XADD, by the ID, until readers of the table can see the entry: of the oldest "
                "entry of each commit.",
                dict(self.ages),
                "stream",
            ),
            Family.gauge("braid_lake_left_entries", "Entries not archived yet, about.", {(): self.left}),
            Family.gauge(
                "braid_lake_refused_streams",
                "Streams that the archive refuses: deleted and created again, adopted, or trimmed before "
                "they were archived.",
                {(): self.refused},
            ),
            Family.gauge(
                "braid_lake_last_round_timestamp_seconds",
                "When the archive last looked for new entries and finished (Unix time).",
                {(): self.round_s},
            ),
        ]


def rescued_of(file: File) -> int:
    """How many entries of a new file have something in `_rescued`."""
    nulls = json.loads(file.stats)["nullCount"]
    return file.rows - int(nulls[RESCUED]) if RESCUED in nulls else 0
