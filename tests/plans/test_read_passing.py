"""XREADGROUP of strands in which other regions have acknowledged entries ahead of the group."""

from typing import Any

import pytest

from braidstream.commands import xreadgroup_reply
from braidstream.commands.xreadgroup_reply import parse
from braidstream.errors import ReplyError
from braidstream.model.strand import Strand
from tests.support.transcript import registry, remembering, replay

S1 = Strand(b"orders", "s", 1)
READ = "FCALL bs_group_read 2 bs:meta:{orders} bs:1:s:{orders} jobs ann 1000 '' s1:0 ''"
GONE = ReplyError("NOGROUP the group has changed")


def read(*round_trips: dict[str, Any]) -> dict[Strand, list[Any]]:
    view = remembering(S1)
    view.learn(b"orders", [*registry(S1), b"u:jobs", b"s1:0 9-0~9-0"])
    spec = parse([b"XREADGROUP", b"GROUP", b"jobs", b"ann", b"STREAMS", b"orders", b">"])
    assert spec is not None
    return replay(xreadgroup_reply.read(view, spec, b"orders", lambda strand, count: ()), *round_trips)


def test_delivered_entries_are_returned_if_the_next_page_is_refused() -> None:
    page = [[b"%d-0" % number, [b"n", b"1"]] for number in range(1, 1_001)]
    assert read({READ: [1_000, 1, page]}, {READ: GONE}) == {S1: page}


def test_a_first_page_that_is_refused_is_an_error() -> None:
    with pytest.raises(ReplyError, match="NOGROUP"):
        read({READ: GONE})
