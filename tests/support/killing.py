"""The data source with points at which a process of Spark can be killed, for good, by SIGKILL.

A test arms a point by a key in an engine of its own: `SET kill:publishing jvm`. Whichever process reaches the
point first takes the key away and kills its target: itself (`worker`), the JVM, or the driver. A process
whose JVM or driver is dead goes on, as it would, until it finds that nobody listens. Spark imports this
module in each of its Python processes, so the points are everywhere.
"""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis

from braidstream.spark.sink import ledger, writer
from braidstream.spark.source import planning
from pyspark_braidstream import DefaultSource
from tests.support.waiting import eventually

SOURCE_POINTS: Final = ("read-before", "read-middle", "read-after", "planned")
TASK_POINT: Final = "task-middle"  # in tests/support/pipeline_job.py
SINK_POINTS: Final = (
    "write-before", "write-middle", "write-after",
    "commit-before", "decided", "publishing", "published", "committed",
)  # fmt: skip
POINTS: Final = SOURCE_POINTS + SINK_POINTS
TARGETS: Final = ("worker", "jvm", "driver")
CONTROL: Final = "KILL_CONTROL"


def reach(point: str) -> None:
    """Die here if the test wants it. Never in the test's own process."""
    if CONTROL not in os.environ:
        return
    with redis.Redis.from_url(os.environ[CONTROL], decode_responses=True) as control:
        target = control.getdel(f"kill:{point}")
        if target is None:
            return
        pid = os.getpid() if target == "worker" else int(control.get(f"pid:{target}") or "")
        control.rpush("killed", f"{point}:{target}")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), within_s=60, why=f"the {target} should be dead by SIGKILL")


def is_alive(pid: int) -> bool:
    """Whether a process can still do something: it is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _around(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
    real = getattr(owner, name)

    def stepped(*args: Any, **options: Any) -> Any:
        if before:
            reach(before)
        made = real(*args, **options)
        if after:
            reach(after)
        return made

    setattr(owner, name, stepped)


def _reading(real: Any) -> Any:
    def read(*args: Any) -> Iterator[Any]:
        reach("read-before")
        for batch in real(*args):
            yield batch
            reach("read-middle")
        reach("read-after")

    return read


planning.read = _reading(planning.read)
_around(planning.StreamReader, "partitions", after="planned")
_around(writer._Task, "take", before="write-before")
_around(writer._Task, "_put", after="write-middle")
_around(writer._Task, "finish", after="write-after")
_around(writer.StreamWriter, "commit", before="commit-before", after="committed")
_around(ledger.Book, "decide", after="decided")
_around(ledger.Publisher, "_append", after="publishing")
_around(ledger.Book, "publish", after="published")


def in_task(function: Any) -> Any:
    """The function of a task of a pipeline, with a point after the work and before its result is sent."""
    return partial(_in_task, function)


def _in_task(function: Any, batches: Iterator[Any]) -> Iterator[Any]:
    for made in function(batches):
        reach(TASK_POINT)
        yield made


class KillingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "killing"


class KillingDefault(KillingSource):
    """Under the name that pipelines read by: in a session, what is registered there wins."""

    @classmethod
    def name(cls) -> str:
        return "braidstream"
