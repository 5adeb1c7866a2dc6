"""One entry that a consumer has in hand, and how handling it can fail."""

import os
import traceback
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from braidstream.consumers.message import Message

# How much of a traceback is logged and stored: this many frames and characters.
_MOST_FRAMES: Final = 20
_MOST_TRACE: Final = 4000
_HERE: Final = os.path.dirname(__file__)


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
    traceback: where its last attempt failed, if it is dead.
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
    traceback: str = ""


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


def traced(error: BaseException) -> str:
    """Where an error was raised, as Python shows it: the innermost frames. Empty for one that a handler
    raised on purpose (Reject), and for one that no code raised."""
    if isinstance(error, Reject) or error.__traceback__ is None:
        return ""
    try:
        frames = error.__traceback__
        while frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(_HERE):
            frames = frames.tb_next  # not those of the consumer
        shown = traceback.TracebackException(type(error), error, frames, limit=-_MOST_FRAMES)
        text = "".join(shown.format()).rstrip()
    except Exception:
        return ""
    half = _MOST_TRACE // 2
    return text if len(text) <= _MOST_TRACE else f"{text[:half]}\n  [...]\n{text[-half:]}"
