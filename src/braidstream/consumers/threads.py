"""`braidstream.Consumer`: handlers run in threads.

    taker thread     reads new entries, as many as the keeper allows
    keeper           the thread of `run()`: owns all state, acknowledges, extends, claims, moves dead letters
    worker threads   run handlers

They share queues only. Workers take new entries from `hand.fresh`, everything else from the pool's queues.
The keeper reads `inbox`: entries that were taken, and failures of handlers. Handled entries go to `handled`.
Waking a thread is slow: so only the first handled entry wakes the keeper, and each worker wakes the next.
"""

import asyncio
import contextlib
import ctypes
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, TypeVar

from braidstream.clients.cluster_client import RedisCluster
from braidstream.clients.sync import Redis
from braidstream.clusters.nodes import finish
from braidstream.consumers.base import ConsumerBase
from braidstream.consumers.handler import (
    Fresh,
    LapsedError,
    Message,
    Reject,
    Work,
    call_whole,
    messages_of,
    refuse_unawaited,
    refuse_unfinished,
)
from braidstream.consumers.middleware import Middleware, wrapped
from braidstream.consumers.turn import Read
from braidstream.observability.events import emit

T = TypeVar("T")

# ----------------------------------------------------------------------------------------------------
#
# SIGTERM and SIGINT stop all consumers of a process that listen to them.
#
#     SIGTERM ---> one handler ---> consumer.stop_by_signal() of each
#                       `---------> the handler that was there before: of a web server, say
#
# A handler that was there before runs at once, so that one signal stops everything. If it raises (many call
# `sys.exit`), the last consumer that stops raises it, when its work is done. Defaults do not run: they
# would end the process before the work is done. Those are Python's and the system's, and the handler of
# `asyncio.run` for Ctrl-C, which cancels the main task.

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_stops = list[Callable[[], object]]()
_before = dict[int, Any]()
_raised = list[BaseException]()
_called = set[int]()


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` for each signal. Only in the main thread: others get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for each in SIGNALS:
        if signal.getsignal(each) is not _on_signal:  # also if another library came after the first consumer
            _before[each] = signal.signal(each, _on_signal)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore()


def _restore() -> None:
    for each in SIGNALS:
        if signal.getsignal(each) is _on_signal:  # else another library has replaced it
            signal.signal(each, signal.SIG_DFL if _before[each] is None else _before[each])
    if _raised:
        error = _raised[0]
        _raised.clear()
        raise error


def _on_signal(number: int, frame: FrameType | None) -> None:
    stops, before = list(_stops), _before[number]
    for stop in stops:
        stop()
    if not stops and before in (signal.SIG_DFL, None):
        # Another library put this handler back after the last consumer had left.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    if number in _called or not callable(before) or (stops and _is_default(before)):
        return
    _called.add(number)  # it may call us: we were there before it
    try:
        before(number, frame)
    except BaseException as error:
        if not stops:
            raise
        _raised.append(error)
    finally:
        _called.discard(number)


def _is_default(handler: Callable[..., Any]) -> bool:
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler is signal.default_int_handler or isinstance(owner, asyncio.Runner)


# ----------------------------------------------------------------------------------------------------
# The threads that run handlers. A thread whose handler hangs is given up, and another takes its place.

Task = Work | Fresh
# What handling some messages came to: the error of all of them, and what was rejected of them.
Outcome = tuple[BaseException | None, dict[Message, Reject]]
Report = Callable[[Task, BaseException | None, dict[Message, Reject]], None]


class HandlerTimeout(BaseException):
    """Raised inside a handler that has run for longer than `timeout`. Not an Exception: `except Exception` in
    a handler does not catch it."""


class Worker(threading.Thread):
    """Takes work until it gets None, or is given up.

    No name of ours begins with `_`: Thread has such names of its own, others in each version of Python.
    """

    def __init__(self, pool: "WorkerPool") -> None:
        super().__init__(daemon=True, name="braidstream-handler")
        self.pool, self.ending = pool, threading.Lock()
        self.work: Task | None = None
        self.started = 0.0
        self.is_given_up = False

    def run(self) -> None:
        try:
            while (work := self.pool.next()) is not None:
                if self.pool.has_timeout:
                    self.handle_in_time(work)
                elif isinstance(work, tuple) and self.pool.drain is not None:
                    self.pool.drain(work)
                else:
                    self.pool.report(work, *self.outcome(work))
                if self.is_given_up:
                    return
        except HandlerTimeout:
            pass  # it came late, after the handler: this thread is given up already

    def handle_in_time(self, work: Task) -> None:
        self.started = time.monotonic()
        self.work = work
        error, rejected = self.outcome(work)
        with self.ending:
            self.work = None
            if self.is_given_up:
                return
        self.pool.report(work, error, rejected)

    def outcome(self, work: Task) -> Outcome:
        try:
            return self.pool.run(messages_of(work))
        except HandlerTimeout as error:
            return error, {}

    def give_up(self, work: Task) -> bool:
        """Stop waiting for the handler of some work; False if it has ended meanwhile.

        The exception reaches the handler when it next runs Python code. If it hangs in a call of the system,
        its thread stays until that call returns.
        """
        with self.ending:
            if self.work is not work:
                return False
            self.is_given_up = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident or 0), ctypes.py_object(HandlerTimeout)
            )
        return True


class WorkerPool:
    """A number of workers, and the work that waits for them: urgent work, then fresh entries, then the rest.

    has_timeout: handlers may be given up. drain: a shorter way for fresh entries, if there is one.
    """

    def __init__(
        self,
        size: int,
        run: Callable[[list[Message]], Outcome],
        report: Report,
        *,
        fresh: deque[Fresh],
        has_timeout: bool,
    ) -> None:
        self.run, self.report, self.fresh, self.has_timeout = run, report, fresh, has_timeout
        self.drain: Callable[[Fresh], None] | None = None
        self.urgent = deque[Work]()
        self._queue = SimpleQueue[Work | None]()
        self._workers = [Worker(self) for _ in range(size)]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def put(self, works: Iterable[Work]) -> None:
        for work in works:
            self._queue.put(work)

    def put_urgent(self, works: Iterable[Work]) -> None:
        for work in works:
            self.urgent.append(work)
            self._queue.put([])  # wakes a worker

    def wake(self) -> None:
        """There are fresh entries: a worker that waits wakes, and wakes the next one if there are more."""
        if self.fresh and self._queue.empty():
            self._queue.put([])

    def next(self) -> Task | None:
        """The next work; None if the worker shall end."""
        while True:
            if self.urgent and (work := _popped(self.urgent)) is not None:
                return work
            if self.fresh and (entry := _popped(self.fresh)) is not None:
                return entry
            found = self._queue.get()
            if found is None or found:
                return found
            if len(self.fresh) > 1:
                self.wake()

    def take_back(self) -> list[Work]:
        """The work that no worker has started."""
        found = list[Work]()
        while (work := _popped(self.urgent)) is not None:
            found.append(work)
        with contextlib.suppress(Empty):
            while True:
                if work := self._queue.get_nowait():
                    found.append(work)
        return found

    def overdue(self, timeout: float, now: float) -> list[Task]:
        """Give up the handlers that have run for too long; returns their work."""
        found = list[Task]()
        for at, worker in enumerate(self._workers):
            work = worker.work
            if work is not None and now - worker.started >= timeout and worker.give_up(work):
                found.append(work)
                self._workers[at] = Worker(self)
                self._workers[at].start()
        return found

    def next_overdue(self, timeout: float, now: float) -> float:
        """When to look again for handlers that have run for too long."""
        running = [worker.started + timeout for worker in self._workers if worker.work is not None]
        return min(running, default=now + timeout)

    def stop(self) -> None:
        """Idle workers end. Those whose handler hangs are daemons: they end with the process."""
        for _ in self._workers:
            self._queue.put(None)


def _popped(queue: deque[T]) -> T | None:
    try:
        return queue.popleft()
    except IndexError:  # another worker was faster
        return None


# ----------------------------------------------------------------------------------------------------
# Threads


class Consumer(ConsumerBase[Redis | RedisCluster]):
    """A worker of a consumer group."""

    _clients = (Redis, RedisCluster)
    _module = "braidstream"

    def _set_up(self) -> None:
        self._inbox = SimpleQueue[Any]()
        self._is_rung = False
        self._permits = SimpleQueue[Read | None]()
        self._pool = WorkerPool(
            self._settings.concurrency,
            self._run,
            self._report,
            fresh=self._hand.fresh,
            has_timeout=self._settings.timeout is not None,
        )
        self._middleware = list[Middleware]()

    def middleware(self, function: Middleware) -> Middleware:
        """Decorator: a function that surrounds the handler. It gets the messages, and calls `call_next`."""
        refuse_unawaited(function)
        self._middleware.append(function)
        return function

    def _check_handler(self, function: Callable[..., Any]) -> None:
        refuse_unawaited(function)

    def run(self, *, signals: bool = True, until_empty: bool = False) -> None:
        """Handle entries until `stop()` is called, or SIGTERM or SIGINT arrives.

        A second signal does not wait for running handlers.

        until_empty: stop when it has handled all that there is to read. For tests and batch jobs.
        signals: whether to react to signals. In other threads than the main thread it never does. If your
            program, or its web server, has a handler for the signal, that runs too.
        """
        self._begin(surrounded=bool(self._middleware), until_empty=until_empty)
        self._pool.drain = self._drain if self._is_plain else None
        with stopped_by_signals(self._stop_by_signal) if signals else nullcontext():
            for hook in self._starts:
                hook()
            try:
                self._serve()
            finally:
                for hook in self._stops:
                    hook()
            emit("consumer.stopped", group=self._settings.group, name=self._settings.name)

    def _serve(self) -> None:
        taker = threading.Thread(target=self._take_all, daemon=True, name="braidstream-taker")
        finish(self._join())
        self._pool.start()
        taker.start()
        if self._turns.partitions is not None:
            watcher = threading.Thread(target=lambda: finish(self._await_calls()), daemon=True)
            watcher.start()
        try:
            self._keep()
        finally:
            self._is_ended = True
            self._permits.put(None)
            self._pool.stop()

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _ring(self) -> None:
        self._inbox.put(None)

    def _say(self, event: Any) -> None:
        self._inbox.put(event)

    # The taker

    def _take_all(self) -> None:
        while (how := self._permits.get()) is not None:
            try:
                self._inbox.put(finish(self._read(how)))
            except Exception as error:
                self._inbox.put(error)

    # The workers

    def _drain(self, fresh: Fresh) -> None:
        """Handle a fresh entry, and those after it, with one call each: nothing surrounds the handler."""
        function, urgent = self._function, self._pool.urgent
        take, handled = self._hand.fresh.popleft, self._handled.append
        while True:
            place, message = fresh
            try:
                result = function(message)
                if result is not None:
                    refuse_unfinished(result)
            except BaseException as error:  # also SystemExit: only the handler ends
                self._inbox.put((fresh, error, {}))
            else:
                handled(place)
                if not self._is_rung:
                    self._ring_once()
            if urgent:
                return
            try:
                fresh = take()
            except IndexError:
                return

    def _run(self, messages: list[Message]) -> Outcome:
        rejected: dict[Message, Reject] = {}
        if self._has_lapsed:
            return LapsedError(), rejected
        try:
            if self._is_plain:
                call_whole(self._function, messages[0])
                return None, rejected
            valid, call = self._prepare(messages, rejected)
            if valid:
                if self._middleware:
                    call = wrapped(valid, self._middleware, partial(call_whole, call))
                with self._observed(valid):
                    call_whole(call)
        except HandlerTimeout:
            raise
        except BaseException as error:  # also SystemExit: only the handler ends
            return error, rejected
        return None, rejected

    def _report(self, task: Task, error: BaseException | None, rejected: dict[Message, Reject]) -> None:
        if error is not None or rejected or len(messages_of(task)) > 1:
            self._inbox.put((task, error, rejected))
            return
        self._handled.append(task[0])
        if not self._is_rung:
            self._ring_once()

    def _ring_once(self) -> None:
        self._is_rung = True
        self._inbox.put(None)

    def _take_back(self) -> list[Work]:
        return self._pool.take_back()

    def _put_urgent(self, works: list[Work]) -> None:
        self._pool.put_urgent(works)

    # The keeper

    def _keep(self) -> None:
        while not self._is_done():
            finish(self._follow())
            now = time.monotonic()
            self._give_up_hanging(now)
            self._hand_out(now)
            finish(self._turn(now))
            self._hand_out(now)
            self._listen()
        finish(self._leave())

    def _listen(self) -> None:
        """Wait for the next event, or for the time of the next task; then hear all that has happened."""
        try:
            event = self._inbox.get(timeout=self._patience())
            while True:
                self._hear(event)
                event = self._inbox.get_nowait()
        except Empty:
            pass
        self._is_rung = False  # first: what is handled from here on rings again
        self._hear_handled()

    def _patience(self) -> float:
        now = time.monotonic()
        until = self._next_time(now)
        if self._settings.timeout is not None:
            until = min(until, self._pool.next_overdue(self._settings.timeout, now))
        return max(until - now, 0.0)

    def _give_up_hanging(self, now: float) -> None:
        if self._settings.timeout is not None:
            for work in self._pool.overdue(self._settings.timeout, now):
                self._finished(work, self._too_late(), {})

    def _hand_out(self, now: float) -> None:
        """Give work to the workers, and leave to the taker."""
        self._turns.follow_team(now)
        self._hand.wake(now)
        self._pool.put(self._hand.next_work(now))
        self._pool.wake()
        if self._may_read(now):
            self._permits.put(self._will_read())
