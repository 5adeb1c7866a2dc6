"""Where a query begins and ends in a strand: what the options mean for it."""

from collections.abc import Mapping
from typing import Final

from braidstream.errors import OptionError
from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.option_values import Start
from braidstream.spark.options import SourceOptions
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos

Ends = Mapping[Strand, tuple[Id, int]]
_USE_NUMBERS: Final = 'Use startingOffsets and endingOffsets with numbers, like {"%s": 1}'


def resolve(start: Start, strand: Strand, info: StrandInfo, *, is_new: bool = False) -> Id:
    """The position in a strand that an option means. is_new: the strand was created after the query began."""
    name = name_text(strand.name)
    time_ms = start.times.get(strand.name, start.time_ms)
    if time_ms is not None:
        if strand.is_of_log:
            why = f"{name} is a log, and its entries have no times. {_USE_NUMBERS % name}"
            raise OptionError(start.option, why)
        return ids.before((time_ms, 0)) or ids.ZERO
    position = start.at.get(strand.name, start.rest)
    if isinstance(position, dict):
        position = position.get(place_text(strand), start.rest)
        if isinstance(position, tuple):
            return position
    if isinstance(position, int):
        if not strand.is_of_log:
            raise OptionError(start.option, f"{name} is a stream: its positions are IDs, not numbers")
        return 0, position
    if isinstance(position, tuple):
        return strand.floor(position)
    return info.last if position == "latest" and not is_new else ids.ZERO


def check_logs(options: SourceOptions, infos: StrandInfos) -> None:
    """The option `logs` is for logs only: streams have no offsets."""
    for strand, info in infos.items():
        if options.logs and info.there and not strand.is_of_log:
            raise OptionError("logs", f"{name_text(strand.name)} is a stream. Name it in the option streams")


def in_epochs(begin: Mapping[Strand, Id], ends: Ends) -> dict[Strand, tuple[Id, int]]:
    """The ends of a limited batch: it reads an epoch of a log only after those before it."""
    limited, busy = dict(ends), set[bytes]()
    for strand in sorted(ends, key=lambda each: (each.life, each.writer)):
        if strand.is_of_log:
            if strand.name in busy:
                limited[strand] = begin[strand], ends[strand][1]
            elif ends[strand][0] > begin[strand]:
                busy.add(strand.name)
    return limited
