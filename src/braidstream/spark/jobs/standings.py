"""What every region knows of a stream: how far its copies go, which groups they have, what was deleted."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import ConfigField
from braidstream.model.ids import Id
from braidstream.model.journal import deletions
from braidstream.model.meta import Registry
from braidstream.model.strand import Strand, facts
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.source.survey import Sight, Standing, look

_NOTHING: Final = Standing(ids.ZERO, 0, 0, None, ids.ZERO, 64, there=False)


@dataclass(frozen=True, slots=True)
class Here:
    """One region. journals: {writer: (last ID, {deleted entry: journal ID}, whether it has overflowed)}."""

    writer: int
    registry: Registry
    sight: Sight
    groups: Mapping[Strand, frozenset[bytes]]
    journals: Mapping[int, tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]

    def journal_at(self, writer: int) -> Id:
        """How far a writer's journal was done here."""
        return self.journals[writer][0] if writer in self.journals else ids.ZERO


def stand(name: bytes) -> Plan[Here]:
    """Where a region stands with a stream. A few round trips; the journal before the strands."""
    config, meta = yield Batch([("HGETALL", keys.CONFIG), registry_of(name)], resend=True)
    told, registry = facts(config), Registry.parse(name, meta)
    words = told.get(ConfigField.WRITERS, b"").split() + told.get(ConfigField.LEFT, b"").split()
    writers = sorted({int(word) for word in [*words, told.get(ConfigField.WRITER, b"0")]} - {0})
    journals = dict[int, tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]()
    for writer in writers:
        journals[writer] = yield from _journal(name, writer)
    sight = yield from look(name)
    groups = dict[Strand, frozenset[bytes]]()
    there = [strand for strand in registry.strands if sight.get(strand, _NOTHING).there]
    if there:
        replies = yield Batch(
            [("XINFO", "GROUPS", strand.key) for strand in there], resend=True, attempt=True
        )
        for strand, reply in zip(there, replies, strict=True):
            if not isinstance(reply, ReplyError):
                groups[strand] = frozenset(facts(group)[b"name"] for group in reply)
    return Here(int(told.get(ConfigField.WRITER, b"0")), registry, sight, groups, journals)


def _journal(name: bytes, writer: int) -> Plan[tuple[Id, Mapping[tuple[bytes, Id], Id], bool]]:
    key = keys.journal(name, writer)
    batch = Batch([("XINFO", "STREAM", key), ("XRANGE", key, "-", "+")], resend=True, attempt=True)
    info, entries = yield batch
    if isinstance(info, ReplyError) or isinstance(entries, ReplyError):
        return ids.ZERO, {}, False
    told = facts(info)
    deleted = dict[tuple[bytes, Id], Id]()
    for native, words in entries:
        registration, listed = deletions(words)
        for each in listed:
            deleted[registration, ids.native(each)] = ids.native(native)
    overflowed = int(told.get(b"entries-added", 0)) > int(told[b"length"])
    return ids.native(told[b"last-generated-id"]), deleted, overflowed


@dataclass(frozen=True)
class Standings:
    """A stream in all regions."""

    name: bytes
    by_region: Mapping[int, Here]

    @cached_property
    def strands(self) -> list[Strand]:
        found = {
            strand for here in self.by_region.values() for strand, each in here.sight.items() if each.there
        }
        return sorted(found, key=lambda strand: (strand.label, strand.life))

    def copy(self, region: int, strand: Strand) -> Standing:
        return self.by_region[region].sight.get(strand, _NOTHING)

    def copies(self, strand: Strand) -> dict[int, Standing]:
        return {region: self.copy(region, strand) for region in self.by_region}

    def home(self, strand: Strand) -> int:
        """The region whose writer it is; 0 if it is none of these."""
        return next((region for region, here in self.by_region.items() if here.writer == strand.writer), 0)

    def is_over(self, region: int, strand: Strand) -> bool:
        """Whether a later life of the strand is known there."""
        registry = self.by_region[region].registry
        return any(each.label == strand.label and each.life > strand.life for each in registry.cuts)

    def deletion(self, strand: Strand, native: Id) -> tuple[int, Id] | None:
        """The writer and the journal entry that deleted an entry, if a journal still says so."""
        for here in self.by_region.values():
            for writer, (_, deleted, _) in here.journals.items():
                if (strand.registration, native) in deleted:
                    return writer, deleted[strand.registration, native]
        return None

    @property
    def overflowed(self) -> bool:
        """Whether deletions may have been forgotten."""
        return any(lost for here in self.by_region.values() for _, _, lost in here.journals.values())
