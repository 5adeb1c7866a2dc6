"""The journal of a writer: a native stream with its deletions and accepted messages, for the peers.

The engine functions write it (lua/journal.lua). An entry is one of:

    del  "<label:life> <native ID> ..."                 these entries were deleted
    del  "<label:life> <native ID> ..." by trim         the same, by a trim that removes single entries
    idmp <settings> by <producer> (<iid> <ms-n:w>)...   these messages were accepted
"""

from collections.abc import Iterable, Sequence
from typing import Final

from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.registry import Settings
from braidstream.model.strand import Command, Strand, strand_of_label

# What all peers have applied is kept this long, up to so many entries. If a region goes back to a time before
# it has applied a deletion, it gets the deletion again.
KEPT_MS: Final = 600_000
KEPT: Final = 4_000

# (native ID, words)
JournalEntry = tuple[bytes, list[bytes]]


class JournalWord:
    """Words of an entry, and the names by which the functions find the keys that `idmp` needs."""

    DELETED: Final = b"del"
    MESSAGES: Final = b"idmp"
    BY: Final = b"by"
    TRIM: Final = b"trim"
    MAP: Final = b"map:"
    QUEUE: Final = b"queue:"
    ABOUT: Final = b"about"
    OWN: Final = b"journal"


def deletions(words: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """(registration of a strand, IDs deleted in it); no IDs if the entry is of another kind."""
    if words[0] != JournalWord.DELETED:
        return b"", []
    registration, *natives = words[1].split(b" ")
    return registration, natives


def is_trim(words: Sequence[bytes]) -> bool:
    """Whether the deletions of an entry were a trim, with DELREF or ACKED."""
    return words[0] == JournalWord.DELETED and list(words[2:4]) == [JournalWord.BY, JournalWord.TRIM]


def messages(settings: Settings, producer: bytes, known: Iterable[bytes]) -> list[bytes]:
    """The words of an `idmp` entry. known: iid, `ms-n:w`, iid, ..."""
    return [JournalWord.MESSAGES, settings.text, JournalWord.BY, producer, *known]


def waits_for(name: bytes, words: Sequence[bytes]) -> list[tuple[Strand, Id]]:
    """The entries that must have arrived before a journal entry is applied. Not for logs."""
    if words[0] == JournalWord.MESSAGES:
        values = (value.split(b":") for value in words[5::2])
        return [(Strand(name, keys.GENERATED, int(w)), ids.native(native)) for native, w, *_ in values]
    registration, natives = deletions(words)
    label, _, life = registration.partition(b":")
    return [(strand_of_label(name, label, int(life)), ids.native(native)) for native in natives]


def apply_command(
    name: bytes,
    writers: tuple[int, int],
    strands: Iterable[Strand],
    entries: Iterable[JournalEntry],
    after: Id,
) -> Command:
    """Apply a peer's journal. writers: the peer's and the target's. strands: those that exist."""
    where, named, words = _arguments(name, writers, strands, entries)
    return ("FCALL", "bs_journal_apply", len(where), *where, *named, ids.text(after), *words)


def redo_command(
    name: bytes,
    writer: int,
    strands: Iterable[Strand],
    entries: Iterable[JournalEntry],
    upto: Id,
    *,
    write: bool = False,
    peer: int = 0,
) -> Command:
    """Apply a peer's copy of our journal again.

    write: also append it to our journal. peer: that was all this peer has.
    """
    where, named, words = _arguments(name, (writer, writer), strands, entries)
    return ("FCALL", "bs_journal_redo", len(where), *where, *named, ids.text(upto), int(write), peer, *words)


def _arguments(
    name: bytes, writers: tuple[int, int], strands: Iterable[Strand], entries: Iterable[JournalEntry]
) -> tuple[Command, Command, Command]:
    """The arguments of the functions: keys, the name of each key, and the entries."""
    writer, own = writers
    named = {strand.registration: strand.key for strand in strands}
    words = list[bytes | int]()
    for native, entry in entries:
        words += (native, len(entry), *entry)
        named.update(_message_keys(name, own, entry))
    where = (keys.meta(name), keys.journal(name, writer), *named.values())
    return where, (len(named), *named), tuple(words)


def _message_keys(name: bytes, own: int, words: Sequence[bytes]) -> dict[bytes, bytes]:
    if words[0] != JournalWord.MESSAGES or len(words) < 4:
        return {}
    settings, producer = Settings.parse(words[1]), words[3]
    if settings is None:
        return {}
    which = b"%d:%b" % (settings.era, producer)
    map_, queue = keys.known_messages(name, settings.era, producer)
    return {
        JournalWord.MAP + which: map_,
        JournalWord.QUEUE + which: queue,
        JournalWord.ABOUT: keys.about(name),
        JournalWord.OWN: keys.journal(name, own),
    }
