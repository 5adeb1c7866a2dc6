"""The fields of the hashes that Lua and Python share, each named once.

The Lua library gets the same names (lua/__init__.py).

What ends in a colon is a prefix: of a group, a strand's label, a writer or a sink. The values:
docs/design/keys.md.
"""

from collections.abc import Iterator
from typing import Final


class MetaField:
    """`bs:meta:<tag>`, the registry of a stream. The strands stand beside these, by label: `s1`, `c2`."""

    GROUP: Final = b"g:"  # where a group starts on strands that are created later
    GROUP_MOVED: Final = b"h:"  # the same since XGROUP SETID
    GROUP_BASE: Final = b"b:"  # where XGROUP SETID put it, by strand
    GROUP_ACKED: Final = b"k:"  # acknowledged without a gap, by strand
    GROUP_SEEN: Final = b"v:"  # the deletions that each creator of the group had seen
    GROUP_DELETIONS: Final = b"x:"  # deletions of the group, by writer
    DELETIONS: Final = b"x"  # deletions of the whole stream, by writer
    SINK: Final = b"q:"  # how far a Spark sink has written
    IDEMPOTENCE: Final = b"idmp"  # settings of idempotent production
    NATIVE: Final = b"native"  # the era in which the engine itself knows the messages
    BELL: Final = b"bell"  # a stamp that changes with the groups
    AHEAD: Final = b"ahead"  # where the home strand starts when it is created, if that is ahead of the clock
    AHEAD_MS: Final = b"o:"  # how far a strand's last entry was ahead of our clock, if too far
    FUTURE: Final = b"f:"  # where a strand was before an ID chosen in the future moved it, and where to
    LOST: Final = b"l:"  # the cut that a strand had when its key was lost
    NEW: Final = b"n:"  # what is below was never in this engine's copy of a strand
    MENDED: Final = b"m:"  # what came back to a strand after a loss
    REDONE: Final = b"j:"  # up to where our lost journal was applied again, as a peer had it


class ConfigField:
    """`bs:config`: which region this database is."""

    REGION: Final = b"region"
    NAME: Final = b"name"
    WRITER: Final = b"writer"
    WRITERS: Final = b"writers"
    LEFT: Final = b"left"
    ID_MODE: Final = b"id-mode"
    LIBRARY: Final = b"library"
    TOPOLOGY: Final = b"topology"
    IDENTITY: Final = b"identity"
    BEHIND: Final = b"behind:"  # how far the clock of a peer is behind ours, by writer
    FENCED: Final = b"fenced"
    RUN: Final = b"run"
    ALIVE: Final = b"alive"
    DOUBTS: Final = b"doubts"
    GENERATED: Final = b"minted"


def named(table: type) -> Iterator[tuple[str, bytes]]:
    """Every field of a table, with its name."""
    return ((name, value) for name, value in vars(table).items() if isinstance(value, bytes))
