"""`braid status` and `braid doctor` with the URL of one region, without a braid.toml."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from braidstream.cli.main import app
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually

WITHIN_S = 60


def braid(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "120", **(env or {})})


def test_one_region_is_shown_by_its_url_and_needs_neither_a_file_nor_a_daemon(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no braid.toml is
    become(engine)
    done = braid("status", "--url", engine.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "us-east" in done.stdout
    assert "not needed" in done.stdout
    assert done.stdout.endswith("\n\nNo problems found.\n")
    assert "from" not in done.stdout, "there are no links to show"
    done = braid("status", "--json", env={"BRAID_URL": engine.url})
    [region] = json.loads(done.stdout)["regions"]
    assert (region["id"], region["name"], region["peers"]) == (1, "us-east", [])
    file = tmp_path / "url"
    file.write_text(engine.url)
    assert braid("status", "--url-file", str(file), env={"BRAID_CONFIG": "no.toml"}).exit_code == 0


def test_the_only_region_of_a_file_needs_no_daemon(engine: Engine, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", numbered([engine]))
    done = braid("status", "--config", str(config), env={"BRAID_URL": "redis://127.0.0.1:1"})
    assert (done.exit_code, done.stderr) == (0, "")
    done = braid("status", env={"BRAID_CONFIG": str(config), "BRAID_URL": "redis://127.0.0.1:1"})
    assert "region-1" in done.stdout, "the file has all regions, so it goes before the variable of one"


def test_a_file_in_the_folder_goes_before_the_variable_of_one_region(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor would not see the other regions, and exit with 0."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "braid.toml", {**numbered([engine]), 2: "redis://127.0.0.1:1"})
    for verb in ("status", "doctor"):
        done = braid(verb, env={"BRAID_URL": engine.url})
        assert done.exit_code == 1
        assert "region-2" in done.stdout
        assert "region-2" not in braid(verb, "--url", engine.url).stdout


def test_errors_of_a_region_by_its_url_say_what_to_type(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in ("status", "doctor"):
        done = braid(verb)
        assert done.exit_code == 1
        assert "error braid.toml: cannot be read" in done.stderr
        assert "--url redis://localhost:6379" in done.stderr
        done = braid(verb, "--url", engine.url)
        assert done.exit_code == 1
        assert "braid init --url" in done.stderr
        done = braid(verb, "--url", "redis://127.0.0.1:1", "--json")
        assert (done.exit_code, json.loads(done.stdout)["url"]) == (1, "redis://127.0.0.1:1")
        done = braid(verb, "--url", engine.url, "--config", "braid.toml")
        assert done.exit_code == 2
        assert "either --url or --config" in " ".join(done.stderr.split())


def test_a_region_by_its_url_shows_the_links_that_its_daemon_knows(engine: Engine, tmp_path: Path) -> None:
    with Engine(engine.flavour) as peer:
        config = write_config(tmp_path / "braid.toml", numbered([engine, peer]))
        with Daemon(config, "region-1") as daemon:
            daemon.tells("link.up peer=region-2")

            def links() -> list[tuple[str, str, str]]:
                found = json.loads(braid("status", "--url", engine.url, "--json").stdout)
                return [(each["from"], each["to"], each["state"]) for each in found["links"]]

            up = [("region-1", "region-2", "up")]
            eventually(lambda: links() == up, within_s=WITHIN_S, why="the daemon should report its link")

            def shown() -> str:
                done = braid("status", "--url", engine.url)
                assert (done.exit_code, done.stderr) == (0, "")
                return " ".join(done.stdout.split())

            eventually(
                lambda: "from \\ to region-1 region-2 region-1 - ok" in shown(),
                within_s=WITHIN_S,
                why="the daemon should have measured its lag",
            )
            assert "region-1 has peers: region 2." in shown()
            one = braid("status", "--config", str(config), "--region", "region-1")
            assert " ".join(one.stdout.split()).startswith("region server IDs memory clock daemon region-1")
            assert "region-1 has peers: region 2." in one.stdout
            assert (
                "there is no region 'moon'"
                in braid("status", "--config", str(config), "--region", "moon").stderr
            )
            assert "braid status --config braid.toml" in shown()
        done = braid("status", "--url", engine.url, "--json")
        assert done.exit_code == 1
        assert [each["kind"] for each in json.loads(done.stdout)["problems"]] == ["daemon"]
        found = json.loads(braid("doctor", "--url", engine.url, "--json").stdout)["findings"]
        assert {"daemon", "replicas"} <= {each["check"] for each in found}
        assert not {"unlisted", "unmet"} & {each["check"] for each in found}, "there is no file to agree with"


def test_one_region_is_checked_by_its_url_without_a_file(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    become(engine)
    done = braid("doctor", "--url", engine.url)
    assert (done.exit_code, done.stderr) == (1, "")
    assert "note us-east: it has no replica" in " ".join(done.stdout.split())
    assert done.stdout.endswith("1 region checked: 1 to fix.\n")
    done = braid("doctor", "--json", env={"BRAID_URL": engine.url})
    found = json.loads(done.stdout)["findings"]
    serious = {each["check"] for each in found if each["level"] != "note"}
    assert serious == {"persistence"}  # servers of tests have none
    done = braid("doctor", "--url", engine.url, "--region", "us-east")
    assert done.exit_code == 2
