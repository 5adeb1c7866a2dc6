"""node-redis, ioredis and BullMQ, unchanged, against the gateway."""

import shutil
import subprocess
from pathlib import Path

import pytest

from braidstream.gateway.hub import Settings
from tests.support.gateways import Served
from tests.support.multi_region import Lab
from tests.support.regions import become
from tests.support.servers import NEWEST, Engine, Flavour, free_port
from tests.support.waiting import eventually

HERE = Path(__file__).parent / "node"


@pytest.mark.parametrize("program", ["node_redis.js", "ioredis.js", "bullmq.js"])
def test_a_javascript_client_produces_consumes_and_retries(served: Served, program: str) -> None:
    run(program, served.url)


def test_cluster_clients_use_gateways_that_announce_themselves(engine: Engine) -> None:
    become(engine)
    places = tuple(("127.0.0.1", free_port()) for _ in range(2))
    settings = Settings(announce=places)
    gateways = [Served(engine.url, settings, f"127.0.0.1:{port}") for _, port in places]
    with gateways[0], gateways[1]:
        run("cluster.js", gateways[1].url)  # it has seen the first one


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_a_program_with_two_gateways_and_message_ids_adds_each_once(flavour: Flavour, tmp_path: Path) -> None:
    skip_without_node()
    with Lab(tmp_path, flavour) as lab, Served(lab.one.url) as us, Served(lab.two.url) as eu:
        program = subprocess.Popen(["node", "failover.js", us.url, eu.url], cwd=HERE, stdout=subprocess.PIPE)
        eventually(lambda: lab.plain[0].xlen("orders") > 20, within_s=30, why="some orders should be there")
        lab.one.kill()
        assert program.communicate(timeout=60) == (b"fine\n", None)
        lab.bring_back()
        [entries] = lab.settle("orders")
    assert sorted(int(fields["n"]) for _, fields in entries) == list(range(1, 101))


def skip_without_node() -> None:
    if shutil.which("node") is None or not (HERE / "node_modules").exists():
        pytest.skip("node, or its packages, are not here. make setup installs both.")


def run(program: str, url: str) -> None:
    skip_without_node()
    done = subprocess.run(
        ["node", program, url], cwd=HERE, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
