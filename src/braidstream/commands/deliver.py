"""XREADGROUP: what is there is handed out at once (handout.py); else the consumer waits in the engine.

Waiting. The engine serves blocked readers first come, first served, so we block natively, on every strand
and on the stream's bell, which goes away when another strand comes to be (strand.lua).

    COUNT                     each waits with
    none, or >= strands       XREADGROUP of all strands, COUNT divided among them: who is first takes
    less than the strands     XREAD of all strands: several might give one each, which would be too many.
                              Who is woken takes from the strand that woke it; if another was faster, it
                              waits on. No order among those.
"""

from dataclasses import replace
from typing import Any, Final

from braidstream import ids, keys
from braidstream.braid import View, bell_of, refuse_other_types, registry_of
from braidstream.commands import handout, heads
from braidstream.commands.arguments import Argv, fail, option, shown, strict_id
from braidstream.commands.group_arguments import ReadGroup, parse
from braidstream.errors import ReplyError
from braidstream.ids import Id
from braidstream.plan import Batch, Plan
from braidstream.strand import Strand
from braidstream.weave import bodies, weave

# A waiting consumer looks up from time to time. Who waits without taking does not hear the bell.
TAKE_SLICE_MS: Final = 5_000
LISTEN_SLICE_MS: Final = 1_000
# How often a wait may be disturbed (strands re-made, say) before it says so.
STIRRED: Final = 20


def read_group(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """XREADGROUP. One round trip where a stream has one strand or no COUNT is given; else two or three."""
    spec = parse(argv)
    if spec is None:
        [reply] = yield Batch([tuple(argv)], attempt=True)
        raise reply if isinstance(reply, ReplyError) else ReplyError("ERR syntax error")
    right, answer = False, list[Any]()
    if not view.in_multi and spec.positions == [b">"] and not spec.limited:
        right, answer = yield from _read_by_memory(view, spec)
    if not right:
        yield from _look(view, spec)
        try:
            answer = yield from handout.read_all(view, spec)
        except ReplyError as error:
            if error.code != "NOGROUP":
                raise
            # It went away since we looked: now the look says so, by the names users know.
            yield from _look(replace(view, pipelined=False), spec)
            answer = yield from handout.read_all(view, spec)
    waits = spec.block_ms is not None and not view.in_multi and all(word == b">" for word in spec.positions)
    if not answer and waits:
        return (yield from _wait(view, spec))
    return answer or None


def _read_by_memory(view: View, spec: ReadGroup) -> Plan[tuple[bool, list[Any]]]:
    """New entries of one stream that we remember: (whether our memory was right, what came)."""
    name = spec.names[0]
    known = view.recall(name)
    strands = known.strands
    if not strands:
        return False, []
    if spec.count is not None and len(strands) > 1:
        try:
            woven = yield from handout.new(view, spec, name)
        except ReplyError:
            return _mistaken(view, name)
        return True, [[name, bodies(woven)]] if woven else []
    command = handout.xreadgroup(spec, (strand.key for strand in strands), spec.count)
    reply, bell = yield Batch([command, bell_of(name)], attempt=True)
    if isinstance(reply, ReplyError) or isinstance(bell, ReplyError):
        return _mistaken(view, name)
    woven = handout.woven(dict(heads.by_strand(reply)))
    left = None if spec.count is None else spec.count - len(woven)
    if bell != known.bell and left != 0 and not view.pipelined:
        # A strand came to be since we last looked: what it has belongs to this answer. A pipeline has
        # looked a moment ago, and what follows there is done by now.
        yield from _look(view, spec)
        woven = weave([woven, (yield from handout.new(view, replace(spec, count=left), name))])
    return True, [[name, bodies(woven)]] if woven else []


def _mistaken(view: View, name: bytes) -> tuple[bool, list[Any]]:
    if not view.pipelined:
        view.forget(name)
    return False, []


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


def _look(view: View, spec: ReadGroup) -> Plan[None]:
    """Learn the registries, and refuse what the engine would."""
    distinct = list(dict.fromkeys(spec.names))
    if not view.pipelined:
        replies = yield Batch([registry_of(name) for name in distinct], resend=True)
        for name, reply in zip(distinct, replies, strict=True):
            view.learn(name, reply)
    yield from _check(view, spec)


def _check(view: View, spec: ReadGroup) -> Plan[None]:
    """As the engine does, each key is checked together with its ID, in order."""
    for name, word in zip(spec.names, spec.positions, strict=True):
        if not view.recall(name).exists:
            yield from refuse_other_types(name)
        if spec.group not in view.recall(name).groups:
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


def _wait(view: View, spec: ReadGroup) -> Plan[list[Any] | None]:
    """Turn by turn, until something comes or the time is over."""
    assert spec.block_ms is not None
    view, left, stirred = replace(view, pipelined=False), spec.block_ms, 0
    if not all(view.recall(name).exists for name in spec.names):
        yield from _hang_bells(view, spec)  # a pipeline may have forgotten what it counted on
    while True:
        strands = [strand for name in dict.fromkeys(spec.names) for strand in view.recall(name).strands]
        few = spec.limited or (spec.count is not None and spec.count < len(strands))
        longest = LISTEN_SLICE_MS if few else TAKE_SLICE_MS
        turn = min(left, longest) if spec.block_ms else longest
        waiting = _listen(view, spec, turn) if few else _take(view, spec, strands, turn)
        try:
            found = yield from waiting
        except ReplyError:
            # A strand, the group or the bell went away. A look says which; we wait on if we can.
            stirred += 1
            if stirred > STIRRED:
                raise
            yield from _hang_bells(view, spec)
            continue
        if found:
            return found
        if found is None:
            left -= turn
        if spec.block_ms and left <= 0:
            return None


def _hang_bells(view: View, spec: ReadGroup) -> Plan[None]:
    """Learn the registries again, and have a bell for each: who comes with an older one will not wait."""
    distinct = list(dict.fromkeys(spec.names))
    replies = yield Batch([("FCALL", "bs_group_wait", 1, keys.meta(name), spec.group) for name in distinct])
    for name, reply in zip(distinct, replies, strict=True):
        view.learn(name, reply)
    yield from _check(view, spec)


def _take(view: View, spec: ReadGroup, strands: list[Strand], turn: int) -> Plan[list[Any] | None]:
    """Wait for entries of our own. None if the time was over."""
    count = None if spec.count is None else spec.count // len(strands)
    bells = [keys.bell(name, view.recall(name).bell) for name in dict.fromkeys(spec.names)]
    command = handout.xreadgroup(spec, [*(strand.key for strand in strands), *bells], count, turn)
    [reply] = yield Batch([command], block_ms=turn)
    return _given(view, spec, reply) or None


def _given(view: View, spec: ReadGroup, reply: list[Any] | None) -> list[Any]:
    """What a native read gave, stream by stream."""
    pages, answer = dict(heads.by_strand(reply)), list[Any]()
    for name in dict.fromkeys(spec.names):
        mine = {strand: page for strand, page in pages.items() if strand.name == name}
        if mine:
            heads.took(view, name, spec.group, mine)
            answer.append([name, bodies(handout.woven(mine))])
    return answer


def _listen(view: View, spec: ReadGroup, turn: int) -> Plan[list[Any] | None]:
    """Wait without taking, then read. None if the time was over, nothing if others were faster."""
    at = dict[Strand, Id]()
    for name in dict.fromkeys(spec.names):
        at.update((yield from heads.positions(view, name, spec.group)))
    [heard] = yield Batch([heads.xread(at, 1, "BLOCK", turn)], block_ms=turn, resend=True)
    pages = dict(heads.by_strand(heard))
    if len(pages) != 1 or spec.limited:
        yield from _look(view, spec)
        found = yield from handout.read_all(view, spec)
        return found or (list[Any]() if heard else None)
    [[strand, [[seen, _]]]] = pages.items()
    [reply] = yield Batch([handout.xreadgroup(spec, [strand.key], spec.count)])
    known = view.reading(strand.name, spec.group)
    if not reply and known is not None and known.at[strand] < ids.native(seen):
        # Another client took it, so the group is further than we thought.
        del view.readings[strand.name, spec.group]
    return _given(view, spec, reply)
