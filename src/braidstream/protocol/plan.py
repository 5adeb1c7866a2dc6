"""Plans: what to say to the engine and what to make of the answers, without any I/O.

A plan is a generator. It yields a `Batch` of native commands, receives their replies (RESP2-shaped,
bytes), and returns its result. `run` and `arun` are the only two loops; clients, gateway and tests
give them a way to send.

    plan          run                 send
     |  Batch      |                   |
     |------------>|  one round trip   |
     |             |------------------>|
     |   replies   |<------------------|
     |<------------|
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

from braidstream.errors import ReplyError
from braidstream.model.command import Command

T = TypeVar("T")

Replies = list[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Native commands for one round trip.

    atomic: in a MULTI, so nothing of others comes between them. If a key that the plan WATCHes has
        changed by then, nothing was done and the replies are None.
    resend: sending it twice is as good as once, so a driver may retry it after a lost connection.
    attempt: error replies come back as values instead of being thrown into the plan.
    block_ms: how long the engine may keep the last command waiting.
    """

    commands: Sequence[Command]
    atomic: bool = False
    resend: bool = False
    attempt: bool = False
    block_ms: int | None = None


Plan = Generator[Batch, Replies, T]


def first_error(batch: Batch, replies: Replies | None) -> ReplyError | None:
    """The error to throw into the plan that asked, if any."""
    if batch.attempt or replies is None:
        return None
    return next((reply for reply in replies if isinstance(reply, ReplyError)), None)


# Writes that an engine whose memory is full does not refuse. Each of them is whole by itself.
_RELIEVING: Final = frozenset(("XTRIM", "XDEL", "XACK", "XREADGROUP", "XCLAIM", "XPENDING", "HGETALL"))
_RELIEVING_TOO: Final = frozenset((("FCALL", "bs_entry_drop"), ("XGROUP", "DELCONSUMER")))


def _relieves(command: Command) -> bool:
    return command[0] in _RELIEVING or command[:2] in _RELIEVING_TOO


def without_multi(batch: Batch, refused: ReplyError) -> Batch | None:
    """What to send instead of a MULTI that was refused, with nothing of it done; None if that is the answer.

    When memory is full, Redis refuses every command between MULTI and EXEC, reads and deletions too. Outside
    it takes them. That they are one step matters little then: nobody can add anything meanwhile.
    """
    if refused.code != "OOM" or not batch.atomic:
        return None
    if batch.resend or all(_relieves(command) for command in batch.commands):
        return replace(batch, atomic=False)
    return None


def send_one(command: Command, *, resend: bool = False) -> Plan[Any]:
    """One command: its reply. An error is raised."""
    [reply] = yield Batch([command], resend=resend)
    return reply


def run(plan: Plan[T], send: Callable[[Batch], Replies]) -> T:
    """Drive a plan to its result. Each batch it yields is one round trip."""
    step: Callable[[Any], Batch] = plan.send
    value: Any = None
    while True:
        try:
            batch = step(value)
        except StopIteration as stop:
            return cast(T, stop.value)
        try:
            value = send(batch)
            error = first_error(batch, value)
        except ReplyError as refused:  # a MULTI that was not executed
            error, instead = refused, without_multi(batch, refused)
            if instead is not None:
                value = send(instead)
                error = first_error(instead, value)
        step, value = (plan.throw, error) if error else (plan.send, value)


async def arun(plan: Plan[T], send: Callable[[Batch], Awaitable[Replies]]) -> T:
    """`run`, with one await."""
    step: Callable[[Any], Batch] = plan.send
    value: Any = None
    while True:
        try:
            batch = step(value)
        except StopIteration as stop:
            return cast(T, stop.value)
        try:
            value = await send(batch)
            error = first_error(batch, value)
        except ReplyError as refused:  # a MULTI that was not executed
            error, instead = refused, without_multi(batch, refused)
            if instead is not None:
                value = await send(instead)
                error = first_error(instead, value)
        step, value = (plan.throw, error) if error else (plan.send, value)
