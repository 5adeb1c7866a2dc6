"""A stream in every region: the extent of its copies, their groups, and what was deleted."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from braidstream.errors import NotARegionError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.journal import deletions
from braidstream.model.meta import Registry
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand, facts
from braidstream.protocol.identify import read_any_region
from braidstream.protocol.lookup import current
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos
from braidstream.spark.source.survey import look

_NOTHING: Final = StrandInfo(ids.ZERO, 0, 0, None, ids.ZERO, 64, there=False)


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """One region. journals: {writer: (last ID, {deleted entry: journal ID}, whether it has been trimmed)}."""

    writer: int
    registry: Registry
    infos: StrandInfos
    groups: Mapping[Strand, frozenset[bytes]]
    journals: Mapping[int, tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]

    def journal_at(self, writer: int) -> Id:
        """How far a writer's journal was applied here."""
        return self.journals[writer][0] if writer in self.journals else ids.ZERO


def read_snapshot(name: bytes) -> Plan[RegionSnapshot]:
    """Read a stream in one region. A few round trips; the journals before the strands."""
    region, registry = (yield from _region()), (yield from current(name))
    writers = [] if region is None else sorted({*region.writers, *region.left})
    journals = dict[int, tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]()
    for writer in writers:
        journals[writer] = yield from _journal(name, writer)
    infos = yield from look(name)
    groups = dict[Strand, frozenset[bytes]]()
    there = [strand for strand in registry.strands if infos.get(strand, _NOTHING).there]
    if there:
        replies = yield Batch(
            [("XINFO", "GROUPS", strand.key) for strand in there], resend=True, attempt=True
        )
        for strand, reply in zip(there, replies, strict=True):
            if not isinstance(reply, ReplyError):
                groups[strand] = frozenset(facts(group)[b"name"] for group in reply)
    return RegionSnapshot(0 if region is None else region.writer, registry, infos, groups, journals)


def _region() -> Plan[Region | None]:
    try:
        return (yield from read_any_region())
    except NotARegionError:
        return None


def _journal(name: bytes, writer: int) -> Plan[tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]:
    key = keys.journal(name, writer)
    batch = Batch([("XINFO", "STREAM", key), ("XRANGE", key, "-", "+")], resend=True, attempt=True)
    reply, entries = yield batch
    if isinstance(reply, ReplyError) or isinstance(entries, ReplyError):
        return ids.ZERO, {}, False
    info = facts(reply)
    deleted = dict[tuple[bytes, Id], Id]()
    for native, words in entries:
        registration, listed = deletions(words)
        for each in listed:
            deleted[registration, ids.native(each)] = ids.native(native)
    trimmed = int(info.get(b"entries-added", 0)) > int(info[b"length"])
    return ids.native(info[b"last-generated-id"]), deleted, trimmed


@dataclass(frozen=True)
class Snapshots:
    """A stream in all regions."""

    name: bytes
    by_region: Mapping[int, RegionSnapshot]

    @cached_property
    def strands(self) -> list[Strand]:
        found = {
            strand for here in self.by_region.values() for strand, each in here.infos.items() if each.there
        }
        return sorted(found, key=lambda strand: (strand.label, strand.life))

    def copy(self, region: int, strand: Strand) -> StrandInfo:
        return self.by_region[region].infos.get(strand, _NOTHING)

    def copies(self, strand: Strand) -> dict[int, StrandInfo]:
        return {region: self.copy(region, strand) for region in self.by_region}

    def home(self, strand: Strand) -> int:
        """The region that writes this strand; 0 if it is none of these."""
        return next((region for region, here in self.by_region.items() if here.writer == strand.writer), 0)

    def is_over(self, region: int, strand: Strand) -> bool:
        """Whether that region has a later life of the strand."""
        registry = self.by_region[region].registry
        return any(each.label == strand.label and each.life > strand.life for each in registry.cuts)

    @property
    def lost_groups(self) -> list[tuple[int, Strand, bytes]]:
        """Groups that the registry of a region has and one of its strands has not."""
        return [
            (region, strand, group)
            for region, here in self.by_region.items()
            for strand in here.registry.strands
            for group in here.registry.groups
            if group not in here.groups.get(strand, frozenset()) and here.infos.get(strand)
        ]

    def deletion(self, strand: Strand, native: Id) -> tuple[int, Id] | None:
        """The writer and the journal entry that deleted an entry, if a journal still has it."""
        for here in self.by_region.values():
            for writer, (_, deleted, _) in here.journals.items():
                if (strand.registration, native) in deleted:
                    return writer, deleted[strand.registration, native]
        return None

    @property
    def forgot_deletions(self) -> bool:
        """Whether a journal was trimmed: daemons do that once all peers have applied it."""
        return any(trimmed for here in self.by_region.values() for _, _, trimmed in here.journals.values())
