# Generated from aio_topic.py by scripts/sync_half.py (make sync-half). Do not edit.
"""`client.topic("orders")`: appends to a topic (model/topic.py), each key to one partition, as Kafka does.

An append is one XADD to the stream of a partition, so everything that an append can do works here too.
"""

import random
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from redis.typing import EncodableT, KeyT

from braidstream.clients.commands import read_topics
from braidstream.clients.raised import for_user
from braidstream.errors import ReplyError
from braidstream.model import topic

# So many entries without a key go to one partition, then the next one: a pipeline of them is cheaper then.
_STICKY: Final = 1_000


class Position(NamedTuple):
    """Where an entry is: the number of its partition, and its ID there."""

    partition: int
    id: Any


class Topic:
    """A topic: entries with the same key are in one partition, in the order in which they were added."""

    def __init__(self, client: Any, name: KeyT) -> None:
        self._client, self._encode = client, client.get_encoder().encode
        self._name = bytes(self._encode(name))
        if (why := topic.refusal(self._name)) is not None:
            raise ValueError(f"topic: {name!r} given, but {why}.")
        self._without_key = random.randrange(topic.MOST_PARTITIONS * _STICKY)

    def create(self, partitions: int) -> None:
        """Create the topic. Nothing changes if it exists; ResponseError if it has another number then."""
        if (why := topic.refusal(self._name, partitions)) is not None:
            raise ValueError(f"partitions: {partitions!r} given, but {why}.")
        found = self._read()
        if found is None:
            if self._client.exists(self._name):
                raise _error(f"ERR {self._text} is a stream or another key. Choose another name for a topic")
            self._client.xadd(topic.STREAM, topic.words_of(topic.Topic(self._name, partitions)))
            found = self._found()
        if found.partitions != partitions:
            raise _error(f"ERR topic {self._text} exists with {found.partitions} partitions")

    def add(self, fields: Mapping[Any, Any], key: EncodableT | None = None, **options: Any) -> Position:
        """Append an entry; returns its partition and ID. options: of xadd, like maxlen=.

        Entries without a key go to one partition for a while, then to the next.
        """
        found = self._find()
        partition = self._partition(found, key)
        return Position(partition, self._client.xadd(found.streams[partition], fields, **options))

    def add_many(self, entries: Iterable[tuple[EncodableT | None, Mapping[Any, Any]]]) -> list[Position]:
        """Append (key, fields) pairs: in one round trip, on a cluster in one for each node at once.

        As in a pipeline, all are tried, and then the first error is raised.
        """
        found = self._find()
        pipe, partitions = self._client.pipeline(transaction=False), list[int]()
        for key, fields in entries:
            partitions.append(self._partition(found, key))
            pipe.xadd(found.streams[partitions[-1]], fields)
        ids = pipe.execute()
        return list(map(Position, partitions, ids))

    def stream(self, key: EncodableT) -> bytes:
        """The stream of a key's partition, for pipelines, MULTI and every other command."""
        found = self._find()
        return found.streams[self._partition(found, key)]

    def streams(self) -> list[bytes]:
        """The streams of all partitions, in order."""
        return [*(self._find()).streams]

    def _partition(self, found: topic.Topic, key: EncodableT | None) -> int:
        if key is not None:
            return found.partition_of(bytes(self._encode(key)))
        self._without_key += 1
        return self._without_key // _STICKY % found.partitions

    def _find(self) -> topic.Topic:
        """The topic, as this client knows it."""
        known = self._client.session.topics.get(self._name)
        if known is not None and time.monotonic() < known[1]:
            return known[0]  # type: ignore[no-any-return]
        return self._found()

    def _found(self) -> topic.Topic:
        found = self._read()
        if found is None:
            raise _error(f"ERR {topic.missing(self._name)}")
        self._client.session.topics[self._name] = (found, time.monotonic() + topic.FRESH_S)
        return found

    def _read(self) -> topic.Topic | None:
        return (self._client.converse(read_topics)).get(self._name)  # type: ignore[no-any-return]

    @property
    def _text(self) -> str:
        return self._name.decode("utf-8", "backslashreplace")


def _error(text: str) -> Exception:
    return for_user(ReplyError(text))


class Topics:
    """The method of the clients."""

    def topic(self, name: KeyT) -> Topic:
        """A topic: a stream in several partitions, on all nodes of a cluster."""
        return Topic(self, name)
