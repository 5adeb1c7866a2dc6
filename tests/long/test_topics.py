"""Consumers of a topic are killed, frozen past their session, stopped and added; in a cluster slots move too.

Six seconds on one server here; `make kill-topics` takes a minute of each. BRAID_SEED replays a failure.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

import braidstream
from braidstream.model import keys
from tests.long.topic_process import GROUP, TOPIC
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually

IS_LONG = "BRAID_SECONDS" in os.environ
SECONDS = float(os.environ.get("BRAID_SECONDS", "6"))
SEED = int(os.environ.get("BRAID_SEED", "1"))
SESSION_S, PARTITIONS, MOST_WORKERS = 1.0, 8, 5
WITHIN_S = 90


@dataclass
class Workers:
    """Processes, and when each was frozen."""

    url: str
    log: Path
    running: dict[int, Any] = field(default_factory=dict)
    frozen: dict[int, float] = field(default_factory=dict)
    freezes: list[tuple[int, float, float]] = field(default_factory=list)
    thaws: list[tuple[int, float]] = field(default_factory=list)

    def add(self) -> None:
        command = [sys.executable, "-m", "tests.long.topic_process", self.url, str(self.log), str(SESSION_S)]
        errors = open(self.log.with_suffix(".err"), "ab")  # noqa: SIM115  # the process has it
        worker = subprocess.Popen(command, stderr=errors)
        errors.close()
        self.running[worker.pid] = worker

    @property
    def awake(self) -> list[int]:
        return [pid for pid in self.running if pid not in self.frozen]

    def freeze(self, pid: int, until: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.frozen[pid] = until
        self.freezes.append((pid, time.monotonic(), until))

    def thaw(self, now: float) -> None:
        for pid in [pid for pid, until in self.frozen.items() if until <= now]:
            del self.frozen[pid]
            self.thaws.append((pid, time.monotonic()))
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        self.thaw(float("inf"))
        for worker in self.running.values():
            worker.terminate()
        for worker in self.running.values():
            worker.wait(60)


def happen(dice: random.Random, workers: Workers, place: Any, orders: Any) -> str:
    """One of the things that may go wrong. Returns which."""
    moves = ["move"] * 3 if isinstance(place, Cluster) else []
    what, awake = dice.choice(["kill", "freeze", "freeze", "pause", "add", "stop", *moves]), workers.awake
    if what == "move":
        slot = key_slot(keys.meta(dice.choice([*orders.streams(), TOPIC.encode()])))
        source = place.owner(slot)
        target = dice.choice([node for node in place.nodes if node is not source])
        with SlotMove(place, slot, (source, target)):
            time.sleep(0.05)
    elif what == "add":
        if len(workers.running) >= MOST_WORKERS:
            return "none"
        workers.add()
    elif len(awake) < 2:
        return "none"
    elif what in ("freeze", "pause"):
        longest = 3 * SESSION_S if what == "freeze" else 0.8 * SESSION_S
        workers.freeze(dice.choice(awake), time.monotonic() + dice.uniform(longest / 2, longest))
    else:
        worker = workers.running.pop(dice.choice(awake))
        (worker.kill if what == "kill" else worker.terminate)()
        worker.wait(60)
        workers.add()
    return what


def lines_of(log: Path) -> list[list[str]]:
    complete = log.read_text().rpartition("\n")[0] if log.exists() else ""
    return [line.split() for line in complete.splitlines()]


def assert_in_order(log: Path, workers: Workers) -> None:
    """Each partition's entries are begun in order, and by one process at a time: only a handler that ran when
    its process was frozen may end beside another one. A process may be frozen between its look at the clock
    and the first line of a handler: that is one handler, at once when it goes on."""
    first = defaultdict[str, list[int]](list)
    begun, runs, at_once = set[str](), dict[str, tuple[str, str, float]](), [*workers.thaws]
    for when, pid, what, stream, number in lines_of(log):
        if what != "start":
            if runs.get(stream, ("", "", 0.0))[:2] == (pid, number):
                del runs[stream]
            continue
        if number not in begun:
            begun.add(number)
            first[stream].append(int(number))
        other, _, since = runs.get(stream, (pid, "", 0.0))
        if other != pid and int(other) in workers.running:
            was_frozen = any(str(one) == other and end >= since for one, _, end in workers.freezes)
            thawed = [each for each in at_once if str(each[0]) == pid and 0 <= float(when) - each[1] < 0.2]
            if not was_frozen and thawed:
                at_once.remove(thawed[0])
                continue
            assert was_frozen, f"seed {SEED}: {stream}: {pid} began {number} at {when} while {other} worked"
        runs[stream] = pid, number, float(when)
    for stream, numbers in first.items():
        assert numbers == sorted(numbers), f"seed {SEED}: {stream}"


CLUSTER = pytest.param("cluster", marks=pytest.mark.skipif(not IS_LONG, reason="make kill-topics"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["server", CLUSTER])
def test_nothing_is_lost_or_out_of_order_while_consumers_die_and_freeze(kind: str, tmp_path: Path) -> None:
    dice, log, done = random.Random(SEED), tmp_path / "handled", Counter[str]()
    is_cluster = kind == "cluster"
    with (Cluster if is_cluster else Engine)("redis-8.10") as place:
        (become_cluster if is_cluster else become)(place)  # type: ignore[operator]
        client_class: Any = braidstream.RedisCluster if is_cluster else braidstream.Redis
        with client_class.from_url(place.url, decode_responses=True) as client:
            orders = client.topic(TOPIC)
            orders.create(PARTITIONS)
            workers = Workers(place.url + ("?cluster" if is_cluster else ""), log)
            for _ in range(3):
                workers.add()
            sent, ends = 0, time.monotonic() + SECONDS
            next_event = time.monotonic() + 1.5
            try:
                while (now := time.monotonic()) < ends:
                    orders.add_many([(f"k{n % 60}", {"n": n}) for n in range(sent, sent + 20)])
                    sent += 20
                    workers.thaw(now)
                    if now >= next_event:
                        done[happen(dice, workers, place, orders)] += 1
                        next_event = now + dice.uniform(0.2, 1.0)
                    time.sleep(0.1)
                workers.thaw(float("inf"))
                eventually(
                    lambda: len({number for _, _, what, _, number in lines_of(log) if what == "ok"}) == sent,
                    within_s=WITHIN_S,
                    why=f"seed {SEED}: {sent} entries should be handled",
                )
            finally:
                workers.stop()
            assert_in_order(log, workers)
            for stream in orders.streams():
                for group in client.xinfo_groups(stream):
                    assert (group["name"], group["pending"], group["lag"]) == (GROUP, 0, 0), f"seed {SEED}"
    repeats = Counter(number for _, _, what, _, number in lines_of(log) if what == "ok")
    print(f"{kind}, seed {SEED}: {sent} entries, {dict(done)}, {sum(repeats.values()) - sent} repeated")
