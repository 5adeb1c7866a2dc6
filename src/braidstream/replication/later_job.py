"""Promotes entries for later when they are due (operations/later_promotion.py).

    every `{x}.later` --- read at start, every five minutes, when it grows --->  a heap of what is due soon
    the engine's clock passes the first of the heap  --->  promote, some streams at once

Nothing is stored: a new daemon reads the streams again. A region promotes what it wrote. What a region wrote
that is silent, another one promotes (takeover.py), and for a region that was removed the smallest one that is
left. If two promote the same entry, one of the two stays.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.later import target_for, target_of
from braidstream.model.region import Region
from braidstream.model.strand import Strand
from braidstream.observability.events import Repeated
from braidstream.observability.metrics import Family
from braidstream.operations.later_promotion import (
    AGAIN_MS,
    Item,
    Soon,
    Waiting,
    find_strands,
    promote,
    read_waiting,
)
from braidstream.plan.lookup import read_ms
from braidstream.plan.view import View
from braidstream.replication.daemon.peer import Peer, apart
from braidstream.replication.detect.sweep import Changes, Values
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.region_facts import region_of
from braidstream.replication.takeover import Takeover

EVERY_S: Final = 0.2
# How often all waiting entries are read. New ones are noticed at once; this finds what came back.
_ALL_EVERY_S: Final = 300.0
# At most which part (1/n) of a core that takes: a million entries are read less often.
_PART: Final = 100
# How often to see whether a region was removed.
_GONE_EVERY_S: Final = 10.0
# Entries of a stream that are promoted in one round trip, and streams at once.
_AT_ONCE, _STREAMS_AT_ONCE = 100, 32
_NAMES_AT_ONCE: Final = 500
# The most streams whose trouble is remembered.
_TROUBLES: Final = 1_000


class Later:
    """`look` and `act` are called again and again, `changed` for pushes. promoted: since the start."""

    def __init__(
        self,
        source: Endpoint,
        changes: Changes,
        peers: Callable[[], Iterable[Peer]],
        is_mine: Callable[[bytes], bool],
        takeover: Takeover,
    ) -> None:
        self._source, self._peers, self._is_mine, self._takeover = source, peers, is_mine, takeover
        self._look_at_changes = changes.serve((), self._note)
        self.promoted = self.refused = 0
        self.overdue_ms = 0
        self._names, self._grown = set[bytes](), set[bytes]()
        self._soon = Soon()
        self._read_all_s, self._read_pause_s = float("-inf"), _ALL_EVERY_S
        # The regions that are silent, and those that were removed; and when that was looked at.
        self._gone, self._gone_s = (frozenset[int](), tuple[int, ...]()), float("-inf")
        self._troubles = dict[bytes, Repeated]()

    def changed(self, name: bytes) -> None:
        """A stream has new entries."""
        if target_of(name) is not None:
            self._grown.add(name)

    def missed(self) -> None:
        """There may be entries that were not read."""
        self._read_all_s = float("-inf")

    @property
    def families(self) -> list[Family]:
        """For /metrics."""
        promoted = "Waiting entries that this daemon has appended to their streams when they were due."
        refused = "Waiting entries that could not be read or promoted, each time that was tried."
        overdue = "For how many seconds the oldest entry has been due that is not promoted yet."
        return [
            Family.counter("braid_later_promoted_total", promoted, {(): self.promoted}),
            Family.counter("braid_later_refused_total", refused, {(): self.refused}),
            Family.gauge("braid_later_overdue_seconds", overdue, {(): self.overdue_ms / 1000}),
        ]

    # Reading

    async def _note(self, found: dict[bytes, Values]) -> None:
        """Streams that exist, or are new."""
        names = {name for name in found if target_of(name) is not None}
        self._names |= names
        self._grown |= names

    async def look(self) -> None:
        """Read what is new."""
        await self._look_at_changes()
        now_s = asyncio.get_running_loop().time()
        if not self._names:
            return
        if now_s - self._gone_s >= _GONE_EVERY_S or self._takeover.dead != self._gone[0]:
            self._gone_s, before = now_s, self._gone
            self._gone = self._takeover.dead, (await region_of(self._source)).left
            if self._gone != before:  # we may have to promote for other regions now
                self.missed()
        reads_all = now_s - self._read_all_s >= self._read_pause_s or self._soon.must_read
        if not (reads_all or self._grown):
            return
        here = await region_of(self._source)
        soon, names, began_cpu_s = self._soon, self._grown, time.process_time()
        if reads_all:
            self._read_all_s = now_s  # before the read: `missed` may be called during it
            soon, names = Soon(), {*self._names}
        self._grown = set()
        try:
            await self._read(here, soon, [name for name in names if self._is_mine(name)])
        except BaseException:
            self.missed()
            raise
        if reads_all:
            self._read_pause_s = max(_ALL_EVERY_S, _PART * (time.process_time() - began_cpu_s))
        self._soon = soon  # until now `act` went on with what was read before

    async def _read(self, here: Region, soon: Soon, names: list[bytes]) -> None:
        for first in range(0, len(names), _NAMES_AT_ONCE):
            some = names[first : first + _NAMES_AT_ONCE]
            found = await self._source.run(find_strands(some))
            self._grown |= {*some} - found.keys()  # a node of a cluster is lost
            for name, strands in found.items():
                if not strands:
                    self._names.discard(name)
                try:
                    await self._read_stream(soon, strands, self._writers(here, name))
                except BraidError as error:
                    if not self._source.spares(error):
                        raise
                    self._grown.add(name)

    async def _read_stream(self, soon: Soon, strands: Iterable[Strand], writers: set[int]) -> None:
        def take(waiting: Waiting) -> None:
            soon.add(waiting)
            if waiting.why:
                self._refuse(waiting.strand, waiting.id, waiting.why)

        for strand in strands:
            if strand.writer in writers:
                after = soon.read.get(strand, ids.ZERO)
                soon.read[strand] = await self._source.run(read_waiting(strand, after, take))

    def _writers(self, here: Region, name: bytes) -> set[int]:
        """The regions whose waiting entries of a stream this one promotes."""
        away = apart(self._peers(), name)
        dead = self._takeover.dead_for(here, name)
        left = {*here.left} - away if self._takeover.is_first(here, name) else set[int]()
        return {here.writer, *dead, *left}

    # Promoting

    async def act(self) -> None:
        """Promote what is due."""
        self.overdue_ms = 0
        if not self._soon.heap:
            return
        now_ms = await self._source.run(read_ms())
        try:
            while due := (soon := self._soon).take(now_ms, _AT_ONCE * _STREAMS_AT_ONCE):
                self.overdue_ms = now_ms - due[0][0]
                here = await region_of(self._source)
                if here.fenced:
                    soon.give_back(due, now_ms + AGAIN_MS)
                    return
                await self._promote_all(here, soon, due, now_ms)
                now_ms = await self._source.run(read_ms())
        except BaseException:
            self.missed()  # what was taken from the heap and not promoted is read again
            raise

    async def _promote_all(self, here: Region, soon: Soon, due: list[Item], now_ms: int) -> None:
        by_name, by_target = defaultdict[bytes, list[Item]](list), defaultdict[bytes, list[Item]](list)
        for item in due:
            by_name[soon.strands[item[2]].name].append(item)
        for name, items in by_name.items():
            writers = self._writers(here, name) if self._is_mine(name) else set[int]()
            for item in items:
                strand = soon.strands[item[2]]
                if strand.writer not in writers:
                    continue  # of a region that is back: read again when it is ours again
                try:
                    by_target[target_for(name, item[3])].append(item)
                except ValueError as error:
                    self._refuse(strand, item[1], str(error))
        room = asyncio.Semaphore(_STREAMS_AT_ONCE)

        async def work(target: bytes, items: list[Item]) -> None:
            async with room:
                for first in range(0, len(items), _AT_ONCE):
                    await self._promote(here, soon, target, items[first : first + _AT_ONCE], now_ms)

        done = await asyncio.gather(*map(work, by_target, by_target.values()), return_exceptions=True)
        for failed in done:
            if isinstance(failed, BaseException):
                raise failed

    async def _promote(self, here: Region, soon: Soon, target: bytes, items: list[Item], now_ms: int) -> None:
        due = [(soon.strands[key], entry) for _, entry, key, _ in items]
        results: Sequence[bytes | ReplyError | None]
        try:
            results = await self._source.run(promote(View(here), target, due))
        except ReplyError as error:  # this stream has to wait, and the others go on
            results = [error] * len(items)
        except BraidError as error:
            if not self._source.spares(error):
                raise
            soon.give_back(items, now_ms + AGAIN_MS)
            return
        self.promoted += sum(isinstance(result, bytes) for result in results)
        for item, result in zip(items, results, strict=True):
            if isinstance(result, ReplyError):
                soon.give_back([item], now_ms + AGAIN_MS)
                if not result.is_away:
                    self._refuse(soon.strands[item[2]], item[1], result.text)

    def _refuse(self, strand: Strand, entry: Id, why: str) -> None:
        """It waits, and the others go on."""
        self.refused += 1
        if len(self._troubles) >= _TROUBLES:
            self._troubles.clear()
        trouble, now_s = self._troubles.setdefault(strand.name, Repeated()), asyncio.get_running_loop().time()
        shown = ids.text(strand.user(entry)).decode()
        trouble.log("later.refused", now_s, stream=strand.name, id=shown, why=why)
