"""SIGTERM and SIGINT stop all consumers of a process that listen to them.

    SIGTERM ---> one handler ---> consumer.stop_by_signal() of each
                      `---------> the handler that was there before: of a web server, say

A handler that was there before runs at once, so that one signal stops everything. If it raises (many call
`sys.exit`), the last consumer that stops raises it, when its work is done. Defaults do not run: they would
end the process before the work is done. Those are Python's and the system's, and the handler of
`asyncio.run` for Ctrl-C, which cancels the main task.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

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
