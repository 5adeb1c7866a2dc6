"""Values of a lake: its files, its state as of a commit, and what a commit changes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from braidstream.errors import LakeError
from braidstream.model.frontier import Frontier, name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.source.offsets import Offset, adopted

_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_LIKE_DIGEST: Final = re.compile(r"-[0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file: entries of one stream and one day, from `first` to `last` (user IDs).

    places: the first and last name of their strands. stats: for Delta, of a file that is to be added.
    """

    path: str
    stream: str
    day: str
    rows: int
    bytes: int
    first: Id
    last: Id
    places: tuple[str, str]
    stats: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A lake as of one commit of each table. Keys of versions, documents and offsets: folders of tables.

    offsets: up to where each strand is archived, and how many entries were added to it by then.
    By stream: removed: how many entries of each strand a region had removed when the two were last compared.
    journals: up to where deletions of the journals were applied. doubts: entries of a strand up to here are
    not compared in a region, because it has lost some of them. mended: in which ranges of a region restored
    entries were archived.
    """

    versions: Mapping[str, int] = field(default_factory=dict)
    documents: Mapping[str, int | None] = field(default_factory=dict)
    offsets: Mapping[str, Offset] = field(default_factory=dict)
    frontier: Frontier = field(default_factory=lambda: Frontier({}))
    files: Mapping[str, File] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    journals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    doubts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mended: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Grows with each commit."""
        return sum(self.versions.values())

    def offset(self, strand: Strand) -> Offset:
        """The offset of the table that has a strand."""
        nothing = Offset(Frontier({}))
        return self.offsets.get("", self.offsets.get(folder_of(name_text(strand.name)), nothing))


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit changes; None: unchanged. offsets: by table."""

    what: str
    add: tuple[File, ...] = ()
    remove: tuple[str, ...] = ()
    offsets: Mapping[str, Offset] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, int]] | None = None
    journals: Mapping[str, Mapping[str, str]] | None = None
    doubts: Mapping[str, Mapping[str, str]] | None = None
    mended: Mapping[str, Mapping[str, str]] | None = None


# Facts about streams that a commit notes in its document, beside the offsets.
NOTES: Final = ("removed", "journals", "doubts", "mended")


class Conflict(Exception):
    """Another job has committed meanwhile. added: files that are committed, in tables before this one."""

    def __init__(self, why: str, added: tuple[File, ...] = ()) -> None:
        super().__init__(why)
        self.added = added


def place_in(strand: Strand, region: int | None) -> str:
    """The key of a strand for what is known of one region: regions count differently."""
    return place_text(strand) if region is None else f"{place_text(strand)}@{region}"


def refuse_adopted(state: State, there: Iterable[Strand], region: int | None) -> None:
    """LakeError if a native stream was adopted since it was archived."""
    for error in adopted_since(state, there, region).values():
        raise error


def adopted_since(state: State, there: Iterable[Strand], region: int | None) -> dict[bytes, LakeError]:
    """Native streams that were adopted since they were archived: each is another strand now."""
    return {
        strand.name: LakeError(
            f"stream {name_text(strand.name)}: it was archived as a native stream, and was adopted "
            "since then (braid adopt). Archive it to another lake."
        )
        for strand in adopted(state.frontier, there, region)
    }


def folder_of(stream: str) -> str:
    """The folder of a stream's table: its name, or one like it that is safe in paths and URLs."""
    if _SAFE.match(stream) and not _LIKE_DIGEST.search(stream):
        return stream
    like = re.sub(r"[^A-Za-z0-9_.-]", "_", stream)[:60].lstrip("_.-") or "stream"
    return f"{like}-{sha256(stream.encode()).hexdigest()[:16]}"


def within(files: Iterable[File], stream: str, place: str, low: Id, high: Id) -> list[File]:
    """The files that may have entries of a strand after `low` up to `high` (user IDs)."""
    return [
        each
        for each in files
        if each.stream == stream
        and each.places[0] <= place <= each.places[1]
        and each.first <= high
        and each.last > low
    ]
