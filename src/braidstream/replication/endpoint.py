"""A region's engine, as the daemon uses it: one pipelined connection, opened again when it is lost."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from braidstream.errors import BraidError, LostError
from braidstream.net.address import Address
from braidstream.net.wire import Connection, connect, is_replica
from braidstream.protocol.plan import Batch, Plan, Replies, arun

T = TypeVar("T")

SILENCE_S: Final = 10.0
# How often an idle connection is checked.
BEAT_S: Final = 1.0
# A peer's reply that is larger than this is an error. The largest are registries with thousands of groups.
PEER_REPLY_BYTES: Final = 64 * 1024 * 1024
BACK_OFF_S: Final = (0.05, 2.0)


class OwnError(BraidError):
    """An error of the daemon's own engine, while a link used it: it is not the peer's."""


class PlanRunner(Protocol):
    """Runs plans on one engine, and sends them in the order of the calls."""

    async def run(self, plan: Plan[T]) -> T: ...


class Endpoint:
    """Sends plans in the order of the calls. It resends nothing.

    most_bytes: a larger reply ends the connection.
    """

    def __init__(self, address: Address, most_bytes: int | None = None) -> None:
        self.address, self.most_bytes = address, most_bytes
        self._conn: Connection | None = None
        self._lock = asyncio.Lock()

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._connected().send)

    async def send(self, batch: Batch) -> Replies:
        return await self._connected().send(batch)

    def _connected(self) -> Connection:
        conn = self._conn
        if conn is None or conn.lost is not None:
            raise LostError(str(self.address), "not connected", wrote=False)
        return conn

    # One server is a region of one node. A cluster has more (cluster_endpoint.py).

    @property
    def nodes(self) -> "list[Endpoint]":
        """The servers that hold the streams."""
        return [self]

    def node_of(self, name: bytes) -> "Endpoint":
        """The server that holds a stream."""
        return self

    def version_of(self, name: bytes) -> int:
        """Another number after the stream has moved to another server."""
        return 0

    def look_again(self) -> None:
        """A server has refused something because it does not hold the stream."""

    @property
    def waiting_s(self) -> float:
        """How long the oldest reply has been due."""
        return 0.0 if self._conn is None else self._conn.waiting_s

    @property
    def conn(self) -> Connection | None:
        """The current connection. It may be lost."""
        return self._conn

    @property
    def connected(self) -> bool:
        return self._conn is not None and self._conn.lost is None

    async def connect(self) -> None:
        """Connect, unless connected; LostError or ReplyError if that fails."""
        async with self._lock:
            if not self.connected:
                self._conn = await self._open()

    async def as_own(self, work: Awaitable[T]) -> T:
        """Await work of a link on this engine, its own one: an error becomes an OwnError."""
        try:
            return await work
        except BraidError as error:
            raise OwnError(str(error)) from error

    async def _open(self) -> Connection:
        """Its errors name our address, also if sentinels have resolved it to a server."""
        try:
            conn = await connect(self.address, primary=True, silence_s=SILENCE_S, most_bytes=self.most_bytes)
        except LostError as error:
            if error.address == str(self.address):
                raise
            raise LostError(str(self.address), f"{error.address}: {error.why}", wrote=False) from error
        conn.name = str(self.address)
        return conn

    async def watch(self) -> None:
        """Check regularly that the engine answers and is still the primary. Ends with LostError."""
        beat: asyncio.Task[None] | None = None
        while (conn := self._conn) is not None and conn.lost is None:
            if beat is None or beat.done():  # do not wait for its answer before the sentinels are queried
                beat = asyncio.ensure_future(_beat(conn))
                beat.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.sleep(BEAT_S)
            if self.address.sentinels is not None and self.address.via is None:
                with contextlib.suppress(LostError):  # no sentinel answers: keep the connection
                    place = await self.address.sentinels.primary()
                    if place != conn.place:
                        conn.close("the sentinels name another primary, {}:{}".format(*place))
        why = conn.lost.why if conn is not None and conn.lost is not None else "not connected"
        raise LostError(str(self.address), why, wrote=False)

    def close(self, why: str = "we closed it") -> None:
        if self._conn is not None:
            self._conn.close(why)


def nodes_of(runner: PlanRunner) -> Sequence[PlanRunner]:
    """The servers of a region."""
    return runner.nodes if isinstance(runner, Endpoint) else [runner]


class Pinned:
    """Runs plans only while the endpoint keeps its present connection, then raises LostError.

    The next connection may reach an engine that lost data, so a caller must read its state again.
    """

    def __init__(self, runner: PlanRunner, endpoint: Endpoint) -> None:
        self._runner, self._endpoint, self._conn = runner, endpoint, endpoint.conn

    async def run(self, plan: Plan[T]) -> T:
        self._check()
        reply = await self._runner.run(plan)
        self._check()
        return reply

    @property
    def lasts(self) -> bool:
        return self._endpoint.conn is self._conn

    def _check(self) -> None:
        if not self.lasts:
            raise LostError(str(self._endpoint.address), "reconnected: it may be another server", wrote=True)


async def _beat(conn: Connection) -> None:
    [hello] = await conn.send(Batch([("HELLO",)], resend=True))
    if is_replica(hello):
        conn.close("it is a replica now")


async def until_one_ends(*works: Coroutine[Any, Any, object]) -> None:
    """Run all until the first one ends, then cancel the others. Raises its error, if it has one."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def back_off(tries: int) -> None:
    """Wait before a retry: exponential backoff with a cap and jitter."""
    least, most = BACK_OFF_S
    await asyncio.sleep(min(most, least * 2**tries) * random.uniform(0.5, 1.0))


def reason(error: Exception) -> str:
    """An error as one line of text; with its type, if it is not one of ours."""
    return str(error) if isinstance(error, BraidError) else f"{type(error).__name__}: {error}"
