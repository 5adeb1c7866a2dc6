"""Logs as JSON, for machines that read them."""

import json
import signal
import subprocess
from datetime import datetime
from pathlib import Path

from tests.support.cli import BRAID
from tests.support.daemons import numbered, write_config
from tests.support.servers import Engine
from tests.support.waiting import eventually


def test_every_line_of_a_daemon_is_one_json_object(engine: Engine, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", {**numbered([engine]), 2: "redis://127.0.0.1:1"})
    log = tmp_path / "log"
    words = ["replicate", "--config", str(config), "--region", "region-1", "--log-format", "json"]
    with open(log, "wb") as file, subprocess.Popen([*BRAID, *words], stderr=file) as daemon:
        eventually(lambda: "link.lost" in log.read_text(), within_s=30, why="the peer is down")
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(20)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    [lost] = [line for line in lines if line["event"] == "link.lost"]
    assert (lost["level"], lost["peer"]) == ("WARNING", "region-2")
    assert "127.0.0.1:1" in lost["why"]
    assert datetime.fromisoformat(lost["time"]).tzinfo is not None
    assert (lost["region"], lost["pid"]) == ("region-1", daemon.pid)
    assert lines[-1]["event"] == "daemon.stopped"
