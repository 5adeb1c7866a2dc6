"""One Spark session for all tests that need one: starting one takes ten seconds."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from braidstream.spark.compat import available_now
from braidstream.spark.jobs.archive import Archive, Archiver, Round
from braidstream.spark.options import Servers
from tests.support.lakes import Run
from tests.support.servers import Engine, Flavour
from tests.support.world import World, fresh_world

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # Spark's own Python code warns of pandas, sockets and processes; none of it is ours.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    session = (
        SparkSession.builder.master("local[2,4]")  # a task may fail three times
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def flavour() -> Flavour:
    """Spark starts slowly, so most of these tests run on one engine."""
    return "redis-8.10"


@pytest.fixture(scope="module")
def three() -> Iterator[list[Engine]]:
    started = [Engine(each).start() for each in ("redis-7.0", "valkey-9.1", "redis-8.10")]
    yield started
    for each in started:
        each.stop()


@pytest.fixture
def world(three: list[Engine]) -> Iterator[World]:
    """Three regions on both engines, with no streams."""
    with fresh_world(three) as made, made.answering():
        yield made


Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, engine: Engine) -> Load:
    """load(streams="a", ...): a batch read. load(stream=True, ...): a streaming one."""

    def loaded(*, stream: bool = False, schema: Any = None, **options: Any) -> DataFrame:
        reader: Any = spark.readStream if stream else spark.read
        reader = reader.format("braidstream").options(**{"url": engine.url, **options})
        return reader.load() if schema is None else reader.schema(schema).load()  # type: ignore[no-any-return]

    return loaded


class Query:
    """A streaming query with a checkpoint, run until everything there is has been read."""

    def __init__(self, frame: Callable[[], DataFrame], checkpoint: Path) -> None:
        self.frame, self.checkpoint = frame, checkpoint
        self.rows = list[Any]()
        self.batches = list[int]()

    def run(self) -> list[Any]:
        """What one AvailableNow run brought."""
        before = len(self.rows)

        def collect(frame: DataFrame, batch: int) -> None:
            rows = frame.collect()
            self.rows += rows
            self.batches.append(len(rows))

        writer = self.frame().writeStream.foreachBatch(collect)
        available_now(writer.option("checkpointLocation", str(self.checkpoint)))
        return self.rows[before:]

    def numbers(self) -> list[int]:
        return numbers(self.run())


def numbers(rows: list[Any]) -> list[int]:
    """The field `n` of each row, in order."""
    return sorted(int(row.fields["n"]) for row in rows)


@pytest.fixture
def query(load: Load, tmp_path: Path) -> Callable[..., Query]:
    def made(**options: Any) -> Query:
        return Query(lambda: load(stream=True, **options), tmp_path / "checkpoint")

    return made


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def archive(engine: Engine, lake: str) -> Run:
    """archive(...): one round without a cluster. The tests that ask for `spark` run the same under Spark."""

    def run(spark: SparkSession | None = None, **how: Any) -> Round:
        how = {"streams": (b"orders",), "keep_s": 0, "servers": Servers((engine.url,), {}), **how}
        archiver = Archiver(spark, Archive(lake, **how))
        try:
            return archiver.round()
        finally:
            archiver.close()

    return run
