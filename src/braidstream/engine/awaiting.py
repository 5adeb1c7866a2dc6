"""I/O over one connection of redis-py's asyncio half. blocking.py has the same names for the other half."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from redis import exceptions

from braidstream.engine.redis_py import closed_by_server, is_connected, packed, require_same, socket_of
from braidstream.model.strand import Command

T = TypeVar("T")


async def connect(conn: Any, may: bool = True) -> None:
    """Connect if the connection is not open. redis-py's pool may return one that the server has closed."""
    if is_connected(conn) and closed_by_server(conn):
        await conn.disconnect(nowait=True)
    if not may:
        require_same(conn)
    elif not is_connected(conn):
        await conn.connect()


async def send(conn: Any, commands: Iterable[Command]) -> None:
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


async def read_reply(conn: Any, timeout: float | None, *, decoded: bool = False) -> Any:
    """Read a reply. An error reply is returned.

    If it is cancelled, what is not sent yet stays unsent, as in `send`: since Python 3.12 a large command
    may still be on its way when we begin to read.
    """
    writer = socket_of(conn)
    try:
        if timeout is None:
            return await conn.read_response(disable_decoding=not decoded)
        # Ours expires first: redis-py's timeout returns None and leaves the reply to the next reader.
        async with asyncio.timeout(timeout):
            return await conn.read_response(disable_decoding=not decoded, timeout=2 * timeout)
    except asyncio.CancelledError:
        _abort(writer)
        raise
    except TimeoutError as error:
        raise exceptions.TimeoutError(f"Timeout reading from {conn!r}") from error
    except exceptions.ResponseError as error:
        return error


def is_interruption(error: BaseException) -> bool:
    """Whether it came from outside: the task was cancelled."""
    return isinstance(error, asyncio.CancelledError)


def opens_in_time(conn: Any, timeout: float) -> asyncio.Timeout:
    """What happens here, also that the connection is opened, may take so many seconds."""
    return asyncio.timeout(timeout)


async def awaited(value: Any) -> Any:
    """The value, also if it must be awaited: from redis-py's asyncio clients, or a user's callback."""
    return await value if hasattr(value, "__await__") else value


async def awaited_all(values: list[Any]) -> list[Any]:
    return [await value if hasattr(value, "__await__") else value for value in values]


new_lock = asyncio.Lock


def in_background(work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work())


def is_running(work: asyncio.Task[None] | None) -> bool:
    return work is not None and not work.done()


async def end(work: asyncio.Task[None] | None) -> None:
    if work is not None and work.cancel():
        await asyncio.wait([work])
