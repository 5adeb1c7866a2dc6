"""Carries out the deadlines of streams in a region with peers (EXPIRE; lua/deadline.lua says how).

It also removes the fences of adopted streams that a peer deleted: links may not touch plain keys.

The registry has the deadline. Which ones are due, the engine's clock decides.
"""

from collections.abc import Callable
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
from braidstream.replication.changes import Changes
from braidstream.replication.endpoint import PlanRunner

EVERY_S: Final = 1.0
# How long to look every second whether other regions have carried it out too; later, whenever all are read.
_WAITING_MS: Final = 60_000
# What `carry_out` returns if there is more to trim, and if entries of other regions are left.
_MORE, _WAITS = 2, 3


class Deadlines:
    """`look` is called again and again."""

    def __init__(self, source: PlanRunner, is_mine: Callable[[bytes], bool]) -> None:
        self._source, self._is_mine = source, is_mine
        self.changes = Changes(source, self._read)
        self._until = dict[bytes, int]()
        self._refused = set[bytes]()

    async def look(self) -> None:
        await self.changes.look()
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

    async def _read(self, names: list[bytes]) -> None:
        for name, (until, fenced) in (await self._source.run(_found(names))).items():
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
