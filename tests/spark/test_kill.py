"""Real SIGKILLs of Spark's workers, JVM and driver: every entry is copied once, none is lost, none doubled.

Three kills here; `make kill-spark` does one in every cell of the matrix, 144. Each kill is of a process that
has just reached a point named in tests/support/killing.py; the query is then run again until it is done, in
the other region where there are two.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import CONTROL, POINTS, TARGETS, is_alive
from tests.support.servers import Engine
from tests.support.world import World

ROOT = Path(__file__).resolve().parents[2]
RANDOM_KILLS = int(os.environ.get("BRAID_KILLS", "0"))
ENTRIES = 30

ONE_SERVER = [("write-middle", "worker")]
TWO_REGIONS = [("decided", "jvm"), ("publishing", "driver")]


class Job:
    """The Spark application; started again whenever it was killed."""

    def __init__(self, control: Engine) -> None:
        self.control = control
        self.process: subprocess.Popen[str] | None = None

    def run(self, **job: Any) -> str:
        """Run the query once: `done`, `failed ...`, or `killed`."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            said = self.process.stdout.readline()
            if said.startswith("done"):
                return "done"
            if said and self._jvm_lives():
                return said
        self.stop()
        return "killed"

    def _jvm_lives(self) -> bool:
        assert self.process is not None
        with self.control.client() as client:
            pid = int(client.get("pid:jvm") or 0)
        try:
            return os.getpgid(pid) == self.process.pid and is_alive(pid)  # numbers are given out again
        except ProcessLookupError:
            return False

    def _start(self) -> None:
        env = {
            **os.environ,
            CONTROL: self.control.url,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [sys.executable, "-m", "tests.support.spark_job"]
        self.process = subprocess.Popen(
            command, env=env, cwd=ROOT, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def stop(self) -> None:
        """Driver and JVM are gone before the next ones start; workers end when they miss them."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the JVM is of its group
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.process = None


@pytest.fixture
def job() -> Iterator[Job]:
    with Engine() as control:
        made = Job(control)
        yield made
        made.stop()


class Copy:
    """Entries come in, kills come down, and in the end `out` must equal `in`."""

    def __init__(self, job: Job, engines: list[Engine], checkpoint: Path, *, shuffled: bool) -> None:
        self.job, self.engines, self.checkpoint, self.shuffled = job, engines, checkpoint, shuffled
        self.world = World(engines) if len(engines) > 1 else None
        self.added = 0

    def add(self) -> None:
        with self.engines[0].client() as plain:
            client: Any = self.world[1] if self.world else plain
            for n in range(self.added, self.added + ENTRIES):
                client.xadd("in", {"n": n, "body": "x" * 50})
        self.added += ENTRIES
        if self.world is not None:
            self.world.sync()

    def round(self, point: str, target: str) -> bool:
        """One kill, and the query run to its end. Whether the kill came."""
        self.add()
        with self.job.control.client() as control:
            control.set(f"kill:{point}", target)
            killed = control.llen("killed")
            said = self._until_done()
            control.delete(f"kill:{point}")
            came = control.llen("killed") > killed
        assert self.numbers() == list(range(self.added)), f"after a kill of {target} at {point} ({said})"
        return bool(came)

    def _until_done(self) -> list[str]:
        said, deadline = list[str](), time.monotonic() + 900
        while not said or said[-1] != "done":
            assert time.monotonic() < deadline, (
                f"the query does not come to its end: {[each[:400] for each in said[-3:]]}"
            )
            urls = [engine.url for engine in self.engines]
            said.append(self.job.run(urls=urls, checkpoint=str(self.checkpoint), shuffled=self.shuffled))
            if said[-1] != "done" and self.world is not None:
                self.engines.reverse()  # it goes on in the other region
                self.world.sync()
        return said

    def numbers(self) -> list[int]:
        if self.world is not None:
            self.world.sync()
        with self.engines[0].client() as plain:
            client: Any = self._client_of(self.engines[0]) if self.world else plain
            return sorted(int(fields.get(b"n") or fields.get("n")) for _, fields in client.xrange("out"))

    def _client_of(self, engine: Engine) -> Any:
        assert self.world is not None
        return self.world[self.world.engines.index(engine) + 1]


@pytest.mark.timeout(1800)
def test_a_copy_survives_kills_on_a_plain_server(job: Job, tmp_path: Path) -> None:
    with Engine() as server:
        copy = Copy(job, [server], tmp_path / "checkpoint", shuffled=False)
        came = [copy.round(point, target) for point, target in ONE_SERVER]
    assert all(came)


@pytest.mark.nightly("In CI: test_a_copy_survives_kills_on_a_plain_server")
@pytest.mark.timeout(1800)
def test_a_shuffled_copy_survives_kills_and_moves_between_two_regions(job: Job, tmp_path: Path) -> None:
    with Engine() as one, Engine("valkey-9.1") as two:
        copy = Copy(job, [one, two], tmp_path / "checkpoint", shuffled=True)
        came = [copy.round(point, target) for point, target in TWO_REGIONS]
    assert all(came)


@pytest.mark.skipif(not RANDOM_KILLS, reason="make kill-spark does this: every cell of the crash matrix")
@pytest.mark.timeout(0)
def test_a_copy_survives_kills_in_every_cell_of_the_matrix(job: Job, tmp_path: Path) -> None:
    """Every point and every target, on one server and between two regions, plain and shuffled: 144 cells.

    In random order, many to a world: what an earlier kill left behind is there when the next one comes.
    """
    seed = int(os.environ.get("BRAID_SEED") or random.SystemRandom().randrange(10**6))
    dice, came, began = random.Random(seed), 0, time.monotonic()
    for turn, (regions, shuffled, cells) in enumerate(dealt(dice)):
        engines = [
            Engine(dice.choice(["redis-7.0", "redis-8.10", "valkey-9.1"])).start() for _ in range(regions)
        ]
        plan = f"{regions} region{'s' * (regions > 1)}, {'shuffled' if shuffled else 'plain'}"
        try:
            copy = Copy(job, list(engines), tmp_path / f"checkpoint-{turn}", shuffled=shuffled)
            for point, target in cells:
                assert copy.round(point, target), f"seed {seed}: nothing reached {point} ({plan})"
                came += 1
                took = f"{time.monotonic() - began:.0f} s"
                print(
                    f"seed {seed}: kill {came} of {RANDOM_KILLS}: {target} at {point}, {plan}, {took}",
                    flush=True,
                )
                if came >= RANDOM_KILLS:
                    return
        finally:
            for engine in engines:
                engine.stop()


def dealt(dice: random.Random) -> Iterator[tuple[int, bool, list[tuple[str, str]]]]:
    """The cells of the matrix, for ever, in hands of nine that share a world: (regions, shuffled, cells)."""
    while True:
        hands = list[tuple[int, bool, list[tuple[str, str]]]]()
        for regions, shuffled in product((1, 2), (False, True)):
            cells = list(product(POINTS, TARGETS))
            dice.shuffle(cells)
            hands += [(regions, shuffled, cells[at : at + 9]) for at in range(0, len(cells), 9)]
        dice.shuffle(hands)
        yield from hands
