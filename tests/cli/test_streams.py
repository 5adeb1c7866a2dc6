"""`braid streams`, `braid groups`, `braid tail`: what is in a region, without Spark."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

import braidstream
from tests.support.cli import braid
from tests.support.daemons import write_config
from tests.support.forked import braid_process
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually


def fill(engine: Engine) -> braidstream.Redis:
    become(engine)
    client = client_of(engine, decode_responses=True)
    for number in range(30):
        client.xadd("orders", {"order": number})
    client.xadd("[red]odd\n", {b"\xff\x00": "[bold]"})
    client.xadd("gone", {"n": 1})
    client.delete("gone")
    client.xgroup_create("orders", "billing", "0")
    client.xgroup_create("orders", "shipping", "$")
    client.xreadgroup("billing", "c1", {"orders": ">"}, count=12)
    client.xdel("orders", client.xrange("orders")[-1][0])
    return client


def test_streams_and_groups_are_listed_with_lag_and_pending_entries(engine: Engine) -> None:
    with fill(engine):
        streams = json.loads(braid("streams", "--url", engine.url, "--json").stdout)["streams"]
        groups = json.loads(braid("groups", "--url", engine.url, "--json").stdout)["groups"]
        shown = braid("streams", "--url", engine.url, "--pattern", "*odd*").stdout
        assert braid("groups", "--url", engine.url, "--pattern", "no*").stdout == (
            "us-east has no groups of streams that match no*.\n"
        )
    assert [(each["name"], each["entries"], each["groups"]) for each in streams] == [
        ("[red]odd\\n", 1, 0),
        ("orders", 29, 2),
    ]
    assert all(each["bytes"] > 0 and each["last_ms"] > 0 for each in streams)
    assert "[red]odd\\n" in shown
    assert "orders" not in shown
    found = {each["group"]: each for each in groups}
    assert (found["billing"]["lag"], found["billing"]["pending"], found["billing"]["consumers"]) == (
        17,
        12,
        1,
    )
    assert found["billing"]["oldest_pending_ms"] >= 0
    assert (found["shipping"]["lag"], found["shipping"]["oldest_pending_ms"]) == (0, None)


def test_a_stream_is_shown_as_it_grows_and_nothing_in_it_moves_the_cursor(engine: Engine) -> None:
    words = ["tail", "orders", "--url", engine.url, "-n", "2", "--json"]
    with fill(engine) as client, braid_process(words, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        first = [json.loads(tail.stdout.readline()) for _ in range(2)]
        assert [each["fields"]["order"] for each in first] == ["27", "28"]
        entry = client.xadd("orders", {"order": "new", "esc": "\x1b[2J"})
        assert json.loads(tail.stdout.readline()) == {
            "id": entry,
            "region": 1,
            "fields": {"order": "new", "esc": "\\x1b[2J"},
        }
        tail.send_signal(signal.SIGINT)
        tail.wait(20)


def test_a_stream_that_is_missing_and_a_server_that_is_no_region_are_errors(engine: Engine) -> None:
    done = braid("streams", "--url", engine.url)
    assert done.returncode == 1
    assert "not a braidstream region" in done.stderr
    become(engine)
    done = braid("tail", "nosuch", "--url", engine.url)
    assert done.returncode == 1
    assert "there is no stream 'nosuch'" in done.stderr


def test_a_log_is_listed_with_its_last_offset(engine: Engine) -> None:
    become(engine)
    with client_of(engine, decode_responses=True) as client:
        client.twrite("audit", entries=[("login", "ann"), ("logout", "ann")])
        client.tread("audit", count=1, group="readers", retry=(10_000, 60_000))
    assert "offset 2" in braid("streams", "--url", engine.url).stdout
    [found] = json.loads(braid("streams", "--url", engine.url, "--json").stdout)["streams"]
    assert (found["last_ms"], found["last_offset"]) == (None, 2)
    [group] = json.loads(braid("groups", "--url", engine.url, "--json").stdout)["groups"]
    assert (group["pending"], group["oldest_pending_ms"]) == (1, None)
    shown = braid("tail", "audit", "--url", engine.url, "--no-follow").stdout
    assert "0-1  region 1  t=login  e=ann" in shown


def commands(client: braidstream.Redis) -> int:
    """How often registries were read: by the tail, as the test reads none."""
    return int(client.info("commandstats").get("cmdstat_hgetall", {}).get("calls", 0))


def test_a_stream_that_is_deleted_is_followed_again_and_costs_no_cpu_meanwhile(engine: Engine) -> None:
    words = ["tail", "orders", "--url", engine.url, "-n", "1", "--json"]
    with fill(engine) as client, braid_process(words, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        tail.stdout.readline()
        client.delete("orders")
        began = commands(client)
        # Two rounds of the tail; it would be thousands if it did not wait.
        eventually(lambda: commands(client) - began >= 2, within_s=20, why="the tail should look again")
        assert commands(client) - began < 200
        client.xadd("orders", {"order": "again"})
        assert json.loads(tail.stdout.readline())["fields"] == {"order": "again"}
        tail.send_signal(signal.SIGINT)
        assert tail.wait(10) == 0


def test_native_streams_are_listed_and_marked(engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client, engine.client() as plain:
        client.xadd("ours", {"n": 1})
        plain.xadd("old", {"n": 1})
        plain.xgroup_create("old", "billing", "0")
        shown = braid("streams", "--url", engine.url).stdout.splitlines()
        assert [line.split()[0] for line in shown] == ["stream", "old", "ours"]
        assert [" native " in line for line in shown] == [False, True, False]
        [group] = json.loads(braid("groups", "--url", engine.url, "--json").stdout)["groups"]
        assert (group["stream"], group["group"], group["lag"], group["owners"]) == ("old", "billing", 1, {})


def test_a_verb_finds_its_region_in_braid_toml(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(engine)
    with client_of(engine) as client:
        client.xadd("orders", {"n": 1})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRAID_URL", raising=False)
    assert "Or work where a braid.toml lists your regions" in braid("streams").stderr
    write_config(tmp_path / "braid.toml", {1: engine.url})
    assert "orders" in braid("streams").stdout
    write_config(tmp_path / "two.toml", {1: "redis://127.0.0.1:1", 2: engine.url})
    which = braid("streams", "--config", "two.toml")
    assert (which.returncode, "region-1, region-2. Name one of them: --region NAME" in which.stderr) == (
        2,
        True,
    )
    assert "orders" in braid("streams", "--config", "two.toml", "--region", "region-2").stdout
    monkeypatch.setenv("BRAID_CONFIG", "two.toml")
    assert "orders" in braid("streams", "--region", "2").stdout
    lost = braid("streams", "--region", "moon", "--json")
    assert "there is no region 'moon'" in json.loads(lost.stdout)["error"]
    monkeypatch.setenv("BRAID_URL", "redis://127.0.0.1:1")
    assert braid("streams").returncode == 1  # the variable, not the file
    assert "orders" in braid("streams", "--url", engine.url).stdout
