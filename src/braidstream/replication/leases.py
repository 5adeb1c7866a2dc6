"""Several daemons of one region share its streams: each serves some of the shards.

Every daemon increments its own field of one hash in the engine, every RENEW_S seconds. If a field does not
change for LOST_S, by the reader's monotonic clock, its daemon is dead. The living daemons divide the shards
in the order of their IDs. No time of day is stored or compared, so clock steps have no effect. Two daemons
may
serve one stream for a moment: that is harmless, so nothing here needs to be exact.
"""

import asyncio
import contextlib
import secrets
import zlib
from collections.abc import Callable
from typing import Any, Final

from braidstream.errors import LostError, ReplyError
from braidstream.model.keys import DAEMONS
from braidstream.model.strand import facts
from braidstream.observability.events import emit
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint, back_off, reason

SHARDS: Final = 16
RENEW_S: Final = 2.0
LOST_S: Final = 6.0
# The hash of a region without daemons expires. If it expires too early, each daemon adds itself again.
EXPIRE_S: Final = 3_600


def shard_of(name: bytes) -> int:
    return zlib.crc32(name) % SHARDS


class Leases:
    """The shards of this process, once they are known. Calls `changed` when it gets a new one."""

    def __init__(self, engine: Endpoint, changed: Callable[[], None]) -> None:
        self.engine, self.changed = engine, changed
        self.id = secrets.token_hex(8).encode()
        self.held: frozenset[int] = frozenset()
        self.known = asyncio.Event()
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        self._refusal = ""  # the last one that was logged

    def mine(self, name: bytes) -> bool:
        return shard_of(name) in self.held

    async def run(self) -> None:
        while True:
            try:
                await self.engine.connect()
                await self.renew()
                self.known.set()
                await asyncio.sleep(RENEW_S)
            except LostError:
                await back_off(1)
            except Exception as error:  # refused (OOM, MISCONF, NOPERM, ...), or an unexpected reply
                self._serve_all(reason(error))
                await asyncio.sleep(RENEW_S)

    def _serve_all(self, why: str) -> None:
        """Without leases every daemon serves all shards, which is harmless."""
        if why != self._refusal:
            self._refusal = why
            emit("source.refused", why=why)
        self._hold(frozenset(range(SHARDS)))
        self.known.set()

    async def renew(self) -> None:
        """Increment our field, find the living daemons, and take our share of the shards."""
        counts = await self.engine.run(_count_up(self.id))
        dead = self._look(counts)
        living = sorted(counts.keys() - dead)
        self._hold(frozenset(range(living.index(self.id), SHARDS, len(living))))
        if dead:
            await self.engine.run(_forget(*dead))
        self._refusal = ""

    def _look(self, counts: dict[bytes, bytes]) -> set[bytes]:
        """Note when each count last changed; returns the daemons whose count is unchanged for too long."""
        now = asyncio.get_running_loop().time()
        before, self._seen = self._seen, {}
        for daemon, count in counts.items():
            seen, since = before.get(daemon, (None, now))
            self._seen[daemon] = count, since if seen == count else now
        return {daemon for daemon, (_, since) in self._seen.items() if now - since >= LOST_S}

    def _hold(self, held: frozenset[int]) -> None:
        if held != self.held:
            new = held - self.held
            self.held = held
            emit("lease.taken", shards=len(held), of=SHARDS)
            if new:
                self.changed()

    async def release(self) -> None:
        """Remove our field, so that the others take over at once."""
        with contextlib.suppress(LostError, ReplyError):
            await self.engine.run(_forget(self.id))


def _count_up(me: bytes) -> Plan[dict[bytes, bytes]]:
    """Increment our count; returns all counts."""
    counts: list[Any]
    _, _, counts = yield Batch(
        [("HINCRBY", DAEMONS, me, 1), ("EXPIRE", DAEMONS, EXPIRE_S), ("HGETALL", DAEMONS)]
    )
    return facts(counts)


def _forget(*daemons: bytes) -> Plan[None]:
    yield Batch([("HDEL", DAEMONS, *daemons)])
