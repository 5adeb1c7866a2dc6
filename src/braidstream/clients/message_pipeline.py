"""A pipeline of messages only (XADD with IDMP or IDMPAUTO), sent without a plan for each message.

It sends the calls that the plans would send (commands/produce.py). If a message is not appended, because the
cache was stale, its plan sends it again.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions

from braidstream.clients.raised import for_user
from braidstream.clients.shared import Session, message_of
from braidstream.commands.produce import AT_ONCE, call, changed_settings, is_native, native_call, shared_lane
from braidstream.errors import ReplyError
from braidstream.model.idempotence import Settings
from braidstream.model.strand import Strand
from braidstream.net.compat import encoder_of
from braidstream.net.reply_shape import reply_error
from braidstream.protocol.append import ensure_command
from braidstream.protocol.exchange import Exchange
from braidstream.protocol.plan import Plan

Commands = list[tuple[tuple[Any, ...], dict[str, Any]]]
_DEFAULTS: Final = Settings()


@dataclass(slots=True)
class _Lane:
    """The target of a producer's messages. A call has at most as many as the stream remembers (`most`).

    is_named: the user chose the message IDs. native: the engine deduplicates, so each message is an XADD
    IDMP. An idempotent client uses the function instead: it must notice changed settings before a resend.
    """

    home: Strand
    producer: bytes
    is_named: bool
    most: int
    settings: Settings
    native: bool


@dataclass(slots=True)
class _Call:
    """Consecutive messages that share a call."""

    lane: _Lane
    words: list[Any]
    size: int = 0


def messages(session: Session, conn: Any, commands: Commands, *, atomic: bool) -> Plan[list[Any]]:
    """The results; None for each message that its plan must send. Plans send a MULTI over several streams,
    because it needs a WATCH."""
    calls = _calls(session, conn, commands, atomic=atomic) or []
    homes = dict.fromkeys(each.lane.home for each in calls)
    if not calls or (atomic and len(homes) > 1):
        return [None] * len(commands)
    ensure = [ensure_command(home, known=True) for home in homes]
    sent = [tuple(each.words) for each in calls]
    resend = _may_resend(session, calls)
    replies = yield Exchange(ensure + sent, atomic=atomic, resend=resend, unread=len(ensure))
    results = list[Any]()
    for each, reply in zip(calls, replies[len(ensure) :], strict=True):
        results += _results(session, conn, each, reply)
    return results


def _calls(session: Session, conn: Any, commands: Commands, *, atomic: bool) -> list[_Call] | None:
    """None if a command is no message, or its stream is not cached."""
    calls, lane, last = list[_Call](), None, (None, None)
    for args, _ in commands:
        message = message_of(conn, args)
        if message is None:
            return None
        iid, words = message
        if lane is None or args[1] is not last[0] or args[3] is not last[1]:
            lane, last = _lane(session, conn, args, lane), (args[1], args[3])
            if lane is None:
                return None
        if lane.native and not atomic:
            calls.append(_Call(lane, [*native_call(lane.home, lane.producer), iid, *words], 1))
            continue
        if not calls or calls[-1].lane is not lane or calls[-1].size == lane.most:
            journal_writer = session.cache.region.journal_writer  # type: ignore[union-attr]  # a lane has one
            calls.append(_Call(lane, list(call(lane.home, lane.settings, lane.producer, journal_writer))))
        calls[-1].words += (iid, len(words), *words)
        calls[-1].size += 1
    return calls


def _lane(session: Session, conn: Any, args: tuple[Any, ...], last: _Lane | None) -> _Lane | None:
    """The lane of a message, `last` if it is the same; None if the stream is not cached."""
    if session.cache.region is None or not isinstance(args[1], str | bytes) or not args[3]:
        return None
    known = session.cache.homes.get(args[1])
    if known is None:
        return None
    home = known.strand
    settings = session.cache.settings.get(home.name, _DEFAULTS)
    most = min(AT_ONCE, settings.maxsize)
    producer = args[3] if type(args[3]) is bytes else bytes(encoder_of(conn).encode(args[3]))
    is_named = not session.numbers(producer)
    if not is_named:
        producer = shared_lane(producer, most)
    if last is not None and last.home is home and last.producer == producer:
        return last
    native = session.producer is None and home.name in session.cache.native
    return _Lane(home, producer, is_named, most, settings, native)


def _may_resend(session: Session, calls: list[_Call]) -> bool:
    """Whether a resend by an idempotent client finds all messages. Of those with IDs that the user chose,
    there may be more than the stream remembers."""
    if session.producer is None:
        return False
    named = Counter[tuple[bytes, bytes]]()
    for each in calls:
        named[each.lane.home.key, each.lane.producer] += each.size
    return all(
        named[each.lane.home.key, each.lane.producer] <= each.lane.settings.maxsize
        for each in calls
        if each.lane.is_named
    )


def _results(session: Session, conn: Any, sent: _Call, reply: Any) -> list[Any]:
    home = sent.lane.home
    if sent.words[0] == "XADD":
        if isinstance(reply, exceptions.ResponseError):
            session.cache.native.discard(home.name)
            return [None]
        return [session.user_entry(conn, reply)]
    if not isinstance(reply, exceptions.ResponseError):
        if is_native(reply[0]):
            session.cache.native.add(home.name)
        return [_result(session, conn, answer) for answer in reply]
    error = reply_error(reply)
    settings = changed_settings(error)
    if settings is None:
        return [for_user(error)] * sent.size
    session.cache.settings[home.name] = settings
    return [None] * sent.size


def _result(session: Session, conn: Any, answer: bytes | None) -> Any:
    if answer is not None and answer.startswith(b"-"):
        return for_user(ReplyError(answer[1:].decode("utf-8", "replace")))
    return session.user_entry(conn, answer)
