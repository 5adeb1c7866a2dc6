"""The examples for taskiq and FastStream: a worker that is killed loses no task and no order."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import braidstream
from tests.support.matrix import on_the_newest
from tests.support.servers import Engine
from tests.support.waiting import eventually

flavour = on_the_newest
ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 90
ORDERS = 40


@contextmanager
def running(engine: Engine, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "REDIS_URL": engine.url, "CLAIM_AFTER": "1", "ORDERS": str(ORDERS)}
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(WITHIN_S)
            finally:
                process.kill()


def kill_one_of_those_that_work(region: braidstream.Redis, charged: str) -> None:
    def found() -> str:
        entries = region.xrange(charged, count=1)
        return str(entries[0][1]["process"]) if entries else ""

    os.kill(int(eventually(found, within_s=WITHIN_S, why="the work should begin")), signal.SIGKILL)


def all_charged(region: braidstream.Redis, charged: str) -> Callable[[], bool]:
    wanted = {str(order) for order in range(1, ORDERS + 1)}
    return lambda: {fields["order"] for _, fields in region.xrange(charged)} == wanted


def test_taskiq_loses_no_task_when_a_worker_is_killed(engine: Engine, region: braidstream.Redis) -> None:
    command = (sys.executable, "-m", "taskiq", "worker", "--workers", "2", "--app-dir", ".")
    with running(engine, *command, "examples.taskiq_broker:broker"):
        with running(engine, sys.executable, "-m", "examples.taskiq_broker") as producer:
            assert producer.wait(WITHIN_S) == 0
        kill_one_of_those_that_work(region, "example:tasks:charged")
        eventually(
            all_charged(region, "example:tasks:charged"), within_s=WITHIN_S, why="all tasks should run"
        )
    assert region.xpending("example:tasks", "taskiq")["pending"] == 0


def test_faststream_loses_no_order_when_a_worker_is_killed(engine: Engine, region: braidstream.Redis) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(running(engine, sys.executable, "examples/faststream_worker.py"))
        for order in range(1, ORDERS + 1):
            region.xadd("example:orders", {"order": order, "amount": 10})
        region.xadd("example:orders", {"order": "none", "amount": 10})
        kill_one_of_those_that_work(region, "example:charged")
        eventually(
            all_charged(region, "example:charged"), within_s=WITHIN_S, why="all orders should be charged"
        )
        eventually(lambda: region.xlen("example:orders.dead") == 1, within_s=WITHIN_S, why="one is wrong")
    assert region.xpending("example:orders", "example:billing")["pending"] == 0


@pytest.mark.parametrize("name", ["taskiq_broker.py", "faststream_worker.py"])
def test_the_programs_pass_mypy_strict(name: str) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", f"examples/{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
