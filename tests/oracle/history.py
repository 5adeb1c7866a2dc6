"""What happened in several regions, as a list of facts that one can read and judge.

A run of the simulation writes it; `anomalies.py` and `convergence.py` only read it. An entry is known by
its strand and its native ID: two regions may have chosen the same ID, and RENAME copies values.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from braidstream.model.ids import Id, floor_of, user_of, writer_of

Entry = tuple[str, Id]  # ("s1:0", (110, 0)): strand s of writer 1, first life, native ID 110-0
Visible = frozenset[Entry]


def user_id(entry: Entry) -> Id:
    """The ID that users know an entry by."""
    strand, native = entry
    writer = int(strand[1:].partition(":")[0])
    return user_of(native, writer) if strand.startswith("s") else native


def generated_entry(entry: Id) -> Entry:
    """The entry of an ID that a region generated."""
    writer = writer_of(entry)
    return f"s{writer}:0", floor_of(entry, writer)


@dataclass(frozen=True, slots=True)
class Did:
    """For the reader of the table only: who did what, and what came of it. Region 0 is the network."""

    region: int
    what: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Added:
    region: int
    name: str
    entries: Visible


@dataclass(frozen=True, slots=True)
class Sent:
    """A producer's message, and the entry in the reply: a new one, or that of a duplicate.

    era: a region forgets messages when the next one begins.
    """

    region: int
    name: str
    message: str
    era: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Generated:
    """XADD with `*` by a user who had just read the stream there, while clocks were within the bound."""

    region: int
    name: str
    entry: Entry
    seen: Visible


@dataclass(frozen=True, slots=True)
class Forgot:
    """A region has lost the record of messages that it accepted, and does not send it to its peers."""

    region: int
    name: str


@dataclass(frozen=True, slots=True)
class Removed:
    """Entries that a user saw in a region and took away there, one by one, by trimming or all of them."""

    region: int
    name: str
    entries: Visible


@dataclass(frozen=True, slots=True)
class Promoted(Removed):
    """Entries for later that a daemon has appended to their stream."""


@dataclass(frozen=True, slots=True)
class Saw:
    """All that a reader in a region sees of a stream at this moment."""

    region: int
    name: str
    entries: Visible


@dataclass(frozen=True, slots=True)
class Made:
    """XGROUP CREATE. `upto` or `passed`: what the group starts behind."""

    region: int
    name: str
    group: str
    upto: Id = (0, 0)
    passed: Visible = frozenset()


@dataclass(frozen=True, slots=True)
class Moved(Made):
    """XGROUP SETID."""


@dataclass(frozen=True, slots=True)
class Destroyed:
    """XGROUP DESTROY; with no group, the deletion of the whole stream.

    deadline: which one deleted the stream. It is one deletion, whichever regions carry it out.
    """

    region: int
    name: str
    group: str | None = None
    deadline: str = ""


@dataclass(frozen=True, slots=True)
class Acked:
    region: int
    name: str
    group: str
    ids: frozenset[Id]


@dataclass(frozen=True, slots=True)
class Noted:
    """A link read what a region knows of a stream's groups and deletions."""

    region: int
    name: str
    note: int


@dataclass(frozen=True, slots=True)
class Told:
    """What was noted reached a region."""

    region: int
    name: str
    note: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What a region answered after quiescence."""

    region: int
    name: str
    question: str
    answer: Any


@dataclass(frozen=True, slots=True)
class Left:
    """What a group's consumers in a region would still be given in the end, or have not acknowledged.

    once: the group gives each entry in one region.
    """

    region: int
    name: str
    group: str
    ids: frozenset[Id]
    once: bool = False


Event = (
    Did
    | Added
    | Generated
    | Sent
    | Forgot
    | Removed
    | Saw
    | Made
    | Destroyed
    | Acked
    | Noted
    | Told
    | Answered
    | Left
)


@dataclass
class History:
    regions: int
    events: list[Event] = field(default_factory=list)
    facts: Counter[int] = field(default_factory=Counter)
    _found: dict[tuple[Any, ...], tuple[int, list[Any]]] = field(default_factory=dict, repr=False)

    def add(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, Did | Noted):
            self.facts[event.region] += 1

    def of(self, *kinds: Any) -> Iterator[Any]:
        """Events of some kinds, in order. What was found before is not looked for again."""
        looked, found = self._found.get(kinds, (0, []))
        found += [event for event in self.events[looked:] if isinstance(event, kinds)]
        self._found[kinds] = len(self.events), found
        return iter(found)

    def recall(self, events: list[Event]) -> None:
        """Only this has happened."""
        self.events[:] = events
        self._found.clear()

    def undo(self, region: int, kept: int) -> None:
        """A region lost all but the first so many of its facts."""
        left, events = kept, list[Event]()
        for event in self.events:
            if isinstance(event, Did | Noted) or event.region != region:  # a note is in the link's hands
                events.append(event)
            elif left:
                events.append(event)
                left -= 1
        self.recall(events)
        self.facts[region] = kept

    def names(self) -> list[str]:
        return sorted({event.name for event in self.of(Added, Made, Answered)})

    def table(self) -> str:
        """Every step: where, what, and what came of it."""
        rows = [("step", "where", "what")]
        for step, did in enumerate(self.of(Did), start=1):
            where = f"region {did.region}" if did.region else ""
            rows.append((str(step), where, did.what + (f" -> {did.outcome}" if did.outcome else "")))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{step:<{widths[0]}} | {where:<{widths[1]}} | {what}" for step, where, what in rows)
