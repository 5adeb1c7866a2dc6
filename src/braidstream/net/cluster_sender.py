"""Sends the batches of a plan to the nodes of a cluster (scatter.py), over connections of redis-py."""

import selectors
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from redis import exceptions

from braidstream.errors import LostError
from braidstream.net.compat import is_connected, packed, socket_of
from braidstream.net.reply_shape import reply_error, resp2
from braidstream.net.routes import keys_of, slot_of, word_of
from braidstream.net.scatter import Leg, Patience, Place, Round, deliver
from braidstream.net.sender import LOST, REFUSALS, NotResentError, connect, read_reply, read_timeout
from braidstream.protocol.exchange import unpack
from braidstream.protocol.plan import Batch, Replies

UNWATCH: Final = ("UNWATCH",)


class Nodes:
    """The nodes of a redis-py cluster client, and connections to them.

    prepare: called with each connection before its first use by a command.
    """

    def __init__(self, cluster: Any, prepare: Callable[[Any], None]) -> None:
        self._cluster, self._prepare = cluster, prepare

    def node_of(self, slot: int | None) -> Any:
        """The primary of a slot; any primary for None."""
        if slot is None:
            return self._cluster.get_random_primary_node()
        return self._cluster.nodes_manager.get_node_from_slot(slot)

    def node_at(self, place: Place) -> Any:
        found = self._cluster.get_node(*place)
        if found is None:
            self.read_map()
            found = self._cluster.get_node(*place)
        if found is None:
            raise exceptions.ConnectionError(f"the cluster does not know its node {place[0]}:{place[1]}")
        return found

    def take(self, node: Any) -> Any:
        """A connection to a node, to be released."""
        pool = self._cluster.get_redis_connection(node).connection_pool
        conn = pool.get_connection()
        try:
            conn.braid_node, conn.braid_pool = node.name, pool
            connect(conn)
            self._prepare(conn)
        except BaseException:
            conn.disconnect()
            pool.release(conn)
            raise
        return conn

    def release(self, conn: Any) -> None:
        conn.braid_pool.release(conn)

    def note_moved(self, moved: Iterable[exceptions.MovedError]) -> None:
        for error in moved:
            self._cluster.nodes_manager.move_slot(error)

    def read_map(self) -> None:
        """Read which node has which slots. If no node answers, the next attempt tries again."""
        with suppress(exceptions.RedisError):
            self._cluster.nodes_manager.initialize()

    def native_keys(self, command: Any) -> Any:
        """The keys of a command that no plan sends."""
        word = word_of(command[0])
        if word in ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"):
            return command[3 : 3 + int(command[2])]
        anyone = self._cluster.get_redis_connection(self._cluster.get_default_node())
        return self._cluster.commands_parser.get_keys(anyone, word, *command[1:])


class ClusterSender:
    """Sends batches, and remembers whether a write was among them: as `Sender` does for one connection.

    home: the connection for commands without keys. It stays the user's.
    """

    def __init__(self, nodes: Nodes, home: Any, *, watching: bool = False) -> None:
        self._nodes, self._home, self.wrote = nodes, home, False
        self._held = {home.braid_node: home}
        self._watched: list[Any] = [home] if watching else []
        self._may_connect = not watching
        self._patience = Patience()

    def close(self) -> None:
        """Release the connections; those that still WATCH keys are closed."""
        for conn in self._held.values():
            if conn is not self._home:
                if conn in self._watched:
                    conn.disconnect()
                self._nodes.release(conn)
        self._held = {}

    def __call__(self, batch: Batch) -> Replies:
        before = self.wrote
        try:
            replies = self._deliver(batch)
        except LOST as error:
            if batch.optional:
                raise LostError("the cluster", str(error), wrote=True) from error
            if before if isinstance(error, REFUSALS) else self.wrote:
                raise NotResentError(error) from error
            raise
        if replies is None:
            return None  # type: ignore[return-value]  # only plans that WATCH get it
        self._patience.start_over()
        return unpack(batch, replies, resp2)

    def _deliver(self, batch: Batch) -> list[Any] | None:
        if batch.atomic and self._watched and not self._watches_where_it_runs(batch):
            self._unwatch()
            return None
        delivery = deliver(batch, self._nodes.native_keys, self._patience, watching=bool(self._watched))
        answers: Any = None
        while True:
            try:
                turn = delivery.send(answers)
            except StopIteration as stop:
                found = stop.value
                break
            self._nodes.note_moved(turn.moved)
            if turn.is_down:
                self._nodes.read_map()
            time.sleep(turn.pause_s)
            answers = self._send(batch, turn)
        if batch.atomic:
            self._watched = []  # EXEC ends it, also if it is refused
        elif UNWATCH in batch.commands:
            self._unwatch()
        return found  # type: ignore[no-any-return]

    # WATCH belongs to a connection

    def _watches_where_it_runs(self, batch: Batch) -> bool:
        """Whether all WATCHes of the plan are on the connection that a MULTI will use."""
        keys = (key for each in batch.commands for key in keys_of(each, self._nodes.native_keys))
        slot = next((slot_of(key) for key in keys), None)
        conn = self._home if slot is None else self._held.get(self._nodes.node_of(slot).name)
        return self._watched == [conn]

    def _note_watches(self, conn: Any, legs: list[Leg]) -> None:
        watches = any(word_of(command[0]) == "WATCH" for leg in legs for command in leg.commands)
        if watches and conn not in self._watched:
            self._watched.append(conn)

    def _unwatch(self) -> None:
        """End every WATCH, on whichever connection it is."""
        for conn in self._watched:
            if is_connected(conn):
                conn.send_packed_command(packed(conn, [UNWATCH]))
                read_reply(conn, None)
        self._watched = []

    @property
    def watches_elsewhere(self) -> bool:
        """Whether keys are WATCHed on a connection that ends with this sender."""
        return any(conn is not self._home for conn in self._watched)

    # One round

    def _send(self, batch: Batch, turn: Round) -> list[list[Any]]:
        if turn.is_race:
            return self._race(batch, turn.legs)
        load = dict[Any, list[Leg]]()
        for leg in turn.legs:
            load.setdefault(self._connection(leg), []).append(leg)
        read = dict[int, list[Any]]()
        if load:
            self._may_connect, self.wrote = False, self.wrote or not batch.resend
        try:
            for conn, legs in load.items():
                sent = [command for leg in legs for command in leg.wire()]
                conn.send_packed_command(packed(conn, sent))
            for conn, legs in load.items():
                timeout = read_timeout(conn, batch)
                for leg in legs:
                    read[id(leg)] = [read_reply(conn, timeout) for _ in leg.wire()]
                self._note_watches(conn, legs)
        except BaseException:
            for conn in load:  # replies may still arrive
                conn.disconnect()
            raise
        return [read[id(leg)] for leg in turn.legs]

    def _connection(self, leg: Leg) -> Any:
        if leg.ask is None and leg.slot is None:
            conn = self._home
        else:
            node = self._nodes.node_of(leg.slot) if leg.ask is None else self._nodes.node_at(leg.ask)
            conn = self._held.get(node.name)
            if conn is None:
                conn = self._held[node.name] = self._nodes.take(node)
        connect(conn, self._may_connect)
        return conn

    def _race(self, batch: Batch, legs: list[Leg]) -> list[list[Any]]:
        """Wait in several slots at once, each on a connection of its own, until one has a reply."""
        conns = list[Any]()
        try:
            for leg in legs:
                conns.append(self._nodes.take(self._nodes.node_of(leg.slot)))
            numbers = [self._client_id(conn) for conn in conns]
            self.wrote = self.wrote or not batch.resend
            for conn, leg in zip(conns, legs, strict=True):
                conn.send_packed_command(packed(conn, leg.commands))
            timeout = read_timeout(conns[0], batch)
            _wait_for_one(conns, timeout)
            for leg, number in zip(legs, numbers, strict=True):
                self._unblock(leg, number)
            return [[read_reply(conn, timeout)] for conn in conns]
        except BaseException:
            for conn in conns:
                conn.disconnect()
            raise
        finally:
            for conn in conns:
                self._nodes.release(conn)

    def _client_id(self, conn: Any) -> int:
        conn.send_packed_command(packed(conn, [("CLIENT", "ID")]))
        reply = read_reply(conn, None)
        if isinstance(reply, exceptions.ResponseError):
            raise reply_error(reply)
        return int(reply)

    def _unblock(self, leg: Leg, number: int) -> None:
        """End a wait. If its reply is on the way already, nothing happens."""
        conn = self._connection(leg)
        conn.send_packed_command(packed(conn, [("CLIENT", "UNBLOCK", number)]))
        reply = read_reply(conn, None)
        if isinstance(reply, exceptions.ResponseError):
            raise reply_error(reply)


def _wait_for_one(conns: list[Any], timeout: float | None) -> None:
    with selectors.DefaultSelector() as ready:
        for conn in conns:
            ready.register(socket_of(conn), selectors.EVENT_READ)
        if not ready.select(timeout):
            raise exceptions.TimeoutError(f"Timeout reading from {conns[0]!r}")
