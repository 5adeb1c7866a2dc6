"""Settings of idempotent production, and the message ID that IDMPAUTO computes from the content.

Each change of a setting, and each deletion of the stream, begins a new *era*; messages of earlier eras are
forgotten. `since` is the era in which the stream was last created; its counters start there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

_TEXT = re.compile(rb"\A([0-9]+):([0-9]+):([0-9]+):([0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class Settings:
    """The registry field `idmp`: `<era>:<duration s>:<maxsize>:<since>`."""

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
        """The settings after the stream is deleted."""
        return Settings(era=self.era + 1, since=self.era + 1)

    def changed(self, duration_s: int | None, maxsize: int | None) -> "Settings":
        """The settings after XCFGSET. Equal values do not begin a new era."""
        new = replace(
            self,
            duration_s=self.duration_s if duration_s is None else duration_s,
            maxsize=self.maxsize if maxsize is None else maxsize,
        )
        return self if new == self else replace(new, era=self.era + 1)


def iid_of(fields: Sequence[bytes]) -> bytes:
    """The ID that IDMPAUTO gives to a message: 16 bytes that depend on its pairs and not on their order.

    BLAKE2b over the sorted pairs, each preceded by the lengths of its field and value. Sorting is safer than
    adding up the hashes of pairs, which allows forged collisions. The lengths distinguish `ab` `c` from
    `a` `bc`. BLAKE2b is collision-resistant, part of Python's library, and takes about a microsecond.
    The hash is stored: a client with another hash would not recognise these messages.
    """
    pairs = zip(fields[::2], fields[1::2], strict=True)
    parts = sorted(b"%d:%d:%b%b" % (len(field), len(value), field, value) for field, value in pairs)
    return blake2b(b"".join(parts), digest_size=16).digest()
