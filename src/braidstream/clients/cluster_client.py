"""`braidstream.RedisCluster`: redis-py's cluster client, whose stream commands run plans.

The plans are those of `braidstream.Redis`. What differs is who sends: net/cluster_sender.py sends each
command of a batch to the node that owns its key.
"""

from random import shuffle
from typing import Any, TypeVar

import redis
from redis import exceptions
from redis.typing import KeyT

from braidstream.clients import shared
from braidstream.clients.cluster_pipeline import ClusterPipeline
from braidstream.clients.cluster_plans import EVERYWHERE, ClusterPlans, first_slot, one_slot
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.raised import for_user
from braidstream.clients.shared import Sending
from braidstream.errors import BraidError, LibraryError, NotARegionError
from braidstream.lua.cluster_facts import load_libraries, read_libraries
from braidstream.net.cluster_sender import Nodes
from braidstream.net.routes import slot_of
from braidstream.net.scatter import REDIRECTS
from braidstream.net.sender import Sender
from braidstream.protocol.plan import Plan, run

T = TypeVar("T")


class RedisCluster(ClusterPlans, LogCommands, redis.RedisCluster):
    """redis.RedisCluster on a braidstream region. Same constructor, same methods, and:

    idempotent: every XADD with `*` gets a message ID, so the client resends it if its reply is lost.
    producer: a name for its messages; random by default. Clients that run at once need different ones.
    """

    def __init__(
        self, *args: Any, idempotent: bool = False, producer: str | bytes | None = None, **kwargs: Any
    ) -> None:
        self.session = shared.new_session(idempotent, producer, is_cluster=True)
        self.nodes = Nodes(self, self._prepare)
        super().__init__(*args, **kwargs)

    def _prepare(self, conn: Any) -> None:
        """Before the first command on a connection: which region is it? A primary that was added later may
        lack the functions, and a MULTI would notice too late: it gets them from another one."""
        if not self.session.is_new(conn):
            return
        try:
            try:
                run(self.session.refresh(conn), Sender(conn))
            except NotARegionError:
                self._give_libraries(conn)
                run(self.session.refresh(conn), Sender(conn))
        except BraidError as error:
            raise for_user(error) from None

    def _give_libraries(self, conn: Any) -> None:
        for node in self.get_primaries():  # type: ignore[no-untyped-call]
            if node.name == conn.braid_node:
                continue
            pool = self.get_redis_connection(node).connection_pool
            other = pool.get_connection()
            try:
                found = run(read_libraries(), Sender(other))
            finally:
                pool.release(other)
            if found:
                self._load(conn, found)
                return
        raise NotARegionError

    def _load(self, conn: Any, libraries: list[bytes]) -> None:
        try:
            run(load_libraries(libraries), Sender(conn))
        except BraidError as error:
            raise LibraryError(
                f"node {conn.braid_node} lacks the braidstream functions, and this client may not load them "
                f"({error}). Load them with: braid init --url URL --region N --name NAME"
            ) from None

    # Commands

    def execute_command(self, *args: Any, **options: Any) -> Any:
        spec = shared.spec_of(args)
        if spec is None and not self.session.overwrites(self, args):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        lane, args = self.session.mark(self, args)
        with Sending(self.session, lane):
            return self.keep_trying(lambda: self._execute(args, dict(options)))

    def _execute(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        targets = options.pop("target_nodes", None)
        name = args[1] if args[0] == "XADD" and len(args) > 1 else None
        home = self.session.cache.homes.get(name) if isinstance(name, str | bytes) else None
        if home is not None:
            slot: int | None = slot_of(home.key)
        else:
            argv = shared.words(self, args)
            if argv[0].upper() in EVERYWHERE:
                return self._execute_everywhere(args, options, targets)
            slot = one_slot(args, argv)
        with self.connected_to(slot) as conn:
            try:
                return self.answer(conn, args, options)
            except REDIRECTS:
                if args[0] != "XADD":
                    raise
                # An append that skipped its plan. The plan follows the redirect.
                return self.answer(conn, args, options, may_skip_plan=False)

    def _execute_everywhere(self, args: tuple[Any, ...], options: dict[str, Any], targets: Any) -> Any:
        """Each node answers for its own keys. The results are joined as redis-py joins them."""
        command, found = args[0].upper(), dict[str, Any]()
        nodes = self._targets(targets)
        if command == "RANDOMKEY":
            shuffle(nodes)
        for node in nodes:
            conn = self.nodes.take(node)
            try:
                found[node.name] = self.answer(conn, args, options)
            finally:
                self.nodes.release(conn)
            if command == "RANDOMKEY" and found[node.name] is not None:
                return found[node.name]
        if command == "RANDOMKEY":
            return None
        if command in self.result_callbacks:
            return self.result_callbacks[command](command, found, **options)
        return found if len(found) > 1 else next(iter(found.values()))

    def _targets(self, targets: Any) -> list[Any]:
        """The nodes that `target_nodes` names; all primaries by default."""
        if targets is None or targets in (self.PRIMARIES, self.ALL_NODES):
            return list(self.get_primaries())  # type: ignore[no-untyped-call]
        if targets == self.REPLICAS:
            return list(self.get_replicas())  # type: ignore[no-untyped-call]
        if targets == self.RANDOM:
            return [self.get_random_primary_node()]
        if targets == self.DEFAULT_NODE:
            return [self.get_default_node()]  # type: ignore[no-untyped-call]
        if isinstance(targets, dict):
            return list(targets.values())
        return list(targets) if isinstance(targets, list | tuple) else [targets]

    # redis-py splits these by the slots of plain keys, past `execute_command`.

    def delete(self, *names: KeyT) -> int:
        return self._count("DEL", names)

    def unlink(self, *names: KeyT) -> int:
        return self._count("UNLINK", names)

    def exists(self, *names: KeyT) -> int:
        return self._count("EXISTS", names)

    def touch(self, *names: KeyT) -> int:
        return self._count("TOUCH", names)

    def _count(self, command: str, names: tuple[KeyT, ...]) -> int:
        """The sum over all slots."""
        by_slot = dict[int, list[KeyT]]()
        for name in names:
            by_slot.setdefault(first_slot(self, name), []).append(name)
        if len(by_slot) < 2:
            return int(self.execute_command(command, *names))
        with self.pipeline() as pipe:
            for some in by_slot.values():
                pipe.execute_command(command, *some)
            return sum(pipe.execute())

    # Plans and pipelines

    def run_plan(self, plan: Plan[T]) -> T:
        """Run a plan of your own. Commands without keys go to any primary."""
        with Sending(self.session), self.connected_to(None) as conn:
            return self.run_on(conn, plan)

    def converse(self, make: shared.Conversation[T]) -> T:
        """Run a plan over plans of commands: their replies are bytes, and redis-py does not parse them."""
        with Sending(self.session), self.connected_to(None) as conn:
            return self.run_on(conn, self.session.viewed(conn, make))

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> ClusterPipeline:
        if shard_hint:
            raise exceptions.RedisClusterException("shard_hint is deprecated in cluster mode")
        return ClusterPipeline(self, bool(transaction))
