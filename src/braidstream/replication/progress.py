"""What a round of a link did, and what the link keeps of a stream until the next one."""

from dataclasses import dataclass, field

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.replication.flow import Flow


@dataclass(slots=True)
class Progress:
    """What a round did.

    healed: entries restored at the source, which had lost them.
    waiting: the journal names entries that have not arrived at the target yet; another link brings them.
    restless: a group of the source has unread or pending entries, in these strands; XACK causes no push.
    journal: how far the target has applied our journal, if that has changed.
    """

    entries: int = 0
    merged: bool = False
    trimmed: int = 0
    deletions: int = 0
    healed: int = 0
    waiting: bool = False
    restless: bool = False
    strands: tuple[Strand, ...] = ()
    journal: Id = ids.ZERO

    @property
    def moved(self) -> bool:
        return bool(self.entries or self.merged or self.trimmed or self.deletions or self.healed)


@dataclass(slots=True)
class Known:
    """What a link caches of one stream. The engine functions check it on each write.

    merged, theirs: the two registries after the last merge; while both are unchanged there is nothing to
    merge.
    started: a round has put all our strands into the flow. Until then it does not see every new entry.
    has_groups: new entries make the source restless.
    marks: our fields about losses when we last looked for losses; None: not yet.
    owes: the target lacks restored entries, and deletions of them may be in transit.
    applied: how far the target has applied our journal.
    """

    flow: Flow
    merged: dict[bytes, bytes] = field(default_factory=dict)
    theirs: dict[bytes, bytes] = field(default_factory=dict)
    started: bool = False
    has_groups: bool = False
    marks: dict[bytes, bytes] | None = None
    owes: bool = False
    applied: Id = ids.ZERO
