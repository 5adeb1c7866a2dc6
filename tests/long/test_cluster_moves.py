"""Slots move while both clients write, read and delete: nothing is lost, nothing comes twice, order stays.

BRAID_MOVES: how many times slots move (make cluster-moves: 500).
"""

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from redis.crc import key_slot

from braidstream.model import keys
from tests.support.clients import Opener
from tests.support.cluster import Cluster, SlotMove, become_cluster

CI_MOVES = 12
NAMES = [f"s{number}" for number in range(6)]
pytestmark = pytest.mark.timeout(0 if "BRAID_MOVES" in os.environ else 300)


class Load:
    """Threads that use the same streams through one client, each until `stop`."""

    def __init__(self, client: Any, stop: threading.Event) -> None:
        self.client, self.stop = client, stop
        self.written = dict[str, list[str]]()
        self.read = list[str]()

    def repeat(self, work: Callable[[int], None]) -> None:
        number = 0
        while not self.stop.is_set():
            work(number)
            number += 1

    def append(self, writer: str) -> Callable[[int], None]:
        """One by one."""
        mine = self.written.setdefault(writer, [])

        def work(number: int) -> None:
            name = NAMES[number % len(NAMES)]
            self.client.xadd(name, {"n": f"{writer}:{number}"})
            mine.append(f"{name} {writer}:{number}")

        return work

    def pipelined(self, writer: str, *, transaction: bool = False) -> Callable[[int], None]:
        """Several in a pipeline, or in a MULTI on one stream."""
        mine = self.written.setdefault(writer, [])

        def work(number: int) -> None:
            some = [
                (NAMES[(number if transaction else at) % len(NAMES)], f"{writer}:{number}.{at}")
                for at in range(8)
            ]
            with self.client.pipeline(transaction=transaction) as pipe:
                for name, value in some:
                    pipe.xadd(name, {"n": value})
                pipe.execute()
            mine.extend(f"{name} {value}" for name, value in some)

        return work

    def consume(self, consumer: str) -> Callable[[int], None]:
        def work(number: int) -> None:
            for name, entries in self.client.xreadgroup("g", consumer, dict.fromkeys(NAMES, ">"), block=50):
                self.read.extend(f"{name} {fields['n']}" for _, fields in entries)
                self.client.xack(name, "g", *(entry for entry, _ in entries))

        return work

    def replace(self, number: int) -> None:
        """A stream is deleted and written anew in one pipeline: what is written must be there."""
        with self.client.pipeline() as pipe:
            pipe.delete("replaced").xadd("replaced", {"n": str(number)}, id=f"{number + 1}-1")
            pipe.xrange("replaced").xadd("replaced", {"n": "last"})
            found = pipe.execute()
        assert [fields["n"] for _, fields in found[2]] == [str(number)], (number, found)
        assert [fields["n"] for _, fields in self.client.xrange("replaced")] == [str(number), "last"]

    def check(self) -> None:
        """When all have ended: each entry is there and was delivered once, in the order of its writer."""
        written = [entry for some in self.written.values() for entry in some]
        stored = [f"{name} {fields['n']}" for name in NAMES for _, fields in self.client.xrange(name)]
        assert len(written) > 100
        assert sorted(stored) == sorted(written)
        for writer, mine in self.written.items():
            for name in NAMES:
                own = [entry for entry in stored if entry.startswith(f"{name} {writer}:")]
                assert own == [entry for entry in mine if entry.startswith(f"{name} ")]
        while rest := self.client.xreadgroup("g", "ann", dict.fromkeys(NAMES, ">")):
            self.read += [f"{name} {fields['n']}" for name, entries in rest for _, fields in entries]
        assert sorted(self.read) == sorted(written)


def test_slots_move_under_load_and_nothing_is_lost_or_comes_twice(cluster: Cluster) -> None:
    become_cluster(cluster, id_mode="liberal")
    dice = random.Random(7)
    with ExitStack() as stack:
        kinds = [Opener(kind, stack, "RedisCluster") for kind in ("sync", "asyncio")]
        client, other = (opened(cluster.url, decode_responses=True) for opened in kinds)
        for name in NAMES:
            client.xgroup_create(name, "g", "0", mkstream=True)
        stop = threading.Event()
        load, later = Load(client, stop), Load(other, stop)
        work: list[Any] = [
            load.append("a"),
            later.append("b"),
            load.pipelined("p"),
            later.pipelined("q"),
            load.pipelined("m", transaction=True),
            later.pipelined("n", transaction=True),
            load.consume("ann"),
            later.consume("bob"),
            later.replace,
        ]
        with ThreadPoolExecutor(len(work)) as pool:
            running = [pool.submit(load.repeat, each) for each in work]
            try:
                for _ in range(int(os.environ.get("BRAID_MOVES", CI_MOVES))):
                    _move_half_way(cluster, dice.choice([*NAMES, "replaced"]))
            finally:
                stop.set()
            for each in running:
                each.result()
        load.written |= later.written
        load.read += later.read
        load.check()


def _move_half_way(cluster: Cluster, name: str) -> None:
    """Move the slot of a stream key by key, and back."""
    with SlotMove(cluster, key_slot(keys.meta(name.encode()))) as moving:
        for key in moving.left():
            moving.move(key)
        moving.finish()
