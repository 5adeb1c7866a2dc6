"""Which command goes which way before a cluster. What is not said here goes as before one server: router.py.

To its clients the gateway is one server. Commands go to the node of their keys, commands without keys to one
node, and commands about all keys to every node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import shuffle
from typing import Any, Final

from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.redirects import CROSS_SLOT
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import Words, elements, encode, error_line
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, RefusedError, ReplyError
from braidstream.gateway import cluster_transaction, database, router
from braidstream.gateway.client import EVERYWHERE, IN_ONE_STEP, Client, is_split, reply_of, slots_of, split
from braidstream.gateway.hub import perf_counter
from braidstream.gateway.own_connection import parse
from braidstream.gateway.session import ABOUT_CLUSTERS, SPECIAL, TRANSACTION, blocks, spec_of
from braidstream.gateway.storage_guard import functions_refusal
from braidstream.model.strand import Command, pack
from braidstream.plan import gather
from braidstream.plan.gather import Queued
from braidstream.plan.plan import arun
from braidstream.plan.view import Carriage

# ----------------------------------------------------------------------------------------------------
#
# Native commands before a cluster: each goes to the node of its keys, and replies come back byte for byte.
#
#     SET a 1, MGET a b, GET c        slot of a: SET a 1, MGET a        node 1
#                                     slot of b: MGET b                 node 2
#                                     slot of c: GET c                  node 1
#
# Commands of one slot keep their order. While a slot moves, a command with several keys may be refused when
# the next one is not. So the commands after one that writes several keys wait for its reply.

# Their answers for several slots can be joined.
_JOINED: Final = frozenset((b"MGET", b"MSET"))

Join = Callable[[list[bytes]], bytes]


@dataclass(frozen=True, slots=True)
class Native:
    """A command of the client as it is sent. keys: of each part. join: the reply, from those to its parts."""

    parts: Sequence[Command]
    keys: Sequence[Sequence[Any]]
    join: Join
    only_reads: bool

    @property
    def may_be_overtaken(self) -> bool:
        return not self.only_reads and any(len(some) > 1 for some in self.keys)


async def run_natives(client: Client, run: list[Words]) -> list[bytes]:
    """Run native commands; the raw reply to each."""
    together, answers = list[Native](), list[bytes]()
    for words in run:
        try:
            together.append(await _native(client, words))
        except BraidError as error:  # no node says which keys it has
            answers += await _send(client, together)
            answers.append(error_line(error))
            together = []
            continue
        if together[-1].may_be_overtaken:
            answers += await _send(client, together)
            together = []
    return answers + await _send(client, together)


async def _native(client: Client, words: Words) -> Native:
    table = client.hub.nodes.keys
    keys = await table.keys_of(words, client.database.lane.send)
    reads = table.only_reads(words)
    is_whole = words[0].upper() != b"MSET" or len(words) % 2 == 1
    if words[0].upper() in _JOINED and is_whole and len(set(map(slot_of, keys))) > 1:
        return _by_slot(words, reads)
    return Native([tuple(words)], [keys], _first, reads)


async def _send(client: Client, items: list[Native]) -> list[bytes]:
    if not items:
        return []
    commands = [part for item in items for part in item.parts]
    keys = {id(part): some for item in items for part, some in zip(item.parts, item.keys, strict=True)}
    try:
        replies = await client.nodes.run_native(
            commands, lambda command: keys[id(command)], reads=all(item.only_reads for item in items)
        )
    except BraidError as error:  # unknown which of them ran: all get the error
        return [error_line(error)] * len(items)
    answers = list[bytes]()
    for item in items:
        answers.append(item.join(replies[: len(item.parts)]))
        replies = replies[len(item.parts) :]
    return answers


def _first(replies: list[bytes]) -> bytes:
    return replies[0]


def _by_slot(words: Words, reads: bool) -> Native:
    """MGET or MSET as one for each slot."""
    stride = 2 if words[0].upper() == b"MSET" else 1
    at_slot = dict[int, list[int]]()
    for at in range(1, len(words), stride):
        at_slot.setdefault(slot_of(words[at]), []).append(at)
    parts = list[Command]()
    for some in at_slot.values():
        parts.append((words[0], *(word for at in some for word in words[at : at + stride])))
    keys = [part[1::stride] for part in parts]
    places = [at - 1 for some in at_slot.values() for at in some]
    return Native(parts, keys, _refused_or_first if stride == 2 else partial(_values, places), reads)


def _refused_or_first(replies: list[bytes]) -> bytes:
    return next((each for each in replies if each[:1] == b"-"), replies[0])


def _values(places: list[int], replies: list[bytes]) -> bytes:
    """The values of MGET in the order of its keys."""
    refused = next((each for each in replies if each[:1] == b"-"), None)
    if refused is not None:
        return refused
    values = [value for reply in replies for value in elements(reply)]
    return b"*%d\r\n" % len(values) + b"".join(value for _, value in sorted(zip(places, values, strict=True)))


# ----------------------------------------------------------------------------------------------------
#
# Commands that every node of a cluster answers, joined: SCAN, KEYS, DBSIZE, FLUSHALL, WAIT, SCRIPT LOAD.
#
# A cursor of SCAN says where the scan is, and how slots were spread when it began. If slots have moved
# since, the scan begins again: keys may come twice, as SCAN allows, and none is missed.
#
#     cursor of the node | mark of the map, 14 bits | node, 10 bits

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
    return list(client.hub.nodes.slots.primaries)


def _by_lowest_slot(client: Client) -> dict[int, Place]:
    return client.hub.nodes.slots.by_lowest_slot


async def _at(client: Client, place: Place, words: Words) -> Any:
    spec = spec_of(words)
    assert spec is not None
    return await arun(spec.plan(client.database.view(), words), partial(client.lane.send, home=place))


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
    """SCRIPT LOAD, FUNCTION LOAD and similar commands on every node; what only asks, on one."""
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


# ----------------------------------------------------------------------------------------------------
# Cluster router

_CROSS_SLOT: Final = b"-" + CROSS_SLOT.encode() + b"\r\n"
_ONE_DATABASE: Final = b"-ERR a region that is a cluster has database 0 only\r\n"
_REFUSED: Final = {
    **dict.fromkeys((b"SYNC", b"PSYNC", b"REPLCONF"), "Connect the replica to a node"),
    b"MONITOR": "Connect to a node to see its commands",
    b"SSUBSCRIBE": "Use SUBSCRIBE and PUBLISH, which reach all nodes",
}
_NODE: Final = "behind this gateway is a cluster, and the command is about one of its nodes"


async def run_next(client: Client) -> None:
    """Run the next command of the queue, or several that can share a round trip, and answer."""
    words = client.queue[0]
    name = words[0].upper()
    if name == b"QUIT":
        await router.run_next(client)
    elif client.multi is not None:
        client.count(words)
        await cluster_transaction.take(client, client.queue.popleft())
    elif name in _REFUSED:
        client.count(words)
        client.queue.popleft()
        client.write(error_line(RefusedError(name.decode(), _NODE, _REFUSED[name])))
    elif client.session.listens:
        await router.run_next(client)
    elif (handle := _HANDLERS.get(name)) is not None:
        client.count(words)
        await handle(client, client.queue.popleft())
    elif is_split(words):
        client.count(words)
        client.write(await _split(client, client.queue.popleft()))
    elif name in IN_ONE_STEP:
        await _in_one_step(client, words)
    elif name not in SPECIAL and spec_of(words) is None and not router.overwrites(client, words):
        await _relay(client, 1 if client.skipping else client.run_limit)
    else:
        await router.run_next(client)


# Native commands


async def _relay(client: Client, most: int) -> None:
    """Native commands, each to the node of its keys, and their replies, byte for byte."""
    run = list[Words]()
    for words in islice(client.queue, most):
        name = words[0].upper()
        is_ours = spec_of(words) is not None or router.overwrites(client, words)
        if name in SPECIAL or name in _HANDLERS or name in _REFUSED or is_ours:
            break
        if blocks(words) and run:
            break
        run.append(words)
        if blocks(words):
            break
    for _ in run:
        client.queue.popleft()
    if run[0][0].upper() in router.BROWSERS:
        client.close()
        return
    metrics, began = client.hub.metrics, perf_counter()
    for words in run:
        client.count(words)
    client.blocking = blocks(run[-1])
    try:
        client.write_run(b"".join(await run_natives(client, run)), len(run))
        if not client.blocking:
            metrics.natives.observe(perf_counter() - began, len(run))
            if client.hub.traces.enabled:
                client.hub.traces.commands(run, len(run), began)
    finally:
        client.blocking = False


# Plans


async def _split(client: Client, words: Words) -> bytes:
    """A command for each node, or for each slot."""
    if words[0].upper() in EVERYWHERE:
        return await reply_to(client, words)
    spec, parts = spec_of(words), [Queued(part, spec_of(part), part) for part in split(words)]
    assert spec is not None
    try:
        await client.database.refresh_if_due()
        spec.plan(client.database.view(), words).close()  # refuses all of it if it refuses one name
        if client.session.is_plain:
            view = client.database.view(Carriage(pipelined=True))
            await arun(gather.pipeline(view, parts, resp2), client.send)
        else:
            await _one_by_one(client, parts)
    except BraidError as error:
        client.hub.metrics.failed(error)
        return error_line(error)
    for item in parts:
        if isinstance(item.result, BraidError):
            return error_line(item.result)
        client.database.remember(item.argv, item.result)
    return b":%d\r\n" % sum(item.result for item in parts)


async def _one_by_one(client: Client, parts: list[Queued]) -> None:
    """Under WATCH, on the client's own connections."""
    for item in parts:
        assert item.spec is not None
        view = client.database.view(Carriage(watching=client.session.watching))
        item.result = await arun(item.spec.plan(view, item.argv), client.send_own)


async def _in_one_step(client: Client, words: Words) -> None:
    """RENAME, COPY, WATCH: all keys in one slot. A second WATCH must name keys of the same slot."""
    nodes, slots = client.nodes, slots_of(words)
    is_watch = words[0].upper() == b"WATCH"
    known = nodes.watch_slot if is_watch and client.session.watching else None
    if len(slots) > 1 or (known is not None and slots not in ([], [known])):
        client.count(words)
        client.queue.popleft()
        client.write(_CROSS_SLOT)
        return
    await router.run_next(client)
    if is_watch and client.session.watching and slots:
        nodes.watch_slot = slots[0]


# Commands about the connection


async def _stateful(client: Client, words: Words) -> None:
    """AUTH, HELLO, SELECT and CLIENT SETNAME: one node answers; connections to others follow."""
    if router.selects_other(words):
        client.write(_ONE_DATABASE)
        return
    if client.refuses_login(words):
        return
    own, before = await client.own_connection(), client.session.greeting()
    [reply] = await own.collect(pack([tuple(words)]), 1, writes=False)
    await client.noted(words, reply)
    if client.session.greeting() != before:
        await client.nodes.follow(tuple(words))
        client.moved()
    client.write(database.hello_with_mode(reply, client.hub.mode))


async def _client(client: Client, words: Words) -> None:
    about = words[1].upper() if len(words) > 1 else b""
    if about in (b"TRACKING", b"CACHING"):
        refused = RefusedError(
            f"CLIENT {about.decode()}", _NODE, "Connect to the nodes with a cluster client"
        )
        client.write(error_line(refused))
    elif about in (b"SETNAME", b"SETINFO"):
        await _stateful(client, words)
    else:
        await router.about_client(client, words)


async def _unwatch(client: Client, words: Words) -> None:
    nodes = client.nodes
    if len(words) == 1:
        await nodes.unwatch()
        client.session.watching = False
    [reply] = await (await client.own_connection()).collect(pack([tuple(words)]), 1, writes=False)
    client.write(reply)


Handler = Callable[[Client, Words], Awaitable[None]]

_HANDLERS: Final[dict[bytes, Handler]] = {
    **dict.fromkeys(ABOUT_CLUSTERS, router.answer_cluster_command),
    **dict.fromkeys((b"AUTH", b"HELLO", b"SELECT"), _stateful),
    **dict.fromkeys(TRANSACTION - {b"UNWATCH"}, cluster_transaction.begin_or_refuse),
    **dict.fromkeys((b"WAIT", b"WAITAOF"), wait),
    **dict.fromkeys((b"FUNCTION", b"SCRIPT"), load),
    b"UNWATCH": _unwatch,
    b"CLIENT": _client,
}
