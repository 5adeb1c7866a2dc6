"""Sends the entries of schedules (`[[schedule]]` in braid.toml), each when it is due.

    due times of the last look --- XADD jobs IDMP schedule/<name> <due ms> * ... --->  the stream

Nothing is stored. The live region with the smallest number sends. After a start, or when a region becomes the
smallest, it goes on after the last entry that the stream remembers. Two regions that are apart both send, and
one of the two entries stays.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

from braidstream.commands.xadd import add
from braidstream.config import ScheduleConfig
from braidstream.errors import BraidError, RefusedError, ReplyError
from braidstream.model import keys
from braidstream.observability.events import Repeated
from braidstream.observability.metrics import Family
from braidstream.plan.lookup import read_ms, read_registry
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.region_facts import region_of
from braidstream.replication.takeover import Takeover

EVERY_S: Final = 1.0
# How far back a daemon looks if it knows the last entry that was sent, and if it does not: a new schedule
# does not begin with an hour of the past.
_BACK_MS, _NEW_BACK_MS = 3_600_000, 60_000
# How many messages of a producer a stream remembers.
_MOST: Final = 100
_DUE: Final = re.compile(rb"[0-9]{1,15}\Z")


def due_times(schedule: ScheduleConfig, after_ms: int, upto_ms: int) -> list[int]:
    """When a schedule is due after a time, up to another one, in ms; the last of them if there are many."""
    if schedule.cron is None:
        step_ms = 1000 * schedule.every_s
        first = max(after_ms // step_ms + 1, upto_ms // step_ms - _MOST + 1)
        return [number * step_ms for number in range(first, upto_ms // step_ms + 1)]
    start = datetime.fromtimestamp(upto_ms // 1000 + 1, ZoneInfo(schedule.timezone))
    back = (round(each.timestamp() * 1000) for each in CronSim(schedule.cron, start, reverse=True))
    return [*takewhile(lambda due_ms: due_ms > after_ms, islice(back, _MOST))][::-1]


class Schedules:
    """`look` is called again and again. schedules: those of the file. sent: since the daemon started."""

    def __init__(self, source: Endpoint, is_mine: Callable[[bytes], bool], takeover: Takeover) -> None:
        self._source, self._is_mine, self._takeover = source, is_mine, takeover
        self.schedules: tuple[ScheduleConfig, ...] = ()
        self.sent = 0
        self._upto_ms = dict[str, int]()
        self._troubles = dict[str, Repeated]()

    @property
    def families(self) -> list[Family]:
        """For /metrics."""
        sent = "Entries of schedules that this daemon has sent; those that were known already too."
        return [Family.counter("braid_schedule_sent_total", sent, {(): self.sent})]

    async def look(self) -> None:
        names = {each.name for each in self.schedules}
        self._upto_ms = {name: upto_ms for name, upto_ms in self._upto_ms.items() if name in names}
        if not names:
            return
        here, now_ms = await region_of(self._source), await self._source.run(read_ms())
        for each in self.schedules:
            stream = each.stream.encode()
            if here.fenced or not self._is_mine(stream) or not self._takeover.is_first(here, stream):
                self._upto_ms.pop(each.name, None)  # when it is ours again: what others may not have sent
                continue
            try:
                sending = _send(View(here), each, self._upto_ms.get(each.name), now_ms)
                self.sent += await self._source.run(sending)
                self._upto_ms[each.name] = max(now_ms, self._upto_ms.get(each.name, 0))
                self._troubles.pop(each.name, None)
            except BraidError as error:  # it is tried again, and the others go on
                if not isinstance(error, ReplyError | RefusedError) and not self._source.spares(error):
                    raise
                now_s = asyncio.get_running_loop().time()
                trouble = self._troubles.setdefault(each.name, Repeated())
                trouble.log("schedule.refused", now_s, schedule=each.name, stream=each.stream, why=str(error))


def _send(view: View, schedule: ScheduleConfig, after_ms: int | None, now_ms: int) -> Plan[int]:
    """Send what is due. after_ms: None if it is unknown what was sent. Returns how many entries."""
    name, producer = schedule.stream.encode(), b"schedule/" + schedule.name.encode()
    if after_ms is None:
        after_ms = yield from _sent_upto(view, name, producer, now_ms)
    due = due_times(schedule, after_ms, now_ms)
    fields = [word.encode() for pair in schedule.fields.items() for word in pair]
    for due_ms in due:
        yield from add(view, [b"XADD", name, b"IDMP", producer, b"%d" % due_ms, b"*", *fields])
    return len(due)


def _sent_upto(view: View, name: bytes, producer: bytes, now_ms: int) -> Plan[int]:
    """The last due time that is known to be sent, by the messages that the stream remembers."""
    registry = yield from read_registry(view, name)
    _, queue = keys.known_messages(name, registry.settings.era, producer)
    [iids] = yield Batch([("LRANGE", queue, -_MOST, -1)], resend=True)
    sent = [int(iid) for iid in iids if _DUE.match(iid) and int(iid) <= now_ms]
    return max(*sent, now_ms - _BACK_MS) if sent else now_ms - _NEW_BACK_MS
