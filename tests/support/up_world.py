"""The regions of `braid up` as a world: real engines, gateways and daemons, spoken to by redis-cli.

Between syncs the daemons are stopped (SIGSTOP): tables say what a region knows before it hears of another.
"""

import os
import signal
from collections.abc import Iterable, Iterator

import redis

import braidstream
from braidstream.model.keys import name_of_meta
from braidstream.replication.link.stream_state import State, lacks, read_state
from tests.support.typist import SHOWN, Typist, show
from tests.support.up import Up
from tests.support.waiting import eventually


class Door:
    """What tables ask of an engine."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


class UpWorld:
    """See the top of the file. As tests/support/world.py, as far as tables need it."""

    def __init__(self, up: Up) -> None:
        self.engines = [Door(url) for url in up.urls.values()]
        self.plain = {number: up.client(number) for number in up.urls}
        self.clients = {
            number: Typist(int(up.gateways[number].rpartition(":")[2]), up.client(number), f"region {number}")
            for number in up.urls
        }
        self._daemons = up.children("replicate")
        self._tell(signal.SIGSTOP)

    def __getitem__(self, region: int) -> Typist:
        return self.clients[region]

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def sync(self, among: Iterable[int] | None = None) -> None:
        assert set(among or self) == set(self), "daemons bring everything to everyone"
        if SHOWN:
            show("-- sync, by the daemons --\n")
        self._tell(signal.SIGCONT)
        eventually(self._agree, within_s=60, why="the daemons should bring everything everywhere")
        self._tell(signal.SIGSTOP)

    def flush(self) -> None:
        """Delete every stream, everywhere."""
        for client in self.plain.values():
            client.flushdb()
        self.sync()

    def close(self) -> None:
        self._tell(signal.SIGCONT)
        for client in (*self.clients.values(), *self.plain.values()):
            client.close()

    def _tell(self, number: signal.Signals) -> None:
        for daemon in self._daemons:
            os.kill(daemon, number)

    def _agree(self) -> bool:
        names = {name for door in self.engines for name in _streams(door)}
        for name in names:
            states = [_state(client, name, number, list(self)) for number, client in self.plain.items()]
            if not all(_has(target, source) for target in states for source in states):
                return False
        return True


def _streams(door: Door) -> list[bytes]:
    with door.client() as client:
        found = (name_of_meta(key) for key in client.scan_iter(match="bs:meta:*", count=1000))
        return [name for name in found if name is not None]


def _state(client: braidstream.Redis, name: bytes, home: int, writers: list[int]) -> State:
    return client.run_plan(read_state(name, (), writers, home=home))


def _has(target: State, source: State) -> bool:
    """Whether a region knows all that another does."""
    if lacks(target, source):
        return False
    for strand, extent in source.strands.items():
        end = target.end(strand)
        if end is not None and end < extent.last:
            return False
    for writer, journal in source.journals.items():
        copy = target.journals.get(writer)
        if copy is None or copy.last < journal.last:
            return False
    return True
