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
from braidstream.model.fields import MetaField
from braidstream.model.idempotence import Settings
from braidstream.model.ids import Id
from braidstream.model.strand import Strand, strand_of_label

REMEMBERED: Final = 10_000

_DEFAULTS: Final = Settings()
_KINDS: Final = (keys.GENERATED.encode(), keys.CHOSEN.encode())
_GROUPS: Final = (MetaField.GROUP, MetaField.GROUP_MOVED)
_TOLD: Final = b" told"
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
            if label.startswith(_KINDS):
                if (found := _registered(name, label, value)) is not None:
                    strand, cut, is_there = found
                    cuts[strand] = cut
                    if is_there:
                        there.append(strand)
            elif label.startswith(_GROUPS):
                rest = label[len(_GROUPS[0]) :]
                if label.startswith(_GROUPS[1]) or rest not in groups:
                    groups[rest] = ids.native(value.split(b" ", 1)[0])
                if value.endswith(_TOLD):
                    told.add(rest)
            elif label.startswith(MetaField.AHEAD_MS):
                ahead_ms[label[len(MetaField.AHEAD_MS) :]] = int(value)
            elif label == MetaField.BELL:
                bell = value
            elif label == MetaField.IDEMPOTENCE:
                idempotence = Settings.parse(value)
            elif label == MetaField.NATIVE:
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
    named.update({MetaField.GROUP + group: keys.turn(name, group) for group in registry.groups})
    return (*named.values(), *bell(name, registry.bell)), (len(named), *named, registry.bell)


def group_start(start: Id, *, told: bool = False) -> bytes:
    """Where a group starts on strands that are created later, in the form that needs no arithmetic in Lua."""
    bound = ids.writer_of(start)
    low, high = ids.floor_of(start, bound), ids.floor_of(start, bound + 1)
    words = b"%b %b %b %d" % (ids.text(start), ids.text(low), ids.text(high), bound)
    return words + _TOLD if told else words


def acked(value: bytes) -> dict[bytes, bytes]:
    """Up to where a group has acknowledged each strand, by its registration."""
    words = value.split()
    return dict(zip(words[::2], words[1::2], strict=False))


@lru_cache(maxsize=REMEMBERED)
def _registered(name: bytes, label: bytes, value: bytes) -> tuple[Strand, Id, bool] | None:
    """A strand's line in the registry: which, its cut, whether it is there. They change rarely."""
    state_of = _STATE.match(value)
    if state_of is None or not _LABEL.match(label):
        return None
    life, state, cut = state_of.groups()
    return strand_of_label(name, label, int(life)), ids.native(cut), state == b"+"


def _ordered(strands: Iterable[Strand]) -> tuple[Strand, ...]:
    return tuple(sorted(strands, key=lambda strand: (strand.writer, strand.kind)))
