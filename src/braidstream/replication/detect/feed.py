"""Which streams changed: pushes from the engine as hints, and sweeps over all streams as the truth.

With BCAST tracking the engine pushes the names of changed keys, coalesced, at almost no cost. XACK causes
no push (acks.py), and pushes are lost while the connection is down. So the daemon sweeps over all
streams on every connect and at intervals.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Final

from braidstream.engine.address import Address
from braidstream.engine.connection import Connection, connect
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.model import keys
from braidstream.model.strand import Strand
from braidstream.observability.events import emit
from braidstream.plan.lookup import scan_page
from braidstream.plan.plan import Batch
from braidstream.replication.endpoint import SILENCE_S, Endpoint, Node, PlanRunner, back_off, reason

# How often to PING, to detect a dead connection.
HEARTBEAT_S: Final = 3.0

# name, and whether more than entries changed
Heard = Callable[[bytes, bool], None]
Arrived = Callable[[Strand], None]
Asked = Callable[[bytes], None]


class Feed:
    """Calls `heard` for every stream that this region's writer or functions change, `arrived` for every
    strand of another writer that gets entries, and `asked` for questions (plan/ask_peers.py).

    Calls `missed` when it may have missed pushes. is_listening: tracking is on.
    """

    def __init__(
        self,
        address: Address,
        writers: tuple[int, Collection[int]],
        heard: Heard,
        arrived: Arrived,
        missed: Callable[[], None],
        asked: Asked = lambda name: None,
    ):
        self.address, self.heard, self.arrived, self.missed = address, heard, arrived, missed
        self.asked = asked
        self.own, self.others = writers
        self.is_listening = False

    async def run(self) -> None:
        """Listen until the connection is lost: LostError. ReplyError if the engine refuses tracking."""
        conn = await connect(
            self.address, protocol=3, primary=True, on_push=self._pushed, silence_s=SILENCE_S
        )
        try:
            await self._listen(conn)
        finally:
            conn.close()

    async def _listen(self, conn: Connection) -> None:
        writers = {self.own, *self.others}
        prefixes = [word for writer in writers for word in ("PREFIX", keys.of_writer(writer))]
        track = ("CLIENT", "TRACKING", "ON", "BCAST", *prefixes, "PREFIX", keys.META)
        [reply] = await conn.send(Batch([track], resend=True, attempt=True))
        if isinstance(reply, ReplyError):
            raise reply
        self.is_listening = True
        self.missed()  # changes before tracking was on
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await conn.send(Batch([("PING",)], resend=True))

    def _pushed(self, message: list[Any]) -> None:
        if not message or message[0] != b"invalidate":
            return
        if message[1] is None:  # FLUSHALL
            self.missed()
            return
        for key in message[1]:
            if found := keys.parse_strand(key):
                if found[2] == self.own:
                    self.heard(found[0], False)
                else:
                    self.arrived(Strand(*found))
            elif (name := keys.name_of_meta(key)) is not None:
                self.heard(name, True)
            elif (journal := keys.parse_journal(key)) and journal[1] == self.own:
                self.heard(journal[0], True)
            elif (questions := keys.parse_questions(key)) and questions[1] == self.own:
                self.asked(questions[0])


async def all_streams(region: Endpoint) -> AsyncIterator[list[bytes]]:
    """Every stream of a region, also deleted ones, in pages."""
    async for found in all_keys(region, keys.META):
        yield _names(found)


async def streams_of(node: PlanRunner) -> AsyncIterator[list[bytes]]:
    """The same of one server."""
    async for found in _keys_of(node, keys.META):
        yield _names(found)


def _names(found: list[bytes]) -> list[bytes]:
    return [name for key in found if (name := keys.name_of_meta(key)) is not None]


async def all_keys(region: Endpoint, prefix: bytes) -> AsyncIterator[list[bytes]]:
    """Every key of a region that begins so, in pages. If a node of a cluster is lost, the error is raised
    after the keys of the others."""
    lost: BraidError | None = None
    for node in region.nodes:
        try:
            async for found in _keys_of(node, prefix):
                yield found
        except BraidError as error:
            if not region.spares(error):
                raise
            lost = error
    if lost is not None:
        raise lost


async def _keys_of(node: PlanRunner, prefix: bytes) -> AsyncIterator[list[bytes]]:
    cursor = 0
    while True:
        cursor, found = await node.run(scan_page(cursor, prefix + b"*"))
        yield found
        if not cursor:
            return


# ----------------------------------------------------------------------------------------------------
#
# Which streams of a region changed: a `Feed` from each node.
#
# A new primary of a cluster gets one as soon as the map names it. Each feed calls `missed` when it begins to
# listen, so all streams are compared after slots have moved, and after a failover.

# How often to check whether the map names other nodes.
LOOK_S: Final = 0.2


class Feeds:
    """make: a feed from one node. is_listening: one of them has tracking on."""

    def __init__(self, source: Endpoint, make: Callable[[Node], Feed]) -> None:
        self._source, self._make = source, make
        self._feeds: dict[Node, Feed] = {}

    @property
    def is_listening(self) -> bool:
        return any(feed.is_listening for feed in self._feeds.values())

    async def run(self) -> None:
        """Listen until it is cancelled. The region's `watch` notices that no node is left."""
        tasks = dict[Node, asyncio.Task[None]]()
        try:
            while True:
                for node in [node for node in tasks if node not in self._source.nodes]:
                    tasks.pop(node).cancel()
                    self._feeds.pop(node, None)
                for node in self._source.nodes:
                    if node not in tasks:
                        tasks[node] = asyncio.ensure_future(self._listen(node))
                await asyncio.sleep(LOOK_S)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _listen(self, node: Node) -> None:
        """One node, again and again. Others log that it is lost."""
        tries, refused = 0, ""
        while True:
            feed = self._feeds[node] = self._make(node)
            try:
                await feed.run()
            except Exception as error:  # also for an unexpected reply
                if not isinstance(error, LostError) and reason(error) != refused:
                    refused = reason(error)
                    emit("feed.refused", why=f"{node.address}: {refused}")
            tries = 0 if feed.is_listening else tries + 1
            feed.is_listening = False
            await back_off(tries)
