"""Tab completes regions of braid.toml and streams of a region, and offers nothing if it cannot know."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import braid
from tests.support.daemons import write_config
from tests.support.regions import become, client_of
from tests.support.servers import NEWEST, Engine

BRAID = Path(sys.executable).with_name("braid")


def tab(line: str) -> list[str]:
    """What bash gets for the last word of a line."""
    env = {
        **os.environ,
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "_BRAID_COMPLETE": "complete_bash",
    }
    done = subprocess.run([BRAID], env=env, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_regions_and_streams_are_completed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(engine)
    with client_of(engine) as client, engine.client() as plain:
        for name in ("orders", "orders.dead", "gone", "payments"):
            client.xadd(name, {"n": 1})
        client.delete("gone")
        client.twrite("order-log", entries=[("tag", "entry")])
        plain.xadd("order-old", {"n": 1})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRAID_URL", raising=False)
    write_config(tmp_path / "braid.toml", {1: engine.url, 2: "redis://127.0.0.1:1"})
    assert tab("braid tail --region ") == ["region-1", "region-2"]
    assert tab("braid region rejoin region-2") == ["region-2"]
    assert tab("braid tail order") == ["order-log", "order-old", "orders", "orders.dead"]
    assert tab("braid tail --region region-1 p") == ["payments"]
    assert tab("braid acl worker --streams orders,p") == ["orders,payments"]
    assert tab("braid log info order-l") == ["order-log"]
    assert tab(f"braid tail --url {engine.url} g") == []
    assert tab("braid streams --pat") == ["--pattern"]


def test_without_an_answer_nothing_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRAID_URL", raising=False)
    assert tab("braid tail --region ") == []
    assert tab("braid tail --url redis://127.0.0.1:1 or") == []
    Path("braid.toml").write_text('[[region]]\nid = 1\nname = "us-east"\nurl = "redis://u:${NOT_THERE}@h"\n')
    assert tab("braid tail --region ") == ["us-east"]
    assert tab("braid tail or") == []
    assert braid("tail", "orders").returncode == 1
