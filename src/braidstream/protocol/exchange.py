"""A batch on the wire: the commands to send for it, and the replies as its plan gets them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from braidstream.errors import ReplyError, UnblockedError
from braidstream.model.command import Command
from braidstream.protocol.plan import Batch, Replies

# Converts a reply from the form that a connection reads to the form that plans expect.
Shape = Callable[[Command, Any], Any]

EXEC: Final = ("EXEC",)


@dataclass(frozen=True, slots=True)
class Exchange(Batch):
    """Commands of a pipeline, including native ones. Replies are returned as the connection reads them.

    unread: so many replies at the start do not matter. A cluster client does not wait for a slot that moves
        if only those commands are left.
    """

    attempt: bool = True
    unread: int = 0


def wire(batch: Batch) -> list[Command]:
    """The commands to send for a batch."""
    return [("MULTI",), *batch.commands, EXEC] if batch.atomic else list(batch.commands)


# The clocks of the engine and of this process are read at different moments.
_EARLY_MS: Final = 2


def refuse_early_end(batch: Batch, replies: Replies, waited_s: float) -> None:
    """UnblockedError if a batch that waits was answered nil before its time."""
    if batch.block_ms is not None and waited_s * 1000 < batch.block_ms - _EARLY_MS and replies[-1] is None:
        raise UnblockedError


def unpack(batch: Batch, replies: Replies, shape: Shape) -> Replies:
    """The replies as the plan gets them, from those that the connection read."""
    if batch.atomic:
        last = shape(EXEC, replies[-1])
        if isinstance(last, ReplyError):
            began, *queued = map(shape, wire(batch), replies)
            if isinstance(began, ReplyError) and batch.attempt and not isinstance(batch, Exchange):
                # The user may not run MULTI. So the engine ran the commands one by one: the plan gets their
                # replies. Plans that WATCH keys fail, and so does a MULTI of the user's own.
                last = replies[1:-1]
            else:
                raise next((each for each in (began, *queued) if isinstance(each, ReplyError)), last)
        if last is None:
            return None  # type: ignore[return-value]  # only plans that WATCH get it
        replies = last
    if isinstance(batch, Exchange):
        return replies
    return [shape(command, reply) for command, reply in zip(batch.commands, replies, strict=True)]
