"""Sends the batches of a plan over a connection of redis-py, and tracks whether a write may be lost.

`Sender` and `AsyncSender` do the same. Change both together.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Any, Final, TypeVar

from redis import exceptions

from braidstream.errors import LostError
from braidstream.model.command import Command
from braidstream.net.compat import (
    awaited,
    closed_by_server,
    is_connected,
    packed,
    read_within,
    skip_health_check,
    socket_of,
    take_arrived,
)
from braidstream.net.reply_shape import resp2
from braidstream.protocol.exchange import refuse_early_end, unpack, wire
from braidstream.protocol.plan import Batch, Replies

T = TypeVar("T")

# The server executed nothing: it is still loading, or requires a password.
REFUSALS: Final = (exceptions.BusyLoadingError, exceptions.AuthenticationError)
LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


def is_away(error: Exception) -> bool:
    """Whether a server cannot be reached now, or is loading its data, so that a retry may help. To redis-py a
    wrong password is an error of the connection too."""
    is_lost = isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError)
    return is_lost and not isinstance(error, exceptions.AuthenticationError)


# How long a command that was interrupted or cancelled may take to clean up.
CLEAN_UP_S: Final = 1.0


def is_refusal(error: BaseException, *, may_have_run: bool = False) -> bool:
    """Whether the server executed nothing. At READONLY, a connection of redis-py's Sentinel is lost.

    may_have_run: commands before the one that got the error may have been executed.
    """
    is_replica = isinstance(error.__context__, exceptions.ReadOnlyError)
    return (isinstance(error, REFUSALS) or is_replica) and not may_have_run


def _may_have_run(batch: Batch, commands: list[Command], replies: list[Any]) -> bool:
    """Whether the server may have run a command of a batch, though the reply after `replies` was a refusal.

    Refused AUTH and HELLO do not stop the commands behind them, nor does a refused MULTI.
    """
    first = commands[0][0]
    name = first.decode("ascii", "replace") if isinstance(first, bytes) else str(first)
    is_queued = batch.atomic and not any(isinstance(each, Exception) for each in replies[:1])
    return not is_queued and (bool(replies) or name.upper() in ("AUTH", "HELLO"))


class NotResentError(Exception):
    """The connection was lost after a write was sent. Not a redis-py error, so redis-py does not retry it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error

    def for_user(self) -> BaseException:
        """The error that redis-py would raise; its text says that the write may have been applied."""
        text = (
            f"{self.error}. A write had been sent and its reply is lost: it may or may not have been "
            "applied. braidstream does not send a write twice."
        )
        is_theirs = isinstance(self.error, exceptions.RedisError)
        kind = type(self.error) if is_theirs else exceptions.ConnectionError
        return kind(text)


class LostElsewhereError(NotResentError):
    """Another region was lost, and its error is ready for the user. The rest of the pipeline ran here."""

    def for_user(self) -> BaseException:
        return self.error


class Sender:
    """Sends batches over one connection, and remembers whether a write was among them."""

    def __init__(self, conn: Any, *, watching: bool = False) -> None:
        # Only the first batch may connect: a new connection would have lost the plan's WATCH.
        self.conn, self.wrote, self.may_connect = conn, False, not watching

    def __call__(self, batch: Batch) -> Replies:
        commands, timeout, replies = wire(batch), read_timeout(self.conn, batch), list[Any]()
        before, began = self.wrote, time.monotonic()
        try:
            connect(self.conn, self.may_connect)
            self.may_connect, self.wrote = False, self.wrote or not batch.resend
            self.conn.send_packed_command(packed(self.conn, commands))
            while len(replies) < len(commands):
                replies.append(read_reply(self.conn, timeout))
                take_arrived(self.conn, replies, len(commands))
            found = unpack(batch, replies, resp2)
        except LOST as error:
            self.conn.disconnect()
            if batch.optional:
                raise LostError(repr(self.conn), str(error), wrote=True) from error
            is_refused = is_refusal(error, may_have_run=_may_have_run(batch, commands, replies))
            if before if is_refused else self.wrote:
                raise NotResentError(error) from error
            raise
        refuse_early_end(batch, found, time.monotonic() - began)
        return found

    def close(self) -> None:
        """The connection stays the caller's."""


def read_reply(conn: Any, timeout: float | None) -> Any:
    """Read an undecoded reply. An error reply is returned."""
    try:
        if timeout is None:
            return conn.read_response(disable_decoding=True)
        return read_within(conn, timeout)
    except exceptions.ResponseError as error:
        return error


def connect(conn: Any, may: bool = True) -> None:
    """Connect if the connection is not open. may: it has no state, like a WATCH, that would be lost."""
    if not may:
        _require_same(conn)
    elif not is_connected(conn):
        conn.connect()


def _require_same(conn: Any) -> None:
    """Before a command that belongs to this connection and to no other."""
    if not is_connected(conn):
        raise exceptions.ConnectionError("the connection was lost in the middle of a command")
    skip_health_check(conn)


class AsyncSender:
    """Sends batches over one connection, and remembers whether a write was among them."""

    def __init__(self, conn: Any, *, watching: bool = False) -> None:
        # Only the first batch may connect: a new connection would have lost the plan's WATCH.
        self.conn, self.wrote, self.may_connect = conn, False, not watching

    async def __call__(self, batch: Batch) -> Replies:
        commands, timeout, replies = wire(batch), read_timeout(self.conn, batch), list[Any]()
        before, began = self.wrote, time.monotonic()
        try:
            await aconnect(self.conn, self.may_connect)
            self.may_connect, self.wrote = False, self.wrote or not batch.resend
            await asend(self.conn, commands)
            while len(replies) < len(commands):
                replies.append(await aread_reply(self.conn, timeout))
                await awaited(take_arrived(self.conn, replies, len(commands)))
            found = unpack(batch, replies, resp2)
        except LOST as error:
            await self.conn.disconnect(nowait=True)
            if batch.optional:
                raise LostError(repr(self.conn), str(error), wrote=True) from error
            is_refused = is_refusal(error, may_have_run=_may_have_run(batch, commands, replies))
            if before if is_refused else self.wrote:
                raise NotResentError(error) from error
            raise
        refuse_early_end(batch, found, time.monotonic() - began)
        return found

    async def close(self) -> None:
        """The connection stays the caller's."""


async def asend(conn: Any, commands: Iterable[Command]) -> None:
    """Send commands. If it is cancelled, what is not sent yet stays unsent; redis-py would send it later."""
    writer = socket_of(conn)
    try:
        await uncancelled(conn.send_packed_command(packed(conn, commands)))
    except asyncio.CancelledError:
        _abort(writer)
        raise


def _abort(writer: Any) -> None:
    if writer is not None:
        writer.transport.abort()


def _cancels() -> int:
    """How often the current task was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def uncancelled(work: Awaitable[T]) -> T:
    """The result of work of redis-py, which sends with wait_for. On Python 3.11 it swallows cancellations."""
    cancels = _cancels()
    result = await work
    if _cancels() > cancels:
        raise asyncio.CancelledError
    return result


async def aread_reply(conn: Any, timeout: float | None) -> Any:
    """Read an undecoded reply. An error reply is returned.

    If it is cancelled, what is not sent yet stays unsent, as in `asend`: since Python 3.12 a large command
    may still be on its way when we begin to read.
    """
    writer = socket_of(conn)
    try:
        if timeout is None:
            return await conn.read_response(disable_decoding=True)
        # Ours expires first: redis-py's timeout returns None and leaves the reply to the next reader.
        async with asyncio.timeout(timeout):
            return await conn.read_response(disable_decoding=True, timeout=2 * timeout)
    except asyncio.CancelledError:
        _abort(writer)
        raise
    except TimeoutError as error:
        raise exceptions.TimeoutError(f"Timeout reading from {conn!r}") from error
    except exceptions.ResponseError as error:
        return error


async def aconnect(conn: Any, may: bool = True) -> None:
    """Connect if the connection is not open. redis-py's pool may return one that the server has closed."""
    if is_connected(conn) and closed_by_server(conn):
        await conn.disconnect(nowait=True)
    if not may:
        _require_same(conn)
    elif not is_connected(conn):
        await conn.connect()


def read_timeout(conn: Any, batch: Batch) -> float | None:
    """The socket's timeout plus the time that the engine may block; None: the socket's timeout applies."""
    if batch.block_ms is None or conn.socket_timeout is None:
        return None
    return float(conn.socket_timeout) + batch.block_ms / 1000
