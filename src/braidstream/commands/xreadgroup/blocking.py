"""XREADGROUP BLOCK: how a consumer waits. The engine serves blocked readers first come, first served.

    COUNT                     each consumer waits with
    none, or >= strands       XREADGROUP of every strand, COUNT divided among them; the engine picks the
                              consumer. It also waits on the stream's bell, a key that is deleted when a
                              strand is created.
    less than the strands     Several strands might return one entry each: more than COUNT. So one consumer
                              at a time, the lookout, waits with XREAD; the others wait for their turn:

         turn  --XREADGROUP-->  lookout  --XREAD-->  entry  --XREADGROUP, and XADD turn-->  next lookout

The turn is an entry in a stream of its own. The lookout passes it on with the next ID, which the engine
refuses if there is a newer turn: so two turns become one again. If a lookout crashes, its turn is lost. The
waiting consumers read every five seconds; one that finds an entry creates a new turn.
"""

from dataclasses import replace
from typing import Any, Final

from braidstream.commands.xreadgroup import handout, heads, passing
from braidstream.commands.xreadgroup.group_arguments import ReadGroup
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.meta import Registry
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

# How long one native wait lasts; then the consumer checks the stream again and goes to the end of the queue.
# An XREAD does not wait on the bell, so it is shorter.
QUEUE_SLICE_MS: Final = 5_000
LISTEN_SLICE_MS: Final = 1_000
# How many errors in a row a wait survives, if each time nothing has changed.
MOST_ERRORS: Final = 20

Answer = list[Any] | None


class Wait:
    """One wait: the time left, and the ID of the turn if this consumer is the lookout."""

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
        """Whether a native read of all strands could return more than COUNT."""
        count = self.spec.count
        return self.spec.limited or (count is not None and count < len(self.strands))

    @property
    def is_passing(self) -> bool:
        """Whether a native read could return what another region has acknowledged."""
        return any(passing.is_passing(self.view, name, self.spec.group) for name in self.names)

    @property
    def in_turn(self) -> bool:
        return self.is_few and not self.spec.limited and len(self.names) == 1 and not self.is_passing

    @property
    def registries(self) -> list[Registry]:
        return [self.view.recall(name) for name in self.names]

    @property
    def strands(self) -> list[Strand]:
        return [strand for name in self.names for strand in self.view.delivered(name, self.spec.group)]


def wait(view: View, spec: ReadGroup) -> Plan[Answer]:
    """Wait for entries until the timeout; with a small COUNT up to five seconds longer."""
    here, errors, waited, looked = Wait(view, spec), 0, False, False
    if not all(view.recall(name).exists for name in here.names):
        yield from handout.look(
            here.view, spec
        )  # an earlier command of a pipeline may have cleared the cache
    while not here.over:
        try:
            # Strands that we learn of may have COUNT entries already. A wait would take a part from each.
            found = yield from (handout.read_all(here.view, spec) if looked else _how(here))
            looked = False
        except ReplyError as error:
            # A strand, the group, the bell or the turn is missing. Look again: raise, or continue the wait.
            errors += 1
            if errors > MOST_ERRORS or error.is_client_unblock:
                if error.code == "NOGROUP" and (yield from handout.heal(here.view, spec)):
                    errors = 0
                else:
                    yield from _leave(here)
                    if error.code == "NOGROUP":
                        raise handout.incomplete(spec) from None
                    raise
            waited = waited or here.is_few or error.code != "NOGROUP"  # else it was missing from the start
            before = here.registries
            yield from look_again(here.view, spec, turn=here.in_turn, waited=waited)
            if here.registries != before:
                errors = 0
            looked = True
            continue
        if found:
            return found
        waited, errors = True, 0
    yield from _leave(here)
    return None


def _leave(here: Wait) -> Plan[None]:
    if here.turn:
        yield Batch([_pass_on(here)], attempt=True)


def look_again(view: View, spec: ReadGroup, *, turn: bool = False, waited: bool = True) -> Plan[None]:
    """Read the registry again after an error. If the stream was deleted while a reader waited, raise the
    error that this engine has for that."""
    try:
        yield from handout.look(view, spec, turn=turn)
    except ReplyError as error:
        gone = [name for name in spec.names if not view.recall(name).exists]
        if spec.block_ms is None or not gone or not waited:
            raise
        # With peers, destroying the last group removes an empty stream; that is no deletion of the stream.
        destroyed = ("HEXISTS", keys.meta(gone[0]), MetaField.GROUP_DELETIONS + spec.group)
        looks: list[Command] = [("INFO", "server"), destroyed, ("TYPE", gone[0])]
        server, ended, kind = yield Batch(looks, resend=True, attempt=True)
        if error.code == "WRONGTYPE" and kind == b"stream":
            raise  # a native stream by now: commands/native.py continues there
        if isinstance(server, bytes) and b"redis_version:7.0." in server and not ended:
            raise ReplyError("UNBLOCKED the stream key no longer exists") from None
        raise


def _how(here: Wait) -> Plan[Answer]:
    if not here.strands:
        return _wait_for_strands(here)
    if here.in_turn:
        return _look_out(here) if here.turn else _queue(here)
    return _listen(here) if here.is_few or here.is_passing else _take(here)


def _take(here: Wait) -> Plan[Answer]:
    """Wait natively on all strands, and on the bells."""
    count = None if here.spec.count is None else here.spec.count // max(1, len(here.strands))
    bells = [bell for name in here.names for bell in handout.bell(here.view, name)]
    time_ms = here.slice_ms(QUEUE_SLICE_MS)
    where = [*(strand.key for strand in here.strands), *bells]
    [reply] = yield Batch([handout.xreadgroup(here.spec, where, count, time_ms)], block_ms=time_ms)
    if not reply:
        here.left_ms -= time_ms
    return _delivered(here, reply)


def _wait_for_strands(here: Wait) -> Plan[Answer]:
    """This region delivers no strand: wait for the bells. CLAIM may still find pending entries."""
    found = yield from _take(here)
    return found or ((yield from _read(here)) if here.spec.limited else found)


def _delivered(here: Wait, reply: list[Any] | None) -> list[Any]:
    """The reply of a native read, by stream."""
    pages, answer = dict(heads.by_strand(reply)), list[Any]()
    for name in here.names:
        mine = {strand: page for strand, page in pages.items() if strand.name == name}
        if mine:
            heads.note_delivered(here.view, name, here.spec.group, mine)
            answer.append([name, handout.as_reply(mine)])
    return answer


def _read(here: Wait) -> Plan[Answer]:
    """Read as without BLOCK."""
    yield from handout.look(here.view, here.spec)
    return (yield from handout.read_all(here.view, here.spec))


def _listen(here: Wait) -> Plan[Answer]:
    """Wait with XREAD, then read: another consumer may be faster."""
    heard = yield from _hear(here)
    return (yield from _read_heard(here, heard))


def _read_heard(here: Wait, heard: dict[Strand, list[Any]]) -> Plan[Answer]:
    """Read after XREAD found `heard`. If those are gone, the cached position of the group is stale."""
    found = yield from _read(here)
    if heard and not found:
        for name in here.names:
            here.view.forget_reading(name, here.spec.group)
    return found


def _hear(here: Wait) -> Plan[dict[Strand, list[Any]]]:
    """Wait until a strand has entries after the group's cached position."""
    at = dict[Strand, Id]()
    for name in here.names:
        at.update((yield from heads.positions(here.view, name, here.spec.group)))
    time_ms = here.slice_ms(LISTEN_SLICE_MS)
    [heard] = yield Batch([heads.xread(at, 1, "BLOCK", time_ms)], block_ms=time_ms, resend=True)
    if not heard:
        here.left_ms -= time_ms
    return dict(heads.by_strand(heard))


def _queue(here: Wait) -> Plan[Answer]:
    """Wait for our turn to be the lookout."""
    turn, time_ms = keys.turn(here.names[0], here.spec.group), here.slice_ms(QUEUE_SLICE_MS)
    spec = replace(here.spec, noack=True)
    [reply] = yield Batch([handout.xreadgroup(spec, [turn], 1, time_ms)], block_ms=time_ms)
    if reply and reply[0][1]:  # the page may be empty: see heads.by_strand
        here.turn = reply[0][1][0][0]
        # The previous lookout has read entries, so the cached position of the group is stale.
        here.view.forget_reading(here.names[0], here.spec.group)
        return None
    here.left_ms -= time_ms
    found = yield from _read(here)
    if found:
        # The lookout should have had it. If it has crashed, its turn is lost: create another.
        yield Batch([("XADD", turn, "NOMKSTREAM", "MAXLEN", 1, "*", "turn", 1)], attempt=True)
    return found


def _look_out(here: Wait) -> Plan[Answer]:
    """We are the lookout: wait for the next entry, read it, and pass the turn on."""
    pages = yield from _hear(here)
    if len(pages) != 1:
        found = yield from _read_heard(here, pages)
        if found:
            yield Batch([_pass_on(here)], attempt=True)
        return found
    [(strand, [[seen, _]])] = pages.items()
    # If the strand may have been taken away or given since, the bell refuses the read.
    is_once = here.spec.group in here.view.recall(strand.name).scopes
    bells = handout.bell(here.view, strand.name) if is_once else []
    commands = [handout.xreadgroup(here.spec, [strand.key, *bells], here.spec.count), _pass_on(here)]
    reply, _ = yield Batch(commands, attempt=True)
    if isinstance(reply, ReplyError):
        raise reply
    here.turn = b""
    known = here.view.reading(strand.name, here.spec.group)
    if not reply and known is not None and known.at[strand] < ids.native(seen):
        # Another client read it, so the cached position is stale.
        here.view.forget_reading(strand.name, here.spec.group)
    return _delivered(here, reply)


def _pass_on(here: Wait) -> Command:
    ms, seq = ids.native(here.turn)
    turn = keys.turn(here.names[0], here.spec.group)
    return ("XADD", turn, "NOMKSTREAM", "MAXLEN", 1, ids.text((ms, seq + 1)), "turn", 1)
