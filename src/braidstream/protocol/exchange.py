"""A batch on the wire: the commands that are sent for it, and what the plan gets for the replies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from braidstream.errors import ReplyError
from braidstream.model.command import Command
from braidstream.protocol.plan import Batch, Replies

# A reply as a plan knows it, from what the driver's connection read.
Shape = Callable[[Command, Any], Any]


@dataclass(frozen=True, slots=True)
class Exchange(Batch):
    """Commands of a pipeline, native ones among them. Replies come back as the connection read them."""

    attempt: bool = True


def wire(batch: Batch) -> list[Command]:
    """What is sent for a batch."""
    return [("MULTI",), *batch.commands, ("EXEC",)] if batch.atomic else list(batch.commands)


def unpack(batch: Batch, replies: Replies, shape: Shape) -> Replies:
    """What the plan gets for what the connection read."""
    if batch.atomic:
        *queued, last = (shape(command, reply) for command, reply in zip(wire(batch), replies, strict=True))
        if isinstance(last, ReplyError):
            raise next((each for each in queued if isinstance(each, ReplyError)), last)
        if last is None:
            return None  # type: ignore[return-value]  # only plans that WATCH can see it
        replies = last
    if isinstance(batch, Exchange):
        return replies
    return [shape(command, reply) for command, reply in zip(batch.commands, replies, strict=True)]
