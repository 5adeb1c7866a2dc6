"""The guides to Spark and lakes run as they are printed."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from duckdb_extensions import import_extension
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.lake.typed_columns import Typing
from braidstream.spark.options import Servers
from tests.support.regions import become, client_of
from tests.support.servers import Engine

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
GUIDE = GUIDES / "spark.md"


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_the_guide_runs_as_printed(spark: SparkSession, engine: Engine, tmp_path: Path) -> None:
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        for n, amount in enumerate(("5", "15", "25")):
            client.xadd("orders", {"order": n, "amount": amount}, id=f"{1_700_000_000_000 + n}-5")
        client.execute_command("XINFO", "STREAM", "orders")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    code = "\n".join(blocks).replace("redis://localhost:6379", engine.url)
    exec(compile(code.replace("/tmp/large-orders", str(tmp_path / "c")), str(GUIDE), "exec"), {})


def test_the_guide_to_lakes_runs_as_printed(spark: SparkSession, engine: Engine, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    with engine.client() as client:
        for n in range(3):
            client.xadd("orders", {"order": n, "amount": 5 + 10 * n})
            if n == 1:
                what = Archive(lake, Servers((engine.url,), {}), (b"orders",))
                typed = Typing.parse("order long, amount double")
                archiver = Archiver(None, replace(what, schema=typed))
                archiver.round()
                archiver.close()
    import_extension("delta")
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / "lake.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    code = "\n".join(blocks).replace("redis://localhost:6379", engine.url)
    code = code.replace('"/lake"', repr(lake)).replace("/lake/orders", f"{lake}/orders")
    exec(compile(code, "lake.md", "exec"), {})


def test_a_thread_writes_once_it_has_said_which_session_is_active(
    spark: SparkSession, engine: Engine, background: ThreadPoolExecutor
) -> None:
    """Spark looks Python sources up in the session that is active in the thread; a new thread has none."""
    become(engine)

    def write() -> None:
        rows = spark.range(1).selectExpr("CAST(id AS STRING) AS n")
        rows.write.format("braidstream").options(url=engine.url, stream="orders").mode("append").save()

    with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        background.submit(write).result()
    background.submit(spark.createDataFrame, [], "n string").result()
    background.submit(write).result()
    with client_of(engine) as client:
        assert client.xlen("orders") == 1
