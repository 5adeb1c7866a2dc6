"""The durability gate: a link sends only what its region can no longer lose.

    links   read a   read b       read c             send a, b             send c
    gate             |--- PUBLISH, WAIT 1 -------------|--- PUBLISH, WAIT 1 ---|

A peer must not get entries that a failover at home may lose: the new primary would generate the same IDs
again, and the regions would diverge. So each read waits for the first WAIT that starts after it. One WAIT
covers all reads before it. WAIT blocks its connection, so the gate has a few connections for it (lanes).

WAIT counts from the last write of its connection, and returns at once if there was none. The PUBLISH, to a
channel without subscribers, is that write: it is replicated, changes no key, and works also when memory is
full or the disk is broken. It must reach the same server process as the reads, so a lane compares run IDs,
and if one connection is lost all are closed.

Each primary of a cluster has a gate (`NodeGate`), because each has its own replicas: they may wait for
different things at the same time. In a cluster PUBLISH goes over the cluster's bus, not to the replicas as a
write. So the write before WAIT is to a key in one of the primary's own slots. It exists, so that EXPIRE works
also when memory is full.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, TypeVar

from braidstream.engine.connection import Connection, connect
from braidstream.errors import WRITES_REFUSED, LostError, ReplyError
from braidstream.model import keys
from braidstream.model.strand import Command
from braidstream.observability.events import emit
from braidstream.plan.lookup import read_info
from braidstream.plan.plan import Batch, Plan, arun
from braidstream.replication.endpoint import SILENCE_S, Endpoint, Node, reason

T = TypeVar("T")

CHANNEL: Final = keys.PREFIX + b"gate"
EXPIRE_S: Final = 3_600
# Errors of the write or of WAIT that pass: an operator grants a right, or makes room.
_PASSING: Final = ("NOPERM", "ERR", "OOM", *WRITES_REFUSED)
# The timeout of one WAIT; then another one follows. After HELD_S the gate logs that links are held.
WAIT_MS: Final = 250
HELD_S: Final = 1.0
LOG_AGAIN_S: Final = 30.0
LANES: Final = 3
# A disconnected replica may be the next primary. After this time the sentinels know.
GONE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Durability:
    """When an entry is safe: `replicas` replicas have it, or it is in the AOF on disk. Neither: at once."""

    replicas: int = 0
    aof: bool = False

    @staticmethod
    def parse(text: str) -> "Durability":
        """From `durability` in braid.toml: none, aof, or replicas:N."""
        kind, _, count = text.partition(":")
        return Durability(int(count) if kind == "replicas" else 0, kind == "aof")

    def __str__(self) -> str:
        if self.aof:
            return "aof"
        return f"replicas:{self.replicas}" if self.replicas else "none"

    @property
    def wait(self) -> Command | None:
        if self.aof:
            return ("WAITAOF", 1, 0, WAIT_MS)
        return ("WAIT", self.replicas, WAIT_MS) if self.replicas else None

    def lacks(self, reply: int | list[int]) -> str:
        """Why the reply to `wait` is not enough; empty if it is."""
        if isinstance(reply, list):
            return "" if reply[0] >= 1 else "the AOF is not on disk yet"
        return "" if reply >= self.replicas else f"{reply} of {self.replicas} replicas have what was written"


class NodeGate:
    """Runs plans of links on one server of a region. See the top of the file.

    wanted: what the operator chose; None: choose by the engine's replicas at the first read.
    """

    def __init__(self, region: Endpoint, source: Node, wanted: Durability | None) -> None:
        self._region, self._source, self._wanted = region, source, wanted
        self._number = 0  # of the key that is written
        self._found: Durability | None = None  # chosen by the engine's replicas
        self._timeout_s: float | None = None
        self._waived_since: float | None = None
        self.held_why = ""  # what the links that are held wait for
        self._lanes = [_Lane(source) for _ in range(LANES)]
        self._idle = [*self._lanes]
        self._next: asyncio.Future[None] | None = None
        self._rounds: set[asyncio.Task[None]] = set()
        self._held_since: float | None = None
        self._logged_at = 0.0
        self._chosen_for: Connection | None = None
        self._history = b""  # the replication ID: another one after each failover

    @property
    def durability(self) -> Durability | None:
        """What the gate waits for now; None before the first read."""
        return self._wanted or self._found

    @property
    def held_s(self) -> float:
        """How long the links have been held; 0.0 if they are not."""
        return 0.0 if self._held_since is None else _now() - self._held_since

    @property
    def waived_s(self) -> float:
        """How long links have gone on without waiting, because the time limit was over; 0.0 if they wait."""
        return 0.0 if self._waived_since is None else _now() - self._waived_since

    def want(self, wanted: Durability | None, timeout_s: float | None = None) -> None:
        """Change the operator's choice. It applies at once, also to links that are held.

        timeout_s: links go on after they were held for this time, until the region is safe again.
        """
        self._timeout_s = timeout_s
        if timeout_s is None:
            self._waived_since = None
        if wanted != self._wanted:
            self._wanted, self._waived_since, self._chosen_for = wanted, None, None
            if wanted is not None and not wanted.wait:
                self._log_released()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan on the source. Returns its result once the region can no longer lose it."""
        conn = self._source.conn
        result = await self._source.run(plan)
        if self.durability is None or self._chosen_for is not conn:
            await self.choose()
            self._chosen_for = conn
        chosen = self.durability
        if chosen is not None and chosen.wait and self._waived_since is None:
            await self._pass()
            if conn is None or conn is not self._source.conn or conn.lost is not None:
                raise LostError(str(self._source.address), "it was lost before this was safe", wrote=False)
        return result

    async def choose(self) -> None:
        """Without a choice of the operator: one replica, once there was one.

        With sentinels all replicas, because any of them may be promoted. If one disconnects, the gate waits
        for it until the sentinels report that no failover is running.
        """
        if self._waived_since is not None:
            await self._end_waiver()
        if self._wanted is not None:
            return
        replicas, history = await self._source.run(_replication())
        if self._source.address.sentinels is None:
            before = self._found.replicas if self._found else 0
            self._choose(max(min(1, replicas), before))
        else:
            before = self._found.replicas if self._found and self._history == history else 0
            self._history = history
            self._choose(max(1, replicas, before))

    def _choose(self, replicas: int) -> None:
        chosen = Durability(replicas)
        if chosen != self._found:
            self._found = chosen
            emit("gate.chosen", durability=chosen)

    async def _count_again(self) -> None:
        """After a replica was away for a while, stop waiting for it, unless the sentinels have a new
        primary."""
        sentinels, conn = self._source.address.sentinels, self._source.conn
        if self._wanted is not None or sentinels is None or conn is None or self.held_s < GONE_S:
            return
        opinion = await sentinels.query()
        replicas, _ = await self._source.run(_replication())
        if opinion.primary == conn.place and not opinion.failing_over and replicas > 0:
            self._choose(replicas)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        for round_ in self._rounds:
            round_.cancel()

    async def _pass(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if self._idle:
                task = asyncio.ensure_future(self._run_rounds(self._idle.pop()))
                self._rounds.add(task)
                task.add_done_callback(self._rounds.discard)
        await asyncio.shield(self._next)

    async def _run_rounds(self, lane: "_Lane") -> None:
        """Run rounds as long as a link waits."""
        mine: asyncio.Future[None] | None
        while (mine := self._next) is not None:
            self._next, read = None, self._source.conn
            try:
                await self._round(await lane.ready(), read)
                mine.set_result(None)
            except Exception as error:
                # Close both connections: links read again, from the primary of that time.
                why = error.why if isinstance(error, LostError) else reason(error)
                lane.close()
                if self._source.conn is read:
                    self._source.close(why)
                mine.set_exception(LostError(str(self._source.address), why, wrote=False))
                mine.exception()  # retrieve it: no link may be waiting any more
        self._idle.append(lane)

    async def _round(self, conn: Connection, read: Connection | None) -> None:
        """Wait until everything that came from the connection `read` is safe."""
        while self._waived_since is None:
            if self.durability is None:  # the operator took the choice back
                await self.choose()
            chosen = self.durability
            if chosen is None or (wait := chosen.wait) is None:
                break
            # The operator may choose again before the reply comes: it answers the old choice only.
            missing = await self._missing(conn, wait, chosen)
            if not missing:
                break
            if self._source.conn is not read or not self._source.connected:
                raise LostError(str(self._source.address), "it was lost while links were held", wrote=False)
            self._log_held(missing)
            if self._timeout_s is not None and self.held_s >= self._timeout_s:
                self._waived_since = _now()
                emit("gate.waived", durability=chosen, seconds=round(self.held_s), why=missing)
            else:
                await self._count_again()
        self._log_released()

    async def _end_waiver(self) -> None:
        """Links wait again once the region is safe: one WAIT shows it."""
        chosen = self.durability
        if not self._idle or chosen is None or (wait := chosen.wait) is None:
            return
        lane = self._idle.pop()
        try:
            missing = await self._missing(await lane.ready(), wait, chosen)
        finally:
            self._idle.append(lane)
        if not missing and self._waived_since is not None:
            emit("gate.restored", durability=chosen, seconds=round(self.waived_s))
            self._waived_since = None

    async def _missing(self, conn: Connection, wait: Command, chosen: Durability) -> str:
        """Why earlier reads are not safe yet; empty if they are. Takes up to WAIT_MS."""
        key = self._key() if self._region.is_cluster else b""
        marks: list[Command] = [("PUBLISH", CHANNEL, b"")]
        if key:
            marks = [("SET", key, b"", "EX", EXPIRE_S), ("EXPIRE", key, EXPIRE_S)]
        replies = await conn.send(Batch([*marks, wait], resend=True, block_ms=WAIT_MS))
        *_, marked, safe = replies
        if not isinstance(safe, ReplyError) and (marked == 1 if key else not isinstance(marked, ReplyError)):
            return chosen.lacks(safe)
        error = next((reply for reply in replies if isinstance(reply, ReplyError)), None)
        if error is None:  # it was deleted at that moment, by FLUSHALL for example
            return f"{key.decode()} was deleted"
        if error.is_redirect:  # its slot moves
            self._number += 1
            self._region.look_again()
        elif error.code not in _PASSING or "replica instances" in error.text:
            raise error
        await asyncio.sleep(WAIT_MS / 1000)
        return error.text

    def _key(self) -> bytes:
        self._number = self._region.number_at(self._source, keys.safe, self._number)
        return keys.safe(self._number)

    def _log_held(self, why: str) -> None:
        now, self.held_why = _now(), why
        if self._held_since is None:
            self._held_since, self._logged_at = now, now - LOG_AGAIN_S + HELD_S
        if now - self._logged_at >= LOG_AGAIN_S:
            self._logged_at = now
            emit("link.held", durability=self.durability, seconds=round(self.held_s), why=why)

    def _log_released(self) -> None:
        if self.held_s >= HELD_S:
            emit("link.released", seconds=round(self.held_s, 1))
        self._held_since, self.held_why = None, ""


class _Lane:
    """A connection to the same server process as the source's connection."""

    def __init__(self, source: Node) -> None:
        self._source = source
        self._conn: Connection | None = None
        self._compared: Connection | None = None  # the source's connection that ours was compared with

    async def ready(self) -> Connection:
        source = self._source.conn
        if self._conn is not None and self._conn.lost is None and self._compared is source:
            return self._conn
        self.close()
        self._conn = conn = await connect(self._source.address, primary=True, silence_s=SILENCE_S)
        ours, theirs = await arun(_run_id(), conn.send), await self._source.run(_run_id())
        if ours != theirs:
            raise LostError(str(self._source.address), "another server answers there now", wrote=False)
        self._compared = source
        return conn

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _run_id() -> Plan[bytes]:
    return (yield from read_info("server")).get(b"run_id", b"")


def _replication() -> Plan[tuple[int, bytes]]:
    """How many replicas are connected, and the ID of the replication history."""
    info = yield from read_info("replication")
    return int(info.get(b"connected_slaves", b"0")), info.get(b"master_replid", b"")


class Gate:
    """The gate of a region: a `NodeGate` for each of its servers."""

    def __init__(self, region: Endpoint, wanted: Durability | None = None) -> None:
        self._region, self._wanted = region, wanted
        self._timeout_s: float | None = None
        self._gates: dict[Node, NodeGate] = {}

    def of(self, node: Node) -> NodeGate:
        if node not in self._gates:
            self._forget_gone()
            self._gates[node] = gate = NodeGate(self._region, node, self._wanted)
            gate.want(self._wanted, self._timeout_s)
        return self._gates[node]

    def _forget_gone(self) -> None:
        nodes = self._region.nodes
        for node in [node for node in self._gates if node not in nodes]:
            self._gates.pop(node).close()

    @property
    def durability(self) -> Durability | None:
        """The weakest that a server waits for; None before the first read."""
        chosen = [gate.durability for gate in self._gates.values()]
        known = [each for each in chosen if each is not None]
        return self._wanted or min(known, key=lambda each: each.replicas, default=None)

    @property
    def held_s(self) -> float:
        """How long links have been held; 0.0 if they are not."""
        return max((gate.held_s for gate in self._gates.values()), default=0.0)

    @property
    def held_why(self) -> str:
        """What the links that are held wait for."""
        longest = max(self._gates.values(), key=lambda gate: gate.held_s, default=None)
        return longest.held_why if longest is not None else ""

    @property
    def waived_s(self) -> float:
        """How long links have gone on without waiting; 0.0 if they wait."""
        return max((gate.waived_s for gate in self._gates.values()), default=0.0)

    def want(self, wanted: Durability | None, timeout_s: float | None = None) -> None:
        """Change the operator's choice, of all servers."""
        self._wanted, self._timeout_s = wanted, timeout_s
        for gate in self._gates.values():
            gate.want(wanted, timeout_s)

    async def choose(self) -> None:
        """Choose again by the replicas that each server has now."""
        self._forget_gone()
        for node in self._region.nodes:
            if node.connected:
                await self.of(node).choose()

    def close(self) -> None:
        for gate in self._gates.values():
            gate.close()
