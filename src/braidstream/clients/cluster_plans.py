"""What cluster clients and their pipelines share: where commands go, and who sends the batches of plans.

Written once for both clients, as coroutines: see net/cluster_nodes.py.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from redis import exceptions

from braidstream.clients import shared
from braidstream.model import keys
from braidstream.net.cluster_nodes import Nodes
from braidstream.net.cluster_sender import ClusterSender
from braidstream.net.compat import awaited
from braidstream.net.routes import READS, slot_of, word_of
from braidstream.net.scatter import Patience
from braidstream.net.sender import LOST

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
