"""Spark's side of the streaming contract, without Spark: what it calls, in which order, what it stores.

Offsets pass through JSON, readers and partitions through pickle, as between Spark's processes. The log is
what a checkpoint holds: the ends of the batches. `kill_after` ends a run at a named step, and the next run
does what Spark does after a crash: it replays the last batch of the log that was not committed.
`before_read` is called between planning and reading.
tests/spark/test_query.py runs the same source under Spark itself.
"""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from braidstream.spark.source.rows import META
from pyspark_braidstream import DefaultSource


class Killed(Exception):
    """The run ended where the test wanted it to."""


@dataclass
class Micro:
    """A streaming query over the source. `log` and `commits` are its checkpoint."""

    options: dict[str, Any]
    schema: StructType = field(default_factory=lambda: META)
    log: list[str] = field(default_factory=list)
    commits: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    before_read: Callable[[], Any] = lambda: None

    def _reader(self) -> Any:
        options = {name: str(value) for name, value in self.options.items()}
        return DefaultSource(options).streamReader(self.schema)  # type: ignore[arg-type]

    def run(self, *, kill_after: str = "", all_available: bool = True) -> list[dict[str, Any]]:
        """Batches until nothing is left, as with Trigger.AvailableNow. The rows they brought."""
        reader, before = self._reader(), len(self.rows)
        if all_available:
            reader.prepareForTriggerAvailableNow()
        try:
            if len(self.log) > self.commits:
                self._batch(reader, kill_after)
            while self._plan(reader, kill_after):
                self._batch(reader, kill_after)
        finally:
            reader.stop()
        return self.rows[before:]

    def _start(self, reader: Any, at: int) -> Any:
        return json.loads(self.log[at - 1]) if at else json.loads(json.dumps(reader.initialOffset()))

    def _plan(self, reader: Any, kill_after: str) -> bool:
        start = self._start(reader, len(self.log))
        end = json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))
        if self.log and end == self.log[-1]:
            return False
        self.log.append(end)
        _end(kill_after, "plan")
        return True

    def _batch(self, reader: Any, kill_after: str) -> None:
        at = self.commits
        start, end = self._start(reader, at), json.loads(self.log[at])
        partitions = pickle.loads(pickle.dumps(reader.partitions(start, end)))
        worker = pickle.loads(pickle.dumps(reader))
        self.before_read()
        found = [row for part in partitions for row in rows_of(worker.read(part))]
        _end(kill_after, "read")
        self.rows += found
        self.batches.append(len(found))
        self.commits += 1
        reader.commit(end)
        _end(kill_after, "commit")

    def numbers(self, **how: Any) -> list[int]:
        """The field `n` of what one run brought, sorted."""
        return sorted(number(row) for row in self.run(**how))


def _end(wanted: str, step: str) -> None:
    if wanted == step:
        raise Killed(step)


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in pa.RecordBatch.to_pylist(batch, maps_as_pydicts="strict")]


def number(row: dict[str, Any]) -> int:
    return int(row["fields"]["n"])


def rows_at_once(options: dict[str, Any], schema: StructType = META) -> list[dict[str, Any]]:
    """A batch read, called as Spark calls it."""
    reader: Any = DefaultSource({name: str(value) for name, value in options.items()}).reader(schema)  # type: ignore[arg-type]
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    worker = pickle.loads(pickle.dumps(reader))
    return [row for part in partitions for row in rows_of(worker.read(part))]
