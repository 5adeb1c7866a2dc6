"""XREADGROUP BLOCK: how a consumer waits. The engine serves blocked readers first come, first served.

    COUNT                     each waits with
    none, or >= strands       XREADGROUP of every strand, COUNT divided among them: who is first takes. The
                              stream's bell is waited on too; it goes away when a strand comes to be.
    less than the strands     Several strands might give one each, which would be too many. So one consumer
                              at a time looks out, with XREAD; the others wait for their turn, natively:

         turn  --XREADGROUP-->  lookout  --XREAD-->  entry  --XREADGROUP, and XADD turn-->  next lookout

The turn is an entry of a stream beside the strands. It is passed on under the ID that follows its own,
which the engine refuses if there is a newer one: two turns become one again. If a lookout dies its turn is
lost. Those who wait look for themselves every five seconds; who finds something makes a new turn.
"""

from dataclasses import replace
from typing import Any, Final

from braidstream.commands.xreadgroup import handout, heads
from braidstream.commands.xreadgroup.group_arguments import ReadGroup
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.merge import reply_entries
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

# A waiting consumer looks up from time to time, and goes to the end of the queue. Who waits without taking
# does not hear the bell, and looks up more often.
QUEUE_SLICE_MS: Final = 5_000
LISTEN_SLICE_MS: Final = 1_000
# How often a wait may be disturbed (strands re-made, say) before it says so.
STIRRED: Final = 20

Answer = list[Any] | None


class Wait:
    """One wait: how much time is left, and whether it is our turn to look out (the turn's ID)."""

    def __init__(self, view: View, spec: ReadGroup) -> None:
        assert spec.block_ms is not None
        self.view, self.spec = view.alone(), spec
        self.names = list(dict.fromkeys(spec.names))
        self.left_ms, self.turn = spec.block_ms, b""

    def slice_ms(self, longest: int) -> int:
        return min(self.left_ms, longest) if self.spec.block_ms else longest

    @property
    def over(self) -> bool:
        return bool(self.spec.block_ms) and self.left_ms <= 0

    @property
    def is_few(self) -> bool:
        """Whether a native read of all strands could give too many."""
        count = self.spec.count
        return self.spec.limited or (count is not None and count < len(self.strands))

    @property
    def in_turn(self) -> bool:
        return self.is_few and not self.spec.limited and len(self.names) == 1

    @property
    def strands(self) -> list[Strand]:
        return [strand for name in self.names for strand in self.view.recall(name).strands]


def wait(view: View, spec: ReadGroup) -> Plan[Answer]:
    """Until something comes or the time is over; where COUNT is small, up to five seconds longer."""
    here, stirred, waited = Wait(view, spec), 0, False
    if not all(view.recall(name).exists for name in here.names):
        yield from handout.look(here.view, spec)  # a pipeline may have forgotten what it counted on
    while not here.over:
        try:
            found = yield from _how(here)
        except ReplyError as error:
            # A strand, the group, the bell or the turn is not there. A look says which; we wait on if we can.
            stirred += 1
            if stirred > STIRRED:
                raise
            waited = waited or here.is_few or error.code != "NOGROUP"  # else it was gone before we came
            yield from look_again(here.view, spec, turn=here.in_turn, waited=waited)
            continue
        if found:
            return found
        waited = True
    if here.turn:
        yield Batch([_pass_on(here)], attempt=True)
    return None


def look_again(view: View, spec: ReadGroup, *, turn: bool = False, waited: bool = True) -> Plan[None]:
    """Something changed since we looked. If the stream was deleted while a reader waited, it gets the error
    that this engine has for that."""
    try:
        yield from handout.look(view, spec, turn=turn)
    except ReplyError:
        gone = [name for name in spec.names if not view.recall(name).exists]
        if spec.block_ms is None or not gone or not waited:
            raise
        # With peers a stream without entries ends with its last group; that is no deletion of the stream.
        destroyed = ("HEXISTS", keys.meta(gone[0]), MetaField.GROUP_DELETIONS + spec.group)
        server, ended = yield Batch([("INFO", "server"), destroyed], resend=True, attempt=True)
        if isinstance(server, bytes) and b"redis_version:7.0." in server and not ended:
            raise ReplyError("UNBLOCKED the stream key no longer exists") from None
        raise


def _how(here: Wait) -> Plan[Answer]:
    if here.in_turn:
        return _look_out(here) if here.turn else _queue(here)
    return _listen(here) if here.is_few else _take(here)


def _take(here: Wait) -> Plan[Answer]:
    """Wait for entries of our own."""
    count = None if here.spec.count is None else here.spec.count // len(here.strands)
    bells = [bell for name in here.names for bell in handout.bell(here.view, name)]
    time_ms = here.slice_ms(QUEUE_SLICE_MS)
    where = [*(strand.key for strand in here.strands), *bells]
    [reply] = yield Batch([handout.xreadgroup(here.spec, where, count, time_ms)], block_ms=time_ms)
    if not reply:
        here.left_ms -= time_ms
    return _given(here, reply)


def _given(here: Wait, reply: list[Any] | None) -> list[Any]:
    """What a native read gave, stream by stream."""
    pages, answer = dict(heads.by_strand(reply)), list[Any]()
    for name in here.names:
        mine = {strand: page for strand, page in pages.items() if strand.name == name}
        if mine:
            heads.took(here.view, name, here.spec.group, mine)
            answer.append([name, reply_entries(handout.merged(mine))])
    return answer


def _read(here: Wait) -> Plan[Answer]:
    """What is there, as without BLOCK."""
    yield from handout.look(here.view, here.spec)
    return (yield from handout.read_all(here.view, here.spec))


def _listen(here: Wait) -> Plan[Answer]:
    """Wait without taking, then read: other consumers may be faster."""
    heard = yield from _hear(here)
    return (yield from _read_heard(here, heard))


def _read_heard(here: Wait, heard: dict[Strand, list[Any]]) -> Plan[Answer]:
    """What is there. If something was heard and nothing is, the group is further than we thought."""
    found = yield from _read(here)
    if heard and not found:
        for name in here.names:
            here.view.forget_reading(name, here.spec.group)
    return found


def _hear(here: Wait) -> Plan[dict[Strand, list[Any]]]:
    """Wait until a strand has something after where the group was."""
    at = dict[Strand, Id]()
    for name in here.names:
        at.update((yield from heads.positions(here.view, name, here.spec.group)))
    time_ms = here.slice_ms(LISTEN_SLICE_MS)
    [heard] = yield Batch([heads.xread(at, 1, "BLOCK", time_ms)], block_ms=time_ms, resend=True)
    if not heard:
        here.left_ms -= time_ms
    return dict(heads.by_strand(heard))


def _queue(here: Wait) -> Plan[Answer]:
    """Wait for our turn to look out."""
    turn, time_ms = keys.turn(here.names[0], here.spec.group), here.slice_ms(QUEUE_SLICE_MS)
    spec = replace(here.spec, noack=True)
    [reply] = yield Batch([handout.xreadgroup(spec, [turn], 1, time_ms)], block_ms=time_ms)
    if reply and reply[0][1]:  # it may be gone again: see heads.by_strand
        here.turn = reply[0][1][0][0]
        # Whoever had the turn has taken something, so the group is further than we remember.
        here.view.forget_reading(here.names[0], here.spec.group)
        return None
    here.left_ms -= time_ms
    found = yield from _read(here)
    if found:
        # Whoever looks out should have had it. If they are gone, their turn is lost: here is another.
        yield Batch([("XADD", turn, "NOMKSTREAM", "MAXLEN", 1, "*", "turn", 1)], attempt=True)
    return found


def _look_out(here: Wait) -> Plan[Answer]:
    """It is our turn: the next entry is ours, and with it goes the turn to the next."""
    pages = yield from _hear(here)
    if len(pages) != 1:
        found = yield from _read_heard(here, pages)
        if found:
            yield Batch([_pass_on(here)], attempt=True)
        return found
    [(strand, [[seen, _]])] = pages.items()
    commands = [handout.xreadgroup(here.spec, [strand.key], here.spec.count), _pass_on(here)]
    reply, _ = yield Batch(commands, attempt=True)
    if isinstance(reply, ReplyError):
        raise reply
    here.turn = b""
    known = here.view.reading(strand.name, here.spec.group)
    if not reply and known is not None and known.at[strand] < ids.native(seen):
        # Another client took it, so the group is further than we thought.
        here.view.forget_reading(strand.name, here.spec.group)
    return _given(here, reply)


def _pass_on(here: Wait) -> Command:
    ms, seq = ids.native(here.turn)
    turn = keys.turn(here.names[0], here.spec.group)
    return ("XADD", turn, "NOMKSTREAM", "MAXLEN", 1, ids.text((ms, seq + 1)), "turn", 1)
