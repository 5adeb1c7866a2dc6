"""Bounded attempts. A step that relied on stale knowledge changed nothing: look again, and do it again.

Each failure means that another client has made progress, so a few attempts are enough. Nothing waits here:
`back_off` (replication/endpoint.py) waits between attempts to connect.
"""

from collections.abc import Callable
from typing import Final

from braidstream.errors import ReplyError

TRIES: Final = 16


def contended(what: str) -> ReplyError:
    """What a user gets when other clients were faster every time."""
    return ReplyError(f"ERR {what}. Try again.")


class Retries:
    """At most so many attempts in a row, then the error.

    retries = Retries("others kept deleting it")
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
        """An attempt begins: how many there were before. Raises the error if it would be one too many."""
        if self._left == 0:
            raise self._error(self._what)
        self._left -= 1
        return self._most - self._left - 1

    def reset(self) -> None:
        """The last attempt got somewhere: the count starts over."""
        self._left = self._most
