"""Reads the registries of streams for jobs of the daemon: all when it starts and now and then, and those that
have changed. So the jobs store nothing.

    deadlines.py, log_rescue.py  --- fields --->  Changes  --- names and values --->  their `read`

The jobs share one `Changes`, so a registry is read once for all of them.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from braidstream.model import keys
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.cluster_endpoint import is_away, spares_others
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.feed import all_streams

# How often all streams are read. Changes are noticed at once; this is for those that were missed.
_ALL_EVERY_S: Final = 300.0
# How soon again if a node of a cluster was lost. When it is back, `missed` is called.
_AGAIN_S: Final = 10.0
_AT_ONCE: Final = 500

# The value of each field that a job wants; None if a registry lacks it.
Values = tuple[bytes | None, ...]
Read = Callable[[dict[bytes, Values]], Awaitable[None]]


@dataclass(slots=True)
class _Job:
    """error: of its last `read`. It is raised for this job alone."""

    fields: tuple[bytes, ...]
    read: Read
    error: Exception | None = None


class Changes:
    """`serve` adds a job."""

    def __init__(self, source: PlanRunner) -> None:
        self._source = source
        self._jobs: list[_Job] = []
        self._looking = asyncio.Lock()
        self._changed = set[bytes]()
        self._read_all_s = -math.inf

    def serve(self, fields: tuple[bytes, ...], read: Read) -> Callable[[], Awaitable[None]]:
        """Pass these fields of registries to `read`, some streams at a time; maybe again after an error.

        Returns what the job calls again and again, before it acts.
        """
        job = _Job(fields, read)
        self._jobs.append(job)
        return partial(self._look, job)

    def add(self, name: bytes) -> None:
        """The registry of a stream has changed."""
        self._changed.add(name)

    def missed(self) -> None:
        """Changes may have been missed: read all streams again."""
        self._read_all_s = -math.inf

    async def _look(self, job: _Job) -> None:
        async with self._looking:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._read_all_s >= _ALL_EVERY_S:
                await self._read_all(now_s)
            changed, self._changed = self._changed, set()
            try:
                await self._read_some(changed)
            except BaseException:
                self._changed |= changed
                raise
            error, job.error = job.error, None
            if error is not None:
                raise error

    async def _read_all(self, now_s: float) -> None:
        self._read_all_s = now_s  # before the read: `missed` may be called during it
        try:
            async for names in all_streams(self._source):
                await self._read_some(names)
        except BaseException as error:
            if not spares_others(error, self._source):
                self.missed()
                raise
            self._read_all_s = min(self._read_all_s, now_s - _ALL_EVERY_S + _AGAIN_S)

    async def _read_some(self, names: Iterable[bytes]) -> None:
        listed = [*names]
        for first in range(0, len(listed), _AT_ONCE):
            some = listed[first : first + _AT_ONCE]
            replies = await self._source.run(self._replies(some))
            away = {name for name, about in replies.items() if any(map(is_away, about))}
            self._changed |= away  # they are read again
            begin = 0
            for job in self._jobs:
                end = begin + len(job.fields)
                found = {name: _values(replies[name][begin:end]) for name in some if name not in away}
                begin = end
                try:
                    await job.read(found)
                except Exception as error:  # the other jobs go on
                    job.error = error
                    self._changed.update(some)

    def _replies(self, names: list[bytes]) -> Plan[dict[bytes, list[Any]]]:
        """By stream, the fields of all jobs."""
        fields = [field for job in self._jobs for field in job.fields]
        commands = [("HGET", keys.meta(name), field) for name in names for field in fields]
        replies = iter((yield Batch(commands, resend=True, attempt=True)))  # no hash: it stops no other
        return {name: [next(replies) for _ in fields] for name in names}


def _values(replies: list[Any]) -> Values:
    return tuple(reply if isinstance(reply, bytes) else None for reply in replies)
