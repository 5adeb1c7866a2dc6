"""A frontier: a position in every strand. The cursor of readers, groups, links and Spark alike.

One ID is no position in a stream that several regions write: an entry with a smaller ID may still
arrive. A frontier keeps one native ID for each strand, so nothing is skipped. A strand that it does
not name is read from the start.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from braidstream import ids
from braidstream.ids import Id
from braidstream.strand import Strand


@dataclass(frozen=True, slots=True)
class Frontier:
    """{strand: last native ID seen}. Joins are by maximum, so they commute and repeat harmlessly."""

    at: Mapping[Strand, Id]

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", MappingProxyType(dict(self.at)))

    def __getitem__(self, strand: Strand) -> Id:
        return self.at.get(strand, ids.ZERO)

    def __iter__(self) -> Iterator[Strand]:
        return iter(self.at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frontier) and dict(self.at) == dict(other.at)

    def __hash__(self) -> int:
        return hash(frozenset(self.at.items()))

    @staticmethod
    def below(user: Id, strands: tuple[Strand, ...]) -> "Frontier":
        """Where one user ID stands in each strand: everything at or before it counts as seen."""
        return Frontier({strand: strand.floor(user) for strand in strands})

    def join(self, other: "Frontier") -> "Frontier":
        """The further of both, strand by strand."""
        return Frontier({strand: max(self[strand], other[strand]) for strand in (*self, *other)})

    def advance(self, strand: Strand, native: Id) -> "Frontier":
        """The same, having seen one strand up to `native`."""
        return self.join(Frontier({strand: native}))

    def covers(self, other: "Frontier") -> bool:
        """Whether everything the other has seen was seen here."""
        return all(self[strand] >= other[strand] for strand in other)
