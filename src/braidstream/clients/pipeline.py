"""A pipeline of redis-py as one plan (gather.py), with fast paths for plain appends and for messages."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions

from braidstream.clients import shared
from braidstream.clients.raised import for_user
from braidstream.clients.shared import Session, message_of
from braidstream.commands.xadd_idempotent import (
    AT_ONCE,
    call,
    changed_settings,
    is_native,
    native_call,
    shared_lane,
)
from braidstream.engine.redis_py import encoder_of, reply_error, resp2, socket_of
from braidstream.errors import BraidError, RefusedError, ReplyError
from braidstream.model.registry import Settings, offset_of
from braidstream.model.strand import Command, Strand
from braidstream.plan import gather
from braidstream.plan.append import command_of, ensure_command
from braidstream.plan.gather import NotQueuedError, Queued
from braidstream.plan.plan import Exchange, Plan, Replies
from braidstream.plan.view import Carriage

# ----------------------------------------------------------------------------------------------------
#
# A pipeline of messages only (XADD with IDMP or IDMPAUTO), sent without a plan for each message.
#
# It sends the calls that their plans would send. If a message is not appended, because
# the cache was stale, its plan sends it again.

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
        results += _message_results(session, conn, each, reply)
    return results


def _calls(session: Session, conn: Any, commands: Commands, *, atomic: bool) -> list[_Call] | None:
    """None if a command is not a message, or its stream is not cached."""
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
    has_peers = bool(session.cache.region.journal_writer)
    settings = session.cache.settings.get(home.name) or _DEFAULTS.current(has_peers=has_peers)
    most = min(AT_ONCE, settings.maxsize)
    producer = args[3] if type(args[3]) is bytes else bytes(encoder_of(conn).encode(args[3]))
    is_named = not session.numbers(producer)
    if not is_named:
        producer = shared_lane(producer, most)
    if last is not None and last.home is home and last.producer == producer:
        return last
    native = session.producer is None and home.name in session.cache.engine_deduped
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


def _message_results(session: Session, conn: Any, sent: _Call, reply: Any) -> list[Any]:
    home = sent.lane.home
    if sent.words[0] == "XADD":
        if isinstance(reply, exceptions.ResponseError):
            session.cache.engine_deduped.discard(home.name)
            return [None]
        return [session.user_entry(conn, reply)]
    if not isinstance(reply, exceptions.ResponseError):
        if is_native(reply[0]):
            session.cache.engine_deduped.add(home.name)
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


# ----------------------------------------------------------------------------------------------------
# Pipeline


def has_streams(commands: Commands) -> bool:
    return any(shared.spec_of(args) for args, _ in commands)


def _multi_as_command() -> RefusedError:
    return RefusedError(
        "a stream command after MULTI",
        "it takes several commands, and their replies are needed at once",
        "Use pipeline(), which sends MULTI and EXEC itself",
    )


def note_multi(conn: Any, word: str) -> None:
    """Note that the user sends MULTI, or its end, as a command: in between the connection queues commands."""
    conn.braid_multi = socket_of(conn) if word == "MULTI" else None


def is_in_multi(conn: Any) -> bool:
    """Whether the user has sent MULTI as a command."""
    return getattr(conn, "braid_multi", None) is not None and conn.braid_multi is socket_of(conn)


def refuse_in_multi(conn: Any) -> None:
    """Refuse a plan after such a MULTI: the engine would queue its commands and send no replies."""
    if is_in_multi(conn):
        raise for_user(_multi_as_command())


def _queue(conn: Any, commands: Commands) -> list[Queued]:
    queued = []
    for args, _ in commands:
        spec = shared.spec_of(args)
        queued.append(Queued(args, spec, shared.words(conn, args) if spec else []))
    return queued


def pipeline(client: Any, conn: Any, commands: Commands) -> Plan[list[Any]]:
    """All commands in order, in as few round trips as possible. Results, with errors among them."""
    session: Session = client.session
    if any(args[0] == "MULTI" for args, _ in commands):
        raise _multi_as_command()
    yield from session.refresh(conn, lambda: [shared.words(conn, args) for args, _ in commands])
    first = list[Any]()
    if _is_new_log(session, conn, commands):
        # By its plan, which looks the log up and notes its age. The others follow without a plan.
        first.append((yield from _by_plan(client, conn, *commands[0])))
        commands = commands[1:]
    if (fast := _fast(session, conn, commands, logs=True)) is not None:
        native, ensured = fast
        replies = yield Exchange(native, unread=ensured)
        return first + (yield from _fast_results(client, conn, commands, replies[ensured:]))
    found = yield from messages(session, conn, commands, atomic=False)
    rest = [at for at, result in enumerate(found) if result is None]
    left = [commands[at] for at in rest]
    queued = _queue(conn, left)
    yield from gather.pipeline(session.view(Carriage.PIPELINE), queued, resp2)
    for at, result in zip(rest, _results(client, conn, queued, left), strict=True):
        found[at] = result
    return first + found


def _is_new_log(session: Session, conn: Any, commands: Commands) -> bool:
    """Whether a pipeline begins with appends of single entries to a log that the client must look up."""
    (args, _), *rest = commands[:2]
    again = rest[0][0] if rest else ()
    if args[0] != "TWRITE" or len(args) != 4 or len(again) != 4 or again[:2] != args[:2]:
        return False
    return session.may_route and session.log_of(conn, args) is None


def _fast(
    session: Session, conn: Any, commands: Commands, *, logs: bool = False
) -> tuple[list[Command], int] | None:
    """If every command is native or a plain append: commands that create strands, then the native commands
    one for one; and how many create strands. Else None. logs: appends to logs too."""
    homes = session.cache.homes
    # Create each strand first: repeating single appends would change their order.
    fast, creates = list[Command](), dict[bytes, Command]()
    for args, _ in commands:
        plain = command_of(args, homes)
        if plain is not None:
            home = homes[args[1]]
            creates[home.key] = home.create
        elif logs and args[0] == "TWRITE" and (log := session.log_of(conn, args)) is not None:
            creates[log.strand.key] = ensure_command(log.strand, known=True)
            plain = log.append(args[2], args[3])
        elif shared.spec_of(args) is not None:
            return None
        fast.append(plain or args)
    return [*creates.values(), *fast], len(creates)


def _fast_results(client: Any, conn: Any, commands: Commands, replies: Replies) -> Plan[list[Any]]:
    session: Session = client.session
    found = list[Any]()
    for (args, options), reply in zip(commands, replies, strict=True):
        if shared.spec_of(args) is None:
            is_error = isinstance(reply, exceptions.ResponseError)
            found.append(reply if is_error else shared.present_native(client, conn, reply, args, options))
        elif args[0] == "TWRITE" and type(reply) is bytes:
            found.append(shared.present_decoded(client, offset_of(reply), args, options))
        elif args[0] != "TWRITE" and reply is not None:
            is_error = isinstance(reply, exceptions.ResponseError)
            found.append(reply if is_error else session.user_entry(conn, reply))
        else:
            found.append((yield from _by_plan(client, conn, args, options)))
    return found


def _by_plan(client: Any, conn: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Plan[Any]:
    """The result of one command by its plan, or its error."""
    spec = shared.spec_of(args)
    assert spec is not None
    try:
        result = yield from client.session.command(conn, spec, shared.words(conn, args))
    except ReplyError as error:
        return for_user(error)
    return shared.present(client, conn, spec, result, args, options)


def transaction(client: Any, conn: Any, commands: Commands) -> Plan[list[Any] | None]:
    """All commands in one MULTI. None if a key under the user's WATCH has changed: nothing was done."""
    session: Session = client.session
    yield from session.refresh(conn, lambda: [shared.words(conn, args) for args, _ in commands])
    if (fast := _fast(session, conn, commands)) is not None:
        native, ensured = fast
        replies = yield Exchange(native, atomic=True)
        if replies is None:
            return None
        return (yield from _fast_results(client, conn, commands, replies[ensured:]))
    if not client.watching:
        found = yield from messages(session, conn, commands, atomic=True)
        if None not in found:  # one stream, one MULTI: all were appended, or none
            return found
    queued = _queue(conn, commands)
    try:
        done = yield from gather.transaction(
            lambda: session.view(Carriage.MULTI),
            queued,
            resp2,
            watching=client.watching,
        )
    except NotQueuedError as refused:
        refusal = for_user(refused.error)
        client.annotate_exception(refusal, refused.number, queued[refused.number - 1].args)
        raise refusal from None
    return _results(client, conn, queued, commands) if done else None


def _results(client: Any, conn: Any, queued: list[Queued], commands: Commands) -> list[Any]:
    found = []
    for item, (args, options) in zip(queued, commands, strict=True):
        if isinstance(item.result, BraidError):
            found.append(for_user(item.result))
        elif isinstance(item.result, exceptions.ResponseError):
            found.append(item.result)
        elif item.spec is not None:
            # For messages remember the home only: in a pipeline their producers have numbers.
            client.session.remember_home(args[:2] if item.parts else args, item.argv, item.result)
            found.append(shared.present(client, conn, item.spec, item.result, args, options))
        else:
            found.append(shared.present_native(client, conn, item.result, args, options))
    return found
