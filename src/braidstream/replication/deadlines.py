"""Carries out the deadlines of streams in a region with peers (EXPIRE; lua/deadline.lua says how).

It also removes the fences of adopted streams that a peer deleted: links may not touch plain keys.

The registry has the deadline, so the daemon stores nothing: it reads the registries of all streams when it
starts and now and then, and of a stream whose registry has changed. Which ones are due, the engine's clock
decides.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Final

from braidstream.commands.expire import carry_out
from braidstream.commands.native import lift_fence
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.fields import MetaField
from braidstream.observability.events import emit
from braidstream.protocol.identify import read_region
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.protocol.stream_view import View
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.feed import all_streams

EVERY_S: Final = 1.0
# How often all streams are read. Changes are noticed at once; this is for those that were missed.
_ALL_EVERY_S: Final = 300.0
_AT_ONCE: Final = 500
# How long to look every second whether other regions have carried it out too; later, whenever all are read.
_WAITING_MS: Final = 60_000
# What `carry_out` returns if there is more to trim, and if entries of other regions are left.
_MORE, _WAITS = 2, 3


class Deadlines:
    """`look` is called again and again."""

    def __init__(self, source: PlanRunner, is_mine: Callable[[bytes], bool]) -> None:
        self._source, self._is_mine = source, is_mine
        self._until = dict[bytes, int]()
        self._changed = set[bytes]()
        self._refused = set[bytes]()
        self._read_all_s = -math.inf

    def changed(self, name: bytes) -> None:
        """The registry of a stream has changed."""
        self._changed.add(name)

    def missed(self) -> None:
        """Changes may have been missed: read all streams again."""
        self._read_all_s = -math.inf

    async def look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._read_all_s >= _ALL_EVERY_S:
            await self._read_all(now_s)
        changed, self._changed = self._changed, set()
        try:
            await self._read(changed)
        except BaseException:
            self._changed |= changed
            raise
        if not self._until:
            return
        seconds, micros = await self._source.run(send_one(("TIME",), resend=True))
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        for name in [name for name, until in self._until.items() if until < now_ms and self._is_mine(name)]:
            if await self._carry_out(name) != _WAITS or now_ms > self._until[name] + _WAITING_MS:
                del self._until[name]

    async def _carry_out(self, name: bytes) -> int:
        view, done = View(await self._source.run(read_region())), _MORE
        try:
            while done == _MORE:
                done = await self._source.run(carry_out(view, name))
        except ReplyError as error:  # tried again; the others go on
            if name not in self._refused:
                emit("deadline.refused", stream=name, why=error)
            self._refused.add(name)
            return _WAITS
        self._refused.discard(name)
        return done

    async def _read_all(self, now_s: float) -> None:
        self._read_all_s = now_s  # before the read: `missed` may be called during it
        try:
            async for names in all_streams(self._source):
                await self._read(names)
        except BaseException:
            self.missed()
            raise

    async def _read(self, names: Iterable[bytes]) -> None:
        for part in _parts([*names]):
            for name, (until, fenced) in (await self._source.run(_found(part))).items():
                self._until.pop(name, None)
                if until:
                    self._until[name] = until
                if fenced and self._is_mine(name):
                    await self._lift_fence(name)

    async def _lift_fence(self, name: bytes) -> None:
        try:
            await self._source.run(lift_fence(name))
        except ReplyError as error:  # tried again when all streams are read
            if name not in self._refused:
                emit("fence.refused", stream=name, why=error)
            self._refused.add(name)


def _parts(names: list[bytes]) -> list[list[bytes]]:
    return [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]


def _found(names: list[bytes]) -> Plan[dict[bytes, tuple[int, bool]]]:
    """The deadline of each stream that was not carried out here, or not to the end, 0 for none; and whether
    it has a fence."""
    metas = list(map(keys.meta, names))
    commands: list[Command] = [
        *(("HGET", meta, MetaField.UNTIL) for meta in metas),
        *(("HGET", meta, MetaField.FENCE) for meta in metas),
    ]
    replies = yield Batch(commands, resend=True, attempt=True)  # a key that is no hash stops no other
    found = {name: (0, fence == b"1") for name, fence in zip(names, replies[len(names) :], strict=True)}
    known = zip(names, replies, strict=False)
    some = [(name, until.split()) for name, until in known if isinstance(until, bytes)]
    if some:
        steps = yield Batch([("HGET", keys.meta(name), MetaField.ENDED) for name, _ in some], resend=True)
        for (name, (version, ms)), ended in zip(some, steps, strict=True):
            found[name] = 0 if ended == version + b" 2" else int(ms), found[name][1]
    return found
