"""On a cluster: every function and every batch that one stream needs stays within its slot.

A cluster client of our own comes later. Here a batch in one MULTI goes to the node that owns the stream's
slot, and any other command to the node that owns its key, as such a client would send them.
"""

import random
import re

import pytest

from braidstream import lua as functions
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.ids import ZERO
from braidstream.model.strand import Strand
from braidstream.plan.plan import Batch, run
from tests.support.cluster import Cluster
from tests.support.cluster_functions import (
    Nodes,
    command,
    neighbour,
    nodes_of,
    say_every_function,
    view_of_one,
)
from tests.support.regions import apply

pytestmark = pytest.mark.long

# Not to be said twice.
ONCE = (b"XADD", b"XSETID", b"RENAME", b"XREAD")

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
    with nodes_of(cluster) as nodes, pytest.raises(AssertionError, match="ClusterCrossSlotError"):
        nodes.of(name)(Batch([("EXISTS", keys.meta(name), keys.meta(b"another " + name))]))


def test_every_function_is_accepted(cluster: Cluster) -> None:
    with nodes_of(cluster) as nodes:
        for name in _names():
            say_every_function(nodes.of(name), name)
        called = {said[1] for said in nodes.sent if str(said[0]).startswith("FCALL")}
    assert called == set(re.findall(r"'(bs_[a-z_]+)'", functions.source())) - {
        *(
            "bs_version",
            "bs_process",
            "bs_region_alive",
            "bs_region_writers",
            "bs_database_flush",
        )  # not of a stream; a cluster has one database
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
        (b"COPY", name, neighbour(name)),
        (b"RENAMENX", name, neighbour(name)),
        (b"RENAME", name, neighbour(name)),
        (b"RENAME", neighbour(name), name),
        (b"XADD", name, b"*", b"v", b"a"),
        (b"DEL", name),
        (b"XADD", name, b"5-5", b"v", b"a"),
        (b"UNLINK", name),
        (b"XRANGE", name, b"-", b"+"),
        (b"DEL", neighbour(name)),
    ]


def test_every_batch_of_every_command_is_accepted(cluster: Cluster) -> None:
    with nodes_of(cluster) as nodes:
        for name in _names():
            said = nodes.of(name)
            far = _others_write(said, name)
            known = view_of_one()
            assert run(command(known, b"XLEN", name), said) == far
            for words in _conversation(name):
                for view in (known, view_of_one()):  # one that remembers, one that has seen nothing
                    if words[0] in ONCE and view is not known:
                        continue
                    run(command(view, *words), said)
            for gone in (name, neighbour(name)):
                assert run(command(view_of_one(), b"EXISTS", gone), said) == 0
            assert known.recall(name).strands == ()


def test_a_link_applies_to_copies_that_were_deleted_too(cluster: Cluster) -> None:
    with nodes_of(cluster) as nodes:
        for name in _names():
            said, strand = nodes.of(name), Strand(name, "s", 2)
            assert run(apply(strand, [((1, 0), [b"v", b"a"])]), said) == 1
            assert run(command(view_of_one(), b"DEL", name), said) == 1
            assert run(apply(strand, [((1, 0), [b"v", b"a"]), ((2, 0), [b"v", b"b"])], ZERO), said) == 1
            assert run(command(view_of_one(), b"XRANGE", name, b"-", b"+"), said) == [[b"2-2", [b"v", b"b"]]]


def test_a_plain_key_of_the_name_is_seen_whatever_slot_it_lies_in(cluster: Cluster) -> None:
    with nodes_of(cluster) as nodes:
        for name in _names():
            said = nodes.of(name)
            said(Batch([("SET", name, "plain")]))
            for words in ((b"XADD", name, b"*"), (b"XADD", name, b"5-5"), (b"XRANGE", name, b"-", b"+")):
                fields = (b"v", b"a") if words[0] == b"XADD" else ()
                with pytest.raises(ReplyError, match="WRONGTYPE"):
                    run(command(view_of_one(), *words, *fields), said)
            assert run(command(view_of_one(), b"DEL", name), said) == 1
