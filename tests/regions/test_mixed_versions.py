"""Upgrade and roll back region by region, as docs/guides/operations.md says: two releases side by side.

The older one is the state of the repository before logs, adoption and workers (engine functions 7), from its
history. The newer one is the working tree.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import braidstream
from braidstream import lua
from tests.support.daemons import Daemon, write_config
from tests.support.servers import Engine
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
OLDER = "e43b37d3759fd4fb450ce316020ce74ccece1410"
WITHIN_S = 60
# A program of an application: appends, deletes, reads as a group, and prints what it sees.
PROGRAM = """
import json, sys, braidstream
url, *words = sys.argv[1:]
with braidstream.Redis.from_url(url, decode_responses=True) as client:
    for word in words:
        entry = client.xadd("orders", {"n": word})
    if words and words[-1].startswith("gone"):
        client.xdel("orders", entry)
    if "group" not in [each["name"] for each in client.xinfo_groups("orders")]:
        client.xgroup_create("orders", "group", "0")
    taken = client.xreadgroup("group", "c", {"orders": ">"}, count=1)
    print(json.dumps([fields["n"] for _, fields in client.xrange("orders")]))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `python -m braidstream` is the older release."""
    folder = tmp_path_factory.mktemp("older")
    packed = subprocess.run(["git", "archive", OLDER, "src"], cwd=ROOT, capture_output=True)
    if packed.returncode:
        pytest.skip(f"the history has no commit {OLDER}: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return {"PYTHONPATH": str(folder / "src")}


NEWER: dict[str, str] = {}


def run(release: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    """Python of a release."""
    env = {**os.environ, **release}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, env=env)


def braid(release: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return run(release, "-m", "braidstream.cli.main", *words)


def init(release: dict[str, str], engine: Engine, number: int) -> dict[str, object]:
    words = ("--url", engine.url, "--region", str(number), "--name", f"region-{number}", "--json")
    done = braid(release, "init", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def application(release: dict[str, str], engine: Engine, *words: str) -> list[str]:
    done = run(release, "-c", PROGRAM, engine.url, *words)
    assert done.returncode == 0, done.stderr
    seen: list[str] = json.loads(done.stdout)
    return seen


class Regions:
    """Two regions, each with a daemon of one release."""

    def __init__(self, engines: list[Engine], config: Path) -> None:
        self.engines, self.config = engines, config
        self.daemons = dict[int, Daemon]()
        self.written = set[str]()

    def serve(self, number: int, release: dict[str, str]) -> None:
        """Start the daemon of a region, or restart it with another release."""
        if number in self.daemons:
            self.stop(number)
        self.daemons[number] = Daemon(self.config, number, env=release)

    def stop(self, number: int) -> None:
        self.daemons.pop(number).__exit__(None, None, None)

    def write_everywhere(self, *releases: dict[str, str]) -> None:
        """An application of a release in each region writes and deletes. Then both regions have the same."""
        for number, release in enumerate(releases, 1):
            word = f"{len(self.written)}-{number}"
            application(release, self.engines[number - 1], word, f"gone-{word}")
            self.written.add(word)
        for engine, release in zip(self.engines, releases, strict=True):
            eventually(
                lambda engine=engine, release=release: (  # type: ignore[misc]
                    set(application(release, engine)) == self.written
                ),
                within_s=WITHIN_S,
                why=f"region at {engine.port} has {sorted(self.written)}",
            )


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(each)) for each in ("redis-8.10", "valkey-9.1")]
        urls = {number: engine.url for number, engine in enumerate(engines, 1)}
        made = Regions(engines, write_config(tmp_path / "braid.toml", urls))
        yield made
        for number in list(made.daemons):
            made.stop(number)


def test_regions_are_upgraded_and_rolled_back_one_after_the_other(
    older: dict[str, str], regions: Regions
) -> None:
    one, two = regions.engines
    was = {init(older, engine, number)["functions"]["version"] for number, engine in ((1, one), (2, two))}  # type: ignore[index]
    assert max(was) < lua.VERSION
    for number in (1, 2):
        regions.serve(number, older)
    regions.write_everywhere(older, older)

    # A newer client at older functions says what to do.
    early = run(NEWER, "-c", PROGRAM, one.url, "early")
    assert "braid init" in early.stderr
    assert "LibraryError" in early.stderr

    # Region 1: functions under load, then the daemon, then applications. Region 2 stays as it is.
    assert init(NEWER, one, 1)["functions"] == {"version": lua.VERSION, "was": max(was)}
    regions.write_everywhere(older, older)
    regions.serve(1, NEWER)
    regions.write_everywhere(older, older)
    regions.write_everywhere(NEWER, older)

    # Region 2 follows.
    init(NEWER, two, 2)
    regions.serve(2, NEWER)
    regions.write_everywhere(NEWER, NEWER)

    # Back: applications of the older release work with newer functions and daemons.
    regions.write_everywhere(older, older)
    assert init(NEWER, one, 1)["functions"] == {"version": lua.VERSION, "was": lua.VERSION}

    found = braid(NEWER, "status", "--config", str(regions.config))
    assert (found.returncode, "No problems found." in found.stdout) == (0, True), found.stdout

    # A daemon works with functions that are newer than itself, and leaves them alone.
    with braidstream.Redis.from_url(one.url) as client:
        client.run_plan(lua.load(version=lua.VERSION + 1))
        regions.serve(1, NEWER)
        regions.write_everywhere(NEWER, older)
        assert client.run_plan(lua.installed()) == lua.VERSION + 1
