"""Sends the batches of a plan to the nodes of a cluster (scatter.py), over connections of redis-py.

For both cluster clients: the I/O is done by `Nodes` (cluster_nodes.py).
"""

import time
from contextlib import suppress
from typing import Any, Final

from redis import exceptions

from braidstream.errors import LostError
from braidstream.net.cluster_nodes import Nodes, finish
from braidstream.net.compat import is_connected
from braidstream.net.reply_shape import reply_error, resp2
from braidstream.net.routes import NativeKeys, is_routed, keys_of, slot_of, word_of
from braidstream.net.scatter import REDIRECTS, Leg, Patience, Round, deliver
from braidstream.net.sender import LOST, REFUSALS, NotResentError, read_timeout
from braidstream.protocol.exchange import refuse_early_end, unpack
from braidstream.protocol.plan import Batch, Replies

UNWATCH: Final = ("UNWATCH",)


class ClusterSender:
    """Sends batches, and remembers whether a write was among them: as `AsyncSender` does for one connection.

    home: the connection for commands without keys. It stays the user's.
    """

    def __init__(self, nodes: Nodes, home: Any, *, watching: bool = False) -> None:
        self._nodes, self._home, self.wrote = nodes, home, False
        self._held = {home.braid_node: home}
        self._watched: list[Any] = [home] if watching else []
        self._may_connect = not watching
        self._patience = Patience()
        self._ran = False  # whether a node has run a command of this batch, as far as is known

    async def close(self) -> None:
        """Release the connections; those that still WATCH keys are closed."""
        for conn in self._held.values():
            if conn is not self._home:
                if conn in self._watched:
                    await self._nodes.disconnect(conn)
                self._nodes.release(conn)
        self._held = {}

    async def __call__(self, batch: Batch) -> Replies:
        before, began = self.wrote, time.monotonic()
        self._ran = False
        try:
            replies = await self._deliver(batch)
        except (exceptions.SlotNotCoveredError, *LOST) as error:
            if batch.optional:
                raise LostError("the cluster", str(error), wrote=True) from error
            # A node that refuses says nothing about the other nodes of the batch.
            if before if isinstance(error, REFUSALS) and not self._ran else self.wrote:
                raise NotResentError(error) from error
            raise
        if replies is None:
            return None  # type: ignore[return-value]  # only plans that WATCH get it
        self._patience.start_over()
        found = unpack(batch, replies, resp2)
        refuse_early_end(batch, found, time.monotonic() - began)
        return found

    async def _deliver(self, batch: Batch) -> list[Any] | None:
        native_keys = await self._native_keys(batch)
        if batch.atomic and self._watched and not await self._watches_where_it_runs(batch, native_keys):
            await self._unwatch()
            return None
        delivery = deliver(batch, native_keys, self._patience, watching=bool(self._watched))
        answers: Any = None
        while True:
            try:
                turn = delivery.send(answers)
            except StopIteration as stop:
                found = stop.value
                break
            await self._nodes.note_moved(turn.moved)
            if turn.is_down:
                await self._nodes.read_map()
            if turn.pause_s:
                await self._nodes.sleep(turn.pause_s)
            answers = await self._send(batch, turn)
        if batch.atomic:
            self._watched = []  # EXEC ends it, also if it is refused
        elif UNWATCH in batch.commands:
            await self._unwatch()
        return found  # type: ignore[no-any-return]

    async def _native_keys(self, batch: Batch) -> NativeKeys:
        """The keys of a user's own commands in a pipeline. Asked before, because `deliver` has no I/O."""
        found = dict[int, Any]()
        for command in batch.commands:
            if not is_routed(command):
                found[id(command)] = await self._nodes.native_keys(command)
        return lambda command: found[id(command)]

    # WATCH belongs to a connection

    async def _watches_where_it_runs(self, batch: Batch, native_keys: NativeKeys) -> bool:
        """Whether all WATCHes of the plan are on the connection that a MULTI will use."""
        keys = (key for each in batch.commands for key in keys_of(each, native_keys))
        slot = next((slot_of(key) for key in keys), None)
        if slot is None:
            return self._watched == [self._home]
        node = await self._nodes.node_of(slot)
        return self._watched == [self._held.get(node.name)]

    def _note_watches(self, conn: Any, legs: list[Leg]) -> None:
        watches = any(word_of(command[0]) == "WATCH" for leg in legs for command in leg.commands)
        if watches and conn not in self._watched:
            self._watched.append(conn)

    async def _unwatch(self) -> None:
        """End every WATCH, on whichever connection it is."""
        for conn in self._watched:
            if is_connected(conn):
                await self._nodes.ask(conn, UNWATCH)
        self._watched = []

    @property
    def watches(self) -> bool:
        return bool(self._watched)

    @property
    def watches_elsewhere(self) -> bool:
        """Whether keys are WATCHed on a connection that ends with this sender."""
        return any(conn is not self._home for conn in self._watched)

    # One round

    async def _send(self, batch: Batch, turn: Round) -> list[list[Any]]:
        if turn.is_race:
            return await self._race(batch, turn.legs)
        load = dict[Any, list[Leg]]()
        for leg in turn.legs:
            load.setdefault(await self._connection(leg), []).append(leg)
        read = dict[int, list[Any]]()
        if load:
            self._may_connect, self.wrote = False, self.wrote or not batch.resend
        try:
            for conn, legs in load.items():
                await self._nodes.send(conn, [command for leg in legs for command in leg.wire()])
            for conn, legs in load.items():
                timeout = read_timeout(conn, batch)
                for leg in legs:
                    read[id(leg)] = await self._read(conn, leg, timeout)
                self._note_watches(conn, legs)
        except BaseException:
            self._ran = self._ran or len(load) > 1
            for conn in load:  # replies may still arrive
                await self._nodes.disconnect(conn)
            raise
        return _without_losses(turn.legs, [read[id(leg)] for leg in turn.legs])

    async def _read(self, conn: Any, leg: Leg, timeout: float | None) -> list[Any]:
        """The replies to a leg. For one slot's share of a read, a lost connection is a reply: other nodes may
        have delivered entries to a group."""
        replies = list[Any]()
        try:
            for _ in leg.wire():
                replies.append(await self._nodes.read(conn, timeout))
        except LOST as error:
            if not leg.part:
                self._note_run(leg, replies)
                raise
            self._ran = True  # entries may have been delivered
            await self._nodes.disconnect(conn)
            return [error for _ in leg.wire()]
        self._note_run(leg, replies)
        return replies

    def _note_run(self, leg: Leg, replies: list[Any]) -> None:
        """Before the reply to its EXEC, a MULTI has not run, unless MULTI was refused: then its commands run
        one by one. A redirected command has not run either."""
        refused = any(isinstance(each, Exception) for each in leg.replies(replies)[:1])
        is_queued = leg.is_multi and not refused and len(replies) < len(leg.wire())
        ran = not is_queued and any(not isinstance(each, REDIRECTS) for each in replies)
        self._ran = self._ran or ran

    async def _connection(self, leg: Leg) -> Any:
        if leg.ask is not None:
            return await self._connection_to(await self._nodes.node_at(leg.ask))
        if leg.slot is not None:
            return await self._connection_to(await self._nodes.node_of(leg.slot))
        await self._nodes.connect(self._home, self._may_connect)
        return self._home

    async def _connection_to(self, node: Any) -> Any:
        conn = self._held.get(node.name)
        if conn is None:
            conn = self._held[node.name] = await self._nodes.take(node)
        await self._nodes.connect(conn, self._may_connect)
        return conn

    async def _race(self, batch: Batch, legs: list[Leg]) -> list[list[Any]]:
        """Wait in several slots at once, each on a connection of its own, until one has a reply."""
        conns, nodes = list[Any](), [await self._nodes.node_of(leg.slot) for leg in legs]

        async def end_others() -> None:
            for node, number in zip(nodes, numbers, strict=True):  # of that node, wherever its slots are now
                with suppress(*LOST):  # its read fails too
                    await self._ask(await self._connection_to(node), ("CLIENT", "UNBLOCK", number))

        try:
            for node in nodes:
                conns.append(await self._nodes.take(node))
            numbers = [await self._ask(conn, ("CLIENT", "ID")) for conn in conns]
            self.wrote = self.wrote or not batch.resend
            for conn, leg in zip(conns, legs, strict=True):
                await self._nodes.send(conn, leg.commands)
            replies = await self._nodes.race(conns, read_timeout(conns[0], batch), end_others)
            for conn, reply in zip(conns, replies, strict=True):
                if isinstance(reply, LOST):
                    await self._nodes.disconnect(conn)
            return _without_losses(legs, [[reply] for reply in replies])
        except BaseException:
            for conn in conns:
                await self._nodes.disconnect(conn)
            raise
        finally:
            for conn in conns:
                self._nodes.release(conn)

    async def _ask(self, conn: Any, command: tuple[Any, ...]) -> Any:
        reply = await self._nodes.ask(conn, command)
        if isinstance(reply, exceptions.ResponseError):
            raise reply_error(reply)
        return reply


def _without_losses(legs: list[Leg], answers: list[list[Any]]) -> list[list[Any]]:
    """What some nodes have read, if the connections to others were lost. An error if nothing was read."""
    lost = [each for some in answers for each in some if isinstance(each, LOST)]
    if not lost:
        return answers
    shares = [each for leg, some in zip(legs, answers, strict=True) if leg.part for each in some]
    if not any(share and not isinstance(share, Exception) for share in shares):
        raise lost[0]
    return [[None if isinstance(each, LOST) else each for each in some] for some in answers]


class BlockingSender:
    """A `ClusterSender` as a function, for plans of the synchronous client."""

    def __init__(self, sender: ClusterSender) -> None:
        self._sender = sender

    def __call__(self, batch: Batch) -> Replies:
        return finish(self._sender(batch))

    def close(self) -> None:
        finish(self._sender.close())
