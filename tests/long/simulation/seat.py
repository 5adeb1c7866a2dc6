"""A region for the simulation: an engine, one connection, and plans run on it at once."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import hiredis

from braidstream import lua as functions
from braidstream.commands.arguments import parse_add
from braidstream.commands.expire import carry_out
from braidstream.commands.table import TABLE
from braidstream.commands.xadd_idempotent import add_all
from braidstream.engine.redis_py import resp2
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.region import Region
from braidstream.model.registry import Registry, Settings
from braidstream.model.strand import Command, pack
from braidstream.operations.membership import initialise, meet, tune_id_mode
from braidstream.plan.braid import read_strands
from braidstream.plan.lookup import read_region, registry_of
from braidstream.plan.plan import Batch, Plan, Replies, run, unpack, wire
from braidstream.plan.view import View
from braidstream.replication.link.batches import parse_array
from tests.long.simulation import clock
from tests.oracle.history import Entry
from tests.support.answering import answer_question
from tests.support.pages import page
from tests.support.servers import Engine

T = TypeVar("T")


class Seat:
    """One region. `view` is what its users' client remembers; `eyes` remembers for us, so that looking
    does not refresh what the client believes. `clock_ms` is what the engine's clock says. `others`: all
    seats, which answer what their groups need."""

    others: Mapping[int, "Seat"]

    def __init__(self, engine: Engine, number: int, everyone: range, id_mode: str) -> None:
        self.number, self.engine = number, engine
        self.clock_ms, self.others = 0, {}
        self.connect()
        self._exchange([("FLUSHALL", "SYNC")])
        self.run(initialise(number, f"region-{number}"))
        self.load()
        self.clock_ms = clock.START_MS
        self.run(tune_id_mode(id_mode))
        self.run(meet(everyone))
        self.begin()

    def connect(self) -> None:
        """To an engine that was just started."""
        self._told_ms = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(self.engine.unixsocket))
        self._reader = hiredis.Reader(replyError=ReplyError)

    def load(self) -> None:
        """The functions, whose clock stands until it is told."""
        clock_ms, self.clock_ms = self.clock_ms, self._told_ms
        self.run(functions.load(clock.library()))
        self.clock_ms = clock_ms

    def begin(self) -> None:
        """Clients connect, and know nothing yet."""
        self.region: Region = self.run(read_region())
        self.view, self.eyes = View(self.region), View(self.region)

    def close(self) -> None:
        self._socket.close()

    def replicate(self) -> None:
        """The replica catches up."""
        self._exchange([clock.REPLICATE])

    def promote(self) -> None:
        """The primary is lost. What its replica has is the region now, and clients connect again."""
        self._exchange([clock.PROMOTE, clock.REPLICATE])
        self.view, self.eyes = View(self.region), View(self.region)

    def send(self, batch: Batch) -> Replies:
        if batch.block_ms is not None and (asked := keys.parse_questions(batch.commands[0][-2])):
            answer_question(asked[0], self.number, {number: seat.run for number, seat in self.others.items()})
        commands = [tuple(parse_array(batch.packed))] if batch.packed else wire(batch)
        if self._told_ms == self.clock_ms:
            replies = unpack(batch, self._exchange(commands), resp2)
        else:
            self._told_ms = self.clock_ms
            replies = unpack(batch, self._exchange([(*clock.SET, self.clock_ms), *commands])[1:], resp2)
        if batch.raw and isinstance(replies[0], list):
            replies[0] = page(replies[0])
        return replies

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip. No client in between: a run has more than a thousand of them."""
        self._socket.sendall(pack([clock.told(command) for command in commands]))
        replies = list[Any]()
        while len(replies) < len(commands):
            self._reader.feed(self._socket.recv(65536))
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
        return replies

    def run(self, plan: Plan[T]) -> T:
        return run(plan, self.send)

    def do(self, *words: bytes | str | int) -> Any:
        """A user's command."""
        argv = _argv(words)
        return self.run(TABLE[argv[0]].plan(self.view, argv))

    def send_messages(self, name: str, messages: Sequence[str]) -> list[bytes]:
        """XADD of messages that one producer sends together: the ID that each got, now or before. `~` stands
        for a space."""
        split = [[word.replace("~", " ") for word in message.split()] for message in messages]
        specs = [parse_add(_argv(("XADD", name, *words))) for words in split]
        found = list[bytes]()
        for result in self.run(add_all(self.view, name.encode(), specs)):
            if not isinstance(result, bytes):
                raise result or ReplyError(f"ERR {name} was not made")
            found.append(result)
        return found

    def carry_out(self, name: str) -> int:
        """What a daemon does at a deadline; it remembers nothing."""
        more, done = 2, 2
        while done == more:
            done = self.run(carry_out(View(self.region), name.encode()))
        return done

    def deadline(self, name: str) -> str:
        """The last one that was set: its version and its time."""
        [reply] = self.send(Batch([("HGET", keys.meta(name.encode()), MetaField.UNTIL)]))
        return bytes(reply).decode()

    def era(self, name: str) -> int:
        """Of the settings that the last message was sent with."""
        return self.view.recall(name.encode()).settings.era

    def settings(self, name: str) -> Settings:
        """Of idempotent production."""
        [reply] = self.send(Batch([registry_of(name.encode())]))
        return Registry.parse(name.encode(), reply).settings

    def log(self, name: str) -> Registry:
        """The registry of a log; without a home if there is none here."""
        [reply] = self.send(Batch([registry_of(name.encode())], resend=True))
        return Registry.parse(name.encode(), reply)

    def look(self, name: str) -> tuple[bool, dict[Entry, bytes]]:
        """Whether a stream exists here, and every entry in it with its value."""
        plan = read_strands(self.eyes, name.encode(), lambda strand: strand.xrange(ids.ZERO, ids.LAST))
        registry, pages = self.run(plan)
        found = {
            (strand.registration.decode(), ids.native(native)): fields[1]
            for strand, page in pages
            for native, fields in page
        }
        return registry.exists, found


def _argv(words: Sequence[bytes | str | int]) -> list[bytes]:
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]
