"""XREADGROUP: new entries in ID order over all strands, or a consumer's own pending ones again.

New entries (`>`). Each strand has its own position, so nothing is skipped, whatever arrives late.

    one strand                    native XREADGROUP, one round trip
    no COUNT                      native, over all strands
    COUNT, several strands        1. where is the group, and what has it not read yet?  (XINFO GROUPS)
                                  2. if more is waiting in two strands than COUNT: the heads, woven
                                  3. so many from this strand, so many from that: native, in one MULTI

At most COUNT come back, whoever reads at the same time: step 3 asks for numbers, not for IDs. What
another consumer took meanwhile is taken from what follows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from braidstream import ids, keys
from braidstream.braid import Registry, View, refuse_other_types, registry_of
from braidstream.commands.arguments import Argv, fail, option, shown, strict_id
from braidstream.commands.budget import Budget
from braidstream.commands.claims import claim_idle_entries
from braidstream.commands.group_arguments import ReadGroup, parse
from braidstream.commands.pending import Query, Row, rows_of
from braidstream.commands.standing import after, known_lag
from braidstream.errors import ReplyError
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Entry, Strand, facts
from braidstream.weave import bodies, weave

# A waiting consumer looks up from time to time, for strands that came to be meanwhile.
BLOCK_SLICE_MS: Final = 5_000
# How often a wait may be disturbed (strands re-made, say) before it says so.
STIRRED: Final = 20
# With MAXSIZE, at most so many entries are looked at (and given) in one call.
PEEK: Final = 100


def read_group(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """XREADGROUP. One round trip where a stream has one strand or no COUNT is given; else two or three."""
    spec = parse(argv)
    if spec is None:
        [reply] = yield Batch([tuple(argv)], attempt=True)
        raise reply if isinstance(reply, ReplyError) else ReplyError("ERR syntax error")
    if not view.in_multi and _is_simple(view, spec):
        right, found = yield from _read_by_memory(view, spec)
        if right and (found is not None or spec.block_ms is None):
            return found
    registries = yield from _look(view, spec)
    try:
        answer = yield from _read_all(view, spec, registries)
    except ReplyError as error:
        if error.code != "NOGROUP":
            raise
        # It went away since we looked: now the look says so, by the names users know.
        registries = yield from _look(replace(view, pipelined=False), spec)
        answer = yield from _read_all(view, spec, registries)
    waits = spec.block_ms is not None and not view.in_multi and all(word == b">" for word in spec.positions)
    if not answer and waits:
        return (yield from _wait(view, spec, registries))
    return answer or None


def _read_all(view: View, spec: ReadGroup, registries: dict[bytes, Registry]) -> Plan[list[Any]]:
    answer, budget = list[Any](), Budget(spec.max_count, spec.max_size)
    for name, word in zip(spec.names, spec.positions, strict=True):
        strands = registries[name].strands
        if word == b">":
            found = yield from _new_and_claimed(view, spec, strands, budget)
            if found:
                answer.append([name, found])
        else:
            history = yield from _history(view, spec, strands, strict_id(word))
            answer.append([name, history])
    return answer


def _is_simple(view: View, spec: ReadGroup) -> bool:
    """New entries of one stream that we remember: of one strand, or without a COUNT."""
    if spec.positions != [b">"] or spec.limited:
        return False
    strands = view.recall(spec.names[0]).strands
    return len(strands) == 1 or (bool(strands) and spec.count is None)


def _read_by_memory(view: View, spec: ReadGroup) -> Plan[tuple[bool, list[Any] | None]]:
    """One native read, and the registry with it: (whether our memory was right, what came)."""
    name = spec.names[0]
    strands = view.recall(name).strands
    [command] = _take(spec, dict.fromkeys(strands, spec.count), spec.count is None)
    reply, registry = yield Batch([command, registry_of(name)], attempt=True)
    if isinstance(reply, ReplyError) or isinstance(registry, ReplyError):
        if not view.pipelined:
            view.forget(name)
        return False, None
    woven = _entries([reply])
    since = tuple(strand for strand in view.learn(name, registry).strands if strand not in strands)
    left = None if spec.count is None else spec.count - len(woven)
    if since and left != 0:
        # A strand came to be since we last looked: what it has belongs to this answer.
        woven = weave([woven, (yield from _new(view, replace(spec, count=left), since))])
    return True, [[name, bodies(woven)]] if woven else None


def shares(view: View, argv: Argv) -> bool:
    """Whether XREADGROUP is done in its first batch, once the strands are known."""
    return fits_multi(view, argv) and not any(option(word) == b"BLOCK" for word in argv)


def fits_multi(view: View, argv: Argv) -> bool:
    """Whether one batch will do. In a MULTI nothing waits, so BLOCK does not matter there."""
    try:
        spec = parse(argv)
    except ReplyError:
        return True
    if spec is None or spec.limited or len(spec.names) > 1:
        return spec is None
    return spec.count is None or len(view.recall(spec.names[0]).strands) <= 1


def _look(view: View, spec: ReadGroup) -> Plan[dict[bytes, Registry]]:
    """The registries. As the engine does, each key is checked together with its ID, in order."""
    distinct = list(dict.fromkeys(spec.names))
    if view.pipelined:
        registries = {name: view.recall(name) for name in distinct}
    else:
        replies = yield Batch([registry_of(name) for name in distinct], resend=True)
        registries = {name: view.learn(name, reply) for name, reply in zip(distinct, replies, strict=True)}
    for name, word in zip(spec.names, spec.positions, strict=True):
        if not registries[name].exists:
            yield from refuse_other_types(name)
        if spec.group not in registries[name].groups:
            where = f"No such key '{shown(name)}' or consumer group '{shown(spec.group)}'"
            fail(f"NOGROUP {where} in XREADGROUP with GROUP option")
        if word == b"$" or word == b"+":
            sign = word.decode()
            fail(
                f"ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the "
                "history of this consumer by specifying a proper ID, or use the > ID to get new messages. "
                f"The {sign} ID would just return an empty result set."
            )
        if word != b">":
            strict_id(word)
    return registries


def _take(
    spec: ReadGroup, counts: dict[Strand, int | None], together: bool = False, block_ms: int | None = None
) -> list[Command]:
    """Native reads of new entries: one command for all strands that get the same count."""
    by_count = dict[int | None, list[Strand]]()
    for strand, count in counts.items():
        by_count.setdefault(count, []).append(strand)
    commands: list[Command] = []
    for count, strands in by_count.items():
        groups = [strands] if together or count is None else [[strand] for strand in strands]
        for each in groups:
            limit: Command = () if count is None else ("COUNT", count)
            block: Command = () if block_ms is None else ("BLOCK", block_ms)
            noack: Command = ("NOACK",) if spec.noack else ()
            where = (*(strand.key for strand in each), *([b">"] * len(each)))
            commands.append(
                ("XREADGROUP", "GROUP", spec.group, spec.consumer, *limit, *block, *noack, "STREAMS", *where)
            )
    return commands


def _entries(replies: list[Any]) -> list[Entry]:
    return weave([strand.entries(page) for reply in replies for strand, page in _by_strand(reply)])


def _new_and_claimed(
    view: View, spec: ReadGroup, strands: tuple[Strand, ...], budget: Budget
) -> Plan[list[Any]]:
    """What `>` gives: with CLAIM, idle pending entries first, each with its idle time and deliveries."""
    if not spec.limited:
        return bodies((yield from _new(view, spec, strands)))
    found = list[Any]()
    if spec.claim_ms is not None:
        found = yield from claim_idle_entries(
            view, strands, (spec.group, spec.consumer, spec.claim_ms), budget.cap(spec.count)
        )
        budget.used += len(found)
    left = budget.cap(None if spec.count is None else spec.count - len(found))
    if left == 0 or budget.spent:
        return found
    if budget.size is not None:
        left = yield from _how_many_fit(view, replace(spec, count=left), strands, budget)
    fresh = (yield from _new(view, replace(spec, count=left), strands)) if left != 0 else []
    if budget.size is None:
        budget.used += len(fresh)
    extra = [0, 0] if spec.claim_ms is not None else []
    return found + [[*entry, *extra] for entry in bodies(fresh)]


def _how_many_fit(view: View, spec: ReadGroup, strands: tuple[Strand, ...], budget: Budget) -> Plan[int]:
    """MAXSIZE: look at the next entries before taking them; what was given cannot be taken back."""
    positions = yield from _positions(strands, spec.group)
    page = min(spec.count or PEEK, PEEK)
    heads = yield Batch(
        [after(strand, positions[strand].position, page) for strand in strands],
        atomic=view.one_step(len(strands)),
        resend=True,
    )
    woven = weave([strand.entries(head) for strand, head in zip(strands, heads, strict=True)], page)
    return len(budget.take(woven))


def _new(view: View, spec: ReadGroup, strands: tuple[Strand, ...]) -> Plan[list[Entry]]:
    """New entries of one stream, in ID order."""
    counts: dict[Strand, int | None] = dict.fromkeys(strands, spec.count)
    if spec.count is not None and len(strands) > 1:
        counts = yield from _shares(view, spec, strands)
    commands = _take(spec, counts)
    replies = yield Batch(commands, atomic=view.one_step(len(commands)))
    return _entries(replies)


def _shares(view: View, spec: ReadGroup, strands: tuple[Strand, ...]) -> Plan[dict[Strand, int | None]]:
    """How many new entries to take from each strand, so that they are the next COUNT in ID order."""
    assert spec.count is not None
    positions = yield from _positions(strands, spec.group, view.recall(strands[0].name).told)
    waiting = [strand for strand, place in positions.items() if place.lag != 0]
    if not waiting:
        # A read all the same: it makes the consumer, as the engine does.
        return {strands[0]: spec.count}
    if len(waiting) == 1:
        return dict.fromkeys(waiting, spec.count)
    heads = yield Batch(
        [after(strand, positions[strand].position, spec.count) for strand in waiting],
        atomic=view.one_step(len(waiting)),
        resend=True,
    )
    labelled = [
        [(*entry[:3], [strand.label]) for entry in strand.entries(page)]
        for strand, page in zip(waiting, heads, strict=True)
    ]
    taken = Counter(entry[3][0] for entry in weave(labelled, spec.count))
    shares: dict[Strand, int | None] = {
        strand: taken[strand.label] for strand in waiting if taken[strand.label]
    }
    return shares or {waiting[0]: spec.count}


class Place(NamedTuple):
    """Where a group is in a strand, and how much it has not been given there (None: not known)."""

    position: Id
    lag: int | None


def _positions(
    strands: Iterable[Strand], group: bytes, told: frozenset[bytes] = frozenset()
) -> Plan[dict[Strand, Place]]:
    listed = list(strands)
    commands: list[Command] = [("XINFO", "GROUPS", strand.key) for strand in listed]
    replies = yield Batch([*commands, *(strand.xinfo() for strand in listed)], resend=True)
    found = dict[Strand, Place]()
    for strand, rows, info in zip(listed, replies, replies[len(listed) :], strict=False):
        for row in map(facts, rows):
            if row[b"name"] == group:
                position = ids.native(row[b"last-delivered-id"])
                found[strand] = Place(position, known_lag(position, row, facts(info), group in told))
    return found


def _history(view: View, spec: ReadGroup, strands: tuple[Strand, ...], since: Id) -> Plan[list[Any]]:
    """The consumer's own pending entries after an ID, in ID order; [id, nil] for one that was deleted."""
    shares: dict[Strand, int | None] = dict.fromkeys(strands, spec.count)
    if spec.count is not None and len(strands) > 1:
        start = ids.after(since)
        rows = yield from _own(view, spec, strands, start) if start is not None else _nothing()
        shares = {strand: share for strand in strands if (share := sum(row.strand == strand for row in rows))}
    commands: list[Command] = []
    for strand, count in (shares or dict.fromkeys(strands[:1], spec.count)).items():
        limit: Command = () if count is None else ("COUNT", count)
        where = (strand.key, ids.text(strand.floor(since)))
        commands.append(("XREADGROUP", "GROUP", spec.group, spec.consumer, *limit, "STREAMS", *where))
    replies = yield Batch(commands, atomic=view.one_step(len(commands)))
    return bodies(_entries(replies))


def _nothing() -> Plan[list[Row]]:
    return []
    yield


def _own(view: View, spec: ReadGroup, strands: tuple[Strand, ...], start: Id) -> Plan[list[Row]]:
    assert spec.count is not None
    query = Query(start, ids.LAST, spec.count, consumer=spec.consumer)
    rows = yield from rows_of(view, strands, spec.group, query)
    return rows[: spec.count]


def _wait(view: View, spec: ReadGroup, registries: dict[bytes, Registry]) -> Plan[list[Any] | None]:
    """Block natively over every strand: the engine serves waiting consumers first come, first served.

    Where COUNT is less than the strands, each might give one: then we wait without taking, and read
    when something is there. Between two turns the strands are looked up again: one may have come to be.
    """
    assert spec.block_ms is not None
    left, stirred = spec.block_ms, 0
    while True:
        strands = [strand for name in spec.names for strand in registries[name].strands]
        turn = BLOCK_SLICE_MS if not spec.block_ms else min(left, BLOCK_SLICE_MS)
        few = spec.limited or (spec.count is not None and spec.count < len(strands))
        if few:
            command = yield from _listen(spec, strands, turn)
        else:
            count = None if spec.count is None else spec.count // len(strands)
            [command] = _take(spec, dict.fromkeys(strands, count), True, turn)
        [reply] = yield Batch([command], block_ms=turn, attempt=True)
        if isinstance(reply, ReplyError):
            # A strand or the group went away: the look below says which, and we wait on if we can.
            stirred += 1
            if stirred > STIRRED:
                raise reply
        elif reply and not few:
            return _by_stream(spec, reply)
        elif not reply:
            left -= turn
        registries = yield from _look(view, spec)
        if few or not {each for registry in registries.values() for each in registry.strands} <= set(strands):
            found = yield from _read_all(view, spec, registries)
            if found:
                return found
        if spec.block_ms and left <= 0:
            return None


def _listen(spec: ReadGroup, strands: list[Strand], turn: int) -> Plan[Command]:
    """A native read that takes nothing, from where the group is in each strand."""
    positions = yield from _positions(strands, spec.group)
    where = (*(strand.key for strand in positions), *(ids.text(row.position) for row in positions.values()))
    return ("XREAD", "COUNT", 1, "BLOCK", turn, "STREAMS", *where)


def _by_stream(spec: ReadGroup, reply: list[Any]) -> list[Any]:
    answer = list[Any]()
    for name in dict.fromkeys(spec.names):
        woven = weave([strand.entries(page) for strand, page in _by_strand(reply) if strand.name == name])
        if woven:
            answer.append([name, bodies(woven)])
    return answer


def _by_strand(reply: list[Any]) -> Iterator[tuple[Strand, list[Any]]]:
    for key, page in reply or []:
        place = keys.parse_strand(key)
        assert place is not None, key
        yield Strand(*place), page
