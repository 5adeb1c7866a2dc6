"""`braid spark` as a process of its own that tests kill. Each line it reads is a command, as JSON.

{"words": ["spark", "archive", ...]}                   run it, and tell its exit code and what it said
{"words": [...compact...], "replay": {...}}            run both at once, and die in the middle of both
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import redis
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.spark import tasks
from braidstream.spark.jobs import removal
from braidstream.spark.jobs.compaction import Compact, Compactor
from braidstream.spark.jobs.replay import Facts, Window
from braidstream.spark.options import Servers
from braidstream.spark.source.survey import Surveyor
from tests.support.killing import CONTROL, KillingDefault, in_task
from tests.support.spark_job import session

WAIT_S = 600


def with_points_in_tasks() -> None:
    """The tasks of pipelines get a point at which their worker can be killed."""
    frame = tasks.frame

    def frame_with_points(spark: Any, pieces: Any, work: Any, schema: Any, weights: Any = None) -> Any:
        return frame(spark, pieces, in_task(work), schema, weights)

    tasks.frame = frame_with_points


def die_in_the_middle(spark: SparkSession, url: str, what: dict[str, Any]) -> None:
    """A compaction begins, and stops after its first deletions; a replay dies after its first window, and the
    JVM with it."""
    has_begun = threading.Event()
    publish, run = Window.publish, Surveyor.run

    def drop_some(surveyor: Surveyor, make: Any, key: bytes | None = None) -> Any:
        answer = run(surveyor, make, key)
        if getattr(make, "func", None) is removal._drop:
            has_begun.set()
            time.sleep(WAIT_S)
        return answer

    def publish_one(window: Window, facts: Facts) -> int:
        publish(window, facts)
        assert has_begun.wait(WAIT_S), "the compaction should have deleted something"
        jvm: Any = spark._jvm
        for pid in (jvm.java.lang.ProcessHandle.current().pid(), os.getpid()):
            os.kill(pid, signal.SIGKILL)

    Window.publish, Surveyor.run = publish_one, drop_some  # type: ignore[method-assign, assignment]
    compactor = Compactor(spark, Compact(servers=Servers((url,), {}), streams=(b"users",), **what))
    threading.Thread(target=compactor.round, daemon=True).start()


def main() -> None:
    spark = session()
    spark.dataSource.register(KillingDefault)
    with_points_in_tasks()
    with redis.Redis.from_url(os.environ[CONTROL]) as control:
        jvm: Any = spark._jvm
        control.mset({"pid:driver": os.getpid(), "pid:jvm": jvm.java.lang.ProcessHandle.current().pid()})
    for line in sys.stdin:
        job = json.loads(line)
        if "compact" in job:
            die_in_the_middle(spark, job["url"], job["compact"])
        told = CliRunner().invoke(app, job["words"])
        print(
            json.dumps({"code": told.exit_code, "said": told.stdout, "why": told.stderr[-2000:]}), flush=True
        )


if __name__ == "__main__":
    main()
