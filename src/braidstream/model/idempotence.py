"""Idempotent production: what a stream's settings say, and which message an entry is by its content.

Each change of a setting, and each deletion of the stream, begins the next *era*: what was known of
messages before is forgotten. `since` is the era in which the stream last began, where its counts start.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

_TEXT = re.compile(rb"\A([0-9]+):([0-9]+):([0-9]+):([0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the registry says in its field `idmp`: `<era>:<duration s>:<maxsize>:<since>`."""

    era: int = 0
    duration_s: int = 100
    maxsize: int = 100
    since: int = 0

    @staticmethod
    def parse(text: bytes) -> "Settings | None":
        found = _TEXT.match(text)
        return None if found is None else Settings(*map(int, found.groups()))

    @property
    def text(self) -> bytes:
        return b"%d:%d:%d:%d" % (self.era, self.duration_s, self.maxsize, self.since)

    def deleted(self) -> "Settings":
        """After a deletion of the stream."""
        return Settings(era=self.era + 1, since=self.era + 1)

    def changed(self, duration_s: int | None, maxsize: int | None) -> "Settings":
        """After XCFGSET. Setting what is set changes nothing."""
        new = replace(
            self,
            duration_s=self.duration_s if duration_s is None else duration_s,
            maxsize=self.maxsize if maxsize is None else maxsize,
        )
        return self if new == self else replace(new, era=self.era + 1)


def iid_of(fields: Sequence[bytes]) -> bytes:
    """The ID that IDMPAUTO gives to a message: 16 bytes that depend on its pairs and not on their order.

    BLAKE2b over the sorted pairs, each with the lengths of its field and value before it. Sorted, because
    adding up hashes of pairs (the other way to forget the order) is open to pairs chosen to add up to the
    same; with lengths, because `ab` `c` is not `a` `bc`. BLAKE2b is in Python's own library, in C, takes
    about a microsecond, and nobody can make two messages with one ID. It is part of what is stored: a
    client that hashed otherwise would not recognise the messages of this one.
    """
    pairs = zip(fields[::2], fields[1::2], strict=True)
    parts = sorted(b"%d:%d:%b%b" % (len(field), len(value), field, value) for field, value in pairs)
    return blake2b(b"".join(parts), digest_size=16).digest()
