"""XADD: one native command; creates the strand the first time; a function for chosen IDs."""

import pytest

from braidstream.commands.table import TABLE
from braidstream.commands.xadd import add
from braidstream.errors import NotARegionError, RefusedError, ReplyError
from braidstream.model.strand import Strand
from braidstream.plan.view import Carriage
from tests.support.transcript import Atomic, registry, remembering, replay

S1, S2 = Strand(b"orders", "s", 1), Strand(b"orders", "s", 2)
ADD = [b"XADD", b"orders", b"*", b"v", b"a"]
# Before a strand is created that the client has not seen: is the server still the region?
CONFIG = b"region 1 name r writer 1 writers 1 id-mode strict topology 1"
STILL_REGION = {"HGETALL bs:config": CONFIG.split()}


def test_an_append_is_one_native_command_whatever_the_client_remembers() -> None:
    for view in (remembering(), remembering(S1), remembering(S1, S2)):
        added = replay(add(view, ADD), {"XADD bs:1:s:{orders} NOMKSTREAM * v a": b"7-2"})
        assert added == b"7-2049"


def test_milliseconds_alone_are_minted_in_strict_mode() -> None:
    added = replay(
        add(remembering(), [b"XADD", b"orders", b"110", b"v", b"a"]),
        {"XADD bs:1:s:{orders} NOMKSTREAM 110-* v a": b"110-0"},
    )
    assert added == b"110-1"


def test_the_first_write_gives_birth_to_the_strand_in_one_step_with_the_append() -> None:
    view = remembering()
    added = replay(
        add(view, ADD),
        {"XADD bs:1:s:{orders} NOMKSTREAM * v a": None},
        STILL_REGION,
        Atomic(
            {
                "FCALL bs_strand_ensure 3 bs:meta:{orders} bs:1:s:{orders} orders s1": 1,
                "XADD bs:1:s:{orders} NOMKSTREAM * v a": b"7-0",
            }
        ),
    )
    assert added == b"7-1"
    assert view.recall(b"orders").strands == (S1,)


def test_a_strand_that_the_server_has_forgotten_is_created_only_in_a_region() -> None:
    native = "XADD bs:1:s:{orders} NOMKSTREAM * v a"
    ensure = "FCALL bs_strand_ensure 3 bs:meta:{orders} bs:1:s:{orders} orders s1"
    emptied = (
        {native: None},
        Atomic({f"{ensure} '' known": ReplyError("BSSTALE x"), native: None}),
        {"HGETALL bs:meta:{orders}": []},
    )
    assert replay(add(remembering(S1), ADD), *emptied, STILL_REGION, Atomic({ensure: 1, native: b"7-0"}))
    with pytest.raises(NotARegionError):
        replay(add(remembering(S1), ADD), *emptied, {"HGETALL bs:config": []}, {"INFO cluster": b""})


def test_an_append_to_a_strand_that_another_client_has_just_created_is_told_as_done() -> None:
    view = remembering()
    view.carriage = Carriage.PIPELINE
    view.learn(b"orders", [])
    added = replay(
        add(view, ADD),
        {
            "FCALL bs_strand_ensure 3 bs:meta:{orders} bs:1:s:{orders} orders s1": ReplyError("BSSTALE x"),
            "XADD bs:1:s:{orders} NOMKSTREAM * v a": b"7-0",
        },
    )
    assert added == b"7-1"


def test_a_birth_refused_by_a_plain_key_is_the_answer_and_nothing_is_remembered() -> None:
    view = remembering()
    said = (
        {"XADD bs:1:s:{orders} NOMKSTREAM * v a": None},
        STILL_REGION,
        Atomic(
            {
                "FCALL bs_strand_ensure 3 bs:meta:{orders} bs:1:s:{orders} orders s1": ReplyError(
                    "WRONGTYPE x"
                ),
                "XADD bs:1:s:{orders} NOMKSTREAM * v a": None,
            }
        ),
    )
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        replay(add(view, ADD), *said)
    assert not view.recall(b"orders").exists


def test_a_name_in_another_slot_than_its_plain_key_asks_the_type_apart() -> None:
    added = replay(
        add(remembering(), [b"XADD", b"}odd", b"*", b"v", b"a"]),
        {"XADD bs:1:s:!{!}}odd NOMKSTREAM * v a": None},
        {"TYPE }odd": b"none"},
        STILL_REGION,
        Atomic(
            {
                "FCALL bs_strand_ensure 2 bs:meta:!{!}}odd bs:1:s:!{!}}odd s1": 1,
                "XADD bs:1:s:!{!}}odd NOMKSTREAM * v a": b"7-0",
            }
        ),
    )
    assert added == b"7-1"


def test_a_cap_is_in_the_append_itself_and_alone_in_the_stream_that_is_all() -> None:
    replay(
        add(remembering(S1), [b"XADD", b"orders", b"MAXLEN", b"~", b"1000", b"*", b"v", b"a"]),
        {
            "XADD bs:1:s:{orders} NOMKSTREAM MAXLEN ~ 1000 * v a": b"7-0",
            "HGETALL bs:meta:{orders}": registry(S1),
        },
    )


def test_a_full_id_is_refused_in_strict_mode_only_after_asking_which_mode_it_is() -> None:
    with pytest.raises(RefusedError, match="strict ID mode"):
        replay(
            add(remembering(), [b"XADD", b"orders", b"7-7", b"v", b"a"]),
            STILL_REGION,
            {"HGETALL bs:meta:{orders}": []},  # if it is a log, another error says so
        )


def test_a_chosen_id_is_one_function_call_where_the_strands_are_known() -> None:
    view = remembering(Strand(b"orders", "c", 1, 2), S1, id_mode="liberal")
    added = replay(
        add(view, [b"XADD", b"orders", b"7-3000", b"v", b"a"]),
        {
            "FCALL bs_chosen_add 4 bs:meta:{orders} bs:1:s:{orders} bs:1:c.2:{orders} orders"
            " s1 c1 2 7-3000 7-2 7-2 known '' v a": b"7-3000"
        },
    )
    assert added == b"7-3000"


def test_a_stale_memory_of_the_chosen_strand_is_refreshed() -> None:
    view = remembering(S1, id_mode="liberal")
    added = replay(
        add(view, [b"XADD", b"orders", b"7", b"v", b"a"]),
        {
            "FCALL bs_chosen_add 4 bs:meta:{orders} bs:1:s:{orders} bs:1:c:{orders} orders"
            " s1 c1 0 7-0 6-18446744073709551615 6-18446744073709551615 known '' v a": ReplyError(
                "BSSTALE another life"
            )
        },
        {"HGETALL bs:meta:{orders}": registry(Strand(b"orders", "c", 1, 1), S1)},
        {
            "FCALL bs_chosen_add 4 bs:meta:{orders} bs:1:s:{orders} bs:1:c.1:{orders} orders"
            " s1 c1 1 7-0 6-18446744073709551615 6-18446744073709551615 known '' v a": b"7-0"
        },
    )
    assert added == b"7-0"


@pytest.mark.parametrize("name", [b"bs:config", b"bs:meta:{orders}", b"bs:1:s:{orders}", b"bs:2:c.1:+a{b}"])
def test_a_key_of_our_own_storage_is_no_name_for_a_stream(name: bytes) -> None:
    with pytest.raises(RefusedError, match="own storage"):
        replay(TABLE[b"XADD"].plan(remembering(), [b"XADD", name, b"*", b"v", b"a"]))
