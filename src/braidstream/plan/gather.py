"""A pipeline or MULTI: one plan over the plans of its commands.

    XADD a *      first batches      +--------------------------------+
    GET k         ------------->     | XADD bs:1:s:{a} ...  GET k ...  |   one round trip
    XRANGE a - +                     +--------------------------------+
                  <-- replies: each plan gets its own; plans with further batches continue one by one

A command that cannot share (RENAME, a blocking read) ends the round trip it is in. Before the first round
trip, the pipeline looks up all streams of its commands at once. Inside MULTI it also WATCHes them, so EXEC
fails if they have changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from braidstream.errors import RefusedError, ReplyError
from braidstream.model.keys import meta, shares_slot
from braidstream.model.strand import Command
from braidstream.plan.append import is_plain
from braidstream.plan.lookup import FENCE_TYPE, read_kinds, require_region
from braidstream.plan.plan import (
    AbandonedError,
    Batch,
    Exchange,
    Plan,
    Replies,
    Shape,
    ending_watch,
    first_error,
    unpack,
    wire,
    without_multi,
)
from braidstream.plan.retries import Retries
from braidstream.plan.view import View

_WATCH_TRIES: Final = 100
# After a command of several round trips, the streams of this many further commands are read again. Reading
# those of all would be quadratic.
_LOOKED_UP: Final = 4
# Commands that may create this region's strand of a stream.
_CREATING: Final = (b"XADD", b"XGROUP", b"TWRITE", b"TCFGSET")


Argv = list[bytes]


@dataclass(frozen=True, slots=True)
class Joining:
    """How consecutive commands share one plan, as messages of one producer do.

    part: the command as the shared plan takes it; None if it cannot share.
    fits: whether the second part may join the plan of the first.
    """

    part: Callable[[Argv], Any]
    fits: Callable[[View, Any, Any], bool]
    plan: Callable[[View, bytes, list[Any]], Plan[list[Any]]]


class CommandSpec(Protocol):
    """What a pipeline needs to know about a command. commands/table.py describes the fields."""

    @property
    def shape(self) -> str: ...
    @property
    def names(self) -> Callable[[Argv], Argv]: ...
    @property
    def joining(self) -> Joining | None: ...
    def plan(self, view: View, argv: Argv) -> Plan[Any]: ...
    def arity_error(self, argv: Argv) -> ReplyError | None: ...


class NotQueuedError(ReplyError):
    """A command that MULTI cannot contain; nothing was run. number: which one, counted from 1."""

    def __init__(self, error: ReplyError, number: int) -> None:
        super().__init__(error.text)
        self.error, self.number = error, number


@dataclass(slots=True)
class Queued:
    """A command of a pipeline: native, or a plan with its first batch.

    more: the plan may have further batches, so the commands after it must wait.
    parts, joined: the parts of a shared plan, and the other commands that share it.
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
        """Get the first batch of the plan. If the plan refuses, the error is the result."""
        if self.spec is None:
            return
        self.more = view.continues = False
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
        else:
            self.more = view.continues

    def start_in_multi(self, view: View) -> ReplyError | None:
        """The same. Returns the error if a MULTI cannot contain the command, as far as the streams are
        cached."""
        if self.spec is None or (error := self.spec.arity_error(self.argv)) is not None:
            return None if self.spec is None else error
        self.start(view)
        name = self.argv[0].decode("ascii", "replace").upper()
        why = "it takes several round trips here"
        return RefusedError(f"{name} inside MULTI", why, "Run it before or after") if self.more else None

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
        """Pass the replies of the first batch to the plan, and run it to its result."""
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
        error: Exception | None = first_error(batch, replies)
        while True:
            try:
                batch = plan.throw(error) if error else plan.send(replies)
            except StopIteration as stop:
                return stop.value
            try:
                error, replies = None, (yield batch)
            except (ReplyError, AbandonedError) as refused:  # the driver throws it; this plan handles it
                error = refused


def pipeline(view: View, queued: list[Queued], shape: Shape) -> Plan[None]:
    """Run all commands in order, in as few round trips as possible. Each gets its result or its error."""
    yield from _look_up(view, queued)
    together, planned = list[Queued](), _joined(view, queued)
    known, further = len(planned), _LOOKED_UP
    for at, item in enumerate(planned):
        if at == known:
            yield from _send(together, shape)
            yield from _look_up(view, planned[at : at + further])
            together, known, further = [], at + further, 2 * further
        item.start(view)
        together.append(item)
        if item.more:
            yield from _send(together, shape)
            together, known, further = [], at + 1, _LOOKED_UP
    yield from _send(together, shape)


def _joined(view: View, queued: list[Queued]) -> list[Queued]:
    """The commands with a plan of their own. The first of several that share a plan stands for all."""
    planned = list[Queued]()
    for item in queued:
        joining = None if item.spec is None else item.spec.joining
        part = None if joining is None or is_native(view, item.spec, item.argv) else joining.part(item.argv)
        item.parts, item.joined = [] if part is None else [part], []
        last = planned[-1] if planned else None
        if joining is None or part is None or last is None or not last.parts:
            planned.append(item)
        elif last.argv[1] == item.argv[1] and joining.fits(view, last.parts[0], part):
            last.parts.append(part)
            last.joined.append(item)
        else:
            planned.append(item)
    return planned


def _look_up(view: View, queued: list[Queued]) -> Plan[None]:
    """Read the registries of all streams: the plans cannot retry. Appends to cached strands need none."""
    names = dict[bytes, None]()
    view.plain_keys.clear()
    for item in queued:
        if item.spec is not None and not _is_known_append(view, item.argv):
            names.update(dict.fromkeys(item.spec.names(item.argv)))
    if names and view.carriage.is_multi:
        yield Batch([("WATCH", *map(meta, names))], resend=True)
    if names:
        kinds = yield from read_kinds(view, names)
        # A fence without a registry: its adoption was undone between the two.
        unclear = [name for name in names if kinds[name] == FENCE_TYPE and not view.recall(name).exists]
        if unclear:
            kinds |= yield from read_kinds(view, unclear)
        view.plain_keys.update(
            name
            for name, kind in kinds.items()
            if kind != b"none" and not (kind == FENCE_TYPE and view.recall(name).fenced)
        )
        yield from _check_region(view, queued)
        for name, kind in kinds.items():
            view.cache.note_native(name, kind == b"stream" and not view.recall(name).exists)


def _check_region(view: View, queued: list[Queued]) -> Plan[None]:
    """Before plans that may create strands which we have not seen."""
    for item in queued:
        if item.spec is None or item.argv[0].upper() not in _CREATING:
            continue
        for name in item.spec.names(item.argv):
            if not (view.has_seen(view.home(name)) or view.recall(name).is_log):
                yield from require_region(view)
                return


def _is_known_append(view: View, argv: list[bytes]) -> bool:
    """Whether a command is a plain append to a managed stream: it creates its strand, and needs no lookup."""
    return is_plain(argv) and shares_slot(argv[1]) and argv[1] in view.cache.homes


def _send(queued: list[Queued], shape: Shape) -> Plan[None]:
    """One round trip for all. Only the last may have further batches."""
    commands = [item.wire(in_multi=False) for item in queued]
    flat = [command for each in commands for command in each]
    replies = (yield Exchange(flat, resend=_may_resend(queued))) if flat else []
    at = 0
    for item, sent in zip(queued, commands, strict=True):
        mine, at = replies[at : at + len(sent)], at + len(sent)
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
    """Whether all may be sent twice: reads, or messages without native commands between them."""
    native = any(item.spec is None for item in queued)
    messages = any(item.parts for item in queued)
    return not (native and messages) and all(
        item.batch.resend if item.batch else item.spec is None for item in queued
    )


def transaction(
    view_of: Callable[[], View], queued: list[Queued], shape: Shape, *, watching: bool
) -> Plan[bool]:
    """Run all commands in one MULTI. False if a key that the user WATCHes has changed: nothing was run."""
    changed = f"other clients changed these streams {_WATCH_TRIES} times. Nothing was done"
    retries = Retries(changed, most=_WATCH_TRIES)
    while True:
        retries.count()
        view = view_of()
        starts = _start_all(view, queued)
        planned = yield from starts if watching else ending_watch(starts)
        sent = [item.wire(in_multi=True) for item in planned]
        resend = not watching and any(item.parts for item in queued) and _may_resend(planned)
        flat = [command for each in sent for command in each]
        replies = yield Exchange(flat, atomic=True, resend=resend, watched=watching)
        if replies is not None:
            yield from _finish_all(planned, sent, replies, shape)
            return True
        if watching:
            return False


def _start_all(view: View, queued: list[Queued]) -> Plan[list[Queued]]:
    """Look up all streams and start the plans. NotQueuedError if one command cannot be queued.

    That is judged by the streams as they are now, not by what commands before it will do to them.
    """
    yield from _look_up(view, queued)
    looked, planned = view.scratch(), _joined(view, queued)
    for item in planned:
        error = item.start_in_multi(view)
        if item.more:
            error = Queued(item.args, item.spec, item.argv).start_in_multi(looked.scratch())
        if error is not None:
            number = next(at for at, each in enumerate(queued, 1) if each is item)
            raise NotQueuedError(error, number)
    return planned


def is_native(view: View, spec: CommandSpec | None, argv: list[bytes]) -> bool:
    """Whether a stream command is the engine's own: it names native streams only, as far as we know."""
    if spec is None or argv[0][:1] not in (b"X", b"x"):
        return False
    names = spec.names(argv)
    return bool(names) and all(map(view.is_native, names))


def _finish_all(
    queued: list[Queued], sent: list[list[Command]], replies: Replies, shape: Shape
) -> Plan[None]:
    at = 0
    for item, commands in zip(queued, sent, strict=True):
        mine, at = replies[at : at + len(commands)], at + len(commands)
        if item.spec is not None:
            mine = [shape(command, reply) for command, reply in zip(commands, mine, strict=True)]
        yield from item.finish(mine)
