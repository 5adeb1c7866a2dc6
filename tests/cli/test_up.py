"""`braid up`: where it listens, and what it says when something is in the way or dies."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

import braidstream
from tests.support.cli import BRAID, braid
from tests.support.servers import UP_ABOVE, Flavour, free_port
from tests.support.waiting import eventually

WITHIN_S = 20


def test_servers_and_gateways_listen_on_the_ports_that_were_asked_for(
    flavour: Flavour, tmp_path: Path
) -> None:
    port = free_port(*UP_ABOVE)
    words = ["--regions", "1", "--engine", flavour, "--port", str(port), "--dir", str(tmp_path), "--json"]
    with (
        open(tmp_path / "stderr", "wb") as errors,
        subprocess.Popen([*BRAID, "up", *words], stdout=subprocess.PIPE, stderr=errors) as up,
    ):
        try:
            assert up.stdout is not None
            [region] = json.loads(up.stdout.readline())["regions"]
            assert (region["url"], region["gateway"]) == (
                f"redis://127.0.0.1:{port}",
                f"127.0.0.1:{port + 100}",
            )
            with braidstream.Redis(port=port) as client:
                client.xadd("orders", {"order": 1})
            with redis.Redis(port=port + 100) as any_client:
                assert any_client.xlen("orders") == 1
                engine = int(any_client.info("server")["process_id"])
            os.kill(engine, signal.SIGKILL)
            eventually(
                lambda: (
                    f"the {flavour} of region-1 was killed by SIGKILL. Its log: {tmp_path}"
                    in (tmp_path / "stderr").read_text()
                ),
                within_s=WITHIN_S,
                why="braid up should say that its engine died",
            )
            assert "Ready to accept connections" in (tmp_path / "region-1" / "engine.log").read_text()
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate(timeout=WITHIN_S)


def test_it_says_what_to_type_next_and_that_works(flavour: Flavour, tmp_path: Path) -> None:
    port = free_port(*UP_ABOVE)
    words = ["--regions", "2", "--engine", flavour, "--port", str(port), "--dir", str(tmp_path / "my data")]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with subprocess.Popen([*BRAID, "up", *words], stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            while next(up.stdout) != "Try it in another terminal:\n":
                pass
            append, tail, status = (next(up.stdout).strip() for _ in range(3))

            def typed(line: str) -> str:
                done = subprocess.run(line, shell=True, env=env, capture_output=True, text=True, timeout=60)
                return done.stdout if done.returncode == 0 else ""

            assert typed(append)
            eventually(
                lambda: "item=book" in typed(f"{tail} --no-follow"),
                within_s=WITHIN_S,
                why="the entry should arrive in the last region",
            )
            eventually(
                lambda: "No problems found." in typed(status), within_s=WITHIN_S, why="all should be well"
            )
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate(timeout=WITHIN_S)


@pytest.mark.parametrize("above", [0, 100], ids=["server", "gateway"])
def test_a_port_that_is_in_use_is_named(flavour: Flavour, above: int) -> None:
    port = free_port(*UP_ABOVE)
    with socket.create_server(("127.0.0.1", port + above)):
        done = braid("up", "--regions", "1", "--engine", flavour, "--port", str(port), within_s=WITHIN_S)
    assert done.returncode == 1
    assert f"port {port + above} is in use" in done.stderr
    assert "--port" in done.stderr
