"""Two regions are upgraded and rolled back while programs use them: nothing is lost, nothing comes twice.

    release before   init, daemons, gateway, producers, consumers
    this one         functions, daemon, gateway of region 1, then of region 2; producers of its own
    release before   daemons and gateway again; the functions stay

The release before is the latest tag, or the commit of a day ago.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import braidstream
from bench.watch import base_commit, older_tree
from tests.long import upgrade_user
from tests.support.daemons import write_config
from tests.support.servers import NEWEST, Engine, Flavour, free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 90
# Appends of each producer between two steps.
ENOUGH = 50


@pytest.fixture(scope="module")
def before() -> Iterator[Path]:
    with ExitStack() as stack:
        tree = None
        with suppress(subprocess.CalledProcessError):
            commit = base_commit()
            tree = stack.enter_context(older_tree(commit)) if commit else None
        if tree is None:
            pytest.skip("this clone has no older commit: git fetch --unshallow --tags")
        yield tree


class Programs:
    """Processes of one tree or the other."""

    def __init__(self, stack: ExitStack, folder: Path, config: Path) -> None:
        self._stack, self._folder, self._config = stack, folder, config
        self.logs = dict[str, Path]()

    def start(self, tree: Path, *words: str) -> "subprocess.Popen[bytes]":
        env = {**os.environ, "PYTHONPATH": str(tree / "src")}
        with (self._folder / "processes.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *words], env=env, cwd="/", stdout=log, stderr=log)
        self._stack.callback(process.wait, 30)
        self._stack.callback(process.terminate)
        return process

    def braid(self, tree: Path, *words: str) -> "subprocess.Popen[bytes]":
        return self.start(tree, "-m", "braidstream.cli.main", *words)

    def daemon(self, tree: Path, region: int) -> "subprocess.Popen[bytes]":
        return self.braid(tree, "replicate", "--config", str(self._config), "--region", f"region-{region}")

    def user(self, tree: Path, role: str, url: str, name: str) -> "subprocess.Popen[bytes]":
        self.logs[name] = self._folder / f"{name}.log"
        self.logs[name].touch()
        words = (role, url, name, str(self.logs[name]), str(self._folder / f"stop-{role}"))
        return self.start(tree, upgrade_user.__file__, *words)

    def stop(self, *roles: str) -> None:
        for role in roles:
            (self._folder / f"stop-{role}").touch()

    def seen(self, name: str) -> list[str]:
        return self.logs[name].read_text().split("\n")[:-1]

    def progress(self, *names: str) -> None:
        """Each producer goes on."""
        wanted = {name: len(self.seen(name)) + ENOUGH for name in names}
        eventually(
            lambda: all(len(self.seen(name)) >= most for name, most in wanted.items()),
            within_s=WITHIN_S,
            why="producers go on",
        )
        assert [line for name in self.logs for line in self.seen(name) if line.startswith("ERROR")] == []


def ended(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.nightly("tests/regions/test_mixed_versions.py shows what links of two versions do.")
@pytest.mark.parametrize("flavour", NEWEST[:1], indirect=True)
def test_regions_are_upgraded_and_rolled_back_under_load(
    flavour: Flavour, tmp_path: Path, before: Path
) -> None:
    with Engine(flavour) as one, Engine(flavour) as two, ExitStack() as stack:
        urls = {1: one.url, 2: two.url}
        config = write_config(tmp_path / "braid.toml", urls)
        run = Programs(stack, tmp_path, config)
        for number, url in urls.items():
            words = ("init", "--url", url, "--region", str(number), "--name", f"region-{number}")
            assert run.braid(before, *words).wait(60) == 0
        port = free_port()
        serve = ("gateway", "--url", one.url, "--listen", f"127.0.0.1:{port}")
        daemons = {number: run.daemon(before, number) for number in urls}
        gateway = run.braid(before, *serve)
        users = [run.user(before, "consume", url, f"group-{number}") for number, url in urls.items()]
        users += [run.user(before, "append", url, f"old-{number}") for number, url in urls.items()]
        users.append(run.user(before, "gateway", f"redis://127.0.0.1:{port}/0", "gateway"))
        everyone = ["old-1", "old-2", "gateway"]
        run.progress(*everyone)

        for number in urls:
            words = ("upgrade", "--config", str(config), "--region", f"region-{number}")
            assert run.braid(ROOT, *words).wait(60) == 0
            run.progress(*everyone)
            ended(daemons[number])
            daemons[number] = run.daemon(ROOT, number)
            if number == 1:
                ended(gateway)
                gateway = run.braid(ROOT, *serve)
            run.progress(*everyone)
        users += [run.user(ROOT, "append", url, f"new-{number}") for number, url in urls.items()]
        everyone += ["new-1", "new-2"]
        run.progress(*everyone)

        for number in urls:
            ended(daemons[number])
            daemons[number] = run.daemon(before, number)
            run.progress(*everyone)
        ended(gateway)
        gateway = run.braid(before, *serve)
        run.progress(*everyone)

        run.stop("append", "gateway")
        for each in users[2:]:
            assert each.wait(30) == 0
        acknowledged = Counter(line for name in everyone for line in run.seen(name))
        for url in urls.values():
            eventually(
                lambda url=url: len(entries(url)) >= acknowledged.total(),
                within_s=WITHIN_S,
                why="both regions get everything",
            )
        run.stop("consume")
        for each in users[:2]:
            assert each.wait(60) == 0
        for number, url in urls.items():
            assert Counter(entries(url)) == acknowledged
            assert Counter(run.seen(f"group-{number}")) == acknowledged


def entries(url: str) -> list[str]:
    """The stream's entries, by a client of this release."""
    with braidstream.Redis.from_url(url, decode_responses=True) as client:
        return [fields["n"] for _, fields in client.xrange(upgrade_user.STREAM)]
