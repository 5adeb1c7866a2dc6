"""A Spark sink, called as Spark calls it, and drivers that die at a chosen step."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_braidstream import DefaultSource
from tests.support.regions import become, client_of
from tests.support.servers import Engine


class Sink:
    """A streaming query's sink. `write` is a task, `commit` the driver; each in a writer of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        defaults = {
            "url": url,
            "stream": "out",
            "txnAppId": "query-1",
            "rowsPerStep": 2,
            "replicationWait": "1s",
        }
        self.options = {
            name: str(value) for name, value in {**defaults, **options}.items() if value is not None
        }

    def _writer(self, schema: pa.Schema) -> Any:
        writer = DefaultSource(self.options).streamWriter(from_arrow_schema(schema), False)  # type: ignore[arg-type]
        return pickle.loads(pickle.dumps(writer))

    def write(self, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Any:
        table = pa.Table.from_pylist(rows, schema)
        message = self._writer(table.schema).write(iter(table.to_batches(max_chunksize=3)))
        return pickle.loads(pickle.dumps(message))

    def commit(self, batch: int, *messages: Any) -> None:
        self._writer(pa.schema([("n", pa.int64()), ("stream", pa.string())])).commit(list(messages), batch)

    def abort(self, batch: int, *messages: Any) -> None:
        self._writer(pa.schema([("n", pa.int64())])).abort(list(messages), batch)

    def run(self, batch: int, *partitions: list[int]) -> None:
        """A whole batch."""
        self.commit(batch, *[self.write([{"n": n} for n in numbers]) for numbers in partitions if numbers])


class Job(Sink):
    """A batch write."""

    def _writer(self, schema: pa.Schema) -> Any:
        return DefaultSource(self.options).writer(from_arrow_schema(schema), False)  # type: ignore[arg-type]

    def save(self, numbers: list[int]) -> None:
        table = pa.table({"n": numbers})
        writer = pickle.loads(pickle.dumps(self._writer(table.schema)))
        writer.commit([writer.write(iter(table.to_batches()))])


def entries(engine: Engine, name: str = "out") -> list[dict[bytes, bytes]]:
    with engine.client() as plain:
        is_region = plain.exists("bs:config")
    with client_of(engine) if is_region else engine.client() as client:
        return [fields for _, fields in client.xrange(name)]


def numbers(engine: Engine, name: str = "out") -> list[int]:
    return [int(fields[b"n"]) for fields in entries(engine, name)]


class Crash(BaseException):
    """The driver is gone."""


def crash_after(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, times: int = 1) -> None:
    """The step happens, and then nothing more."""
    real, left = getattr(kind, name), [times]

    def stepped(self: Any, *args: Any, **options: Any) -> Any:
        made = real(self, *args, **options)
        left[0] -= 1
        if left[0] == 0:
            raise Crash(name)
        return made

    monkeypatch.setattr(kind, name, stepped)


@pytest.fixture(params=["plain", "braid"])
def plain_and_region(request: pytest.FixtureRequest, engine: Engine) -> Engine:
    """A server without braidstream, and a region."""
    if request.param == "braid":
        become(engine)
    return engine
