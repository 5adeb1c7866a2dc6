"""The examples for taskiq and FastStream lose no task and no order when a worker or a region is killed."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import braidstream
from tests.support.cluster import Cluster, become_cluster
from tests.support.matrix import on_the_newest
from tests.support.regions import become
from tests.support.replicas import SentinelGroup
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.up import Up, braid_up
from tests.support.waiting import eventually

flavour = on_the_newest
ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 90
ORDERS = 200
TASKIQ = (
    sys.executable,
    "-m",
    "taskiq",
    "worker",
    "--workers",
    "2",
    "--max-async-tasks",
    "2",
    "--app-dir",
    ".",
    "examples.taskiq_broker:broker",
)
SEND = (sys.executable, "-m", "examples.taskiq_broker")
FASTSTREAM = (sys.executable, "examples/faststream_worker.py")


class Programs:
    """Programs that run with a region, and what all of them print."""

    def __init__(self, folder: Path, urls: str) -> None:
        self.output, self._urls, self._stack = folder / "printed", urls, ExitStack()

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        return self._stack.enter_context(self._running(command))

    @contextmanager
    def _running(self, command: tuple[str, ...]) -> Iterator["subprocess.Popen[bytes]"]:
        env = {**os.environ, "REGION_URLS": self._urls, "CLAIM_AFTER": "1", "ORDERS": str(ORDERS)}
        with (
            open(self.output, "ab") as output,
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=output) as process,
        ):
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(WITHIN_S)
                finally:
                    process.kill()

    def send(self) -> None:
        assert self.start(*SEND).wait(WITHIN_S) == 0

    @property
    def charged(self) -> Counter[str]:
        """How often each order was charged, by what was printed."""
        return Counter(re.findall(r"order (\d+): \d+ charged", self.output.read_text()))

    def until_all_charged(self) -> None:
        wanted = {str(order) for order in range(1, ORDERS + 1)}
        eventually(
            lambda: self.charged.keys() == wanted, within_s=WITHIN_S, why="all orders should be charged"
        )
        print(f"{ORDERS} orders, {sum(self.charged.values()) - ORDERS} charged again")


def kill_one_of_those_that_work(region: Any, charged: str) -> None:
    def found() -> str:
        entries = region.xrange(charged, count=1)
        return str(entries[0][1]["process"]) if entries else ""

    os.kill(int(eventually(found, within_s=WITHIN_S, why="the work should begin")), signal.SIGKILL)


def kill_the_first_region(up: Up, stream: str, charged: str) -> None:
    """When all of the stream is in the other region too, and work has begun."""
    with up.client(1) as one, up.client(2) as two:
        eventually(lambda: one.xlen(charged), within_s=WITHIN_S, why="the work should begin")
        eventually(
            lambda: two.xlen(stream) >= ORDERS, within_s=WITHIN_S, why="the stream should be in both regions"
        )
        os.kill(one.info("server")["process_id"], signal.SIGKILL)


def until_none_is_pending(region: Any, stream: str, group: str) -> None:
    eventually(
        lambda: not region.xpending(stream, group)["pending"],
        within_s=WITHIN_S,
        why="all should be acknowledged",
    )


def test_taskiq_loses_no_task_when_a_worker_is_killed(
    engine: Engine, region: braidstream.Redis, tmp_path: Path
) -> None:
    with Programs(tmp_path, engine.url) as programs:
        programs.start(*TASKIQ)
        programs.send()
        kill_one_of_those_that_work(region, "example:tasks:charged")
        programs.until_all_charged()
        until_none_is_pending(region, "example:tasks", "taskiq")


@pytest.mark.nightly("In CI: on one server and on two regions")
@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_taskiq_does_the_same_on_a_cluster_and_on_a_sentinel_group(
    kind: str, flavour: Flavour, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        client: Any
        if kind == "cluster":
            cluster = stack.enter_context(Cluster(flavour))
            become_cluster(cluster)
            client, url = braidstream.RedisCluster.from_url(cluster.url, decode_responses=True), cluster.url
        else:
            group = stack.enter_context(SentinelGroup(flavour, replicas=1))
            become(group.primary)
            client, url = braidstream.Redis.from_url(group.url, decode_responses=True), group.url
        stack.enter_context(client)
        programs = stack.enter_context(Programs(tmp_path, url))
        programs.start(*TASKIQ)
        programs.send()
        kill_one_of_those_that_work(client, "example:tasks:charged")
        programs.until_all_charged()
        until_none_is_pending(client, "example:tasks", "taskiq")


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_taskiq_goes_on_in_the_other_region_when_one_is_killed(flavour: Flavour, tmp_path: Path) -> None:
    with braid_up(2, flavour) as up, Programs(tmp_path, " ".join(up.urls.values())) as programs:
        programs.start(*TASKIQ)
        programs.send()
        kill_the_first_region(up, "example:tasks", "example:tasks:charged")
        programs.until_all_charged()
        with up.client(2) as two:
            until_none_is_pending(two, "example:tasks", "taskiq")


def add_orders(region: braidstream.Redis) -> None:
    for order in range(1, ORDERS + 1):
        region.xadd("example:orders", {"order": order, "amount": 10})


def test_faststream_loses_no_order_when_a_worker_is_killed(
    engine: Engine, region: braidstream.Redis, tmp_path: Path
) -> None:
    with Programs(tmp_path, engine.url) as programs:
        for _ in range(2):
            programs.start(*FASTSTREAM)
        add_orders(region)
        region.xadd("example:orders", {"order": "none", "amount": 10})
        kill_one_of_those_that_work(region, "example:charged")
        programs.until_all_charged()
        eventually(lambda: region.xlen("example:orders.dead") == 1, within_s=WITHIN_S, why="one is wrong")
        until_none_is_pending(region, "example:orders", "example:billing")


@pytest.mark.nightly("In CI: taskiq does")
@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_faststream_goes_on_in_the_other_region_when_one_is_killed(flavour: Flavour, tmp_path: Path) -> None:
    with braid_up(2, flavour) as up, Programs(tmp_path, " ".join(up.urls.values())) as programs:
        with up.client(1) as one:
            add_orders(one)
        for _ in range(2):
            programs.start(*FASTSTREAM)
        kill_the_first_region(up, "example:orders", "example:charged")
        programs.until_all_charged()
        with up.client(2) as two:
            until_none_is_pending(two, "example:orders", "example:billing")


def test_the_programs_pass_mypy_strict() -> None:
    programs = [f"examples/{name}.py" for name in ("taskiq_broker", "faststream_worker")]
    command = [sys.executable, "-m", "mypy", "--strict", *programs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
