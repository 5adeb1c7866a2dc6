"""What the cluster client and its pipelines share: where commands go, and who sends the batches of plans."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from redis import exceptions

from braidstream.clients import shared
from braidstream.clients.sync import Plans
from braidstream.model import keys
from braidstream.net.cluster_sender import ClusterSender, Nodes
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


class ClusterPlans(Plans):
    """Runs plans on the nodes of a cluster: for the client and its pipelines."""

    nodes: Nodes

    def sender(self, conn: Any) -> Any:
        return ClusterSender(self.nodes, conn, watching=self.watching)

    @property
    def response_callbacks(self) -> Any:
        """redis-py's parsers of replies; every node has the same."""
        return self.get_redis_connection(self.get_default_node()).response_callbacks  # type: ignore[attr-defined]

    @contextmanager
    def connected_to(self, slot: int | None) -> Iterator[Any]:
        """A connection to the primary of a slot."""
        conn = self.nodes.take(self.nodes.node_of(slot))
        try:
            yield conn
        finally:
            self.nodes.release(conn)

    def keep_trying(self, attempt: Callable[[], T]) -> T:
        """Repeat an attempt while connections fail, as during a failover; not if `retry` allows no retries.

        Nothing was written then: else it is a NotResentError.
        """
        patience, may_retry = Patience(), self.retry.get_retries() != 0  # type: ignore[attr-defined]
        while True:
            try:
                return attempt()
            except (exceptions.SlotNotCoveredError, *LOST) as error:
                if not may_retry or patience.is_over or isinstance(error, _FINAL):
                    raise
            time.sleep(patience.pause_s())
            self.nodes.read_map()
