"""A region's engine as the daemon reaches it: one pipelined connection, made again when it is lost."""

import asyncio
import contextlib
import random
from typing import Final, Protocol, TypeVar

from braidstream.errors import BraidError, LostError
from braidstream.net.address import Address
from braidstream.net.wire import Connection, connect, is_replica
from braidstream.protocol.plan import Batch, Plan, arun

T = TypeVar("T")

SILENCE_S: Final = 10.0
# How often a connection is looked at, also where nothing is to be said.
BEAT_S: Final = 1.0
# A peer's reply that is larger than this is an error. The largest are registries with thousands of groups.
PEER_REPLY_BYTES: Final = 64 * 1024 * 1024
BACK_OFF_S: Final = (0.05, 2.0)


class PlanRunner(Protocol):
    """Whoever runs plans on one engine. What is asked first is sent first."""

    async def run(self, plan: Plan[T]) -> T: ...


class Endpoint:
    """Plans are sent in the order in which they are asked. Nothing is sent twice by itself.

    most_bytes: a larger reply ends the connection.
    """

    def __init__(self, address: Address, most_bytes: int | None = None) -> None:
        self.address, self._most_bytes = address, most_bytes
        self._conn: Connection | None = None
        self._lock = asyncio.Lock()

    async def run(self, plan: Plan[T]) -> T:
        conn = self._conn
        if conn is None or conn.lost is not None:
            raise LostError(str(self.address), "not connected", wrote=False)
        return await arun(plan, conn.send)

    @property
    def conn(self) -> Connection | None:
        """The connection that is asked now. It may be lost."""
        return self._conn

    @property
    def connected(self) -> bool:
        return self._conn is not None and self._conn.lost is None

    async def connect(self) -> None:
        """Make sure there is a connection; LostError or ReplyError if there cannot be one."""
        async with self._lock:
            if not self.connected:
                self._conn = await connect(
                    self.address, primary=True, silence_s=SILENCE_S, most_bytes=self._most_bytes
                )

    async def watch(self) -> None:
        """Look now and then whether it answers and still is the primary. Ends with LostError."""
        beat: asyncio.Task[None] | None = None
        while (conn := self._conn) is not None and conn.lost is None:
            if beat is None or beat.done():  # it need not answer before the sentinels are asked again
                beat = asyncio.ensure_future(_beat(conn))
                beat.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.sleep(BEAT_S)
            if self.address.sentinels is not None:
                with contextlib.suppress(LostError):  # no sentinel answers: stay where we are
                    place = await self.address.sentinels.primary()
                    if place != conn.place:
                        conn.close("the sentinels name another primary, {}:{}".format(*place))
        why = conn.lost.why if conn is not None and conn.lost is not None else "not connected"
        raise LostError(str(self.address), why, wrote=False)

    def close(self, why: str = "we closed it") -> None:
        if self._conn is not None:
            self._conn.close(why)


class Pinned:
    """An engine while the present connection of its endpoint lasts.

    Behind the next one may be an engine that lost something, so whoever relies on what it has seen must start
    over: LostError.
    """

    def __init__(self, asked: PlanRunner, endpoint: Endpoint) -> None:
        self._asked, self._endpoint, self._conn = asked, endpoint, endpoint.conn

    async def run(self, plan: Plan[T]) -> T:
        self._check()
        reply = await self._asked.run(plan)
        self._check()
        return reply

    @property
    def lasts(self) -> bool:
        return self._endpoint.conn is self._conn

    def _check(self) -> None:
        if not self.lasts:
            raise LostError(
                str(self._endpoint.address), "connected anew: it may be another server", wrote=True
            )


async def _beat(conn: Connection) -> None:
    [hello] = await conn.send(Batch([("HELLO",)], resend=True))
    if is_replica(hello):
        conn.close("it is a replica now")


async def back_off(tries: int) -> None:
    """Wait before another try: longer each time, up to a cap, never in step with others."""
    least, most = BACK_OFF_S
    await asyncio.sleep(min(most, least * 2**tries) * random.uniform(0.5, 1.0))


def reason(error: Exception) -> str:
    """An error as one line of text. Other errors than our own say little without their type."""
    return str(error) if isinstance(error, BraidError) else f"{type(error).__name__}: {error}"
