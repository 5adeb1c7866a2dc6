"""Spark Connect and declarative pipelines, each as a process of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Engine

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "spark-pipeline"

CONNECT = """
import sys
from pyspark.sql import SparkSession

url, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
orders = spark.read.format("braidstream").options(url=url, streams="orders").load()
assert orders.count() == 3
query = (
    spark.readStream.format("braidstream").options(url=url, streams="orders").load().select("fields")
    .writeStream.format("braidstream").options(url=url, stream="copies", checkpointLocation=checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
assert query.exception() is None
"""


def run(engine: Engine, folder: Path, *command: str) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "BRAID_URL": engine.url,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # a free port for Spark Connect: its own, 15002, may be taken by another test
    }
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def fill(engine: Engine) -> None:
    with engine.client() as client:
        for n, amount in enumerate((5, 15, 25)):
            client.xadd("orders", {"order": n, "amount": amount})


@pytest.mark.nightly("In CI: the source and the sink in a session of their own JVM")
@pytest.mark.timeout(1000)
def test_spark_connect_finds_the_source_and_the_sink(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    run(engine, tmp_path, sys.executable, "-c", CONNECT, engine.url, str(tmp_path / "checkpoint"))
    with engine.client() as client:
        assert client.xlen("copies") == 3


@pytest.mark.nightly("In CI: the source and the sink, which it uses")
@pytest.mark.timeout(1000)
def test_the_example_of_a_declarative_pipeline_runs(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    storage = (tmp_path / "storage").as_uri()
    spec.write_text(spec.read_text().replace("storage: file:///tmp/large-orders", f"storage: {storage}"))
    run(engine, tmp_path / "pipeline", "spark-pipelines", "run", "--spec", str(spec))
    with engine.client(decode_responses=True) as client:
        large = [(fields["order"], fields["amount"]) for _, fields in client.xrange("large-orders")]
    assert sorted(large) == [("1", "15"), ("2", "25")]
