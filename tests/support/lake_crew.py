"""Jobs on one lake, each a process of its own; a victim by SIGKILL, and whatever has ended is started again.

A job with Spark is three kinds of processes: the driver, its JVM, and the Python workers of the JVM's tasks.
"""

import multiprocessing
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.killing import is_alive
from tests.support.lake_jobs import Task, run
from tests.support.waiting import eventually

ROOT: Final = Path(__file__).resolve().parents[2]
ENDS_WITHIN_S: Final = 240.0  # a driver that has lost its JVM
PATIENCE_S: Final = 20.0
STARTED_WITHIN_S: Final = 900.0
AIMED: Final = (
    "write",
    "deletions",
    "merge",
    "trim",
    "commit",
    "vacuum",
    "delete files",
    "rewrite",
    "delete live",
)
VICTIMS: Final = {
    "archive": ("driver",),
    "archive-spark": ("driver", "jvm", "worker"),
    "compact": ("driver", "jvm", "worker"),
    "vacuum": ("driver",),
}

# Importing Spark costs seconds of CPU: a process that has done so forks for each start.
SERVER: Final = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.support.lake_jobs", "pyspark.sql"])


def children(pid: int) -> list[int]:
    try:
        return [
            int(each)
            for file in Path(f"/proc/{pid}/task").glob("*/children")
            for each in file.read_text().split()
        ]
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@dataclass
class Job:
    """One job of tests/support/lake_jobs.py."""

    name: str
    task: Task
    env: Mapping[str, str]
    folder: Path
    starts: int = 0
    hit: str = ""  # which of its processes was killed since its start
    hit_at: float = 0.0
    process: Any = None
    left: list[int] = field(default_factory=list)  # processes that should end by themselves

    def start(self) -> None:
        self.starts, self.hit = self.starts + 1, ""
        self._progress.write_text("0 start")
        paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYSPARK_PYTHON": sys.executable}
        words = (self.task, str(self._progress), str(self.log), {**self.env, **paths})
        self.process = SERVER.Process(target=run, args=words)
        self.process.start()

    @property
    def _progress(self) -> Path:
        return self.folder / f"{self.name}.progress"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}-{self.starts}.log"

    @property
    def progress(self) -> tuple[int, str]:
        """How many rounds it has done since its start, and what it does now."""
        rounds, _, phase = self._progress.read_text().partition(" ")
        return int(rounds), phase.strip()

    def pids(self, victim: str) -> list[int]:
        if victim == "driver":
            return [self.process.pid]
        machines = [pid for pid in children(self.process.pid) if _name(pid) == "java"]
        if victim == "jvm":
            return machines
        daemons = [pid for machine in machines for pid in children(machine) if "python" in _name(pid)]
        return [pid for daemon in daemons for pid in children(daemon)] or daemons

    def kill(self, victim: str, dice: random.Random) -> bool:
        """Whether there was one."""
        found = self.pids(victim)
        if not found:
            return False
        if victim != "worker":
            self.hit, self.hit_at = victim, time.monotonic()
            self.left += [*self.pids("jvm"), *self.pids("worker")]
        try:
            os.kill(dice.choice(found), signal.SIGKILL)
        except ProcessLookupError:  # a worker that has just ended
            return False
        return True

    def is_running(self) -> bool:
        return bool(self.process.is_alive())

    def is_at_work(self) -> bool:
        return self.progress[1] not in ("start", "probe")

    def why(self) -> str:
        """The last words of a job that has ended."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        found = [line for line in lines if re.search(r"rror\b.*: |^error ", line)]
        return (found or lines or ["nothing"])[-1][:300]

    def stop(self) -> None:
        """All its processes are gone afterwards."""
        if self.process is None:
            return
        others = [*self.left, *self.pids("jvm"), *self.pids("worker")]
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        for pid in others:
            eventually(lambda pid=pid: not is_alive(pid), within_s=60, why=f"{pid} of {self.name} should end")
        self.left.clear()


@dataclass
class Crew:
    """The jobs on one lake."""

    jobs: list[Job]
    dice: random.Random
    kills: Counter[str] = field(default_factory=Counter)  # by job and victim
    phases: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # why jobs have ended that were not killed
    hung: list[str] = field(default_factory=list)

    def start(self) -> None:
        for job in self.jobs:
            job.start()

    def tend(self) -> None:
        """Start again what has ended."""
        for job in self.jobs:
            if not job.is_running():
                if not job.hit:
                    self.ends[f"{job.task.kind}: {job.why()}"] += 1
                job.start()
            elif job.hit == "jvm" and time.monotonic() - job.hit_at > ENDS_WITHIN_S:
                self.hung.append(f"{job.name}: its driver goes on without its JVM, {job.log}")
                job.stop()

    def pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tend()
            time.sleep(0.02)

    def kill(self) -> str:
        """Kill one process of one job. Returns which, and what it did."""
        while True:
            job, victim = self._next()
            if self.dice.random() < 0.5:
                self.pause(self.dice.uniform(0, 1.5))
            else:
                self._aim(job)
            _, phase = job.progress
            if job.is_running() and not job.hit and job.kill(victim, self.dice):
                self.kills[self._name(job, victim)] += 1
                self.phases[phase] += 1
                return f"{victim} of {job.name} in {phase}"
            self.pause(0.1)

    def _next(self) -> tuple[Job, str]:
        """A victim of a job that is at work; a few are of jobs that start. Those that were killed
        often wait a while for the others: a JVM takes longer to start."""
        names = {self._name(job, victim) for job in self.jobs for victim in VICTIMS[job.task.kind]}
        few = min(self.kills[name] for name in names) + 1
        began, is_early = time.monotonic(), self.dice.random() < 0.04
        while True:
            self.tend()
            waited_s = time.monotonic() - began
            ready = [
                (job, victim)
                for job in self.jobs
                for victim in VICTIMS[job.task.kind]
                if not job.hit and (is_early or job.is_at_work()) and job.pids(victim)
                if waited_s > PATIENCE_S or self.kills[self._name(job, victim)] <= few
            ]
            if ready:
                return self.dice.choice(ready)
            assert waited_s < STARTED_WITHIN_S, f"no job gets on: {self.report()}"
            time.sleep(0.05)

    @staticmethod
    def _name(job: Job, victim: str) -> str:
        return f"{job.task.kind} {victim}"

    def _aim(self, job: Job) -> None:
        """Wait until a job is in a step that changes something."""
        aim, deadline = self.dice.choice(AIMED), time.monotonic() + 3
        while time.monotonic() < deadline and job.is_running() and not job.progress[1].startswith(aim):
            time.sleep(0.001)
        time.sleep(self.dice.choice([0, self.dice.uniform(0, 0.05)]))
        self.tend()

    def more_rounds(self, rounds: int) -> None:
        """Wait until each job has done so many more."""
        wanted = {job.name: (job.starts, job.progress[0] + rounds) for job in self.jobs}
        deadline = time.monotonic() + STARTED_WITHIN_S
        while wanted:
            self.tend()
            for job in self.jobs:
                if job.name in wanted:
                    starts, done = wanted[job.name]
                    if job.starts > starts:
                        wanted[job.name] = job.starts, rounds
                    elif job.progress[0] >= done:
                        del wanted[job.name]
            assert time.monotonic() < deadline, f"no more rounds of {sorted(wanted)}: {self.report()}"
            time.sleep(0.02)

    def stop(self) -> None:
        for job in self.jobs:
            job.stop()

    def report(self) -> str:
        lines = [f"  kills of {name}: {count}" for name, count in sorted(self.kills.items())]
        lines += [f"  kills in {name}: {count}" for name, count in sorted(self.phases.items())]
        lines += [f"  ended by itself {count} times, {why}" for why, count in sorted(self.ends.items())]
        lines += [f"  starts of {job.name}: {job.starts}" for job in self.jobs]
        return "\n".join([*lines, *(f"  hung: {each}" for each in self.hung)])


def crew_of(tasks: Sequence[Task], env: Mapping[str, str], folder: Path, dice: random.Random) -> Crew:
    return Crew([Job(f"{task.kind}-{at}", task, env, folder) for at, task in enumerate(tasks)], dice)
