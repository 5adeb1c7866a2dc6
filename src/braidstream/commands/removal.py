"""XTRIM, XDEL, XDELEX, XACKDEL: the commands that remove entries. MAXLEN counts the whole stream."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final

from braidstream.commands.arguments import Argv, Trim, parse_ids, parse_trim, strict_ids
from braidstream.commands.group_status import last_delivered
from braidstream.commands.xack import send_to_holders
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.registry import Registry
from braidstream.model.strand import Command, Entry, Strand, facts, merge_certain
from braidstream.plan.ask_peers import Needs, ask
from braidstream.plan.braid import snapshot
from braidstream.plan.lookup import find_registry, look, refuse_other_types, registry_of
from braidstream.plan.plan import Batch, Plan, altered, send_one
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
# Deletion that depends on consumer groups: XDELEX, XACKDEL, and trimming with DELREF or ACKED.

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
    if policy == b"ACKED" or not is_native(view, registry.strands):
        view.will_continue()  # with ACKED, missing IDs are compared with the positions of the groups
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
    if policy == b"ACKED" or not is_native(view, registry.strands):
        view.will_continue()
    if is_native(view, registry.strands):
        return (yield from _run_native(registry.strands[0], ("XACKDEL", argv[2]), policy, wanted))
    return (yield from _drop(view, registry.strands, wanted, (policy, argv[2])))


def is_native(view: View, strands: tuple[Strand, ...]) -> bool:
    """Whether the engine's own XDELEX and XACKDEL can be used: one strand, and no peers."""
    return b"XDELEX" in view.cache.commands and len(strands) == 1 and not view.region.journal_writer


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
    needs = (yield from ask(view, strands[0].name)) if policy == b"ACKED" and strands else Needs()
    for strand in strands:
        named = [
            (at, native) for at, entry in enumerate(wanted) if (native := strand.exact(entry)) is not None
        ]
        limit = needs.limit(strand)
        here = [(at, native) for at, native in named if native <= limit]
        held = [(at, native) for at, native in named if native > limit]
        kept = yield from _keep(strand, [ids.text(native) for _, native in held], acker)
        for (at, _), answer in zip(held, kept, strict=True):
            answers[at] = max(answers[at], answer)
        for first in range(0, len(here), AT_ONCE):
            part = here[first : first + AT_ONCE]
            natives = [ids.text(native) for _, native in part]
            [reply] = yield Batch([drop_command(view, strand, natives, (policy, acker))])
            for (at, _), answer in zip(part, reply, strict=True):
                answers[at] = max(answers[at], answer)  # if two strands have the ID and one keeps it: 2
    return answers


def _keep(strand: Strand, natives: list[bytes], acker: bytes) -> Plan[list[int]]:
    """The answers for entries that a group of another region may need: they stay, acknowledged if asked."""
    if not natives:
        return []
    if acker:
        acked = yield Batch([("XACK", strand.key, acker[1:], native) for native in natives])
        return [2 if each else -1 for each in acked]
    pages = yield Batch([("XRANGE", strand.key, native, native) for native in natives], resend=True)
    return [2 if page else -1 for page in pages]


def drop_command(view: View, strand: Strand, natives: list[bytes], how: tuple[bytes, ...]) -> Command:
    """Delete entries of one strand; with peers, also write the deletion to the journal, in the same step.

    how: the policy, the group that acknowledges (after a `=`) or nothing.
    """
    journal = (keys.journal(strand.name, view.region.journal_writer),) if view.region.journal_writer else ()
    where = (strand.key, *journal)
    return ("FCALL", "bs_entry_drop", len(where), *where, *how, 0, strand.registration, *natives)


def drop_all(view: View, strand: Strand, natives: Sequence[bytes]) -> Plan[int]:
    """Delete entries, whatever groups need, some in each call. Returns how many were there."""
    gone = 0
    for first in range(0, len(natives), AT_ONCE):
        some = [*natives[first : first + AT_ONCE]]
        gone += (yield from send_one(drop_command(view, strand, some, (b"KEEPREF", b"")))).count(1)
    return gone


def trims_natively(view: View, spec: Trim) -> bool:
    """Whether the engine's own XTRIM knows the policies, and no peers need a journal."""
    return b"XDELEX" in view.cache.commands and not spec.left_out and not view.region.journal_writer


def trim_by_groups(view: View, name: bytes, spec: Trim, *, waits: bool) -> Plan[int]:
    """Trim with DELREF or ACKED: remove the oldest entries, except those that a group still needs.

    Each round looks at some entries of all strands, in order. The function that deletes them counts the
    stream again, so clients that trim at once do not remove more than the cap asks for.
    waits: for the answer of other regions. WAITS if nothing goes because one of them did not answer.
    """
    end = ids.LAST if spec.minid is None else ids.before(spec.minid)
    lengths = yield from snapshot(view, name, lambda strand: [strand.xlen()])
    if end is None or not _over(lengths, spec):
        return 0
    ends, needs = dict[Strand, Id](), Needs()
    if spec.policy == b"ACKED":
        needs = yield from ask(view, name, waits=waits)
        ends = yield from _delivered(tuple(lengths), spec.left_out, needs)
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
        [gone] = yield Batch([_drop_trim_command(view, tuple(found), wanted, most, spec)])
        removed, looked, page = removed + gone, looked + len(wanted), AT_ONCE
        following = ids.after(wanted[-1])
        if following is None or gone >= most:
            break
        start = following
    if not removed and needs.unknown:
        raise ReplyError(f"WAITS nothing was removed: it is not known what groups need in {needs.waits}")
    return removed


def _over(found: dict[Strand, list[Any]], spec: Trim) -> int:
    """How many entries are to go, as far as the length says. The first reply of each strand is its length."""
    total: int = sum(replies[0] for replies in found.values())
    return max(0, total - (spec.maxlen or 0))


def _length_and_page(start: Id, end: Id, ends: dict[Strand, Id], page: int, strand: Strand) -> list[Command]:
    return [strand.xlen(), strand.xrange(start, min(end, ends.get(strand, end)), page)]


def _delivered(
    strands: tuple[Strand, ...], left_out: tuple[bytes, ...], needs: Needs
) -> Plan[dict[Strand, Id]]:
    """Up to where all groups, here and elsewhere, have read each strand: they need everything after it."""
    replies = yield Batch([("XINFO", "GROUPS", strand.key) for strand in strands], resend=True, attempt=True)
    found = {}
    for strand, reply in zip(strands, replies, strict=True):
        groups = [] if isinstance(reply, ReplyError) else map(facts, reply)
        limit = needs.limit(strand, left_out)
        read = [ids.native(each[b"last-delivered-id"]) for each in groups if each[b"name"] not in left_out]
        upto = min(*read, limit) if read else limit
        if upto != ids.LAST:
            found[strand] = strand.user(upto)
    return found


def _drop_trim_command(
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


# ----------------------------------------------------------------------------------------------------
# Trim

# One round of trimming to a length reads at most this many entries of each strand.
PAGE: Final = 1_000
# How many entries `~` may leave: the engine drops whole nodes, of 100 entries by default.
NODE: Final = 100


def trim_options(trim: Trim | None, strand: Strand) -> Command:
    """The cap as native words for one strand."""
    if trim is None:
        return ()
    limit: Command = () if trim.limit is None else ("LIMIT", trim.limit)
    policy: Command = () if trim.policy == b"KEEPREF" else (trim.policy,)
    about = "~" if trim.approx else "="
    if trim.maxlen is not None:
        return ("MAXLEN", about, trim.maxlen, *limit, *policy)
    assert trim.minid is not None
    return ("MINID", about, ids.text(strand.ceil(trim.minid)), *limit, *policy)


def trim(view: View, argv: Argv) -> Plan[int]:
    """XTRIM: one round trip for MINID or one strand. MAXLEN over several strands takes more."""
    name, spec = argv[1], parse_trim(argv)
    return (yield from trim_all(view, name, spec))


def trim_all(view: View, name: bytes, spec: Trim, *, waits: bool = True) -> Plan[int]:
    strands = (yield from find_registry(view, name)).strands
    if not strands:
        yield from refuse_other_types(name)
        return 0
    if spec.policy != b"KEEPREF" and not (trims_natively(view, spec) and len(strands) == 1):
        view.will_continue()
        return (yield from trim_by_groups(view, name, spec, waits=waits))
    if spec.maxlen and len(strands) > 1:
        view.will_continue()
        return (yield from _trim_to_length(view, name, spec))
    if spec.limit and len(strands) > 1:
        view.will_continue(after_exec=True)
        return (yield from _share_limit((yield from look(view, name)).strands, spec, _trim_command))
    commands = [_trim_command(strand, spec) for strand in strands]
    replies = yield Batch([*commands, registry_of(name)], atomic=view.carriage.one_step(len(strands)))
    later = [strand for strand in view.learn(name, replies[-1]).strands if strand not in strands]
    removed = sum(replies[:-1])
    if later:
        removed += yield from trim_all(view, name, spec)
    elif not view.recall(name).exists:
        yield from refuse_other_types(name)
    return removed


def _trim_command(strand: Strand, spec: Trim) -> Command:
    return ("XTRIM", strand.key, *trim_options(spec, strand))


def cap(view: View, name: bytes, spec: Trim) -> Plan[None]:
    """Trim after an append. If that fails, ignore it: the append is done, and an error would make the caller
    repeat it. The next append trims."""
    with suppress(ReplyError):
        trimming = trim_all(view, name, spec, waits=False)
        yield from altered(trimming, lambda batch: replace(batch, optional=True))


def _share_limit(
    strands: Iterable[Strand], spec: Trim, command: Callable[[Strand, Trim], Command]
) -> Plan[int]:
    """LIMIT counts the whole stream: each strand gets what the strands before it have left."""
    assert spec.limit is not None
    removed = 0
    for strand in strands:
        [gone] = yield Batch([command(strand, replace(spec, limit=spec.limit - removed))])
        removed += gone
        if removed >= spec.limit:
            break
    return removed


def _trim_to_length(view: View, name: bytes, spec: Trim) -> Plan[int]:
    """Remove the oldest entries of all strands: compare a page of each strand, round by round.

    s1   1 2 3 | 8 9      pages of 3: the order is certain up to 7, because the page of c1
    c1   4 6 7 | 12       ends there; the oldest of those are removed, in each strand by its own MINID

    Lengths and pages are one snapshot: another trim in between would be counted twice. The first round reads
    no pages, because most streams are not too long.
    """
    assert spec.maxlen is not None
    removed = page = 0
    while not (spec.approx and removed >= _most(spec)):
        tails = bool(page) and _is_apart(view, name)
        found = yield from snapshot(view, name, partial(_length_and_head, page, tails))
        over = sum(replies[0] for replies in found.values()) - spec.maxlen
        if over <= 0 or (spec.approx and over < NODE):
            break
        heads = {strand: replies[1] for strand, replies in found.items() if replies[1:] and replies[1]}
        if heads:
            ahead_ms = _ahead_ms(view, {strand: replies[2] for strand, replies in found.items() if tails})
            cuts = _cuts(heads, ahead_ms, page, over)
            gone = yield from _cut(view, cuts, replace(spec, limit=spec.limit and spec.limit - removed))
            removed, over = removed + gone, over - gone
            if over <= 0 or (spec.approx and not gone):
                break
        page = min(PAGE, over + 1)
    return removed


def _most(spec: Trim) -> float:
    """How many entries one XTRIM with `~` removes."""
    if spec.limit is None:
        return MOST_BY_TILDE
    return spec.limit or inf


def _length_and_head(page: int, tails: bool, strand: Strand) -> list[Command]:
    head = [strand.xrange(ids.ZERO, ids.LAST, page)] if page else []
    tail = [strand.xrange(ids.ZERO, ids.LAST, 1, reverse=True)] if tails else []
    return [strand.xlen(), *head, *tail]


def _cut(view: View, cuts: dict[Strand, Id | None], spec: Trim) -> Plan[int]:
    if spec.limit:
        return (
            yield from _share_limit(cuts, spec, lambda strand, left: _cut_command(strand, cuts[strand], left))
        )
    commands = [_cut_command(strand, cut, spec) for strand, cut in cuts.items()]
    return sum((yield Batch(commands, atomic=view.carriage.one_step(len(commands)))))


def _cut_command(strand: Strand, cut: Id | None, spec: Trim) -> Command:
    about = "~" if spec.approx else "="
    limit: Command = () if spec.limit is None else ("LIMIT", spec.limit)
    if cut is None:
        return ("XTRIM", strand.key, "MAXLEN", about, 0, *limit)
    return ("XTRIM", strand.key, "MINID", about, ids.text(cut), *limit)


def _is_apart(view: View, name: bytes) -> bool:
    """Whether a clock is apart: then the last entry of each strand must be known to date the entries."""
    return bool(view.region.behind_ms or view.recall(name).ahead_ms)


def _ahead_ms(view: View, tails: dict[Strand, list[Any]]) -> dict[Strand, int]:
    """By how many milliseconds the entries of each strand are ahead of what this region's clock gives.

    The notes may be stale, because a clock was set right since. So a strand counts as ahead only if it is
    ahead of our own strand, and as behind only if it is really far behind our own.
    """
    last = {strand: strand.user(ids.native(tail[0][0])) for strand, tail in tails.items() if tail}
    own = next((last[strand] for strand in last if strand == view.home(strand.name)), None)
    behind_ms = dict(view.region.behind_ms)
    found = {}
    for strand, id in last.items():
        if not strand.has_generated_ids:
            continue
        noted = view.recall(strand.name).ahead_ms.get(strand.label, 0)
        if noted and (own is None or id > own):
            found[strand] = noted
        elif own is not None and own[0] - id[0] > (noted := behind_ms.get(strand.writer, 0)) // 2:
            found[strand] = -min(noted, own[0] - id[0])
    return found


def _by_our_clock(strand: Strand, head: list[Any], ahead_ms: int) -> list[Entry]:
    """Entries with their times converted to the clock of this region, to find the oldest.

    While clocks are within the bound (decision 0016), IDs need no conversion. If a writer's clock is further
    ahead, its entries would never be the oldest, and new entries of other writers would be removed first.
    """
    entries = strand.entries(head)
    if not ahead_ms:
        return entries
    return [(ms - ahead_ms, seq, writer, fields) for ms, seq, writer, fields in entries]


def _cuts(
    heads: dict[Strand, list[Any]], ahead_ms: dict[Strand, int], page: int, over: int
) -> dict[Strand, Id | None]:
    """The native MINID for each strand that removes the oldest `over` entries, or as many as the pages show.

    None: remove the whole strand, because its last entry has the largest possible ID.
    """
    pages = {strand: _by_our_clock(strand, head, ahead_ms.get(strand, 0)) for strand, head in heads.items()}
    full = [entries for entries in pages.values() if len(entries) == page]
    oldest = merge_certain(pages.values(), full)[:over]
    taken = {id(entry) for entry in oldest}
    cuts = {}
    for strand, entries in pages.items():
        count = sum(id(entry) in taken for entry in entries)
        if count:
            head = heads[strand]
            kept = ids.native(head[count][0]) if count < len(head) else None
            # Up to the first entry that stays, so that deleted entries in between do not keep their node.
            cuts[strand] = kept or ids.after(ids.native(head[count - 1][0]))
    return cuts


def delete_entries(view: View, argv: Argv) -> Plan[int]:
    """XDEL: deletes in the strands that may contain each ID. One round trip if the strands are cached."""
    try:
        wanted = strict_ids(argv[2:])
    except ReplyError:
        # Like the engine, refuse bad IDs only if the stream exists.
        if (yield from look(view, argv[1])).exists:
            raise
        return 0
    replies = yield from send_to_holders(view, argv[1], wanted, partial(_delete, view))
    return sum(gone if isinstance(gone, int) else gone.count(1) for gone in replies)


def _delete(view: View, strand: Strand, natives: list[bytes]) -> list[Command]:
    """Native XDEL; with peers, the function that also writes the deletion to the journal."""
    if not view.region.journal_writer:
        return [("XDEL", strand.key, *natives)]
    return [
        drop_command(view, strand, natives[first : first + AT_ONCE], (b"KEEPREF", b""))
        for first in range(0, len(natives), AT_ONCE)
    ]
