"""The jobs of a lake, each in a process that tests kill: archives, a compaction, a vacuum.

A job runs until it is killed. A file always has how many rounds it has done and what it does just now, so
that a test knows what a kill has hit.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from braidstream.cli import archiving
from braidstream.cli.main import app
from braidstream.spark.jobs import archive, compaction, deletions
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.jobs.compaction import Compactor
from braidstream.spark.lake.log import Lake, Store
from braidstream.spark.lake.typed_columns import Typing
from braidstream.spark.options import Servers

KEEP_S: Final = 2.0  # what the live stream keeps, and what compaction ignores
ROUND: Final = 300
REST_S: Final = 1.0
SCHEMA: Final = "n long, *"
TOMBSTONE: Final = "fields['gone'] = '1'"
WIDTH: Final = 64
SPARK: Final = (
    "--master local[2,4] --driver-memory 700m --conf spark.ui.enabled=false "
    "--conf spark.sql.shuffle.partitions=2 --conf spark.driver.host=127.0.0.1 pyspark-shell"
)


class Progress:
    """The file that the test reads."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
        self._phases, self._rounds = ["start"], 0
        self._write()

    def _write(self) -> None:
        os.pwrite(self._file, f"{self._rounds} {self._phases[-1]}".ljust(WIDTH).encode(), 0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phases.append(name)
        self._write()
        try:
            yield
        finally:
            self._phases.pop()
            self._write()

    def round(self) -> None:
        self._phases[0] = "rest"
        self._rounds += 1
        self._write()

    def show(self, owner: Any, name: str, phase: str | Callable[..., str]) -> None:
        """A function shows its phase while it runs."""
        real = getattr(owner, name)

        @wraps(real)
        def shown(*args: Any, **options: Any) -> Any:
            with self.phase(phase if isinstance(phase, str) else phase(*args)):
                return real(*args, **options)

        setattr(owner, name, shown)

    def count(self, owner: Any) -> None:
        real = owner.round

        @wraps(real)
        def counted(*args: Any) -> Any:
            done = real(*args)
            self.round()
            return done

        owner.round = counted


def show_phases(progress: Progress) -> None:
    progress.show(archive, "probe", "probe")
    progress.show(compaction, "probe", "probe")
    progress.show(Archiver, "round", "plan")
    progress.show(Archiver, "_read", "write")
    progress.show(Archiver, "_trim", "trim")
    progress.show(archive, "tidy", "merge")
    progress.show(deletions, "take_over", "deletions")
    progress.show(Lake, "commit", lambda lake, state, change: f"commit {change.what}")
    progress.show(Lake, "widen", "columns")
    progress.show(Lake, "vacuum", "vacuum")
    progress.show(Compactor, "round", "compare")
    progress.show(Compactor, "_live", "delete live")
    progress.show(Compactor, "_lake", "rewrite")
    progress.count(Archiver)
    progress.count(Compactor)


def archive_alone(url: str, lake: str, has_table: bool) -> None:
    """An archive without Spark. Losses are allowed: producers delete entries that are not archived yet, which
    a slow archive cannot tell from trimmed ones. The end shows whether one is lost.
    """
    chosen: dict[str, Any] = {"pattern": b"*"}
    if has_table:
        chosen = {"streams": (b"orders",), "schema": Typing.parse(SCHEMA)}
    how: dict[str, Any] = {"max_entries": ROUND, "trim": True, "keep_s": KEEP_S, "allow_loss": True}
    what = Archive(lake, Servers((url,), {}), **how, **chosen)
    archiver = Archiver(None, what)
    while True:
        archiver.round()
        time.sleep(REST_S)  # its pace


def archive_by_spark(url: str, lake: str, has_table: bool) -> None:
    """`braid spark archive`, with upkeep in every round, all of it in Spark's tasks."""
    archiving.UPKEEP_S = 0.0  # type: ignore[misc]
    chosen = ["--streams", "orders", "--schema", SCHEMA] if has_table else ["--pattern", "*"]
    pace = ["--follow", "--every", f"{REST_S:g}s", "--max-entries", str(ROUND)]
    how = ["--trim", "--keep", f"{KEEP_S:g}s", "--allow-loss"]
    app(["spark", "archive", "--url", url, "--lake", lake, *chosen, *pace, *how])


def compact(url: str, lake: str, has_table: bool) -> None:
    chosen = ["--streams", "orders"] if has_table else ["--pattern", "*"]
    chosen += ["--key", "k", "--tombstone", TOMBSTONE, "--keep", f"{KEEP_S:g}s", "--grace", f"{KEEP_S:g}s"]
    app(["spark", "compact", "--url", url, "--lake", lake, *chosen, "--follow", "--every", f"{REST_S:g}s"])


def vacuum(lake: str, progress: Progress) -> None:
    """As the other jobs do it; and now and then at once, as `braid spark forget` does."""
    dice, here = random.Random(), Lake(lake)
    progress.show(Store, "delete", "delete files")
    while True:
        here.vacuum(0.0 if dice.random() < 0.01 else None)
        progress.round()
        time.sleep(REST_S)


@dataclass(frozen=True)
class Task:
    """What a job works on. has_table: of the stream, with typed columns; else one of all streams."""

    kind: str
    url: str
    lake: str
    has_table: bool


def run(task: Task, progress_file: str, log_file: str, env: Mapping[str, str]) -> None:
    """In a process of its own: its own session, so that its JVM belongs to its group."""
    os.setsid()
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for each in (1, 2):
        os.dup2(log, each)
    os.environ.update({"PYSPARK_SUBMIT_ARGS": SPARK, **env})
    progress = Progress(progress_file)
    show_phases(progress)
    if task.kind == "vacuum":
        vacuum(task.lake, progress)
    jobs = {"archive": archive_alone, "archive-spark": archive_by_spark, "compact": compact}
    jobs[task.kind](task.url, task.lake, task.has_table)
