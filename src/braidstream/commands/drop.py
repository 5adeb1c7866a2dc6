"""Deletion that asks the groups: XDELEX, XACKDEL, and trimming with DELREF or ACKED."""

from collections.abc import Callable
from typing import Final

from braidstream import ids, keys
from braidstream.braid import View, ask, look
from braidstream.commands.arguments import Argv, Trim, parse_ids, strict_id
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Strand
from braidstream.weave import certain

# The function looks at every group for every ID, so it gets a few at a time.
AT_ONCE: Final = 200


def delete_ex(view: View, argv: Argv) -> Plan[list[int]]:
    """XDELEX: an answer for each ID: -1 not there, 1 deleted, 2 kept because a group needs it."""
    policy, words = parse_ids(argv, 2)
    wanted = [strict_id(word) for word in words]
    strands = (yield from look(view, argv[1])).strands
    return (yield from _drop(view, strands, wanted, (policy,)))


def acknowledge_and_delete(view: View, argv: Argv) -> Plan[list[int]]:
    """XACKDEL: -1 not pending in the group, 1 acknowledged and deleted, 2 acknowledged and kept."""
    policy, words = parse_ids(argv, 3)
    wanted = [strict_id(word) for word in words]
    registry = yield from look(view, argv[1])
    if argv[2] not in registry.groups:
        return [-1] * len(wanted)
    return (yield from _drop(view, registry.strands, wanted, (policy, argv[2])))


def _drop(
    view: View,
    strands: tuple[Strand, ...],
    wanted: list[Id],
    how: tuple[bytes, ...],
    left_out: tuple[bytes, ...] = (),
) -> Plan[list[int]]:
    """`how` is the policy, and the group that acknowledges first, if one does."""
    policy, acker = how[0], b"=" + how[1] if len(how) > 1 else b""
    answers = [-1] * len(wanted)
    for strand in strands:
        here = [
            (at, native) for at, entry in enumerate(wanted) if (native := strand.exact(entry)) is not None
        ]
        for first in range(0, len(here), AT_ONCE):
            part = here[first : first + AT_ONCE]
            natives = [ids.text(native) for _, native in part]
            [reply] = yield Batch([drop_command(view, strand, natives, (policy, acker, *left_out))])
            for (at, _), answer in zip(part, reply, strict=True):
                answers[at] = max(answers[at], answer)  # where an ID stands twice, kept once is kept
    return answers


def drop_command(view: View, strand: Strand, natives: list[bytes], how: tuple[bytes, ...]) -> Command:
    """Delete entries of one strand. With peers the journal says so, in the same step.

    how: the policy, the group that acknowledges (after a `=`) or nothing, the groups that are not asked.
    """
    policy, acker, *left_out = how
    told = (keys.journal(strand.name, view.region.teller),) if view.region.teller else ()
    where = (strand.key, *told)
    words = (policy, acker, len(left_out), *left_out, strand.registration, *natives)
    return ("FCALL", "bs_entry_drop", len(where), *where, *words)


def trim_asking(view: View, name: bytes, spec: Trim) -> Plan[int]:
    """Trim with DELREF or ACKED: the oldest go first, but for those that a group still needs."""
    _, lengths = yield from ask(view, name, lambda strand: strand.xlen())
    total = sum(length for _, length in lengths)
    most = total if spec.maxlen is None else total - spec.maxlen
    if spec.limit:
        most = min(most, spec.limit)
    end = ids.LAST if spec.minid is None else ids.before(spec.minid)
    removed, start = 0, ids.ZERO
    while removed < most and end is not None:
        registry, pages = yield from ask(view, name, _page(start, end))
        entries = {strand: strand.entries(page) for strand, page in pages}
        oldest = certain(entries.values(), [page for page in entries.values() if len(page) == AT_ONCE])
        batch = oldest[: most - removed]
        if not batch:
            break
        wanted = list(dict.fromkeys(entry[:2] for entry in batch))
        answers = yield from _drop(view, registry.strands, wanted, (spec.policy,), spec.left_out)
        removed += sum(answer == 1 for answer in answers)
        following = ids.after(wanted[-1])
        if following is None:
            break
        start = following
    return removed


def _page(start: Id, end: Id) -> Callable[[Strand], Command]:
    return lambda strand: strand.xrange(start, end, AT_ONCE)
