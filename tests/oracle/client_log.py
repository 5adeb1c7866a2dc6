"""What clients did, and the replies they got, by real time: for processes that crash or are partitioned."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

# unknown: no reply came, so it may have been done, and may be done late.
ACKED: Final = "acked"
UNKNOWN: Final = "unknown"
REFUSED: Final = "refused"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: kind is add, xdel or del. subject: the entry's text, or the ID to delete."""

    kind: str
    stream: str
    region: int
    subject: str
    began: float
    ended: float
    outcome: str
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An entry that a group gave to a consumer: as new, or again because its first reply was lost.

    began, ended: of the read that returned it.
    """

    stream: str
    region: int
    consumer: str
    id: str
    new: bool = True
    began: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Loss:
    """A region lost what it acknowledged between two moments, but for what its peers knew by then.

    known: the texts of all entries that a peer had just before.
    alone: entries of other regions that only this server had left: those regions had lost them before.
    streams: the streams on the primary of a cluster that was lost; None if the region is one server.
    """

    region: int
    since: float
    upto: float
    known: frozenset[str]
    alone: frozenset[str] = frozenset()
    streams: frozenset[str] | None = None

    def concerns(self, stream: str) -> bool:
        return self.streams is None or stream in self.streams


@dataclass(slots=True)
class ClientLog:
    """Lists are only appended to, by many threads."""

    ops: list[Op] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
