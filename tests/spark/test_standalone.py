"""A standalone cluster of a master and two hosts, with executors of their own: rows arrive once, though a
task has a speculative twin and though an executor is killed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from scripts import spark_classes
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.sinks import numbers
from tests.support.standalone_job import ROWS
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("127.0.0.2", "127.0.0.3")  # Spark starts no twin on the host of the task


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster's master."""
    log = tmp_path / "log"
    with ExitStack() as stack:
        said = stack.enter_context(log.open("wb"))

        def start(role: str, *words: str) -> None:
            spark_class = f"{pyspark.__path__[0]}/bin/spark-class"
            line = [spark_class, f"org.apache.spark.deploy.{role}", *words, "--webui-port", "0"]
            environment = os.environ | {"SPARK_DAEMON_JAVA_OPTS": spark_classes.OPTIONS}
            started = subprocess.Popen(line, stdout=said, stderr=said, env=environment)
            stack.callback(started.wait)
            stack.callback(started.terminate)

        start("master.Master", "--host", "127.0.0.1", "--port", "0")
        address = r"Starting Spark master at (spark://127\.0\.0\.1:\d+)"
        [url] = eventually(lambda: re.findall(address, log.read_text()), within_s=200, why="a master")
        for host in HOSTS:
            size = ("--cores", "1", "--memory", "512m", "--work-dir", str(tmp_path))
            start("worker.Worker", "--host", host, *size, url)
        known = r"Registering worker"
        eventually(lambda: len(re.findall(known, log.read_text())) == len(HOSTS), within_s=200, why="workers")
        yield url


@pytest.mark.timeout(1000)
def test_a_speculative_twin_and_a_killed_executor_leave_each_row_once(master: str, engine: Engine) -> None:
    become(engine)
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    words = [sys.executable, "-m", "tests.support.standalone_job", master, engine.url]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=800, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    with engine.client() as client:
        for stream in ("lags", "dies"):
            assert {b"0", b"1"} <= set(client.lrange(f"attempts:{stream}", 0, -1))
            assert sorted(numbers(engine, stream)) == list(range(ROWS))
