"""What a server says of one strand."""

from dataclasses import dataclass, replace
from typing import Any, Final

from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.strand import Strand


@dataclass(frozen=True, slots=True)
class StrandInfo:
    """One strand in this region.

    added: entries ever added. cut: its last ID when it was last deleted. size: bytes of an entry.
    there: it exists. deleted: the highest ID that XDEL deleted. limit: entries above it do not count.
    mended: the range in which lost entries were restored, and how often (`m:` and `y:` of the registry).
    lost: its key was lost, and created again after this ID; 0-0 if not.
    trimmed: up to here it was trimmed entry by entry, which looks like XDEL.
    """

    last: Id
    added: int
    length: int
    first: Id | None
    cut: Id
    size: int
    there: bool = True
    deleted: Id = ids.ZERO
    limit: Id = ids.LAST
    mended: bytes = b""
    lost: Id = ids.ZERO
    trimmed: Id = ids.ZERO


StrandInfos = dict[Strand, StrandInfo]

_MISSING: Final = StrandInfo(ids.ZERO, 0, 0, None, ids.ZERO, 0, there=False)
# A strand of chosen IDs that was deleted, and that has started over in a later life.
_OVER: Final = replace(_MISSING, cut=ids.LAST)


def find_info(infos: StrandInfos, strand: Strand) -> StrandInfo:
    """What a server says of a strand, also of one that it has not."""
    if strand in infos:
        return infos[strand]
    if strand.is_plain:
        return _MISSING
    lives = [each.life for each in infos if (each.name, each.label) == (strand.name, strand.label)]
    return _OVER if max(lives, default=0) > strand.life else _MISSING


def info_of(info: dict[bytes, Any], cut: Id) -> StrandInfo:
    first, last = info.get(b"first-entry"), info.get(b"last-entry")
    sizes = [sum(map(len, entry[1])) + 32 for entry in (first, last) if entry]
    return StrandInfo(
        last=ids.native(info[b"last-generated-id"]),
        added=int(info.get(b"entries-added", 0)),
        length=int(info[b"length"]),
        first=ids.native(first[0]) if first else None,
        cut=cut,
        size=max(sizes, default=64),
        deleted=ids.native(info.get(b"max-deleted-entry-id", b"0-0")),
    )
