"""What a link found that its region lost and a peer still has. It holds no logic of finding: see heal.py."""

from dataclasses import dataclass, field

from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.replication.state import State


@dataclass(frozen=True, slots=True)
class Loss:
    """What the peer has of ours: entries by strand, in order; and whether the end of our journal.
    behind: the peer knows a strand of ours further than we do. What came last there may be deleted again.
    seen: where our journals ended when we looked. What is deleted later is not put back.
    common: the last entry before the loss, by strand. What we have after it is new.
    """

    entries: dict[Strand, list[bytes]] = field(default_factory=dict)
    journal: bool = False
    behind: bool = False
    seen: dict[int, Id] = field(default_factory=dict)
    common: dict[Strand, Id] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries) or self.journal or self.behind

    @property
    def count(self) -> int:
        return sum(map(len, self.entries.values()))

    def went_on(self, ours: State) -> set[Strand]:
        """Strands that were written to since they lost entries; with a clock that is behind, below those."""
        return {
            each
            for each, last in self.common.items()
            if each in ours.strands and ours.strands[each].last > last
        }
