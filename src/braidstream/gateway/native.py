"""Native commands: to the only server byte for byte, or each to the node of its keys; some to every node."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from braidstream.clusters.command_keys import slot_of
from braidstream.commands import keyspace
from braidstream.engine.resp import Words, elements, encode, error_line
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, RefusedError
from braidstream.gateway.client import MOST_RUN, Client
from braidstream.gateway.hub import perf_counter
from braidstream.gateway.own_connections import parse
from braidstream.gateway.session import SPECIAL, blocks, spec_of
from braidstream.gateway.storage_guard import deletes_functions, fills_storage, functions_refusal
from braidstream.model.strand import Command, pack

# The first words of a browser, sent here by a malicious web page.
_BROWSERS: Final = frozenset((b"POST", b"HOST:"))


def is_native(client: Client, words: Words) -> bool:
    is_ours = words[0].upper() in SPECIAL or spec_of(words) is not None or overwrites(client, words)
    return not (is_ours or fills_storage(words))


def overwrites(client: Client, words: Words) -> bool:
    """Whether a command overwrites a stream of the cache, or a key of our own, with a plain key."""
    is_set = words[0].upper() in keyspace.OVERWRITING and len(words) > 2
    return is_set and keyspace.may_not_set(client.database.cache, words[1])


async def relay(client: Client) -> None:
    """Relay the native commands at the head of the queue, and their replies, byte for byte."""
    most = client.run_limit if client.spreads else MOST_RUN
    run = list[Words]()
    for words in islice(client.queue, 1 if client.skipping else most):
        if not is_native(client, words) or (run and blocks(words)):
            break
        run.append(words)
        if blocks(words):
            break
    for _ in run:
        client.queue.popleft()
    if run[0][0].upper() in _BROWSERS:
        client.close()
        return
    metrics, began = client.hub.metrics, perf_counter()
    for words in run:
        client.count(words)
    client.blocking = blocks(run[-1])
    try:
        await (_by_keys(client, run) if client.spreads else _to_own(client, run))
        if not client.blocking:
            metrics.natives.observe(perf_counter() - began, len(run))
            if client.hub.traces.enabled:
                client.hub.traces.commands(run, len(run), began)
    finally:
        client.blocking = False


async def _to_own(client: Client, run: list[Words]) -> None:
    """To the only server: replies pass while they arrive."""
    own, packed = await client.own_connection(), pack(map(tuple, run))
    if client.session.muted or client.skipping:
        await own.collect(packed, len(run))  # drop the replies; messages still go out
    else:
        await own.relay(packed, len(run))


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


async def _by_keys(client: Client, run: list[Words]) -> None:
    """Run native commands, each at the node of its keys."""
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
    answers += await _send(client, together)
    client.write_run(b"".join(answers), len(run))


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
# Commands that every node runs: WAIT, and what loads or deletes functions and scripts.

# Subcommands of SCRIPT and FUNCTION.
_LOADING: Final = frozenset((b"LOAD", b"FLUSH", b"KILL", b"DELETE", b"RESTORE"))


async def _each(client: Client, *commands: Words) -> list[bytes]:
    """Native commands on every node; the raw reply to the last one from each. Of errors, only the first."""
    packed = pack(map(tuple, commands))

    async def one(place: Place) -> bytes:
        return (await (await client.nodes.at(place)).collect(packed, len(commands)))[-1]

    replies = list[bytes]()
    for reply in await asyncio.gather(*map(one, client.hub.nodes.slots.primaries), return_exceptions=True):
        if isinstance(reply, BaseException):
            raise reply
        replies.append(reply)
    return [reply for reply in replies if reply.startswith(b"-")][:1] or replies


async def wait(client: Client, words: Words) -> None:
    """WAIT, WAITAOF: the writes of all nodes. A PING first makes it cover those of other connections."""
    client.blocking = True
    try:
        client.write(_least(await _each(client, [b"PING"], words), client.session.resp))
    except BraidError as error:
        client.write(client.lost(error))
    finally:
        client.blocking = False


def _least(replies: list[bytes], resp: int) -> bytes:
    if len(replies) == 1:
        return replies[0]
    found = list(map(parse, replies))
    least = list(map(min, zip(*found, strict=True))) if isinstance(found[0], list) else min(found)
    return encode(least, resp, b"")


async def load(client: Client, words: Words) -> None:
    """FUNCTION and SCRIPT: every node runs what loads or deletes; what only asks, one."""
    about = words[1].upper() if len(words) > 1 else b""
    refused = _refusal(client, words, about) or functions_refusal(client, words)
    if refused is not None:
        client.write(error_line(refused))
        return
    if about not in _LOADING:
        await client.relay_own(words)
        return
    try:
        reply = (await _each(client, words))[0]
    except BraidError as error:
        reply = client.lost(error)
    is_function = words[0].upper() == b"FUNCTION"
    if is_function and not client.spreads and deletes_functions(words) and reply.startswith(b"+"):
        try:  # load ours again at once: no stream works without them
            await client.hub.database(client.session.home).bring_functions()
        except BraidError as error:
            reply = error_line(error)
    client.write(reply)


def _refusal(client: Client, words: Words, about: bytes) -> RefusedError | None:
    """The error for what would delete the functions of a cluster, and with them which region this is."""
    options = {word.upper() for word in words[3:]}
    is_ours = about == b"DELETE" and len(words) > 2 and words[2].lower().startswith(b"braidstream")
    restores = about == b"RESTORE" and options & {b"FLUSH", b"REPLACE"}
    if client.spreads and words[0].upper() == b"FUNCTION" and (about == b"FLUSH" or is_ours or restores):
        why = "it may delete the functions of braidstream, which say which region the cluster is"
        return RefusedError(f"FUNCTION {about.decode()}", why, "Delete your own libraries by their names")
    return None
