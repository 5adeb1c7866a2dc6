"""A cluster for bulk work (bulk.py): plans and raw connections that follow slots when they move.

A node that answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN has done nothing of that command:

    plans                       net/cluster_sender.py follows, each command by itself
    raw reads                   each reply that is a redirect is read again, where it points to
    raw writes, under WATCH     SlotMovedError: nothing of the step was done, `in_slot` begins it again

A write whose reply is lost is never sent again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    RedisClusterException,
    RedisError,
)

from braidstream.errors import OptionError
from braidstream.model.command import Command
from braidstream.net.bulk_wire import Wire
from braidstream.net.cluster_nodes import BlockingNodes, finish
from braidstream.net.cluster_sender import BlockingSender, ClusterSender
from braidstream.net.compat import parse_error
from braidstream.net.routes import keys_of, slot_of
from braidstream.net.scatter import ASKING, FOLLOW_S, REDIRECTS, Patience
from braidstream.net.sender import LOST, NotResentError
from braidstream.protocol.plan import Plan, run

T = TypeVar("T")

_REDIRECTED: Final = (b"-MOVED ", b"-ASK ", b"-TRYAGAIN ", b"-CLUSTERDOWN ")
# So many redirects to a node are followed without a pause.
_AT_ONCE: Final = 3


class SlotMovedError(RedisError):
    """A slot moves, and nothing was done."""


async def _unprepared(conn: Any) -> None:
    """Spark reads which region it is by itself."""


class BulkCluster:
    """The nodes of a cluster, connected."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        try:
            self.cluster: Any = redis.RedisCluster.from_url(url, **settings)
        except RedisClusterException as error:
            raise redis.ConnectionError(str(error)) from error
        except (TypeError, ValueError) as error:
            raise OptionError("redis.*", str(error)) from None
        self.nodes = BlockingNodes(self.cluster, _unprepared)

    def close(self) -> None:
        self.cluster.close()

    def pools(self) -> list[Any]:
        """Of each primary."""
        return [self.nodes.pool_of(node) for node in self.cluster.get_primaries()]

    def by_node(self, items: Iterable[T], key_of: Callable[[T], bytes]) -> list[list[T]]:
        groups = dict[str, list[T]]()
        for item in items:
            groups.setdefault(self._node(slot_of(key_of(item))).name, []).append(item)
        return list(groups.values())

    def _node(self, slot: int | None) -> Any:
        try:
            return finish(self.nodes.node_of(slot))
        except RedisClusterException as error:
            raise redis.ConnectionError(str(error)) from error

    def take(self, slot: int | None) -> Any:
        """A connection to the primary of a slot, to be released. Waits for a failover."""
        patience = Patience()
        while True:
            try:
                return finish(self.nodes.take(self._node(slot)))
            except LOST as error:
                if isinstance(error, AuthenticationError) or patience.runs_out():
                    raise
            self.look_again(patience)

    def look_again(self, patience: Patience) -> None:
        time.sleep(patience.pause_s())
        finish(self.nodes.read_map())

    def run(self, plan: Plan[T], key: bytes | None) -> T:
        """Each command goes to the node of its key; those without keys to the node of `key`."""
        conn = self.take(None if key is None else slot_of(key))
        send = BlockingSender(ClusterSender(self.nodes, conn))
        try:
            return run(plan, send)
        except NotResentError as lost:
            conn.disconnect()
            raise lost.for_user() from None
        except RedisClusterException as error:
            conn.disconnect()
            raise redis.ConnectionError(str(error)) from error
        except BaseException:
            conn.disconnect()
            raise
        finally:
            send.close()
            self.nodes.release(conn)

    @contextmanager
    def wire(self, key: bytes) -> Iterator["ClusterWire"]:
        """A raw connection to the node of a key. All its connections are closed if the block raises."""
        wire = ClusterWire(self, self.take(slot_of(key)))
        try:
            yield wire
        except BaseException:
            wire.disconnect()
            raise
        finally:
            wire.release()

    def in_slot(self, key: bytes, work: Callable[[Wire], T]) -> T:
        """Begins again if the slot of the key moves: the last step has done nothing."""
        patience = Patience()
        while True:
            began_s = time.monotonic()
            try:
                with self.wire(key) as wire:
                    return work(wire)
            except SlotMovedError as error:
                if time.monotonic() - began_s > FOLLOW_S:
                    patience.start_over()
                if patience.runs_out():
                    raise SlotMovedError(
                        f"{error}, and has not arrived within {FOLLOW_S:g} s. Start again when resharding "
                        "is done"
                    ) from None
            self.look_again(patience)


class ClusterWire(Wire):
    """Raw connections to the nodes of a cluster. Reads follow redirects. Writes do not: SlotMovedError."""

    is_cluster = True

    def __init__(self, cluster: BulkCluster, conn: Any) -> None:
        super().__init__(conn)
        self._cluster, self._nodes = cluster, cluster.nodes
        self._conns = {conn.braid_node: conn}
        self._sent = dict[bytes, tuple[Any, Sequence[Command], list[bytes]]]()

    def disconnect(self) -> None:
        for conn in self._conns.values():
            conn.disconnect()

    def release(self) -> None:
        for conn in self._conns.values():
            self._nodes.release(conn)

    # Reads

    def send(self, *commands: Command) -> bytes:
        conn = self._owner_of(commands[0])
        ends = self.send_marked(conn, commands)
        self._sent[ends[-1]] = conn, commands, ends
        return ends[-1]

    def receive(self, mark: bytes) -> bytearray:
        conn, commands, ends = self._sent.pop(mark)
        first, *others = self._followed(commands, self.receive_marked(conn, ends))
        for reply in others:
            first += reply
        return first

    def ask(self, commands: Sequence[Command]) -> list[bytearray]:
        return self._followed(commands, super().ask(commands))

    def _followed(self, commands: Sequence[Command], replies: list[bytearray]) -> list[bytearray]:
        return [
            self._follow(command, reply) if reply.startswith(_REDIRECTED) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]

    def _follow(self, command: Command, reply: bytearray) -> bytearray:
        """The reply of the node that has the key now. After a while the last redirect stands."""
        patience, tries = Patience(), 0
        while reply.startswith(_REDIRECTED) and not patience.runs_out():
            error: Any = parse_error(bytes(reply[1:]).partition(b"\r\n")[0].decode())
            is_moved, tries = isinstance(error, MovedError), tries + 1
            if not isinstance(error, AskError) or tries > _AT_ONCE:
                self._cluster.look_again(patience)
            if is_moved:
                finish(self._nodes.note_moved([error]))
            if isinstance(error, AskError) and not is_moved:
                reply = self._asking(command, error)
            else:
                conn = self._owner_of(command)
                reply = self.receive_on(conn, self.send_on(conn, [command]))
        return reply

    def _asking(self, command: Command, error: Any) -> bytearray:
        conn = self._conn_to(finish(self._nodes.node_at((error.host, error.port))))
        reply = self.receive_on(conn, self.send_on(conn, [ASKING, command]))
        del reply[: reply.index(b"\r\n") + 2]  # of ASKING
        return reply

    def _owner_of(self, command: Command) -> Any:
        [key, *_] = keys_of(command, _no_keys)
        return self._conn_to(finish(self._nodes.node_of(slot_of(key))))

    def _conn_to(self, node: Any) -> Any:
        conn = self._conns.get(node.name)
        if conn is None:
            conn = self._conns[node.name] = finish(self._nodes.take(node))
        return conn

    # Writes, on the connection that WATCHes

    def call(self, *commands: Command) -> list[Any]:
        replies = super().call(*commands)
        for reply in replies:
            if isinstance(reply, REDIRECTS):
                self._note(reply)
                raise SlotMovedError(f"a slot moves to another node ({reply})")
        return replies

    def exchange(self, before: Iterable[Command], packed: bytes, after: Iterable[Command]) -> bytearray:
        reply = super().exchange(before, packed, after)
        lines = b"\r\n" + bytes(reply)
        for word in _REDIRECTED:
            at = lines.find(b"\r\n" + word)
            if at >= 0:  # then all of the MULTI was refused
                text = lines[at + 3 :].partition(b"\r\n")[0].decode()
                self._note(parse_error(text))
                raise SlotMovedError(f"a slot moves to another node ({text})")
        return reply

    def _note(self, error: Any) -> None:
        if isinstance(error, MovedError):
            finish(self._nodes.note_moved([error]))
        elif isinstance(error, ClusterDownError):
            finish(self._nodes.read_map())


def _no_keys(command: Command) -> Sequence[Any]:
    return ()
