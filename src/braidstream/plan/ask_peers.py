"""What groups of other regions still need: ACKED asks before it removes something.

A region knows the groups of the others once a link has brought them. That is too late for a group that was
just created, or created while the regions were apart, and a link never brings XGROUP SETID. So ACKED asks,
through the region's own engine:

    client ---- question ---> bs:1:q:{orders} ---- push ---> daemon ---> engines of the peers
           <--- answer ------                 <--- answer --        <---

A question and its answer are entries of one stream, which expires after a minute:

    1794702853882-0   ask 1
    1794702853882-1   to 1794702853882-0   2 ''   3 'eu-west: not connected'   2:jobs 's1:0 7-3 s2:0 9-1'

Region 2 was asked: its group `jobs` needs nothing up to 7-3 of strand s1. It is not known what region 3
needs, so nothing that it could need goes. Groups that both regions know in the same way are not named: this
region's own copies of them hold what they need.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.lookup import ms_of, registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# How long a command waits for the answer. The daemon waits less for each peer (replication/answer_peers.py).
WAIT_MS: Final = 2_000
# XADD does not wait. It uses the last answer, if its question is not older than this.
FRESH_MS: Final = 5_000
# How often XADD asks again.
_AGAIN_MS: Final = 1_000

_ASK: Final = b"ask"
_TO: Final = b"to"
# How many questions and answers are read, the latest ones.
_PAGE: Final = 20
# Equal in two regions if they know the same incarnation of a group, and the same that it delivers again.
_SAME: Final = (
    MetaField.GROUP,
    MetaField.GROUP_DELETIONS,
    MetaField.GROUP_SEEN,
    MetaField.GROUP_RETURNED,
)
# If XGROUP SETID has moved the group in one of the two regions, the other one does not know it.
_MOVED: Final = (MetaField.GROUP_MOVED, MetaField.GROUP_BASE)

# By strand (its registration): up to where a group needs nothing.
Acked = Mapping[bytes, Id]
NO_DAEMON: Final = "no daemon of this region answers"


@dataclass(frozen=True, slots=True)
class Needs:
    """unknown: regions that could not be asked, and why.

    acked: by region and group, without groups that both regions know in the same way.
    """

    unknown: Mapping[int, str] = field(default_factory=dict)
    acked: Mapping[tuple[int, bytes], Acked] = field(default_factory=dict)

    def limit(self, strand: Strand, left_out: Collection[bytes] = ()) -> Id:
        """The last native ID of a strand that may go, as far as other regions are concerned."""
        return self.holder(strand, left_out)[0]

    def holder(self, strand: Strand, left_out: Collection[bytes] = ()) -> tuple[Id, str]:
        """The same limit, and the group or the regions that it is there for."""
        if self.unknown:
            return ids.ZERO, self.waits
        found = (
            (acked.get(strand.registration, ids.ZERO), number, group)
            for (number, group), acked in self.acked.items()
            if group not in left_out
        )
        limit, number, group = min(found, default=(ids.LAST, 0, b""))
        return limit, f"group {group.decode('utf-8', 'backslashreplace')} of region {number}"

    @property
    def waits(self) -> str:
        """For which regions, and why. Empty for none."""
        return "; ".join(f"region {number} ({why})" for number, why in sorted(self.unknown.items()))


# ----------------------------------------------------------------------------------------------------
# The client's side


def ask(view: View, name: bytes, *, waits: bool = True) -> Plan[Needs]:
    """Ask the other regions. waits: for the answer. Else the last answer counts while it is fresh."""
    peers = view.region.peers
    if not peers:
        return Needs()
    where = keys.questions(name, view.region.writer)
    answer = yield from _await_answer(where) if waits else _latest_answer(where)
    if answer is None:
        return Needs(dict.fromkeys(peers, NO_DAEMON))
    missing = {number: "the daemon does not know it" for number in peers if number not in answer.known}
    return Needs({**missing, **answer.unknown}, answer.acked)


def say(where: bytes, *words: bytes) -> Command:
    """Append a question or an answer."""
    return ("FCALL", "bs_group_ask", 1, where, *words)


def _await_answer(where: bytes) -> "Plan[_Answer | None]":
    [asked] = yield Batch([say(where, _ASK, b"1")], resend=True)
    after, last_ms = asked, ids.native(asked)[0] + WAIT_MS
    while ids.native(after)[0] <= last_ms:
        read: Command = ("XREAD", "BLOCK", WAIT_MS, "STREAMS", where, after)
        [reply] = yield Batch([read], resend=True, block_ms=WAIT_MS)
        if reply is None:
            break
        [[_, page]] = reply
        for answer in _answers(page):
            if ids.native(answer.to) >= ids.native(asked):
                return answer
        after = page[-1][0]
    return None


def _latest_answer(where: bytes) -> "Plan[_Answer | None]":
    page, now = yield Batch([("XREVRANGE", where, "+", "-", "COUNT", _PAGE), ("TIME",)], resend=True)
    now_ms = ms_of(now)
    asked_ms = max((ids.native(id)[0] for id, words in page if words[0] == _ASK), default=0)
    if now_ms - asked_ms > _AGAIN_MS:
        yield Batch([say(where, _ASK, b"1")], resend=True)
    answer = next(_answers(page), None)
    return answer if answer is not None and now_ms - ids.native(answer.to)[0] <= FRESH_MS else None


@dataclass(frozen=True, slots=True)
class _Answer:
    """to: the question. known: the regions that it says something of."""

    to: bytes
    known: frozenset[int]
    unknown: dict[int, str]
    acked: dict[tuple[int, bytes], Acked]


def _answers(page: Iterable[Any]) -> Iterator[_Answer]:
    """Without those that cannot be read: whoever may write the stream may write this key too."""
    for _, words in page:
        if words[0] == _TO:
            with suppress(ValueError):
                yield _parse(words)


def _parse(words: list[bytes]) -> _Answer:
    ids.native(words[1])
    known, unknown, acked = set[int](), dict[int, str](), dict[tuple[int, bytes], Acked]()
    for field_, value in zip(words[2::2], words[3::2], strict=True):
        number, is_group, group = field_.partition(b":")
        if is_group:
            places = value.split()
            acked[int(number), group] = dict(zip(places[::2], map(ids.native, places[1::2]), strict=True))
        else:
            known.add(int(number))
            if value:
                unknown[int(number)] = value.decode("utf-8", "replace")
    return _Answer(words[1], frozenset(known), unknown, acked)


# ----------------------------------------------------------------------------------------------------
# The daemon's side


def read_question(name: bytes, writer: int) -> Plan[tuple[bytes, list[Any]]]:
    """The newest question that has no answer, else nothing; the registry. One round trip."""
    where = keys.questions(name, writer)
    page, registry = yield Batch(
        [("XREVRANGE", where, "+", "-", "COUNT", _PAGE), registry_of(name)], resend=True
    )
    asked = next((id for id, words in page if words[0] == _ASK), b"")
    answered = next((answer.to for answer in _answers(page)), b"0-0")
    return asked if asked and ids.native(answered) < ids.native(asked) else b"", registry


def answer(question: bytes, numbers: Iterable[int], needs: Needs) -> list[bytes]:
    """The words of an answer, to `say`."""
    words = [_TO, question]
    for number in numbers:
        words += [b"%d" % number, needs.unknown.get(number, "").encode()]
    for (number, group), acked in needs.acked.items():
        places = b" ".join(b"%b %b" % (strand, ids.text(upto)) for strand, upto in acked.items())
        words += [b"%d:%b" % (number, group), places]
    return words


def read_needs(name: bytes, strands: Iterable[Strand], ours: list[Any]) -> Plan[dict[bytes, dict[bytes, Id]]]:
    """Sent to a peer: its groups that need something and that this region does not know in the same way.

    ours: this region's registry. Two round trips, one if there are no such groups.
    """
    listed = [*strands]
    commands = [registry_of(name), *(("XINFO", "GROUPS", strand.key) for strand in listed)]
    theirs, *rows = yield Batch(commands, resend=True, attempt=True)
    if isinstance(theirs, ReplyError):
        raise theirs
    fields, own = facts(theirs), facts(ours)
    names = [label[len(MetaField.GROUP) :] for label in fields if label.startswith(MetaField.GROUP)]
    groups = [group for group in names if not _is_known_here(group, fields, own)]
    if not groups:
        return {}
    found = {group: dict.fromkeys((strand.registration for strand in listed), ids.ZERO) for group in groups}
    pending = list[tuple[bytes, Strand]]()
    for strand, reply in zip(listed, rows, strict=True):
        for row in _groups_of(reply):
            if (group := row[b"name"]) in found:
                found[group][strand.registration] = ids.native(row[b"last-delivered-id"])
                pending += [(group, strand)] if row[b"pending"] else []
    reads: list[Command] = [("XPENDING", strand.key, group) for group, strand in pending]
    replies = (yield Batch(reads, resend=True)) if reads else []
    for (group, strand), (_, first, *_) in zip(pending, replies, strict=True):
        if first is not None:  # else they were acknowledged meanwhile
            before = ids.before(ids.native(first)) or ids.ZERO
            found[group][strand.registration] = min(found[group][strand.registration], before)
    return found


def _groups_of(reply: Any) -> list[dict[bytes, Any]]:
    if not isinstance(reply, ReplyError):
        return [facts(row) for row in reply]
    if reply.text.startswith("ERR no such key"):
        return []
    raise reply


def _is_known_here(group: bytes, theirs: Mapping[bytes, bytes], ours: Mapping[bytes, bytes]) -> bool:
    is_moved = any(label + group in fields for label in _MOVED for fields in (theirs, ours))
    return not is_moved and all(theirs.get(label + group) == ours.get(label + group) for label in _SAME)
