"""The programs in examples/ run, and print what their authors meant them to print."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import braidstream
from tests.support.gateways import Served
from tests.support.regions import become
from tests.support.servers import NEWEST, Engine, free_port
from tests.support.up import braid_up
from tests.support.waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WITHIN_S = 60
PRINTED = {
    "asyncio_worker.py": "ada: [1, 3, 5]\ngrace: [2, 4, 6]\n",
    "asyncio_feed.py": "ada: post 1\nada: post 2\nada: post 3\ngrace: post 1\ngrace: post 2\ngrace: post 3\n",
    "producer.py": "sent order 1\nsent order 2\nsent order 3\n",
    "pubsub.py": "received: hello\nreceived: anybody here?\nstored: ['hello', 'anybody here?']\n",
    "retry.py": "the same entry: True\npayments: 1\n",
    "transfer.py": "left: 70\nrefused: 100 is more than there is\nbalance 70, 1 entry\n",
}


def test_every_example_is_tested_and_listed() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert programs == {
        *PRINTED,
        "failover.py",
        "worker.py",
        "group_loop.py",
        "fastapi_producer.py",
        "fastapi_worker.py",
        # tests/docs/test_brokers.py
        "faststream_worker.py",
        "taskiq_broker.py",
        "faststream_gateway.py",
    }
    assert programs == set(told())
    for folder in EXAMPLES.iterdir():
        assert not folder.is_dir() or folder.name == "__pycache__" or (folder / "README.md").exists()


def told() -> dict[str, str]:
    """The section of each program in the README, with what it prints."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    return {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}


@pytest.mark.parametrize("name", PRINTED)
def test_the_readme_shows_what_an_example_prints(name: str) -> None:
    assert f"python examples/{name}\n```\n\n```text\n{PRINTED[name]}```" in told()[name]


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_twice_and_prints_the_same(engine: Engine, name: str) -> None:
    become(engine)
    for _ in range(2):
        command = [sys.executable, str(EXAMPLES / name)]
        env = {**os.environ, "REDIS_URL": engine.url}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WITHIN_S)
        assert (done.returncode, done.stdout) == (0, PRINTED[name]), done.stderr


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
@pytest.mark.parametrize("name", ["worker.py", "group_loop.py"])
def test_a_worker_takes_new_and_abandoned_entries_sets_bad_ones_aside_and_stops(
    region: braidstream.Redis, engine: Engine, tmp_path: Path, name: str
) -> None:
    region.xgroup_create("example:orders", "example:billing", id="0", mkstream=True)
    region.xadd("example:orders", {"order": 1, "amount": 10})
    region.xreadgroup("example:billing", "died", {"example:orders": ">"})
    region.xadd("example:orders", {"order": 2, "amount": "ten"})
    region.xadd("example:orders", {"order": 3, "amount": 30})
    env = {**os.environ, "REDIS_URL": engine.url, "ABANDONED_MS": "1", "CLAIM_AFTER": "0.2"}
    with (
        open(tmp_path / "stdout", "wb") as output,
        subprocess.Popen([sys.executable, str(EXAMPLES / name)], env=env, stdout=output) as worker,
    ):
        try:
            eventually(
                lambda: (
                    region.xlen("example:orders:failed") == 1
                    and region.xpending("example:orders", "example:billing")["pending"] == 0
                ),
                within_s=WITHIN_S,
                why="every entry should be handled or set aside",
            )
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=WITHIN_S) == 0
    printed = (tmp_path / "stdout").read_text()
    for text in ("order 1: 10 charged", "order 3: 30 charged", "stopped"):
        assert printed.count(text) == 1  # threads may print on one line
    [(_, fields)] = region.xrange("example:orders:failed")
    assert (fields["order"], fields["amount"]) == ("2", "ten")


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_the_web_service_appends_a_repeated_request_once(region: braidstream.Redis, engine: Engine) -> None:
    port = free_port()
    env = {**os.environ, "REDIS_URL": engine.url, "PORT": str(port)}

    def post() -> str:
        headers = {"Idempotency-Key": "4711", "Content-Type": "application/json"}
        body = b'{"order": 1, "amount": 30}'
        request = urllib.request.Request(f"http://127.0.0.1:{port}/orders", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return str(json.load(reply)["id"])
        except urllib.error.URLError:
            return ""

    with subprocess.Popen([sys.executable, str(EXAMPLES / "fastapi_producer.py")], env=env) as service:
        try:
            first = eventually(post, within_s=WITHIN_S, why="the service should answer")
            assert post() == first
        finally:
            service.terminate()
    assert region.xrange("example:orders") == [(first, {"order": "1", "amount": "30"})]


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_a_web_service_handles_orders_and_stops_with_its_consumer(
    region: braidstream.Redis, engine: Engine
) -> None:
    port = free_port()
    env = {**os.environ, "REDIS_URL": engine.url, "PORT": str(port)}
    for order in (1, 2):
        region.xadd("example:orders", {"order": order, "amount": 10})

    def charged() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/charged", timeout=20) as reply:
                return str(reply.read().decode())
        except urllib.error.URLError:
            return ""

    with subprocess.Popen([sys.executable, str(EXAMPLES / "fastapi_worker.py")], env=env) as service:
        try:
            eventually(lambda: charged() == "[1,2]", within_s=WITHIN_S, why="both orders should be charged")
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20).status == 200
        finally:
            service.terminate()
    [group] = region.xinfo_groups("example:orders")
    assert (group["pending"], group["consumers"]) == (0, 0), "the consumer should have left its group"


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_the_faststream_application_runs_through_the_gateway(served: Served) -> None:
    env = {**os.environ, "REDIS_URL": served.url}
    command = [sys.executable, str(EXAMPLES / "faststream_gateway.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WITHIN_S)
    wanted = "".join(f"order {number}: {10 * number} charged\n" for number in (1, 2, 3))
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


def test_examples_with_types_pass_mypy_strict() -> None:
    names = ["worker.py", "asyncio_worker.py", "fastapi_producer.py", "fastapi_worker.py"]
    command = [sys.executable, "-m", "mypy", "--strict", *(str(EXAMPLES / name) for name in names)]
    done = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_failover_goes_on_in_the_other_region_and_back() -> None:
    with braid_up(2, NEWEST[-1]) as up:
        urls = " ".join(up.urls.values())
        command = [sys.executable, str(EXAMPLES / "failover.py")]
        env = os.environ | {"REGION_URLS": urls, "ORDERS": "100"}
        program = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        with up.client(1) as client:
            eventually(lambda: client.xlen("example:orders"), within_s=WITHIN_S, why="orders should come")
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
        printed, _ = program.communicate(timeout=WITHIN_S)
    assert printed.startswith("region-1 -> region-2\n")
