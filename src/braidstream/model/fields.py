"""Names of the hash fields that Lua and Python share. lua/__init__.py passes them on to the Lua library.

A name that ends in a colon is a prefix; a group, a strand's label, a writer or a sink follows it.
docs/design/keys.md describes the values.
"""

from collections.abc import Iterator
from typing import Final

# Limits of the registry. A user who may write a stream may write its registry too, and links pass it on. A
# field beyond them is damaged (model/registry.py), and neither functions nor links look at what it contains.
FIELD_BYTES: Final = 65_536  # a value, and a name
LISTS_BYTES: Final = 4_194_304  # a value with lists of ranges
REGISTRY_BYTES: Final = 8_388_608  # all of it
CREATORS: Final = 32  # regions that created a group at once, unaware of each other


class LocalField:
    """Fields of a registry that are local to a region: links do not replicate them."""

    GROUP_MOVED: Final = b"h:"  # where it starts on later strands, since XGROUP SETID moved the group
    GROUP_BASE: Final = b"b:"  # where XGROUP SETID put the group, by strand
    GROUP_PASSED: Final = b"u:"  # ranges of peers that the group passes over when it gets there, by strand
    GROUP_NOTED: Final = b"i:"  # when ranges were last looked for, what was pending then; or a process
    NATIVE: Final = b"native"  # the era in which the engine itself deduplicates messages
    ENDED: Final = b"ended"  # the version of the deadline that is over here, and how far it was carried out
    DUE: Final = b"due"  # when the stream expires here, our writer, and whether we had peers
    FENCE: Final = b"fence"  # the plain key of the stream's name is our fence: the stream was adopted
    BELL: Final = b"bell"  # a stamp that changes when the groups change
    AHEAD: Final = b"ahead"  # where a new home strand must start, if that is ahead of the clock
    AHEAD_MS: Final = b"o:"  # how far a strand's last entry is ahead of our clock, if beyond CLOCK_BOUND_MS
    FUTURE: Final = b"f:"  # a user chose an ID in the future: where the strand was, and where it was moved to
    RESUMED: Final = b"z:"  # a strand whose key was lost has all that was written from this ID on
    HEAD: Final = b"s:"  # where a strand begins, how many entries were removed, and which process serves it
    NEW: Final = b"n:"  # this engine's copy of a strand starts here; it never had earlier entries
    MENDED: Final = b"m:"  # the range that was restored in a strand after a loss
    RESTORES: Final = b"y:"  # how often entries of a strand were restored
    TRIMMED: Final = b"d:"  # up to here, entries of a strand were trimmed one by one, not deleted
    PASSED_ON: Final = b"p:"  # by writer and strand: what of it this peer has received (mend.lua)
    CHECKED: Final = b"c:"  # by writer: after which restart we have looked for losses with this peer
    REDONE: Final = b"j:"  # up to where we applied a peer's copy of our lost journal again


class MetaField(LocalField):
    """`bs:meta:<tag>`, the registry of a stream. Each strand has a field too: `s1`, `c2`, `t0.1`.

    Links replicate the fields that are named here, and not those of LocalField.
    """

    GROUP: Final = b"g:"  # where a group starts on strands that are created later
    GROUP_ACKED: Final = b"k:"  # the group has acknowledged everything up to here, by strand
    GROUP_RANGES: Final = b"a:"  # and these ranges after it, by strand
    GROUP_RETURNED: Final = b"R:"  # came back into a hole of these: delivered again, or acknowledged since
    GROUP_SEEN: Final = b"v:"  # deletions that each creator of the group had seen
    GROUP_SCOPE: Final = b"e:"  # which regions deliver which strands: `once`; everywhere without it
    GROUP_OWNERS: Final = b"w:"  # in scope `once`: the region that delivers the strands of another
    GROUP_DELETIONS: Final = b"x:"  # deletions of the group, by writer
    DELETIONS: Final = b"x"  # deletions of the whole stream, by writer
    SINK: Final = b"q:"  # how far a Spark sink has written
    IDEMPOTENCE: Final = b"idmp"  # settings of idempotent production
    HOMES: Final = b"home"  # the epochs of a log: where its home was, and from which offset on
    LOG: Final = b"log"  # settings of a log
    MESSAGES: Final = b"messages"  # of former homes of a log: which the home must know, as journal positions
    RESCUED: Final = b"r:"  # a former home's entries were appended again up to here, by strand and end
    UNTIL: Final = b"until"  # the deadline of the stream in all regions: its version, and the time
    AGAIN: Final = b"again"  # a deadline (as UNTIL) after which a region used chosen IDs again
    LOST: Final = b"l:"  # the cut of a strand whose key was lost
    TRIMS: Final = b"t:"  # the ranges of a strand that were trimmed


class ConfigField:
    """`bs:config`: which region this database is."""

    REGION: Final = b"region"
    NAME: Final = b"name"
    WRITER: Final = b"writer"
    WRITERS: Final = b"writers"
    LEFT: Final = b"left"
    MET: Final = b"met"  # when the region got its first peer, ms
    ID_MODE: Final = b"id-mode"
    LIBRARY: Final = b"library"
    ADOPTED: Final = b"adopted"  # native streams were adopted, so plain keys may be fences
    TOPOLOGY: Final = b"topology"
    IDENTITY: Final = b"identity"
    BEHIND: Final = b"behind:"  # by how many ms a peer's clock is behind ours, by writer
    FENCED: Final = b"fenced"
    RUN: Final = b"run"
    ALIVE: Final = b"alive"
    DOUBTS: Final = b"doubts"
    GENERATED: Final = b"generated"


def named(table: type) -> Iterator[tuple[str, bytes]]:
    """Every field of a table, with its name."""
    for part in reversed(table.__mro__):
        yield from ((name, value) for name, value in vars(part).items() if isinstance(value, bytes))


LOCAL: Final = tuple(value for _, value in named(LocalField))
