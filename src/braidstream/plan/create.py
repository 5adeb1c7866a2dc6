"""Creates a missing strand before an append, and retries if other clients interfere.

A log takes several entries in one step (`append_run`).
"""

from collections.abc import Sequence
from typing import Any

from braidstream.errors import ReplyError
from braidstream.model.strand import Command, Strand
from braidstream.plan.append import ensure_command, undo_command
from braidstream.plan.lookup import (
    exists,
    is_stale,
    read_registry,
    refuse_other_types,
    refuse_unseen_types,
    require_region,
    type_check,
)
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries
from braidstream.plan.view import View


def append(
    view: View, home: Strand, command: Command, *also: Command, nomkstream: bool = False
) -> Plan[bytes | None]:
    """Append natively; create the strand if it is missing. `also`: a read of the registry, or nothing.

    Returns the native ID; None if the stream does not exist and `nomkstream` is set.
    """
    known = view.recall(home.name)
    if not view.needs_create(home) or (nomkstream and not known.exists):
        replies = yield Batch([command, *also, *type_check(view, home.name)])
        if also:
            view.learn(home.name, replies[1])
        if replies[0] is not None:
            return replies[0]  # type: ignore[no-any-return]
        if nomkstream and not (view.carriage.may_look_again and (yield from exists(home.name))):
            yield from refuse_other_types(home.name, *replies[1 + len(also) :])
            return None
    [native] = yield from _create_and_append(view, home, [command], also)
    return native


def append_run(
    view: View,
    home: Strand,
    commands: Sequence[Command],
    then: Sequence[Command],
    *,
    create_later: bool,
) -> Plan[list[bytes]]:
    """Append entries to a log, all or none, and without other entries in between. Returns their native IDs.

    then: sent along with a single entry; what they answer does not matter.
    create_later: try first without creating the strand, because a command may refuse before it looks for it.
    Raises BSSTALE if the home of the log is elsewhere, and the engine's error if the strand is sealed.
    """
    if create_later or not view.needs_create(home):
        is_atomic = view.carriage.one_step(len(commands))
        sent = commands if is_atomic else [*commands, *then]
        replies = (yield Batch(sent, atomic=is_atomic, attempt=True))[: len(commands)]
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        if replies[0] is not None:
            return replies
    return (yield from _create_and_append(view, home, commands, ()))


def _create_and_append(
    view: View, home: Strand, commands: Sequence[Command], also: Sequence[Command]
) -> Plan[list[bytes]]:
    yield from refuse_unseen_types(view, home.name)
    known = view.has_seen(home)
    if not known and view.carriage.may_look_again:  # a pipeline did so when it looked up
        yield from require_region(view)
    _expect_created(view, home)
    attempt = 0  # how often another client deleted the strand before the append
    retries = Retries(f"other clients kept deleting {home.name!r} during the append")
    while True:
        retries.count()
        ensure = ensure_command(home, view.recall(home.name).bell, known=known)
        several = len(commands) > 1 and view.carriage.one_step(len(commands))
        replies = yield Batch(
            [ensure, *commands, *also], atomic=several or view.carriage.create_step(attempt), attempt=True
        )
        if is_stale(replies[0]) and replies[1] is None:
            view.forget_strand(home)
            yield from read_registry(view, home.name)
            known = view.has_seen(home)
            if not known:
                yield from require_region(view)
            if home.is_of_log and view.log_home(home.name) != home:
                raise replies[0]
            continue
        # Without MULTI, another client may have created the strand between the two.
        for reply in replies[1:] if is_stale(replies[0]) else replies:
            if isinstance(reply, ReplyError):
                view.forget(home.name)
                yield from _undo_create(home, replies)
                raise reply
        if also:
            view.learn(home.name, replies[-1])
        if replies[1] is not None:
            return replies[1 : 1 + len(commands)]
        attempt += 1


def _expect_created(view: View, home: Strand) -> None:
    """The strand will exist when the next command runs."""
    if home.is_of_log:
        view.expect_log(home)
    else:
        view.expect_home(home)


def _undo_create(home: Strand, replies: list[Any]) -> Plan[None]:
    """The append was refused: delete the strand if we created it and it is still empty."""
    if replies[0] == 1:
        yield Batch([undo_command(home)])
