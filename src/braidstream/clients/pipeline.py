"""A pipeline of redis-py as one plan (gather.py), with fast paths for plain appends and for messages."""

from typing import Any

from redis import exceptions

from braidstream.clients import shared
from braidstream.clients.message_pipeline import messages
from braidstream.clients.raised import for_user
from braidstream.clients.shared import Session
from braidstream.errors import BraidError, RefusedError, ReplyError
from braidstream.model.command import Command
from braidstream.net.compat import socket_of
from braidstream.net.reply_shape import resp2
from braidstream.protocol import gather
from braidstream.protocol.append import command_of, ensure_commands
from braidstream.protocol.carry import Carriage
from braidstream.protocol.exchange import Exchange
from braidstream.protocol.gather import NotQueuedError, Queued
from braidstream.protocol.plan import Plan, Replies

Commands = list[tuple[tuple[Any, ...], dict[str, Any]]]


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
    yield from session.refresh(conn)
    if (fast := _fast(session, commands)) is not None:
        native, ensured = fast
        replies = yield Exchange(native, unread=ensured)
        return (yield from _fast_results(client, conn, commands, replies[ensured:]))
    found = yield from messages(session, conn, commands, atomic=False)
    rest = [at for at, result in enumerate(found) if result is None]
    left = [commands[at] for at in rest]
    queued = _queue(conn, left)
    yield from gather.pipeline(session.view(Carriage(pipelined=True)), queued, resp2)
    for at, result in zip(rest, _results(client, conn, queued, left), strict=True):
        found[at] = result
    return found


def _fast(session: Session, commands: Commands) -> tuple[list[Command], int] | None:
    """If every command is native or a plain append: commands that create strands, then the native commands
    one for one; and how many create strands. Else None."""
    homes = session.cache.homes
    fast = list[Command]()
    for args, _ in commands:
        plain = command_of(args, homes)
        if plain is None:
            if shared.spec_of(args) is not None:
                return None
            plain = args
        fast.append(plain)
    ensure = ensure_commands((args for args, _ in commands), homes)
    return ensure + fast, len(ensure)


def _fast_results(client: Any, conn: Any, commands: Commands, replies: Replies) -> Plan[list[Any]]:
    session: Session = client.session
    found = list[Any]()
    for (args, options), reply in zip(commands, replies, strict=True):
        spec = shared.spec_of(args)
        if isinstance(reply, exceptions.ResponseError):
            found.append(reply)
        elif spec is None:
            found.append(shared.present_native(client, conn, reply, args, options))
        elif reply is not None:
            found.append(session.user_entry(conn, reply))
        else:
            try:
                result = yield from session.command(conn, spec, shared.words(conn, args))
                found.append(shared.present(client, conn, spec, result, args, options))
            except ReplyError as error:
                found.append(for_user(error))
    return found


def transaction(client: Any, conn: Any, commands: Commands) -> Plan[list[Any] | None]:
    """All commands in one MULTI. None if a key under the user's WATCH has changed: nothing was done."""
    session: Session = client.session
    yield from session.refresh(conn)
    if (fast := _fast(session, commands)) is not None:
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
            lambda: session.view(Carriage(pipelined=True, in_multi=True)),
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
