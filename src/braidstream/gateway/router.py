"""Which command goes which way; CLUSTER, COMMAND, and the commands about the connection itself."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from random import shuffle
from types import SimpleNamespace
from typing import Any, Final

from braidstream.clients.routes import MISS, ROUTED, Route
from braidstream.clusters.redirects import CROSS_SLOT
from braidstream.commands import keyspace
from braidstream.commands.table import TABLE
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import NULL, Status, Words, elements, encode, error_line
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, RefusedError, ReplyError
from braidstream.gateway import database as gateway_database
from braidstream.gateway import native, storage_guard, topics, transaction
from braidstream.gateway.announce import Announced, refusal_of
from braidstream.gateway.client import EVERYWHERE, IN_ONE_STEP, Client, reply_of, split
from braidstream.gateway.hub import perf_counter
from braidstream.gateway.session import (
    ABOUT_CLUSTERS,
    ALONE,
    NO_CLUSTER,
    PUBSUB,
    SPECIAL,
    STATEFUL,
    TRANSACTION,
    blocks,
    most_entries,
    size_refusal,
    spec_of,
)
from braidstream.model.glob import LONGEST, matcher
from braidstream.model.strand import bulk, pack
from braidstream.plan import gather
from braidstream.plan.gather import Queued
from braidstream.plan.plan import Batch, Replies, arun, refuse_early_end
from braidstream.plan.view import Carriage

# ----------------------------------------------------------------------------------------------------
#
# CLUSTER, READONLY, READWRITE, ASKING, and which SELECT a cluster allows.
#
# Without `--announce` a client sees one server, in no cluster. With it the gateway answers: announce.py.


async def _answer_cluster_command(client: Client, words: Words) -> None:
    """One server answers itself. A node of a cluster would name the other nodes, so it does not."""
    announced = client.hub.announced
    if announced is not None:
        client.write(await _announced_reply(client, announced, words))
    elif client.spreads:
        client.write(error_line(ReplyError(NO_CLUSTER)))
    else:
        client.session.note_sent(words)
        await client.relay_own(words)


async def _announced_reply(client: Client, announced: Announced, words: Words) -> bytes:
    refused = refusal_of(words)
    if refused is not None:
        return error_line(refused)
    return await _denial(client, words) or announced.reply_to(words, client.session.resp)


async def _denial(client: Client, words: Words) -> bytes | None:
    """The engine's error if the client has not logged in, lacks the right, or has miscounted the words.

    READONLY and ASKING would change the connection to a node of a cluster. READWRITE stands for them.
    """
    asked = words if words[0].upper() == b"CLUSTER" else [b"READWRITE", *words[1:]]
    reply = await client.ask_own(asked)
    may_ask = not reply.startswith(b"-") or reply.startswith(b"-" + NO_CLUSTER.encode())
    return None if may_ask else reply


def _selects_other(words: Words) -> bool:
    """Whether it is a SELECT of another database than 0, the only one of a cluster."""
    return words[0].upper() == b"SELECT" and words[1:] != [b"0"] and words[-1].isdigit()


# ----------------------------------------------------------------------------------------------------
#
# COMMAND: the engine's table, and the commands that the gateway has and the engine lacks.
#
# Cluster clients look there for the keys of a command, and refuse one that is not listed. The row of a
# stream command is that of a native command whose key is at the same place, with another name and arity.
# So it has the shape that this engine sends in this protocol.

# Ours -> a native command of the same kind: its key is the first word.
_LIKE: Final = {
    **dict.fromkeys((b"TWRITE", b"TCFGSET", b"XCFGSET", b"XIDMPRECORD"), b"XADD"),
    **dict.fromkeys((b"TREAD", b"TACK", b"TEVICT", b"XDELEX", b"XACKDEL", b"XNACK"), b"XACK"),
}
_NATIVES: Final = (b"XADD", b"XACK")
_CATEGORIES: Final = frozenset((b"WRITE", b"STREAM", b"FAST"))
_NO_COMMAND: Final = b"-ERR Invalid command"
_NO_ARGUMENTS: Final = b"-ERR Invalid number of arguments specified for command\r\n"


async def answer_command(client: Client, words: Words) -> None:
    """COMMAND, with any subcommand."""
    about = words[1].upper() if len(words) > 1 else b"INFO"
    asked = words
    if about == b"COUNT" and len(words) == 2:
        asked = [words[0], b"LIST"]
    own = await client.own_connection()
    rows = (words[0], b"INFO", *_NATIVES)
    reply, natives = await own.collect(pack([tuple(asked), rows]), 2, writes=False)
    extend = _ABOUT.get(about)
    if extend is None or natives.startswith(b"-") or (reply.startswith(b"-") and b"GETKEYS" not in about):
        client.write(reply)
        return
    templates = dict(zip(_NATIVES, elements(natives), strict=True))
    client.write(extend(reply, words, templates, client.session.resp))


Templates = dict[bytes, bytes]


def _row(name: bytes, templates: Templates) -> bytes:
    """A row of COMMAND."""
    spec, template = TABLE[name], templates[_LIKE[name]]
    head = template[: template.index(b"\n") + 1]
    _, _, *rest = elements(template)
    arity = spec.least if spec.least == spec.most else -spec.least
    return head + bulk(name.lower()) + b":%d\r\n" % arity + b"".join(rest)


def _missing(reply: bytes) -> list[bytes]:
    """The commands that a reply of the engine does not name."""
    return [name for name in _LIKE if bulk(name.lower()) not in reply]


def _longer(reply: bytes, parts: list[bytes], size: int = 1) -> bytes:
    """An array or a map with more parts. size: how many of them its head counts for each part."""
    head, _, body = reply.partition(b"\r\n")
    return b"%b%d\r\n%b%b" % (head[:1], int(head[1:]) + size * len(parts), body, b"".join(parts))


def _command_info(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    asked = words[2:]
    if not asked:
        return _longer(reply, [_row(name, templates) for name in _missing(reply)])
    rows = list[bytes]()
    for word, row in zip(asked, elements(reply), strict=True):
        is_missing = row.startswith((b"*-1", b"$-1", b"_")) and word.upper() in _LIKE
        rows.append(_row(word.upper(), templates) if is_missing else row)
    return b"*%d\r\n%b" % (len(rows), b"".join(rows))


def _count(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    """The engine counts no subcommands; LIST, which was sent, names them."""
    return b":%d\r\n" % (sum(b"|" not in name for name in elements(reply)) + len(_missing(reply)))


def _list(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    names = _missing(reply)
    if len(words) > 2:  # LIST FILTERBY kind value, which the engine has accepted
        kind, value = words[3].upper(), words[4]
        if kind == b"PATTERN":
            matches = matcher(value[:LONGEST].lower())
            names = [name for name in names if matches(name.lower())]
        elif kind != b"ACLCAT" or value.upper() not in _CATEGORIES:
            names = []
    return _longer(reply, [bulk(name.lower()) for name in names])


def _docs(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    asked = {word.upper() for word in words[2:]} or _LIKE.keys()
    parts = [
        bulk(name.lower()) + encode(_about(name), resp, b"") for name in _missing(reply) if name in asked
    ]
    return _longer(reply, parts, 1 if reply.startswith(b"%") else 2)


def _about(name: bytes) -> dict[bytes, bytes]:
    return {b"summary": b"%b %b" % (name, TABLE[name].grammar.encode()), b"group": b"stream"}


def _keys(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    """COMMAND GETKEYS and GETKEYSANDFLAGS."""
    line = words[2:]
    if not reply.startswith(_NO_COMMAND) or line[0].upper() not in _LIKE:
        return reply
    spec = TABLE[line[0].upper()]
    if spec.arity_error(line) is not None:
        return _NO_ARGUMENTS
    if words[1].upper() == b"GETKEYS":
        return encode(spec.names(line), resp, b"")
    flags = [Status("RW"), Status("access"), Status("update")]
    return encode([[key, flags] for key in spec.names(line)], resp, b"")


_ABOUT: Final = {
    b"INFO": _command_info,
    b"COUNT": _count,
    b"LIST": _list,
    b"DOCS": _docs,
    b"GETKEYS": _keys,
    b"GETKEYSANDFLAGS": _keys,
}


# ----------------------------------------------------------------------------------------------------
#
# Commands that every node of a cluster answers, joined: SCAN, KEYS, DBSIZE, FLUSHALL.
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


async def _everywhere(client: Client, words: Words) -> bytes:
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


# ----------------------------------------------------------------------------------------------------
# Router

# Commands that may have a route, and how routes read their words: as the bytes that came.
_ROUTED: Final = {name.encode(): name for name in ROUTED}
_AS_THEY_ARE: Final = SimpleNamespace(encode=bytes, decode_responses=False)
# The most entries that commands of one client in one round trip may return.
_RUN_ENTRIES: Final = 1000
_CROSS_SLOT: Final = b"-" + CROSS_SLOT.encode() + b"\r\n"
_ONE_DATABASE: Final = b"-ERR a region that is a cluster has database 0 only\r\n"
_NO_SELECT: Final = b"-ERR SELECT is not allowed in cluster mode\r\n"
_NODE: Final = "behind this gateway is a cluster, and the command is about one of its nodes"
_ABOUT_A_NODE: Final = {
    **dict.fromkeys((b"SYNC", b"PSYNC", b"REPLCONF"), "Connect the replica to a node"),
    b"MONITOR": "Connect to a node to see its commands",
    b"SSUBSCRIBE": "Use SUBSCRIBE and PUBLISH, which reach all nodes",
}


async def run_next(client: Client) -> None:
    """Run the next command of the queue, or several that can share a round trip, and answer."""
    words = client.queue[0]
    name, session = words[0].upper(), client.session
    if name == b"QUIT":
        client.write(b"+OK\r\n")
        client.close()
    elif topics.names_key(words) and client.multi is None and (why := await topics.place(client)) is not None:
        client.count(client.queue.popleft())
        client.write(error_line(why))
    elif client.multi is not None:
        client.count(words)
        await transaction.take(client, client.queue.popleft())
    elif (refused := _refusal(client, words)) is not None:
        client.count(words)
        client.queue.popleft()
        client.write(refused)
    elif session.monitors and name != b"RESET":
        client.queue.popleft()
        (await client.own_connection()).send_only(pack([tuple(words)]))
    elif session.listens and name not in PUBSUB and name != b"RESET":
        client.queue.popleft()
        await (await client.own_connection()).listen(pack([tuple(words)]))
    elif (handle := _HANDLERS.get(name)) is not None:
        client.count(words)
        await handle(client, client.queue.popleft())
    elif native.overwrites(client, words):
        client.count(words)
        client.write(await _overwrite(client, client.queue.popleft()))
    elif spec_of(words) is None:
        await native.relay(client)
    elif client.runs_alone(words):
        client.count(words)
        client.write(await _split(client, client.queue.popleft()))
    elif await client.is_beside_region(words):
        client.count(words)
        await _run_native(client, client.queue.popleft())
    else:
        await _plans(client, 1 if client.skipping else client.run_limit)


def _refusal(client: Client, words: Words) -> bytes | None:
    """The error for a command with too many names, or one that a cluster cannot run: about one of its nodes,
    or one step over several slots. A second WATCH must name keys of the same slot as the first."""
    name = words[0].upper()
    error = size_refusal(words)
    if error is None and spec_of(words) is None and name not in SPECIAL:
        error = storage_guard.storage_refusal(words)
    if error is not None:
        return error_line(error)
    if not client.spreads:
        return None
    if name in _ABOUT_A_NODE:
        return error_line(RefusedError(name.decode(), _NODE, _ABOUT_A_NODE[name]))
    if name not in IN_ONE_STEP or client.session.listens:
        return None
    slots, watching = client.slots_of(words), name == b"WATCH" and client.session.watching
    known = client.nodes.watch_slot if watching else None
    crosses = len(slots) > 1 or (known is not None and slots not in ([], [known]))
    return _CROSS_SLOT if crosses else None


# Native commands


async def _run_native(client: Client, words: Words) -> None:
    """Run a command of the table natively, in a database that is not a region."""
    name = words[0].upper()
    if name == b"FLUSHALL":
        client.write(await _flush_from_home(client, words))
        return
    own = await client.own_connection()
    client.blocking = blocks(words)
    try:
        [reply] = await own.collect(pack([tuple(words)]), 1)
    finally:
        client.blocking = False
    if name == b"WATCH" and reply.startswith(b"+"):
        client.session.watching = True
    client.write(reply)


async def _flush_from_home(client: Client, words: Words) -> bytes:
    """FLUSHALL from a database that is not a region: the region's database is flushed by its plan."""
    database = client.hub.database(client.session.home)
    lane = client.hub.borrow(client.session.login, client.session.home)
    try:
        if not await client.may_use(lane):
            return b"-NOAUTH Authentication required.\r\n"
        await database.refresh_if_due()
        await arun(keyspace.flush(database.view(), words), lane.send)
    except BraidError as error:
        return error_line(error)
    finally:
        client.hub.give_back(lane)
    return b"+OK\r\n"


# Plans


async def _overwrite(client: Client, words: Words) -> bytes:
    try:
        await client.database.refresh_if_due()
        result = await arun(keyspace.overwrite(client.database.view(), words), client.send)
    except BraidError as error:
        return error_line(error)
    if result is None:
        return NULL[client.session.resp]
    return bulk(result) if keyspace.returns_old_value(words) else b"+OK\r\n"


async def _plans(client: Client, most: int) -> None:
    """Run commands with plans: several on the lane, or one on the client's own connection."""
    run, entries = list[Words](), 0
    for words in islice(client.queue, most):
        if spec_of(words) is None or words[0].upper() in SPECIAL or topics.names_key(words):
            break
        entries += most_entries(words, _RUN_ENTRIES)
        if run and entries > _RUN_ENTRIES:
            break
        if not run and _needs_own(client, words):
            run.append(words)
            break
        if _needs_own(client, words) or (run and client.runs_alone(words)):
            break
        run.append(words)
    for _ in run:
        client.queue.popleft()
    metrics, began = client.hub.metrics, perf_counter()
    for words in run:
        client.count(words)
    replies = await (reply_to(client, run[0]) if len(run) == 1 else _run_pipelined(client, run))
    client.write_run(replies, len(run))
    if not blocks(run[0]):
        metrics.plans.observe(perf_counter() - began, len(run))
        if client.hub.traces.enabled:
            client.hub.traces.commands(run, len(run), began)


def _needs_own(client: Client, words: Words) -> bool:
    return words[0].upper() in ALONE or blocks(words) or not client.session.is_plain


async def reply_to(client: Client, words: Words) -> bytes:
    """Run the plan of one command; returns its reply, also for a lost lane."""
    spec, session = spec_of(words), client.session
    assert spec is not None
    try:
        await client.database.refresh_if_due()
        result, acknowledged = await _by_route(client, words)
        if result is not MISS:
            return reply_of(spec, words, result, session.resp)
        view = client.database.view(Carriage.of_one(watching=session.watching))
        if _needs_own(client, words):
            result = await arun(spec.plan(view, words), partial(_send_own, client, blocks(words)))
            if words[0].upper() == b"WATCH":
                session.watching = True
                client.nodes.watch_slot = next(iter(client.slots_of(words)), client.nodes.watch_slot)
        else:
            result = await arun(spec.plan(view, words), partial(_send_own, client, True))
        client.database.remember(words, result)
        if acknowledged:
            result += acknowledged
    except LostError as lost:
        client.hub.metrics.failed(lost)
        if client.spreads and not session.watching:
            await client.nodes.unwatch()  # the plan's, if another connection was lost
        if not client.spreads and client.own is not None and client.own.lost is not None:
            raise
        return error_line(lost)
    except BraidError as error:
        result = await _at_home(client, words, error)
    return reply_of(spec, words, result, session.resp)


async def _by_route(client: Client, words: Words) -> tuple[Any, int]:
    """The result of a command that has a route (clients/routes.py). MISS if its plan must run, and how many
    entries the route has acknowledged by then."""
    name = _ROUTED.get(words[0].upper())
    if name is None or client.spreads or not client.session.is_plain:
        return MISS, 0
    routes = client.database.routes
    found: Any = routes.find((name, *words[1:]), lambda: [name.encode(), *words[1:]], _AS_THEY_ARE)
    route: Route | None = None
    while isinstance(found, Route):
        route = found
        await client.enter_lane()
        assert client.lane.only is not None
        conn = await client.lane.only.ready()
        found = route.result(await conn.send_packed(route.data, route.replies, route.writes))
    if route is None or found is MISS:
        return MISS, 0 if route is None else route.acknowledged
    client.hub.metrics.routed += 1
    return found, 0


async def _at_home(client: Client, words: Words, error: BraidError) -> Any:
    """The result of a refused command. A write to a log that is written elsewhere is run there."""
    item = Queued(words, spec_of(words), words, result=error)
    if client.hub.homes is not None:
        await client.hub.homes.forward(client, [item])
    if isinstance(item.result, BraidError):
        client.hub.metrics.failed(item.result)
    return item.result


async def _send_own(client: Client, waits: bool, batch: Batch) -> Replies:
    """Send a batch of a plan that needs the client's own connection. waits: only for what blocks.

    Reads before a blocking read use the lane: so they run before later commands of other clients.
    """
    if waits and batch.block_ms is None and client.session.is_plain:
        return await client.send(batch)
    if waits and client.is_leaving:
        raise LostError("the client", "it left", wrote=False)
    began = time.monotonic()
    client.blocking = waits
    try:
        replies = await client.send_own(batch)
    finally:
        client.blocking = False
    refuse_early_end(batch, replies, time.monotonic() - began)
    return replies


async def _run_pipelined(client: Client, run: list[Words]) -> bytes:
    queued = [Queued(words, spec_of(words), words) for words in run]
    try:
        await client.database.refresh_if_due()
        view = client.database.view(Carriage.PIPELINE)
        await arun(gather.pipeline(view, queued, resp2), partial(_send_own, client, True))
        if client.hub.homes is not None:
            await client.hub.homes.forward(client, queued)
    except BraidError as error:
        # Unknown which of them ran: every command gets the error.
        client.hub.metrics.failed(error)
        return error_line(error) * len(run)
    return b"".join(transaction.presented(client, item) for item in queued)


async def _split(client: Client, words: Words) -> bytes:
    """A command for each node, or for each slot."""
    if words[0].upper() in EVERYWHERE:
        return await _everywhere(client, words)
    spec, parts = spec_of(words), [Queued(part, spec_of(part), part) for part in split(words)]
    assert spec is not None
    try:
        await client.database.refresh_if_due()
        spec.plan(client.database.view(), words).close()  # refuses all of it if it refuses one name
        if client.session.is_plain:
            view = client.database.view(Carriage.PIPELINE)
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
        view = client.database.view(Carriage.of_one(watching=client.session.watching))
        item.result = await arun(item.spec.plan(view, item.argv), client.send_own)


# Commands about the connection


async def _stateful(client: Client, words: Words) -> None:
    """AUTH, HELLO, SELECT, CLIENT SETNAME: the engine answers; the session and other connections follow."""
    if _selects_other(words) and (client.spreads or client.hub.announced is not None):
        client.write(_ONE_DATABASE if client.spreads else _NO_SELECT)
        return
    if client.refuses_login(words):
        return
    before = client.session.greeting()
    reply = await client.ask_own(words)
    await client.noted(words, reply)
    if client.session.greeting() != before:
        await client.nodes.follow(tuple(words))
    client.moved()
    client.write(gateway_database.hello_with_mode(reply, client.hub.mode))


async def _pubsub(client: Client, words: Words) -> None:
    own = await client.own_connection()
    if await own.listen(pack([tuple(words)])):
        client.session.subscriptions.note(words)


async def _reset(client: Client, words: Words) -> None:
    if len(words) > 1:
        await _stateful(client, words)
        return
    client.restart()
    client.write(b"+RESET\r\n")


async def _about_client(client: Client, words: Words) -> None:
    """CLIENT."""
    about = words[1].upper() if len(words) > 1 else b""
    if about == b"REPLY" and len(words) == 3 and words[2].upper() in (b"ON", b"OFF", b"SKIP"):
        client.session.muted = words[2].upper() == b"OFF" or (
            client.session.muted and words[2].upper() == b"SKIP"
        )
        client.session.skips = words[2].upper() == b"SKIP" and not client.session.muted
        client.write(b"+OK\r\n" if words[2].upper() == b"ON" else b"")
    elif about in (b"SETNAME", b"SETINFO"):
        await _stateful(client, words)
    elif client.spreads and about in (b"TRACKING", b"CACHING"):
        instead = "Connect to the nodes with a cluster client"
        client.write(error_line(RefusedError(f"CLIENT {about.decode()}", _NODE, instead)))
    else:
        client.session.note_sent(words)
        await client.relay_own(words)


async def _relay_raw(client: Client, words: Words) -> None:
    """SYNC, PSYNC: relay all bytes unread from now on, unless the engine refuses."""
    own = await client.own_connection()
    client.blocking = True
    try:
        accepted = await own.relay_raw(pack([tuple(words)]))
    finally:
        client.blocking = False
    if accepted:
        client.session.kept = client.raw = True
        own.send_only(pack(map(tuple, client.queue)))
        client.queue.clear()


async def _monitor(client: Client, words: Words) -> None:
    """Lines may come together with the reply. It is relayed, so they cannot overtake it."""
    client.session.monitors = await client.relay_own(words)


async def _replconf(client: Client, words: Words) -> None:
    """REPLCONF ACK has no reply; the others have one."""
    await (await client.own_connection()).listen(pack([tuple(words)]))


async def _swap(client: Client, words: Words) -> None:
    refused = await storage_guard.swap_refusal(client, words)
    if refused is not None:
        client.write(error_line(refused))
    else:
        await client.relay_own(words)


async def _info(client: Client, words: Words) -> None:
    reply = await client.ask_own(words)
    reply = await gateway_database.corrected_info(client.session.db, reply, client.database.count_hidden)
    client.write(gateway_database.info_with_mode(reply, client.hub.mode))


async def _unwatch(client: Client, words: Words) -> None:
    reply = await client.ask_own(words)
    if not reply.startswith(b"-"):
        client.session.watching = False
        if client.spreads:
            await client.nodes.unwatch()
    client.write(reply)


Handler = Callable[[Client, Words], Awaitable[None]]

_HANDLERS: Final[dict[bytes, Handler]] = {
    **dict.fromkeys(STATEFUL, _stateful),
    **dict.fromkeys(PUBSUB, _pubsub),
    **dict.fromkeys(TRANSACTION, transaction.begin_or_refuse),
    **dict.fromkeys(ABOUT_CLUSTERS, _answer_cluster_command),
    b"RESET": _reset,
    b"MONITOR": _monitor,
    b"SYNC": _relay_raw,
    b"PSYNC": _relay_raw,
    b"REPLCONF": _replconf,
    b"SWAPDB": _swap,
    b"CLIENT": _about_client,
    b"WAIT": native.wait,
    b"WAITAOF": native.wait,
    b"INFO": _info,
    b"COMMAND": answer_command,
    b"FUNCTION": native.load,
    b"SCRIPT": native.load,
    b"UNWATCH": _unwatch,
}
