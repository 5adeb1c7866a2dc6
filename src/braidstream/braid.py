"""A stream seen from one region: its strands, the registry that lists them, and how to ask them all.

`bs:meta:<tag>` is the registry, written only by the engine functions:

    s1 -> 0:0-0          strand s of writer 1, first life, never cut
    c1 -> 2:7-3          strand c of writer 1, third life, cut at 7-3 when the stream was deleted
    live -> 1            exists although nothing in it shows it

A stream exists while some strand ends past its cut. Strands are only ever added (or, `c`, reborn), so
a client may remember them: every plan that relies on its memory asks for the registry in the same
round trip, and starts over if it has missed one.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream import ids, keys
from braidstream.errors import NotARegionError, ReplyError
from braidstream.ids import Id
from braidstream.keys import CONFIG
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Strand

ID_MODES: Final = ("strict", "semi-strict", "liberal")
REMEMBERED: Final = 10_000

_LABEL = re.compile(rb"\A([sc])([0-9]+)\Z")
_WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@dataclass(frozen=True, slots=True)
class Region:
    """Who the server is: what `bs:config` says."""

    id: int
    name: str
    writer: int
    id_mode: str = "strict"
    writers: tuple[int, ...] = ()

    @staticmethod
    def parse(reply: list[Any]) -> "Region":
        config = dict(zip(reply[::2], reply[1::2], strict=True))
        if b"region" not in config:
            raise NotARegionError()
        writer = int(config[b"writer"])
        others = (int(number) for number in config.get(b"writers", b"").split())
        return Region(
            id=int(config[b"region"]),
            name=config[b"name"].decode("utf-8", "replace"),
            writer=writer,
            id_mode=config[b"id-mode"].decode("ascii", "replace"),
            writers=tuple(sorted({writer, *others})),
        )


def read_region() -> Plan[Region]:
    """Ask the server who it is. One round trip."""
    [reply] = yield Batch([("HGETALL", CONFIG)], resend=True)
    return Region.parse(reply)


@dataclass(frozen=True, slots=True)
class Registry:
    """What the registry of one stream says."""

    cuts: dict[Strand, Id] = field(default_factory=dict)
    live: bool = False

    @staticmethod
    def parse(name: bytes, reply: list[Any]) -> "Registry":
        cuts = dict[Strand, Id]()
        for label, value in zip(reply[::2], reply[1::2], strict=True):
            if found := _LABEL.match(label):
                life, _, cut = value.partition(b":")
                kind: keys.Kind = "s" if found[1] == b"s" else "c"
                cuts[Strand(name, kind, int(found[2]), int(life))] = ids.native(cut)
        ordered = sorted(cuts, key=lambda strand: (strand.writer, strand.kind))
        return Registry({strand: cuts[strand] for strand in ordered}, b"live" in reply[::2])

    @property
    def strands(self) -> tuple[Strand, ...]:
        return tuple(self.cuts)

    def end(self, strand: Strand, last: Id) -> Id:
        """The user ID a strand ends at; 0-0 if it was cut there."""
        return ids.ZERO if self.cuts.get(strand) == last else strand.user(last)


@dataclass(slots=True)
class View:
    """The streams as one client sees them: its region, and the strands it remembers.

    pipelined: plans are gathered into one round trip, so each should be done in its first batch.
    in_multi: the batch stands inside a MULTI: it cannot block, and what it relies on is WATCHed.
    watching: the connection WATCHes keys.
    """

    region: Region
    known: "OrderedDict[bytes, tuple[Strand, ...]]" = field(default_factory=OrderedDict)
    pipelined: bool = False
    in_multi: bool = False
    watching: bool = False

    def one_step(self, commands: int) -> bool:
        """Whether a batch needs a MULTI. Not under a WATCH: EXEC would end it, and it guards the whole."""
        return commands > 1 and not self.watching

    def minted(self, name: bytes) -> Strand:
        """The home strand of a stream."""
        return Strand(name, "s", self.region.writer)

    def chosen(self, name: bytes) -> Strand:
        """The home strand for chosen IDs, in the life we know."""
        for strand in self.known.get(name, ()):
            if strand.kind == "c" and strand.writer == self.region.writer:
                return strand
        return Strand(name, "c", self.region.writer)

    def learn(self, name: bytes, reply: list[Any]) -> Registry:
        registry = Registry.parse(name, reply)
        if registry.cuts:
            self.remember(name, registry.strands)
        else:
            self.known.pop(name, None)
        return registry

    def remember(self, name: bytes, strands: tuple[Strand, ...]) -> None:
        self.known[name] = strands
        self.known.move_to_end(name)
        if len(self.known) > REMEMBERED:
            self.known.popitem(last=False)

    def expect(self, strand: Strand) -> None:
        """A strand will be there by the time the next command runs."""
        others = (each for each in self.known.get(strand.name, ()) if each.label != strand.label)
        both = sorted((*others, strand), key=lambda each: (each.writer, each.kind))
        self.remember(strand.name, tuple(both))


def registry_of(name: bytes) -> Command:
    return ("HGETALL", keys.meta(name))


def find(view: View, name: bytes) -> Plan[tuple[Strand, ...]]:
    """The strands of a stream: from memory, or from the registry in one round trip. () if there are none."""
    known = view.known.get(name)
    if known is not None:
        return known
    [reply] = yield Batch([registry_of(name)], resend=True)
    return view.learn(name, reply).strands


def ask(
    view: View, name: bytes, make: Callable[[Strand], Command]
) -> Plan[tuple[Registry, list[tuple[Strand, Any]]]]:
    """One reading command to every strand, as one snapshot. One round trip where the strands are known.

    The registry is asked last: a strand born while we read shows as missing and we read again, so an
    entry never hides behind a later one.
    """
    strands = view.known.get(name) or (view.minted(name),)
    while True:
        commands = [*map(make, strands), registry_of(name)]
        replies = yield Batch(commands, atomic=view.one_step(len(strands)), resend=True, attempt=True)
        if isinstance(replies[-1], ReplyError):
            raise replies[-1]
        registry = view.learn(name, replies[-1])
        asked = dict(zip(strands, replies, strict=False))
        if all(strand in asked for strand in registry.cuts):
            if not registry.cuts:
                yield from refuse_other_types(name)
            return registry, [(strand, asked[strand]) for strand in registry.cuts if _answered(asked[strand])]
        strands = registry.strands


def _answered(reply: Any) -> bool:
    """A registered strand whose key is gone (evicted, say) has nothing to tell. Other errors are errors."""
    if isinstance(reply, ReplyError) and not reply.text.startswith("ERR no such key"):
        raise reply
    return not isinstance(reply, ReplyError)


def refuse_other_types(name: bytes) -> Plan[None]:
    """A stream that does not exist: is there another kind of key with its name?"""
    [kind] = yield Batch([("TYPE", name)], resend=True)
    if kind not in (b"none", "none"):
        raise ReplyError(_WRONGTYPE)


def delete_command(name: bytes, strands: Iterable[Strand]) -> Command:
    return _function("bs_braid_delete", name, strands)


def exists_command(name: bytes, strands: Iterable[Strand]) -> Command:
    return _function("bs_braid_exists", name, strands, call="FCALL_RO")


def _function(function: str, name: bytes, strands: Iterable[Strand], call: str = "FCALL") -> Command:
    listed = list(strands)
    return (
        call,
        function,
        1 + len(listed),
        keys.meta(name),
        *(strand.key for strand in listed),
        *(strand.registration for strand in listed),
    )


def birth_command(strand: Strand) -> Command:
    plain = (strand.name,) if keys.shares_slot(strand.name) else ()
    return (
        "FCALL",
        "bs_strand_birth",
        2 + len(plain),
        keys.meta(strand.name),
        strand.key,
        *plain,
        strand.label,
    )


STALE_TRIES: Final = 8


def fresh(
    view: View, name: bytes, call: Callable[[tuple[Strand, ...]], Command], *, resend: bool = False
) -> Plan[Any]:
    """Call a function that must know every strand; look again whenever it says our memory is stale."""
    for _ in range(STALE_TRIES):
        strands = yield from find(view, name)
        [reply] = yield Batch([call(strands)], resend=resend, attempt=True)
        if not isinstance(reply, ReplyError):
            return reply
        if reply.code != "BSSTALE":
            raise reply
        view.known.pop(name, None)
    raise ReplyError(f"ERR the strands of {name!r} changed {STALE_TRIES} times while we looked. Try again.")


def exists(view: View, name: bytes) -> Plan[bool]:
    """Whether the stream exists. One round trip where its strands are known."""
    strands = yield from find(view, name)
    if not strands:
        return False
    reply = yield from fresh(view, name, lambda strands: exists_command(name, strands), resend=True)
    return bool(reply)
