"""XREADGROUP: returns entries at once if there are any (xreadgroup_reply.py), else waits for its turn."""

from dataclasses import replace
from typing import Any, Final

from braidstream.commands import xreadgroup_reply
from braidstream.commands.arguments import Argv, shown
from braidstream.commands.xreadgroup_reply import ReadGroup, parse
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.registry import Registry
from braidstream.model.strand import Command, Strand
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
#
# XREADGROUP BLOCK: how a consumer waits. The engine serves blocked readers first come, first served.
#
#     COUNT                     each consumer waits with
#     none, or >= strands       XREADGROUP of every strand, COUNT divided among them; the engine picks the
#                               consumer. It also waits on the stream's bell, a key that is deleted when a
#                               strand is created.
#     less than the strands     Several strands might return one entry each: more than COUNT. So one consumer
#                               at a time, the lookout, waits with XREAD; the others wait for their turn:
#
#          turn  --XREADGROUP-->  lookout  --XREAD-->  entry  --XREADGROUP, and XADD turn-->  next lookout
#
# The turn is an entry in a stream of its own. The lookout passes it on with the next ID, which the engine
# refuses if there is a newer turn: so two turns become one again. If a lookout crashes, its turn is lost.
# The waiting consumers read every five seconds; one that finds an entry creates a new turn.

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
        return any(xreadgroup_reply.is_passing(self.view, name, self.spec.group) for name in self.names)

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
        yield from xreadgroup_reply.look(
            here.view, spec
        )  # an earlier command of a pipeline may have cleared the cache
    while not here.over:
        try:
            # Strands that we learn of may have COUNT entries already. A wait would take a part from each.
            found = yield from (xreadgroup_reply.read_all(here.view, spec) if looked else _choose_wait(here))
            looked = False
        except ReplyError as error:
            # A strand, the group, the bell or the turn is missing. Look again: raise, or continue the wait.
            errors += 1
            if errors > MOST_ERRORS or error.is_client_unblock:
                if error.code == "NOGROUP" and (yield from xreadgroup_reply.heal(here.view, spec)):
                    errors = 0
                else:
                    yield from _leave(here)
                    if error.code == "NOGROUP":
                        raise xreadgroup_reply.incomplete(spec) from None
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
        yield from xreadgroup_reply.look(view, spec, turn=turn)
    except ReplyError as error:
        gone = [name for name in spec.names if not view.recall(name).exists]
        if spec.block_ms is None or not gone or not waited:
            raise
        # With peers, destroying the last group removes an empty stream; that is not a deletion of the stream.
        destroyed = ("HEXISTS", keys.meta(gone[0]), MetaField.GROUP_DELETIONS + spec.group)
        looks: list[Command] = [("INFO", "server"), destroyed, ("TYPE", gone[0])]
        server, ended, kind = yield Batch(looks, resend=True, attempt=True)
        if error.code == "WRONGTYPE" and kind == b"stream":
            raise  # a native stream by now: commands/native.py continues there
        if isinstance(server, bytes) and b"redis_version:7.0." in server and not ended:
            raise ReplyError("UNBLOCKED the stream key no longer exists") from None
        raise


def _choose_wait(here: Wait) -> Plan[Answer]:
    if not here.strands:
        return _wait_for_strands(here)
    if here.in_turn:
        return _look_out(here) if here.turn else _queue(here)
    return _listen(here) if here.is_few or here.is_passing else _take(here)


def _take(here: Wait) -> Plan[Answer]:
    """Wait natively on all strands, and on the bells."""
    count = None if here.spec.count is None else here.spec.count // max(1, len(here.strands))
    bells = [bell for name in here.names for bell in xreadgroup_reply.bell(here.view, name)]
    time_ms = here.slice_ms(QUEUE_SLICE_MS)
    where = [*(strand.key for strand in here.strands), *bells]
    [reply] = yield Batch([xreadgroup_reply.xreadgroup(here.spec, where, count, time_ms)], block_ms=time_ms)
    if not reply:
        here.left_ms -= time_ms
    return _delivered(here, reply)


def _wait_for_strands(here: Wait) -> Plan[Answer]:
    """This region delivers no strand: wait for the bells. CLAIM may still find pending entries."""
    found = yield from _take(here)
    return found or ((yield from _read(here)) if here.spec.limited else found)


def _delivered(here: Wait, reply: list[Any] | None) -> list[Any]:
    """The reply of a native read, by stream."""
    pages, answer = dict(xreadgroup_reply.by_strand(reply)), list[Any]()
    for name in here.names:
        mine = {strand: page for strand, page in pages.items() if strand.name == name}
        if mine:
            xreadgroup_reply.note_delivered(here.view, name, here.spec.group, mine)
            answer.append([name, xreadgroup_reply.as_reply(mine)])
    return answer


def _read(here: Wait) -> Plan[Answer]:
    """Read as without BLOCK."""
    yield from xreadgroup_reply.look(here.view, here.spec)
    return (yield from xreadgroup_reply.read_all(here.view, here.spec))


def _listen(here: Wait) -> Plan[Answer]:
    """Wait with XREAD, then read: another consumer may be faster."""
    heard = yield from _hear(here)
    return (yield from _read_heard(here, heard))


def _read_heard(here: Wait, heard: dict[Strand, list[Any]]) -> Plan[Answer]:
    """Read after XREAD found `heard`. If those are gone, the cached position of the group is stale."""
    found = yield from _read(here)
    if heard and not found:
        for name in here.names:
            here.view.cache.forget_reading(name, here.spec.group)
    return found


def _hear(here: Wait) -> Plan[dict[Strand, list[Any]]]:
    """Wait until a strand has entries after the group's cached position."""
    at = dict[Strand, Id]()
    for name in here.names:
        at.update((yield from xreadgroup_reply.positions(here.view, name, here.spec.group)))
    time_ms = here.slice_ms(LISTEN_SLICE_MS)
    [heard] = yield Batch([xreadgroup_reply.xread(at, 1, "BLOCK", time_ms)], block_ms=time_ms, resend=True)
    if not heard:
        here.left_ms -= time_ms
    return dict(xreadgroup_reply.by_strand(heard))


def _queue(here: Wait) -> Plan[Answer]:
    """Wait for our turn to be the lookout."""
    turn, time_ms = keys.turn(here.names[0], here.spec.group), here.slice_ms(QUEUE_SLICE_MS)
    spec = replace(here.spec, noack=True)
    [reply] = yield Batch([xreadgroup_reply.xreadgroup(spec, [turn], 1, time_ms)], block_ms=time_ms)
    if reply and reply[0][1]:  # the page may be empty: see heads.by_strand
        here.turn = reply[0][1][0][0]
        # The previous lookout has read entries, so the cached position of the group is stale.
        here.view.cache.forget_reading(here.names[0], here.spec.group)
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
    bells = xreadgroup_reply.bell(here.view, strand.name) if is_once else []
    commands = [xreadgroup_reply.xreadgroup(here.spec, [strand.key, *bells], here.spec.count), _pass_on(here)]
    reply, _ = yield Batch(commands, attempt=True)
    if isinstance(reply, ReplyError):
        raise reply
    here.turn = b""
    known = here.view.reading(strand.name, here.spec.group)
    if not reply and known is not None and known.at[strand] < ids.native(seen):
        # Another client read it, so the cached position is stale.
        here.view.cache.forget_reading(strand.name, here.spec.group)
    return _delivered(here, reply)


def _pass_on(here: Wait) -> Command:
    ms, seq = ids.native(here.turn)
    turn = keys.turn(here.names[0], here.spec.group)
    return ("XADD", turn, "NOMKSTREAM", "MAXLEN", 1, ids.text((ms, seq + 1)), "turn", 1)


# ----------------------------------------------------------------------------------------------------
# Xreadgroup


def read_group(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """XREADGROUP: one round trip for one strand or without COUNT, otherwise two or three."""
    spec = parse(argv)
    if spec is None:
        [reply] = yield Batch([tuple(argv)], attempt=True)
        raise reply if isinstance(reply, ReplyError) else ReplyError("ERR syntax error")
    is_shared, is_once = view.carriage.has_looked, not view.carriage.is_multi and _is_once(view, spec)
    waits = spec.block_ms is not None and view.carriage.may_block
    if is_once or waits or not _is_one_batch(view, spec):
        view.will_continue()
    view = view.apart()
    if is_once:
        view = view.alone()  # its strands may be handed over since the pipeline has looked
    if view.carriage.has_looked or not _is_known(view, spec):
        yield from xreadgroup_reply.look(view, spec)
    waits = waits and all(word == b">" for word in spec.positions)
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
            return (yield from xreadgroup_reply.read_all(view, spec))
        except ReplyError as error:
            if error.code != "NOGROUP":
                raise
        view = view.alone()
        yield from look_again(view, spec)  # raises if the group is gone
        found = [view.recall(name) for name in spec.names]
        if found == before:
            if not (yield from xreadgroup_reply.heal(view, spec)):
                raise xreadgroup_reply.incomplete(spec)
            yield from look_again(view, spec)
        before = found


def _is_one_batch(view: View, spec: ReadGroup) -> bool:
    """Whether a read that does not wait needs one batch, by the cache."""
    if spec.max_size is not None or len(spec.names) > 1:
        return False
    if spec.claim_ms is not None and spec.positions == [b">"]:
        return xreadgroup_reply.claims_natively(view, spec)
    unlimited = spec.count is None and spec.max_count is None
    return unlimited or len(view.delivered(spec.names[0], spec.group)) <= 1


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
