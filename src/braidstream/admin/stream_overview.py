"""Streams and groups as an operator wants to see them, and a stream as it grows."""

from dataclasses import dataclass
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.strand import Entry, Strand, facts
from braidstream.protocol.lookup import current
from braidstream.protocol.plan import Batch, Plan

PAGE: Final = 1_000
# MEMORY USAGE looks at so many parts of each strand.
SAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class StreamRow:
    """length: entries of all strands; size: bytes in this region, None if unknown; last: the highest ID.

    The IDs of a log are offsets: they contain no time.
    """

    name: bytes
    length: int
    size: int | None
    groups: int
    strands: int
    last: Id
    is_log: bool = False

    @property
    def last_ms(self) -> int | None:
        return None if self.is_log else self.last[0]

    @property
    def last_offset(self) -> int | None:
        return self.last[1] if self.is_log else None


def list_streams(cursor: bytes | int = 0) -> Plan[tuple[int, list[bytes]]]:
    """A page of the names of all streams, deleted ones too; 0 as the next cursor is the end."""
    [(following, found)] = yield Batch(
        [("SCAN", cursor, "MATCH", keys.META + b"*", "COUNT", PAGE)], resend=True
    )
    return int(following), [name for key in found if (name := keys.name_of_meta(key)) is not None]


def read_stream(name: bytes) -> Plan[StreamRow | None]:
    """None if it was deleted. Two round trips."""
    registry = yield from current(name)
    strands = [*registry.strands]
    if not registry.exists:
        return None
    commands: list[Command] = [strand.xinfo() for strand in strands]
    commands += [("MEMORY", "USAGE", strand.key, "SAMPLES", SAMPLES) for strand in strands]
    replies = yield Batch(commands, resend=True, attempt=True)
    infos = {
        strand: facts(reply)
        for strand, reply in zip(strands, replies, strict=False)
        if not isinstance(reply, ReplyError)
    }
    sizes = [size for size in replies[len(strands) :] if isinstance(size, int)]
    ends = [strand.user(ids.native(info[b"last-generated-id"])) for strand, info in infos.items()]
    return StreamRow(
        name=name,
        length=sum(info[b"length"] for info in infos.values()),
        size=sum(sizes) if sizes else None,
        groups=len(registry.groups),
        strands=len(infos),
        last=max(ends, default=ids.ZERO),
        is_log=registry.is_log,
    )


def follow(name: bytes, ends: dict[Strand, Id], block_ms: int) -> Plan[list[Entry] | None]:
    """New entries of all strands since `ends`, which is updated; waits up to `block_ms` for some.
    None, immediately, if there is no stream.

    Each strand has its own position, so entries that arrive late from another region are shown too.
    """
    strands = (yield from current(name)).strands
    if not strands:
        return None
    positions = [ids.text(ends.get(strand, ids.ZERO)) for strand in strands]
    read: Command = (
        "XREAD",
        "COUNT",
        PAGE,
        "BLOCK",
        block_ms,
        "STREAMS",
        *(each.key for each in strands),
        *positions,
    )
    [reply] = yield Batch([read], resend=True, block_ms=block_ms)
    by_key = {strand.key: strand for strand in strands}
    found = list[Entry]()
    for key, page in reply or ():
        strand = by_key[key]
        ends[strand] = ids.native(page[-1][0])
        found += strand.entries(page)
    return sorted(found, key=lambda entry: entry[:3])


def ends_before(name: bytes, count: int) -> Plan[dict[Strand, Id]]:
    """Where to start so that `follow` shows the last `count` entries of each strand. Two round trips."""
    strands = (yield from current(name)).strands
    commands: list[Command] = [("XREVRANGE", strand.key, "+", "-", "COUNT", count + 1) for strand in strands]
    pages: list[Any] = yield Batch(commands, resend=True)
    ends = dict[Strand, Id]()
    for strand, page in zip(strands, pages, strict=True):
        ends[strand] = ids.native(page[-1][0]) if len(page) > count else ids.ZERO
    return ends
