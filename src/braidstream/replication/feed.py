"""Which streams changed: pushes from the engine as hints, and a sweep over all streams as the truth.

The engine tells the names of changed keys (BCAST tracking), coalesced, at next to no cost. It tells
nothing of XACK, and what it says while we are not connected is lost. So on every connect, and now and
then, all streams are looked at.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.net.address import Address
from braidstream.net.wire import Connection, connect
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import SILENCE_S, Endpoint

PAGE: Final = 1_000
# Ask something now and then, so that a dead connection is noticed.
HEARTBEAT_S: Final = 3.0

# name, and whether more than entries changed
Heard = Callable[[bytes, bool], None]


class Feed:
    """Tells `heard` of every stream that this region's writers or functions change.

    It calls `missed` when it may not have heard something. is_listening: the engine has agreed to tell.
    """

    def __init__(self, address: Address, writers: tuple[int, ...], heard: Heard, missed: Callable[[], None]):
        self.address, self.writers, self.heard, self.missed = address, writers, heard, missed
        self.is_listening = False

    async def run(self) -> None:
        """Until the connection is lost, LostError, or at once if the engine refuses: ReplyError."""
        conn = await connect(
            self.address, protocol=3, primary=True, on_push=self._pushed, silence_s=SILENCE_S
        )
        try:
            await self._listen(conn)
        finally:
            conn.close()

    async def _listen(self, conn: Connection) -> None:
        prefixes = [word for writer in self.writers for word in ("PREFIX", keys.of_writer(writer))]
        track = ("CLIENT", "TRACKING", "ON", "BCAST", *prefixes, "PREFIX", keys.META)
        [reply] = await conn.send(Batch([track], resend=True, attempt=True))
        if isinstance(reply, ReplyError):
            raise reply
        self.is_listening = True
        self.missed()  # what changed before we listened
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
                self.heard(found[0], False)
            elif (name := keys.name_of_meta(key)) is not None:
                self.heard(name, True)
            elif journal := keys.parse_journal(key):
                self.heard(journal[0], True)


async def all_streams(source: Endpoint) -> AsyncIterator[list[bytes]]:
    """Every stream a region knows of, deleted ones too, in pages."""
    cursor: bytes | int = 0
    while True:
        cursor, found = await source.run(_scan(cursor))
        yield [name for key in found if (name := keys.name_of_meta(key)) is not None]
        if int(cursor) == 0:
            return


def _scan(cursor: bytes | int) -> Plan[tuple[bytes, list[bytes]]]:
    words = ("SCAN", cursor, "MATCH", keys.META + b"*", "COUNT", PAGE)
    [(following, found)] = yield Batch([words], resend=True)
    return following, found
