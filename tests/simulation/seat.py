"""A region for the simulation: an engine, one connection, and plans run on it at once."""

from typing import Any, TypeVar

import redis

from braidstream import engine as functions
from braidstream import ids
from braidstream.braid import Region, View, ask, read_region
from braidstream.commands.region import initialise, meet, tune_id_mode
from braidstream.commands.table import TABLE
from braidstream.drivers.gather import unpack, wire
from braidstream.drivers.session import resp2
from braidstream.plan import Batch, Plan, Replies, run
from tests.support.history import Entry
from tests.support.servers import Engine

T = TypeVar("T")


class Seat:
    """One region. `view` is what its users' client remembers; `eyes` remembers for us, so that looking
    does not refresh what the client believes."""

    def __init__(self, engine: Engine, number: int, everyone: range, id_mode: str) -> None:
        self.number = number
        self.conn: Any = redis.UnixDomainSocketConnection(path=str(engine.unixsocket), protocol=2)
        self.conn.connect()
        self.send(Batch([("FLUSHALL", "SYNC")]))
        self.run(initialise(number, f"region-{number}"))
        self.run(functions.load())
        self.run(tune_id_mode(id_mode))
        self.run(meet(everyone))
        self.region: Region = self.run(read_region())
        self.view, self.eyes = View(self.region), View(self.region)

    def close(self) -> None:
        self.conn.disconnect()

    def send(self, batch: Batch) -> Replies:
        commands = wire(batch)
        self.conn.send_packed_command(self.conn.pack_commands(commands))
        return unpack(batch, [self._read() for _ in commands], resp2)

    def _read(self) -> Any:
        try:
            return self.conn.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    def run(self, plan: Plan[T]) -> T:
        return run(plan, self.send)

    def do(self, *words: bytes | str | int) -> Any:
        """A user's command."""
        argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        return self.run(TABLE[argv[0]].plan(self.view, argv))

    def look(self, name: str) -> tuple[bool, dict[Entry, bytes]]:
        """Whether a stream exists here, and every entry in it with its value."""
        plan = ask(self.eyes, name.encode(), lambda strand: strand.xrange(ids.ZERO, ids.LAST))
        registry, pages = self.run(plan)
        found = {
            (strand.registration.decode(), ids.native(native)): fields[1]
            for strand, page in pages
            for native, fields in page
        }
        return registry.exists, found
