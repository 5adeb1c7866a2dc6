"""Commands of a pipeline or MULTI, as one plan over the plans of its commands.

    XADD a *      first batches      +--------------------------------+
    GET k         ------------->     | XADD bs:1:s:{a} ...  GET k ...  |   one round trip
    XRANGE a - +                     +--------------------------------+
                  <-- replies: each plan gets its own; who has more to say goes on, one by one

A command that cannot share (RENAME, a blocking read) closes the round trip it is in. Before the
first one, the strands that the commands rely on are looked up, all at once. Inside MULTI they are
WATCHed too, so that the plans cannot be wrong by the time of EXEC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from braidstream.errors import RefusedError, ReplyError
from braidstream.model.command import Command
from braidstream.model.keys import meta, shares_slot
from braidstream.protocol.append import is_plain
from braidstream.protocol.exchange import Exchange, Shape, unpack, wire
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan, Replies, first_error, without_multi
from braidstream.protocol.retries import Retries
from braidstream.protocol.stream_view import View

_WATCH_TRIES: Final = 100


Argv = list[bytes]


@dataclass(frozen=True, slots=True)
class Joining:
    """How commands in a row share one plan, as messages of one producer do.

    part: what a command brings; None if it cannot share.
    fits: whether the second may share the plan of the first.
    """

    part: Callable[[Argv], Any]
    fits: Callable[[View, Any, Any], bool]
    plan: Callable[[View, bytes, list[Any]], Plan[list[Any]]]


class CommandSpec(Protocol):
    """What a pipeline has to know of a command. commands/table.py describes the fields."""

    @property
    def shape(self) -> str: ...
    @property
    def multi(self) -> bool: ...
    @property
    def names(self) -> Callable[[Argv], Argv]: ...
    @property
    def shares(self) -> Callable[[View, Argv], bool]: ...
    @property
    def fits_multi(self) -> Callable[[View, Argv], bool]: ...
    @property
    def joining(self) -> Joining | None: ...
    def plan(self, view: View, argv: Argv) -> Plan[Any]: ...
    def arity_error(self, argv: Argv) -> ReplyError | None: ...


class NotQueuedError(ReplyError):
    """A command that cannot stand inside MULTI: nothing of it is done. Which one, counted from 1."""

    def __init__(self, error: ReplyError, number: int) -> None:
        super().__init__(error.text)
        self.error, self.number = error, number


@dataclass(slots=True)
class Queued:
    """A command of a pipeline: native, or a plan that has said its first batch.

    more: it may go on after that, so what follows it must wait.
    parts, joined: commands that share the plan of the first of them.
    """

    args: Sequence[Any]
    spec: CommandSpec | None
    argv: list[bytes]
    plan: Plan[Any] | None = None
    batch: Batch | None = None
    more: bool = False
    result: Any = None
    parts: list[Any] = field(default_factory=list)
    joined: list["Queued"] = field(default_factory=list)

    def start(self, view: View) -> None:
        """Hear the plan's first batch. Its refusal is the result, as an error reply would be."""
        if self.spec is None:
            return
        fits = self.spec.arity_error(self.argv) is not None
        self.more = not (fits or (self.spec.multi and self.spec.shares(view, self.argv)))
        try:
            if self.joined and self.spec.joining is not None:
                self.plan = self.spec.joining.plan(view, self.argv[1], self.parts)
            else:
                self.plan = self.spec.plan(view, self.argv)
            self.batch = next(self.plan)
        except ReplyError as error:
            self.refused(error)
        except StopIteration as stop:
            self.plan, self.result = None, stop.value

    def refused(self, error: ReplyError) -> None:
        self.plan = None
        self._take(error)

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
                self._take((yield from self._rest(replies)))
            except ReplyError as error:
                self._take(error)

    def _take(self, result: Any) -> None:
        everyone = [self, *self.joined]
        results = result if self.joined and isinstance(result, list) else [result] * len(everyone)
        for each, own in zip(everyone, results, strict=True):
            each.result = own

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
    together, speakers = list[Queued](), _joined(view, queued)
    for at, item in enumerate(speakers):
        item.start(view)
        together.append(item)
        if item.more:
            yield from _send(together, shape)
            yield from _look_up(view, speakers[at + 1 :])
            together = []
    yield from _send(together, shape)


def _joined(view: View, queued: list[Queued]) -> list[Queued]:
    """The commands that have a plan: of those in a row that share one, the first."""
    speakers = list[Queued]()
    for item in queued:
        joining = None if item.spec is None else item.spec.joining
        part = None if joining is None else joining.part(item.argv)
        item.parts, item.joined = [] if part is None else [part], []
        last = speakers[-1] if speakers else None
        if joining is None or part is None or last is None or not last.parts:
            speakers.append(item)
        elif last.argv[1] == item.argv[1] and joining.fits(view, last.parts[0], part):
            last.parts.append(part)
            last.joined.append(item)
        else:
            speakers.append(item)
    return speakers


def _look_up(view: View, queued: list[Queued]) -> Plan[None]:
    """Learn the strands of the streams, afresh: nothing can be said twice here. A plain XADD needs none."""
    names = dict[bytes, None]()
    view.carriage.note_plain_keys(())
    for item in queued:
        if item.spec is not None and not (is_plain(item.argv) and shares_slot(item.argv[1])):
            names.update(dict.fromkeys(item.spec.names(item.argv)))
    if names and view.carriage.is_all_or_nothing:
        yield Batch([("WATCH", *map(meta, names))], resend=True)
    if names:
        types: list[Command] = [("TYPE", name) for name in names]
        replies = yield Batch([*map(registry_of, names), *types], resend=True)
        for name, reply in zip(names, replies, strict=False):
            view.learn(name, reply)
        kinds = zip(names, replies[len(names) :], strict=True)
        view.carriage.note_plain_keys(name for name, kind in kinds if kind != b"none")


def _send(queued: list[Queued], shape: Shape) -> Plan[None]:
    """One round trip for all; the last may have more to say."""
    commands = [item.wire(in_multi=False) for item in queued]
    flat = [command for each in commands for command in each]
    replies = (yield Exchange(flat, resend=_may_resend(queued))) if flat else []
    at = 0
    for item, said in zip(queued, commands, strict=True):
        mine, at = replies[at : at + len(said)], at + len(said)
        if item.plan is not None and item.batch is not None:
            try:
                mine = unpack(item.batch, mine, shape)
            except ReplyError as error:  # its own MULTI was refused
                if (instead := without_multi(item.batch, error)) is None:
                    item.refused(error)
                else:
                    again = Exchange(instead.commands, resend=instead.resend)
                    mine = unpack(instead, (yield again), shape)
        yield from item.finish(mine)


def _may_resend(queued: list[Queued]) -> bool:
    """Reads may be sent again, and messages. A native command among messages may do something twice."""
    native = any(item.spec is None for item in queued)
    messages = any(item.parts for item in queued)
    return not (native and messages) and all(
        item.batch.resend if item.batch else item.spec is None for item in queued
    )


def transaction(
    view_of: Callable[[], View], queued: list[Queued], shape: Shape, *, watching: bool
) -> Plan[bool]:
    """All commands in one MULTI. False if a key that the user WATCHes has changed: nothing was done."""
    changed = f"others changed these streams {_WATCH_TRIES} times. Nothing was done"
    retries = Retries(changed, most=_WATCH_TRIES)
    while True:
        retries.count()
        view = view_of()
        try:
            yield from _look_up(view, queued)
            _refuse(view, queued)
        except ReplyError:
            if not watching:
                yield Batch([("UNWATCH",)])
            raise
        speakers = _joined(view, queued)
        for item in speakers:
            item.start(view)
        said = [item.wire(in_multi=True) for item in speakers]
        resend = not watching and any(item.parts for item in queued) and _may_resend(speakers)
        replies = yield Exchange([command for each in said for command in each], atomic=True, resend=resend)
        if replies is not None:
            yield from _finish_all(speakers, said, replies, shape)
            return True
        if watching:
            return False


def refusal(view: View, spec: CommandSpec, argv: list[bytes]) -> ReplyError | None:
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
