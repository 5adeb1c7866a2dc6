"""MULTI of a client. A node checks each native command as it is queued; plans are added at EXEC.

    client              gateway                       a node
    MULTI               MULTI                         +OK
    SET a 1             SET a 1, to have it checked   +QUEUED
    XADD s * f v        checked by the gateway                    +QUEUED, by the gateway
    EXEC                DISCARD; then all of it as one plan: WATCH, look up, MULTI ... EXEC
                        one server, without a stream command: EXEC

DISCARD would also end the client's WATCH, so under WATCH the commands are checked on a connection without it.

In a cluster the first key names the slot. A command with keys of another slot is refused, and EXEC with it.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.redirects import CROSS_SLOT
from braidstream.commands.table import Spec
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import NULL_ARRAY, Words, error_line
from braidstream.errors import REDIRECTS, BraidError, LostError, RefusedError, ReplyError
from braidstream.gateway.client import Client, reply_of
from braidstream.gateway.own_connections import CHECKER, OwnConnection, parse
from braidstream.gateway.session import (
    ABOUT_CLUSTERS,
    NO_CLUSTER,
    PUBSUB,
    memory_of,
    size_refusal,
    spec_of,
)
from braidstream.gateway.storage_guard import multi_refusal
from braidstream.model.strand import Command, pack
from braidstream.plan import gather
from braidstream.plan.gather import Queued
from braidstream.plan.lookup import find_natives
from braidstream.plan.plan import Batch, Replies, arun
from braidstream.plan.view import Carriage

_QUEUED: Final = b"+QUEUED\r\n"
_ABORTED: Final = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
# Answered at once inside MULTI; an error there does not abort it. What the gateway says if no node answers:
_AT_ONCE: Final = {
    b"MULTI": b"-ERR MULTI calls can not be nested\r\n",
    b"WATCH": b"-ERR WATCH inside MULTI is not allowed\r\n",
}
_UNFIT: Final = PUBSUB | {b"AUTH", b"HELLO", b"SELECT", b"MONITOR", b"SYNC", b"PSYNC", b"REPLCONF"}

Send = Callable[[Batch], Awaitable[Replies]]


@dataclass(slots=True)
class Multi:
    """The queue of a MULTI.

    slot: of the first key, in a cluster. keys: those of the native commands, by their words.
    checkers: the connections that are in MULTI, to have commands checked. Of one server the client's own, if
    it has no WATCH. has_plans: that one lacks part of the queue, so it cannot EXEC.
    failed: a command was refused.
    """

    slot: int | None = None
    checkers: list[OwnConnection] = field(default_factory=list)
    queued: list[Words] = field(default_factory=list)
    keys: dict[Command, Any] = field(default_factory=dict)
    has_plans: bool = False
    failed: bool = False


async def begin_or_refuse(client: Client, words: Words) -> None:
    """MULTI; or EXEC, DISCARD without it, which the engine refuses."""
    if words[0].upper() != b"MULTI" or len(words) > 1:
        client.write(await client.ask_own(words))
        return
    multi = Multi(client.nodes.watch_slot)
    try:
        await _checker(client, multi, multi.slot)
    except LostError as lost:
        client.lost(lost)  # a node may be failing over: EXEC waits for that
    except ReplyError as error:
        client.write(error_line(error))
        return
    client.multi, client.session.in_multi = multi, True
    client.write(b"+OK\r\n")


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
    elif name in _AT_ONCE:
        client.write(await _check(client, multi, words, []) or _AT_ONCE[name])
    else:
        error = await _queue(client, multi, words)
        multi.failed = multi.failed or error is not None
        client.write(_QUEUED if error is None else error)


async def _queue(client: Client, multi: Multi, words: Words) -> bytes | None:
    """Queue a command. Returns the error if it is refused."""
    if (refused := await _refusal(client, words)) is not None:
        return error_line(refused)
    has_plan = spec_of(words) is not None and not await client.is_beside_region(words)
    try:
        if has_plan:
            multi.has_plans = True
            slots, error = client.slots_of(words), await _plan_error(client, words)
            if error is not None:
                return error_line(error)
        else:
            keys = await client.hub.nodes.keys.keys_of(words, client.database.lane.send)
            multi.keys[tuple(words)] = keys
            slots = list(dict.fromkeys(map(slot_of, keys)))
    except LostError as lost:
        return error_line(lost)
    if not has_plan and (refusal := await _check(client, multi, words, slots)) is not None:
        return refusal
    if len(slots) > 1 or (slots and multi.slot not in (None, slots[0])):
        return error_line(ReplyError(CROSS_SLOT))
    multi.slot = slots[0] if slots else multi.slot
    multi.queued.append(words)
    client.kept += memory_of(words)
    return None


async def _refusal(client: Client, words: Words) -> ReplyError | None:
    """The error for a command that MULTI cannot contain here, whatever the engine would say."""
    name = words[0].upper()
    about = words[1].upper() if len(words) > 1 else b""
    if client.spreads and name in ABOUT_CLUSTERS:
        return ReplyError(NO_CLUSTER)
    if client.spreads and name in (b"SCRIPT", b"FUNCTION") and about in (b"LOAD", b"FLUSH"):
        what = f"{name.decode()} {about.decode()} inside MULTI"
        return RefusedError(what, "every node of the cluster must run it", "Run it before or after")
    if name in _UNFIT or (name == b"CLIENT" and about == b"REPLY"):
        why = "it changes the connection"
        return RefusedError(f"{name.decode('ascii', 'replace')} inside MULTI", why, "Run it before or after")
    return size_refusal(words) or await multi_refusal(client, words)


async def _plan_error(client: Client, words: Words) -> BraidError | None:
    """The error if a command with a plan cannot be queued."""
    spec = spec_of(words)
    assert spec is not None
    try:
        await client.database.refresh_if_due()
        error: BraidError | None = _plan_refusal(client, spec, words)
        if error is not None and spec.arity_error(words) is None:
            # On a native stream it is the engine's own. Is the name one?
            await arun(find_natives(client.database.view(), spec.names(words)), client.send)
            error = _plan_refusal(client, spec, words)
    except BraidError as trouble:
        error = trouble
    return error


def _plan_refusal(client: Client, spec: Spec, words: Words) -> ReplyError | None:
    return Queued(words, spec, words).start_in_multi(client.database.view(Carriage.MULTI))


async def _check(client: Client, multi: Multi, words: Words, slots: list[int]) -> bytes | None:
    """What the engine says against a native command in a MULTI. A node that redirects has checked it."""
    try:
        own = await _checker(client, multi, slots[0] if slots else multi.slot)
        [reply] = await own.collect(pack([tuple(words)]), 1, writes=False)
    except LostError as lost:
        client.lost(lost)
        return None
    except BraidError as error:
        return error_line(error)
    is_fine = reply == _QUEUED or reply[1:].split(b" ", 1)[0].decode("ascii", "replace") in REDIRECTS
    return None if is_fine else reply


async def _checker(client: Client, multi: Multi, slot: int | None) -> OwnConnection:
    """A connection in MULTI, to the node of a slot. Raises ReplyError if the user may not say MULTI."""
    if client.spreads or client.session.watching:
        slots = client.hub.nodes.slots
        place = None if slot is None else slots.owner(slot)
        own = await client.nodes.at(place or slots.homes()[0], CHECKER)
    else:
        own = await client.own_connection()
    if own not in multi.checkers:
        [reply] = await own.collect(pack([("MULTI",)]), 1, writes=False)
        if reply.startswith(b"-"):
            raise ReplyError(reply[1:-2].decode("utf-8", "replace"))
        multi.checkers.append(own)
    return own


async def _discard(client: Client, multi: Multi) -> None:
    for own in multi.checkers:
        try:
            [reply] = await own.collect(pack([("DISCARD",)]), 1, writes=False)
        except LostError as lost:
            client.lost(lost)
            continue
        if reply.startswith(b"-"):  # the MULTI goes on, aborted
            multi.failed = True
            client.write(reply)
            return
    _end(client)
    await _unwatch(client)
    client.write(b"+OK\r\n")


def _end(client: Client) -> None:
    client.multi, client.session.in_multi, client.kept = None, False, 0


async def _unwatch(client: Client) -> None:
    if client.session.watching:
        client.session.watching = False
        await client.nodes.unwatch()


async def _leave(multi: Multi) -> None:
    """End a MULTI; nothing of it is run.

    A user may lack the right to DISCARD. That refusal aborts the MULTI, as each does, so EXEC only ends it.
    """
    while multi.checkers:
        with suppress(LostError):
            own = multi.checkers.pop()
            [reply] = await own.collect(pack([("DISCARD",)]), 1, writes=False)
            if reply.startswith(b"-"):
                await own.collect(pack([("EXEC",)]), 1, writes=False)


async def _execute(client: Client, multi: Multi) -> None:
    watching, relays = client.session.watching, not (client.spreads or multi.has_plans or multi.failed)
    try:
        if relays and not watching:
            await multi.checkers.pop().relay(pack([("EXEC",)]), 1)
            return
        if client.own in multi.checkers:
            await _leave(multi)
        if multi.failed:
            await _unwatch(client)
            client.write(_ABORTED)
        elif relays:
            commands: list[Command] = [("MULTI",), *map(tuple, multi.queued)]
            own = await client.own_connection()
            await own.collect(pack(commands), len(commands))
            await own.relay(pack([("EXEC",)]), 1)
        elif not multi.queued and not watching:
            client.write(b"*0\r\n")
        elif watching and not client.nodes.watches:  # the connection that had the WATCH is gone
            client.write(NULL_ARRAY[client.session.resp])
        else:
            send = partial(client.nodes.send, keys=lambda command: multi.keys.get(command, ()))
            client.write(await _run_queued(client, multi.queued, send))
    except LostError as lost:
        client.write(client.lost(lost))
        client.hub.metrics.failed(lost)
        await _unwatch(client)
    finally:
        await _leave(multi)
        _end(client)
        client.session.watching = False


async def _run_queued(client: Client, commands: list[Words], send: Send) -> bytes:
    """Run the commands of a MULTI as one plan. Returns the reply to EXEC. It ends the client's WATCH."""
    queued = [Queued(words, spec_of(words), words) for words in commands]
    database, resp = client.database, client.session.resp
    plan = gather.transaction(
        lambda: database.view(Carriage.MULTI),
        queued,
        _shape,
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


def _shape(command: Command, reply: Any) -> Any:
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
