"""Restores entries before any number of others, in a copy that takes the place of the strand (mend.lua).

strand   1 2 3 . . . 7 8 9 |      clients go on to use it
copy     1 2 3 4 5                each call appends some of its entries, and lost ones between them
"""

import secrets
from dataclasses import dataclass, field

from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.meta import Registry
from braidstream.model.strand import Strand
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication import ship
from braidstream.replication.loss import Loss


@dataclass(slots=True)
class Weaving:
    """The calls of bs_strand_weave for one strand, and what they have answered.

    seen: how far the journals were read. begins: the first entry of the strand at the first call.
    inserted: how many of the lost entries are in the copy. deleted: those that journals deleted since.
    """

    strand: Strand
    natives: list[bytes]
    acked: dict[bytes, bytes]
    loss: Loss
    own: bool
    copy: bytes
    restores: bytes
    seen: dict[int, bytes]
    begins: bytes = b""
    inserted: int = 0
    is_done: bool = False
    deleted: set[bytes] = field(default_factory=set)

    def call(self, batch: ship.Page) -> Plan[int]:
        """Returns how many entries of the batch are done. No batch: there are no more."""
        strand, name = self.strand, self.strand.name
        [reply] = yield Batch([registry_of(name)], resend=True)
        bell = Registry.parse(name, reply).bell
        where = (
            keys.meta(name),
            strand.key,
            *(keys.journal(name, writer) for writer in self.seen),
            self.copy,
            *((keys.bell(name, bell),) if bell else ()),
        )
        lost = (self.natives[0], self.natives[-1])
        about = (self.restores, self.begins, *lost, self.inserted, 1 if batch else 0)
        words = request(strand, bell, batch, self.acked, self.loss, own=self.own, seen=self.seen)
        [reply] = yield Batch([("FCALL", "bs_strand_weave", len(where), *where, *about, *words)])
        done, inserted, is_done, first, ends, within, gone = reply
        self.begins = self.begins or first
        self.seen = dict(zip(self.seen, ends, strict=True))
        self.deleted.update(within)
        self.inserted += inserted - len(set(gone) & set(self.natives))
        self.is_done = bool(is_done)
        return int(done)


def begin(
    strand: Strand, natives: list[bytes], acked: dict[bytes, bytes], loss: Loss, *, own: bool
) -> Plan[Weaving]:
    note = ("HGET", keys.meta(strand.name), MetaField.RESTORES + strand.label)
    [seconds, micros], restores = yield Batch([("TIME",), note], resend=True)
    # As of other temporary copies (commands/rename.py), without the right to CLIENT ID.
    copy = keys.copy(strand.name, b"%d.%b.%b" % (secrets.randbelow(2**32), seconds, micros))
    seen = {writer: ids.text(end) for writer, end in loss.seen.items()}
    return Weaving(strand, natives, acked, loss, own, copy, restores or b"", seen)


def request(
    strand: Strand,
    bell: bytes,
    batch: ship.Page,
    acked: dict[bytes, bytes],
    loss: Loss,
    *,
    own: bool,
    seen: dict[int, bytes],
) -> list[bytes | int]:
    """The arguments that bs_strand_mend and bs_strand_weave have in common."""
    common = loss.common.get(strand, ids.native(batch[-1][0] if batch else loss.entries[strand][-1]))
    words: list[bytes | int] = [strand.label, strand.life, bell, ids.text(common), 1 if own else 0]
    words += [loss.began.get(strand, b""), len(seen), *seen.values(), len(acked)]
    words += [word for pair in acked.items() for word in pair]
    for native, fields in batch:
        words += (native, len(fields), *fields)
    return words
