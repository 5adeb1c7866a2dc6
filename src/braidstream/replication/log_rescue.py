"""Rescues what this region wrote to a log after it had ceased to be the home: `braid log rescue`, by itself.

    strand      1 2 3 4 | 5 6       the home was forced away after 4; this region did not know, and went on
    append      at the home, with new offsets, each entry once: the home notes the old offsets in the registry
    delete      here, when a link has brought that note

The home's link sends only what its region can no longer lose (gate.py), so a failover of the home loses no
entry. Reads pass our own gate, for the same reason. The daemon stores nothing. Another daemon of the region,
or an operator, may do the same at the same time.
"""

from collections.abc import Callable, Iterable
from typing import Final

from braidstream.admin import log_moves
from braidstream.admin.log_moves import MovedLog, Tail
from braidstream.errors import BraidError, ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.fields import MetaField
from braidstream.model.offset_log import epochs_of
from braidstream.observability.events import emit
from braidstream.protocol.identify import read_region
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.changes import Changes
from braidstream.replication.endpoint import Endpoint, Pinned, PlanRunner
from braidstream.replication.gate import Gate
from braidstream.replication.peer import Peer

EVERY_S: Final = 1.0
# How many pages of a strand are appended before other logs have their turn.
_PAGES: Final = 30
# The first version of the engine functions that notes rescued offsets by ranges.
HAS_RANGES: Final = 21


class LogRescue:
    """`look` is called again and again. entries: how many were appended."""

    def __init__(
        self,
        source: Endpoint,
        gate: Gate,
        peers: Callable[[], Iterable[Peer]],
        is_mine: Callable[[bytes], bool],
    ) -> None:
        self._source, self._gate, self._peers, self._is_mine = source, gate, peers, is_mine
        self.changes = Changes(source, self._read)
        self.entries = 0
        self._waiting = dict[bytes, int]()  # the home of each log
        self._refused = set[bytes]()

    async def look(self) -> None:
        await self.changes.look()
        if not self._waiting:
            return
        here, own = await self._source.run(read_region()), Pinned(self._gate, self._source)
        if here.library < HAS_RANGES:
            return
        for name, writer in [*self._waiting.items()]:
            home = own if writer == here.writer else self._reach(name, writer)
            if home and self._is_mine(name) and await self._is_done(name, here.writer, own, home):
                del self._waiting[name]

    async def _read(self, names: list[bytes]) -> None:
        """Find the logs that this region wrote before their home moved."""
        own = (await self._source.run(read_region())).writer
        for name, homes in zip(names, await self._source.run(_homes(names)), strict=True):
            epochs = epochs_of(homes)
            self._waiting.pop(name, None)
            if any(epoch.writer == own for epoch in epochs[:-1]):
                self._waiting[name] = epochs[-1].writer

    async def _is_done(self, name: bytes, writer: int, own: PlanRunner, home: PlanRunner) -> bool:
        try:
            done = await self._rescue(name, writer, own, home)
        except ReplyError as error:  # tried again; the others go on
            if name not in self._refused and error.code != "BSSTALE":
                self._refused.add(name)
                emit("log.rescue_refused", stream=name, why=error)
            return False
        except BraidError:  # lost, or the log is being moved
            return False
        self._refused.discard(name)
        return done

    async def _rescue(self, name: bytes, writer: int, own: PlanRunner, home: PlanRunner) -> bool:
        """Append and delete some entries. Returns whether none is left."""
        log = await own.run(log_moves.read_moved(name))
        tails = [*log_moves.lost_tails(name, log.registry, writer)]
        tails = [tail for tail in tails if await own.run(log_moves.read_tail(*tail))]
        if not tails:
            return True
        there = await home.run(log_moves.read_moved(name))
        if there.registry.epochs == log.registry.epochs:  # else a link will bring the same to both
            for tail in tails:
                await self._rescue_tail(name, tail, (own, log), (home, there))
        return False

    async def _rescue_tail(
        self, name: bytes, tail: Tail, ours: tuple[PlanRunner, MovedLog], theirs: tuple[PlanRunner, MovedLog]
    ) -> None:
        (own, log), (home, there) = ours, theirs
        strand, after = tail
        appended, pages = 0, 0
        while pages < _PAGES and (page := await own.run(log_moves.read_tail(strand, after))):
            after = page[-1][0]
            noted = [entry for entry in page if log.is_rescued(strand, entry[0])]
            new = [entry for entry in page if not there.is_rescued(strand, entry[0])]
            if noted:
                await own.run(log_moves.delete_tail(strand, noted))
            else:
                pages += 1
            if new:
                appended += await home.run(log_moves.append_tail(name, tail, new))
        if appended:
            self.entries += appended
            emit("log.rescued", stream=name, home=log_moves.home_of(there.registry).writer, entries=appended)

    def _reach(self, name: bytes, writer: int) -> PlanRunner | None:
        """The region `writer`, if it can be reached and the log does not stay local."""
        for peer in self._peers():
            link = peer.link
            if peer.id != writer or link is None or not peer.takes(name):
                continue
            if link.there.library >= HAS_RANGES:
                return link.target
        return None


def _homes(names: list[bytes]) -> Plan[list[bytes]]:
    """The epochs of each log; empty for other streams."""
    commands: list[Command] = [("HGET", keys.meta(name), MetaField.HOMES) for name in names]
    replies = yield Batch(commands, resend=True, attempt=True)  # a key that is no hash stops no other
    return [reply if isinstance(reply, bytes) else b"" for reply in replies]
