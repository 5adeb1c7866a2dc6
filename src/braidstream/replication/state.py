"""What one region knows of a stream at one moment: its registry, and how far each native stream goes.

Two such states are all a link needs. Whatever the source has and the target lacks follows from them:

    strand    last ID    entries below the first one were removed; those above `last` are not known yet
    meta      a lattice, merged by the engine function bs_braid_merge
    journal   deletions of single entries, in order
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from braidstream.errors import WRITES_REFUSED, ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.journal import JournalEntry
from braidstream.model.meta import Registry, named_keys
from braidstream.model.strand import Strand, facts
from braidstream.protocol.plan import Batch, Plan

# Fields of meta that stay in their region: where XGROUP SETID stood, where chosen IDs moved a strand to,
# when groups last changed, whether the engine itself knows messages, and what was done again of our journal.
_ASIDE: Final = (
    MetaField.GROUP_BASE,
    MetaField.GROUP_MOVED,
    MetaField.FUTURE,
    MetaField.BELL,
    MetaField.AHEAD,
    MetaField.AHEAD_MS,
    MetaField.NATIVE,
    MetaField.REDONE,
    MetaField.FENCE,
)
# So do those that say where a strand of ours is new, and what came back to it. A link must see these at once.
LOCAL: Final = (*_ASIDE, MetaField.NEW, MetaField.MENDED)
# Entries may overtake how far groups have acknowledged, and how far Spark sinks have written.
_LATER: Final = (*_ASIDE, MetaField.GROUP_ACKED, MetaField.SINK)


def causal(meta: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """What of a meta must be at the target before the entries that were written after it."""
    return {field: value for field, value in meta.items() if not field.startswith(_LATER)}


@dataclass(frozen=True, slots=True)
class Extent:
    """A native stream that is there: its last ID, its first entry, how many it has and ever had.

    width: how many bytes its last entry has, as a guess for the others.
    tail: the last entry that is there; deleted: no entry above this ID was deleted by XDEL.
    """

    last: Id
    first: Id | None
    length: int
    added: int
    width: int = 0
    tail: Id | None = None
    deleted: Id = ids.ZERO

    @staticmethod
    def parse(reply: list[Any]) -> "Extent":
        last, first, length, added, width, tail, deleted = reply
        return Extent(
            last=ids.native(last),
            first=ids.native(first) if first else None,
            length=length,
            added=added,
            width=width,
            tail=ids.native(tail) if tail else None,
            deleted=ids.native(deleted),
        )

    @property
    def whole(self) -> bool:
        """Whether it still has every entry it ever had."""
        return self.length == self.added

    def forgot_after(self, at: Id) -> bool:
        """Whether entries that came after `at` may be gone."""
        return not self.whole and (self.first is None or (at < self.first and ids.after(at) != self.first))

    @property
    def removed_below(self) -> Id | None:
        """Everything before this ID was removed here; None if nothing can be said."""
        return ids.after(self.last) if self.first is None else self.first


@dataclass(frozen=True, slots=True)
class State:
    """A stream in one region. restless: a group there has entries to be read or acknowledged."""

    name: bytes
    meta: dict[bytes, bytes]
    registry: Registry
    strands: dict[Strand, Extent]
    journals: dict[int, Extent]
    restless: bool = False

    @property
    def shared(self) -> dict[bytes, bytes]:
        """What of the meta concerns the peers."""
        return {field: value for field, value in self.meta.items() if not field.startswith(LOCAL)}

    def end(self, strand: Strand) -> Id | None:
        """How far a strand is known here; None if a later life of it is."""
        if strand in self.strands:
            return self.strands[strand].last
        for known, cut in self.registry.cuts.items():
            if known.label == strand.label:
                lost = self.meta.get(MetaField.LOST + strand.label)
                here = ids.native(lost) if lost else cut
                return here if known.life == strand.life else (None if known.life > strand.life else ids.ZERO)
        return ids.ZERO

    def journal_ends(self, writers: Iterable[int]) -> dict[int, Id]:
        """How far the journal of each writer is known here."""
        extents = {writer: self.journals.get(writer) for writer in writers}
        return {writer: extent.last if extent else ids.ZERO for writer, extent in extents.items()}

    def is_beyond(self, source: "State", writer: int) -> bool:
        """Whether the source's journal of a writer no longer reaches back to where it was done here."""
        journal, at = source.journals.get(writer), self.journal_ends([writer])[writer]
        return journal is not None and at < journal.last and journal.forgot_after(at)

    def with_strands(self, strands: Iterable[Strand]) -> "State":
        """These have come since."""
        registry = self.registry
        for strand in strands:
            registry = registry.with_strand(strand)
        return replace(self, registry=registry)

    def not_in(self, strands: Iterable[Strand]) -> list[Strand]:
        """Strands that the registry has and that were not asked for."""
        return [strand for strand in self.registry.strands if strand not in strands]

    def is_new_after(self, strand: Strand) -> Id:
        """What is before this ID was never in this engine's copy; 0-0 if nothing is known."""
        since = self.meta.get(MetaField.NEW + strand.label, b"0-0")
        return ids.LAST if since == b"?" else ids.native(since)

    def mended(self, strand: Strand) -> tuple[Id, Id] | None:
        """From where to where entries of a strand came back after a loss, if any did."""
        life, _, where = self.meta.get(MetaField.MENDED + strand.label, b"").partition(b" ")
        if not where or int(life) != strand.life:
            return None
        first, _, last = where.partition(b" ")
        return ids.native(first), ids.native(last)

    def redone(self, writer: int) -> Id:
        """Up to where our journal was lost, and was done again as this region had it."""
        return ids.native(self.meta.get(MetaField.REDONE + b"%d" % writer, b"0-0"))

    def marks(self, writer: int) -> dict[bytes, bytes]:
        """What a region says of losses of its own strands."""
        labels = [Strand(self.name, kind, writer).label for kind in (keys.GENERATED, keys.CHOSEN)]
        labels += [known.label for known in self.registry.cuts if known.is_of_log and known.writer == writer]
        own = {mark + label for mark in (MetaField.NEW, MetaField.MENDED, MetaField.LOST) for label in labels}
        return {field: value for field, value in self.meta.items() if field in own}

    def is_lost(self, strand: Strand) -> bool:
        """Whether a strand's key went away behind our back, so that its absence says nothing."""
        return MetaField.LOST + strand.label in self.meta or (
            strand in self.registry.strands and strand not in self.strands
        )


def state_command(
    name: bytes, strands: Sequence[Strand], journals: Sequence[int], *, home: int = 0, met: bool = False
) -> Command:
    """The function that tells a state. home: the writer of the engine that is asked, if what was acknowledged
    there is to be noted on the way, and its home strand to be moved up to what is ahead of its clock.
    met: note instead that a link looks at the stream for the first time.

    Without, it writes nothing, so an engine that refuses writes still answers.
    """
    where = (
        keys.meta(name),
        *(strand.key for strand in strands),
        *(keys.journal(name, writer) for writer in journals),
    )
    mark = b"=" if met else b""
    labels = (mark + strand.registration if home or met else b"" for strand in strands)
    function = "bs_braid_state" if home or met else "bs_braid_look"
    own = Strand(name, keys.GENERATED, home)
    place = (strands.index(own) + 1,) if own in strands else ()
    return ("FCALL", function, len(where), *where, *labels, *(b"" for _ in journals), *place)


def parse_state(name: bytes, strands: Sequence[Strand], journals: Sequence[int], reply: list[Any]) -> State:
    meta, extents, restless = reply
    found = [Extent.parse(extent) if extent else None for extent in extents]
    return State(
        name=name,
        meta=facts(meta),
        registry=Registry.parse(name, meta),
        strands={strand: extent for strand, extent in zip(strands, found, strict=False) if extent},
        journals={
            writer: extent for writer, extent in zip(journals, found[len(strands) :], strict=True) if extent
        },
        restless=bool(restless),
    )


def read_state(
    name: bytes,
    strands: Iterable[Strand],
    journals: Sequence[int],
    *,
    home: int = 0,
    met: bool = False,
) -> Plan[State]:
    """The state of a stream. One round trip where `strands` are all it has."""
    wanted = list(dict.fromkeys(strands))
    while True:
        try:
            call = state_command(name, wanted, journals, home=home, met=met)
            [reply] = yield Batch([call], resend=True)
        except ReplyError as error:
            if not (home or met) or error.code not in WRITES_REFUSED:
                raise
            home, met = 0, False
            continue
        state = parse_state(name, wanted, journals, reply)
        unknown = state.not_in(wanted)
        if not unknown:
            return state
        wanted += unknown


def merge_and_read(merge: Command, source: State, journals: Sequence[int]) -> Plan[tuple[bool, State]]:
    """Whether a merge at the target was all of it, and the target's state after it. One round trip mostly."""
    wanted = source.registry.strands
    state_of = state_command(source.name, wanted, journals)
    done, reply = yield Batch([merge, state_of])
    state = parse_state(source.name, wanted, journals, reply)
    if unknown := state.not_in(wanted):
        state = yield from read_state(source.name, [*wanted, *unknown], journals)
    return bool(done), state


def lacks(target: State, source: State) -> bool:
    """Whether the target's meta has something to learn from the source's. Plain appends teach nothing."""
    known = {strand.label: (strand.life, cut) for strand, cut in target.registry.cuts.items()}
    for strand, cut in source.registry.cuts.items():
        if known.get(strand.label, (0, ids.ZERO)) < (strand.life, cut):
            return True
    labels = {strand.label for strand in source.registry.cuts}
    return any(
        target.meta.get(field) != value for field, value in source.shared.items() if field not in labels
    )


def merge_command(source: State, target: State, writers: Sequence[int], *, home: int) -> Command:
    """Bring what the source knows into the target's meta.

    writers: whose strands a group waits on; home: the target's own among them.
    """
    make = [Strand(source.name, keys.GENERATED, writer) for writer in writers]
    strands = list(dict.fromkeys([*target.registry.strands, *make]))
    own, turns = named_keys(source.name, target.registry)
    where = (keys.meta(source.name), *(strand.key for strand in strands), *own)
    words = list[bytes | int]()
    for strand in strands:
        words += [strand.label, strand.life, (1 + (strand.writer == home)) * (strand in make)]
    shared = [word for pair in source.shared.items() for word in pair]
    return ("FCALL", "bs_braid_merge", len(where), *where, len(strands), *words, *turns, *shared)


def read_journal(name: bytes, writer: int, after: Id, count: int) -> Plan[tuple[list[JournalEntry], Extent]]:
    """Entries of a journal, and how far it reached back then or later. One round trip."""
    key = keys.journal(name, writer)
    read = ("XRANGE", key, b"(" + ids.text(after), "+", "COUNT", count)
    state = state_command(name, (), (writer,))
    page, reply = yield Batch([read, state], resend=True)
    return page, parse_state(name, (), (writer,), reply).journals.get(writer, Extent(ids.ZERO, None, 0, 0))
