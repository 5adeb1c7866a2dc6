"""Carries out the deadlines of streams in a region with peers (EXPIRE; lua/deadline.lua says how).

It also removes the fences of adopted streams that a peer deleted: links may not touch plain keys.

The registry has the deadline. Which ones are due, the engine's clock decides.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from braidstream.commands.expire import carry_out
from braidstream.commands.native import lift_fence
from braidstream.errors import BraidError, ReplyError
from braidstream.model import keys
from braidstream.model.fields import MetaField
from braidstream.observability.events import emit
from braidstream.plan.lookup import read_ms
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from braidstream.replication.detect.sweep import Changes, Values
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.region_facts import region_of

EVERY_S: Final = 1.0
# How long to look every second whether other regions have carried it out too; later, whenever all are read.
_WAITING_MS: Final = 60_000
# What `carry_out` returns if there is more to trim, and if entries of other regions are left.
_MORE, _WAITS = 2, 3


class Deadlines:
    """`look` is called again and again. apart: regions that do not exchange a stream with this one."""

    def __init__(
        self,
        source: Endpoint,
        changes: Changes,
        is_mine: Callable[[bytes], bool],
        apart: Callable[[bytes], Iterable[int]] = lambda name: (),
    ) -> None:
        self._source, self._is_mine, self._apart = source, is_mine, apart
        self._look_at_changes = changes.serve((MetaField.UNTIL, MetaField.FENCE), self._read)
        self._until = dict[bytes, int]()
        self._refused = set[bytes]()

    async def look(self) -> None:
        await self._look_at_changes()
        if not self._until:
            return
        now_ms = await self._source.run(read_ms())
        due = [(name, until) for name, until in self._until.items() if until < now_ms and self._is_mine(name)]
        for name, until in due:
            is_over = await self._carry_out(name) != _WAITS or now_ms > until + _WAITING_MS
            if is_over and self._until.get(name) == until:  # else it was read again
                del self._until[name]

    async def _carry_out(self, name: bytes) -> int:
        view, done = View(await region_of(self._source)), _MORE
        try:
            while done == _MORE:
                done = await self._source.run(carry_out(view, name, self._apart(name)))
        except BraidError as error:
            self._note("deadline.refused", name, error)
            return _WAITS
        self._refused.discard(name)
        return done

    async def _read(self, found: dict[bytes, Values]) -> None:
        deadlines = {name: until for name, (until, _) in found.items() if until is not None}
        steps = await self._source.run(_read_steps([*deadlines])) if deadlines else {}
        for name in found:
            self._until.pop(name, None)
        for name, until in deadlines.items():
            try:
                version, ms = until.split()
                if steps[name] != version + b" 2":  # not carried out here, or not to the end
                    self._until[name] = int(ms)
            except ValueError:
                self._log_once("deadline.refused", name, f"{until!r} is not a deadline")
        for name, (_, fence) in found.items():
            if fence == b"1" and self._is_mine(name):
                await self._lift_fence(name)

    async def _lift_fence(self, name: bytes) -> None:
        try:
            await self._source.run(lift_fence(name))
        except BraidError as error:  # tried again when all streams are read
            self._note("fence.refused", name, error)

    def _note(self, event: str, name: bytes, error: BraidError) -> None:
        """A stream has to wait, and the others go on. A lost node of a cluster is logged elsewhere."""
        if isinstance(error, ReplyError):
            self._log_once(event, name, error.text)
        elif not self._source.spares(error):
            raise error

    def _log_once(self, event: str, name: bytes, why: str) -> None:
        if name not in self._refused:
            emit(event, stream=name, why=why)
        self._refused.add(name)


def _read_steps(names: list[bytes]) -> Plan[dict[bytes, Any]]:
    """How far each deadline was carried out here. If that cannot be read, it is tried again."""
    commands = [("HGET", keys.meta(name), MetaField.ENDED) for name in names]
    return dict(zip(names, (yield Batch(commands, resend=True, attempt=True)), strict=True))
