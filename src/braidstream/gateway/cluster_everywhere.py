"""Commands that every node of a cluster answers, joined: SCAN, KEYS, DBSIZE, FLUSHALL, WAIT, SCRIPT LOAD.

A cursor of SCAN says where the scan is, and how slots were spread when it began. If slots have moved since,
the scan begins again: keys may come twice, as SCAN allows, and none is missed.

    cursor of the node | mark of the map, 14 bits | node, 10 bits
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from random import shuffle
from typing import Any, Final

from braidstream.errors import BraidError, LostError, RefusedError, ReplyError
from braidstream.gateway.client_state import Client
from braidstream.gateway.cluster_lane import ClusterLane
from braidstream.gateway.guard import functions_refusal
from braidstream.gateway.own_connection import parse
from braidstream.gateway.replies import reply_of
from braidstream.gateway.session import spec_of
from braidstream.net.resp import Words, encode, error_line
from braidstream.net.sentinels import Place
from braidstream.net.wire import pack
from braidstream.protocol.plan import arun

_NODE_BITS: Final = 10
_MARK_BITS: Final = 14
_CURSOR_DIGITS: Final = 20  # of 64 bits
# A failover in the middle of a command changes which nodes there are.
_TRIES: Final = 3
# Subcommands of SCRIPT and FUNCTION that every node must run.
_LOADING: Final = frozenset((b"LOAD", b"FLUSH", b"KILL", b"DELETE", b"RESTORE"))


async def reply_to(client: Client, words: Words) -> bytes:
    """Run the plan of a command about all keys at each primary."""
    spec = spec_of(words)
    assert spec is not None
    result: Any
    found = dict[int, Any]()
    for attempt in range(1, _TRIES + 1):
        try:
            await client.database.refresh_if_due()
            await client.enter_lane()
            if words[0].upper() == b"SCAN":
                result = await _scan(client, words)
            else:
                result = await _all(client, words, found)
        except LostError as lost:
            result = lost
            if attempt < _TRIES and not lost.wrote:
                continue
        except BraidError as error:
            result = error
        break
    if isinstance(result, BraidError):
        client.hub.metrics.failed(result)
    return reply_of(spec, words, result, client.session.resp)


def _places(client: Client) -> list[Place]:
    assert client.hub.nodes is not None
    return list(client.hub.nodes.slots.primaries)


def _by_lowest_slot(client: Client) -> dict[int, Place]:
    assert client.hub.nodes is not None
    return client.hub.nodes.slots.by_lowest_slot


async def _at(client: Client, place: Place, words: Words) -> Any:
    spec, lane = spec_of(words), client.lane
    assert spec is not None
    assert isinstance(lane, ClusterLane)
    return await arun(spec.plan(client.database.view(), words), partial(lane.send_at, place))


async def _all(client: Client, words: Words, found: dict[int, Any]) -> Any:
    """found: the replies so far, by the lowest slot of a node. A node that has replied does not run FLUSHALL
    again, nor does the replica that took over from it since."""
    name, places = words[0].upper(), [*_by_lowest_slot(client).items()]
    if name == b"RANDOMKEY":
        shuffle(places)
    for slot, place in places:
        if slot not in found:
            found[slot] = await _at(client, place, words)
        if name == b"RANDOMKEY" and found[slot] is not None:
            return found[slot]
    replies = [found[slot] for slot, _ in places]
    if name == b"KEYS":
        return [key for some in replies for key in some]
    return sum(replies) if name == b"DBSIZE" else replies[-1]


async def _scan(client: Client, words: Words) -> Any:
    places = _places(client)
    assert client.hub.nodes is not None
    mark = client.hub.nodes.slots.mark % (1 << _MARK_BITS)
    if len(words) < 2 or not words[1].isdigit() or len(words[1]) > _CURSOR_DIGITS:
        return await _at(client, places[0], words)  # the engine refuses it
    node, cursor = _parsed(int(words[1]), mark, len(places))
    cursor_word, found = await _at(client, places[node], [words[0], b"%d" % cursor, *words[2:]])
    cursor = int(cursor_word)
    if not cursor:
        node += 1
    done = node == len(places)
    after = 0 if done else (cursor << _MARK_BITS | mark) << _NODE_BITS | node
    return [b"%d" % after, found]


def _parsed(cursor: int, mark: int, nodes: int) -> tuple[int, int]:
    """The node, and the cursor there. The beginning if slots have moved."""
    node, rest = cursor % (1 << _NODE_BITS), cursor >> _NODE_BITS
    if not cursor or rest % (1 << _MARK_BITS) != mark or node >= nodes:
        return 0, 0
    return node, rest >> _MARK_BITS


# Native commands


async def _each(client: Client, commands: Sequence[Words]) -> list[bytes]:
    """Native commands on every primary; the raw reply to the last one from each. Raises an error reply."""
    nodes = client.nodes
    assert nodes is not None
    packed, count = pack(map(tuple, commands)), len(commands)

    async def one(place: Place) -> bytes:
        return (await (await nodes.at(place)).collect(packed, count))[-1]

    found = await asyncio.gather(*map(one, _places(client)), return_exceptions=True)
    replies = list[bytes]()
    for reply in found:
        if isinstance(reply, BaseException):
            raise reply
        if reply.startswith(b"-"):
            raise ReplyError(reply[1:-2].decode("utf-8", "replace"))
        replies.append(reply)
    return replies


async def wait(client: Client, words: Words) -> None:
    """WAIT, WAITAOF: the writes of all nodes. A PING first makes it cover those of other connections."""
    client.blocking = True
    try:
        found = list(map(parse, await _each(client, [[b"PING"], words])))
    except BraidError as error:
        client.write(error_line(error))
        return
    finally:
        client.blocking = False
    least = list(map(min, zip(*found, strict=True))) if isinstance(found[0], list) else min(found)
    client.write(encode(least, client.session.resp, b""))


async def load(client: Client, words: Words) -> None:
    """SCRIPT LOAD, FUNCTION LOAD and kin on every node; what only asks, on one."""
    about = words[1].upper() if len(words) > 1 else b""
    if about not in _LOADING:
        await (await client.own_connection()).relay(pack([tuple(words)]), 1)
        return
    try:
        _refuse(words, about)
        if (refused := functions_refusal(client, words)) is not None:
            raise refused
        client.write((await _each(client, [words]))[0])
    except BraidError as error:
        client.write(error_line(error))


def _refuse(words: Words, about: bytes) -> None:
    """Refuse what would delete the functions of braidstream, and with them which region this is."""
    options = {word.upper() for word in words[3:]}
    is_ours = about == b"DELETE" and len(words) > 2 and words[2].lower().startswith(b"braidstream")
    restores = about == b"RESTORE" and options & {b"FLUSH", b"REPLACE"}
    if words[0].upper() == b"FUNCTION" and (about == b"FLUSH" or is_ours or restores):
        why = "it may delete the functions of braidstream, which say which region the cluster is"
        raise RefusedError(f"FUNCTION {about.decode()}", why, "Delete your own libraries by their names")
