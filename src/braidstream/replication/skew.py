"""Measures the difference of two regions' clocks: compares the engines' TIME every minute.

    ours     t0 --TIME--> t1          each clock is read between two readings of our own monotonic clock,
    theirs      t2 --TIME--> t3       so the result is off by half of both round trips at most

A difference of more than a second is logged; beyond the bound of the hybrid logical clock (decision 0016) as
an error. If a peer is that far behind, `bs:config` records it, so that MAXLEN knows the age of its entries.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from braidstream.admin.membership import note_behind
from braidstream.errors import BraidError, ReplyError
from braidstream.model.ids import CLOCK_BOUND_MS
from braidstream.model.region_config import Region
from braidstream.observability.events import emit
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.cluster_endpoint import ClusterEndpoint, spares_others
from braidstream.replication.endpoint import PlanRunner

EVERY_S: Final = 60.0
# After a node of a cluster was lost.
AGAIN_S: Final = 1.0
LOGGED_MS: Final = 1_000


async def watch_clock(
    source: PlanRunner, target: PlanRunner, there: Region, note: Callable[[int], None]
) -> None:
    """Measure until the link ends. there: the target's region; note: called with each result."""
    while True:
        try:
            ahead_ms, error_ms = await measure(source, target)
        except BraidError as error:
            if not spares_others(error, source) and not spares_others(error, target):
                raise
            await asyncio.sleep(AGAIN_S)
            continue
        note(ahead_ms)
        apart_ms = abs(ahead_ms) - error_ms
        beyond = apart_ms > CLOCK_BOUND_MS
        if apart_ms > LOGGED_MS:
            event = "clock.apart" if beyond else "clock.skew"
            emit(event, peer=there.name, peer_ahead_s=f"{ahead_ms / 1000:+.1f}")
        if isinstance(source, ClusterEndpoint):  # its facts are for clients, and a library holds them
            await asyncio.sleep(EVERY_S)
            continue
        with contextlib.suppress(ReplyError):  # full, or read-only: try again in a minute
            await source.run(note_behind(there.writer, max(0, -ahead_ms) if beyond else 0))
        await asyncio.sleep(EVERY_S)


async def measure(source: PlanRunner, target: PlanRunner) -> tuple[int, int]:
    """By how many milliseconds the target's clock is ahead of the source's, and the maximum error."""
    ours, theirs = await _read(source), await _read(target)
    return round(theirs[0] - ours[0]), round(theirs[1] + ours[1])


async def _read(engine: PlanRunner) -> tuple[float, float]:
    """An engine's clock minus our monotonic clock, and the maximum error, in milliseconds."""
    clock = asyncio.get_running_loop().time
    before = clock()
    seconds, micros = await engine.run(_time())
    after = clock()
    middle = (before + after) / 2
    return int(seconds) * 1000 + int(micros) / 1000 - middle * 1000, (after - before) * 500


def _time() -> Plan[list[Any]]:
    [now] = yield Batch([("TIME",)], resend=True)
    return now  # type: ignore[no-any-return]
