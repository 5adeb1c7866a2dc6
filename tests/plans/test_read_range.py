"""XRANGE and XREVRANGE: what they say to the engine, and when they must say it again."""

import pytest

from braidstream.commands.xread import length, read_range, read_range_back
from braidstream.errors import ReplyError
from braidstream.model.strand import Strand
from tests.support.transcript import Atomic, registry, remembering, replay

ALL = [b"XRANGE", b"orders", b"-", b"+"]
# From the first to the last ID of a strand of generated IDs: a sequence has 54 bits there.
WHOLE = "0-0 18446744073709551615-18014398509481983"
WHOLE_CHOSEN = "0-0 18446744073709551615-18446744073709551615"
S1, S2, C2 = (Strand(b"orders", kind, writer) for kind, writer in (("s", 1), ("s", 2), ("c", 2)))


def test_one_round_trip_where_the_strands_are_known_and_ids_decide_the_order() -> None:
    entries = replay(
        read_range(remembering(S1, S2), [*ALL, b"COUNT", b"2"]),
        Atomic(
            {
                f"XRANGE bs:1:s:{{orders}} {WHOLE} COUNT 2": [[b"1-0", [b"v", b"a"]], [b"3-0", [b"v", b"c"]]],
                f"XRANGE bs:2:s:{{orders}} {WHOLE} COUNT 2": [[b"2-5", [b"v", b"b"]]],
                "HGETALL bs:meta:{orders}": registry(S1, S2),
            }
        ),
    )
    assert entries == [[b"1-1", [b"v", b"a"]], [b"2-5122", [b"v", b"b"]]]


def test_one_strand_needs_no_multi() -> None:
    entries = replay(
        read_range(remembering(S1), ALL),
        {
            f"XRANGE bs:1:s:{{orders}} {WHOLE}": [[b"1-0", [b"v", b"a"]]],
            "HGETALL bs:meta:{orders}": registry(S1),
        },
    )
    assert entries == [[b"1-1", [b"v", b"a"]]]


def test_a_missed_strand_shows_in_the_registry_which_is_asked_last_and_all_is_read_again() -> None:
    view = remembering(S1)
    entries = replay(
        read_range(view, ALL),
        {
            f"XRANGE bs:1:s:{{orders}} {WHOLE}": [[b"4-0", [b"v", b"d"]]],
            "HGETALL bs:meta:{orders}": registry(S1, C2, S2),
        },
        Atomic(
            {
                f"XRANGE bs:1:s:{{orders}} {WHOLE}": [[b"4-0", [b"v", b"d"]], [b"5-0", [b"v", b"e"]]],
                f"XRANGE bs:2:c:{{orders}} {WHOLE_CHOSEN}": [[b"2-9", [b"v", b"b"]]],
                f"XRANGE bs:2:s:{{orders}} {WHOLE}": [],
                "HGETALL bs:meta:{orders}": registry(S1, C2, S2),
            }
        ),
    )
    assert [entry for entry, _ in entries or []] == [b"2-9", b"4-1", b"5-1"]
    assert view.recall(b"orders").strands == (S1, C2, S2)


def test_a_stream_never_seen_is_looked_for_in_the_home_strand_at_once() -> None:
    view = remembering()
    assert (
        replay(
            read_range(view, ALL),
            {f"XRANGE bs:1:s:{{orders}} {WHOLE}": [], "HGETALL bs:meta:{orders}": []},
            {"TYPE orders": b"none"},
        )
        == []
    )
    assert not view.recall(b"orders").exists


def test_a_plain_key_of_the_name_is_the_wrong_type() -> None:
    said = (
        {f"XRANGE bs:1:s:{{orders}} {WHOLE}": [], "HGETALL bs:meta:{orders}": []},
        {"TYPE orders": b"hash"},
        {"HGETALL bs:meta:{orders}": []},
    )
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        replay(read_range(remembering(), ALL), *said)


def test_each_strand_is_asked_for_its_own_share_of_a_range() -> None:
    entries = replay(
        read_range_back(
            remembering(S1, S2, C2), [b"XREVRANGE", b"orders", b"7-1025", b"(3-1", b"COUNT", b"10"]
        ),
        Atomic(
            {
                "XREVRANGE bs:1:s:{orders} 7-1 3-1 COUNT 10": [[b"7-1", [b"v", b"z"]]],
                "XREVRANGE bs:2:c:{orders} 7-1025 3-2 COUNT 10": [[b"3-7", [b"v", b"x"]]],
                "XREVRANGE bs:2:s:{orders} 7-0 3-0 COUNT 10": [[b"3-0", [b"v", b"y"]]],
                "HGETALL bs:meta:{orders}": registry(S1, S2, C2),
            }
        ),
    )
    assert entries == [[b"7-1025", [b"v", b"z"]], [b"3-7", [b"v", b"x"]], [b"3-2", [b"v", b"y"]]]


def test_a_strand_that_was_evicted_has_nothing_to_tell() -> None:
    count = replay(
        length(remembering(S1, S2), [b"XLEN", b"orders"]),
        Atomic(
            {
                "XLEN bs:1:s:{orders}": 3,
                "XLEN bs:2:s:{orders}": ReplyError("ERR no such key"),
                "HGETALL bs:meta:{orders}": registry(S1, S2),
            }
        ),
    )
    assert count == 3


def test_another_error_of_a_strand_is_the_answer() -> None:
    said = Atomic(
        {
            "XLEN bs:1:s:{orders}": 3,
            "XLEN bs:2:s:{orders}": ReplyError("NOPERM no access to the key"),
            "HGETALL bs:meta:{orders}": registry(S1, S2),
        }
    )
    with pytest.raises(ReplyError, match="NOPERM"):
        replay(length(remembering(S1, S2), [b"XLEN", b"orders"]), said)


def test_a_large_page_asks_each_strand_for_a_share_and_then_for_what_is_missing() -> None:
    """200 of s1 and s2: an even share and some, 140 of each. All of s2 is far away, so a second round
    reads more."""
    near = [[b"%d-0" % ms, []] for ms in range(1, 301)]
    far = [[b"%d-0" % ms, []] for ms in range(1001, 1301)]
    last = WHOLE.split()[1]
    entries = replay(
        read_range(remembering(S1, S2), [*ALL, b"COUNT", b"200"]),
        Atomic(
            {
                f"XRANGE bs:1:s:{{orders}} 0-0 {last} COUNT 140": near[:140],
                f"XRANGE bs:2:s:{{orders}} 0-0 {last} COUNT 140": far[:140],
                "HGETALL bs:meta:{orders}": registry(S1, S2),
            }
        ),
        Atomic(
            {
                f"XRANGE bs:1:s:{{orders}} 140-1 {last} COUNT 200": near[140:],
                f"XRANGE bs:2:s:{{orders}} 1140-1 {last} COUNT 200": far[140:],
                "HGETALL bs:meta:{orders}": registry(S1, S2),
            }
        ),
    )
    assert entries is not None
    assert [entry for entry, _ in entries] == [b"%d-1" % ms for ms in range(1, 201)]
