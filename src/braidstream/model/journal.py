"""The journal of a writer: what it deleted and which messages it accepted, for the peers. One native stream.

The engine functions write it (lua/journal.lua). The words of an entry:

    del  "<label:life> <native ID> ..."                 these entries were deleted
    idmp <settings> by <producer> (<iid> <ms-n:w>)...   these messages were accepted
"""

from collections.abc import Iterable, Sequence
from typing import Final

from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.idempotence import Settings
from braidstream.model.ids import Id
from braidstream.model.strand import Strand

# Its native ID, and its words.
JournalEntry = tuple[bytes, list[bytes]]


class JournalWord:
    """What stands in an entry; and what the functions call the keys that an entry about messages needs."""

    DELETED: Final = b"del"
    MESSAGES: Final = b"idmp"
    BY: Final = b"by"
    MAP: Final = b"map:"
    QUEUE: Final = b"queue:"
    ABOUT: Final = b"about"
    OWN: Final = b"journal"


def deletions(words: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """The registration of a strand, and the entries deleted in it; none if the words say something else."""
    if words[0] != JournalWord.DELETED:
        return b"", []
    registration, *natives = words[1].split(b" ")
    return registration, natives


def messages(settings: Settings, producer: bytes, known: Iterable[bytes]) -> list[bytes]:
    """The words that say: these messages were accepted. known: iid, `ms-n:w`, iid, ..."""
    return [JournalWord.MESSAGES, settings.text, JournalWord.BY, producer, *known]


def apply_command(
    name: bytes,
    writers: tuple[int, int],
    strands: Iterable[Strand],
    entries: Iterable[JournalEntry],
    after: Id,
) -> Command:
    """Do what a peer's journal says. writers: its own and the target's; strands: those that are there."""
    where, named, words = _given(name, writers, strands, entries)
    return ("FCALL", "bs_journal_apply", len(where), *where, *named, ids.text(after), *words)


def redo_command(
    name: bytes,
    writer: int,
    strands: Iterable[Strand],
    entry: JournalEntry | None,
    upto: Id,
    *,
    write: bool = False,
    peer: int = 0,
) -> Command:
    """Do again what a peer's copy of our journal says. write: also into our journal. peer: it has no more."""
    where, named, words = _given(name, (writer, writer), strands, [entry] if entry else [])
    return ("FCALL", "bs_journal_redo", len(where), *where, *named, ids.text(upto), int(write), peer, *words)


def _given(
    name: bytes, writers: tuple[int, int], strands: Iterable[Strand], entries: Iterable[JournalEntry]
) -> tuple[Command, Command, Command]:
    """The keys that entries need, what each is, and the entries, as the functions read them."""
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
