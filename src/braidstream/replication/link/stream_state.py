"""The state of a stream in one region: its registry, and the extent of each native stream.

A link compares two such states to find what the source has and the target lacks:

    strand    last ID    entries below the first one were removed; those above `last` have not arrived yet
    meta      a lattice, merged by the engine function bs_braid_merge
    journal   deletions of single entries, in order
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from braidstream.errors import WRITES_REFUSED, ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import LOCAL, MetaField
from braidstream.model.ids import Id
from braidstream.model.journal import JournalEntry
from braidstream.model.region import Region
from braidstream.model.registry import Registry, mended_range, named_keys
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries

# Where one of our strands began, and what was restored in it, is local, but a change wakes the links.
_ASIDE: Final = tuple(field for field in LOCAL if field not in (MetaField.NEW, MetaField.MENDED))
# How bs_braid_merge is to create a strand: a copy; the target's own; its own while bs:config exists.
COPY: Final = 1
OWN: Final = 2
GUARDED: Final = 3
# Entries may arrive before trims, acknowledgements of groups and positions of Spark sinks that are older.
_OF_ACKS: Final = (MetaField.GROUP_ACKED, MetaField.GROUP_RANGES, MetaField.GROUP_RETURNED)
_LATER: Final = (*_ASIDE, MetaField.TRIMS, *_OF_ACKS, MetaField.SINK)
# What a state call also does: note that a link reads the stream for the first time; or only what was trimmed.
MET: Final = b"="
TRIMMED: Final = b"~"


def passed_on_field(strand: Strand, peer: int) -> bytes:
    return MetaField.PASSED_ON + b"%d:" % peer + strand.label


def checked_field(peer: int) -> bytes:
    return MetaField.CHECKED + b"%d" % peer


def causal(meta: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The fields that the target must have before it gets entries that were written after them."""
    return {field: value for field, value in meta.items() if not field.startswith(_LATER)}


@dataclass(frozen=True, slots=True)
class Extent:
    """An existing native stream: last ID, first entry, length, and how many entries were ever added.

    width: bytes of its last entry, as an estimate for the others.
    tail: the last entry that exists; deleted: the highest ID that XDEL deleted.
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
        """Whether no entry was ever removed."""
        return self.length == self.added

    def forgot_after(self, at: Id) -> bool:
        """Whether entries after `at` may have been removed."""
        return not self.whole and (self.first is None or (at < self.first and ids.after(at) != self.first))

    @property
    def removed(self) -> int:
        """How many entries were removed by commands, as the engine counts them."""
        return self.added - self.length


@dataclass(frozen=True, slots=True)
class Head:
    """Where a strand began when it was last known to lack nothing, how many entries were removed by then, and
    which server process served it (lua/trim.lua).

    It had every entry up to `known` and from `resumed` on; None: none since it was compared.
    """

    process: bytes
    first: Id
    removed: int
    known: Id
    resumed: Id | None

    @property
    def is_open(self) -> bool:
        """Whether it may lack entries in between: not all peers were compared yet, or they could not be
        restored."""
        return self.resumed is None or self.known < (ids.before(self.resumed) or ids.ZERO)

    def had(self, native: Id) -> bool:
        return native <= self.known or (self.resumed is not None and native >= self.resumed)


@dataclass(frozen=True, slots=True)
class State:
    """A stream in one region. restless: a group there has unread or pending entries."""

    name: bytes
    meta: dict[bytes, bytes]
    registry: Registry
    strands: dict[Strand, Extent]
    journals: dict[int, Extent]
    restless: bool = False

    @property
    def shared(self) -> dict[bytes, bytes]:
        """The replicated fields of the registry."""
        return {field: value for field, value in self.meta.items() if not field.startswith(LOCAL)}

    def end(self, strand: Strand) -> Id | None:
        """The last ID of a strand here; None if the region has a later life of it."""
        if strand in self.strands:
            return self.strands[strand].last
        for known, cut in self.registry.cuts.items():
            if known.label == strand.label:
                lost = self.meta.get(MetaField.LOST + strand.label)
                here = ids.native(lost) if lost else cut
                return here if known.life == strand.life else (None if known.life > strand.life else ids.ZERO)
        return ids.ZERO

    def journal_ends(self, writers: Iterable[int]) -> dict[int, Id]:
        """The last ID of each writer's journal here."""
        extents = {writer: self.journals.get(writer) for writer in writers}
        return {writer: extent.last if extent else ids.ZERO for writer, extent in extents.items()}

    def is_beyond(self, source: "State", writer: int) -> bool:
        """Whether the source has trimmed journal entries that were not applied here yet."""
        journal, at = source.journals.get(writer), self.journal_ends([writer])[writer]
        return journal is not None and at < journal.last and journal.forgot_after(at)

    def with_strands(self, strands: Iterable[Strand]) -> "State":
        """The state with strands that were created since."""
        registry = self.registry
        for strand in strands:
            registry = registry.with_strand(strand)
        return replace(self, registry=registry)

    def not_in(self, strands: Iterable[Strand]) -> list[Strand]:
        """Strands of the registry that are not among these."""
        known = {*strands}
        return [strand for strand in self.registry.strands if strand not in known]

    def is_new_after(self, strand: Strand) -> Id:
        """Entries before this ID were never in this engine's copy; 0-0 if unknown."""
        since = self.meta.get(MetaField.NEW + strand.label, b"0-0")
        return ids.LAST if since == b"?" else ids.native(since)

    def trims(self, strand: Strand) -> list[tuple[Id, Id]]:
        """The ranges of a strand that were trimmed, here or elsewhere: from, and up to (exclusive)."""
        life, _, text = self.meta.get(MetaField.TRIMS + strand.label, b"").partition(b" ")
        if life != b"%d" % strand.life:
            return []
        pairs = (each.split(b"~") for each in text.split(b","))
        return [(ids.native(start), ids.native(end)) for start, end in pairs]

    def is_removed(self, strand: Strand, native: Id) -> bool:
        """Whether a record says that an entry was deleted with all before it, or trimmed."""
        lost = self.meta.get(MetaField.LOST + strand.label)
        if native <= (ids.native(lost) if lost else self.registry.cuts.get(strand, ids.ZERO)):
            return True
        return any(start <= native < end for start, end in self.trims(strand))

    def head(self, strand: Strand) -> Head | None:
        note = self.meta.get(MetaField.HEAD + strand.label, b"").split()
        if len(note) != 6 or note[0] != b"%d" % strand.life:
            return None
        resumed = None if note[5].startswith(b"?") else ids.native(note[5])
        return Head(note[1], ids.native(note[2]), int(note[3]), ids.native(note[4]), resumed)

    def resumed(self, strand: Strand) -> Id | None:
        """Where one of our strands goes on after its latest loss; None if no link has noted that yet.

        The note names the life and the cut: if the key is lost again, the strand gets another cut.
        """
        note = self.meta.get(MetaField.RESUMED + strand.label, b"").split()
        if note[:2] != resumed_note(self, strand).split():
            return None
        return ids.native(note[2])

    def had_since(self, strand: Strand) -> Id:
        """This engine had every entry from this ID on: one that is missing was removed, not lost."""
        since = self.is_new_after(strand)
        if not self.is_lost(strand):
            return since
        resumed = self.resumed(strand) if strand in self.strands else None
        return ids.LAST if resumed is None else max(since, resumed)

    def mended(self, strand: Strand) -> tuple[Id, Id] | None:
        """The range of entries that were restored after a loss, if any."""
        return mended_range(self.meta.get(MetaField.MENDED + strand.label, b""), strand.life)

    def withheld(self, strand: Strand, peer: int) -> tuple[Id, Id] | None:
        """The same, as long as a peer has not received all of them: it may have gone on without them.

        If it had received those of earlier losses, only the range of the later ones (`+`). What it lacks of
        the others it has deleted.
        """
        passed_on = self.meta.get(passed_on_field(strand, peer), b"")
        if passed_on == self.meta.get(MetaField.MENDED + strand.label):
            return None
        later = passed_on.startswith(b"+") and mended_range(passed_on[1:], strand.life)
        return later or self.mended(strand)

    def redone(self, writer: int) -> Id:
        """Up to where our lost journal was redone from this writer's copy."""
        return ids.native(self.meta.get(MetaField.REDONE + b"%d" % writer, b"0-0"))

    def marks(self, writer: int) -> dict[bytes, bytes]:
        """The fields about losses of a region's own strands. Where one begins is noted when it is there."""
        labels = [Strand(self.name, kind, writer).label for kind in (keys.GENERATED, keys.CHOSEN)]
        labels += [known.label for known in self.registry.cuts if known.is_of_log and known.writer == writer]
        own = {mark + label for mark in (MetaField.NEW, MetaField.MENDED, MetaField.LOST) for label in labels}
        own -= {MetaField.NEW + known.label for known in self.registry.cuts if known not in self.strands}
        return {field: value for field, value in self.meta.items() if field in own}

    def is_lost(self, strand: Strand) -> bool:
        """Whether a strand's key was lost (evicted, expired), so that missing entries are no deletions."""
        return MetaField.LOST + strand.label in self.meta or (
            strand in self.registry.strands and strand not in self.strands
        )


def resumed_note(state: State, strand: Strand) -> bytes:
    """The start of the note where a strand goes on after a loss: its life and its cut."""
    return b"%d %s" % (strand.life, ids.text(state.registry.cuts.get(strand, ids.ZERO)))


def likely_strands(name: bytes, region: Region) -> list[Strand]:
    """The strands that a stream has, if all regions write to it."""
    return [Strand(name, keys.GENERATED, writer) for writer in region.writers]


def state_command(
    name: bytes,
    strands: Sequence[Strand],
    journals: Sequence[int],
    *,
    home: int = 0,
    left: Sequence[int] = (),
    mark: bytes = b"",
) -> Command:
    """The call that returns a state. home: the engine's own writer; the call then also notes what was
    acknowledged there, hands strands over, and raises its home strand to entries that are ahead of its clock.
    left: regions that have left, which nothing is handed over to.
    mark: MET or TRIMMED. The call notes that instead.

    Without both it writes nothing, so an engine that refuses writes still answers.
    """
    where = (
        keys.meta(name),
        *(strand.key for strand in strands),
        *(keys.journal(name, writer) for writer in journals),
    )
    labels = (mark + strand.registration if home or mark else b"" for strand in strands)
    function = "bs_braid_state" if home or mark else "bs_braid_look"
    own = Strand(name, keys.GENERATED, home)
    place = (strands.index(own) + 1, b" ".join(b"%d" % each for each in left)) if own in strands else ()
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
    left: Sequence[int] = (),
    mark: bytes = b"",
) -> Plan[State]:
    """The state of a stream. One round trip if `strands` are all its strands."""
    wanted = list(dict.fromkeys(strands))
    retries = Retries("its strands kept changing")
    while True:
        retries.count()
        try:
            call = state_command(name, wanted, journals, home=home, left=left, mark=mark)
            [reply] = yield Batch([call], resend=True)
        except ReplyError as error:
            if not (home or mark) or error.code not in WRITES_REFUSED:
                raise
            home, mark = 0, b""
            continue
        state = parse_state(name, wanted, journals, reply)
        unknown = state.not_in(wanted)
        if not unknown:
            return state
        wanted += unknown


def merge_and_read(merge: Command, source: State, journals: Sequence[int]) -> Plan[tuple[bool, State]]:
    """Merge at the target: (whether it is complete, the target's state afterwards). Mostly one round trip."""
    wanted = source.registry.strands
    state_of = state_command(source.name, wanted, journals)
    done, reply = yield Batch([merge, state_of])
    state = parse_state(source.name, wanted, journals, reply)
    if unknown := state.not_in(wanted):
        state = yield from read_state(source.name, [*wanted, *unknown], journals)
    return bool(done), state


def unregistered(target: State, source: State) -> list[Strand]:
    """Strands whose keys the target has, and which its registry does not know: it has lost a part."""
    known = {strand.label for strand in target.registry.cuts}
    return [
        strand for strand in source.registry.strands if strand in target.strands and strand.label not in known
    ]


def lacks(target: State, source: State) -> bool:
    """Whether a merge would change the target's registry. After plain appends it would not."""
    if unregistered(target, source):
        return True
    known = {strand.label: (strand.life, cut) for strand, cut in target.registry.cuts.items()}
    for strand, cut in source.registry.cuts.items():
        if known.get(strand.label, (0, ids.ZERO)) < (strand.life, cut):
            return True
    labels = {strand.label for strand in source.registry.cuts}
    return any(
        target.meta.get(field) != value for field, value in source.shared.items() if field not in labels
    )


def merge_command(
    source: State, target: State, writers: Sequence[int], *, home: int, guarded: bool = False
) -> Command:
    """Merge the source's registry into the target's.

    writers: the strands that must exist for groups to wait on; home: the target's own writer. guarded: the
    target's own strand is created only while the target is a region. Not in a cluster: another slot.
    """
    make = [Strand(source.name, keys.GENERATED, writer) for writer in writers]
    own_kind = GUARDED if guarded and home in writers else OWN
    strands = list(dict.fromkeys([*target.registry.strands, *make, *unregistered(target, source)]))
    own, turns = named_keys(source.name, target.registry)
    config = (keys.CONFIG,) if own_kind == GUARDED else ()
    where = (keys.meta(source.name), *(strand.key for strand in strands), *own, *config)
    words = list[bytes | int]()
    for strand in strands:
        kind = own_kind if strand.writer == home else COPY
        words += [strand.label, strand.life, kind if strand in make else 0]
    shared = [word for pair in source.shared.items() for word in pair]
    return ("FCALL", "bs_braid_merge", len(where), *where, len(strands), *words, *turns, *shared)


def read_journal(name: bytes, writer: int, after: Id, count: int) -> Plan[tuple[list[JournalEntry], Extent]]:
    """Entries of a journal, and its extent at that time or later. One round trip."""
    key = keys.journal(name, writer)
    read = ("XRANGE", key, b"(" + ids.text(after), "+", "COUNT", count)
    state = state_command(name, (), (writer,))
    page, reply = yield Batch([read, state], resend=True)
    return page, parse_state(name, (), (writer,), reply).journals.get(writer, Extent(ids.ZERO, None, 0, 0))
