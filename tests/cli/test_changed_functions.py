"""Somebody has replaced the engine functions: the daemon, `braid status` and `braid doctor` say so."""

import json
from pathlib import Path
from typing import Any

from braidstream import lua as functions
from tests.support.cli import braid
from tests.support.daemons import WITHIN_S, Daemon, write_config
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually


def test_changed_functions_are_named_and_init_force_loads_them_again(engine: Engine, tmp_path: Path) -> None:
    become(engine, region=1, name="region-1")
    config = write_config(tmp_path / "braid.toml", {1: engine.url})

    def findings() -> list[dict[str, Any]]:
        found = json.loads(braid("doctor", "--config", str(config), "--json").stdout)["findings"]
        return [each for each in found if each["check"] == "functions"]

    assert findings() == []
    with engine.client() as mallory:
        mallory.execute_command("FUNCTION", "LOAD", "REPLACE", functions.source() + "\n-- mine")
    where = ("--url", engine.url, "--region", "1", "--name", "region-1")
    with Daemon(config, "region-1") as daemon:
        daemon.tells("functions.changed")

        def problems() -> list[str]:
            said = json.loads(braid("status", "--config", str(config), "--json").stdout)
            return [each["fix"] for each in said["problems"] if each["kind"] == "functions"]

        [fix] = eventually(problems, within_s=WITHIN_S, why="the daemon reports it")
        assert "--force" in fix
    assert "braid init --force" in findings()[0]["fix"]
    assert "already there" in braid("init", *where).stdout
    assert braid("init", *where, "--force").returncode == 0
    assert findings() == []
