"""Commands of a pipeline or MULTI, as one plan over the plans of its commands. Shared by clients and gateway.

    XADD a *      first batches      +--------------------------------+
    GET k         ------------->     | XADD bs:1:s:{a} ...  GET k ...  |   one round trip
    XRANGE a - +                     +--------------------------------+
                  <-- replies: each plan gets its own; who has more to say goes on, one by one

A command that cannot share (RENAME, a blocking read) closes the round trip it is in. Before the
first one, the strands that the commands rely on are looked up, all at once. Inside MULTI they are
WATCHed too, so that the plans cannot be wrong by the time of EXEC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidstream.braid import View, registry_of
from braidstream.commands.table import Spec
from braidstream.errors import RefusedError, ReplyError
from braidstream.keys import meta, shares_slot
from braidstream.plan import Batch, Command, Plan, Replies, first_error

_WATCH_TRIES: Final = 100

# A reply as a plan knows it, from what the driver's connection read.
Shape = Callable[[Command, Any], Any]


@dataclass(frozen=True, slots=True)
class Exchange(Batch):
    """Commands of a pipeline, native ones among them. Replies come back as the connection read them."""

    attempt: bool = True


class NotQueuedError(ReplyError):
    """A command that cannot stand inside MULTI: nothing of it is done. Which one, counted from 1."""

    def __init__(self, error: ReplyError, number: int) -> None:
        super().__init__(error.text)
        self.error, self.number = error, number


@dataclass(slots=True)
class Queued:
    """A command of a pipeline: native, or a plan that has said its first batch.

    more: it may go on after that, so what follows it must wait.
    """

    args: Sequence[Any]
    spec: Spec | None
    argv: list[bytes]
    plan: Plan[Any] | None = None
    batch: Batch | None = None
    more: bool = False
    result: Any = None

    def start(self, view: View) -> None:
        """Hear the plan's first batch. Its refusal is the result, as an error reply would be."""
        if self.spec is None:
            return
        fits = self.spec.arity_error(self.argv) is not None
        self.more = not (fits or (self.spec.multi and self.spec.shares(view, self.argv)))
        try:
            self.plan = self.spec.plan(view, self.argv)
            self.batch = next(self.plan)
        except ReplyError as error:
            self.plan, self.result = None, error
        except StopIteration as stop:
            self.plan, self.result = None, stop.value

    def wire(self, *, in_multi: bool) -> list[Command]:
        if self.spec is None:
            return [tuple(self.args)]
        if self.plan is None or self.batch is None:
            return []
        return list(self.batch.commands) if in_multi else wire(self.batch)

    def finish(self, replies: Replies) -> Plan[None]:
        """Take the replies to the first batch, and go on to the result."""
        if self.spec is None:
            self.result = replies[0]
        elif self.plan is not None:
            try:
                self.result = yield from self._rest(replies)
            except ReplyError as error:
                self.result = error

    def _rest(self, replies: Replies) -> Plan[Any]:
        plan, batch = self.plan, self.batch
        assert plan is not None
        assert batch is not None
        error = first_error(batch, replies)
        while True:
            try:
                batch = plan.throw(error) if error else plan.send(replies)
            except StopIteration as stop:
                return stop.value
            try:
                error, replies = None, (yield batch)
            except ReplyError as refused:  # thrown to us by the driver; it is this plan's to handle
                error = refused


def pipeline(view: View, queued: list[Queued], shape: Shape) -> Plan[None]:
    """All commands in order, in as few round trips as can be. Each then has its result, or its error."""
    yield from _look_up(view, queued)
    together = list[Queued]()
    for at, item in enumerate(queued):
        item.start(view)
        together.append(item)
        if item.more:
            yield from _send(together, shape)
            yield from _look_up(view, queued[at + 1 :])
            together = []
    yield from _send(together, shape)


def _look_up(view: View, queued: list[Queued]) -> Plan[None]:
    """Learn the strands of the streams, afresh: nothing can be said twice here. A plain XADD needs none."""
    names, view.taken = dict[bytes, None](), frozenset()
    for item in queued:
        plain_add = item.argv[:1] == [b"XADD"] and item.argv[2:3] == [b"*"] and shares_slot(item.argv[1])
        if item.spec is not None and not plain_add:
            names.update(dict.fromkeys(item.spec.names(item.argv)))
    if names and view.in_multi:
        yield Batch([("WATCH", *map(meta, names))], resend=True)
    if names:
        types: list[Command] = [("TYPE", name) for name in names]
        replies = yield Batch([*map(registry_of, names), *types], resend=True)
        for name, reply in zip(names, replies, strict=False):
            view.learn(name, reply)
        kinds = zip(names, replies[len(names) :], strict=True)
        view.taken = frozenset(name for name, kind in kinds if kind != b"none")


def _send(queued: list[Queued], shape: Shape) -> Plan[None]:
    """One round trip for all; the last may have more to say."""
    commands = [item.wire(in_multi=False) for item in queued]
    flat = [command for each in commands for command in each]
    resend = all(item.batch.resend if item.batch else item.spec is None for item in queued)
    replies = (yield Exchange(flat, resend=resend)) if flat else []
    at = 0
    for item, said in zip(queued, commands, strict=True):
        mine, at = replies[at : at + len(said)], at + len(said)
        if item.plan is not None and item.batch is not None:
            try:
                mine = unpack(item.batch, mine, shape)
            except ReplyError as error:  # its own MULTI was refused
                item.plan, item.result = None, error
        yield from item.finish(mine)


def transaction(
    view_of: Callable[[], View], queued: list[Queued], shape: Shape, *, watching: bool
) -> Plan[bool]:
    """All commands in one MULTI. False if a key that the user WATCHes has changed: nothing was done."""
    for _ in range(_WATCH_TRIES):
        view = view_of()
        try:
            yield from _look_up(view, queued)
            _refuse(view, queued)
        except ReplyError:
            if not watching:
                yield Batch([("UNWATCH",)])
            raise
        for item in queued:
            item.start(view)
        said = [item.wire(in_multi=True) for item in queued]
        replies = yield Exchange([command for each in said for command in each], atomic=True)
        if replies is not None:
            yield from _finish_all(queued, said, replies, shape)
            return True
        if watching:
            return False
    raise ReplyError(f"ERR others changed these streams {_WATCH_TRIES} times. Nothing was done. Try again.")


def refusal(view: View, spec: Spec, argv: list[bytes]) -> ReplyError | None:
    """Why a command cannot be queued in a MULTI, if so."""
    error = spec.arity_error(argv)
    if error is None and not (spec.multi and spec.fits_multi(view, argv)):
        name = argv[0].decode("ascii", "replace").upper()
        why = "it takes several round trips here"
        error = RefusedError(f"{name} inside MULTI", why, "Run it before or after")
    return error


def _refuse(view: View, queued: list[Queued]) -> None:
    for number, item in enumerate(queued, 1):
        if item.spec is not None and (error := refusal(view, item.spec, item.argv)) is not None:
            raise NotQueuedError(error, number)


def _finish_all(
    queued: list[Queued], said: list[list[Command]], replies: Replies, shape: Shape
) -> Plan[None]:
    at = 0
    for item, commands in zip(queued, said, strict=True):
        mine, at = replies[at : at + len(commands)], at + len(commands)
        if item.spec is not None:
            mine = [shape(command, reply) for command, reply in zip(commands, mine, strict=True)]
        yield from item.finish(mine)


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
