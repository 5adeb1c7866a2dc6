"""Move the home of a log to another region: the plans behind `braid log move` and `braid log rescue`.

move      seal at the old home, bring the registry to the new one, which continues at the next offset
force     the old home is lost: the new one continues after the last offset that has arrived there
rescue    the old home is back: what it wrote meanwhile is appended at the new home, with new offsets
"""

from collections.abc import Iterator
from typing import Any, Final

from braidstream.commands.drop import AT_ONCE, drop_command
from braidstream.commands.logs.log_lookup import segments
from braidstream.errors import BraidError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.keys import LOG
from braidstream.model.meta import Registry, bell
from braidstream.model.offset_log import Epoch, ends_of, offset_id, offset_of
from braidstream.model.strand import Strand
from braidstream.protocol.append import ensure_command
from braidstream.protocol.identify import read_region
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Plan, send_one
from braidstream.protocol.stream_view import View

# How many entries one call rescues.
PAGE: Final = 300

Entries = list[tuple[int, bytes, bytes]]
# A strand whose epoch is over, and the last offset of it that counts.
Tail = tuple[Strand, int]


def read_log(name: bytes) -> Plan[Registry]:
    """The registry of a log. An error if it is none."""
    reply = yield from send_one(registry_of(name), resend=True)
    registry = Registry.parse(name, reply)
    if registry.home is None or not (registry.is_log or not registry.exists):
        raise BraidError(f"{name.decode(errors='replace')!r} is not a log.")
    return registry


def home_of(registry: Registry) -> Epoch:
    assert registry.home is not None
    return registry.home


def strand_of_epoch(name: bytes, epoch: Epoch) -> Strand:
    return Strand(name, LOG, epoch.writer, epoch.number)


def end_epoch(name: bytes, epoch: Epoch, to: int, *, force: bool) -> Plan[int]:
    """End an epoch and begin the next one at region `to`. Returns its first offset. You can repeat it.

    force: at the new home, without the old one.
    """
    where: Command = (keys.meta(name), strand_of_epoch(name, epoch).key)
    words: Command = (epoch.number, epoch.writer, to)
    if not force:
        return int((yield from send_one(("FCALL", "bs_log_seal", 2, *where, *words))))
    registry = yield from read_log(name)
    where += (Strand(name, LOG, to, epoch.number + 1).key,)
    words += (registry.bell,)
    for part in segments(name, registry):
        if part.strand.life < epoch.number:
            where += (part.strand.key,)
            words += (part.strand.label, part.first, part.last)
    where += bell(name, registry.bell)
    return int((yield from send_one(("FCALL", "bs_log_force", len(where), *where, *words))))


def lost_tails(name: bytes, registry: Registry, writer: int) -> Iterator[Tail]:
    """Own strands of a region whose epochs are over, and the last offset of each that counts."""
    for epoch, end in zip(registry.epochs[:-1], ends_of(registry.epochs), strict=False):
        if epoch.writer == writer:
            yield strand_of_epoch(name, epoch), end


def read_tail(strand: Strand, after: int) -> Plan[Entries]:
    """A page of what a strand has beyond its epoch."""
    return (yield from read_page(strand.key, b"(" + offset_id(after)))


def read_page(key: bytes, start: bytes) -> Plan[Entries]:
    page: list[Any] = yield from send_one(("XRANGE", key, start, "+", "COUNT", PAGE), resend=True)
    return [(offset_of(native), fields[1], fields[3]) for native, fields in page]


def append_tail(name: bytes, tail: Tail, entries: Entries) -> Plan[int]:
    """Append them at the home, each once. Returns how many were new."""
    old, end = tail
    return (yield from append_once(name, old.label + b":%d" % end, entries))


def append_once(name: bytes, mark: bytes, entries: Entries) -> Plan[int]:
    """The same for entries of any origin. mark: `<origin>:<after>`, to note which were appended."""
    registry = yield from read_log(name)
    home = strand_of_epoch(name, home_of(registry))
    yield from send_one(ensure_command(home, registry.bell))
    words = [word for entry in entries for word in entry]
    where, (origin, after) = (keys.meta(name), home.key), mark.split(b":")
    call: Command = ("FCALL", "bs_log_rescue", 2, *where, home.label, origin, after, *words)
    return int((yield from send_one(call)))


def delete_tail(strand: Strand, entries: Entries) -> Plan[None]:
    """Delete what was rescued, in this region, and by its journal in the others."""
    view = View((yield from read_region()))
    for first in range(0, len(entries), AT_ONCE):
        natives = [offset_id(offset) for offset, _, _ in entries[first : first + AT_ONCE]]
        yield from send_one(drop_command(view, strand, natives, (b"KEEPREF", b"")))
