"""Adoption, and its undoing, under load: 20 producers and 20 consumers never stop (SDK and two gateways).

Short in CI. `make adopt-live` has 1,000,000 entries, and 10 groups with 50,000 pending entries each. It
prints the longest pause of any client.
"""

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

import braidstream
from tests.support.cli import braid
from tests.support.forked import braid_process
from tests.support.regions import become
from tests.support.servers import Engine, free_port

ENTRIES = int(os.environ.get("BRAID_ADOPT_ENTRIES", "20000"))
PENDING = int(os.environ.get("BRAID_ADOPT_PENDING", "500"))
SECONDS = float(os.environ.get("BRAID_ADOPT_SECONDS", "2"))
CLIENTS, GROUPS = 20, 10
NAME = "orders"


@dataclass
class Seen:
    """What one client did: its entries, its errors, the longest time between two successes."""

    entries: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    last_s: float = 0.0

    def note(self) -> None:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - (self.last_s or now))
        self.last_s = now


@contextmanager
def _gateway(url: str) -> Iterator[str]:
    port = free_port()
    words = ["gateway", "--url", url, "--listen", f"127.0.0.1:{port}"]
    process = braid_process(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline()
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


class Load:
    """Producers and consumers in threads of their own."""

    def __init__(self, clients: list[redis.Redis]) -> None:
        self.producing, self.consuming = threading.Event(), threading.Event()
        self.producing.set()
        self.consuming.set()
        self.made = [Seen() for _ in range(CLIENTS)]
        self.taken = [Seen() for _ in range(CLIENTS)]
        jobs = [(self._produce, at, clients[at % len(clients)]) for at in range(CLIENTS)]
        jobs += [(self._consume, at, clients[(at + 1) % len(clients)]) for at in range(CLIENTS)]
        self.threads = [threading.Thread(target=job, args=(at, client)) for job, at, client in jobs]
        for thread in self.threads:
            thread.start()

    def _produce(self, number: int, client: Any) -> None:
        seen, at = self.made[number], 0
        while self.producing.is_set():
            try:
                entry = client.xadd(NAME, {"from": f"{number}.{at}"})
                seen.entries.append((entry, f"{number}.{at}"))
                seen.note()
            except redis.RedisError as error:
                seen.errors.append(str(error))
            at += 1
            time.sleep(0.005)  # a pace, not luck: all threads share one interpreter

    def _consume(self, number: int, client: Any) -> None:
        seen, group = self.taken[number], f"g{number % GROUPS}"
        while self.consuming.is_set():
            try:
                for _, page in client.xreadgroup(group, f"c{number}", {NAME: ">"}, count=100, block=500):
                    seen.entries += ((entry, fields["from"]) for entry, fields in page)
                    assert client.xack(NAME, group, *(entry for entry, _ in page)) == len(page)
                seen.note()
            except redis.RedisError as error:
                seen.errors.append(str(error))

    def finish(self) -> None:
        """Producers stop; consumers take what is left."""
        self.producing.clear()
        for thread in self.threads[:CLIENTS]:
            thread.join(60)
        wanted = GROUPS * sum(len(each.entries) for each in self.made)
        until = time.monotonic() + 60
        while sum(len(each.entries) for each in self.taken) < wanted and time.monotonic() < until:
            time.sleep(0.1)
        self.consuming.clear()
        for thread in self.threads:
            thread.join(60)


def _fill(bare: redis.Redis) -> None:
    """The native stream as it was before braidstream: entries, and groups with pending ones."""
    for first in range(0, ENTRIES, 10_000):
        pipe = bare.pipeline(transaction=False)
        for at in range(first, min(first + 10_000, ENTRIES)):
            pipe.xadd(NAME, {"from": f"old.{at}"})
        pipe.execute()
    [(start, _)] = bare.xrevrange(NAME, count=PENDING + 1)[-1:]
    for at in range(GROUPS):
        bare.xgroup_create(NAME, f"g{at}", start)
        for _ in range(0, PENDING, 1000):
            bare.xreadgroup(f"g{at}", "old", {NAME: ">"}, count=min(PENDING, 1000))


@contextmanager
def _clients(engine: Engine) -> Iterator[list[Any]]:
    """Two gateways' and the SDK's, which is the last."""
    with ExitStack() as stack:
        urls = [stack.enter_context(_gateway(engine.url)) for _ in range(2)]
        clients: list[Any] = [
            stack.enter_context(redis.Redis.from_url(url, decode_responses=True)) for url in urls
        ]
        clients.append(stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True)))
        yield clients


def _under_load(clients: list[Any], *words: str) -> tuple[Load, str]:
    """`braid` with these words while everybody works: what they did, and how long it took."""
    load = Load(clients)
    time.sleep(SECONDS)
    before = max(each.longest_s for each in (*load.made, *load.taken))
    appended, began = sum(len(each.entries) for each in load.made), time.monotonic()
    done = braid(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    took = time.monotonic() - began
    time.sleep(SECONDS)
    pause = max(each.longest_s for each in (*load.made, *load.taken))
    load.finish()
    made = sum(len(each.entries) for each in load.made)
    assert 0 < appended < made, "there were appends before and after"
    return load, (
        f"{ENTRIES} entries, {GROUPS} groups with {PENDING} pending each; "
        f"{made} entries appended meanwhile: 0 lost, 0 twice, 0 errors. "
        f"Longest pause of a client {pause * 1000:.0f} ms ({before * 1000:.0f} ms before); "
        f"braid {words[0]} took {took * 1000:.0f} ms"
    )


def _check(load: Load, reader: Any) -> None:
    """Nothing is lost or doubled, in the stream and for each group."""
    clients_of = enumerate((*load.made, *load.taken))
    assert [(at, each.errors) for at, each in clients_of if each.errors] == []
    made = [entry for each in load.made for entry in each.entries]
    assert reader.xlen(NAME) == ENTRIES + len(made)
    first = min(_order(entry) for entry, _ in made)
    stored = [(entry, fields["from"]) for entry, fields in reader.xrange(NAME, min="{}-{}".format(*first))]
    assert sorted(stored) == sorted(made)
    for at in range(GROUPS):
        group = [entry for each in load.taken[at::GROUPS] for entry in each.entries]
        counts = Counter(group)
        assert [entry for entry, count in counts.items() if count > 1] == []
        assert set(counts) == set(made)
        assert reader.xpending(NAME, f"g{at}")["pending"] == PENDING


@pytest.mark.timeout(1200)
def test_adoption_under_load_loses_and_doubles_nothing(engine: Engine, capsys: Any) -> None:
    become(engine)
    with redis.Redis.from_url(engine.url, decode_responses=True) as bare, _clients(engine) as clients:
        _fill(bare)
        load, facts = _under_load(clients, "adopt", NAME, "--url", engine.url)
        _check(load, clients[-1])
        last = bare.xrevrange("bs:1:c:{orders}", count=1)[0][0]
        assert _order(last) < max(_order(entry) for each in load.made for entry, _ in each.entries)
        with capsys.disabled():
            print(f"\nadopted {facts}")


@pytest.mark.timeout(1200)
def test_undoing_an_adoption_under_load_loses_and_doubles_nothing(engine: Engine, capsys: Any) -> None:
    become(engine)
    with redis.Redis.from_url(engine.url, decode_responses=True) as bare, _clients(engine) as clients:
        _fill(bare)
        assert braid("adopt", NAME, "--url", engine.url).returncode == 0
        load, facts = _under_load(clients, "adopt", NAME, "--undo", "--url", engine.url)
        assert bare.type(NAME) == "stream"
        _check(load, bare)
        _check(load, clients[-1])
        with capsys.disabled():
            print(f"\nmade native again: {facts}")


def _order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))
