"""The two sides: a region and a bare engine, and what is said to them."""

import re
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import braidstream
from tests.oracle.differential.script import Argv, IdMode, Mode
from tests.oracle.differential.spoken import Spoken, written_alike
from tests.support.gateways import Served
from tests.support.regions import become
from tests.support.servers import Engine, Flavour

Reply = Any
Said = tuple[str, Mode, list[Argv], Reply]  # who said it, how, the commands, the reply or replies


@dataclass(frozen=True, slots=True)
class Fault:
    """An error reply: the exception's kind, its code and its text."""

    kind: str
    code: str | None
    text: str

    @staticmethod
    def of(error: Exception) -> "Fault":
        text = re.sub(r"(?s)\ACommand # \d+ \(.*\) of pipeline caused error: ", "", str(error))
        return Fault(type(error).__name__, getattr(error, "status_code", None), text)

    @property
    def refused(self) -> str | None:
        """What braidstream says it refuses."""
        found = re.match(r"(.*?) refused by braidstream: .+\. .+\.\Z", self.text, re.DOTALL)
        return found[1] if found else None


class Servers:
    """A region and a bare engine of the same kind.

    gateway: our side is spoken to through a gateway, and replies must be written alike as well.
    """

    def __init__(self, flavour: Flavour, *, gateway: bool = False) -> None:
        self.flavour = flavour
        self._through_gateway, self._gateway = gateway, None  # type: bool, Served | None
        self._lines = list[Spoken]()
        self._engines = [Engine(flavour), Engine(flavour)]
        self._pools = list[redis.ConnectionPool]()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self) -> None:
        for engine in self._engines:
            engine.start()
        self._prepare()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._hang_up()
        if self._gateway is not None:
            self._gateway.stop()
        for pool in self._pools:
            pool.disconnect()
        for engine in self._engines:
            engine.stop()

    def _hang_up(self) -> None:
        for client in self._lines:
            client.line.socket.close()

    def _prepare(self) -> None:
        braid, bare = self._engines
        become(braid, id_mode="liberal")
        self._admins = [redis.Redis(connection_pool=self._pool(engine, 2)) for engine in self._engines]
        for admin in self._admins:
            # Nodes by number only: how many bytes an ID takes depends on the clock.
            admin.config_set("stream-node-max-bytes", 0)
        self._config = self._admins[0].hgetall("bs:config")
        if self._through_gateway:
            self._gateway = Served(braid.url).__enter__()
        self._ours = {protocol: [self._pool(braid, protocol) for _ in range(2)] for protocol in (2, 3)}
        self._bare = {protocol: self._pool(bare, protocol) for protocol in (2, 3)}

    def _pool(self, engine: Engine, protocol: int) -> redis.ConnectionPool:
        retry = Retry(NoBackoff(), 0)
        self._pools.append(redis.ConnectionPool.from_url(engine.url, protocol=protocol, retry=retry))
        return self._pools[-1]

    def reset(self, protocol: int, node_entries: int, id_mode: IdMode) -> "Sides":
        """Both empty, and clients that remember nothing and give raw replies."""
        for admin in self._admins:
            pipe = admin.pipeline(transaction=False)
            pipe.execute_command("FLUSHALL", "SYNC")
            pipe.config_set("stream-node-max-entries", node_entries)
            if admin is self._admins[0]:
                pipe.hset("bs:config", mapping=self._config | {b"id-mode": id_mode})
            pipe.execute()
        if self._gateway is not None:
            self._gateway.forget()
            self._hang_up()
            self._lines = [Spoken(self._gateway.port, protocol) for _ in range(2)]
            self._lines.append(Spoken(self._engines[1].port, protocol))
            return Sides(self._engines[1], self._lines[:2], self._lines[2], self._gateway)
        ours = [braidstream.Redis(connection_pool=pool) for pool in self._ours[protocol]]
        bare = redis.Redis(connection_pool=self._bare[protocol])
        for client in (*ours, bare):
            client.response_callbacks = {}
        return Sides(self._engines[1], ours, bare)


class Sides:
    """What one run talks to, and the story of what was said."""

    def __init__(self, engine: Engine, ours: Any, bare: Any, gateway: Served | None = None) -> None:
        self.reads_plus, self.vocabulary = engine.reads_plus, engine.vocabulary
        self._gateway = gateway
        self.story = list[Said]()
        self._ours, self._bare = ours, bare

    def ask_ours(self, argv: Argv, who: int = 0) -> Reply:
        try:
            reply = _send(self._ours[who], argv)
        except Exception as error:
            reply = _crash(error)
        self.story.append((f"ours{who}", "single", [argv], reply))
        return reply

    def ask_bare(self, argv: Argv) -> Reply:
        reply = _send(self._bare, argv)
        self.story.append(("bare ", "single", [argv], reply))
        return reply

    def peek(self, *words: bytes | str | int) -> Reply:
        """Ask the bare engine for ourselves."""
        try:
            return self._bare.execute_command(*words)
        except redis.ResponseError as error:
            return Fault.of(error)

    def written_alike(self, who: int) -> bool:
        """Whether the last replies of both sides have the same types on the wire. Only for a gateway."""
        if self._gateway is None:
            return True
        ours, bare = self._ours[who].kinds, self._bare.kinds
        return len(ours) != len(bare) or all(map(written_alike, ours, bare))

    @property
    def in_pipeline(self) -> bool:
        """Whether what was said last was said among other commands."""
        return bool(self.story) and self.story[-1][1] != "single"

    def is_stream(self, name: bytes) -> bool:
        return bool(self.peek("TYPE", name) == b"stream")

    def pipeline_ours(self, argvs: list[Argv], mode: Mode, who: int) -> Reply:
        try:
            found = _send_many(self._ours[who], argvs, mode)
        except Exception as error:
            found = _crash(error)
        self.story.append((f"ours{who}", mode, argvs, found))
        return found

    def pipeline_bare(self, argvs: list[Argv], mode: Mode) -> Reply:
        found = _send_many(self._bare, argvs, mode)
        self.story.append(("bare ", mode, argvs, found))
        return found


def _crash(error: Exception) -> Fault:
    """An exception that is not an error reply is never right."""
    return Fault(f"crash: {type(error).__name__}", None, str(error))


def _send(client: Any, argv: Argv) -> Reply:
    try:
        return _whole_scan(client, argv) if argv[0].upper() == b"SCAN" else client.execute_command(*argv)
    except redis.ResponseError as error:
        return Fault.of(error)


def _whole_scan(client: Any, argv: Argv) -> Reply:
    cursor, found = client.execute_command(*argv)
    while cursor != b"0":
        cursor, more = client.execute_command(argv[0], cursor, *argv[2:])
        found = found + more
    return found


def _send_many(client: Any, argvs: list[Argv], mode: Mode) -> Reply:
    """The list of replies, or the one error that refused all."""
    with client.pipeline(transaction=mode == "multi") as pipe:
        for argv in argvs:
            pipe.execute_command(*argv)
        try:
            found = pipe.execute(raise_on_error=False)
        except redis.ResponseError as error:
            return Fault.of(error)
    return [Fault.of(reply) if isinstance(reply, Exception) else reply for reply in found]
