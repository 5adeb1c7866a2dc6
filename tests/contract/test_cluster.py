"""On a cluster: every function and every batch that one stream needs stays within its slot.

A cluster client of our own comes later. Here a batch in one MULTI goes to the node that owns the stream's
slot, and any other command to the node that owns its key, as such a client would send them.
"""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterCrossSlotError, MovedError, ResponseError, TryAgainError

from braidstream import engine as functions
from braidstream import keys
from braidstream.braid import Region, View, birth_command, delete_command
from braidstream.commands.table import TABLE
from braidstream.drivers import gather, session
from braidstream.errors import RefusedError, ReplyError
from braidstream.ids import ZERO
from braidstream.plan import Batch, Command, Plan, Replies, run
from braidstream.replication.compare import list_ids
from braidstream.replication.state import journal_command, merge_command, read_state
from braidstream.strand import Strand
from tests.support.regions import apply
from tests.support.servers import Cluster

REFUSALS = (AskError, ClusterCrossSlotError, MovedError, TryAgainError)

# Not to be said twice, and not to be said of a stream at all.
ONCE = (b"XADD", b"XSETID", b"RENAME", b"XREAD")
REFUSED = (b"EXPIRE",)
WAIT = (b"XREADGROUP", b"GROUP", b"g", b"ann", b"BLOCK", b"1", b"STREAMS")

ODD_NAMES = [
    b"orders",
    b"",
    b"}",
    b"}}",
    b"{",
    b"{{",
    b"{}",
    b"{}a",
    b"a{}",
    b"a{}b{c}",
    b"a}b",
    b"a}{b",
    b"}{a}",
    b"{a}",
    b"a{b}c",
    b"a{b}{c}",
    b"{a{b}",
    b"{{a}}",
    b"+",
    b"+a{b}",
    b"!{!}",
    b"!{!}}odd",
    b"bs:",
    b"bs:x:{orders}",
    b" ",
    b"\0",
    b"\r\n",
    b"{\r\n}",
    b"\xff\xfe{\xfd",
    b"x" * 300,
]


def _names() -> list[bytes]:
    dice = random.Random(7)
    pieces = [b"{", b"}", b"a", b"b", b":", b"\xff", b"!", b"+"]
    drawn = {b"".join(dice.choices(pieces, k=dice.randrange(1, 9))) for _ in range(50)}
    return ODD_NAMES + sorted(drawn - set(ODD_NAMES))


class Nodes:
    """Sends each batch of one stream's plans where a cluster client would. Notes every command that went."""

    def __init__(self, cluster: Cluster, connections: list[Any]) -> None:
        self.ranges = list(zip(cluster.SLOTS, connections, strict=True))
        self.connections = connections
        self.home = connections[0]
        self.sent = list[Command]()

    def of(self, name: bytes) -> "Nodes":
        """From now on the stream is this one."""
        self.home = self._owner(keys.meta(name))
        return self

    def __call__(self, batch: Batch) -> Replies:
        if batch.atomic:
            return gather.unpack(batch, self.exchange(self.home, gather.wire(batch)), session.resp2)
        replies = [self.exchange(self._place(command), [command])[0] for command in batch.commands]
        return gather.unpack(batch, replies, session.resp2)

    def exchange(self, conn: Any, commands: list[Command]) -> list[Any]:
        self.sent += commands
        conn.send_packed_command(conn.pack_commands(commands))
        replies = [_reply(conn) for _ in commands]
        for command, reply in zip(commands, replies, strict=True):
            refused = isinstance(reply, REFUSALS) or "non local key" in str(reply)
            assert not refused, f"{command} -> {type(reply).__name__} {reply}"
        return replies

    def _place(self, command: Command) -> Any:
        key = _first_key(command)
        return self.home if key is None else self._owner(key)

    def _owner(self, key: bytes) -> Any:
        slot = key_slot(key)
        return next(conn for (first, last), conn in self.ranges if first <= slot <= last)


def _reply(conn: Any) -> Any:
    try:
        return conn.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _first_key(command: Command) -> bytes | None:
    """The key that a cluster client routes a command by."""
    word = command[0].decode() if isinstance(command[0], bytes) else str(command[0])
    if word in ("TIME", "CLIENT", "UNWATCH"):
        return None
    at = {"FCALL": 3, "FCALL_RO": 3, "XINFO": 2, "XGROUP": 2, "OBJECT": 2}.get(word, 1)
    if word in ("XREAD", "XREADGROUP"):
        at = command.index("STREAMS") + 1
    key = command[at]
    assert isinstance(key, bytes), command
    return key


@contextmanager
def _nodes(cluster: Cluster) -> Iterator[Nodes]:
    connections = []
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command("FUNCTION", "LOAD", "REPLACE", functions.source())
        connections.append(redis.Connection(host="127.0.0.1", port=node.port, protocol=2))
    try:
        yield Nodes(cluster, connections)
    finally:
        for conn in connections:
            conn.disconnect()


def _view() -> View:
    return View(Region(1, "r1", 1, "liberal", (1, 2, 3)))


def _neighbour(name: bytes) -> bytes:
    """Another name in the slot of this one."""
    tag = keys.meta(name).partition(b"{")[2].partition(b"}")[0]
    other = b"{" + tag + b"}-other"
    assert key_slot(keys.meta(other)) == key_slot(keys.meta(name))
    return other


def _command(view: View, *words: bytes) -> Plan[Any]:
    return TABLE[words[0]].plan(view, list(words))


def _others_write(nodes: Nodes, name: bytes) -> int:
    """Strands of writers far away, so that batches have many keys."""
    written = 0
    for writer in (2, 3):
        for kind in ("s", "c"):
            strand = Strand(name, kind, writer)
            entries = [((ms, writer + 1), [b"v", b"far"]) for ms in range(1, 40, writer)]
            written += run(apply(strand, entries), nodes)
    return written


@pytest.mark.parametrize("name", ODD_NAMES[:3])
def test_the_check_sees_a_refusal(cluster: Cluster, name: bytes) -> None:
    with _nodes(cluster) as nodes, pytest.raises(AssertionError, match="ClusterCrossSlotError"):
        nodes.of(name)(Batch([("EXISTS", keys.meta(name), keys.meta(b"another " + name))]))


def test_every_function_is_accepted(cluster: Cluster) -> None:
    with _nodes(cluster) as nodes:
        for name in _names():
            view, said = _view(), nodes.of(name)
            home = view.minted(name)
            assert said(Batch([birth_command(home)])) == [1]
            unbirth = ("FCALL", "bs_strand_unbirth", 2, keys.meta(name), home.key, home.label)
            assert said(Batch([unbirth, birth_command(home)])) == [1, 1]
            assert run(apply(Strand(name, "s", 2), [((5, 5), [b"v", b"a"])]), said) == 1
            assert run(_command(view, b"XADD", name, b"7-7", b"v", b"a"), said) == b"7-7"
            assert run(_command(view, b"XSETID", name, b"8-8"), said) == b"OK"
            for producer in (b"p", b"{", b"}:{x}"):
                message = (b"XADD", name, b"IDMP", producer, b"1", b"*", b"v", b"a")
                assert run(_command(view, *message), said) == run(_command(view, *message), said)
            assert b"pids-tracked" in run(_command(view, b"XINFO", b"STREAM", name), said)
            assert run(_command(view, b"XCFGSET", name, b"IDMP-MAXSIZE", b"5"), said) == b"OK"
            assert run(_command(view, b"XGROUP", b"CREATE", name, b"g", b"0"), said) == b"OK"
            assert run(_command(view, b"XGROUP", b"SETID", name, b"g", b"$"), said) == b"OK"
            assert run(_command(view, *WAIT, name, b">"), said) is None
            assert run(_command(view, b"XDELEX", name, b"ACKED", b"IDS", b"1", b"7-7"), said) == [1]
            state = run(read_state(name, [], [2], home=1), said)
            journal = journal_command(name, (2, 1), list(state.strands), [], after=(0, 0))
            skip = ("FCALL", "bs_journal_skip", 1, keys.journal(name, 2), "1-1")
            assert said(Batch([merge_command(state, state, (1, 2), home=1), journal, skip])) == [1, 0, 1]
            assert run(list_ids(Strand(name, "s", 2), (0, 0), (9, 9)), said) == [b"5-5"]
            assert run(_command(view, b"XGROUP", b"DESTROY", name, b"g"), said) == 1
            assert run(_command(view, b"COPY", name, _neighbour(name), b"REPLACE"), said) == 1
            strands = view.learn(name, said(Batch([("HGETALL", keys.meta(name))]))[0]).strands
            assert said(Batch([delete_command(name, strands, 0)])) == [1]
            run(_command(view, b"DEL", _neighbour(name)), said)
        called = {command[1] for command in nodes.sent if str(command[0]).startswith("FCALL")}
    assert called == set(re.findall(r"'(bs_[a-z_]+)'", functions.source())) - {
        *("bs_version", "bs_database_flush")  # a cluster has one database
    }


def _conversation(name: bytes) -> list[tuple[bytes, ...]]:
    """Every command on one stream, its options where they change what is sent."""
    return [
        (b"XADD", name, b"NOMKSTREAM", b"*", b"v", b"a"),
        (b"XADD", name, b"*", b"v", b"a"),
        (b"XADD", name, b"MAXLEN", b"50", b"*", b"v", b"a"),
        (b"XADD", name, b"MINID", b"3", b"NOMKSTREAM", b"*", b"v", b"a"),
        (b"XADD", name, b"MAXLEN", b"~", b"50", b"99999999999999-5", b"v", b"a"),
        (b"XADD", name, b"99999999999999-*", b"v", b"a"),
        (b"XADD", name, b"NOMKSTREAM", b"999999999999999", b"v", b"a"),
        (b"XLEN", name),
        (b"XRANGE", name, b"-", b"+"),
        (b"XRANGE", name, b"(3-3", b"9", b"COUNT", b"3"),
        (b"XRANGE", name, b"-", b"+", b"COUNT", b"50"),
        (b"XREVRANGE", name, b"+", b"-", b"COUNT", b"60"),
        (b"XREAD", b"STREAMS", name, b"0"),
        (b"XREAD", b"COUNT", b"3", b"MAXSIZE", b"10", b"STREAMS", name, b"$"),
        (b"XREAD", b"STREAMS", name, b"+"),
        (b"XREAD", b"BLOCK", b"1", b"STREAMS", name, b"$"),
        (b"XINFO", b"STREAM", name),
        (b"XINFO", b"STREAM", name, b"FULL"),
        (b"XDEL", name, b"4-3074", b"4-5", b"1-1"),
        (b"XDELEX", name, b"IDS", b"2", b"7-3074", b"4-5"),
        (b"XTRIM", name, b"MAXLEN", b"20"),
        (b"XTRIM", name, b"MAXLEN", b"~", b"5"),
        (b"XTRIM", name, b"MINID", b"30"),
        (b"XSETID", name, b"9999999999999999-1", b"ENTRIESADDED", b"500", b"MAXDELETEDID", b"9-9"),
        (b"EXISTS", name),
        (b"TYPE", name),
        (b"TTL", name),
        (b"PERSIST", name),
        (b"OBJECT", b"ENCODING", name),
        (b"EXPIRE", name, b"10"),
        (b"DUMP", name),
        (b"COPY", name, _neighbour(name)),
        (b"RENAMENX", name, _neighbour(name)),
        (b"RENAME", name, _neighbour(name)),
        (b"RENAME", _neighbour(name), name),
        (b"XADD", name, b"*", b"v", b"a"),
        (b"DEL", name),
        (b"XADD", name, b"5-5", b"v", b"a"),
        (b"UNLINK", name),
        (b"XRANGE", name, b"-", b"+"),
        (b"DEL", _neighbour(name)),
    ]


def test_every_batch_of_every_command_is_accepted(cluster: Cluster) -> None:
    with _nodes(cluster) as nodes:
        for name in _names():
            said = nodes.of(name)
            far = _others_write(said, name)
            known = _view()
            assert run(_command(known, b"XLEN", name), said) == far
            for words in _conversation(name):
                for view in (known, _view()):  # one that remembers, one that has seen nothing
                    if words[0] in ONCE and view is not known:
                        continue
                    with nullcontext() if words[0] not in REFUSED else pytest.raises(RefusedError):
                        run(_command(view, *words), said)
            for gone in (name, _neighbour(name)):
                assert run(_command(_view(), b"EXISTS", gone), said) == 0
            assert known.recall(name).strands == ()


def test_a_link_applies_to_copies_that_were_deleted_too(cluster: Cluster) -> None:
    with _nodes(cluster) as nodes:
        for name in _names():
            said, strand = nodes.of(name), Strand(name, "s", 2)
            assert run(apply(strand, [((1, 0), [b"v", b"a"])]), said) == 1
            assert run(_command(_view(), b"DEL", name), said) == 1
            assert run(apply(strand, [((1, 0), [b"v", b"a"]), ((2, 0), [b"v", b"b"])], ZERO), said) == 1
            assert run(_command(_view(), b"XRANGE", name, b"-", b"+"), said) == [[b"2-2", [b"v", b"b"]]]


def test_a_plain_key_of_the_name_is_seen_whatever_slot_it_lies_in(cluster: Cluster) -> None:
    with _nodes(cluster) as nodes:
        for name in _names():
            said = nodes.of(name)
            said(Batch([("SET", name, "plain")]))
            for words in ((b"XADD", name, b"*"), (b"XADD", name, b"5-5"), (b"XRANGE", name, b"-", b"+")):
                fields = (b"v", b"a") if words[0] == b"XADD" else ()
                with pytest.raises(ReplyError, match="WRONGTYPE"):
                    run(_command(_view(), *words, *fields), said)
            assert run(_command(_view(), b"DEL", name), said) == 1
