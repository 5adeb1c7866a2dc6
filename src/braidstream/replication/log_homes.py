"""Moves the home of a log between two regions, and rescues what a former home wrote late.

    move      1  the new home gets what it lacks, while writers go on
              2  the old home is sealed; no region can write until step 3
              3  the new home learns of its epoch, and gets the rest; writers go on there. It accepts messages
                 (TWRITE IDMP) when it has the journals of all former homes (lua/log_move.lua)
    rescue    1  the former home learns that its epoch is over, and is sealed
              2  page by page: append at the home, once; delete at the former home

Everything here can be killed between any two steps and run again.
"""

from collections.abc import Callable, Iterable
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model.fields import MetaField
from braidstream.model.registry import Epoch, Registry, epochs_of
from braidstream.observability.events import emit
from braidstream.operations import log_upkeep
from braidstream.operations.log_upkeep import MovedLog, Tail
from braidstream.plan.lookup import read_any_region
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.detect.sweep import Changes, Values
from braidstream.replication.endpoint import Endpoint, Pinned, PlanRunner
from braidstream.replication.gate import Gate
from braidstream.replication.link.link import Link
from braidstream.replication.region_facts import region_of


async def link_of(source: PlanRunner, target: PlanRunner) -> Link:
    """A link that is not a daemon's."""
    here, there = await source.run(read_any_region()), await target.run(read_any_region())
    return Link(source, target, here=here, there=there)


async def move_home(name: bytes, source: PlanRunner, target: PlanRunner, *, epoch: Epoch, to: int) -> int:
    """Move the home from `source` to `target`, whose number is `to`. Returns the first offset there."""
    registry: Registry = await source.run(log_upkeep.read_log(name))
    link = await link_of(source, target)
    relay = bool({each.writer for each in registry.epochs} - {epoch.writer, to})  # what other homes wrote
    for _ in range(2):  # the second time brings little, so that writers do not wait for it
        await link.sync(name, relay=relay)
    first = await source.run(log_upkeep.end_epoch(name, epoch, to, force=False))
    await link.sync(name, relay=relay)
    return first


async def rescue(name: bytes, old: PlanRunner, home: PlanRunner, *, writer: int) -> int:
    """Append at the home what region `writer` wrote after its epochs had ended. Returns how many entries."""
    await (await link_of(home, old)).sync(name)  # it seals its strand when it learns of the next epoch
    return await rescue_tails(name, old, home, writer=writer)


async def rescue_tails(name: bytes, old: PlanRunner, home: PlanRunner, *, writer: int) -> int:
    """The same if region `writer` knows that its epochs have ended. It may be the home again."""
    registry: Registry = await home.run(log_upkeep.read_log(name))
    done = 0
    for strand, end in log_upkeep.lost_tails(name, registry, writer):
        while entries := await old.run(log_upkeep.read_tail(strand, end)):
            done += await home.run(log_upkeep.append_tail(name, (strand, end), entries))
            await old.run(log_upkeep.delete_tail(strand, entries))
    return done


# ----------------------------------------------------------------------------------------------------
#
# Rescues what this region wrote to a log after it had ceased to be the home: `braid log rescue`, by itself.
#
#     strand      1 2 3 4 | 5 6       the home was forced away after 4; this region did not know, and went
#     on
#     append      at the home, with new offsets, each entry once: the home notes the old offsets in the
#     registry
#     delete      here, when a link has brought that note
#
# The home's link sends only what its region can no longer lose (gate.py), so a failover of the home loses
# no entry. Reads pass our own gate, for the same reason. The daemon stores nothing. Another daemon of the
# region, or an operator, may do the same at the same time.

EVERY_S: Final = 1.0
# How many pages of a strand are appended before other logs have their turn.
_PAGES: Final = 30


class LogRescue:
    """`look` is called again and again. entries: how many were appended."""

    def __init__(
        self,
        source: Endpoint,
        changes: Changes,
        gate: Gate,
        peers: Callable[[], Iterable[Peer]],
        is_mine: Callable[[bytes], bool],
    ) -> None:
        self._source, self._gate, self._peers, self._is_mine = source, gate, peers, is_mine
        self._look_at_changes = changes.serve((MetaField.HOMES,), self._read)
        self.entries = 0
        self._moved = dict[bytes, tuple[Epoch, ...]]()  # logs whose home has moved, until they are done
        self._refused = set[bytes]()

    async def look(self) -> None:
        await self._look_at_changes()
        if not self._moved:
            return
        here = await region_of(self._source)
        for name, epochs in [*self._moved.items()]:
            is_done = await self._is_done(name, epochs, here.writer)
            if is_done and self._moved.get(name) is epochs:  # else it was read again
                del self._moved[name]

    async def _read(self, found: dict[bytes, Values]) -> None:
        for name, (homes,) in found.items():
            self._moved.pop(name, None)
            if homes is not None and len(epochs := epochs_of(homes)) > 1:
                self._moved[name] = epochs

    async def _is_done(self, name: bytes, epochs: tuple[Epoch, ...], writer: int) -> bool:
        if all(epoch.writer != writer for epoch in epochs[:-1]):
            return True  # this region did not write it before its home moved
        if not self._is_mine(name):
            return False
        try:
            node = self._source.node_of(name)
            own = Pinned(self._gate.of(node), node)
            home = own if epochs[-1].writer == writer else self._reach(name, epochs[-1].writer)
            if home is None:
                return False
            done = await self._rescue(name, writer, own, home)
        except ReplyError as error:  # tried again; the others go on
            if name not in self._refused and error.code != "BSSTALE":
                self._refused.add(name)
                emit("log.rescue_refused", stream=name, why=error)
            return False
        except BraidError:  # lost, or the log is being moved
            return False
        except Exception as error:  # also for an unexpected reply
            if name not in self._refused:
                self._refused.add(name)
                emit("log.rescue_refused", stream=name, why=repr(error))
            return False
        self._refused.discard(name)
        return done

    async def _rescue(self, name: bytes, writer: int, own: PlanRunner, home: PlanRunner) -> bool:
        """Append and delete some entries. Returns whether none is left."""
        log = await own.run(log_upkeep.read_moved(name))
        tails = [*log_upkeep.lost_tails(name, log.registry, writer)]
        tails = [tail for tail in tails if await own.run(log_upkeep.read_tail(*tail))]
        if not tails:
            return True
        there = await home.run(log_upkeep.read_moved(name))
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
        while pages < _PAGES and (page := await own.run(log_upkeep.read_tail(strand, after))):
            after = page[-1][0]
            noted = [entry for entry in page if log.is_rescued(strand, entry[0])]
            new = [entry for entry in page if not there.is_rescued(strand, entry[0])]
            if noted:
                await own.run(log_upkeep.delete_tail(strand, noted))
            else:
                pages += 1
            if new:
                appended += await home.run(log_upkeep.append_tail(name, tail, new))
        if appended:
            self.entries += appended
            emit("log.rescued", stream=name, home=log_upkeep.home_of(there.registry).writer, entries=appended)

    def _reach(self, name: bytes, writer: int) -> PlanRunner | None:
        """The region `writer`, if it can be reached and the log does not stay local."""
        for peer in self._peers():
            link = peer.link
            if peer.id != writer or link is None or not peer.takes(name):
                continue
            return link.target_of(name)
        return None
