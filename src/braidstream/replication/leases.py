"""Several daemons of one region share its streams: each holds some of the shards, by leases in the engine.

A lease is a key with a time limit. A daemon that dies loses its leases within LEASE_MS and others take
them. Two daemons that serve one stream for a moment do no harm, so nothing here needs to be exact.
"""

import asyncio
import contextlib
import secrets
import zlib
from collections.abc import Callable
from typing import Final

from braidstream.errors import LostError, ReplyError
from braidstream.keys import lease
from braidstream.observability.events import emit
from braidstream.plan import Batch, Command, Plan
from braidstream.replication.endpoint import Endpoint, back_off

SHARDS: Final = 16
LEASE_MS: Final = 6_000
RENEW_S: Final = 2.0

_DAEMONS: Final = lease(b"daemons")


def shard_of(name: bytes) -> int:
    return zlib.crc32(name) % SHARDS


class Leases:
    """The shards this process holds, once they are known. `changed` is called when it holds another one."""

    def __init__(self, engine: Endpoint, changed: Callable[[], None]) -> None:
        self.engine, self.changed = engine, changed
        self.id = secrets.token_hex(8).encode()
        self.held: frozenset[int] = frozenset()
        self.known = asyncio.Event()

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
            except ReplyError as error:
                if error.code == "OOM":  # no room for leases: everybody serves everything, which does no harm
                    self._hold(frozenset(range(SHARDS)))
                    self.known.set()
                await asyncio.sleep(RENEW_S)

    async def renew(self) -> None:
        """Keep what is ours, give back what is more than our share, take what nobody holds."""
        self._hold(await self.engine.ask(_renew(self.id)))

    def _hold(self, held: frozenset[int]) -> None:
        if held != self.held:
            new = held - self.held
            self.held = held
            emit("lease.taken", shards=len(held), of=SHARDS)
            if new:
                self.changed()

    async def release(self) -> None:
        """Give everything back at once: the others need not wait."""
        with contextlib.suppress(LostError, ReplyError):
            await self.engine.ask(_release(self.id, self.held))


def _renew(me: bytes) -> Plan[frozenset[int]]:
    [(seconds, _)] = yield Batch([("TIME",)], resend=True)
    now = int(seconds) * 1000
    owners: Command = ("MGET", *(lease(b"%d" % shard) for shard in range(SHARDS)))
    replies = yield Batch(
        [
            ("ZADD", _DAEMONS, now, me),
            ("ZREMRANGEBYSCORE", _DAEMONS, "-inf", now - LEASE_MS),
            ("ZCARD", _DAEMONS),
            owners,
        ]
    )
    return (yield from _share(me, replies[2], replies[3]))


def _share(me: bytes, daemons: int, owners: list[bytes | None]) -> Plan[frozenset[int]]:
    fair = -(-SHARDS // max(1, daemons))
    mine = [shard for shard, owner in enumerate(owners) if owner == me]
    free = [shard for shard, owner in enumerate(owners) if owner is None]
    keep, give = mine[:fair], mine[fair:]
    take = free[: fair - len(keep)]
    commands: list[Command] = [("PEXPIRE", lease(b"%d" % shard), LEASE_MS) for shard in keep]
    commands += [("DEL", lease(b"%d" % shard)) for shard in give]
    commands += [("SET", lease(b"%d" % shard), me, "NX", "PX", LEASE_MS) for shard in take]
    if not commands:
        return frozenset()
    replies = yield Batch(commands)
    got = [shard for shard, reply in zip(take, replies[len(commands) - len(take) :], strict=True) if reply]
    return frozenset((*keep, *got))


def _release(me: bytes, held: frozenset[int]) -> Plan[None]:
    shards = [lease(b"%d" % shard) for shard in held]
    commands: list[Command] = [("ZREM", _DAEMONS, me)]
    yield Batch([*commands, ("DEL", *shards)] if shards else commands)
