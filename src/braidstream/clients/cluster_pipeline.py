"""Pipelines of the cluster clients: over several nodes, or one MULTI in one slot. Written once for both."""

from typing import Any

from redis import exceptions

from braidstream.clients import pipeline, shared
from braidstream.clients.shared import Sending
from braidstream.clients.shared_cluster import EVERYWHERE, ClusterPlans, one_slot, slots_of
from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.nodes import ClusterSender
from braidstream.commands.arguments import option
from braidstream.engine.awaiting import awaited, awaited_all
from braidstream.engine.redis_py import LOST
from braidstream.plan.plan import Exchange, Plan

_IMMEDIATE = ("WATCH", "UNWATCH")


class QueuedCommands(ClusterPlans):
    """redis-py's cluster pipeline. Stream commands share its round trips and its MULTI.

    Commands go to all nodes at once, and the results are in the order of the commands. With
    `transaction=True` they are one MULTI, so all keys must be in one slot.
    """

    def begin(self, cluster: Any, transaction: bool) -> None:
        """What the constructors do first."""
        self._queue: pipeline.Commands = []
        self._held: Any = None  # the connection that WATCHes keys
        self._sender: Any = None
        self._slot: int | None = None
        self._is_transaction, self._is_explicit = transaction, False
        self.session, self.nodes = cluster.session, cluster.nodes

    def __len__(self) -> int:
        return len(self._queue)

    # Queueing

    def execute_command(self, *args: Any, **options: Any) -> Any:
        is_immediate = self.watching or args[0] in _IMMEDIATE
        if self._is_transaction and is_immediate and not self._is_explicit:
            return self.give(self._execute_now(args, options))
        if args[0] != "XADD":
            self._refuse(args)
        self._queue.append((args, options))
        return self

    def pipeline_execute_command(self, *args: Any, **options: Any) -> Any:
        return self.execute_command(*args, **options)

    def _refuse(self, args: tuple[Any, ...]) -> None:
        """Refuse the stream commands that redis-py's pipelines refuse."""
        if shared.spec_of(args) is None:
            return
        argv = shared.words(self, args)
        if argv[0].upper() in EVERYWHERE:
            raise exceptions.RedisClusterException(
                f"ERROR: Calling pipelined function {argv[0].decode().lower()} is blocked when running redis "
                "in cluster mode..."
            )
        one_slot(args, argv)

    async def _slots(self, args: tuple[Any, ...]) -> list[int]:
        """The slots of a command."""
        if shared.spec_of(args) is not None:
            return slots_of(args, shared.words(self, args))
        found = await self.nodes.native_keys(args) or ()
        encode: Any = self.encoder.encode  # type: ignore[attr-defined]
        return list(dict.fromkeys(slot_of(bytes(encode(key))) for key in found))

    def delete(self, *names: Any) -> Any:
        return self.execute_command("DEL", *names)

    def unlink(self, *names: Any) -> Any:
        return self.execute_command("UNLINK", *names)

    def exists(self, *names: Any) -> Any:
        return self.execute_command("EXISTS", *names)

    def touch(self, *names: Any) -> Any:
        return self.execute_command("TOUCH", *names)

    # WATCH and MULTI

    def watch(self, *names: Any) -> Any:
        if not self._is_transaction:
            return super().watch(*names)  # type: ignore[misc]
        if self._is_explicit:
            raise exceptions.RedisError("Cannot issue a WATCH after a MULTI")
        return self.execute_command("WATCH", *names)

    def unwatch(self) -> Any:
        if not self._is_transaction:
            return super().unwatch()  # type: ignore[misc]
        return self.execute_command("UNWATCH") if self.watching else self.give(awaited(True))

    def multi(self) -> None:
        if not self._is_transaction:
            super().multi()  # type: ignore[misc]
        if self._is_explicit:
            raise exceptions.RedisError("Cannot issue nested calls to MULTI")
        if self._queue:
            raise exceptions.RedisError("Commands without an initial WATCH have already been issued")
        self._is_explicit = True

    def discard(self) -> Any:
        return self.reset()

    async def _execute_now(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """WATCH, and the commands between WATCH and MULTI: on one connection."""
        self._refuse(args)
        for slot in await self._slots(args):
            if self._slot is not None and slot != self._slot:
                raise exceptions.CrossSlotTransactionError("Cannot watch or send commands on different slots")
            self._slot = slot
        with Sending(self.session):
            if self.watching:
                try:
                    return await self._answer(args, options)
                except LOST as error:
                    raise exceptions.WatchError(f"{error}. Keys were WATCHed over that connection") from None
            return await self.keep_trying(lambda: self._begin_watch(args, options))

    async def _begin_watch(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The first WATCH. If the slot moved during it, it is on another connection: begin there."""
        while True:
            await self._release()
            self._held = await self.nodes.take(await self.nodes.node_of(self._slot))
            found = await self._answer(args, options)
            if not self._sender.watches_elsewhere:
                self.watching = args[0] == "WATCH"
                return found

    async def _answer(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        found = await awaited(self.answer(self._held, args, options))
        if found is not shared.NATIVE:
            return found
        [reply] = await awaited(self.run_on(self._held, _native(args)))
        if args[0] == "UNWATCH":
            self.watching = False
        if isinstance(reply, exceptions.ResponseError):
            raise reply
        return await awaited(shared.present_native(self, self._held, reply, args, options))

    def new_sender(self, conn: Any) -> ClusterSender:
        sender = self._sender = super().new_sender(conn)
        return sender

    # Execution

    def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> Any:
        """allow_redirections: of asyncio, for pipelines without streams."""
        redirections = {} if allow_redirections else {"allow_redirections": False}
        return self.give(self._execute_queue(raise_on_error, redirections))

    async def _execute_queue(self, raise_on_error: bool, redirections: dict[str, bool]) -> Any:
        try:
            if self._is_transaction:
                return await self._run_all(self._execute_multi, raise_on_error)
            if pipeline.has_streams(self._queue):
                return await self._run_all(self._execute_pipelined, raise_on_error)
            for args, options in self._queue:
                super().execute_command(*args, **options)  # type: ignore[misc]
            return await awaited(super().execute(raise_on_error, **redirections))  # type: ignore[misc]
        finally:
            await self._reset()

    async def _run_all(self, way: Any, raise_on_error: bool) -> list[Any]:
        if not self._queue and not self.watching:
            return []
        commands = [(args, _without_targets(options)) for args, options in self._queue]
        slots = set[int]()
        for args, _ in commands:
            if self._is_transaction or not slots:
                slots.update(await self._slots(args))
        lane = self.session.mark_all(self, commands)
        with Sending(self.session, lane):
            found = await awaited_all(await way(commands, slots))
        if raise_on_error:
            shared.raise_first_of_ours(self, commands, found)
            for number, (result, (args, _)) in enumerate(zip(found, commands, strict=True), 1):
                if isinstance(result, Exception):
                    self.annotate_exception(result, number, args)  # type: ignore[attr-defined]
                    raise result
        return found

    async def _execute_pipelined(self, commands: pipeline.Commands, slots: set[int]) -> Any:
        slot = next(iter(slots), None)
        return await self.keep_trying(
            lambda: self.on_slot(
                slot, lambda conn: self.run_on(conn, pipeline.pipeline(self, conn, commands))
            )
        )

    async def _execute_multi(self, commands: pipeline.Commands, slots: set[int]) -> Any:
        wanted = {*slots, *(() if self._slot is None else (self._slot,))}
        if len(wanted) > 1:
            raise exceptions.CrossSlotTransactionError(
                "All keys involved in a cluster transaction must map to the same slot"
            )
        if not wanted and not any(self._lacks_words(args) for args, _ in commands):
            raise exceptions.RedisClusterException(
                "At least a command with a key is needed to identify a node"
            )

        def transaction_on(conn: Any) -> Any:
            return self.run_on(conn, pipeline.transaction(self, conn, commands))

        if self.watching:
            found = await awaited(transaction_on(self._held))
            self.watching = False
        else:
            slot = next(iter(wanted), None)
            found = await self.keep_trying(lambda: self.on_slot(slot, transaction_on))
        if found is None:
            raise exceptions.WatchError("Watched variable changed.")
        return found

    def _lacks_words(self, args: Any) -> bool:
        """Whether a stream command lacks its key. Any node can answer with the arity error."""
        needs_none = [option(word) for word in shared.words(self, args)[1:2]] == [b"HELP"]
        return shared.spec_of(args) is not None and not needs_none

    def reset(self) -> Any:
        return self.give(self._reset())

    async def _reset(self) -> None:
        self._queue = []
        self._slot, self._is_explicit = None, False
        await self._release()
        await awaited(super().reset())  # type: ignore[misc]

    async def _release(self) -> None:
        """Give the connection back. One that may still WATCH keys is closed."""
        if self._held is not None:
            if self.watching or (self._sender is not None and self._sender.watches):
                await self.nodes.disconnect(self._held)
            self.nodes.release(self._held)
        self._held, self._sender, self.watching = None, None, False


def _without_targets(options: dict[str, Any]) -> dict[str, Any]:
    if "target_nodes" not in options:
        return options
    return {name: value for name, value in options.items() if name != "target_nodes"}


def _native(args: tuple[Any, ...]) -> Plan[list[Any]]:
    return (yield Exchange([args]))
