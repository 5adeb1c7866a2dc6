"""One command to all strands of a stream, and the deletion of a stream.

A client may remember the strands: every plan that relies on its memory reads the registry in the same
round trip, and starts over if it was wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any

from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import Registry, given
from braidstream.model.strand import Strand
from braidstream.protocol.append import ensure_command
from braidstream.protocol.lookup import find, refuse_other_types, registry_of, type_check
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.retries import until_current
from braidstream.protocol.stream_view import View


def ask(
    view: View, name: bytes, make: Callable[[Strand], Command]
) -> Plan[tuple[Registry, list[tuple[Strand, Any]]]]:
    """One reading command to every strand, as one snapshot. One round trip where the strands are known.

    The registry is asked last: a strand created while we read shows as missing and we read again, so an
    entry never hides behind a later one.
    """
    registry, answers, _ = yield from ask_also(view, name, make, ())
    return registry, answers


def ask_also(
    view: View, name: bytes, make: Callable[[Strand], Command], also: Sequence[Command]
) -> Plan[tuple[Registry, list[tuple[Strand, Any]], list[Any]]]:
    """`ask`, and what `also` got, errors among it."""
    strands = view.recall(name).strands or (view.home(name),)
    while True:
        commands = [*map(make, strands), registry_of(name), *also, *type_check(view, name)]
        replies = yield Batch(
            commands, atomic=view.carriage.one_step(len(strands)), resend=True, attempt=True
        )
        asked = dict(zip(strands, replies, strict=False))
        reply, rest = replies[len(strands)], replies[len(strands) + 1 :]
        kind = rest[len(also) :]
        if isinstance(reply, ReplyError):
            raise reply
        registry = view.learn(name, reply)
        if not reply and any(answer for answer in asked.values() if not isinstance(answer, ReplyError)):
            # The registry was lost (evicted, say) while the home strand is there.
            yield Batch([ensure_command(view.home(name))])
        elif all(strand in asked for strand in registry.strands):
            if not registry.exists:
                yield from refuse_other_types(name, *kind)
            answers = [(strand, asked[strand]) for strand in registry.strands if _answered(asked[strand])]
            return registry, answers, rest[: len(also)]
        strands = registry.strands or strands


def _answered(reply: Any) -> bool:
    """A registered strand whose key is gone (evicted, say) has nothing to tell. Other errors are errors."""
    if isinstance(reply, ReplyError) and not reply.text.startswith("ERR no such key"):
        raise reply
    return not isinstance(reply, ReplyError)


def delete_command(name: bytes, registry: Registry, journal_writer: int, said: bytes = b"") -> Command:
    """Delete a stream that has no other strands and groups than the registry says.

    said: what the user said, DEL or UNLINK; one who may not say that of the plain key deletes nothing.
    """
    where, words = given(name, registry, registry.strands)
    asked = (said, name) if said else ()
    return (
        "FCALL",
        "bs_braid_delete",
        1 + len(where),
        keys.meta(name),
        *where,
        journal_writer,
        *words,
        *asked,
    )


def delete(view: View, name: bytes) -> Plan[int]:
    """Delete a stream; look again whenever it has another strand than we knew. 1 if it existed."""

    def command() -> Plan[Command | None]:
        registry = yield from find(view, name)
        return delete_command(name, registry, view.region.journal_writer) if registry.exists else None

    return int((yield from until_current(view, name, command)) or 0)
