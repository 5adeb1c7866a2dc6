"""One entry that a consumer has in hand, and how handling it can fail."""

from collections.abc import Hashable
from dataclasses import dataclass

from braidstream.consumers.message import Message


class Reject(Exception):
    """Raise it in a handler to move the entry to the dead letters at once, without further attempts."""


@dataclass(slots=True, eq=False)
class Held:
    """One entry in hand.

    attempts: how many were started.
    is_counted: the engine counts the next attempt already.
    lease: until when no other consumer claims it.
    is_lost: another consumer has claimed it.
    is_again: the running attempt was counted on its own, before it started.
    is_suspect: its last attempt was in a process that crashed.
    """

    message: Message
    stream: bytes
    id: bytes
    attempts: int
    is_counted: bool
    lease: float
    is_running: bool = False
    is_lost: bool = False
    is_again: bool = False
    is_suspect: bool = False
    key: Hashable = None


# What a handler gets at once: one entry, or a batch.
Work = list[Held]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an entry was not handled. delay: seconds until the next attempt; None if it is dead."""

    held: Held
    error: BaseException
    delay: float | None


def described(error: BaseException) -> str:
    """An error in one line. The text of an error may itself fail."""
    name = "rejected" if isinstance(error, Reject) else type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return name
