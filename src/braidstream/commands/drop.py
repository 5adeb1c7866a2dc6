"""Deletion that depends on consumer groups: XDELEX, XACKDEL, and trimming with DELREF or ACKED."""

from functools import partial
from typing import Any, Final

from braidstream.commands.arguments import Argv, Trim, option, parse_ids, strict_ids
from braidstream.commands.groups.group_status import last_delivered
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.merge import merge_certain
from braidstream.model.meta import Registry
from braidstream.model.strand import Strand, facts
from braidstream.protocol.braid import snapshot
from braidstream.protocol.lookup import look
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

# IDs per call: the function checks every group for every ID.
AT_ONCE: Final = 200
# How many entries a trim with `~` looks at, or removes. As the engine.
MOST_BY_TILDE: Final = 10_000


def delete_ex(view: View, argv: Argv) -> Plan[list[int]]:
    """XDELEX: for each ID: -1 not found, 1 deleted, 2 kept because a group needs it."""
    name = argv[1]
    try:
        policy, words = parse_ids(argv, 2)
    except ReplyError:
        yield from look(view, name)  # the engine checks the type of the key first
        raise
    registry = yield from look(view, name)
    if not registry.exists:
        return [-1] * len(words)
    wanted = strict_ids(words)
    if is_native(view, registry.strands):
        answers = yield from _run_native(registry.strands[0], ("XDELEX",), policy, wanted)
    else:
        answers = yield from _drop(view, registry.strands, wanted, (policy,))
    if policy == b"ACKED" and registry.groups and -1 in answers:
        # A missing ID above a group's position counts as not yet read.
        lowest = yield from _lowest(registry)
        answers = [
            2 if answer == -1 and lowest < entry else answer
            for entry, answer in zip(wanted, answers, strict=True)
        ]
    return answers


def _lowest(registry: Registry) -> Plan[Id]:
    """The last delivered ID of the group that is furthest behind."""
    commands: list[Command] = [("XINFO", "GROUPS", strand.key) for strand in registry.strands]
    replies = yield Batch(commands, resend=True)
    natives = {
        strand: {each[b"name"]: each for each in map(facts, reply)}
        for strand, reply in zip(registry.strands, replies, strict=True)
    }
    return min(
        last_delivered(registry, group, {at: rows[group] for at, rows in natives.items() if group in rows})
        for group in registry.groups
    )


def acknowledge_and_delete(view: View, argv: Argv) -> Plan[list[int]]:
    """XACKDEL: -1 not pending in the group, 1 acknowledged and deleted, 2 acknowledged and kept."""
    try:
        policy, words = parse_ids(argv, 3)
    except ReplyError:
        yield from look(view, argv[1])
        raise
    registry = yield from look(view, argv[1])
    if argv[2] not in registry.groups:
        return [-1] * len(words)
    wanted = strict_ids(words)
    if is_native(view, registry.strands):
        return (yield from _run_native(registry.strands[0], ("XACKDEL", argv[2]), policy, wanted))
    return (yield from _drop(view, registry.strands, wanted, (policy, argv[2])))


def is_native(view: View, strands: tuple[Strand, ...]) -> bool:
    """Whether the engine's own XDELEX and XACKDEL can be used: one strand, and no peers."""
    return b"XDELEX" in view.commands and len(strands) == 1 and not view.region.journal_writer


def shares(view: View, argv: Argv) -> bool:
    """Whether XDELEX or XACKDEL needs one batch only, judged by the cache."""
    if any(option(word) == b"ACKED" for word in argv):
        return False  # missing IDs are compared with the groups' positions in a second batch
    strands = view.recall(argv[1]).strands or (view.home(argv[1]),)
    return is_native(view, strands)


def _run_native(strand: Strand, words: tuple[Any, ...], policy: bytes, wanted: list[Id]) -> Plan[list[int]]:
    """One native command. IDs that cannot be in this strand answer -1."""
    here = [native for entry in wanted if (native := strand.exact(entry)) is not None]
    command: Command = (words[0], strand.key, *words[1:], policy, "IDS", len(here), *map(ids.text, here))
    replies = iter((yield Batch([command]))[0] if here else ())
    return [-1 if strand.exact(entry) is None else next(replies) for entry in wanted]


def _drop(
    view: View,
    strands: tuple[Strand, ...],
    wanted: list[Id],
    how: tuple[bytes, ...],
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
            [reply] = yield Batch([drop_command(view, strand, natives, (policy, acker))])
            for (at, _), answer in zip(part, reply, strict=True):
                answers[at] = max(answers[at], answer)  # if two strands have the ID and one keeps it: 2
    return answers


def drop_command(view: View, strand: Strand, natives: list[bytes], how: tuple[bytes, ...]) -> Command:
    """Delete entries of one strand; with peers, also write the deletion to the journal, in the same step.

    how: the policy, the group that acknowledges (after a `=`) or nothing.
    """
    journal = (keys.journal(strand.name, view.region.journal_writer),) if view.region.journal_writer else ()
    where = (strand.key, *journal)
    return ("FCALL", "bs_entry_drop", len(where), *where, *how, 0, strand.registration, *natives)


def trims_natively(view: View, spec: Trim) -> bool:
    """Whether the engine's own XTRIM knows the policies, and no peers need a journal."""
    return b"XDELEX" in view.commands and not spec.left_out and not view.region.journal_writer


def trim_by_groups(view: View, name: bytes, spec: Trim) -> Plan[int]:
    """Trim with DELREF or ACKED: remove the oldest entries, except those that a group still needs.

    Each round looks at some entries of all strands, in order. The function that deletes them counts the
    stream again, so clients that trim at once do not remove more than the cap asks for.
    """
    end = ids.LAST if spec.minid is None else ids.before(spec.minid)
    lengths = yield from snapshot(view, name, lambda strand: [strand.xlen()])
    if end is None or not _over(lengths, spec):
        return 0
    ends = (yield from _delivered(tuple(lengths), spec.left_out)) if spec.policy == b"ACKED" else {}
    removed, looked = 0, 0
    start, page = ids.ZERO, min(AT_ONCE, _over(lengths, spec))
    while not (spec.approx and looked >= MOST_BY_TILDE):
        read = partial(_length_and_page, start, end, ends, page)
        found = yield from snapshot(view, name, read)
        pages = {strand: strand.entries(replies[1]) for strand, replies in found.items()}
        oldest = merge_certain(
            pages.values(), [entries for entries in pages.values() if len(entries) == page]
        )
        most = _over(found, spec) if not spec.limit else min(_over(found, spec), spec.limit - removed)
        wanted = list(dict.fromkeys(entry[:2] for entry in oldest))[:AT_ONCE]
        if most <= 0 or not wanted:
            break
        [gone] = yield Batch([_trim_command(view, tuple(found), wanted, most, spec)])
        removed, looked, page = removed + gone, looked + len(wanted), AT_ONCE
        following = ids.after(wanted[-1])
        if following is None or gone >= most:
            break
        start = following
    return removed


def _over(found: dict[Strand, list[Any]], spec: Trim) -> int:
    """How many entries are to go, as far as the length says. The first reply of each strand is its length."""
    total: int = sum(replies[0] for replies in found.values())
    return max(0, total - (spec.maxlen or 0))


def _length_and_page(start: Id, end: Id, ends: dict[Strand, Id], page: int, strand: Strand) -> list[Command]:
    return [strand.xlen(), strand.xrange(start, min(end, ends.get(strand, end)), page)]


def _delivered(strands: tuple[Strand, ...], left_out: tuple[bytes, ...]) -> Plan[dict[Strand, Id]]:
    """Up to where all groups have read each strand that has groups: they need everything after it."""
    replies = yield Batch([("XINFO", "GROUPS", strand.key) for strand in strands], resend=True, attempt=True)
    found = {}
    for strand, reply in zip(strands, replies, strict=True):
        groups = [] if isinstance(reply, ReplyError) else map(facts, reply)
        read = [ids.native(each[b"last-delivered-id"]) for each in groups if each[b"name"] not in left_out]
        if read:
            found[strand] = strand.user(min(read))
    return found


def _trim_command(
    view: View, strands: tuple[Strand, ...], wanted: list[Id], most: int, spec: Trim
) -> Command:
    """Delete at most this many of the wanted entries; with peers, also write that to the journal.

    The registry gets a note that this was a trim: archives keep these entries.
    """
    writer = view.region.journal_writer
    journal = (keys.journal(strands[0].name, writer),) if writer else ()
    where = (*(strand.key for strand in strands), *journal, keys.meta(strands[0].name))
    names = (len(strands), *(strand.registration for strand in strands))
    how = (spec.maxlen or 0, most, spec.policy, len(spec.left_out), *spec.left_out)
    entries = [
        word
        for entry in wanted
        for at, strand in enumerate(strands, 1)
        if (native := strand.exact(entry)) is not None
        for word in (at, ids.text(native))
    ]
    return ("FCALL", "bs_entry_trim", len(where), *where, *names, *how, *entries)
