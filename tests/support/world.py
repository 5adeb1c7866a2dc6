"""Several regions on real engines, and links between them that move only when a test says so."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import permutations
from typing import Any, TypeVar

import redis

import braidstream
from braidstream import lua as functions
from braidstream.errors import ReplyError
from braidstream.model.keys import name_of_meta, parse_questions
from braidstream.model.region import Region
from braidstream.operations.membership import initialise, meet, tune_id_mode
from braidstream.plan.lookup import read_region
from braidstream.plan.plan import Plan
from braidstream.replication.link.flow import Progress
from braidstream.replication.link.link import Link
from tests.support.answering import answer_question
from tests.support.servers import Engine, Flavour

T = TypeVar("T")


class Here:
    """A region of one server, for links and jobs that a test steps by hand.

    A refusal comes as a link wants it, a ReplyError; a client would turn it into redis-py's.
    """

    is_cluster = False

    def __init__(self, client: braidstream.Redis) -> None:
        self.client = client
        self.nodes = [self]

    def spares(self, error: BaseException) -> bool:
        return False

    async def run(self, plan: Plan[T]) -> T:
        result = self.client.run_plan(_refusal_as_value(plan))
        if isinstance(result, ReplyError):
            raise result
        return result


def _refusal_as_value(plan: Plan[T]) -> Plan[T | ReplyError]:
    try:
        return (yield from plan)
    except ReplyError as error:
        return error


class World:
    """Regions 1..n. `sync()` lets every link move until none has anything to bring."""

    def __init__(self, engines: Iterable[Engine], id_mode: str = "strict") -> None:
        self.engines = list(engines)
        self.clients: dict[int, braidstream.Redis] = {}
        self.endpoints: dict[int, Here] = {}
        regions = range(1, len(self.engines) + 1)
        for number, engine in zip(regions, self.engines, strict=True):
            client = braidstream.Redis.from_url(engine.url, decode_responses=True)
            client.run_plan(initialise(number, f"region-{number}"))
            client.run_plan(functions.load())
            client.run_plan(tune_id_mode(id_mode))
            client.run_plan(meet(regions))
            self.clients[number], self.endpoints[number] = client, Here(client)
        self.links = {pair: self.link(*pair) for pair in permutations(regions, 2)}

    def __getitem__(self, region: int) -> braidstream.Redis:
        return self.clients[region]

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def region(self, number: int) -> Region:
        return self.clients[number].run_plan(read_region())

    def link(self, source: int, target: int) -> Link:
        """A new link with no memory: what a process that was just started has."""
        ends = self.endpoints[source], self.endpoints[target]
        return Link(*ends, here=self.region(source), there=self.region(target))

    def streams(self, region: int) -> list[bytes]:
        """Every stream a region knows of, deleted ones too."""
        client = self.engines[region - 1].client()
        with client:
            found = (name_of_meta(key) for key in client.scan_iter(match="bs:meta:*", count=1000))
            return sorted(name for name in found if name is not None)

    def ship(self, source: int, target: int, name: bytes | str, *, relay: bool = False) -> Progress:
        """One round of one link for one stream."""
        wanted = name.encode() if isinstance(name, str) else name
        return asyncio.run(self.links[source, target].sync(wanted, relay=relay))

    def sync(self, among: Iterable[int] | None = None, rounds: int = 20) -> None:
        """Until nothing moves, among the regions given or all."""
        numbers = list(among or self)
        for _ in range(rounds):
            moved = False
            for source, target in permutations(numbers, 2):
                for name in self.streams(source):
                    progress = self.ship(source, target, name)
                    moved = moved or progress.moved
            if not moved:
                return
        raise AssertionError(f"links among {numbers} still move after {rounds} rounds")

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Meanwhile regions answer what their groups need, as their daemons do."""
        stopped = threading.Event()

        def answer(number: int) -> None:
            with suppress(redis.ConnectionError), self.engines[number - 1].client() as client:
                for key in client.scan_iter(match=f"bs:{number}:q:*", count=1000):
                    if (asked := parse_questions(key)) is not None:
                        answer_question(asked[0], number, regions)

        def work() -> None:
            while not stopped.wait(0.01):
                for number in regions:
                    answer(number)

        regions = {number: client.run_plan for number, client in self.clients.items()}
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def all(self, command: str, *words: Any) -> list[Any]:
        """One command in every region."""
        return [client.execute_command(command, *words) for client in self.clients.values()]


Pool = dict[tuple[Flavour, int], Engine]


def pooled(pool: Pool, flavour: Flavour, regions: int) -> list[Engine]:
    """So many empty engines, started where the pool has too few."""
    engines = list[Engine]()
    for number in range(regions):
        if (flavour, number) not in pool:
            pool[flavour, number] = Engine(flavour).start()
        engines.append(pool[flavour, number])
        engines[-1].flush(keep_functions=True)
    return engines


@contextmanager
def fresh_world(engines: Iterable[Engine], id_mode: str = "strict") -> Iterator[World]:
    """A world on engines that forget everything first."""
    listed = list(engines)
    for engine in listed:
        engine.flush(keep_functions=True)
    world = World(listed, id_mode)
    try:
        yield world
    finally:
        world.close()
