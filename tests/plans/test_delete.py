"""XDEL and XTRIM: each ID and each cut goes only to the strands it can concern."""

from braidstream.commands.removal import delete_entries, delete_ex, trim
from braidstream.model.strand import Strand
from tests.support.transcript import Atomic, registry, remembering, replay

S1, S2, C1, C2 = (Strand(b"orders", kind, writer) for kind in ("s", "c") for writer in (1, 2))


def test_an_id_goes_to_its_writers_strand_and_to_those_of_chosen_ids() -> None:
    gone = replay(
        delete_entries(remembering(C1, S1, C2, S2), [b"XDEL", b"orders", b"7-1026"]),
        Atomic(
            {
                "XDEL bs:1:c:{orders} 7-1026": 0,
                "XDEL bs:2:c:{orders} 7-1026": 0,
                "XDEL bs:2:s:{orders} 7-1": 1,
                "HGETALL bs:meta:{orders}": registry(C1, S1, C2, S2),
            }
        ),
    )
    assert gone == 1


def test_where_nobody_chose_ids_an_id_goes_to_one_strand() -> None:
    view = remembering(S1, S2)
    gone = replay(
        delete_entries(view, [b"XDEL", b"orders", b"7-1025"]),
        {"XDEL bs:1:s:{orders} 7-1": 1, "HGETALL bs:meta:{orders}": registry(S1, S2)},
    )
    assert gone == 1


def test_an_id_of_a_writer_without_a_strand_goes_nowhere() -> None:
    gone = replay(
        delete_entries(remembering(S1, S2), [b"XDEL", b"orders", b"7-3", b"7-0"]),
        {"HGETALL bs:meta:{orders}": registry(S1, S2)},
    )
    assert gone == 0


def test_a_strand_that_was_missed_is_asked_afterwards() -> None:
    gone = replay(
        delete_entries(remembering(S1), [b"XDEL", b"orders", b"7-1", b"7-2"]),
        {"XDEL bs:1:s:{orders} 7-0": 1, "HGETALL bs:meta:{orders}": registry(S1, S2)},
        {"XDEL bs:2:s:{orders} 7-0": 1, "HGETALL bs:meta:{orders}": registry(S1, S2)},
    )
    assert gone == 2


def test_each_id_gets_its_own_answer_from_xdelex() -> None:
    drop = "FCALL bs_entry_drop 1"
    answers = replay(
        delete_ex(remembering(C1, S1), [b"XDELEX", b"orders", b"IDS", b"2", b"7-1", b"7-2"]),
        {"HGETALL bs:meta:{orders}": registry(C1, S1)},
        {f"{drop} bs:1:c:{{orders}} KEEPREF '' 0 c1:0 7-1 7-2": [-1, -1]},
        {f"{drop} bs:1:s:{{orders}} KEEPREF '' 0 s1:0 7-0": [1]},
    )
    assert answers == [1, -1]


def test_a_stream_that_is_not_there_has_nothing_to_delete() -> None:
    gone = replay(
        delete_entries(remembering(), [b"XDEL", b"orders", b"7-1"]),
        {"HGETALL bs:meta:{orders}": []},
        {"TYPE orders": b"none"},
    )
    assert gone == 0


def test_minid_cuts_every_strand_in_one_step() -> None:
    gone = replay(
        trim(remembering(C1, S1, S2), [b"XTRIM", b"orders", b"MINID", b"7-2"]),
        Atomic(
            {
                "XTRIM bs:1:c:{orders} MINID = 7-2": 0,
                "XTRIM bs:1:s:{orders} MINID = 7-1": 4,
                "XTRIM bs:2:s:{orders} MINID = 7-0": 2,
                "HGETALL bs:meta:{orders}": registry(C1, S1, S2),
            }
        ),
    )
    assert gone == 6


def test_maxlen_takes_the_oldest_of_all_strands() -> None:
    whole = "0-0 18446744073709551615-18014398509481983 COUNT 3"
    body = [b"v", b"a"]
    lengths = {"XLEN bs:1:s:{orders}": 2, "XLEN bs:2:s:{orders}": 3}
    gone = replay(
        trim(remembering(S1, S2), [b"XTRIM", b"orders", b"MAXLEN", b"3"]),
        Atomic({**lengths, "HGETALL bs:meta:{orders}": registry(S1, S2)}),
        Atomic(
            {
                "XLEN bs:1:s:{orders}": 2,
                f"XRANGE bs:1:s:{{orders}} {whole}": [[b"5-0", body], [b"6-0", body]],
                "XLEN bs:2:s:{orders}": 3,
                f"XRANGE bs:2:s:{{orders}} {whole}": [[b"1-0", body], [b"2-0", body], [b"9-0", body]],
                "HGETALL bs:meta:{orders}": registry(S1, S2),
            }
        ),
        {"XTRIM bs:2:s:{orders} MINID = 9-0": 2},
    )
    assert gone == 2
