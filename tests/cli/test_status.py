"""`braid status` names what is wrong, within seconds, from what the engines tell."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.forked import braid_process
from tests.support.matrix import installed
from tests.support.proxy import Proxy
from tests.support.regions import client_of
from tests.support.servers import NEWEST, Engine
from tests.support.waiting import eventually

WITHIN_S = 60


class Five:
    """Five regions with daemons. Region 1 reaches region 2 through a proxy; region 4's clock can be set."""

    def __init__(self, stack: ExitStack, flavour: Any, folder: Path) -> None:
        self.engines = [
            stack.enter_context(Engine(flavour, clock_s=0 if number == 4 else None)) for number in range(1, 6)
        ]
        urls = numbered(self.engines)
        self.proxy = stack.enter_context(Proxy(self.engines[1].port))
        self.config = write_config(folder / "braid.toml", urls)
        through = write_config(folder / "one.toml", {**urls, 2: self.proxy.url})
        self.daemons = [
            stack.enter_context(Daemon(through if number == 1 else self.config, f"region-{number}"))
            for number in range(1, 6)
        ]
        for daemon in self.daemons:
            daemon.tells("daemon.ready", within_s=WITHIN_S)

    def status(self) -> dict[str, Any]:
        done = braid("status", "--config", str(self.config), "--json")
        found = json.loads(done.stdout)
        assert done.returncode == (1 if found["problems"] else 0)
        return found  # type: ignore[no-any-return]

    def link(self) -> dict[str, Any]:
        """What the status says of the link that the proxy can cut."""
        found = self.status()["links"]
        return next(each for each in found if (each["from"], each["to"]) == ("region-1", "region-2"))  # type: ignore[no-any-return]


@pytest.fixture(params=NEWEST[:1])
def five(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Five]:
    with ExitStack() as stack:
        yield Five(stack, installed(request.param), tmp_path)


def fill(engine: Engine) -> None:
    """Leave no memory for another entry."""
    with engine.client() as client:
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", used + 2_000_000)
        for size in (20_000, 1_000):
            with suppress(redis.ResponseError):
                while True:
                    client.rpush("filler", "x" * size)


def test_four_different_problems_are_named_within_five_seconds(five: Five) -> None:
    eventually(lambda: not five.status()["problems"], within_s=WITHIN_S, why="nothing is wrong yet")
    with client_of(five.engines[0]) as client:
        client.xadd("orders", {"n": 1})
    with client_of(five.engines[1]) as peer:
        eventually(lambda: peer.xlen("orders") == 1, within_s=WITHIN_S, why="the link still works")
    eventually(
        lambda: not five.link()["lag_entries"], within_s=WITHIN_S, why="its confirmation has come back"
    )
    five.proxy.cut_off()
    five.daemons[0].tells("link.lost peer=region-2")
    with client_of(five.engines[0]) as client:
        for number in range(3):
            client.xadd("orders", {"n": number})
    five.daemons[2].process.send_signal(signal.SIGSTOP)
    five.engines[3].set_clock(7.0)
    fill(five.engines[4])
    began = time.monotonic()
    try:
        time_left = 5.0
        seen = {}
        wanted = {
            "region-1 -> region-2": "link",
            "region-3": "daemon",
            "region-4": "clock",
            "region-5": "full",
        }
        while time.monotonic() - began < time_left:
            seen = {each["where"]: each["kind"] for each in five.status()["problems"]}
            if wanted.items() <= seen.items():
                break
        assert wanted.items() <= seen.items(), seen
        assert not set(seen) - {*wanted} - {f"region-{number} -> region-5" for number in range(1, 5)}, seen
        print(f"all four named after {time.monotonic() - began:.1f} s")
        link = five.link()
        assert link["state"] == "down"
        assert link["lag_entries"] == 3
        shown = braid("status", "--config", str(five.config))
        assert shown.returncode == 1
        text = " ".join(shown.stdout.split())
        assert "region-3: its daemon (process" in text
        assert "7.0 s ahead of the others" in text
    finally:
        five.daemons[2].process.send_signal(signal.SIGCONT)


def test_a_lone_region_without_a_daemon_and_one_that_is_down(engine: Engine, tmp_path: Path) -> None:
    urls = {**numbered([engine]), 2: "redis://127.0.0.1:1"}
    config = write_config(tmp_path / "braid.toml", urls)
    done = braid("status", "--config", str(config), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(each["kind"], each["where"]) for each in found["problems"]] == [
        ("daemon", "region-1"),
        ("unreachable", "region-2"),
    ]


def test_a_replica_and_a_server_that_lost_its_data_are_told_apart(engine: Engine, tmp_path: Path) -> None:
    numbered([engine])
    with Engine(engine.flavour) as replica, Engine(engine.flavour) as empty:
        with replica.client() as operator:
            operator.replicaof("127.0.0.1", engine.port)
            eventually(lambda: operator.exists("bs:config"), within_s=WITHIN_S, why="it should be copied")
        config = write_config(tmp_path / "braid.toml", {1: replica.url, 2: empty.url})
        done = braid("status", "--config", str(config), "--json")
        assert [(each["kind"], each["where"]) for each in json.loads(done.stdout)["problems"]] == [
            ("replica", "region-1"),
            ("noregion", "region-2"),
        ]
        assert "noregion" in braid("status", "--config", str(config)).stdout


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    done = braid("status", "--config", str(tmp_path / "no.toml"))
    assert done.returncode == 1
    assert "no.toml: cannot be read" in done.stderr


def test_watching_refreshes_until_it_is_stopped(engine: Engine, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", numbered([engine]))
    words = ["status", "--config", str(config), "--watch", "--every", "0.2", "--json"]
    with braid_process(words, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        for _ in range(3):
            assert json.loads(watching.stdout.readline())["regions"][0]["name"] == "region-1"
        os.kill(watching.pid, signal.SIGINT)
        watching.stdout.read()
    assert watching.returncode in (0, 130, -signal.SIGINT)


@pytest.mark.timeout(WITHIN_S)
def test_watching_prints_each_screen_into_a_pipe(engine: Engine, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", numbered([engine]))
    words = ["status", "--config", str(config), "--watch", "--every", "0.2"]
    with braid_process(words, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout is not None
            seen = list[str]()
            while len(seen) < 2:
                line = watching.stdout.readline()
                if "Ctrl-C stops" in line:
                    seen.append(line)
        finally:
            os.kill(watching.pid, signal.SIGINT)
