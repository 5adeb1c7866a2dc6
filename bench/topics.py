"""`python -m bench.topics`: how fast a team settles, what beats, add_many, reads and consumers cost.

One process plays all members, so times are upper bounds. `--members 1000 --partitions 10000 --session 10`
takes a minute.
"""

import argparse
import asyncio
import statistics
import time
from collections import Counter, defaultdict
from typing import Any

import hiredis

import braidstream
from braidstream.model import keys
from tests.support.regions import become
from tests.support.servers import Engine

KEYS = keys.team(b"orders", b"g")
STEADY_S = 8.0
FIELDS = {"order": "0123456789abcdef", "customer": "c-4711-0815", "amount": "129.90", "currency": "EUR"}


class Crew:
    """Members that beat as consumers do. owners: who works on which partition, as they understand it."""

    def __init__(self, engine: Engine, partitions: int, session_s: float) -> None:
        self.port, self.session_ms = engine.port, int(1000 * session_s)
        self.owners: list[bytes | None] = [None] * partitions
        self.tasks = dict[bytes, asyncio.Task[None]]()
        self.operator = engine.client()
        self.moved = self.beats = self.twice = 0

    def join(self, members: int) -> None:
        first = len(self.tasks)
        for number in range(first, first + members):
            name = b"m%d" % number
            self.tasks[name] = asyncio.create_task(self._work(name))

    def die(self, members: int) -> None:
        for name in [name for name, task in self.tasks.items() if not task.done()][:members]:
            self.tasks[name].cancel()

    def _is_alive(self, name: bytes | None) -> bool:
        return name is not None and not self.tasks[name].done() and not self.tasks[name].cancelling()

    async def _work(self, me: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        replies, mark, mine, back = hiredis.Reader(), b"", set[int](), b""

        async def ask(*words: Any) -> Any:
            writer.write(hiredis.pack_command(words))
            while (reply := replies.gets()) is False:
                replies.feed(await reader.read(1 << 16))
            return reply

        try:
            while True:
                said = ("FCALL", "bs_team_beat", 3, *KEYS, me, self.session_ms, len(self.owners), mark, back)
                mark, _, again_ms, _, *listed = await ask(*said)
                self.beats += 1
                back = b""
                if listed:
                    told = {int(number) for number in listed[0].split()}
                    back = b" ".join(b"%d" % number for number in mine - told)
                    self._note(me, mine - told, told - mine)
                    mine = told
                if again_ms:
                    await asyncio.sleep(again_ms / 1000)
                elif not back:
                    await ask("XREAD", "BLOCK", self.session_ms // 3, "STREAMS", KEYS[2], mark)
        finally:
            writer.close()

    def _note(self, me: bytes, gone: set[int], new: set[int]) -> None:
        for number in gone:
            self.owners[number] = None
        for number in new:
            self.twice += self._is_alive(self.owners[number]) and self.owners[number] != me
            self.owners[number] = me
        self.moved += len(new)

    def _is_settled(self) -> bool:
        sizes = Counter(self.owners)
        alive = [name for name in self.tasks if self._is_alive(name)]
        wanted = {name for name in alive if sizes[name]}
        return set(sizes) == wanted and max(sizes.values()) - min(sizes[name] for name in alive) <= 1

    def cpu_s(self) -> float:
        used = self.operator.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    async def settle(self, what: str) -> None:
        began, cpu, moved, beats = time.perf_counter(), self.cpu_s(), self.moved, self.beats
        while not self._is_settled():
            await asyncio.sleep(0.005)
        took_ms, cpu_ms = 1000 * (time.perf_counter() - began), 1000 * (self.cpu_s() - cpu)
        print(
            f"{what:24} {took_ms:7.0f} ms, {self.beats - beats:5} beats, {self.moved - moved:5} partitions, "
            f"engine {cpu_ms:5.0f} ms of CPU, {self.twice} with two members"
        )


async def team(engine: Engine, members: int, partitions: int, session_s: float) -> None:
    crew = Crew(engine, partitions, session_s)
    crew.join(members)
    await crew.settle(f"{members} members x {partitions}")
    await asyncio.sleep(1)
    cpu, beats = crew.cpu_s(), crew.beats
    await asyncio.sleep(STEADY_S)
    share, rate = (crew.cpu_s() - cpu) / STEADY_S, (crew.beats - beats) / STEADY_S
    print(f"{'steady':24} {rate:7.0f} beats a second, engine {100 * share:.2f} % of a core")
    for more in (1, 10):
        crew.join(more)
        await crew.settle(f"{more} more")
    crew.die(10)
    await crew.settle(f"10 die, session {session_s:g} s")
    for task in crew.tasks.values():
        task.cancel()


def producer(engine: Engine) -> None:
    """add_many of 500 entries over 64 partitions, and a pipeline of 500 to one stream, in turns."""
    with braidstream.Redis.from_url(engine.url) as client:
        orders = client.topic("orders")
        orders.create(64)
        entries = [(f"customer-{number}", FIELDS) for number in range(500)]

        def plain() -> None:
            pipe = client.pipeline(transaction=False)
            for _ in entries:
                pipe.xadd("plain", FIELDS)
            pipe.execute()

        spent: dict[str, list[float]] = {"one stream": [], "topic": []}
        for _ in range(200):
            for what, work in (("one stream", plain), ("topic", lambda: orders.add_many(entries))):
                began = time.perf_counter()
                work()
                spent[what].append(time.perf_counter() - began)
        best = {what: statistics.quantiles(times, n=10)[0] for what, times in spent.items()}
        print(f"add_many: {best['one stream'] / best['topic']:.2f} of the throughput of one stream")


def reads(engine: Engine) -> None:
    """A read that another member can refuse names two more keys than a native one: the bell and the hold."""
    with engine.client() as operator:
        operator.flushall()
        for key in ("strand", "bell", "hold"):
            operator.xgroup_create(key, "g", "$", mkstream=True)
        for size in (10, 100):
            spent = defaultdict[int, list[float]](list)
            for _ in range(5):
                for others in ((), ("bell", "hold")):
                    spent[len(others)].append(_read_cpu(operator, ("strand", *others), size))
            native, fenced = (min(spent[others]) for others in (0, 2))
            print(f"read COUNT {size}: {fenced:.1f} us of the engine, {fenced / native:.2f} of a native one")


def _read_cpu(operator: Any, where: tuple[str, ...], size: int, rounds: int = 200) -> float:
    operator.xtrim("strand", maxlen=0)
    pipe = operator.pipeline(transaction=False)
    for _ in range(rounds * size):
        pipe.xadd("strand", FIELDS)
    pipe.execute()
    call = hiredis.pack_command(
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", size, "STREAMS", *where, *[">"] * len(where))
    )
    conn = operator.connection_pool.get_connection()
    try:
        operator.config_resetstat()
        for _ in range(rounds):
            conn.send_packed_command([call])
            conn.read_response()
        return float(operator.info("commandstats")["cmdstat_xreadgroup"]["usec_per_call"])
    finally:
        operator.connection_pool.release(conn)


def consumers(engine: Engine, partitions: int, entries: int = 20_000) -> None:
    """One consumer, whose handlers do nothing."""
    with braidstream.Redis.from_url(engine.url) as client:
        orders = client.topic(f"of {partitions}")
        orders.create(partitions)
        for first in range(0, entries, 500):
            orders.add_many([(f"k{number}", FIELDS) for number in range(first, first + 500)])
        consumer = braidstream.Consumer(client, topic=f"of {partitions}", group="g")
        consumer.handler(lambda message: None)
        began, spent = time.perf_counter(), time.process_time()
        consumer.run(until_empty=True)
        took, spent = time.perf_counter() - began, time.process_time() - spent
        rate, each_us = entries / took, spent / entries * 1e6
        print(f"a consumer of {partitions} partitions: {rate:,.0f} entries/s, {each_us:.0f} us of CPU each")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.topics", description=__doc__)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--session", type=float, default=6.0)
    chosen = parser.parse_args()
    with Engine("redis-8.10") as engine:
        become(engine)
        asyncio.run(team(engine, chosen.members, chosen.partitions, chosen.session))
        producer(engine)
        reads(engine)
        become(engine)
        for partitions in (8, 64, 1_000):
            consumers(engine, partitions)


if __name__ == "__main__":
    main()
