"""MULTI of a client. The engine checks each native command as it is queued; plans are added at EXEC.

    client              gateway                       engine
    MULTI               MULTI                         +OK
    SET a 1             SET a 1, to have it checked   +QUEUED
    XADD s * f v        checked by the gateway                    +QUEUED, by the gateway
    EXEC                DISCARD; then all of it as one plan: WATCH, look up, MULTI ... EXEC
                        without a stream command: EXEC

DISCARD would also end the client's WATCH, so under WATCH the commands are checked on a second connection.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.commands.table import Spec
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import NULL_ARRAY, Words, error_line
from braidstream.errors import BraidError, LostError, RefusedError, ReplyError
from braidstream.gateway.client import Client, reply_of
from braidstream.gateway.own_connection import OwnConnection, parse
from braidstream.gateway.session import PUBSUB, spec_of
from braidstream.gateway.storage_guard import multi_refusal
from braidstream.model.strand import Command, pack
from braidstream.plan import gather
from braidstream.plan.gather import Queued
from braidstream.plan.lookup import find_natives
from braidstream.plan.plan import Batch, Replies, arun
from braidstream.plan.view import Carriage

QUEUED: Final = b"+QUEUED\r\n"
ABORTED: Final = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
# Answered at once inside MULTI; an error there does not abort it.
AT_ONCE: Final = frozenset((b"MULTI", b"WATCH"))
UNFIT: Final = PUBSUB | {b"AUTH", b"HELLO", b"SELECT", b"MONITOR", b"SYNC", b"PSYNC", b"REPLCONF"}

Send = Callable[[Batch], Awaitable[Replies]]


@dataclass(slots=True)
class Multi:
    """The queue of a MULTI. checker: the connection in MULTI; the client's own, if it has no WATCH.

    has_plans: the engine does not have the whole queue, so it cannot EXEC. failed: a command was refused.
    """

    checker: OwnConnection
    queued: list[Words] = field(default_factory=list)
    has_plans: bool = False
    failed: bool = False


async def begin_or_refuse(client: Client, words: Words) -> None:
    """MULTI; or EXEC, DISCARD without it, which the engine refuses."""
    own = await client.own_connection()
    if words[0].upper() == b"MULTI" and client.session.watching:
        checker = await _second(client)
    else:
        checker = own
    [reply] = await checker.collect(pack([tuple(words)]), 1, writes=False)
    if words[0].upper() == b"MULTI" and reply == b"+OK\r\n":
        client.multi, client.session.in_multi = Multi(checker), True
    client.write(reply)


async def _second(client: Client) -> OwnConnection:
    if client.second is None or client.second.lost is not None:
        client.second = await client.another_connection()
    return client.second


async def take(client: Client, words: Words) -> None:
    """A command between MULTI and EXEC."""
    name, multi = words[0].upper(), client.multi
    if name == b"EXEC" and len(words) == 1:
        await _execute(client, multi)
    elif name == b"DISCARD" and len(words) == 1:
        await _discard(client, multi)
    elif name == b"RESET" and len(words) == 1:
        _end(client)
        client.restart()
        client.write(b"+RESET\r\n")
    elif (refused := await refusal_of(client, words)) is not None:
        multi.has_plans = multi.failed = True
        client.write(error_line(refused))
    elif name not in AT_ONCE and spec_of(words) is not None and not await client.is_beside_region(words):
        client.write(await _queue_plan(client, multi, words))
    else:
        [reply] = await multi.checker.collect(pack([tuple(words)]), 1, writes=False)
        if reply == QUEUED:
            multi.queued.append(words)
        elif reply.startswith(b"-") and name not in AT_ONCE:
            multi.failed = True
        client.write(reply)


async def refusal_of(client: Client, words: Words) -> RefusedError | None:
    """The error for a command that MULTI cannot contain here, whatever the engine would say."""
    name = words[0].upper()
    if name in UNFIT or (name == b"CLIENT" and words[1:2] and words[1].upper() == b"REPLY"):
        why = "it changes the connection"
        return RefusedError(f"{name.decode('ascii', 'replace')} inside MULTI", why, "Run it before or after")
    return await multi_refusal(client, words)


async def _queue_plan(client: Client, multi: Multi, words: Words) -> bytes:
    error = await plan_error(client, words)
    multi.has_plans = True
    if error is not None:
        multi.failed = True
        return error_line(error)
    multi.queued.append(words)
    return QUEUED


async def plan_error(client: Client, words: Words) -> BraidError | None:
    """The error if a command with a plan cannot be queued."""
    spec = spec_of(words)
    assert spec is not None
    try:
        await client.database.refresh_if_due()
        error: BraidError | None = _refusal(client, spec, words)
        if error is not None and spec.arity_error(words) is None:
            # On a native stream it is the engine's own. Is the name one?
            await arun(find_natives(client.database.view(), spec.names(words)), client.send)
            error = _refusal(client, spec, words)
    except BraidError as trouble:
        error = trouble
    return error


def _refusal(client: Client, spec: Spec, words: Words) -> ReplyError | None:
    return gather.refusal(client.database.view(Carriage(pipelined=True, in_multi=True)), spec, words)


def _end(client: Client) -> None:
    client.multi, client.session.in_multi = None, False
    if client.second is not None:
        client.second.close()
        client.second = None


async def leave(checker: OwnConnection) -> None:
    """End a MULTI; nothing of it is run.

    A user may lack the right to DISCARD. That refusal aborts the MULTI, as each does, so EXEC only ends it.
    """
    [reply] = await checker.collect(pack([("DISCARD",)]), 1, writes=False)
    if reply.startswith(b"-"):
        await checker.collect(pack([("EXEC",)]), 1, writes=False)


async def _discard(client: Client, multi: Multi) -> None:
    [reply] = await multi.checker.collect(pack([("DISCARD",)]), 1, writes=False)
    if reply.startswith(b"-"):  # the MULTI goes on, aborted
        multi.failed = True
        client.write(reply)
        return
    if client.session.watching:
        await (await client.own_connection()).collect(pack([("UNWATCH",)]), 1, writes=False)
    client.session.watching = False
    _end(client)
    client.write(reply)


async def _execute(client: Client, multi: Multi) -> None:
    own, native = multi.checker, not multi.has_plans and not client.session.watching
    try:
        if native:
            await own.relay(pack([("EXEC",)]), 1)
            return
        own = await client.own_connection()
        await leave(multi.checker)
        if multi.failed:
            if client.session.watching:
                await own.collect(pack([("UNWATCH",)]), 1, writes=False)
            client.write(ABORTED)
        elif multi.has_plans:
            client.write(await run_queued(client, multi.queued, own.send))
        else:
            commands: list[Command] = [("MULTI",), *map(tuple, multi.queued)]
            await own.collect(pack(commands), len(commands))
            await own.relay(pack([("EXEC",)]), 1)
    finally:
        client.session.watching = False
        _end(client)


async def run_queued(client: Client, commands: list[Words], send: Send) -> bytes:
    """Run the commands of a MULTI as one plan. Returns the reply to EXEC. It ends the client's WATCH."""
    queued = [Queued(words, spec_of(words), words) for words in commands]
    database, resp = client.database, client.session.resp
    plan = gather.transaction(
        lambda: database.view(Carriage(pipelined=True, in_multi=True)),
        queued,
        shape,
        watching=client.session.watching,
    )
    try:
        await database.refresh_if_due()
        done = await arun(plan, send)
    except LostError:
        raise
    except BraidError as error:
        await send(Batch([("UNWATCH",)], resend=True, attempt=True))  # like EXEC, also after an error
        return error_line(error)
    if not done:
        return NULL_ARRAY[resp]
    return b"*%d\r\n" % len(queued) + b"".join(presented(client, item) for item in queued)


def shape(command: Command, reply: Any) -> Any:
    """A raw native reply, parsed as plans expect it."""
    return resp2(command, parse(reply) if isinstance(reply, bytes) else reply)


def presented(client: Client, item: Queued) -> bytes:
    """The reply to a command of a run or a MULTI; a native one unchanged."""
    if item.spec is None:
        return bytes(item.result)
    if isinstance(item.result, BraidError):
        client.hub.metrics.failed(item.result)
    else:
        client.database.remember(item.argv, item.result)
    return reply_of(item.spec, item.argv, item.result, client.session.resp)
