"""One command to all strands of a stream, and the deletion of a stream.

A plan that relies on cached strands reads the registry in the same round trip, and retries if
they were stale.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.registry import Registry, named_keys
from braidstream.model.strand import Command, Strand
from braidstream.plan.append import ensure_command
from braidstream.plan.lookup import find_registry, refuse_other_types, registry_of, settled, type_check
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import until_current
from braidstream.plan.view import View


def read_strands(
    view: View, name: bytes, make: Callable[[Strand], Command]
) -> Plan[tuple[Registry, list[tuple[Strand, Any]]]]:
    """Send a read to every strand, as one snapshot. One round trip if the strands are cached.

    The registry comes last. So a strand that is created during the read is noticed and read too, and no entry
    is hidden while a later one is visible.
    """
    registry, answers, _ = yield from read_strands_with(view, name, make, ())
    return registry, answers


def read_strands_with(
    view: View, name: bytes, make: Callable[[Strand], Command], also: Sequence[Command]
) -> Plan[tuple[Registry, list[tuple[Strand, Any]], list[Any]]]:
    """`read_strands`, and the replies to `also` (errors as values)."""
    strands = view.recall(name).strands or (view.home(name),)
    while True:
        commands = [*map(make, strands), registry_of(name), *also, *type_check(view, name)]
        replies = yield Batch(
            commands, atomic=view.carriage.one_step(len(strands)), resend=True, attempt=True
        )
        found = dict(zip(strands, replies, strict=False))
        reply, rest = replies[len(strands)], replies[len(strands) + 1 :]
        kind = rest[len(also) :]
        if isinstance(reply, ReplyError):
            raise reply
        registry = view.learn(name, reply)
        if not reply and any(answer for answer in found.values() if not isinstance(answer, ReplyError)):
            # The registry was lost (for example evicted) while the home strand exists.
            yield Batch([ensure_command(view.home(name))])
        elif all(strand in found for strand in registry.strands):
            if registry.due and view.carriage.may_look_again and not any(map(_has_content, found.values())):
                yield from settled(view, [name])
                registry = view.recall(name)
            if not registry.exists:
                yield from refuse_other_types(name, *kind)
            answers = [(strand, found[strand]) for strand in registry.strands if _exists(found[strand])]
            return registry, answers, rest[: len(also)]
        strands = registry.strands or strands


def snapshot(
    view: View, name: bytes, make: Callable[[Strand], Sequence[Command]]
) -> Plan[dict[Strand, list[Any]]]:
    """Send reads to every strand, as one snapshot. The replies of each strand; none without a stream."""
    while True:
        strands = (yield from find_registry(view, name)).strands
        if not strands:
            yield from refuse_other_types(name)
            return {}
        reads = [make(strand) for strand in strands]
        commands = [*chain.from_iterable(reads), registry_of(name)]
        replies = yield Batch(commands, atomic=view.carriage.one_step(len(commands)), resend=True)
        if view.learn(name, replies[-1]).strands == strands:
            answers = iter(replies)
            return {
                strand: list(islice(answers, len(read))) for strand, read in zip(strands, reads, strict=True)
            }


def _has_content(reply: Any) -> bool:
    return bool(reply) and not isinstance(reply, ReplyError)


def _exists(reply: Any) -> bool:
    """Whether the key of a registered strand exists: it may have been evicted. Other errors are raised."""
    if isinstance(reply, ReplyError) and not reply.text.startswith("ERR no such key"):
        raise reply
    return not isinstance(reply, ReplyError)


def delete_command(name: bytes, registry: Registry, journal_writer: int, verb: bytes = b"") -> Command:
    """Delete a stream, if its strands and groups are those of `registry`.

    verb: DEL or UNLINK. The function refuses a user who may not run it on the plain key.
    """
    where, words = named_keys(name, registry, registry.strands)
    permission = (verb, name) if verb else ()
    return (
        "FCALL",
        "bs_braid_delete",
        1 + len(where),
        keys.meta(name),
        *where,
        journal_writer,
        *words,
        *permission,
    )


def delete(view: View, name: bytes) -> Plan[int]:
    """Delete a stream; retry if its strands have changed. 1 if it existed."""

    def command() -> Plan[Command | None]:
        registry = yield from find_registry(view, name)
        return (
            delete_command(name, registry, view.region.journal_writer)
            if registry.exists or registry.fenced
            else None
        )

    return int((yield from until_current(view, name, command)) or 0)
