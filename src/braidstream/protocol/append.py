"""The plain append."""

from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import bell
from braidstream.model.strand import Strand


def birth_command(strand: Strand, stamp: bytes = b"") -> Command:
    """Make sure of a strand. If it has groups to join, that takes the stamp of the bell (else BSSTALE)."""
    plain = (strand.name,) if keys.shares_slot(strand.name) else ()
    where = (keys.meta(strand.name), strand.key, *plain, *bell(strand.name, stamp))
    return ("FCALL", "bs_strand_birth", len(where), *where, strand.label, *((stamp,) if stamp else ()))
