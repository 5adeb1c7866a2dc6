"""The nodes of a cluster, as the gateway itself sees them: which have which slots, and the functions.

A primary that was added without the engine functions gets them from another one before its first command.
"""

import asyncio
from contextlib import suppress

from braidstream.errors import BraidError, ConfigError, LibraryError, LostError, NotARegionError, ReplyError
from braidstream.gateway.backends import shared_task
from braidstream.lua.cluster_facts import load_libraries, read_libraries
from braidstream.net.address import Address
from braidstream.net.command_keys import CommandKeys
from braidstream.net.sentinels import Place
from braidstream.net.slot_map import SlotMap
from braidstream.net.wire import CONNECT_WITHIN_S, Connection, connect
from braidstream.protocol.identify import INFO_CLUSTER, is_cluster, read_node
from braidstream.protocol.plan import Batch, arun


class ReadyNodes:
    """keys: which keys a command has, by the table of one node."""

    def __init__(self, slots: SlotMap, keys: CommandKeys) -> None:
        self.slots, self.keys = slots, keys
        self._ready = set[Place]()
        self._preparing = dict[Place, asyncio.Task[None]]()

    async def ready(self, place: Place) -> None:
        """Before a command on a node. Raises LostError if it does not answer."""
        if place in self.slots.unreachable:
            self._ready.discard(place)  # it may be another process when it answers again
        if place in self._ready:
            return
        if place not in self._preparing:
            self._preparing[place] = shared_task(self._prepare(place))
        await asyncio.shield(self._preparing[place])

    async def _prepare(self, place: Place) -> None:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                conn = await connect(self.slots.address(place))
                try:
                    with suppress(ReplyError):  # it is loading, say: commands get its error
                        await self._bring_functions(place, conn)
                finally:
                    conn.close()
            self._ready.add(place)
            self.slots.unreachable.discard(place)
        except TimeoutError:
            raise LostError(f"{place[0]}:{place[1]}", "it does not answer", wrote=False) from None
        except LostError as lost:  # a command that waits for this has sent nothing
            raise LostError(lost.address, lost.why, wrote=False) from None
        finally:
            self._preparing.pop(place, None)

    async def _bring_functions(self, place: Place, conn: Connection) -> None:
        try:
            await arun(read_node(), conn.send)
        except NotARegionError:
            texts = await self._libraries(place)
            if not texts:
                return  # no node has them: its commands get the engine's error
            try:
                await arun(load_libraries(texts), conn.send)
            except ReplyError as error:
                raise LibraryError(
                    f"node {place[0]}:{place[1]} lacks the braidstream functions, and the gateway's user may "
                    f"not load them ({error}). Load them with: braid init --url URL --region N --name NAME"
                ) from None

    async def _libraries(self, wanting: Place) -> list[bytes]:
        for place in self.slots.homes():
            if place == wanting:
                continue
            with suppress(BraidError):  # the next one has them too
                conn = await connect(self.slots.address(place))
                try:
                    if texts := await arun(read_libraries(), conn.send):
                        return texts
                finally:
                    conn.close()
        return []


async def find_cluster(address: Address) -> ReadyNodes | None:
    """The nodes of the cluster that a server is part of; None if it is none."""
    conn = await connect(address.in_db(0))
    try:
        [info] = await conn.send(Batch([INFO_CLUSTER], resend=True, attempt=True))
        if not is_cluster(info):
            return None
        if address.db:
            raise ConfigError("a region that is a cluster is in database 0. Name no other one in the URL.")
        if address.path is not None:
            raise ConfigError("a cluster is not reached by a unix socket. Name a host and a port in the URL.")
        [table] = await conn.send(Batch([("COMMAND",)], resend=True, attempt=True))
    finally:
        conn.close()
    if isinstance(table, ReplyError):
        raise table
    slots = SlotMap(address)
    await slots.read_first()
    return ReadyNodes(slots, CommandKeys(table))
