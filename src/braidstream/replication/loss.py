"""What a region lost and a peer still has, as a value. search.py finds it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.replication.state import State


@dataclass(frozen=True, slots=True)
class Loss:
    """entries: by strand, in order. journal: the end of our journal was lost too.
    behind: the peer's copy of a strand of ours has a higher last ID; its last entries may be deleted again.
    seen: the ends of our journals at that time. Entries that are deleted later are not restored.
    common: the last entry before the loss, by strand. Our entries after it are new.
    began: the mark where a strand began (`n:`), by strand; empty if it has none.
    """

    entries: dict[Strand, list[bytes]] = field(default_factory=dict)
    journal: bool = False
    behind: bool = False
    seen: dict[int, Id] = field(default_factory=dict)
    common: dict[Strand, Id] = field(default_factory=dict)
    began: dict[Strand, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries) or self.journal or self.behind

    @property
    def count(self) -> int:
        return sum(map(len, self.entries.values()))

    def went_on(self, ours: State) -> set[Strand]:
        """Strands that were written to since the loss."""
        return {
            each
            for each, last in self.common.items()
            if each in ours.strands and ours.strands[each].last > last
        }


def beginnings(state: State, strands: Iterable[Strand]) -> dict[Strand, bytes]:
    """The marks of where strands began (`n:`), by strand; empty where there is none."""
    return {strand: state.meta.get(MetaField.NEW + strand.label, b"") for strand in strands}
