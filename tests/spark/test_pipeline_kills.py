"""Every pipeline over three regions, with SIGKILLs of Spark's workers, its JVM and `braid spark` itself.

A worker that dies is Spark's to replace: the pipeline goes on. Where JVM and driver die, the same words are
run again, in another process, a compaction in another region. What comes of it is what a plain model says.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from tests.spark.test_compact import Story
from tests.support.killing import CONTROL, TASK_POINT
from tests.support.microbatch import rows_at_once
from tests.support.servers import Engine
from tests.support.world import World

ROOT = Path(__file__).resolve().parents[2]
ORDERS = 90


class Job:
    """tests/support/pipeline_job.py, and the engine by which a test says who is to die where."""

    def __init__(self, control: Engine) -> None:
        self.control = control
        env = {
            **os.environ,
            CONTROL: control.url,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.pipeline_job"], env=env, cwd=ROOT, text=True,
            start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, **job: Any) -> str:
        """What it answers; nothing if it dies."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def run(self, *words: str, kill_at: str) -> dict[str, Any]:
        """A command whose first worker to reach a point dies. Returns its JSON output."""
        with self.control.client() as control:
            control.set(f"kill:{kill_at}", "worker")
            answer = self.ask(words=["spark", *words, "--json"])
            assert control.getdel(f"kill:{kill_at}") is None, "nobody was killed"
        told = json.loads(answer)
        assert told["code"] == 0, told
        return dict(json.loads(told["said"]))

    def stop(self) -> None:
        with self.control.client() as client:
            pids = [-self.process.pid, int(client.get("pid:jvm") or 0)]
        for pid in pids:
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def job() -> Iterator[Job]:
    with Engine() as control:
        made = Job(control)
        yield made
        made.stop()


def tags_of(world: World) -> Counter[str]:
    """Orders of all regions, by turns; how many there are of each tag."""
    tags = Counter[str]()
    for ms in range(1, ORDERS + 1):
        tag = "abc"[ms * ms % 3]
        world[ms % 3 + 1].xadd("orders", {"n": ms, "tag": tag}, id=str(ms))
        tags[tag] += 1
    world.sync()
    return tags


def config_of(world: World, folder: Path) -> str:
    config = folder / "braid.toml"
    config.write_text(
        "".join(
            f'[[region]]\nid = {number}\nname = "r{number}"\nurl = "{world.engines[number - 1].url}"\n'
            for number in world
        )
    )
    return str(config)


def again(*words: str) -> dict[str, Any]:
    """The same words, in this process and its Spark."""
    told = CliRunner().invoke(app, ["spark", *words, "--json"])
    assert told.exit_code == 0, told.output
    return dict(json.loads(told.stdout))


@pytest.mark.timeout(1800)
@pytest.mark.nightly("In CI: kills of a copy, of archives and of typed tables, each in a file of its own")
def test_every_pipeline_survives_kills_in_three_regions(
    job: Job, world: World, spark: SparkSession, tmp_path: Path
) -> None:
    lake, urls = str(tmp_path / "lake"), {number: world.engines[number - 1].url for number in world}
    story, tags = Story(spark, world, lake), tags_of(world)
    story.add(80)
    archived = job.run("archive", "--url", urls[1], "--lake", lake, "--pattern", "*", kill_at=TASK_POINT)
    assert archived["entries"] == ORDERS + 80
    for name, count in (("orders", ORDERS), ("users", 80)):
        assert len(rows_at_once({"lake": lake, "streams": name})) == count
    words = ["--url", urls[2], "--streams", "orders", "--key", "tag"]
    counted = job.run("stats", *words, kill_at="read-middle")
    assert {row["name"]: row["entries"] for row in counted["keys"]} == tags
    words = ["--config", config_of(world, tmp_path), "--pattern", "*", "--settle", "0s"]
    assert job.run("audit", *words, kill_at=TASK_POINT)["anomalies"] == []

    replay = ["replay", "--lake", lake, "--streams", "orders", "--since", "0", "--until", str(ORDERS + 1)]
    replay += ["--to-url", urls[3], "--to", "again", "--job", "once-more", "--window", "30ms"]
    what = {"lake": lake, "key": "key"}
    assert job.ask(words=["spark", *replay], url=urls[2], compact=what) == "", "it should have been killed"
    world.sync()
    assert 0 < world[3].xlen("again") < ORDERS
    assert len(story.live(1)) < 80
    assert story.current(story.view(1)) == story.current(story.entries)

    assert again(*replay)["entries"] == ORDERS
    compact = ["compact", "--lake", lake, "--streams", "users", "--key", "key", "--url", urls[3]]
    assert again(*compact)["left"] == 0
    world.sync()
    for region in world:
        assert [int(fields["n"]) for _, fields in world[region].xrange("again")] == list(range(1, ORDERS + 1))
        assert story.live(region) == story.view(region) == story.wanted()
