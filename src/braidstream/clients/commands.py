"""Commands on streams as plans of their replies in bytes, for consumers and for pages."""

from collections.abc import Callable
from typing import Any

from braidstream.commands.table import TABLE
from braidstream.engine.redis_py import resp2
from braidstream.model import topic
from braidstream.model.strand import Command
from braidstream.plan import gather
from braidstream.plan.append import ensure_command
from braidstream.plan.gather import Queued
from braidstream.plan.lookup import look, require_region
from braidstream.plan.plan import Plan
from braidstream.plan.retries import until_current
from braidstream.plan.view import Carriage, View

# The streams as one command sees them.
ViewOf = Callable[[Carriage], View]


def command(view_of: ViewOf, *words: bytes | str | int) -> Plan[Any]:
    argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return TABLE[argv[0]].plan(view_of(Carriage.ALONE), argv)


def read_topics(view_of: ViewOf) -> Plan[dict[bytes, topic.Topic]]:
    """All topics of the region, by name."""
    rows = yield from command(view_of, "XRANGE", topic.STREAM, "-", "+")
    return topic.topics_of(words for _, words in rows)


def in_one_step(view_of: ViewOf, commands: list[list[bytes]]) -> Plan[list[Any]]:
    """All commands in one MULTI. Returns their replies, errors among them."""
    yield from prepare_appends(view_of, commands)
    return (yield from in_multi(view_of, commands, watching=False)) or []


def prepare_appends(view_of: ViewOf, commands: list[list[bytes]]) -> Plan[None]:
    """Create the streams of appends: an engine does not undo the other commands if one fails inside MULTI. A
    key of another type, or a log, is refused here, before anything is done."""
    for name in dict.fromkeys(argv[1] for argv in commands if argv[0] == b"XADD"):
        yield from command(view_of, "XLEN", name)
        yield from _ensure(view_of(Carriage.ALONE), name)


def in_multi(view_of: ViewOf, commands: list[list[bytes]], *, watching: bool) -> Plan[list[Any] | None]:
    """The replies; None if a key that the caller WATCHes has changed, and nothing was done."""
    queued = [Queued(argv, TABLE[argv[0]], argv) for argv in commands]
    if queued and not (
        yield from gather.transaction(lambda: view_of(Carriage.MULTI), queued, resp2, watching=watching)
    ):
        return None
    return [item.result for item in queued]


def _ensure(view: View, name: bytes) -> Plan[None]:
    """Create the strand that appends to a stream go to, if it is missing."""

    def make() -> Plan[Command | None]:
        registry, home = (yield from look(view, name)), view.home(name)
        known = home in registry.cuts
        if not known:
            yield from require_region(view)
        return ensure_command(home, registry.bell, known=known)

    if not view.is_native(name):
        yield from until_current(view, name, make)
