"""Bounded retries: a step that relied on a stale cache changed nothing, so read again, and retry.

Each failure means that another client has made progress, so a few attempts are enough. Nothing waits here:
`back_off` (replication/endpoint.py) waits between attempts to connect.
"""

from collections.abc import Callable
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

TRIES: Final = 16
# Errors of the functions for a caller whose view of a stream is stale. They changed nothing.
STALE: Final = ("BSSTALE", "BSNOKEY", "BSNOGROUP")


def contended(what: str) -> ReplyError:
    """The error if other clients were faster every time."""
    return ReplyError(f"ERR {what}. Try again.")


class Retries:
    """At most `most` attempts in a row, then the error.

    retries = Retries("other clients kept deleting it")
    while True:
        retries.count()
        ...
    """

    __slots__ = ("_error", "_left", "_most", "_what")

    def __init__(
        self, what: str, *, most: int = TRIES, error: Callable[[str], Exception] = contended
    ) -> None:
        self._what, self._most, self._error = what, most, error
        self._left = most

    def count(self) -> int:
        """Begin an attempt: returns the number of earlier ones. Raises the error if it is one too many."""
        if self._left == 0:
            raise self._error(self._what)
        self._left -= 1
        return self._most - self._left - 1

    def reset(self) -> None:
        """The last attempt made progress: start counting again."""
        self._left = self._most


def until_current(view: View, name: bytes, make: Callable[[], Plan[Command | None]]) -> Plan[Any]:
    """Call a function of the engine with the cached state of a stream; if that was stale, read it and retry.

    make: builds the call; None if there is nothing to do.
    """
    retries = Retries(f"the strands of {name.decode(errors='replace')!r} kept changing")
    while True:
        retries.count()
        command = yield from make()
        if command is None:
            return None
        [reply] = yield Batch([command], attempt=True)
        view.forget(name)
        if not isinstance(reply, ReplyError):
            return reply
        if reply.code not in STALE:
            raise reply
