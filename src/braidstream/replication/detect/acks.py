"""Acknowledgements on quiet streams: XACK changes a stream, but the engine pushes nothing for it.

    strands with unread or pending entries ---> did any client acknowledge?    INFO commandstats, 4 a second
                                           `--> if so, on which strands?       XINFO GROUPS, compared
                                           `--> the links compare these streams

While nothing is unread or pending, nothing is asked. The links also compare a stream some time after its new
entries, but that may be later: if many streams are busy, these comparisons are spaced (carrier.py).
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from braidstream.errors import LostError, ReplyError
from braidstream.model.strand import Command, Strand
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint, is_away

EVERY_S: Final = 0.25
# A further pause for each strand that was read: so reading takes at most about a twentieth of the time.
PAUSE_S: Final = 0.001
# Further streams wait for a sweep, or for a check after their entries.
MOST_STREAMS: Final = 3_000
PAGE: Final = 200
# Commands that may move what a group has acknowledged, as INFO commandstats counts them.
_CALLS: Final = re.compile(
    rb"cmdstat_(?:xack|xackdel|xnack|xautoclaim|xreadgroup|xgroup\|setid|xgroup\|delconsumer):calls=\d+"
)


class AckWatch:
    """Calls `report` for each watched stream whose groups moved. It returns whether the links have time."""

    def __init__(self, source: Endpoint, report: Callable[[bytes], bool]) -> None:
        self._source, self._report = source, report
        # By stream and strand: XINFO GROUPS when it was last reported; None: not read yet.
        self._streams: dict[bytes, dict[Strand, list[Any] | None]] = {}
        self._added: dict[bytes, int] = {}  # the value of `added` when each was last added
        self._has_streams = asyncio.Event()
        self.added = 0
        self._calls: list[bytes] | None = None

    def add(self, strands: Iterable[Strand]) -> None:
        """Watch strands that may have unread or pending entries."""
        for strand in strands:
            if strand.name not in self._streams and len(self._streams) >= MOST_STREAMS:
                continue
            self.added += 1
            self._added[strand.name] = self.added
            known = self._streams.setdefault(strand.name, {})
            if strand not in known:
                known[strand], self._calls = None, None
        if self._streams:
            self._has_streams.set()

    def discard(self, name: bytes, added: int) -> None:
        """Every entry of the stream was acknowledged, when `added` had this value: entries that were added
        since may not be."""
        if self._added.get(name, 0) > added:
            return
        self._streams.pop(name, None)
        self._added.pop(name, None)
        if not self._streams:
            self._has_streams.clear()

    async def look(self) -> None:
        """Wait until there is something to watch, then look once."""
        await self._has_streams.wait()
        calls = await self._read_calls()
        if calls == self._calls:
            return
        self._calls = calls
        strands = [strand for some in self._streams.values() for strand in some]
        for at in range(0, len(strands), PAGE):
            await self._compare(strands[at : at + PAGE])
        await asyncio.sleep(PAUSE_S * len(strands))

    async def _read_calls(self) -> list[bytes]:
        """Of all servers of the region, except lost nodes of a cluster."""
        calls = list[bytes]()
        for node in self._source.nodes:
            try:
                calls += await node.run(_read_calls())
            except LostError as error:
                if not self._source.spares(error):
                    raise
        return calls

    async def _compare(self, strands: list[Strand]) -> None:
        replies = await self._source.run(_read_groups(strands))
        moved = set[bytes]()
        for strand, groups in zip(strands, replies, strict=True):
            known = self._streams.get(strand.name, {})
            if is_away(groups):
                self._calls = None  # look again
            elif isinstance(groups, ReplyError) or not groups:  # deleted, or without groups
                known.pop(strand, None)
            elif strand in known and known[strand] != groups:
                moved.add(strand.name)
        reported = {name for name in moved if self._report(name)}
        if reported != moved:
            self._calls = None  # look again
        for strand, groups in zip(strands, replies, strict=True):
            if strand.name in reported and strand in self._streams.get(strand.name, {}):
                self._streams[strand.name][strand] = groups
        for name in {strand.name for strand in strands}:
            if not self._streams.get(name):
                self.discard(name, self.added)


def _read_calls() -> Plan[list[bytes]]:
    """How often each command ran that may acknowledge."""
    [info] = yield Batch([("INFO", "commandstats")], resend=True)
    return _CALLS.findall(info)


def _read_groups(strands: list[Strand]) -> Plan[list[Any]]:
    commands: list[Command] = [("XINFO", "GROUPS", strand.key) for strand in strands]
    return (yield Batch(commands, resend=True, attempt=True))
