"""MULTI of a client before a cluster: queued in the gateway, and run on one node.

    client              gateway                                         a node
    MULTI               MULTI                                           +OK
    SET a 1             SET a 1, to have it checked                     +QUEUED
    XADD {a}s * f v     checked by the gateway
    EXEC                DISCARD; then all of it as one plan             MULTI ... EXEC

The first key names the slot. A command with keys of another slot is refused, and EXEC with it. Commands are
checked on a connection that has no WATCH, because DISCARD would end it.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.raw_sender import REDIRECTS
from braidstream.clusters.redirects import CROSS_SLOT
from braidstream.engine.resp import NULL_ARRAY, Words, error_line
from braidstream.errors import BraidError, LostError, RefusedError, ReplyError
from braidstream.gateway.client import Client, slots_of
from braidstream.gateway.own_connection import OwnConnection
from braidstream.gateway.session import ABOUT_CLUSTERS, NO_CLUSTER, spec_of
from braidstream.gateway.transaction import (
    ABORTED,
    AT_ONCE,
    QUEUED,
    leave,
    plan_error,
    refusal_of,
    run_queued,
)
from braidstream.model.strand import Command, pack
from braidstream.plan.plan import Batch, Replies

# Number of the connection on which commands are checked: see NodeConnections.at.
_CHECKER: Final = -1
_NESTED: Final = {
    b"MULTI": b"-ERR MULTI calls can not be nested\r\n",
    b"WATCH": b"-ERR WATCH inside MULTI is not allowed\r\n",
}


@dataclass(slots=True)
class ClusterMulti:
    """The queue of a MULTI. slot: of the first key. keys: those of the native commands, by their words.

    checkers: the connections that are in MULTI, to have commands checked.
    """

    slot: int | None = None
    checkers: list[OwnConnection] = field(default_factory=list)
    queued: list[Words] = field(default_factory=list)
    keys: dict[Command, Any] = field(default_factory=dict)
    failed: bool = False


async def begin_or_refuse(client: Client, words: Words) -> None:
    """MULTI; or EXEC, DISCARD without it, which the engine refuses."""
    if words[0].upper() == b"MULTI" and len(words) == 1:
        nodes = client.nodes
        multi = ClusterMulti(nodes.watch_slot)
        try:
            with suppress(LostError):  # its node may be failing over: EXEC waits for that
                await _checker(client, multi, multi.slot)
        except ReplyError as error:
            client.write(error_line(error))
            return
        client.multi, client.session.in_multi = multi, True
        client.write(b"+OK\r\n")
        return
    [reply] = await (await client.own_connection()).collect(pack([tuple(words)]), 1, writes=False)
    client.write(reply)


async def take(client: Client, words: Words) -> None:
    """A command between MULTI and EXEC."""
    name, multi = words[0].upper(), client.multi
    if name == b"EXEC" and len(words) == 1:
        await _execute(client, multi)
    elif name == b"DISCARD" and len(words) == 1:
        await _end(client)
        client.write(b"+OK\r\n")
    elif name == b"RESET" and len(words) == 1:
        client.multi, client.session.in_multi = None, False
        client.restart()
        client.write(b"+RESET\r\n")
    elif name in AT_ONCE:
        client.write(await _check(client, multi, words, []) or _NESTED[name])  # the engine's words
    else:
        error = await _queue(client, multi, words)
        multi.failed = multi.failed or error is not None
        client.write(QUEUED if error is None else error)


async def _queue(client: Client, multi: ClusterMulti, words: Words) -> bytes | None:
    """Queue a command. Returns the error if it is refused."""
    if (refused := _refusal(words) or await refusal_of(client, words)) is not None:
        return error_line(refused)
    has_plan = spec_of(words) is not None
    try:
        if has_plan:
            slots, error = slots_of(words), await plan_error(client, words)
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
    return None


def _refusal(words: Words) -> ReplyError | None:
    """The error for a command that the gateway answers itself, or that every node must run."""
    name = words[0].upper()
    if name in ABOUT_CLUSTERS:
        return ReplyError(NO_CLUSTER)
    if name in (b"SCRIPT", b"FUNCTION") and words[1:2] and words[1].upper() in (b"LOAD", b"FLUSH"):
        what = f"{name.decode()} {words[1].decode('ascii', 'replace').upper()} inside MULTI"
        return RefusedError(what, "every node of the cluster must run it", "Run it before or after")
    return None


async def _check(client: Client, multi: ClusterMulti, words: Words, slots: list[int]) -> bytes | None:
    """What the engine says against a native command in a MULTI. A node that redirects has checked it."""
    try:
        own = await _checker(client, multi, slots[0] if slots else multi.slot)
        [reply] = await own.collect(pack([tuple(words)]), 1, writes=False)
    except LostError:
        return None  # its node may be failing over: EXEC waits for that
    except BraidError as error:
        return error_line(error)
    is_fine = reply == QUEUED or reply[1:].split(b" ", 1)[0].decode("ascii", "replace") in REDIRECTS
    return None if is_fine else reply


async def _checker(client: Client, multi: ClusterMulti, slot: int | None) -> OwnConnection:
    """A connection in MULTI, to the node of a slot. Raises ReplyError if the user may not say MULTI."""
    nodes, ready = client.nodes, client.hub.nodes
    place = None if slot is None else ready.slots.owner(slot)
    own = await nodes.at(place or ready.slots.homes()[0], _CHECKER)
    if own not in multi.checkers:
        [reply] = await own.collect(pack([("MULTI",)]), 1, writes=False)
        if reply.startswith(b"-"):
            raise ReplyError(reply[1:-2].decode("utf-8", "replace"))
        multi.checkers.append(own)
    return own


async def _end(client: Client) -> None:
    multi, client.multi, client.session.in_multi = client.multi, None, False
    for own in multi.checkers:
        with suppress(LostError):
            await leave(own)
    if client.session.watching:
        client.session.watching = False
        await client.nodes.unwatch()


async def _execute(client: Client, multi: ClusterMulti) -> None:
    try:
        if multi.failed:
            client.write(ABORTED)
        elif not multi.queued and not client.session.watching:
            client.write(b"*0\r\n")
        else:
            client.write(await _run(client, multi))
    except LostError as lost:
        client.hub.metrics.failed(lost)
        client.write(error_line(lost))
    finally:
        await _end(client)


async def _run(client: Client, multi: ClusterMulti) -> bytes:
    nodes = client.nodes
    if client.session.watching and not nodes.watches:
        return NULL_ARRAY[client.session.resp]  # the connection that had the WATCH is gone

    async def send(batch: Batch) -> Replies:
        if batch.atomic:
            return await nodes.run_multi(batch, lambda command: multi.keys.get(command, ()))
        return await nodes.send(batch)

    return await run_queued(client, multi.queued, send)
