"""The cluster clients: redis-py's, whose stream commands run plans. Written once for both.

The plans are those of `braidstream.Redis`. What differs is who sends: clusters/nodes.py sends each
command of a batch to the node that owns its key.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import shuffle
from typing import Any, ClassVar, Final, TypeVar

from redis import exceptions
from redis.typing import KeyT

from braidstream.clients import shared
from braidstream.clients.raised import for_user
from braidstream.clients.shared import Sending
from braidstream.clusters.command_keys import READS, slot_of, word_of
from braidstream.clusters.nodes import ClusterSender, Nodes
from braidstream.clusters.redirects import REDIRECTS, Patience
from braidstream.engine.awaiting import awaited
from braidstream.engine.redis_py import LOST, named
from braidstream.errors import BraidError, LibraryError, NotARegionError
from braidstream.lua.cluster_facts import load_libraries, read_libraries
from braidstream.model import keys
from braidstream.plan.plan import Plan

# ----------------------------------------------------------------------------------------------------
#
# What cluster clients and their pipelines share: where commands go, and who sends the batches of plans.
#
# Written once for both clients, as coroutines: see clusters/nodes.py.

T = TypeVar("T")

# Commands about all keys: every primary is asked, and the answers are joined.
EVERYWHERE: Final = frozenset((b"SCAN", b"KEYS", b"DBSIZE", b"FLUSHDB", b"FLUSHALL", b"RANDOMKEY"))
# They use the plain key and the stream of a name in one step.
_IN_ONE_STEP: Final = (b"RENAME", b"RENAMENX", b"COPY", b"WATCH")
# Nothing was sent, and another attempt would fail too.
_FINAL: Final = (exceptions.AuthenticationError, exceptions.MaxConnectionsError)


def slots_of(args: tuple[Any, ...], argv: list[bytes]) -> list[int]:
    """The slots of the streams that a stream command names, in order."""
    spec = shared.spec_of(args)
    names = spec.names(argv) if spec is not None else argv[1:2]
    found = dict.fromkeys(slot_of(keys.meta(name)) for name in names)
    if argv[0].upper() in _IN_ONE_STEP:
        found |= dict.fromkeys(slot_of(name) for name in names)
    return list(found)


def one_slot(args: tuple[Any, ...], argv: list[bytes]) -> int | None:
    """The first slot; None without keys. Several are refused, in redis-py's words, except for reads."""
    slots = slots_of(args, argv)
    if len(slots) > 1 and word_of(argv[0]) not in READS:  # those are split
        command = argv[0].decode("ascii", "replace")
        raise exceptions.RedisClusterException(f"{command} - all keys must map to the same key slot")
    return next(iter(slots), None)


def first_slot(client: Any, name: Any) -> int:
    """The slot of the stream of a name, as a user writes it."""
    return slot_of(keys.meta(bytes(client.get_encoder().encode(name))))


class ClusterPlans:
    """Runs plans on the nodes of a cluster. Its subclasses are also `Plans`, of sync.py or aio.py."""

    session: shared.Session
    nodes: Nodes
    watching: bool
    # The result of a coroutine as the user gets it: finished, or to be awaited.
    give: Callable[[Any], Any]
    answer: Any
    run_on: Any

    def new_sender(self, conn: Any) -> ClusterSender:
        return ClusterSender(self.nodes, conn, watching=self.watching)

    async def on_slot(self, slot: int | None, work: Callable[[Any], Any]) -> Any:
        """Work with a connection to the primary of a slot; for None, to any that can be reached."""
        if slot is None:
            return await self._work(await self.nodes.take_any(), work)
        return await self.on_node(await self.nodes.node_of(slot), work)

    async def on_node(self, node: Any, work: Callable[[Any], Any]) -> Any:
        return await self._work(await self.nodes.take(node), work)

    async def _work(self, conn: Any, work: Callable[[Any], Any]) -> Any:
        try:
            return await awaited(work(conn))
        finally:
            self.nodes.release(conn)

    async def keep_trying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an attempt while connections fail, as during a failover; not if `retry` allows no retries.

        Nothing was written then: else it is a NotResentError.
        """
        patience, may_retry = Patience(), self.retry.get_retries() != 0  # type: ignore[attr-defined]
        while True:
            try:
                return await attempt()
            except (exceptions.SlotNotCoveredError, *LOST) as error:
                if not may_retry or patience.runs_out() or isinstance(error, _FINAL):
                    raise
            await self.nodes.sleep(patience.pause_s())
            await self.nodes.read_map()


# ----------------------------------------------------------------------------------------------------
# Cluster


class ClusterCommands(shared.ShowsApi, ClusterPlans):
    """The methods that differ from redis-py's, in both clients."""

    nodes_class: ClassVar[type[Nodes]]
    pipeline_class: ClassVar[Any]

    def __init__(
        self, *args: Any, idempotent: bool = False, producer: str | bytes | None = None, **kwargs: Any
    ) -> None:
        self.session = shared.new_session(idempotent, producer, is_cluster=True)
        self.nodes = self.nodes_class(self, self._prepare)
        super().__init__(*args, **named(kwargs))

    async def _prepare(self, conn: Any) -> None:
        """Before the first command on a connection: which region is it? A primary that was added later may
        lack the functions, and a MULTI would notice too late: it gets them from another one."""
        if not self.session.is_new(conn):
            return
        try:
            try:
                await self.nodes.run(conn, self.session.refresh(conn))
            except NotARegionError:
                await self._give_libraries(conn)
                await self.nodes.run(conn, self.session.refresh(conn))
        except BraidError as error:
            raise for_user(error) from None

    async def _give_libraries(self, conn: Any) -> None:
        for node in self.get_primaries():  # type: ignore[attr-defined]
            if node.name == conn.braid_node:
                continue
            found = list[bytes]()
            with suppress(*LOST):  # the next one has them too
                found = await self._libraries_of(node)
            if found:
                await self._load(conn, found)
                return
        raise NotARegionError

    async def _libraries_of(self, node: Any) -> list[bytes]:
        other = self.nodes.acquire(node)
        try:
            return await self.nodes.run(other, read_libraries())
        finally:
            self.nodes.release(other)

    async def _load(self, conn: Any, libraries: list[bytes]) -> None:
        try:
            await self.nodes.run(conn, load_libraries(libraries))
        except BraidError as error:
            raise LibraryError(
                f"node {conn.braid_node} lacks the braidstream functions, and this client may not load them "
                f"({error}). Load them with: braid init --url URL --region N --name NAME"
            ) from None

    # Commands

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if shared.spec_of(args) is None and not self.session.overwrites(self, args):
            return super().execute_command(*args, **options)  # type: ignore[misc]
        return self.give(self._execute(args, options))

    async def _execute(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        lane, args = self.session.mark(self, args)
        done = dict[str, Any]()
        with Sending(self.session, lane):
            return await self.keep_trying(lambda: self._attempt(args, dict(options), done))

    async def _attempt(self, args: tuple[Any, ...], options: dict[str, Any], done: dict[str, Any]) -> Any:
        """done: the answers of the nodes that an earlier attempt reached."""
        targets = options.pop("target_nodes", None)
        name = args[1] if args[0] == "XADD" and len(args) > 1 else None
        home = self.session.cache.homes.get(name) if isinstance(name, str | bytes) else None
        if home is not None:
            slot: int | None = slot_of(home.key)
        else:
            argv = shared.words(self, args)
            if argv[0].upper() in EVERYWHERE:
                return await self._execute_everywhere(args, options, targets, done)
            slot = one_slot(args, argv)
        return await self.on_slot(slot, lambda conn: self._answer(conn, args, options))

    async def _answer(self, conn: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        try:
            return await awaited(self.answer(conn, args, options))
        except REDIRECTS:
            if args[0] != "XADD":
                raise
        # An append that skipped its plan. The plan follows the redirect.
        return await awaited(self.answer(conn, args, options, may_skip_plan=False))

    async def _execute_everywhere(
        self, args: tuple[Any, ...], options: dict[str, Any], targets: Any, done: dict[str, Any]
    ) -> Any:
        """Each node answers for its own keys, once. The results are joined as redis-py joins them."""
        command, found = args[0].upper(), dict[str, Any]()
        await self.nodes.ready()
        nodes = self._targets(targets)
        if command == "RANDOMKEY":
            shuffle(nodes)
        for node in nodes:
            if node.name not in done:
                done[node.name] = await self.on_node(node, lambda conn: self.answer(conn, args, options))
            found[node.name] = done[node.name]
            if command == "RANDOMKEY" and found[node.name] is not None:
                return found[node.name]
        if command == "RANDOMKEY":
            return None
        callbacks = self.result_callbacks  # type: ignore[attr-defined]
        if command in callbacks:
            return callbacks[command](command, found, **options)
        return found if len(found) > 1 else next(iter(found.values()))

    def _targets(self, targets: Any) -> list[Any]:
        """The nodes that `target_nodes` names; all primaries by default."""
        theirs: Any = self
        if targets is None or targets in (theirs.PRIMARIES, theirs.ALL_NODES):
            return list(theirs.get_primaries())
        if targets == theirs.REPLICAS:
            return list(theirs.get_replicas())
        if targets == theirs.RANDOM:
            return [theirs.get_random_primary_node()]
        if targets == theirs.DEFAULT_NODE:
            return [theirs.get_default_node()]
        if isinstance(targets, dict):
            return list(targets.values())
        return list(targets) if isinstance(targets, list | tuple) else [targets]

    # redis-py splits these by the slots of plain keys, past `execute_command`.

    def delete(self, *names: KeyT) -> Any:
        return self.give(self._count("DEL", names))

    def unlink(self, *names: KeyT) -> Any:
        return self.give(self._count("UNLINK", names))

    def exists(self, *names: KeyT) -> Any:
        return self.give(self._count("EXISTS", names))

    def touch(self, *names: KeyT) -> Any:
        return self.give(self._count("TOUCH", names))

    async def _count(self, command: str, names: tuple[KeyT, ...]) -> int:
        """The sum over all slots."""
        by_slot = dict[int, list[KeyT]]()
        for name in names:
            by_slot.setdefault(first_slot(self, name), []).append(name)
        if len(by_slot) < 2:
            return int(await awaited(self.execute_command(command, *names)))
        pipe = self.pipeline()
        for some in by_slot.values():
            pipe.execute_command(command, *some)
        return sum(await awaited(pipe.execute()))

    # Plans and pipelines

    def run_plan(self, plan: Plan[T]) -> Any:
        """Run a plan of your own. Commands without keys go to any primary."""
        return self.give(self._run_anywhere(lambda conn: plan))

    def converse(self, make: shared.Conversation[T]) -> Any:
        """Run a plan over plans of commands: their replies are bytes, and redis-py does not parse them."""
        return self.give(self._run_anywhere(lambda conn: self.session.viewed(conn, make)))

    def run_on_primaries(self, make: Callable[[], Plan[T]]) -> Any:
        """Run a plan once for each primary, which gets its commands without keys: for plans that SCAN."""
        return self.give(self._run_on_primaries(make))

    async def _run_on_primaries(self, make: Callable[[], Plan[T]]) -> list[T]:
        await self.nodes.ready()
        nodes = list(self.get_primaries())  # type: ignore[attr-defined]
        with Sending(self.session):
            return [await self.on_node(node, lambda conn: self.run_on(conn, make())) for node in nodes]

    def run_on_reachable(self, make: Callable[[], Plan[T]]) -> Any:
        """The same on the primaries that can be reached, and why the others cannot, by address."""
        return self.give(self._run_on_reachable(make))

    async def _run_on_reachable(self, make: Callable[[], Plan[T]]) -> tuple[list[T], dict[str, str]]:
        await self.nodes.ready()
        found, lost = list[T](), dict[str, str]()
        for node in list(self.get_primaries()):  # type: ignore[attr-defined]
            try:
                with Sending(self.session):
                    found.append(await self.on_node(node, lambda conn: self.run_on(conn, make())))
            except LOST as error:
                lost[node.name] = str(error)
        return found, lost

    async def _run_anywhere(self, plan_on: Any) -> Any:
        with Sending(self.session):
            try:
                return await self.on_slot(None, lambda conn: self.run_on(conn, plan_on(conn)))
            except (exceptions.SlotNotCoveredError, *LOST):
                await self.nodes.read_map()  # the next plan finds the replica that took over
                raise

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Any:
        if shard_hint:
            raise exceptions.RedisClusterException("shard_hint is deprecated in cluster mode")
        return self.pipeline_class(self, bool(transaction))
