"""XNACK: pending entries that are given back.

An entry that was given back belongs to nobody and may be claimed at once, who was given back first before the
others. With one strand the engine does it, where it can. Else a stand-in gets the entries, at a moment fifty
years ago: that tells, for all strands, who was first.
"""

from dataclasses import dataclass
from typing import Any

from braidstream.commands.arguments import Argv, fail, integer, option, shown, strict_id
from braidstream.commands.groups.claims import GIVEN_BACK_MS
from braidstream.commands.groups.pending import FATAL, MOST_DELIVERIES, STAND_IN, no_group
from braidstream.model import ids
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.protocol.lookup import look
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View


@dataclass(frozen=True, slots=True)
class Nack:
    """XNACK, parsed."""

    mode: bytes
    ids: list[Id]
    retry: int | None
    force: bool

    def deliveries(self, count: int, most: int) -> int:
        """What becomes of a delivery count; `most` is the largest."""
        if self.retry is not None:
            return min(self.retry, most)
        return {b"SILENT": max(count - 1, 0), b"FAIL": count}.get(self.mode, most)

    def native(self, strand: Strand, group: bytes, natives: list[bytes]) -> Command:
        retry: Command = () if self.retry is None else ("RETRYCOUNT", self.retry)
        force: Command = ("FORCE",) if self.force else ()
        return ("XNACK", strand.key, group, self.mode, "IDS", len(natives), *natives, *retry, *force)


def is_native(view: View, argv: Argv) -> bool:
    """Whether the engine's own XNACK does, as far as we know."""
    return b"XNACK" in view.commands and len(view.recall(argv[1]).strands) <= 1


def give_back(view: View, argv: Argv) -> Plan[int]:
    """XNACK: returns entries to the group. The reply is their number.

    SILENT takes back the delivery from the count, FATAL makes it the largest there is. Two round trips; three
    with a stand-in.
    """
    name, group = argv[1], argv[2]
    registry = yield from look(view, name)
    if group not in registry.groups:
        no_group(name, group)
    nack = _parse(argv)
    if is_native(view, argv):
        [strand] = registry.strands
        natives = [ids.text(native) for entry in nack.ids if (native := strand.exact(entry)) is not None]
        return sum((yield Batch([nack.native(strand, group, natives)]))) if natives else 0
    asked = [
        (strand, ids.text(native))
        for entry in nack.ids
        for strand in registry.strands
        if (native := strand.exact(entry)) is not None
    ]
    looks = list[Command]()
    for strand, text in asked:
        looks += [("XPENDING", strand.key, group, text, text, 1), ("XRANGE", strand.key, text, text)]
    replies = (yield Batch(looks, resend=True)) if looks else []
    return (
        yield from _to_stand_in(view, group, nack, list(zip(asked, replies[::2], replies[1::2], strict=True)))
    )


def _to_stand_in(
    view: View, group: bytes, nack: Nack, found: list[tuple[tuple[Strand, bytes], list[Any], list[Any]]]
) -> Plan[int]:
    """`found`: the places of the IDs, what is pending there, and the entry.

    Of a pending entry that was deleted a claim would take it off the pending list, so it stays with its
    consumer, unless the engine has XNACK.
    """
    native = b"XNACK" in view.commands
    most = MOST_DELIVERIES if native else FATAL  # an engine with XNACK counts no further than that
    commands, counts, given = list[Command](), dict[tuple[Strand, bytes], int](), 0
    for at, (place, rows, there) in enumerate(found):
        if not rows and not (nack.force and there):
            continue
        given += 1
        strand, text = place
        if there:
            counts[place] = nack.deliveries(counts.get(place, rows[0][3] if rows else 0), most)
            since: Command = ("IDLE", GIVEN_BACK_MS - at, "RETRYCOUNT", counts[place])
            force = ("FORCE",) if nack.force else ()
            commands.append(("XCLAIM", strand.key, group, STAND_IN, 0, text, *since, *force, "JUSTID"))
        elif native:
            commands.append(nack.native(strand, group, [text]))
    if commands:
        yield Batch(commands, atomic=view.carriage.one_step(len(commands)))
    return given


def _parse(argv: Argv) -> Nack:
    mode = option(argv[3])
    if mode not in (b"SILENT", b"FAIL", b"FATAL"):
        fail("ERR mode must be SILENT, FAIL, or FATAL")
    words, retry, force, at = None, None, False, 4
    while at < len(argv):
        word, more = option(argv[at]), at + 1 < len(argv)
        if word == b"IDS" and more:
            number = integer(argv[at + 1], "ERR numids must be a positive integer")
            if not 1 <= number < 2**31:
                fail("ERR numids must be a positive integer")
            words, at = argv[at + 2 : at + 2 + number], at + 1 + number
            if len(words) != number:
                fail("ERR number of IDs doesn't match numids")
        elif word == b"FORCE":
            force = True
        elif word == b"RETRYCOUNT" and more:
            retry, at = integer(argv[at + 1]), at + 1
            if retry < 0:
                fail("ERR Invalid RETRYCOUNT value, must be >= 0")
        else:
            fail(f"ERR Unrecognized XNACK option '{shown(argv[at])}'")
        at += 1
    if words is None:
        fail("ERR syntax error, expected IDS keyword")
    return Nack(mode, [strict_id(word) for word in words], retry, force)
