"""The durability gate of a region that is a cluster: one for each primary, because each has its own replicas.

Without a choice of the operator a primary waits for one replica, once it had one. So primaries may wait for
different things at the same time.

In a cluster PUBLISH goes over the cluster's bus, not to the replicas as a write. So the write before WAIT is
to a key in one of the primary's own slots. It exists, so that EXPIRE works also when memory is full.
"""

import asyncio
from typing import Final

from braidstream.errors import WRITES_REFUSED, ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.net.wire import Connection
from braidstream.protocol.plan import Batch
from braidstream.replication.cluster_endpoint import ClusterEndpoint, is_redirect
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.gate import WAIT_MS, Durability, Gate

EXPIRE_S: Final = 3_600


class NodeGate(Gate):
    """The gate of one primary."""

    def __init__(self, cluster: ClusterEndpoint, node: Endpoint, wanted: Durability | None) -> None:
        super().__init__(node, wanted)
        self._cluster = cluster
        self._number = 0

    async def _missing(self, conn: Connection, wait: Command, chosen: Durability) -> str:
        self._number = self._cluster.number_at(self._source, keys.safe, self._number)
        key = keys.safe(self._number)
        marks: list[Command] = [("SET", key, b"", "EX", EXPIRE_S), ("EXPIRE", key, EXPIRE_S)]
        _, marked, safe = replies = await conn.send(Batch([*marks, wait], resend=True, block_ms=WAIT_MS))
        if marked == 1 and not isinstance(safe, ReplyError):
            return chosen.lacks(safe)
        error = next((reply for reply in reversed(replies) if isinstance(reply, ReplyError)), None)
        if error is None:  # it was deleted at that moment, by FLUSHALL for example
            return f"{key.decode()} was deleted"
        if is_redirect(error):  # its slot moves
            self._number += 1
            self._cluster.look_again()
        elif error.code not in ("NOPERM", "ERR", "OOM", *WRITES_REFUSED):
            raise error
        await asyncio.sleep(WAIT_MS / 1000)
        return error.text


class ClusterGate(Gate):
    """`of` has the gate of a primary."""

    def __init__(self, source: ClusterEndpoint, wanted: Durability | None = None) -> None:
        super().__init__(source, wanted)
        self._cluster = source
        self._gates: dict[Endpoint, Gate] = {}

    def of(self, node: Endpoint) -> Gate:
        if node not in self._gates:
            self._forget_gone()
            self._gates[node] = gate = NodeGate(self._cluster, node, self._wanted)
            gate.want(self._wanted, self._timeout_s)
        return self._gates[node]

    def _forget_gone(self) -> None:
        nodes = self._source.nodes
        for node in [node for node in self._gates if node not in nodes]:
            self._gates.pop(node).close()

    @property
    def durability(self) -> Durability | None:
        """The weakest that a primary waits for."""
        chosen = [gate.durability for gate in self._gates.values()]
        known = [each for each in chosen if each is not None]
        return self._wanted or min(known, key=lambda each: each.replicas, default=None)

    @property
    def held_s(self) -> float:
        return max((gate.held_s for gate in self._gates.values()), default=0.0)

    @property
    def held_why(self) -> str:
        longest = max(self._gates.values(), key=lambda gate: gate.held_s, default=None)
        return longest.held_why if longest is not None else ""

    @property
    def waived_s(self) -> float:
        return max((gate.waived_s for gate in self._gates.values()), default=0.0)

    def want(self, wanted: Durability | None, timeout_s: float | None = None) -> None:
        self._wanted, self._timeout_s = wanted, timeout_s
        for gate in self._gates.values():
            gate.want(wanted, timeout_s)

    async def choose(self) -> None:
        self._forget_gone()
        for node, gate in [*self._gates.items()]:
            if node.connected:
                await gate.choose()

    def close(self) -> None:
        for gate in self._gates.values():
            gate.close()


def gate_for(source: Endpoint, wanted: Durability | None) -> Gate:
    """The gate of a region."""
    return ClusterGate(source, wanted) if isinstance(source, ClusterEndpoint) else Gate(source, wanted)
