"""Consumers with an empty handler, against bare loops. `python -m bench.consumer` shows entries per second.

    bare, XACK each       redis-py: XREADGROUP COUNT 100, and XACK after each entry, as most programs do
    bare, XACK per read   the same with one XACK for all entries of a read: no handler fails alone
    Consumer              threads, its default settings
    asyncio.Consumer      tasks, its default settings

The bare loops have no retries, no dead letters, no claims, no heartbeat. Rounds alternate; a ratio is the
median of the ratios of the rounds.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from itertools import count

import redis
from rich.console import Console
from rich.table import Table

import braidstream
import braidstream.asyncio
from bench.append import BARE, OURS
from bench.bed import NEWEST, Bed
from bench.measure import Case
from braidstream.operations.membership import tune_id_mode
from tests.support.servers import EVERY

GOAL = 0.75
GROUP = "bench"
COUNT = 100
ENTRIES = 10_000


def threads(bed: Bed) -> Case:
    client = _filled(bed)
    return _case(bed, "Consumer", lambda group: _threads(client, group, ENTRIES))


def tasks(bed: Bed) -> Case:
    _filled(bed)
    return _case(bed, "asyncio.Consumer", lambda group: asyncio.run(_tasks(bed.engine.url, group, ENTRIES)))


CASES = (threads, tasks)


def _filled(bed: Bed) -> braidstream.Redis:
    bed.ours().run_plan(tune_id_mode("strict"))
    _fill(bed, ENTRIES)
    return bed.ours()


def _case(bed: Bed, name: str, consume: Callable[[str], float]) -> Case:
    ours, bare, numbers = bed.ours(), bed.bare(), count()

    def consumes() -> float:
        group = f"{GROUP}-{next(numbers)}"
        done = consume(group)
        ours.xgroup_destroy(OURS, group)
        return done

    def loops() -> float:
        group = f"{GROUP}-{next(numbers)}"
        bare.xgroup_create(BARE, group, "0")
        done = _bare(bare, group, ENTRIES, each=False)
        bare.xgroup_destroy(BARE, group)
        return done

    return Case(f"{name}, against a loop with one XACK per read", consumes, loops, {"rate": GOAL})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.consumer", description=__doc__)
    parser.add_argument("--engine", choices=EVERY, action="append")
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    for flavour in chosen.engine or NEWEST:
        with Bed(flavour) as bed:
            bed.ours().run_plan(tune_id_mode("strict"))
            _fill(bed, chosen.entries)
            rounds = [_round(bed, chosen.entries, number) for number in range(chosen.rounds)]
        _show(flavour, rounds)


def _fill(bed: Bed, entries: int) -> None:
    for client, stream in ((bed.ours(), OURS), (bed.bare(), BARE)):
        for _ in range(entries // 1000):
            with client.pipeline(transaction=False) as pipe:
                for number in range(1000):
                    pipe.xadd(stream, {"order": number, "amount": 30})
                pipe.execute()


def _round(bed: Bed, entries: int, number: int) -> dict[str, float]:
    group = f"{GROUP}-{number}"
    bed.bare().xgroup_create(BARE, group, "0")
    bed.bare().xgroup_create(BARE, f"{group}-each", "0")
    ways: dict[str, Callable[[], float]] = {
        "bare, XACK each": lambda: _bare(bed.bare(), f"{group}-each", entries, each=True),
        "Consumer": lambda: _threads(bed.ours(), group, entries),
        "bare, XACK per read": lambda: _bare(bed.bare(), group, entries, each=False),
        "asyncio.Consumer": lambda: asyncio.run(_tasks(bed.engine.url, f"{group}-a", entries)),
    }
    found = dict[str, float]()
    for name, run in ways.items() if number % 2 else reversed(ways.items()):
        began = time.perf_counter()
        found[name] = entries / (run() - began)
    for name in (group, f"{group}-each"):
        bed.bare().xgroup_destroy(BARE, name)
    for name in (group, f"{group}-a"):
        bed.ours().xgroup_destroy(OURS, name)
    return found


def _bare(client: redis.Redis, group: str, entries: int, *, each: bool) -> float:
    """Returns when it was done."""
    done = 0

    def handle(fields: object) -> None:
        nonlocal done
        done += 1

    while done < entries:
        for _, page in client.xreadgroup(group, "c", {BARE: ">"}, count=COUNT):
            for entry, fields in page:
                handle(fields)
                if each:
                    client.xack(BARE, group, entry)
            if not each:
                client.xack(BARE, group, *(entry for entry, _ in page))
    return time.perf_counter()


def _threads(client: braidstream.Redis, group: str, entries: int) -> float:
    consumer = braidstream.Consumer(client, OURS, group=group)
    done = list[None]()
    ended = 0.0

    @consumer.handler
    def handle(message: braidstream.Message) -> None:
        nonlocal ended
        done.append(None)
        if len(done) == entries:
            ended = time.perf_counter()
            consumer.stop()

    consumer.run()
    assert client.xpending(OURS, group)["pending"] == 0
    return ended


async def _tasks(url: str, group: str, entries: int) -> float:
    async with braidstream.asyncio.Redis.from_url(url) as client:
        consumer = braidstream.asyncio.Consumer(client, OURS, group=group)
        done, ended = 0, 0.0

        @consumer.handler
        async def handle(message: braidstream.Message) -> None:
            nonlocal done, ended
            done += 1
            if done == entries:
                ended = time.perf_counter()
                consumer.stop()

        await consumer.run()
        return ended


def _show(flavour: str, rounds: list[dict[str, float]]) -> None:
    table = Table("", "entries/s", "against XACK each", "against XACK per read", title=flavour)
    for name in rounds[0]:
        rate = statistics.median(each[name] for each in rounds)
        ratios = [
            statistics.median(each[name] / each[bare] for each in rounds)
            for bare in ("bare, XACK each", "bare, XACK per read")
        ]
        table.add_row(name, f"{rate:,.0f}", *(f"{ratio:.2f}" for ratio in ratios))
    Console().print(table)


if __name__ == "__main__":
    main()
