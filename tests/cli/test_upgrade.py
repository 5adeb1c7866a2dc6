"""`braid upgrade` says what an upgrade would do and who could not go on, and does it."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis

import braidstream
from braidstream import lua
from braidstream.model.keys import STATUS
from braidstream.operations.upgrade import OURS, fetch_metrics
from tests.support.cli import braid
from tests.support.daemons import all_replicating, numbered, write_config
from tests.support.forked import braid_process
from tests.support.regions import become, client_of, make_older
from tests.support.servers import NEWEST, Engine, Flavour, free_port
from tests.support.waiting import eventually

NEWER = pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)


def checked(*words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the facts of each region by name."""
    done = braid("upgrade", "--json", *words)
    assert done.stdout, done.stderr
    return done.returncode, {each["region"]: each for each in json.loads(done.stdout)["regions"]}


def serious(facts: dict[str, Any]) -> dict[str, str]:
    return {each["check"]: each["text"] for each in facts["findings"] if each["level"] != "note"}


@NEWER
def test_a_check_names_daemons_and_clients_with_their_release_and_changes_nothing(
    flavour: Flavour, tmp_path: Path
) -> None:
    with (
        Engine(flavour) as one,
        Engine(flavour) as two,
        all_replicating(tmp_path, numbered([one, two])) as daemons,
        client_of(two) as client,
    ):
        client.xadd("orders", {"n": 1})
        make_older(two, lua.OLDEST - 1)
        eventually(
            lambda: checked("--check", "--config", str(tmp_path / "braid.toml"))[0] == 1,
            within_s=20,
            why="links need newer functions",
        )
        _, regions = checked("--check", "--config", str(tmp_path / "braid.toml"))
        with redis.Redis.from_url(two.url) as plain:
            assert plain.fcall_ro("bs_version", 0) == lua.OLDEST - 1
        found = regions["region-2"]
        assert (found["functions"], found["brings"], found["can_go_on"]) == (
            lua.OLDEST - 1,
            lua.VERSION,
            True,
        )
        kinds = {each["kind"]: (each["version"], each["where"]) for each in found["programs"]}
        assert kinds["daemon"][0] == OURS
        assert f"process {daemons[1].process.pid} " in kinds["daemon"][1]
        assert kinds["client"][0] == OURS
        assert serious(found) == {}
        assert "entries for it wait until it is upgraded too" in serious(regions["region-1"])["peer"]


def test_an_upgrade_loads_the_functions_and_running_clients_go_on(flavour: Flavour) -> None:
    with Engine(flavour) as engine:
        become(engine, region=1, name="us-east")
        make_older(engine, lua.VERSION - 1)
        done = braid("upgrade", "--url", engine.url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"Engine functions: version {lua.VERSION}, loaded, was {lua.VERSION - 1}." in done.stdout
        with client_of(engine) as client:
            client.xadd("orders", {"n": 1})
        again = braid("upgrade", "--url", engine.url)
        assert f"version {lua.VERSION}, nothing to load" in again.stdout


@NEWER
def test_programs_of_another_series_are_named(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as engine:
        become(engine, region=1, name="us-east")
        metrics = f"127.0.0.1:{free_port()}"
        config = write_config(tmp_path / "braid.toml", {1: engine.url}, gateway_metrics={1: metrics})
        config.write_text(config.read_text().replace("region-1", "us-east"))
        words = ["gateway", "--url", engine.url, "--listen", "127.0.0.1:0", "--metrics", metrics]
        with engine.client() as operator, braid_process(words) as gateway:
            now = operator.time()[0] * 1000
            eventually(lambda: fetch_metrics(metrics), within_s=20, why="the gateway serves metrics")
            status = {"at_ms": now + 60_000, "started_ms": 0, "host": "h", "pid": 7, "version": "9.0.0"}
            operator.hset(STATUS, "old", json.dumps(status | {"links": {}}))
            operator.execute_command("CLIENT", "SETINFO", "LIB-NAME", "redis-py(braidstream_v0.0.9)")
            code, regions = checked("--check", "--config", str(config))
            gateway.terminate()
        found = regions["us-east"]
        assert code == 1
        assert found["can_go_on"] is True
        assert "process 7 on h" in serious(found)["daemon"]
        assert "braidstream 0.0.9" in serious(found)["client"]
        assert ("gateway", OURS) in {(each["kind"], each["version"]) for each in found["programs"]}


def test_an_upgrade_that_would_be_refused_says_why_before(engine: Engine) -> None:
    become(engine, region=1, name="us-east")
    with engine.client() as operator:
        operator.execute_command(
            "ACL", "SETUSER", "weak", "on", ">secret", "~*", "&*", "+@all", "-function", "+acl"
        )
        weak = engine.url.replace("redis://", "redis://weak:secret@")
        make_older(engine, lua.VERSION - 1)
        code, regions = checked("--url", weak)
        assert (code, regions["us-east"]["can_go_on"]) == (1, False)
        assert "may not load functions: it lacks +function|load" in serious(regions["us-east"])["rights"]
        assert operator.fcall_ro("bs_version", 0) == lua.VERSION - 1
        operator.function_load(lua.source(lua.VERSION + 1), replace=True)
        _, regions = checked("--check", "--url", engine.url)
        assert "newer than those of this program" in serious(regions["us-east"])["newer"]
        operator.function_load(lua.source(lua.VERSION) + "\n-- changed", replace=True)
        _, regions = checked("--check", "--url", engine.url)
        assert "somebody has changed them" in serious(regions["us-east"])["changed"]


def test_without_a_region_an_upgrade_of_a_file_is_a_usage_error(tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", {1: "redis://127.0.0.1:1", 2: "redis://127.0.0.1:2"})
    done = braid("upgrade", "--config", str(config))
    assert done.returncode == 2
    assert "--region NAME" in done.stderr
    code, regions = checked("--check", "--config", str(config), "--region", "region-2")
    assert (code, [*regions]) == (1, ["region-2"])
    assert "unreadable" in serious(regions["region-2"])


@pytest.mark.parametrize("options", [{"lib_name": "mine"}, {}], ids=str)
@NEWER
@pytest.mark.filterwarnings("ignore:.*lib_name.*:DeprecationWarning")
def test_a_client_keeps_the_name_that_its_user_chose(flavour: Flavour, options: dict[str, str]) -> None:
    with Engine(flavour) as engine:
        become(engine, region=1, name="us-east")
        host, port = engine.url.removeprefix("redis://").partition("/")[0].split(":")
        with braidstream.Redis(host=host, port=int(port), **options) as client:  # type: ignore[arg-type]
            [found] = [
                each["lib-name"] for each in client.client_list() if each["id"] == str(client.client_id())
            ]
        assert found == options.get("lib_name", f"redis-py(braidstream_v{OURS})")
