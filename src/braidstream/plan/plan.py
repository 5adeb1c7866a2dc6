"""Plans: which commands to send to the engine and how to use the replies, without any I/O.

A plan is a generator. It yields a `Batch` of native commands, receives their replies (RESP2-shaped,
bytes), and returns its result. `run` and `arun` are the only two loops. Clients, gateway and tests pass
them a function that sends a batch.

    plan          run                 send
     |  Batch      |                   |
     |------------>|  one round trip   |
     |             |------------------>|
     |   replies   |<------------------|
     |<------------|
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeVar, cast

from braidstream.errors import BraidError, LostError, ReplyError, UnblockedError
from braidstream.model.strand import Command

T = TypeVar("T")

Replies = list[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Native commands for one round trip.

    atomic: in a MULTI, so no command of another client runs between them. If a key that the plan WATCHes has
        changed, nothing was run and the replies are None.
    resend: it is idempotent, so a driver may retry it after a lost connection.
    attempt: error replies are returned as values instead of thrown into the plan.
    block_ms: how long the last command may block.
    optional: the plan can go on without it. If the connection is lost, the plan gets a ReplyError.
    raw: the first reply, if it is an array, may be returned unparsed, as a bytearray.
    packed: the only command as bytes. `commands` has its first words.
    """

    commands: Sequence[Command]
    atomic: bool = False
    resend: bool = False
    attempt: bool = False
    block_ms: int | None = None
    optional: bool = False
    raw: bool = False
    packed: bytes = b""


Plan = Generator[Batch, Replies, T]


def first_error(batch: Batch, replies: Replies | None) -> ReplyError | None:
    """The error to throw into the plan, if any."""
    if batch.attempt or replies is None:
        return None
    return next((reply for reply in replies if isinstance(reply, ReplyError)), None)


def _may_have_written(batch: Batch, replies: Replies | None) -> bool:
    """Whether a batch that was answered may have changed something. What gets an error changed nothing."""
    if batch.resend or replies is None:
        return False
    return not all(isinstance(reply, ReplyError) for reply in replies)


# Writes that an engine accepts when its memory is full. Each is complete without the others.
_RELIEVING: Final = frozenset(("XTRIM", "XDEL", "XACK", "XREADGROUP", "XCLAIM", "XPENDING", "HGETALL"))
_RELIEVING_TOO: Final = frozenset(
    (
        ("FCALL", "bs_entry_drop"),
        ("FCALL", "bs_entry_trim"),
        ("FCALL", "bs_group_read"),
        ("XGROUP", "DELCONSUMER"),
    )
)


def _relieves(command: Command) -> bool:
    return command[0] in _RELIEVING or command[:2] in _RELIEVING_TOO


def without_multi(batch: Batch, refused: ReplyError) -> Batch | None:
    """The batch to send instead of a MULTI that was refused before it ran; None if the error stands.

    When memory is full, Redis refuses every command between MULTI and EXEC, even reads and deletions. Outside
    of MULTI it accepts them. Atomicity matters little then: no client can add anything.
    """
    if refused.code != "OOM" or not batch.atomic or (isinstance(batch, Exchange) and batch.watched):
        return None
    if batch.resend or all(_relieves(command) for command in batch.commands):
        return replace(batch, atomic=False)
    return None


def given_up(batch: Batch, lost: LostError) -> ReplyError:
    """The error to throw into the plan if the connection is lost. Raises if the plan cannot go on."""
    if not batch.optional:
        raise lost
    return ReplyError(f"LOST {lost}")


def send_one(command: Command, *, resend: bool = False) -> Plan[Any]:
    """Send one command and return its reply. An error reply is raised."""
    [reply] = yield Batch([command], resend=resend)
    return reply


class AbandonedError(Exception):
    """Thrown into a plan that was cancelled. It may yield one more batch, which cleans up."""


def abandon(plan: Plan[Any]) -> Batch | None:
    """End a plan that was interrupted, after its connection was closed. Returns what cleans up, if needed."""
    try:
        batch = plan.throw(AbandonedError())
    except Exception:
        return None
    # A WATCH ended with the connection.
    return None if all(command == ("UNWATCH",) for command in batch.commands) else batch


def ending_watch(plan: Plan[T], *besides: Command) -> Plan[T]:
    """A plan that WATCHes keys. An error ends its WATCH too: others use the connection after it.

    besides: what else to undo after an error.
    """
    try:
        return (yield from plan)
    except (AbandonedError, BraidError):
        with suppress(ReplyError):  # the connection is lost too: what is raised is the reason why
            yield Batch([("UNWATCH",), *besides], attempt=True, optional=True)
        raise


def altered(plan: Plan[T], alter: Callable[[Batch], Batch]) -> Plan[T]:
    """The same plan, with each of its batches as `alter` returns it. An error of `alter` ends the plan."""
    step: Callable[[Any], Batch] = plan.send
    value: Any = None
    while True:
        try:
            batch = step(value)
        except StopIteration as stop:
            return cast(T, stop.value)
        batch = alter(batch)
        try:
            step, value = plan.send, (yield batch)
        except (ReplyError, AbandonedError) as error:
            step, value = plan.throw, error


def together(plans: Iterable[Plan[T]]) -> Plan[list[T]]:
    """Several plans in as many round trips as the longest of them. A MULTI, and what waits, is sent alone.

    As in a pipeline, all are tried, and then the first error is raised.
    """
    results, going = dict[int, Any](), dict[int, tuple[Plan[T], Batch]]()

    def go_on(at: int, plan: Plan[T], step: Callable[[Any], Batch], value: Any) -> None:
        going.pop(at, None)
        try:
            going[at] = plan, step(value)
        except StopIteration as stop:
            results[at] = stop.value
        except ReplyError as error:
            results[at] = error

    for at, plan in enumerate(plans):
        go_on(at, plan, plan.send, None)
    while going:
        alone = next((at for at, (_, batch) in going.items() if _is_sent_alone(batch)), None)
        if alone is not None:
            plan, batch = going[alone]
            try:
                replies = yield batch
            except ReplyError as error:
                go_on(alone, plan, plan.throw, error)
            else:
                go_on(alone, plan, plan.send, replies)
            continue
        batches = [batch for _, batch in going.values()]
        commands = [command for batch in batches for command in batch.commands]
        replies = yield Batch(commands, resend=all(batch.resend for batch in batches), attempt=True)
        left = iter(replies)
        for at, (plan, batch) in [*going.items()]:
            mine = [*islice(left, len(batch.commands))]
            refused = first_error(batch, mine)
            go_on(at, plan, plan.throw if refused else plan.send, refused or mine)
    errors = (found for _, found in sorted(results.items()) if isinstance(found, ReplyError))
    if (first := next(errors, None)) is not None:
        raise first
    return [results[at] for at in range(len(results))]


def _is_sent_alone(batch: Batch) -> bool:
    return batch.atomic or batch.block_ms is not None or bool(batch.packed)


def _of_all(lost: LostError, wrote: bool) -> LostError:
    """The error of a plan, from that of its last batch. wrote: an earlier one may have changed something."""
    return LostError(lost.address, lost.why, wrote=True) if wrote and not lost.wrote else lost


def run(plan: Plan[T], send: Callable[[Batch], Replies]) -> T:
    """Run a plan to its result. Each batch is one round trip.

    A LostError also says whether an earlier batch of the plan wrote something.
    """
    step: Callable[[Any], Batch] = plan.send
    value: Any = None
    wrote = False
    try:
        while True:
            try:
                batch = step(value)
            except StopIteration as stop:
                return cast(T, stop.value)
            try:
                value = send(batch)
                error = first_error(batch, value)
            except ReplyError as refused:  # a MULTI that was not executed
                value, error, instead = None, refused, without_multi(batch, refused)
                if instead is not None:
                    value = send(instead)
                    error = first_error(instead, value)
            except LostError as lost:
                value, error, wrote = None, given_up(batch, lost), wrote or lost.wrote
            wrote = wrote or _may_have_written(batch, value)
            step, value = (plan.throw, error) if error else (plan.send, value)
    except LostError as lost:
        raise _of_all(lost, wrote) from lost.__cause__


async def arun(plan: Plan[T], send: Callable[[Batch], Awaitable[Replies]]) -> T:
    """`run` for asyncio."""
    step: Callable[[Any], Batch] = plan.send
    value: Any = None
    wrote = False
    try:
        while True:
            try:
                batch = step(value)
            except StopIteration as stop:
                return cast(T, stop.value)
            try:
                value = await send(batch)
                error = first_error(batch, value)
            except ReplyError as refused:  # a MULTI that was not executed
                value, error, instead = None, refused, without_multi(batch, refused)
                if instead is not None:
                    value = await send(instead)
                    error = first_error(instead, value)
            except LostError as lost:
                value, error, wrote = None, given_up(batch, lost), wrote or lost.wrote
            wrote = wrote or _may_have_written(batch, value)
            step, value = (plan.throw, error) if error else (plan.send, value)
    except LostError as lost:
        raise _of_all(lost, wrote) from lost.__cause__


# ----------------------------------------------------------------------------------------------------
# A batch on the wire: the commands to send for it, and the replies as its plan gets them.

# Converts a reply from the form that a connection reads to the form that plans expect.
Shape = Callable[[Command, Any], Any]

EXEC: Final = ("EXEC",)


@dataclass(frozen=True, slots=True)
class Exchange(Batch):
    """Commands of a pipeline, including native ones. Replies are returned as the connection reads them.

    watched: the user WATCHes keys, so it runs in its MULTI or not at all.
    unread: how many replies at the start do not matter. A cluster client does not wait for a slot that moves
        if only those commands are left.
    """

    attempt: bool = True
    watched: bool = False
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
