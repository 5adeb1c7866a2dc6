"""The ID modes, requirements AA-6 to AA-13 (docs/design/requirements.md): which IDs XADD accepts."""

import pytest
import redis

import braidstream
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from tests.support.cli import braid
from tests.support.regions import apply, become, client_of, position
from tests.support.servers import Engine
from tests.support.waiting import eventually

F1 = {"f1": "v1"}
WORDS = [b"f1", b"v1"]


def tune(engine: Engine, mode: str) -> None:
    """What an operator types."""
    assert braid("tune", "id-mode", mode, "--url", engine.url).returncode == 0


def seen(client: braidstream.Redis, name: str = "x") -> list[str]:
    return [entry for entry, _ in client.xrange(name)]


def sync(client: braidstream.Redis, strand: Strand, *natives: Id) -> None:
    """Entries that region 2 has written arrive here."""
    client.run_plan(apply(strand, [(native, WORDS) for native in natives]))


# Strict, the default.


def test_a_region_is_strict_unless_it_is_told_otherwise(engine: Engine) -> None:
    become(engine)
    with engine.client(decode_responses=True) as operator:
        assert operator.hget("bs:config", "id-mode") == "strict"


def test_strict_mints_an_id_for_a_star_and_it_carries_the_region(region: braidstream.Redis) -> None:
    first, second = region.xadd("x", F1), region.xadd("x", F1)
    assert [position(entry)[1] % 1024 for entry in (first, second)] == [1, 1]
    assert position(first) < position(second)


def test_strict_calculates_the_sequence_of_a_millisecond_from_the_region(region: braidstream.Redis) -> None:
    assert [region.xadd("x", F1, id=ms) for ms in ("110", "110", "110-*", "120")] == [
        "110-1",
        "110-1025",
        "110-2049",
        "120-1",
    ]


def test_another_region_calculates_another_sequence(engine: Engine) -> None:
    become(engine, region=2, name="eu-west")
    with client_of(engine, decode_responses=True) as client:
        assert [client.xadd("x", F1, id="115"), client.xadd("x", F1, id="115")] == ["115-2", "115-1026"]


def test_strict_refuses_a_full_id_and_says_what_to_do(region: braidstream.Redis) -> None:
    with pytest.raises(redis.ResponseError) as refused:
        region.xadd("x", F1, id="100-1")
    assert str(refused.value) == (
        "XADD refused by braidstream: in strict ID mode IDs are * or milliseconds alone, not 100-1; "
        "two regions could choose the same one. Use *, or allow full IDs in this region: "
        "braid tune id-mode semi-strict --url URL."
    )
    assert region.exists("x") == 0


def test_strict_refuses_a_full_id_in_pipelines_and_adds_the_rest(region: braidstream.Redis) -> None:
    for transaction in (False, True):
        added, refused, length = (
            region.pipeline(transaction=transaction)
            .xadd("x", F1, id="110")
            .xadd("x", F1, id="100-1")
            .xlen("x")
            .execute(raise_on_error=False)
        )
        assert (added.split("-")[0], length) == ("110", 1 + transaction)
        assert "in strict ID mode" in str(refused)


def test_a_millisecond_that_has_passed_is_refused_as_the_engine_does(region: braidstream.Redis) -> None:
    region.xadd("x", F1, id="110")
    with pytest.raises(redis.ResponseError, match="equal or smaller than the target stream top item"):
        region.xadd("x", F1, id="109")
    assert seen(region) == ["110-1"]


# Semi-strict: strict, and full IDs.


@pytest.fixture
def semi_strict(engine: Engine, region: braidstream.Redis) -> braidstream.Redis:
    become(engine, id_mode="semi-strict")
    return region


def test_semi_strict_takes_full_ids_as_they_are(semi_strict: braidstream.Redis) -> None:
    assert [semi_strict.xadd("x", F1, id=entry) for entry in ("100-1", "100-7", "105-0")] == [
        "100-1",
        "100-7",
        "105-0",
    ]
    assert seen(semi_strict) == ["100-1", "100-7", "105-0"]


def test_semi_strict_calculates_the_sequence_of_a_millisecond_as_strict_does(
    semi_strict: braidstream.Redis,
) -> None:
    added = [semi_strict.xadd("x", F1, id=ms) for ms in ("110", "110", "110-*")]
    assert added == seen(semi_strict) == ["110-1", "110-1025", "110-2049"]


# Liberal: any ascending ID, and a millisecond alone means sequence 0.


def test_liberal_sets_the_sequence_of_a_millisecond_to_zero(liberal: braidstream.Redis) -> None:
    assert [liberal.xadd("x", F1, id=ms) for ms in ("110", "120")] == ["110-0", "120-0"]
    with pytest.raises(redis.ResponseError, match="equal or smaller than the target stream top item"):
        liberal.xadd("x", F1, id="120")
    assert seen(liberal) == ["110-0", "120-0"]


def test_liberal_takes_any_ascending_id(liberal: braidstream.Redis) -> None:
    ascending = ["0-1", "0-2", "5-0", "5-18446744073709551615", "6-0", "7-*"]
    assert [liberal.xadd("x", F1, id=entry) for entry in ascending] == [*ascending[:-1], "7-0"]
    with pytest.raises(redis.ResponseError, match="must be greater than 0-0"):
        liberal.xadd("y", F1, id="0-0")
    for smaller in ("7-0", "6-9", "1-1"):
        with pytest.raises(redis.ResponseError, match="equal or smaller"):
            liberal.xadd("x", F1, id=smaller)


# Within a region IDs ascend, whichever strand they go to.


def test_a_star_after_a_chosen_id_ahead_of_the_clock_sorts_after_it(liberal: braidstream.Redis) -> None:
    added = [
        liberal.xadd("x", F1),
        liberal.xadd("x", F1, id="99999999999999-5000"),
        liberal.xadd("x", F1),
        liberal.xadd("x", F1, id="99999999999999-9000"),
        liberal.xadd("x", F1),
    ]
    assert added == sorted(added, key=position) == seen(liberal)
    assert added[2] == "99999999999999-5121"  # the first of region 1 after 5000


def test_a_chosen_id_below_a_minted_one_is_refused(liberal: braidstream.Redis) -> None:
    generated = liberal.xadd("x", F1)
    ms, seq = position(generated)
    for smaller in (generated, f"{ms}-{seq - 1}", f"{ms - 1}-{seq + 1}", "1-1"):
        with pytest.raises(redis.ResponseError, match="equal or smaller"):
            liberal.xadd("x", F1, id=smaller)
    assert liberal.xadd("x", F1, id=f"{ms}-{seq + 1}") == seen(liberal)[1]


def test_another_regions_ids_do_not_hold_ours_back(liberal: braidstream.Redis) -> None:
    sync(liberal, Strand(b"x", "s", 2), (99_999_999_999_999, 0))
    liberal.xadd("x", F1, id="100-1")
    assert seen(liberal) == ["100-1", "99999999999999-2"]


# Duplicates: only when two regions choose the same ID.


def test_two_regions_may_choose_the_same_id_and_both_entries_stay(liberal: braidstream.Redis) -> None:
    liberal.xadd("x", F1, id="100-1")
    sync(liberal, Strand(b"x", "c", 2), (100, 1))
    assert seen(liberal) == ["100-1", "100-1"]
    assert [entry for entry, _ in liberal.xrevrange("x")] == ["100-1", "100-1"]
    assert [entry for entry, _ in liberal.xread({"x": "0"})[0][1]] == ["100-1", "100-1"]
    assert liberal.xlen("x") == 2


def test_deleting_a_duplicate_id_touches_both_entries(liberal: braidstream.Redis) -> None:
    for name in ("x", "y"):
        liberal.xadd(name, F1, id="100-1")
        sync(liberal, Strand(name.encode(), "c", 2), (100, 1), (200, 0))
    assert liberal.xdel("x", "100-1") == 2
    assert liberal.xdelex("y", "100-1") == [1]
    assert (seen(liberal, "x"), seen(liberal, "y")) == (["200-0"], ["200-0"])


def test_renaming_keeps_one_of_the_entries_that_share_an_id(liberal: braidstream.Redis) -> None:
    liberal.xadd("x", {"from": "region 1"}, id="100-1")
    sync(liberal, Strand(b"x", "c", 2), (100, 1), (200, 0))
    liberal.rename("x", "y")
    assert seen(liberal, "y") == ["100-1", "200-0"]


def test_minted_ids_of_two_regions_never_collide(region: braidstream.Redis) -> None:
    region.xadd("x", F1, id="110")
    sync(region, Strand(b"x", "s", 2), (110, 0), (110, 1))
    assert seen(region) == ["110-1", "110-2", "110-1026"]
    assert (region.xdel("x", "110-2"), seen(region)) == (1, ["110-1", "110-1026"])


# Changed at run time, while a client is connected.


def test_a_connected_client_follows_each_change_of_the_mode(
    region: braidstream.Redis, engine: Engine
) -> None:
    assert region.xadd("x", F1, id="110") == "110-1"
    tune(engine, "semi-strict")
    # At once: before it refuses a full ID the client reads the current mode.
    assert region.xadd("x", F1, id="120-7") == "120-7"
    tune(engine, "liberal")
    eventually(
        lambda: region.xadd(f"probe {region.incr('probes')}", F1, id="130") == "130-0",
        within_s=30,
        why="a client should see within a second that milliseconds now mean sequence 0",
    )
    assert region.xadd("x", F1, id="130") == "130-0"
    tune(engine, "strict")
    eventually(
        lambda: "strict" in _refusal(region, f"{200 + int(region.incr('probes'))}-1"),
        within_s=30,
        why="a client should see within a second that full IDs are refused again",
    )
    assert region.xadd("x", F1, id="140") == "140-1"
    assert seen(region) == ["110-1", "120-7", "130-0", "140-1"]


def _refusal(client: braidstream.Redis, entry: str) -> str:
    try:
        client.xadd("probe", F1, id=entry)
    except redis.ResponseError as error:
        return str(error)
    return ""


def test_a_client_that_connects_later_starts_in_the_new_mode(engine: Engine) -> None:
    become(engine)
    tune(engine, "liberal")
    with client_of(engine, decode_responses=True) as client:
        assert client.xadd("x", F1, id="100-1") == "100-1"


@pytest.mark.parametrize("again", ["DEL x", "FLUSHDB", "RENAME y x"])
def test_a_stream_that_reached_the_last_id_starts_over_once_it_is_deleted(
    liberal: braidstream.Redis, again: str
) -> None:
    before = liberal.xadd("x", F1)
    liberal.xadd("x", F1, id="18446744073709551615-18446744073709551615")
    with pytest.raises(redis.ResponseError, match="exhausted the last possible ID"):
        liberal.xadd("x", F1)
    liberal.xadd("y", F1, id="1-1")
    liberal.execute_command(*again.split())
    after = liberal.xadd("x", F1)
    assert position(before) < position(after) < (10**15, 0)


def test_after_a_deletion_minted_ids_go_on_after_all_that_were_minted(liberal: braidstream.Redis) -> None:
    far = 10**14
    liberal.xadd("x", F1, id=f"{far}-5")
    generated = liberal.xadd("x", F1)
    liberal.xadd("x", F1, id=f"{far * 2}-5")
    liberal.delete("x")
    assert position(liberal.xadd("x", F1)) > position(generated) > (far, 5)
    assert position(liberal.xadd("x", F1)) < (far * 2, 0)


# Iterating with XREAD: one ID is not a position in a stream that two regions write.


def test_xread_by_one_id_skips_what_arrives_late(region: braidstream.Redis) -> None:
    for ms in ("110", "120", "130"):
        region.xadd("x", F1, id=ms)
    assert region.xread({"x": "0"}, count=2) == [["x", [("110-1", F1), ("120-1", F1)]]]
    sync(region, Strand(b"x", "s", 2), (115, 0))  # region 2 had added 115 at t1
    assert region.xread({"x": "120-1"}, count=2) == [["x", [("130-1", F1)]]]
    assert region.xread({"x": "0"}) == [
        ["x", [(entry, F1) for entry in ("110-1", "115-2", "120-1", "130-1")]]
    ]
    assert seen(region) == ["110-1", "115-2", "120-1", "130-1"]


def test_a_delete_affects_only_what_could_be_seen(region: braidstream.Redis) -> None:
    """AA-5, seen from region 1: DEL, then region 2's entry arrives."""
    region.xadd("messages", {"text": "hello"})
    region.delete("messages")
    assert region.exists("messages") == 0
    region.run_plan(
        apply(Strand(b"messages", "s", 2), [((1589929246795, 0), [b"text", b"goodbye"])]),
    )
    assert region.xrange("messages") == [("1589929246795-2", {"text": "goodbye"})]
