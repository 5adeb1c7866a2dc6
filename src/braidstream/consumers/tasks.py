"""`braidstream.asyncio.Consumer`: handlers run in tasks.

taker task     reads new entries, as many as the keeper allows
keeper         the task of `run()`: owns all state, acknowledges, extends, claims, moves dead letters
worker tasks   run handlers
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from braidstream.clients.aio import Redis
from braidstream.clients.aio_cluster import RedisCluster
from braidstream.consumers.base import ConsumerBase
from braidstream.consumers.handler import LapsedError, Message, Reject, Work, is_coroutine, messages_of
from braidstream.consumers.middleware import AsyncMiddleware, wrapped_async
from braidstream.consumers.threads import stopped_by_signals
from braidstream.consumers.turn import Read
from braidstream.observability.events import emit


class Consumer(ConsumerBase[Redis | RedisCluster]):
    """A worker of a consumer group, for asyncio. Handlers are coroutines."""

    _clients = (Redis, RedisCluster)
    _module = "braidstream.asyncio"

    def _set_up(self) -> None:
        self._work, self._urgent = deque[Work](), deque[Work]()
        self._idle = deque[asyncio.Future[None]]()
        self._events = deque[Any]()
        self._bell = asyncio.Event()
        self._permits = asyncio.Queue[Read]()
        self._middleware = list[AsyncMiddleware]()

    def middleware(self, function: AsyncMiddleware) -> AsyncMiddleware:
        """Decorator: a coroutine around the handler. It gets the messages and awaits `call_next()`."""
        self._middleware.append(function)
        return function

    def _check_handler(self, function: Callable[..., Any]) -> None:
        if not is_coroutine(function):
            raise TypeError(
                f"{function!r} must be a coroutine: async def. Use braidstream.Consumer for others."
            )

    async def run(self, *, signals: bool = True, until_empty: bool = False) -> None:
        """Handle entries until `stop()` is called, or SIGTERM or SIGINT arrives.

        A second signal does not wait for running handlers.

        until_empty: stop when it has handled all that there is to read. For tests and batch jobs.
        signals: whether to react to signals. In other threads than the main thread it never does. If your
            program, or its web server, has a handler for the signal, that runs too.
        """
        self._begin(surrounded=bool(self._middleware), until_empty=until_empty)
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, self._stop_by_signal)
        with stopped_by_signals(stop) if signals else contextlib.nullcontext():
            for hook in self._starts:
                await hook()
            try:
                await self._serve()
            finally:
                for hook in self._stops:
                    await hook()
            emit("consumer.stopped", group=self._settings.group, name=self._settings.name)

    async def _serve(self) -> None:
        await self._join()
        tasks = [asyncio.create_task(self._take_all())]
        if self._turns.partitions is not None:
            tasks.append(asyncio.create_task(self._await_calls()))
        tasks += [asyncio.create_task(self._work_all()) for _ in range(self._settings.concurrency)]
        try:
            await self._keep()
        finally:
            self._is_ended = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _sleep(self, seconds: float) -> Any:
        return asyncio.sleep(seconds)

    def _ring(self) -> None:
        self._bell.set()

    # The taker

    async def _take_all(self) -> None:
        while True:
            how = await self._permits.get()
            try:
                self._say(await self._read(how))
            except Exception as error:
                self._say(error)

    def _say(self, event: Any) -> None:
        self._events.append(event)
        self._bell.set()

    # The workers

    async def _work_all(self) -> None:
        is_short = self._is_plain and self._settings.timeout is None
        while not self._is_ended:  # a handler may swallow its cancellation
            if is_short and self._hand.fresh and not self._urgent:
                await self._drain()
                continue
            queue: deque[Any] = self._urgent or self._hand.fresh or self._work
            if not queue:
                self._idle.append(asyncio.get_running_loop().create_future())
                await self._idle[-1]
                continue
            task = queue.popleft()
            messages = messages_of(task)
            error, rejected = await self._run(messages)
            if error is not None or rejected or len(messages) > 1:
                self._say((task, error, rejected))
            else:
                self._handled.append(task[0])
                self._bell.set()

    async def _drain(self) -> None:
        """Handle fresh entries with one call each: nothing surrounds the handler."""
        fresh, urgent, handled = self._hand.fresh, self._urgent, self._handled.append
        while fresh and not (urgent or self._is_ended):
            entry = fresh.popleft()
            try:
                await self._function(entry[1])
            except BaseException as error:
                self._raise_if_ended(error)
                self._say((entry, error, {}))
            else:
                handled(entry[0])
                self._bell.set()

    def _raise_if_ended(self, error: BaseException) -> None:
        """Also SystemExit ends a handler only."""
        if isinstance(error, asyncio.CancelledError) and self._is_ended:
            raise error

    async def _run(self, messages: list[Message]) -> tuple[BaseException | None, dict[Message, Reject]]:
        rejected: dict[Message, Reject] = {}
        if self._has_lapsed:
            return LapsedError(), rejected
        try:
            if self._is_plain and self._settings.timeout is None:
                await self._function(messages[0])
                return None, rejected
            valid, call = self._prepare(messages, rejected)
            if valid:
                if self._middleware:
                    call = wrapped_async(valid, self._middleware, call)
                with self._observed(valid):
                    await self._in_time(call)
        except BaseException as error:
            self._raise_if_ended(error)
            return error, rejected
        return None, rejected

    async def _in_time(self, call: Callable[[], Any]) -> None:
        limit = asyncio.timeout(self._settings.timeout)
        try:
            async with limit:
                await call()
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._too_late() from None

    def _take_back(self) -> list[Work]:
        found = [*self._urgent, *self._work]
        self._urgent.clear()
        self._work.clear()
        return found

    # The keeper

    async def _keep(self) -> None:
        while not self._is_done():
            await self._follow()
            now = time.monotonic()
            self._hand_out(now)
            await self._turn(now)
            self._hand_out(now)
            await self._listen()
        await self._leave()

    async def _listen(self) -> None:
        """Wait for the next event, or for the time of the next task; then hear all that has happened."""
        if not (self._events or self._handled):
            now = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._next_time(now) - now, 0.0)):
                    await self._bell.wait()
        self._bell.clear()
        while self._events:
            self._hear(self._events.popleft())
        self._hear_handled()

    def _hand_out(self, now: float) -> None:
        """Give work to the workers, and leave to the taker."""
        self._turns.follow_team(now)
        self._hand.wake(now)
        self._put(self._work, self._hand.next_work(now))
        self._wake(len(self._hand.fresh))
        if self._may_read(now):
            self._permits.put_nowait(self._will_read())

    def _put_urgent(self, works: list[Work]) -> None:
        self._put(self._urgent, works)

    def _put(self, queue: deque[Work], works: list[Work]) -> None:
        queue.extend(works)
        self._wake(len(works))

    def _wake(self, tasks: int) -> None:
        for _ in range(min(tasks, len(self._idle))):
            self._idle.popleft().set_result(None)
