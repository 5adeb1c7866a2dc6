"""The registry of a stream: which strands it has, in which life, where its groups start.

`bs:meta:<tag>` is the registry, written only by the engine functions:

    s1 -> 0:+:0-0        strand s of writer 1, first life, there
    s2 -> 0:-:7-3        strand s of writer 2, deleted when it ended at 7-3
    c1 -> 2:+:0-0        strand c of writer 1, third life, there
    g:jobs, h:jobs       a group, and where it starts on strands that come later (h: since XGROUP SETID)
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.idempotence import Settings
from braidstream.model.ids import Id
from braidstream.model.strand import Strand

REMEMBERED: Final = 10_000

_DEFAULTS: Final = Settings()
_LABEL = re.compile(rb"\A([sc])([0-9]+)\Z")
_STATE = re.compile(rb"\A([0-9]+):([+-]):([0-9]+-[0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class Registry:
    """What the registry of one stream says: every strand's cut, which are there, where each group starts.

    told: groups whose count of entries read was told by a user (ENTRIESREAD), so it proves nothing.
    bell: a stamp that changes whenever a group is placed, or joined by a strand.
    idempotence: its settings; None where it was never used.
    native: the engine itself knows the messages, in this era, as long as the region has no peers.
    ahead_ms: by label, how far the last entry of a strand was ahead of our clock when it came, if too far.
    """

    cuts: dict[Strand, Id] = field(default_factory=dict)
    strands: tuple[Strand, ...] = ()
    groups: dict[bytes, Id] = field(default_factory=dict)
    told: frozenset[bytes] = frozenset()
    bell: bytes = b""
    idempotence: Settings | None = None
    native: bool = False
    ahead_ms: dict[bytes, int] = field(default_factory=dict)

    @staticmethod
    def parse(name: bytes, reply: list[Any]) -> "Registry":
        cuts, there, groups = dict[Strand, Id](), list[Strand](), dict[bytes, Id]()
        told, bell, idempotence, native = set[bytes](), b"", None, b""
        ahead_ms = dict[bytes, int]()
        for label, value in zip(reply[::2], reply[1::2], strict=True):
            if label.startswith((b"s", b"c")):
                if (found := _registered(name, label, value)) is not None:
                    strand, cut, is_there = found
                    cuts[strand] = cut
                    if is_there:
                        there.append(strand)
            elif label.startswith((b"g:", b"h:")):
                if label.startswith(b"h:") or label[2:] not in groups:
                    groups[label[2:]] = ids.native(value.split(b" ", 1)[0])
                if value.endswith(b" told"):
                    told.add(label[2:])
            elif label.startswith(b"o:"):
                ahead_ms[label[2:]] = int(value)
            elif label == b"bell":
                bell = value
            elif label == b"idmp":
                idempotence = Settings.parse(value)
            elif label == b"native":
                native = value
        ordered = dict(sorted(groups.items()))
        natively = idempotence is not None and native == b"%d" % idempotence.era
        return Registry(
            cuts, _ordered(there), ordered, frozenset(told), bell, idempotence, natively, ahead_ms
        )

    @property
    def exists(self) -> bool:
        return bool(self.strands)

    @property
    def settings(self) -> Settings:
        return self.idempotence or _DEFAULTS

    def end(self, strand: Strand, last: Id) -> Id:
        """The user ID a strand ends at; 0-0 if nothing came since its cut."""
        return ids.ZERO if self.cuts.get(strand) == last else strand.user(last)

    def with_strand(self, strand: Strand) -> "Registry":
        """The same, with a strand (in this life) there."""
        cuts = {each: cut for each, cut in self.cuts.items() if each.label != strand.label}
        others = [each for each in self.strands if each.label != strand.label]
        cuts[strand] = self.cuts.get(strand, ids.ZERO)
        return replace(self, cuts=cuts, strands=_ordered([*others, strand]))


def bell(name: bytes, stamp: bytes) -> tuple[bytes, ...]:
    """The bell with this stamp, as the last key of a function. Without a stamp we know of none."""
    return (keys.bell(name, stamp),) if stamp else ()


def given(
    name: bytes, registry: Registry, strands: Iterable[Strand] = ()
) -> tuple[tuple[bytes, ...], Command]:
    """Strands, the turns of all groups and the bell: the keys, and what they are, as functions read them."""
    named = {strand.registration: strand.key for strand in strands}
    named.update({b"g:" + group: keys.turn(name, group) for group in registry.groups})
    return (*named.values(), *bell(name, registry.bell)), (len(named), *named, registry.bell)


@lru_cache(maxsize=REMEMBERED)
def _registered(name: bytes, label: bytes, value: bytes) -> tuple[Strand, Id, bool] | None:
    """A strand's line in the registry: which, its cut, whether it is there. They change rarely."""
    found, state_of = _LABEL.match(label), _STATE.match(value)
    if found is None or state_of is None:
        return None
    life, state, cut = state_of.groups()
    strand = Strand(name, "s" if found[1] == b"s" else "c", int(found[2]), int(life))
    return strand, ids.native(cut), state == b"+"


def _ordered(strands: Iterable[Strand]) -> tuple[Strand, ...]:
    return tuple(sorted(strands, key=lambda strand: (strand.writer, strand.kind)))
