"""XREADGROUP: returns entries at once if there are any (handout.py), else waits (blocking.py)."""

from typing import Any

from braidstream.commands.arguments import Argv, option, shown
from braidstream.commands.xreadgroup import handout
from braidstream.commands.xreadgroup.blocking import look_again, wait
from braidstream.commands.xreadgroup.group_arguments import ReadGroup, parse
from braidstream.errors import ReplyError
from braidstream.model.meta import Registry
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.retries import Retries
from braidstream.protocol.stream_view import View


def read_group(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """XREADGROUP: one round trip for one strand or without COUNT, otherwise two or three."""
    spec = parse(argv)
    if spec is None:
        [reply] = yield Batch([tuple(argv)], attempt=True)
        raise reply if isinstance(reply, ReplyError) else ReplyError("ERR syntax error")
    is_shared = view.carriage.has_looked
    view = view.apart()
    if not view.carriage.is_all_or_nothing and _is_once(view, spec):
        view = view.alone()  # its strands may be handed over since the pipeline has looked
    if view.carriage.has_looked or not _is_known(view, spec):
        yield from handout.look(view, spec)
    waits = (
        spec.block_ms is not None and view.carriage.may_block and all(word == b">" for word in spec.positions)
    )
    if waits and not is_shared and _is_one_read(view, spec):
        return (yield from wait(view, spec))
    answer = yield from _read_now(view, spec)
    if not answer and waits:
        return (yield from wait(view, spec))
    return answer or None


def _read_now(view: View, spec: ReadGroup) -> Plan[list[Any]]:
    """What there is to return now. If groups or strands have changed since we looked, look again and read."""
    names = ", ".join(repr(shown(name)) for name in dict.fromkeys(spec.names))
    retries, before = Retries(f"the groups of {names} kept changing"), list[Registry]()
    while True:
        retries.count()
        try:
            return (yield from handout.read_all(view, spec))
        except ReplyError as error:
            if error.code != "NOGROUP":
                raise
        view = view.alone()
        yield from look_again(view, spec)  # raises if the group is gone
        found = [view.recall(name) for name in spec.names]
        if found == before:
            if not (yield from handout.heal(view, spec)):
                raise handout.incomplete(spec)
            yield from look_again(view, spec)
        before = found


def _is_one_read(view: View, spec: ReadGroup) -> bool:
    """Whether one blocking read also returns existing entries, up to COUNT."""
    if len(spec.names) > 1 or spec.limited:
        return False
    return spec.count is None or len(view.delivered(spec.names[0], spec.group)) == 1


def _is_known(view: View, spec: ReadGroup) -> bool:
    """Whether the cache is enough: one read, which the engine refuses as a whole if the bell has rung."""
    if spec.positions != [b">"] or spec.limited:
        return False
    known = view.recall(spec.names[0])
    return known.exists and spec.group in known.groups


def _is_once(view: View, spec: ReadGroup) -> bool:
    """Whether the group has the scope ONCE, by the cache. The bell refuses a read after a hand-over."""
    return any(spec.group in view.recall(name).scopes for name in spec.names)


def shares(view: View, argv: Argv) -> bool:
    """Whether XREADGROUP needs one batch only, judged by the cache."""
    if not fits_multi(view, argv) or any(option(word) == b"BLOCK" for word in argv):
        return False
    try:
        spec = parse(argv)
    except ReplyError:
        return True
    return spec is None or view.carriage.is_all_or_nothing or not _is_once(view, spec)


def fits_multi(view: View, argv: Argv) -> bool:
    """Whether one batch is enough. In a MULTI, BLOCK does not wait."""
    try:
        spec = parse(argv)
    except ReplyError:
        return True
    if spec is None or spec.max_size is not None or len(spec.names) > 1:
        return spec is None
    if spec.claim_ms is not None and spec.positions == [b">"]:
        return handout.claims_natively(view, spec)
    unlimited = spec.count is None and spec.max_count is None
    return unlimited or len(view.delivered(spec.names[0], spec.group)) <= 1
