"""Hostile calls of every engine function, and hostile fields of the registry: none keeps an engine busy.

A recording of valid calls of every function is replayed with one or two words replaced, on a stream whose
registry has a hostile field, or has none. Now and then a link brings the registry to a second region.

    BRAID_CALLS=100000 BRAID_SEED=7      how many calls, and which; a failure prints the seed and the call

An engine has one thread: nobody gets an answer for as long as its longest call takes. The durations are those
that the engine itself measured (SLOWLOG). They include the time for which the machine did not run the engine,
so a slow call is bad only if it is slow each time when the same commands run again on the same data.
"""

import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import redis
from redis.exceptions import ResponseError

from braidstream.errors import BraidError
from braidstream.model.fields import MetaField, named
from braidstream.model.strand import Command
from tests.support.cluster_functions import Nodes, say_every_function
from tests.support.servers import Engine
from tests.support.world import World, fresh_world

NAME: Final = b"a"
META: Final = b"bs:meta:{a}"
# How often the data is put back, and a link runs.
RESTORE_EVERY: Final = 25
LINK_EVERY: Final = 100
TOLD_EVERY: Final = 5_000
# A slow call is bad if it is slow each of these times.
MEASURED: Final = 3
# Bounds: of a call, as a multiple of the median of valid calls of its function, or of a valid merge of the
# same size; of a call at the peer; of a reply; of the engine's memory beyond its start.
TIMES: Final = 50
PEER_US: Final = 100_000
REPLY_BYTES: Final = 4_000_000
MEMORY_BYTES: Final = 256_000_000

LONG: Final = (2_000, 20_000, 60_000)
WORDS: Final = (
    *(
        b"",
        b" ",
        b"0",
        b"-1",
        b"-8000000",
        b"1.5",
        b"nan",
        b"inf",
        b"-inf",
        b"1e9",
        b"0x7fffffff",
        b"99999999",
    ),
    *(b"9" * 20, b"9" * 21, b"18446744073709551615", b"18446744073709551616", b"9007199254740993"),
    *(b"-", b"+", b"$", b"*", b"(", b"0-0", b"0-1", b"1-1", b"5-5", b"0-18446744073709551615", b"5", b"05-0"),
    *(
        b"s1",
        b"s2",
        b"c1",
        b"t0.1",
        b"s0",
        b"s9999",
        b"s1:0",
        b"g:g",
        b"x",
        b"%",
        b"%d+",
        b"[",
        b"\0",
        b"\r\n",
    ),
    *(b"0:+:0-0", b"0:-:9-9", b"?", b"~", b"1.2,3.1", b"1.2/3.1", b"/", b"once", b"1:1.1:0:0", b"2.1 once"),
    *(b"0:100:100:0", b"1 4102444800000", b"0.1:1", b"3.1:1000:0:0", b"s1:0 7-3", b"s1:0 5-0~7-0,9-0"),
)


@cache
def long_words(size: int) -> tuple[bytes, ...]:
    """Words of this length that patterns like to look at again and again."""
    digit = b"1" * size
    return (
        *(
            digit,
            b"9" * size,
            b"0" * size,
            digit + b"x",
            b"s" + digit,
            b"1-" + digit,
            digit + b"-1",
            b"0-" + digit + b"x",
        ),
        *(b"1." + digit, digit + b".1", b"1.1:" + digit + b"x", digit + b":x", b"s1:0 " + digit, b"x" * size),
        *((b"1.1," * size)[:size], (b"/ " * size)[:size], (b"1.1/ " * size)[:size], (b": " * size)[:size]),
        *((b"s1:0 " * size)[:size], b"s1:0 " + (b"1-1," * size)[:size], (b"0.1:1 " * size)[:size]),
        b" ".join(b"1.%d,2.%d/" % (at, size - at) for at in range(size // 12)),
        b" ".join(b"%d:1.1:0:0" % at for at in range(size // 10)),
    )


@dataclass
class Findings:
    calls: int = 0
    too_slow: list[str] = field(default_factory=list)
    longest_us: int = 0
    peer_us: int = 0
    reply_bytes: int = 0
    memory_bytes: int = 0


class OneNode(Nodes):
    """The recording of every command on one server."""

    def __init__(self, conn: Any) -> None:
        self.connections, self.home, self.sent = [conn], conn, list[Command]()

    def of(self, name: bytes) -> "OneNode":
        return self

    def _owner(self, key: bytes) -> Any:
        return self.home


@contextmanager
def connected(engine: Engine) -> Iterator[redis.Redis]:
    with engine.client(socket_timeout=60) as client:
        client.config_set("slowlog-log-slower-than", "0")
        client.config_set("slowlog-max-len", "16")
        yield client


class Fuzz:
    """The first region is called, the second one gets what links bring."""

    def __init__(self, world: World, client: redis.Redis, seed: int) -> None:
        self.world, self.client, self.dice, self.seed = world, client, random.Random(seed), seed
        self.found = Findings()
        self.since_restore = list[Command]()  # with these, the data is what the next call finds
        self.valid = self._recorded()
        self.medians = self._measured()
        self.per_byte_us = self._measured_by_size()
        self._fill()
        with connected(world.engines[1]) as peer:
            self.kept, self.kept_by_peer = _kept(client), _kept(peer)
        self.memory = client.info("memory")["used_memory"]

    def run(self, calls: int) -> Findings:
        fields = [value for _, value in named(MetaField)]
        for number in range(calls):
            if number % RESTORE_EVERY == 0:
                self._restore()
            if self.dice.random() < 0.5:
                self._hset(self.dice.choice(fields))
            self._call(number)
            if number % LINK_EVERY == 0:
                self._link()
            if number % TOLD_EVERY == 0 and number:
                print(f"{number} of {calls} calls: {self.found}", flush=True)
        self.found.calls = calls
        self.found.memory_bytes = self.client.info("memory")["used_memory_peak"] - self.memory
        return self.found

    def _recorded(self) -> list[Command]:
        """Every function at least once, called as it should be."""
        conn = self.client.connection_pool.get_connection()
        said = OneNode(conn)
        try:
            say_every_function(said, NAME)
        finally:
            self.client.connection_pool.release(conn)
        return [command for command in said.sent if command[0] in ("FCALL", "FCALL_RO")]

    def _measured(self) -> dict[str, float]:
        """The median of what the valid calls of each function take, in microseconds; at least 100."""
        took = dict[str, list[int]]()
        for command in self.valid:
            took.setdefault(str(command[1]), []).append(max(self._timed(command)[0], 100))
        return {function: statistics.median(each) for function, each in took.items()}

    def _measured_by_size(self) -> float:
        """Microseconds for each byte of a valid merge of 60,000 bytes."""
        acked = b" ".join(b"s%d:0 %d-1" % (writer, 10**12 + writer) for writer in range(1, 2_500))
        merge = (b"FCALL", b"bs_braid_merge", 1, META, 0, 0, b"", b"k:h", acked, b"g:h", b"0-0 0-0 0-0 0")
        self.client.delete(META)
        return statistics.median(self._timed(merge)[0] for _ in range(9)) / len(acked)

    def _fill(self) -> None:
        """A stream with strands of two regions, chosen IDs, groups, a journal and messages; a log."""
        self.client.flushdb()
        self.world = World(self.world.engines, "liberal")
        one, two = self.world[1], self.world[2]
        for client in (one, two):
            for _ in range(5):
                client.xadd("a", {"n": "1"})
        one.xadd("a", {"n": "7"}, id="99999999999999-1")
        one.xgroup_create("a", "g", "0")
        one.xreadgroup("g", "ann", {"a": ">"}, count=3)
        one.xdel("a", one.xrange("a")[0][0])
        one.execute_command("XADD", "a", "IDMP", "p", "1", "*", "n", "1")
        one.execute_command("TWRITE", "{a}-other", "tag", "entry")
        self.world.sync()

    def _restore(self) -> None:
        _put_back(self.client, self.kept)
        self.since_restore.clear()

    def _timed(self, command: Command) -> tuple[int, Any]:
        """How long the engine took, and its reply."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*command)
            pipe.execute_command("SLOWLOG", "GET", 1)
            reply, slow = pipe.execute(raise_on_error=False)
        return slow[0]["duration"] if isinstance(slow[0], dict) else slow[0][2], reply

    def _hostile(self) -> bytes:
        if self.dice.random() < 0.5:
            return self.dice.choice(WORDS)
        return self.dice.choice(long_words(self.dice.choice(LONG)))

    def _hset(self, prefix: bytes) -> None:
        name = prefix
        if prefix.endswith(b":"):
            name += self.dice.choice((b"g", b"s1", b"c1", b"s2", b"t0.1", b"2", self._hostile()))
        if self.dice.random() < 0.1:
            name = self.dice.choice((b"s1", b"s2", b"c1", b"s3", b"t0.1", self._hostile()))
        key = self.dice.choice((META, b"bs:meta:{a}-other")) if self.dice.random() < 0.2 else META
        said = ("HSET", key, name, self._hostile())
        self.client.execute_command(*said)
        self.since_restore.append(said)

    def _call(self, number: int) -> None:
        command = list(self.dice.choice(self.valid))
        first = 3 + int(command[2])
        for _ in range(self.dice.choice((0, 1, 1, 1, 2))):
            if len(command) > first:
                command[self.dice.randrange(first, len(command))] = self._hostile()
        if self.dice.random() < 0.1 and len(command) > first:
            del command[self.dice.randrange(first, len(command)) :]
        size = sum(len(word) for word in command if isinstance(word, bytes))
        size += sum(map(len, (part for pair in self.client.hgetall(META).items() for part in pair)))
        took, reply = self._timed(tuple(command))
        most = TIMES * max(self.medians[str(command[1])], size * self.per_byte_us)
        if took > most:
            took = min(took, *(self._again(tuple(command)) for _ in range(MEASURED - 1)))
        self.since_restore.append(tuple(command))
        self.found.longest_us = max(self.found.longest_us, took)
        self.found.reply_bytes = max(self.found.reply_bytes, size_of(reply))
        if took > most:
            shown = [word[:40] if isinstance(word, bytes) else word for word in command]
            self.found.too_slow.append(
                f"seed {self.seed} call {number}: {took} us, bound {most:.0f}: {shown}"
            )

    def _again(self, command: Command) -> int:
        """How long the call takes when everything since the data was put back is said once more."""
        said = list(self.since_restore)
        self._restore()
        with self.client.pipeline(transaction=False) as pipe:
            for before in said:
                pipe.execute_command(*before)
            pipe.execute(raise_on_error=False)
        self.since_restore = said
        return self._timed(command)[0]

    def _link(self) -> None:
        with connected(self.world.engines[1]) as peer:
            _put_back(peer, self.kept_by_peer)
            with suppress(BraidError, ResponseError, ValueError, IndexError):
                self.world.ship(1, 2, NAME)
            slow = peer.slowlog_get(16)
            self.found.peer_us = max(self.found.peer_us, *(entry["duration"] for entry in slow))


def _kept(client: redis.Redis) -> dict[bytes, Any]:
    return {key: client.dump(key) for key in client.scan_iter("*", count=1_000)}


def _put_back(client: redis.Redis, kept: dict[bytes, Any]) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.flushdb()
        for key, value in kept.items():
            pipe.restore(key, 0, value)
        pipe.execute()


def size_of(reply: Any) -> int:
    if isinstance(reply, list | tuple):
        return sum(map(size_of, reply)) + 8
    return len(reply) if isinstance(reply, bytes | str) else len(str(reply))


def fuzz(engines: list[Engine], calls: int, seed: int) -> Findings:
    with fresh_world(engines, "liberal") as world, connected(engines[0]) as client, connected(engines[1]):
        return Fuzz(world, client, seed).run(calls)
