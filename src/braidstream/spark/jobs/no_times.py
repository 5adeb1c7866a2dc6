"""Refuses logs where a job goes by the age of entries: an offset shows no time."""

from collections.abc import Iterable
from typing import Final

from braidstream.errors import OptionError
from braidstream.model.frontier import name_text
from braidstream.model.strand import Strand

_INSTEAD: Final = {
    "trim": "Archive it without --trim, then evict by number: braid log evict",
    "compact": "--keep and --grace could not be honoured. Evict by number instead: braid log evict",
}


def refuse_logs(strands: Iterable[Strand], job: str) -> None:
    for strand in strands:
        if strand.is_of_log:
            why = f"{name_text(strand.name)} is a log, and its entries have no times. {_INSTEAD[job]}"
            raise OptionError(job, why)
