"""Connections to the nodes of a cluster, for programs that look at each of them and change nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from braidstream.admin.cluster_map import ClusterNode, read_nodes
from braidstream.errors import BraidError
from braidstream.model.command import Command
from braidstream.net.address import Address
from braidstream.net.routes import keys_of, slot_of
from braidstream.net.wire import Connection, connect
from braidstream.protocol.identify import INFO_CLUSTER, is_cluster
from braidstream.protocol.plan import Batch, Replies, arun

Send = Callable[[Batch], Awaitable[Replies]]


async def nodes_at(conn: Connection) -> list[ClusterNode] | None:
    """The nodes of the cluster that a server belongs to; None if it belongs to none."""
    [info] = await conn.send(Batch([INFO_CLUSTER], resend=True, attempt=True))
    return await arun(read_nodes(conn.place[0]), conn.send) if is_cluster(info) else None


async def connect_node(seed: Address, node: ClusterNode, silence_s: float | None = None) -> Connection:
    """As the user of the address in the file, with its TLS."""
    return await connect(replace(seed, host=node.host, port=node.port, path=None), silence_s=silence_s)


class NodeLines:
    """A connection to each node that answers."""

    def __init__(self, seed: Address, nodes: Sequence[ClusterNode], silence_s: float) -> None:
        self._seed, self._nodes, self._silence_s = seed, nodes, silence_s
        self._conns = dict[str, Connection]()

    async def open(self) -> None:
        reached = await asyncio.gather(*map(self._reach, self._nodes))
        self._conns = {node.id: conn for node, conn in zip(self._nodes, reached, strict=True) if conn}

    async def _reach(self, node: ClusterNode) -> Connection | None:
        try:
            return await connect_node(self._seed, node, self._silence_s)
        except (BraidError, OSError):
            return None

    def close(self) -> None:
        for conn in self._conns.values():
            conn.close()

    @property
    def reached(self) -> list[ClusterNode]:
        return [node for node in self._nodes if node.id in self._conns]

    def sender(self, home: ClusterNode) -> Send:
        """Sends each command to the node of its key; those without keys to one node. A slot that moves at
        the moment answers with an error."""

        async def send(batch: Batch) -> Replies:
            shares = dict[Connection, list[int]]()
            for at, command in enumerate(batch.commands):
                shares.setdefault(self._conn_for(command, home), []).append(at)
            parts = [replace(batch, commands=[batch.commands[at] for at in some]) for some in shares.values()]
            answers = await asyncio.gather(
                *(conn.send(part) for conn, part in zip(shares, parts, strict=True))
            )
            found = dict[int, Any]()
            for some, answer in zip(shares.values(), answers, strict=True):
                found.update(zip(some, answer, strict=True))
            return [found[at] for at in range(len(batch.commands))]

        return send

    def _conn_for(self, command: Command, home: ClusterNode) -> Connection:
        for key in keys_of(command, _no_keys):
            slot = slot_of(key)
            for node in self._nodes:
                if node.id in self._conns and any(first <= slot <= last for first, last in node.slots):
                    return self._conns[node.id]
        return self._conns[home.id]


def _no_keys(command: Command) -> Sequence[Any]:
    """Of commands that the table of routes lacks: ACL and CONFIG."""
    return ()
