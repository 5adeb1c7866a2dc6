"""A log (RCP 11): a stream whose entries have dense offsets 1, 2, 3, ... given out in one region, its home.

A log has one strand for each *epoch*, the time between two moves of its home. IDs are `0-<offset>`, the same
in every region. The registry names the epochs and the settings:

    home   0.1:1 1.2:1018:1        epoch 0: region 1 writes, from offset 1; epoch 1: region 2, from 1018,
                                   after the epoch of region 1
    log    3.1:1000:0:0            version 3 of the settings, set in region 1: pending, backlog, max age

An epoch ends where the next one begins. Two regions that do not hear each other may both begin the next one.
The last epoch is then the home, and only the epochs that it follows are part of the log; what others have is
appended again (`braid log rescue`). A strand whose last ID is `1-0` is sealed: the engine itself refuses
every further `0-*`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from braidstream.model.ids import Id

# Offsets are exact in Lua, JSON and Spark.
LAST_OFFSET: Final = 2**53
# The last ID of a strand that takes no more entries.
SEALED: Final[Id] = (1, 0)
# The names of the two fields of an entry.
TAG: Final = b"t"
ENTRY: Final = b"e"

DEFAULT_PENDING: Final = 1_000
MOST_PENDING: Final = 100_000

_EPOCH = re.compile(rb"([0-9]{1,9})\.([1-9][0-9]{0,3}):([1-9][0-9]{0,15})(?::([1-9][0-9]{0,3}))?\Z")
_SETTINGS = re.compile(rb"([0-9]+)\.([0-9]+):([0-9]+):([0-9]+):([0-9]+)\Z")


def offset_id(offset: int) -> bytes:
    """The ID of an offset."""
    return b"0-%d" % offset


def offset_of(native: bytes) -> int:
    """The offset of an ID."""
    return int(native[2:])


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """The offsets from `first` on were given out by region `writer`.

    after: the writer of the epoch before. 0: there is none.
    """

    number: int
    writer: int
    first: int = 1
    after: int = 0

    def follows(self, other: "Epoch") -> bool:
        return other.number == self.number - 1 and other.writer == self.after


def epochs_of(value: bytes) -> tuple[Epoch, ...]:
    """The epochs of a log, oldest first. The last one is where the home is."""
    found = (_EPOCH.match(word) for word in value.split())
    return tuple(sorted(Epoch(*map(int, epoch.groups(b"0"))) for epoch in found if epoch))


def ends_of(epochs: Sequence[Epoch]) -> list[int]:
    """The last offset of each epoch that counts: before the next one begins. 0: it is no part of the log."""
    ends, end, later = list[int](), LAST_OFFSET, None
    for epoch in reversed(epochs):
        if later is None or later.follows(epoch):
            ends.append(end)
            end, later = min(end, epoch.first - 1), epoch
        else:
            ends.append(0)
    return ends[::-1]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a log. 0 means no limit, for `backlog` and `max_age_ms`.

    pending: how many entries a group may have delivered and not acknowledged.
    backlog: how many entries stay at least; older ones are evicted by TWRITE.
    max_age_ms: entries that are older are evicted.
    """

    pending: int = DEFAULT_PENDING
    backlog: int = 0
    max_age_ms: int = 0

    @staticmethod
    def parse(value: bytes) -> "LogSettings":
        found = _SETTINGS.match(value)
        return LogSettings(*map(int, found.groups()[2:])) if found else LogSettings()
