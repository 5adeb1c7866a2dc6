"""XNACK: consumers return pending entries to the group.

A returned entry has no owner and can be claimed at once, in the order of return. With one strand the engine's
own XNACK is used, if it has one. Else the entries are claimed for a stand-in consumer, with an idle time of
about fifty years that keeps the order over all strands.
"""

from dataclasses import dataclass
from typing import Any

from braidstream.commands.arguments import Argv, fail, integer, option, shown, strict_ids
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
        """The new delivery count; `most` is the largest."""
        if self.retry is not None:
            return min(self.retry, most)
        return {b"SILENT": max(count - 1, 0), b"FAIL": count}.get(self.mode, most)

    def native(self, strand: Strand, group: bytes, natives: list[bytes]) -> Command:
        retry: Command = () if self.retry is None else ("RETRYCOUNT", self.retry)
        force: Command = ("FORCE",) if self.force else ()
        return ("XNACK", strand.key, group, self.mode, "IDS", len(natives), *natives, *retry, *force)


def is_native(view: View, argv: Argv) -> bool:
    """Whether the engine's own XNACK can be used, judged by the cache."""
    return b"XNACK" in view.commands and len(view.recall(argv[1]).strands) <= 1


def give_back(view: View, argv: Argv) -> Plan[int]:
    """XNACK: returns entries to the group. The reply is their number.

    SILENT decrements the delivery count, FATAL sets it to the maximum. Two or three round trips.
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
    places = [
        (strand, ids.text(native))
        for entry in nack.ids
        for strand in registry.strands
        if (native := strand.exact(entry)) is not None
    ]
    looks = list[Command]()
    for strand, text in places:
        looks += [("XPENDING", strand.key, group, text, text, 1), ("XRANGE", strand.key, text, text)]
    replies = (yield Batch(looks, resend=True)) if looks else []
    return (
        yield from _to_stand_in(
            view, group, nack, list(zip(places, replies[::2], replies[1::2], strict=True))
        )
    )


def _to_stand_in(
    view: View, group: bytes, nack: Nack, found: list[tuple[tuple[Strand, bytes], list[Any], list[Any]]]
) -> Plan[int]:
    """Claim entries for the stand-in consumer. `found`: place, pending row and entry of each ID.

    A claim of a deleted entry would remove it from the pending list, so it stays with its consumer, unless
    the engine has XNACK.
    """
    native = b"XNACK" in view.commands
    most = MOST_DELIVERIES if native else FATAL  # an engine with XNACK does not count beyond that
    commands, counts, returned = list[Command](), dict[tuple[Strand, bytes], int](), 0
    for at, (place, rows, there) in enumerate(found):
        if not rows and not (nack.force and there):
            continue
        returned += 1
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
    return returned


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
    return Nack(mode, strict_ids(words), retry, force)
