"""Several daemons of one region share its streams: each serves some of 256 ranges of slots.

    stream --> slot of its keys, 0 to 16383 --> range, 0 to 255 --> one of the living daemons

Every daemon increments its own field of one hash in the engine, every RENEW_S seconds. If a field does not
change for LOST_S, by the reader's monotonic clock, its daemon is dead; on its own machine that is known at
once, by its process. So one that was killed and starts again does not wait for itself. Each daemon computes
the shares of all from the IDs of the living ones, so they agree. No time of day is stored or compared, so
clock steps have no effect. Two daemons may serve one stream for a moment: that is harmless, so nothing here
needs to be exact.

A field begins with the number of ranges, and a daemon ignores fields with another number.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

from braidstream.clusters.command_keys import slot_of
from braidstream.errors import LostError, ReplyError
from braidstream.model import keys
from braidstream.model.strand import facts
from braidstream.observability.events import emit
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint, back_off, reason

RANGES: Final = 256
_SLOTS_BITS: Final = 6  # 16384 slots are 256 ranges of 64
_FIELD: Final = b"%d:" % RANGES
_WEIGHT_BYTES: Final = 8
_PID_DIGITS: Final = 7
RENEW_S: Final = 2.0
LOST_S: Final = 6.0
# The hash of a region without daemons expires. If it expires too early, each daemon adds itself again.
EXPIRE_S: Final = 3_600


def range_of(name: bytes) -> int:
    """The range of a stream. All its keys have one slot."""
    return slot_of(keys.meta(name)) >> _SLOTS_BITS


def assign(daemons: Collection[bytes]) -> dict[int, bytes]:
    """The daemon of each range. The shares of two daemons differ by at most one range.

    Each daemon has a weight for each range, from its ID. The pairs are taken in the order of their weights,
    until each daemon has its share. So when one of n daemons joins or leaves, its own 256/n ranges move, and
    a dozen others, which keep the shares even.
    """
    least, larger = divmod(RANGES, len(daemons))
    shares = dict.fromkeys(daemons, 0)
    owners = dict[int, bytes]()
    for _, number, daemon in sorted(chain.from_iterable(map(_weights, daemons))):
        if number in owners or shares[daemon] >= (least + 1 if larger else least):
            continue
        if shares[daemon] == least:
            larger -= 1
        owners[number] = daemon
        shares[daemon] += 1
    return owners


def _weights(daemon: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    drawn = hashlib.shake_256(daemon).digest(_WEIGHT_BYTES * RANGES)
    for number in range(RANGES):
        yield drawn[_WEIGHT_BYTES * number : _WEIGHT_BYTES * (number + 1)], number, daemon


class Leases:
    """The ranges of this process, once they are known. Calls `changed` when it gets a new one."""

    def __init__(self, engine: Endpoint, changed: Callable[[], None]) -> None:
        self.engine, self.changed = engine, changed
        self.id = b"%b-%d-%b" % (_machine(), os.getpid(), secrets.token_hex(4).encode())
        self.held: frozenset[int] = frozenset()
        self.known = asyncio.Event()
        self._field = _FIELD + self.id
        self._living: set[bytes] = set()
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        self._refusal = ""  # the last one that was logged

    def mine(self, name: bytes) -> bool:
        return range_of(name) in self.held

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        renewed_s = clock()
        while True:
            try:
                await self.engine.connect()
                await self.renew()
                self.known.set()
                renewed_s = clock()
                await asyncio.sleep(RENEW_S)
            except LostError as error:
                # One node of a cluster: the streams of the others do not wait for it.
                if self.engine.spares(error) and clock() - renewed_s >= LOST_S:
                    self._serve_all(f"{error.address}: {error.why}")
                await back_off(1)
            except Exception as error:  # refused (OOM, MISCONF, NOPERM, ...), or an unexpected reply
                self._serve_all(reason(error))
                await asyncio.sleep(RENEW_S)

    def _serve_all(self, why: str) -> None:
        """Without leases every daemon serves all ranges, which is harmless."""
        if why != self._refusal:
            self._refusal = why
            emit("source.refused", why=why)
        self._living = set()
        self._hold(frozenset(range(RANGES)))
        self.known.set()

    async def renew(self) -> None:
        """Increment our field, find the living daemons, and take our share of the ranges."""
        counts = await self.engine.run(_count_up(self._field))
        dead = self._look(counts)
        living = {self._field, *(field for field in counts.keys() - dead if field.startswith(_FIELD))}
        if living != self._living:
            self._living = living
            owners = assign(living).items()
            self._hold(frozenset(number for number, owner in owners if owner == self._field))
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
        unchanged = {daemon for daemon, (_, since) in self._seen.items() if now - since >= LOST_S}
        return unchanged | {daemon for daemon in counts if _has_ended(daemon)}

    def _hold(self, held: frozenset[int]) -> None:
        if held != self.held:
            new = held - self.held
            self.held = held
            emit("lease.taken", ranges=len(held), of=RANGES)
            if new:
                self.changed()

    async def release(self) -> None:
        """Remove our field, so that the others take over at once."""
        with contextlib.suppress(LostError, ReplyError):
            await self.engine.run(_forget(self._field))


@cache
def _machine() -> bytes:
    """This machine since it was started, or this container: here a process has one number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return hashlib.sha256(boot + os.readlink("/proc/self/ns/pid").encode()).hexdigest()[:8].encode()
    except OSError:  # not Linux: nothing is known of other processes
        return secrets.token_hex(4).encode()


def _has_ended(field: bytes) -> bool:
    """Whether this is a daemon of this machine whose process is no more."""
    machine, _, rest = field.removeprefix(_FIELD).partition(b"-")
    number = rest.partition(b"-")[0]
    if machine != _machine() or not number.isdigit() or len(number) > _PID_DIGITS:
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another user
        pass
    return False


def _count_up(me: bytes) -> Plan[dict[bytes, bytes]]:
    """Increment our count; returns all counts."""
    counts: list[Any]
    _, _, counts = yield Batch(
        [("HINCRBY", keys.DAEMONS, me, 1), ("EXPIRE", keys.DAEMONS, EXPIRE_S), ("HGETALL", keys.DAEMONS)]
    )
    return facts(counts)


def _forget(*daemons: bytes) -> Plan[None]:
    yield Batch([("HDEL", keys.DAEMONS, *daemons)])
