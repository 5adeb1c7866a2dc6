"""Deletion that depends on groups, and XNACK: commands of newer servers, on every engine."""

import pytest
import redis

import braidstream
from braidstream.model.strand import Strand
from tests.support.regions import apply, client_of
from tests.support.servers import NEWEST, Engine
from tests.support.waiting import eventually


@pytest.fixture
def orders(liberal: braidstream.Redis) -> braidstream.Redis:
    """1-0 .. 10-0; group g was given 1 to 6 and acknowledged 1, 2, 3, 5; group late has read nothing."""
    for number in range(1, 11):
        liberal.xadd("orders", {"n": number}, id=f"{number}-0")
    liberal.xgroup_create("orders", "g", "0")
    liberal.xgroup_create("orders", "late", "0")
    liberal.xreadgroup("g", "alice", {"orders": ">"}, count=6)
    liberal.xack("orders", "g", "1-0", "2-0", "3-0", "5-0")
    return liberal


def _ms(client: braidstream.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def left(client: braidstream.Redis) -> list[int]:
    return [int(fields["n"]) for _, fields in client.xrange("orders")]


def test_a_trim_that_asks_removes_nothing_while_a_group_has_not_read(orders: braidstream.Redis) -> None:
    assert orders.xtrim("orders", maxlen=0, approximate=False, ref_policy="ACKED") == 0
    assert left(orders) == list(range(1, 11))


def test_a_stale_group_can_be_left_out_by_name(orders: braidstream.Redis) -> None:
    assert orders.execute_command("XTRIM", "orders", "MAXLEN", 0, "ACKED", "EXCEPT", 1, "late") == 4
    assert left(orders) == [4, 6, 7, 8, 9, 10], "what g has not acknowledged stays"


def test_a_trim_that_asks_stops_at_its_cap(orders: braidstream.Redis) -> None:
    assert orders.execute_command("XTRIM", "orders", "MAXLEN", 8, "ACKED", "EXCEPT", 1, "late") == 2
    assert left(orders) == list(range(3, 11))


def test_except_wants_its_groups(orders: braidstream.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="EXCEPT needs the number of groups"):
        orders.execute_command("XTRIM", "orders", "MAXLEN", 0, "ACKED", "EXCEPT", 2, "late")


def test_a_trim_with_delref_empties_the_pending_lists_too(orders: braidstream.Redis) -> None:
    assert orders.xtrim("orders", minid="7", ref_policy="DELREF") == 6
    assert orders.xpending("orders", "g")["pending"] == 0


def test_an_append_with_acked_caps_only_what_is_acknowledged(orders: braidstream.Redis) -> None:
    orders.xgroup_destroy("orders", "late")
    orders.xadd("orders", {"n": 11}, maxlen=1, approximate=False, ref_policy="ACKED")
    assert left(orders) == [4, 6, 7, 8, 9, 10, 11]


def test_xdelex_tells_what_became_of_each_id(orders: braidstream.Redis) -> None:
    orders.xgroup_destroy("orders", "late")
    assert orders.xdelex("orders", "1-0", "4-0", "7-0", "5-9", ref_policy="ACKED") == [1, 2, 2, -1]
    assert orders.xdelex("orders", "99-0", ref_policy="ACKED") == [2], "as if g had yet to read it"
    assert orders.xdelex("orders", "4-0", ref_policy="KEEPREF") == [1]
    assert orders.xpending("orders", "g")["pending"] == 2, "KEEPREF leaves 4-0 pending"
    assert orders.xdelex("orders", "6-0", ref_policy="DELREF") == [1]
    assert orders.xpending("orders", "g")["pending"] == 1


def test_xackdel_acknowledges_and_deletes_what_nobody_else_needs(orders: braidstream.Redis) -> None:
    assert orders.xackdel("orders", "g", "4-0", "9-0", ref_policy="ACKED") == [2, -1], "late needs 4-0"
    assert orders.xackdel("orders", "g", "6-0", ref_policy="KEEPREF") == [1]
    assert orders.xpending("orders", "g")["pending"] == 0
    assert left(orders) == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert orders.xackdel("orders", "nobody", "1-0") == [-1]


def test_a_group_with_an_empty_name_acknowledges_too(liberal: braidstream.Redis) -> None:
    liberal.xadd("x", {"n": 1}, id="1-0")
    liberal.xgroup_create("x", "", "0")
    assert liberal.execute_command("XACKDEL", "x", "", "IDS", 1, "1-0") == [-1], "it was not given"
    liberal.xreadgroup("", "alice", {"x": ">"})
    assert liberal.execute_command("XACKDEL", "x", "", "IDS", 1, "1-0") == [1]


def test_an_id_that_could_stand_in_two_strands_is_kept_where_it_stands(liberal: braidstream.Redis) -> None:
    liberal.xgroup_create("x", "g", "0", mkstream=True)
    liberal.xadd("x", {"n": 1}, id="1-1")  # chosen; a generated ID of writer 1 looks the same
    assert liberal.execute_command("XDELEX", "x", "ACKED", "IDS", 1, "1-1") == [2]
    assert liberal.xlen("x") == 1


def test_an_entry_given_back_belongs_to_nobody_and_is_claimed_first(orders: braidstream.Redis) -> None:
    assert orders.xnack("orders", "g", "FAIL", "6-0", "9-0") == 1
    [four, six] = orders.xpending_range("orders", "g", "-", "+", 10)
    assert (four["consumer"], six["consumer"]) == ("alice", "")
    assert (six["time_since_delivered"], six["times_delivered"]) == (-1, 1)
    assert [row["name"] for row in orders.xinfo_consumers("orders", "g")] == ["alice"]
    [[_, claimed]] = orders.xreadgroup("g", "bob", {"orders": ">"}, count=3, claim_min_idle_time=0)
    assert [entry[0] for entry in claimed] == ["6-0", "4-0", "7-0"], "given back, then idle, then new"
    assert claimed[2][2:] == (0, 0)


@pytest.mark.parametrize(("mode", "deliveries"), [("SILENT", 0), ("FAIL", 1), ("FATAL", 2**63 - 1)])
def test_how_an_entry_is_given_back_shows_in_its_deliveries(
    orders: braidstream.Redis, mode: str, deliveries: int
) -> None:
    orders.xnack("orders", "g", mode, "6-0")
    [row] = orders.xpending_range("orders", "g", "6-0", "6-0", 1)
    assert row["times_delivered"] == deliveries


def test_what_was_given_back_first_is_claimed_first(orders: braidstream.Redis) -> None:
    orders.xreadgroup("g", "alice", {"orders": ">"})
    for given_back in (["9-0", "7-0"], ["4-0", "8-0"]):
        orders.xnack("orders", "g", "FAIL", *given_back)
        before = _ms(orders)
        eventually(lambda since=before: _ms(orders) > since + 2, within_s=5, why="a later moment")
    [[_, claimed]] = orders.xreadgroup("g", "bob", {"orders": ">"}, count=4, claim_min_idle_time=0)
    assert [entry[0] for entry in claimed] == ["9-0", "7-0", "4-0", "8-0"]


def test_what_was_given_back_as_fatal_stays_so_whoever_claims_it(
    orders: braidstream.Redis, engine: Engine
) -> None:
    orders.xnack("orders", "g", "FATAL", "6-0")
    orders.xclaim("orders", "g", "bob", 0, ["6-0"])
    [row] = orders.xpending_range("orders", "g", "6-0", "6-0", 1)
    assert (row["consumer"], row["times_delivered"]) == ("bob", 2**63 - 1)
    orders.xnack("orders", "g", "SILENT", "6-0")
    full = orders.xinfo_stream("orders", full=True)
    [group] = [each for each in full["groups"] if each["name"] == "g"]
    counted = 2**63 - 2 if "XNACK" in engine.vocabulary else 2**63 - 1  # SILENT takes one back
    assert [row[1:] for row in group["pending"]][1] == ["", 0, counted]
    assert [consumer["name"] for consumer in group["consumers"]] == ["alice", "bob"]


def test_an_idle_entry_that_was_deleted_gives_its_place_to_the_next(orders: braidstream.Redis) -> None:
    orders.xdel("orders", "4-0")
    [[_, claimed]] = orders.xreadgroup("g", "bob", {"orders": ">"}, count=1, claim_min_idle_time=0)
    assert [entry[0] for entry in claimed] == ["6-0"]
    rows = orders.xpending_range("orders", "g", "-", "+", 9)
    assert [(row["message_id"], row["consumer"]) for row in rows] == [("4-0", "alice"), ("6-0", "bob")]


def test_caps_count_what_was_claimed_and_what_a_consumer_holds(orders: braidstream.Redis) -> None:
    [[_, claimed]] = orders.xreadgroup("g", "bob", {"orders": ">"}, claim_min_idle_time=0, max_size=90)
    assert [entry[0] for entry in claimed] == ["4-0", "6-0"], "39 bytes each, and 16 for the name"
    [[_, again]] = orders.xreadgroup("g", "bob", {"orders": "0"}, max_count=1)
    assert [entry for entry, _ in again] == ["4-0"]
    [[_, again]] = orders.xreadgroup("g", "bob", {"orders": "0"}, max_size=3)
    assert [entry for entry, _ in again] == ["4-0"]
    rows = orders.xpending_range("orders", "g", "-", "+", 9)
    assert [row["times_delivered"] for row in rows] == [4, 2], "what was not told was not delivered"


def test_caps_count_a_stream_that_is_named_twice(orders: braidstream.Redis, engine: Engine) -> None:
    orders.xadd("orders", {"n": "x" * 50}, id="11-0")
    with client_of(engine, protocol=2) as raw:  # RESP3 has a map, in which a name stands once
        raw.response_callbacks.clear()
        few = raw.execute_command("XREAD", "MAXCOUNT", 4, "STREAMS", "orders", "orders", "8-0", "0")
        small = raw.execute_command("XREAD", "MAXSIZE", 20, "STREAMS", "orders", "orders", "9-0", "0")
    assert [[entry for entry, _ in page] for _, page in few] == [[b"9-0", b"10-0", b"11-0"], [b"1-0"]]
    assert [[entry for entry, _ in page] for _, page in small] == [[b"10-0"]], "who has no room ends it"


def test_the_caps_of_a_group_read_take_no_more_than_they_return(orders: braidstream.Redis) -> None:
    [[_, first]] = orders.xreadgroup("g", "bob", {"orders": ">"}, max_count=2)
    [[_, second]] = orders.xreadgroup("g", "bob", {"orders": ">"}, max_size=1)
    assert [entry for entry, _ in first + second] == ["7-0", "8-0", "9-0"]
    assert orders.xpending("orders", "g")["pending"] == 5


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("XNACK", "orders", "g", "MAYBE", "IDS", 1, "1-0"), "mode must be SILENT, FAIL, or FATAL"),
        (("XNACK", "orders", "g", "FAIL", "IDS", 2, "1-0"), "number of IDs doesn't match numids"),
        (
            ("XNACK", "orders", "none", "FAIL", "IDS", 1, "1-0"),
            "No such key .orders. or consumer group",
        ),
        (("XACKDEL", "orders", "g", "1-0", "2-0", "3-0"), "syntax error"),
        (("XACKDEL", "orders", "g", "KEEPREF", "DELREF", "IDS", 1, "1-0"), "syntax error"),
        (("XTRIM", "orders", "MAXLEN", 1, "KEEPREF", "DELREF"), "syntax error"),
        (
            ("XREADGROUP", "GROUP", "g", "c", "CLAIM", "x", "STREAMS", "orders", ">"),
            "min-idle-time is not an",
        ),
        (("XREADGROUP", "GROUP", "g", "c", "CLAIM", "-1", "STREAMS", "orders", ">"), "min-idle-time must be"),
        (("XREAD", "MAXCOUNT", "x", "STREAMS", "orders", "0"), "value is not an integer"),
        (("XNACK", "orders", "none", "MAYBE", "x", "y", "z"), "No such key .orders. or consumer group"),
        (("XNACK", "orders", "g", "FAIL", "RETRYCOUNT", "x", "IDS", 1, "1-0"), "value is not an integer"),
        (("XNACK", "orders", "g", "FAIL", "FORCE", "FORCE", "FORCE"), "expected IDS keyword"),
    ],
)
def test_wrong_words_are_refused(orders: braidstream.Redis, words: tuple[str | int, ...], text: str) -> None:
    with pytest.raises(redis.ResponseError, match=text):
        orders.execute_command(*words)


def test_options_of_xnack_may_come_before_the_ids(orders: braidstream.Redis) -> None:
    words = ("XNACK", "orders", "g", "SILENT", "RETRYCOUNT", 7, "FORCE", "IDS", 2, "6-0", "9-0")
    assert orders.execute_command(*words) == 2
    rows = orders.xpending_range("orders", "g", "-", "+", 9)
    assert [(row["message_id"], row["times_delivered"]) for row in rows] == [
        ("4-0", 1),
        ("6-0", 7),
        ("9-0", 7),
    ]


def test_a_pending_entry_that_was_deleted_is_given_back_and_stays_pending(orders: braidstream.Redis) -> None:
    orders.xdel("orders", "4-0")
    assert orders.xnack("orders", "g", "FAIL", "4-0", "5-0") == 1
    assert [row["message_id"] for row in orders.xpending_range("orders", "g", "-", "+", 9)] == ["4-0", "6-0"]


def test_the_summary_names_only_consumers(orders: braidstream.Redis) -> None:
    orders.xnack("orders", "g", "FAIL", "4-0")
    found = orders.execute_command("XPENDING", "orders", "g")
    assert (found["pending"], found["consumers"]) == (2, [{"name": "alice", "pending": 1}])


def test_what_was_given_back_is_idle_since_1970(orders: braidstream.Redis) -> None:
    orders.xnack("orders", "g", "FAIL", "4-0")
    before = _ms(orders)
    [[_, [given]]] = orders.xreadgroup("g", "bob", {"orders": ">"}, count=1, claim_min_idle_time=0)
    assert given[0] == "4-0"
    assert before <= given[2] <= _ms(orders)


def test_after_a_position_in_its_history_nothing_is_claimed(orders: braidstream.Redis) -> None:
    orders.xadd("more", {"n": 1}, id="1-0")
    orders.xgroup_create("more", "g", "0")
    read = orders.xreadgroup("g", "alice", {"orders": "4-0", "more": ">"}, claim_min_idle_time=0)
    assert [[len(entry) for entry in page] for _, page in read] == [[2], [2]]


@pytest.mark.every_engine
def test_a_claiming_read_inside_multi_works_or_is_refused_and_the_connection_goes_on(
    region: braidstream.Redis, engine: Engine
) -> None:
    added = [region.xadd("one", {"n": number}) for number in range(3)]
    region.xgroup_create("one", "g", "0")
    region.xreadgroup("g", "alice", {"one": ">"}, count=1)
    with region.pipeline(transaction=True) as pipe:
        pipe.xreadgroup("g", "bob", {"one": ">"}, count=2, claim_min_idle_time=0)
        pipe.xlen("one")
        if "XNACK" in engine.vocabulary:
            [[[_, entries]], length] = pipe.execute()
            assert [entry[0] for entry in entries] == added[:2]
            assert length == 3
        else:
            with pytest.raises(redis.ResponseError, match="XREADGROUP inside MULTI refused by braidstream"):
                pipe.execute()
    assert region.xlen("one") == 3


@pytest.mark.parametrize("flavour", NEWEST[:1], indirect=True)
def test_a_claiming_read_inside_multi_claims_from_all_strands_if_it_has_no_count(
    orders: braidstream.Redis, engine: Engine
) -> None:
    if "XNACK" not in engine.vocabulary:
        pytest.skip("refused there")
    orders.xadd("orders", {"n": 11})  # another strand
    orders.xnack("orders", "g", "FAIL", "6-0")
    before = _ms(orders)
    with orders.pipeline(transaction=True) as pipe:
        pipe.xreadgroup("g", "bob", {"orders": ">"}, claim_min_idle_time=0)
        [[[_, entries]]] = pipe.execute()
    assert [int(entry[1]["n"]) for entry in entries] == [6, 4, 7, 8, 9, 10, 11]
    assert before <= entries[0][2] <= _ms(orders)


def test_an_invalid_id_inside_multi_is_told_before_what_a_later_command_makes(
    orders: braidstream.Redis,
) -> None:
    """Found by `make differential`, seed 27672175."""
    with orders.pipeline(transaction=True) as pipe:
        pipe.execute_command("XREAD", "STREAMS", "orders", "none", "plain", "0", "0", "1-*x")
        pipe.set("plain", "v")
        [error, done] = pipe.execute(raise_on_error=False)
    assert "Invalid stream ID" in str(error)
    assert done


def test_what_was_given_back_from_one_strand_is_claimed_from_several(region: braidstream.Redis) -> None:
    first, second = (region.xadd("x", {"n": number}) for number in range(2))
    region.xgroup_create("x", "g", "0")
    region.xreadgroup("g", "alice", {"x": ">"})
    assert region.xnack("x", "g", "FAIL", first) == 1
    region.run_plan(apply(Strand(b"x", "s", 2), [((1, 0), [b"n", b"2"])]))
    region.xreadgroup("g", "alice", {"x": ">"})
    _, claimed, deleted = region.xautoclaim("x", "g", "bob", 3_600_000)
    assert ([entry for entry, _ in claimed], deleted) == ([first], [])
    _, claimed, _ = region.xautoclaim("x", "g", "bob", 0)
    assert [entry for entry, _ in claimed] == ["1-2", first, second]
