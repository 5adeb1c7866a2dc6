"""Which command goes which way before a cluster. What is not said here goes as before one server: router.py.

To its clients the gateway is one server. Commands go to the node of their keys, commands without keys to one
node, and commands about all keys to every node.
"""

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

from braidstream.errors import BraidError, RefusedError
from braidstream.gateway import about_clusters, cluster_everywhere, cluster_transaction, info, router
from braidstream.gateway.client_state import Client
from braidstream.gateway.cluster_natives import run_natives
from braidstream.gateway.gateway_metrics import perf_counter
from braidstream.gateway.session import ABOUT_CLUSTERS, SPECIAL, TRANSACTION, blocks, spec_of
from braidstream.gateway.stream_slots import EVERYWHERE, IN_ONE_STEP, is_split, slots_of, split
from braidstream.net.reply_shape import resp2
from braidstream.net.resp import Words, error_line
from braidstream.net.scatter import CROSS_SLOT
from braidstream.net.wire import pack
from braidstream.protocol import gather
from braidstream.protocol.carry import Carriage
from braidstream.protocol.gather import Queued
from braidstream.protocol.plan import arun

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
        return await cluster_everywhere.reply_to(client, words)
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
    assert nodes is not None
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
    if about_clusters.selects_other(words):
        client.write(_ONE_DATABASE)
        return
    own, before = await client.own_connection(), client.session.greeting()
    [reply] = await own.collect(pack([tuple(words)]), 1, writes=False)
    await client.noted(words, reply)
    if client.session.greeting() != before:
        assert client.nodes is not None
        await client.nodes.follow(tuple(words))
        client.moved()
    client.write(info.hello_with_mode(reply, client.hub.mode))


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
    assert nodes is not None
    if len(words) == 1:
        await nodes.unwatch()
        client.session.watching = False
    [reply] = await (await client.own_connection()).collect(pack([tuple(words)]), 1, writes=False)
    client.write(reply)


Handler = Callable[[Client, Words], Awaitable[None]]

_HANDLERS: Final[dict[bytes, Handler]] = {
    **dict.fromkeys(ABOUT_CLUSTERS, about_clusters.answer),
    **dict.fromkeys((b"AUTH", b"HELLO", b"SELECT"), _stateful),
    **dict.fromkeys(TRANSACTION - {b"UNWATCH"}, cluster_transaction.begin_or_refuse),
    **dict.fromkeys((b"WAIT", b"WAITAOF"), cluster_everywhere.wait),
    **dict.fromkeys((b"FUNCTION", b"SCRIPT"), cluster_everywhere.load),
    b"UNWATCH": _unwatch,
    b"CLIENT": _client,
}
