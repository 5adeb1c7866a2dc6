"""Holds on partitions of a topic: the engine refuses the reads of a member that another one has followed.

    take   --->   the former member's hold is deleted, ours is made      bs_team_hold, in the partition's slot
    read   --->   XREADGROUP ... STREAMS strand bell hold > > >          one native read of all partitions

A hold is an empty stream with the group. XREADGROUP refuses everything if the group is missing in one of its
streams, so a member that was frozen for longer than its session gets nothing: without a further command, and
whatever its clock says. What it has pending when it is followed is all that it will ever get.
"""

import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from braidstream.clients.commands import ViewOf
from braidstream.commands import xreadgroup_reply
from braidstream.commands.xreadgroup import look_again
from braidstream.commands.xreadgroup_reply import ReadGroup
from braidstream.consumers.settings import Settings
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.strand import Command, Strand
from braidstream.plan.plan import Batch, Plan, together
from braidstream.plan.retries import contended
from braidstream.plan.view import Carriage, View

# How many times another member may take a partition between two of our calls.
_TRIES: Final = 5


class Hold(NamedTuple):
    """A hold that was taken."""

    key: bytes
    token: bytes


@dataclass(frozen=True, slots=True)
class Pages:
    """What a read got: [stream, entries], and the streams that others hold."""

    found: list[Any]
    lost: list[str]


class Holds:
    """The holds of one member, by the stream of the partition."""

    def __init__(self, group: str) -> None:
        self.taken, self._group = dict[str, Hold](), group.encode()

    def take(self, names: Iterable[str], epoch: int) -> Plan[None]:
        """ReplyError if members with a later epoch have some of them; the others are taken."""
        former, refused = dict.fromkeys(names, b""), None
        for _ in range(_TRIES):
            new = {name: self._new(name) for name in former}
            calls = [self._call(name, new[name], epoch, token) for name, token in former.items()]
            replies = yield Batch(calls, attempt=True)
            again = dict[str, bytes]()
            for name, reply in zip(former, replies, strict=True):
                if isinstance(reply, ReplyError):
                    refused = reply
                elif reply:
                    again[name] = bytes(reply)
                else:
                    self.taken[name] = new[name]
            former = again
            if not former:
                break
        if refused or former:
            raise refused or contended(f"the holder of {next(iter(former))}")

    def keep(self, epoch: int) -> Plan[None]:
        """They would expire."""
        names = [*self.taken]
        calls = [self._call(name, self.taken[name], epoch, self.taken[name].token) for name in names]
        yield Batch(calls, resend=True, attempt=True)  # a read notices what is lost

    def give_up(self, names: Iterable[str], epoch: int) -> Plan[None]:
        held = {name: self.taken.pop(name) for name in names if name in self.taken}
        calls = [self._call(name, Hold(hold.key, b""), epoch, hold.token) for name, hold in held.items()]
        if calls:
            yield Batch(calls, resend=True, attempt=True)  # the next member deletes it, or it expires

    def _new(self, name: str) -> Hold:
        token = secrets.token_hex(8).encode()
        return Hold(keys.hold(name.encode(), self._group, token), token)

    def _call(self, name: str, hold: Hold, epoch: int, former: bytes) -> Command:
        where = [keys.holder(name.encode(), self._group), hold.key]
        if former and former != hold.token and hold.token:
            where.append(keys.hold(name.encode(), self._group, former))
        return ("FCALL", "bs_team_hold", len(where), *where, self._group, epoch, hold.token, former)

    def has(self, name: str) -> Plan[bool]:
        """Whether this member still has the partition."""
        hold = self.taken.get(name)
        if hold is None:
            return False
        [reply] = yield Batch([("EXISTS", hold.key)], resend=True)
        return bool(reply)


def prepare(view_of: ViewOf, settings: Settings, names: Iterable[str]) -> Plan[None]:
    """Create what reads need besides the group."""
    yield from xreadgroup_reply.look(
        view_of(Carriage.ALONE), _spec(settings, [name.encode() for name in names])
    )


def read(
    view_of: ViewOf, settings: Settings, holds: Mapping[str, Hold], most: int, block_ms: int
) -> Plan[Pages]:
    """New entries of partitions, at most `most` of each strand. Waits for block_ms if there are none."""
    view, names = view_of(Carriage.ALONE), [name.encode() for name in holds]
    spec = _spec(settings, names, most, block_ms)
    unknown = [name for name in names if spec.group not in view.recall(name).groups]
    if unknown:
        yield from xreadgroup_reply.look(view, _part(spec, unknown))
    by_name = {name: hold.key for name, hold in zip(names, holds.values(), strict=True)}
    has_looked = False
    while True:
        try:
            return Pages((yield from _read_now(view, spec, by_name)), [])
        except ReplyError as error:
            if error.code not in ("NOGROUP", "UNBLOCKED"):
                raise
        there = yield Batch([("EXISTS", hold) for hold in by_name.values()], resend=True)
        lost = [name.decode() for name, is_there in zip(names, there, strict=True) if not is_there]
        if lost:
            return Pages([], lost)
        if has_looked:
            raise xreadgroup_reply.incomplete(spec)
        before = [view.recall(name) for name in names]
        yield from look_again(view, spec)
        if before == [view.recall(name) for name in names]:
            yield from xreadgroup_reply.heal(view, spec)
        has_looked = True


def _read_now(view: View, spec: ReadGroup, holds: Mapping[bytes, bytes]) -> Plan[list[Any]]:
    passing = [name for name in holds if xreadgroup_reply.is_passing(view, name, spec.group)]
    some = yield from together(_read_passing(view, _part(spec, [name], holds[name])) for name in passing)
    found = [page for page in some if page[1]]
    where = list[bytes]()
    for name, hold in holds.items():
        strands = () if name in passing else view.delivered(name, spec.group)
        where += [*(strand.key for strand in strands), *xreadgroup_reply.bell(view, name), hold]
    block_ms = None if found else spec.block_ms
    [reply] = yield Batch([xreadgroup_reply.xreadgroup(spec, where, spec.count, block_ms)], block_ms=block_ms)
    pages = defaultdict[bytes, dict[Strand, list[Any]]](dict)
    for strand, page in xreadgroup_reply.by_strand(reply):
        pages[strand.name][strand] = page
    return found + [[name, xreadgroup_reply.as_reply(each)] for name, each in pages.items()]


def _spec(
    settings: Settings, names: list[bytes], most: int | None = None, block_ms: int | None = None
) -> ReadGroup:
    who = settings.group.encode(), settings.name.encode()
    return ReadGroup(*who, names, [b">"] * len(names), most, block_ms, noack=False)


def _part(spec: ReadGroup, names: list[bytes], *hold: bytes) -> ReadGroup:
    """The same read of some of its streams."""
    return replace(spec, names=names, positions=[b">"] * len(names), block_ms=None, hold=hold)


def _read_passing(view: View, spec: ReadGroup) -> Plan[list[Any]]:
    """Other regions have acknowledged entries that are ahead of the group here: they are left out."""
    [name] = spec.names
    pages = yield from xreadgroup_reply.new(view, spec, name)
    return [name, xreadgroup_reply.as_reply(pages)]
