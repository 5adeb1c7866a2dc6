"""What surrounds a handler: middleware, and hooks for metrics and traces.

    @consumer.middleware
    def timed(messages: Sequence[Message], call_next: Callable[[], None]) -> None:
        began = time.monotonic()
        call_next()
        print(messages[0].id, time.monotonic() - began)

The first middleware is the outermost. It runs where the handler runs, within its timeout, and may raise.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from braidstream.consumers.message import Message

Middleware = Callable[[Sequence[Message], Callable[[], None]], None]
AsyncMiddleware = Callable[[Sequence[Message], Callable[[], Awaitable[None]]], Awaitable[None]]


class Observer:
    """What metrics and traces are made of. Called from the threads or tasks of a consumer."""

    def taken(self, stream: str, entries: int) -> None:
        """New entries were taken."""

    def claimed(self, stream: str, entries: int) -> None:
        """Entries of other consumers were taken over."""

    def ended(self, stream: str, outcome: str, entries: int = 1) -> None:
        """outcome: handled, failed, rejected, or dead. One that is dead has failed or was rejected before."""

    def in_hand(self, entries: int, running: int) -> None:
        """So many are in hand now, and so many handlers run or are next."""

    def handling(self, messages: Sequence[Message]) -> AbstractContextManager[object]:
        """Surrounds the middleware and the handler. Errors pass through it."""
        return nullcontext()


def wrapped(
    messages: Sequence[Message], middleware: Sequence[Middleware], handle: Callable[[], None]
) -> Callable[[], None]:
    """A handler inside its middleware."""
    for each in reversed(middleware):
        handle = partial(each, messages, handle)
    return handle


def wrapped_async(
    messages: Sequence[Message], middleware: Sequence[AsyncMiddleware], handle: Callable[[], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    for each in reversed(middleware):
        handle = partial(each, messages, handle)
    return handle
