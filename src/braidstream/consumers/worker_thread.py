"""The threads that run handlers. A thread whose handler hangs is given up, and another takes its place."""

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from braidstream.consumers.held import Reject, Work

# Runs the handler; returns the error of all of the work, and what was rejected of it.
Run = Callable[[Work], tuple[BaseException | None, dict[Any, Reject]]]
Report = Callable[[Work, BaseException | None, dict[Any, Reject]], None]


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
        self.work: Work | None = None
        self.started = 0.0
        self.is_given_up = False

    def run(self) -> None:
        try:
            while (work := self.pool.next()) is not None:
                if self.pool.has_timeout:
                    self.handle_in_time(work)
                else:
                    self.pool.report(work, *self.outcome(work))
                if self.is_given_up:
                    return
        except HandlerTimeout:
            pass  # it came late, after the handler: this thread is given up already

    def handle_in_time(self, work: Work) -> None:
        self.started = time.monotonic()
        self.work = work
        error, rejected = self.outcome(work)
        with self.ending:
            self.work = None
            if self.is_given_up:
                return
        self.pool.report(work, error, rejected)

    def outcome(self, work: Work) -> tuple[BaseException | None, dict[Any, Reject]]:
        try:
            return self.pool.run(work)
        except HandlerTimeout as error:
            return error, {}

    def give_up(self, work: Work) -> bool:
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
    """A number of workers, and the work that waits for them. Urgent work comes first.

    has_timeout: handlers may be given up.
    """

    def __init__(self, size: int, run: Run, report: Report, *, has_timeout: bool) -> None:
        self.run, self.report, self.has_timeout = run, report, has_timeout
        self._queue = SimpleQueue[Work | None]()
        self._urgent = deque[Work]()
        self._workers = [Worker(self) for _ in range(size)]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def put(self, works: Iterable[Work]) -> None:
        for work in works:
            self._queue.put(work)

    def put_urgent(self, works: Iterable[Work]) -> None:
        for work in works:
            self._urgent.append(work)
            self._queue.put([])  # wakes a worker

    def next(self) -> Work | None:
        """The next work; None if the worker shall end."""
        while True:
            if self._urgent and (work := self._take_urgent()):
                return work
            found = self._queue.get()
            if found is None or found:
                return found

    def _take_urgent(self) -> Work | None:
        try:
            return self._urgent.popleft()
        except IndexError:
            return None

    def take_back(self) -> list[Work]:
        """The work that no worker has started."""
        found = list[Work]()
        while (work := self._take_urgent()) is not None:
            found.append(work)
        with contextlib.suppress(Empty):
            while True:
                if work := self._queue.get_nowait():
                    found.append(work)
        return found

    def overdue(self, timeout: float, now: float) -> list[Work]:
        """Give up the handlers that have run for too long; returns their work."""
        found = list[Work]()
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
