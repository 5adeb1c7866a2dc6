"""A frontier: one position in every strand. Readers, groups, links and Spark use it as their cursor.

One ID is not enough for a stream that several regions write: an entry with a smaller ID may still
arrive. A frontier keeps one native ID for each strand, so readers skip nothing. They read a strand
that it does not name from the start.

As JSON, in Spark's checkpoints among others, it is `{stream: {strand: native ID}}`:

    {"orders": {"s1": "1794702853882-4", "s2": "1794702853880-0", "c1.2": "7-1"}, "plain": {"p": "5-0"}}

`s1` and `c1` are labels of the registry, `.2` is the life of a chosen strand, `p` is a plain stream. `t0.1`
is what region 1 wrote of a log in epoch 0. The form is stored: new members may be added, existing ones keep
their meaning (tests/spark/offset.json).
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.keys import PLAIN
from braidstream.model.strand import Strand, strand_of_label

Positions = dict[str, dict[str, str]]

_BASE64 = "base64:"
_PLACE = re.compile(r"(?:p|([sc][1-9][0-9]{0,3})(?:\.([1-9][0-9]{0,8}))?|t([0-9]{1,9})\.[1-9][0-9]{0,3})\Z")


def name_text(name: bytes) -> str:
    """The name of a stream or field as text; `base64:...` if it is not UTF-8."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return _BASE64 + b64encode(name).decode()
    return _BASE64 + b64encode(name).decode() if text.startswith(_BASE64) else text


def name_of_text(text: str) -> bytes:
    if text.startswith(_BASE64):
        return b64decode(text[len(_BASE64) :], validate=True)
    return text.encode()


def place_text(strand: Strand) -> str:
    """The name of a strand within its stream."""
    if strand.is_plain:
        return PLAIN
    return strand.label.decode() + (f".{strand.life}" if strand.life and not strand.is_of_log else "")


def place_of_text(name: bytes, text: str) -> Strand | None:
    """The strand of a name that `place_text` made; None for other texts."""
    found = _PLACE.match(text)
    if found is None:
        return None
    if text == PLAIN:
        return Strand(name, PLAIN, 0)
    if found[3]:
        return strand_of_label(name, text.encode(), int(found[3]))
    return strand_of_label(name, found[1].encode(), int(found[2] or 0))


def strand_of_row(stream: str, place: str) -> Strand:
    """The strand of a row that Braidstream wrote."""
    strand = place_of_text(name_of_text(stream), place)
    assert strand is not None, (stream, place)
    return strand


@dataclass(frozen=True, slots=True)
class Frontier:
    """{strand: last native ID seen}. Joins take the maximum, so they are commutative and idempotent."""

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
        """The frontier at a user ID: everything up to it counts as seen."""
        return Frontier({strand: strand.floor(user) for strand in strands})

    def join(self, other: "Frontier") -> "Frontier":
        """The later position of both, for each strand."""
        return Frontier({strand: max(self[strand], other[strand]) for strand in (*self, *other)})

    def advance(self, strand: Strand, native: Id) -> "Frontier":
        """This frontier with one strand seen up to `native`."""
        return self.join(Frontier({strand: native}))

    @property
    def positions(self) -> Positions:
        """The JSON form."""
        found = Positions()
        for strand, native in self.at.items():
            found.setdefault(name_text(strand.name), {})[place_text(strand)] = ids.text(native).decode()
        return {name: dict(sorted(places.items())) for name, places in sorted(found.items())}

    @staticmethod
    def parse(positions: Mapping[str, Mapping[str, str]]) -> "Frontier":
        """Read the JSON form. ValueError if it is malformed."""
        at = dict[Strand, Id]()
        for text, places in positions.items():
            name = name_of_text(text)
            for place, position in places.items():
                strand, native = place_of_text(name, place), ids.parse(str(position).encode())
                if strand is None or native is None:
                    raise ValueError(
                        f"{place}: {position} of stream {text} is not a strand and its native ID"
                    )
                at[strand] = native
        return Frontier(at)
