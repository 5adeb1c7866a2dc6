"""kill -9 at every step of a move of a log's home, under load: dense, nothing lost, nothing twice.

The one who moves talks to the two regions; before its k-th word the victim is killed: itself, the old home or
the new one. Then it is run again. Writers write through gateways of other regions meanwhile.
"""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import pytest
import redis

from braidstream.config import RegionConfig
from braidstream.engine.address import parse_address
from braidstream.errors import BraidError
from braidstream.operations import log_upkeep as operations_logs
from braidstream.plan.plan import Plan
from braidstream.replication import log_homes as replication_logs
from braidstream.replication.endpoint import Endpoint
from tests.support.gateways import Served
from tests.support.log_homes import end_epoch
from tests.support.servers import Engine, Flavour
from tests.support.thinning import NIGHTLY
from tests.support.waiting import eventually
from tests.support.world import World

T = TypeVar("T")
# In CI each victim dies at every third step, and together they die at each. Every night, each at each.
STRIDE = 1 if NIGHTLY else 3
SAFE = ("--appendonly", "yes", "--appendfsync", "always")


class KilledError(Exception):
    """The one who moves is dead."""


class Steps:
    """Counts what the one who moves says, and kills before a given word."""

    def __init__(self, kill_at: int, kill: Callable[[], None]) -> None:
        self.said, self._kill_at, self._kill = 0, kill_at, kill

    def next(self) -> None:
        self.said += 1
        if self.said == self._kill_at:
            self._kill()


class Stepped:
    """A region, as the one who moves talks to it."""

    def __init__(self, endpoint: Endpoint, steps: Steps) -> None:
        self._endpoint, self._steps = endpoint, steps

    async def run(self, plan: Plan[T]) -> T:
        self._steps.next()
        return await self._endpoint.run(plan)


class Writers:
    """Write through gateways until they are stopped. receipts: offsets and what they are;
    unknown: the replies were lost.

    messages: so many others write messages (IDMP), and send each one through every gateway until it is
    answered.
    """

    def __init__(self, ports: list[int], count: int, log: str = "log", messages: int = 0) -> None:
        self.receipts, self.unknown, self.refused = list[tuple[int, str]](), set[str](), set[str]()
        self._log, self.longest_s, self._ports = log, 0.0, ports
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(ports[who % len(ports)], who)) for who in range(count)
        ]
        self._threads += [threading.Thread(target=self._send, args=(f"m{who}",)) for who in range(messages)]
        for thread in self._threads:
            thread.start()

    def _send(self, who: str) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(redis.Redis(port=port)) for port in self._ports]
            for number in itertools.count():
                if self._stop.is_set():
                    return
                body = f"{who}.{number}"
                for client in clients:
                    self.receipts.append((self._send_until_answered(client, who, body), body))

    def _send_until_answered(self, client: "redis.Redis[bytes]", who: str, body: str) -> int:
        while True:
            try:
                return int(client.execute_command("TWRITE", self._log, "IDMP", who, body, "t", body))
            except redis.RedisError as error:
                self.refused.add(str(error))

    def _write(self, port: int, who: int) -> None:
        with redis.Redis(port=port) as client:
            since = time.monotonic()
            for number in itertools.count():
                if self._stop.is_set():
                    return
                body = f"{who}.{number}"
                try:
                    self.receipts.append((client.execute_command("TWRITE", self._log, "t", body), body))
                    self.longest_s = max(self.longest_s, time.monotonic() - since)
                    since = time.monotonic()
                except redis.RedisError as error:
                    if "may or may not" in str(error):
                        self.unknown.add(body)
                    else:
                        self.refused.add(str(error))
                    self._stop.wait(0.02)

    @property
    def everything(self) -> set[str]:
        return {body for _, body in self.receipts}

    def go_on(self, count: int = 5) -> None:
        """Wait until they have written some more."""
        goal = len(self.receipts) + count
        eventually(lambda: len(self.receipts) >= goal, within_s=60, why=f"writers: {self.refused}")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def world(flavour: Flavour) -> Iterator[World]:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour, args=SAFE)) for _ in range(3)]
        world = World(engines)
        stack.callback(world.close)
        world[1].twrite("log", "t", "first")
        world.sync()
        yield world


@pytest.fixture
def ports(world: World) -> Iterator[list[int]]:
    """Gateways of all regions, which know the others."""
    regions = [
        RegionConfig(id=number, name=f"region-{number}", url=engine.url)
        for number, engine in enumerate(world.engines, 1)
    ]
    with ExitStack() as stack:
        yield [
            stack.enter_context(Served(here.url, others=[each for each in regions if each is not here])).port
            for here in regions
        ]


def revive(world: World) -> None:
    for engine in world.engines:
        if not engine.alive:
            engine.start()


async def talk(world: World, regions: tuple[int, int], steps: Steps, say: Callable[[Any, Any], Any]) -> Any:
    ends = [Endpoint(parse_address(world.engines[number - 1].url)) for number in regions]
    try:
        for end in ends:
            await end.connect()
        return await say(*(Stepped(end, steps) for end in ends))
    finally:
        for end in ends:
            end.close()


def move(world: World, home: int, to: int, steps: Steps) -> int:
    """What `braid log move` does, for one who is run again and again."""

    async def say(source: Any, target: Any) -> int:
        registry = await source.run(operations_logs.read_log(b"log"))
        there = await target.run(operations_logs.read_log(b"log"))
        epoch = max(operations_logs.home_of(registry), operations_logs.home_of(there))
        if epoch.writer == to:
            await (await replication_logs.link_of(source, target)).sync(b"log")
            return epoch.first
        return await replication_logs.move_home(b"log", source, target, epoch=epoch, to=to)

    return int(asyncio.run(talk(world, (home, to), steps, say)))


def die() -> None:
    raise KilledError


def whole(world: World, region: int, log: str = "log") -> list[Any]:
    rows = list[Any]()
    while page := world[region].tread(log, len(rows) + 1, 1_000):
        rows += page
    return rows


def test_messages_that_are_sent_again_during_moves_are_written_once(world: World, ports: list[int]) -> None:
    """The new home learns from the third region that it is the home, before it gets the journal."""
    writers, home = Writers(ports, 1, messages=4), 1
    try:
        for _ in range(4):
            writers.go_on(20)
            to, third = home % 3 + 1, (home + 1) % 3 + 1
            world.ship(home, to, "log")
            end_epoch(world, to, home=home)
            world.ship(home, third, "log")
            world.ship(third, to, "log")
            writers.go_on()
            world.ship(home, to, "log", relay=True)
            home = to
        writers.go_on(20)
    finally:
        writers.stop()
    world.sync()
    bodies = [row[2] for row in whole(world, home)]
    print(f"{len(bodies)} entries, {len(writers.receipts)} replies; refused: {writers.refused}")
    assert [body for body, times in Counter(bodies).items() if times > 1] == []
    assert [(offset, bodies[offset - 1]) for offset, _ in writers.receipts] == writers.receipts


def test_a_planned_move_survives_kill_at_every_step(world: World, ports: list[int]) -> None:
    writers, home, moves = Writers(ports, 2, messages=1), 1, 0
    try:
        writers.go_on()
        whole_way = Steps(0, die)
        move(world, 1, 2, whole_way)
        home = 2
        for first, victim in enumerate(("mover", "old", "new"), 1):
            # After a kill a link says more, for each epoch: the log has one more after each move.
            for kill_at in range(first, whole_way.said + 1, STRIDE):
                writers.go_on()
                to = home % 2 + 1
                engine = world.engines[(home if victim == "old" else to) - 1]
                steps = Steps(kill_at, die if victim == "mover" else engine.kill)
                try:
                    move(world, home, to, steps)
                except (KilledError, BraidError):
                    revive(world)
                    move(world, home, to, Steps(0, die))
                revive(world)
                home, moves = to, moves + 1
        writers.go_on()
        writers.longest_s = 0.0
        for _ in range(2):
            move(world, home, home % 2 + 1, Steps(0, die))
            home = home % 2 + 1
            writers.go_on()
        pause = writers.longest_s
    finally:
        writers.stop()
    world.sync()
    rows = whole(world, 3)
    counts = f"{moves} moves, {len(rows)} entries, {len(writers.unknown)} replies lost"
    print(f"{counts}; the longest write in two moves took {1000 * pause:.0f} ms")
    assert None not in rows
    assert [row[0] for row in rows] == [*range(1, len(rows) + 1)]
    assert whole(world, 1) == whole(world, 2) == rows
    bodies = [row[2] for row in rows]
    assert len(bodies) == len(set(bodies))
    assert [(offset, bodies[offset - 1]) for offset, _ in writers.receipts] == writers.receipts
    assert set(bodies) <= {"first", *writers.everything, *writers.unknown}


def test_a_forced_move_and_the_rescue_survive_kill_at_every_step(world: World, ports: list[int]) -> None:
    logs = dict[str, Writers]()
    old, new = world.engines[:2]
    for first, (victim, kill) in enumerate((("mover", die), ("old", old.kill), ("new", new.kill)), 1):
        for kill_at in itertools.count(first, STRIDE):
            log = f"log.{victim}.{kill_at}"
            world[1].twrite(log, "t", "first")
            world.ship(1, 2, log)
            logs[log] = writers = Writers(ports, 2, log)
            try:
                writers.go_on()
                old.kill()  # it is lost, with entries that the new home does not have
                if victim == "new":
                    new.kill()
                    new.start()
                epoch = operations_logs.home_of(world[2].run_plan(operations_logs.read_log(log.encode())))
                world[2].run_plan(operations_logs.end_epoch(log.encode(), epoch, 2, force=True))
                writers.go_on()
                old.start()
                steps, say = Steps(kill_at, kill), partial(replication_logs.rescue, log.encode(), writer=1)
                try:
                    asyncio.run(talk(world, (1, 2), steps, say))
                except (KilledError, BraidError):
                    revive(world)
                    asyncio.run(talk(world, (1, 2), Steps(0, die), say))
                revive(world)
                writers.go_on()
            finally:
                writers.stop()
            if steps.said < kill_at:
                break  # it had nothing more to say
    rescued = sum(_check_rescued(world, log, writers) for log, writers in logs.items())
    writes = sum(len(each.receipts) for each in logs.values())
    print(f"{len(logs)} forced moves, {writes} writes, {rescued} rescued")
    assert rescued


def _check_rescued(world: World, log: str, writers: Writers) -> int:
    """What was written is there once, at its offset; what was rescued is after it. How many that are."""
    for source, target in ((2, 1), (1, 3), (2, 3), (1, 2)):
        world.ship(source, target, log)
    rows = whole(world, 2, log)
    assert whole(world, 1, log) == whole(world, 3, log) == rows
    assert None not in rows
    place = {row[2]: row[0] for row in rows}
    assert len(place) == len(rows)
    assert writers.everything <= set(place) <= {"first", *writers.unknown, *writers.everything}
    late = [(offset, body) for offset, body in writers.receipts if place[body] != offset]
    assert all(place[body] > offset for offset, body in late)
    return len(late)
