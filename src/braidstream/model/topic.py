"""Topics: one stream in several partitions, each of which is an ordinary stream in a slot of its own.

    partition 7 of orders   --->   stream orders/0.7{28649}         0: the generation of the partitions
    key customer-17         --->   murmur2(key) & 0x7fffffff, modulo the number of partitions: as Kafka does

The braces are the hash tag. Their text is the first number, in hexadecimal, whose slot is the one below. Bit
reversal spreads any number of partitions evenly over the slots, and so over the nodes of a cluster, and a
partition keeps its slot when there are more of them.

    slot = (crc16(topic) + the 14 bits of the partition's number, reversed) modulo 16384

Which topics there are: entries of the ordinary stream `braid.topics`, so they replicate like all others.

    XADD braid.topics * topic orders partitions 64

If two regions that are apart create the same topic, the larger number of partitions counts.
"""

import re
from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Final

from braidstream.model import keys

STREAM: Final = b"braid.topics"
MOST_PARTITIONS: Final = 10_000
# How long a client or a gateway believes what it has read of a topic.
FRESH_S: Final = 60.0
_NAME: Final = b"topic"
_PARTITIONS: Final = b"partitions"
_SLOTS: Final = 16_384
_SLOT_BITS: Final = 14
_NUMBER: Final = re.compile(rb"[1-9][0-9]{0,4}\Z")
_STREAM_NAME: Final = re.compile(rb"([^{}]+)/0\.(0|[1-9][0-9]{0,3})\{([0-9a-f]{1,5})\}\Z", re.DOTALL)
# What a partition's name adds to that of its topic.
_SUFFIX_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists."""

    name: bytes
    partitions: int

    @property
    def streams(self) -> tuple[bytes, ...]:
        """The streams of its partitions, in order."""
        return streams_of(self.name, self.partitions)

    def partition_of(self, key: bytes) -> int:
        return _hash(key) % self.partitions


def refusal(name: bytes, partitions: int = 1) -> str | None:
    """Why there can be no such topic; None if there can."""
    if not name or b"{" in name or b"}" in name:
        return "the name of a topic has no braces, and is not empty"
    if len(name) > keys.NAME_BYTES - _SUFFIX_BYTES:
        return f"the name of a topic has at most {keys.NAME_BYTES - _SUFFIX_BYTES:,} bytes"
    if not 1 <= partitions <= MOST_PARTITIONS:
        return f"a topic has 1 to {MOST_PARTITIONS:,} partitions"
    return None


def missing(name: bytes) -> str:
    """What an error says of a topic that nobody has created."""
    text = name.decode("utf-8", "backslashreplace")
    return f"there is no topic {text}. Create it: braid topic create {text} --partitions 64 --url URL"


def topics_of(entries: Iterable[Sequence[bytes]]) -> dict[bytes, Topic]:
    """The topics that entries of `braid.topics` name. Those that cannot be read are left out."""
    found = dict[bytes, Topic]()
    for words in entries:
        about = dict(zip(words[::2], words[1::2], strict=True))
        name, number = about.get(_NAME, b""), about.get(_PARTITIONS, b"")
        partitions = int(number) if _NUMBER.match(number) else 0
        if refusal(name, partitions) is None and (name not in found or found[name].partitions < partitions):
            found[name] = Topic(name, partitions)
    return found


def words_of(topic: Topic) -> dict[bytes, bytes]:
    """The entry that creates a topic."""
    return {_NAME: topic.name, _PARTITIONS: b"%d" % topic.partitions}


def parse_stream(name: bytes) -> tuple[bytes, int] | None:
    """Topic and partition of a stream; None if it has no such name."""
    found = _STREAM_NAME.match(name)
    if found is None or (number := int(found[2])) >= MOST_PARTITIONS:
        return None
    return (found[1], number) if crc_hqx(found[3], 0) % _SLOTS == _slot(found[1], number) else None


@lru_cache(maxsize=256)
def streams_of(name: bytes, partitions: int) -> tuple[bytes, ...]:
    """The streams of a topic's partitions. Takes a tenth of a second for 64, half of one for 10,000."""
    slots = [_slot(name, number) for number in range(partitions)]
    missing, tags = set(slots), dict[int, bytes]()
    for number in count():
        tag = b"%x" % number
        slot = crc_hqx(tag, 0) % _SLOTS
        if slot in missing:
            tags[slot] = tag
            missing.remove(slot)
            if not missing:
                break
    return tuple(b"%b/0.%d{%b}" % (name, number, tags[slot]) for number, slot in enumerate(slots))


def _slot(name: bytes, number: int) -> int:
    return (crc_hqx(name, 0) + int(f"{number:0{_SLOT_BITS}b}"[::-1], 2)) % _SLOTS


@lru_cache(maxsize=65_536)
def _hash(key: bytes) -> int:
    """The hash of a key as Kafka's producers use it: without its sign."""
    return murmur2(key) & 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """MurmurHash2 with the seed of Kafka's producers, as a number without a sign."""
    length = len(data)
    found, whole = 0x9747B28C ^ length, length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        found = found * 0x5BD1E995 & 0xFFFFFFFF ^ word
    if whole < length:
        found = (found ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    found = (found ^ found >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return found ^ found >> 15
