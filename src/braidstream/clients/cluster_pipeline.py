"""Pipelines of `braidstream.RedisCluster`: over several nodes, or one MULTI in one slot."""

from itertools import islice
from typing import Any

import redis.cluster
from redis import exceptions

from braidstream.clients import pipeline, shared
from braidstream.clients.cluster_plans import EVERYWHERE, ClusterPlans, one_slot, slots_of
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.shared import Sending
from braidstream.net.compat import cluster_pipeline_arguments
from braidstream.net.routes import slot_of
from braidstream.net.sender import LOST
from braidstream.protocol.exchange import Exchange
from braidstream.protocol.plan import Plan

_IMMEDIATE = ("WATCH", "UNWATCH")


class ClusterPipeline(ClusterPlans, LogCommands, redis.cluster.ClusterPipeline):
    """redis-py's cluster pipeline. Stream commands share its round trips and its MULTI.

    Commands go to all nodes at once, and the results are in the order of the commands. With
    `transaction=True` they are one MULTI, so all keys must be in one slot.
    """

    def __init__(self, cluster: Any, transaction: bool) -> None:
        self._queue: pipeline.Commands = []
        self._held: Any = None  # the connection that WATCHes keys
        self._sender: Any = None
        self._slot: int | None = None
        self._is_transaction, self._is_explicit = transaction, False
        super().__init__(**cluster_pipeline_arguments(cluster), transaction=transaction)
        self.session, self.nodes, self.encoder = cluster.session, cluster.nodes, cluster.encoder

    def __len__(self) -> int:
        return len(self._queue)

    # Queueing

    def execute_command(self, *args: Any, **options: Any) -> Any:
        is_immediate = self.watching or args[0] in _IMMEDIATE
        if self._is_transaction and is_immediate and not self._is_explicit:
            return self._execute_now(args, options)
        if args[0] != "XADD":
            self._slots(args)  # refuses some
        self._queue.append((args, options))
        return self

    def pipeline_execute_command(self, *args: Any, **options: Any) -> Any:
        return self.execute_command(*args, **options)

    def _slots(self, args: tuple[Any, ...]) -> list[int]:
        """The slots of a command. Refuses what redis-py's pipelines refuse."""
        if shared.spec_of(args) is None:
            found = self.nodes.native_keys(args) or ()
            encode: Any = self.encoder.encode
            return list(dict.fromkeys(slot_of(bytes(encode(key))) for key in found))
        argv = shared.words(self, args)
        if argv[0].upper() in EVERYWHERE:
            raise exceptions.RedisClusterException(
                f"ERROR: Calling pipelined function {argv[0].decode().lower()} is blocked when running redis "
                "in cluster mode..."
            )
        one_slot(args, argv)
        return slots_of(args, argv)

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
            return super().watch(*names)  # type: ignore[no-untyped-call]
        if self._is_explicit:
            raise exceptions.RedisError("Cannot issue a WATCH after a MULTI")
        return self.execute_command("WATCH", *names)

    def unwatch(self) -> Any:
        if not self._is_transaction:
            return super().unwatch()  # type: ignore[no-untyped-call]
        return self.execute_command("UNWATCH") if self.watching else True

    def multi(self) -> None:
        if not self._is_transaction:
            super().multi()  # type: ignore[no-untyped-call]
        if self._is_explicit:
            raise exceptions.RedisError("Cannot issue nested calls to MULTI")
        if self._queue:
            raise exceptions.RedisError("Commands without an initial WATCH have already been issued")
        self._is_explicit = True

    def discard(self) -> None:
        self.reset()

    def _execute_now(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """WATCH, and the commands between WATCH and MULTI: on one connection."""
        for slot in self._slots(args):
            if self._slot is not None and slot != self._slot:
                raise exceptions.CrossSlotTransactionError("Cannot watch or send commands on different slots")
            self._slot = slot
        with Sending(self.session):
            if self.watching:
                try:
                    return self._answer(args, options)
                except LOST as error:
                    raise exceptions.WatchError(f"{error}. Keys were WATCHed over that connection") from None
            return self.keep_trying(lambda: self._begin(args, options))

    def _begin(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The first WATCH. If the slot moved during it, it is on another connection: begin there."""
        while True:
            self._release()
            self._held = self.nodes.take(self.nodes.node_of(self._slot))
            found = self._answer(args, options)
            if not self._sender.watches_elsewhere:
                self.watching = args[0] == "WATCH"
                return found

    def _answer(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        found = self.answer(self._held, args, options)
        if found is not shared.NATIVE:
            return found
        [reply] = self.run_on(self._held, _native(args))
        if args[0] == "UNWATCH":
            self.watching = False
        if isinstance(reply, exceptions.ResponseError):
            raise reply
        return shared.present_native(self, self._held, reply, args, options)

    def sender(self, conn: Any) -> Any:
        self._sender = super().sender(conn)
        return self._sender

    # Execution

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        try:
            if self._is_transaction:
                return self._run_all(self._execute_multi, raise_on_error)
            if pipeline.has_streams(self._queue):
                return self._run_all(self._execute_pipelined, raise_on_error)
            for args, options in self._queue:
                super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            return super().execute(raise_on_error)
        finally:
            self.reset()

    def _run_all(self, way: Any, raise_on_error: bool) -> list[Any]:
        if not self._queue and not self.watching:
            return []
        commands = [(args, _without_targets(options)) for args, options in self._queue]
        slots = (slot for args, _ in commands for slot in self._slots(args))
        needed = set(slots) if self._is_transaction else set(islice(slots, 1))
        lane = self.session.mark_all(self, commands)
        with Sending(self.session, lane):
            found: list[Any] = way(commands, needed)
        if raise_on_error:
            shared.raise_first_of_ours(self, commands, found)
            for number, (result, (args, _)) in enumerate(zip(found, commands, strict=True), 1):
                if isinstance(result, Exception):
                    self.annotate_exception(result, number, args)  # type: ignore[no-untyped-call]
                    raise result
        return found

    def _execute_pipelined(self, commands: pipeline.Commands, slots: set[int]) -> list[Any]:
        def attempt() -> list[Any]:
            with self.connected_to(next(iter(slots), None)) as conn:
                return self.run_on(conn, pipeline.pipeline(self, conn, commands))

        return self.keep_trying(attempt)

    def _execute_multi(self, commands: pipeline.Commands, slots: set[int]) -> list[Any]:
        wanted = {*slots, *(() if self._slot is None else (self._slot,))}
        if len(wanted) > 1:
            raise exceptions.CrossSlotTransactionError(
                "All keys involved in a cluster transaction must map to the same slot"
            )
        if not wanted:
            raise exceptions.RedisClusterException(
                "At least a command with a key is needed to identify a node"
            )

        def attempt() -> list[Any] | None:
            with self.connected_to(*wanted) as conn:
                return self.run_on(conn, pipeline.transaction(self, conn, commands))

        if self.watching:
            found = self.run_on(self._held, pipeline.transaction(self, self._held, commands))
            self.watching = False
        else:
            found = self.keep_trying(attempt)
        if found is None:
            raise exceptions.WatchError("Watched variable changed.")
        return found

    def reset(self) -> None:  # type: ignore[override]
        self._queue = []
        self._slot, self._is_explicit = None, False
        self._release()
        super().reset()  # type: ignore[no-untyped-call]

    def _release(self) -> None:
        """Give the connection back. One that may still WATCH keys is closed."""
        if self._held is not None:
            if self.watching:
                self._held.disconnect()
            self.nodes.release(self._held)
        self._held, self.watching = None, False


def _without_targets(options: dict[str, Any]) -> dict[str, Any]:
    if "target_nodes" not in options:
        return options
    return {name: value for name, value in options.items() if name != "target_nodes"}


def _native(args: tuple[Any, ...]) -> Plan[list[Any]]:
    return (yield Exchange([args]))
