"""Requirements ST-1 to ST-16 (docs/design/requirements.md), on one strand and on three."""

from collections.abc import Iterator
from itertools import count

import pytest
import redis

import braidstream
from braidstream.model.strand import Strand
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

WRITERS = ["Virginia Woolf", "Jane Austen", "Toni Morrison", "Agatha Christie", "Ngozi Adichie"]


@pytest.fixture(params=["one strand", "three strands"])
def mystream(engine: Engine, request: pytest.FixtureRequest) -> Iterator[braidstream.Redis]:
    """A client of a region where a stream fills up from one strand, or from the strands of two regions."""
    become(engine, id_mode="liberal")
    with client_of(engine, decode_responses=True) as client:
        client.spread = request.param == "three strands"
        yield client


def fill(client: braidstream.Redis, name: str, entries: int) -> list[str]:
    """Entries 1 to n: all by `*`, or every third one generated, chosen and written by region 2."""
    if not client.spread:
        pipe = client.pipeline(transaction=False)
        for n in range(1, entries + 1):
            pipe.xadd(name, {"n": str(n)})
        return pipe.execute()
    far, added, last = Strand(name.encode(), "s", 2), list[str](), (0, 0)
    for n in range(1, entries + 1):
        if n % 3 == 0:
            client.run_plan(apply(far, [((n, 0), [b"n", b"%d" % n])], after=last))
            last = (n, 0)
            added.append(f"{n}-2")
        else:
            added.append(client.xadd(name, {"n": str(n)}, id=str(n) if n % 3 == 1 else f"{n}-7"))
    return added


def numbers(entries: list[tuple[str, dict[str, str]]]) -> list[int]:
    return [int(fields["n"]) for _, fields in entries]


# Entries and IDs.


def test_fields_come_back_in_the_order_they_were_added(region: braidstream.Redis) -> None:
    fields = {"z": "1", "a": "2", "m": "3"}
    region.xadd("mystream", fields)
    region.execute_command("XADD", "mystream", "*", "same", "1", "same", "2")
    [(_, found), _] = region.xrange("mystream")
    assert list(found.items()) == list(fields.items())
    raw = region.execute_command("XREVRANGE", "mystream", "+", "-", "COUNT", "1")
    assert dict(raw[0][1]) == {"same": "2"}


def test_an_id_given_as_milliseconds_alone_gets_sequence_zero(liberal: braidstream.Redis) -> None:
    assert liberal.xadd("mystream", {"n": "1"}, id="1526985685298") == "1526985685298-0"


def test_the_minimum_valid_id_is_0_1(liberal: braidstream.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="must be greater than 0-0"):
        liberal.xadd("mystream", {"n": "1"}, id="0-0")
    assert liberal.xadd("mystream", {"n": "1"}, id="0-1") == "0-1"


def test_an_id_must_be_greater_than_any_other_in_the_stream(liberal: braidstream.Redis) -> None:
    liberal.xadd("mystream", {"n": "1"}, id="444444444-2")
    for smaller in ("444444444-2", "444444444-1", "444444443-9"):
        with pytest.raises(redis.ResponseError, match="equal or smaller than the target stream top item"):
            liberal.xadd("mystream", {"n": "2"}, id=smaller)
    assert liberal.xadd("mystream", {"n": "2"}, id="555555555-1") == "555555555-1"


# Ranges.


def test_minus_and_plus_are_the_ends_of_the_stream(mystream: braidstream.Redis) -> None:
    added = fill(mystream, "somestream", 10)
    assert [entry for entry, _ in mystream.xrange("somestream", "-", "+")] == added
    assert [entry for entry, _ in mystream.xrevrange("somestream", "+", "-")] == added[::-1]
    assert mystream.xlen("somestream") == 10


def test_a_range_includes_both_its_ends_unless_a_parenthesis_excludes_them(
    mystream: braidstream.Redis,
) -> None:
    added = fill(mystream, "mystream", 9)
    second, eighth = added[1], added[7]
    assert numbers(mystream.xrange("mystream", second, eighth)) == [2, 3, 4, 5, 6, 7, 8]
    assert numbers(mystream.xrange("mystream", f"({second}", f"({eighth}")) == [3, 4, 5, 6, 7]
    assert numbers(mystream.xrevrange("mystream", f"({eighth}", second)) == [7, 6, 5, 4, 3, 2]
    assert numbers(mystream.xrange("mystream", second, eighth, count=3)) == [2, 3, 4]
    assert mystream.xrange("mystream", eighth, second) == []


def test_a_range_by_milliseconds_alone_covers_all_their_sequences(liberal: braidstream.Redis) -> None:
    for entry in ("100-1", "200-0", "200-5000", "200-18446744073709551615", "300-0"):
        liberal.xadd("mystream", {"n": "1"}, id=entry)
    assert [entry for entry, _ in liberal.xrange("mystream", "200", "200")] == [
        "200-0",
        "200-5000",
        "200-18446744073709551615",
    ]


def test_deleting_entries_returns_how_many_were_there(mystream: braidstream.Redis) -> None:
    added = fill(mystream, "mystream", 6)
    assert mystream.xdel("mystream", added[0], added[2], added[4], "99-99") == 3
    assert (numbers(mystream.xrange("mystream")), mystream.xlen("mystream")) == ([2, 4, 6], 3)
    assert mystream.xdel("mystream", added[0]) == 0


# Iterating.


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 100])
def test_iterating_by_exclusive_ranges_visits_every_entry_once(
    mystream: braidstream.Redis, page_size: int
) -> None:
    fill(mystream, "writers", 20)
    visited, start = list[int](), "-"
    while page := mystream.xrange("writers", start, "+", count=page_size):
        assert len(page) <= page_size
        visited += numbers(page)
        start = f"({page[-1][0]}"
    assert visited == list(range(1, 21))


def test_iterating_backwards_visits_every_entry_once(mystream: braidstream.Redis) -> None:
    fill(mystream, "writers", 20)
    visited, end = list[int](), "+"
    while page := mystream.xrevrange("writers", end, "-", count=3):
        visited += numbers(page)
        end = f"({page[-1][0]}"
    assert visited == list(range(20, 0, -1))


def test_iterating_by_xread_from_the_last_id_visits_every_entry_once(mystream: braidstream.Redis) -> None:
    fill(mystream, "writers", 20)
    visited, after = list[int](), "0"
    while found := mystream.xread({"writers": after}, count=3):
        [[name, page]] = found
        assert name == "writers"
        visited += numbers(page)
        after = page[-1][0]
    assert visited == list(range(1, 21))


def test_reading_does_not_remove_entries(mystream: braidstream.Redis) -> None:
    fill(mystream, "mystream", 5)
    for _ in range(2):
        assert numbers(mystream.xread({"mystream": "0-0"})[0][1]) == [1, 2, 3, 4, 5]
        assert numbers(mystream.xrange("mystream")) == [1, 2, 3, 4, 5]


def test_xread_counts_each_of_several_streams(mystream: braidstream.Redis) -> None:
    """XREAD COUNT 2 STREAMS mystream writers 0 0"""
    fill(mystream, "mystream", 5)
    for name in WRITERS:
        mystream.xadd("writers", {"name": name})
    [[first, numbered], [second, named]] = mystream.xread({"mystream": 0, "writers": 0}, count=2)
    assert (first, numbers(numbered)) == ("mystream", [1, 2])
    assert (second, [fields["name"] for _, fields in named]) == ("writers", WRITERS[:2])


def test_xread_returns_what_is_there_up_to_the_count(mystream: braidstream.Redis) -> None:
    """XREAD COUNT 50 STREAMS mystream 0"""
    fill(mystream, "mystream", 5)
    assert len(mystream.xread({"mystream": 0}, count=50)[0][1]) == 5
    assert mystream.xread({"mystream": "+"}, count=50)[0][1] == mystream.xrevrange("mystream", count=1)
    assert mystream.xread({"mystream": "$"}) == []


# Capped streams.


def test_xtrim_maxlen_keeps_exactly_the_latest(mystream: braidstream.Redis) -> None:
    fill(mystream, "mystream", 60)
    assert mystream.xtrim("mystream", maxlen=10, approximate=False) == 50
    assert numbers(mystream.xrange("mystream")) == list(range(51, 61))
    assert mystream.xtrim("mystream", maxlen=10, approximate=False) == 0


def test_xtrim_with_a_tilde_admits_bursts_and_never_keeps_less(mystream: braidstream.Redis) -> None:
    fill(mystream, "mystream", 450)
    removed = mystream.xtrim("mystream", maxlen=100, approximate=True)
    kept = numbers(mystream.xrange("mystream"))
    assert len(kept) == 450 - removed >= 100
    assert set(range(351, 451)) <= set(kept)


def test_xtrim_minid_evicts_what_is_lower(liberal: braidstream.Redis) -> None:
    """XTRIM mystream MINID 649085820"""
    for entry in ("649085819-0", "649085819-9", "649085820-0", "649085820-1", "649085821-0"):
        liberal.xadd("mystream", {"n": "1"}, id=entry)
    assert liberal.xtrim("mystream", minid="649085820", approximate=False) == 2
    assert [entry for entry, _ in liberal.xrange("mystream")] == ["649085820-0", "649085820-1", "649085821-0"]


def test_xtrim_minid_evicts_from_every_strand(mystream: braidstream.Redis) -> None:
    added = fill(mystream, "mystream", 12)
    assert mystream.xtrim("mystream", minid=added[6], approximate=False) == 6
    assert numbers(mystream.xrange("mystream")) == list(range(7, 13))


def test_xadd_keeps_the_size_in_check_at_once(mystream: braidstream.Redis) -> None:
    fill(mystream, "mystream", 12)
    for n in count(13):
        mystream.xadd("mystream", {"n": str(n)}, maxlen=5, approximate=False)
        assert numbers(mystream.xrange("mystream")) == list(range(n - 4, n + 1))
        if n == 20:
            break


def test_xadd_with_minid_evicts_what_is_lower(mystream: braidstream.Redis) -> None:
    added = fill(mystream, "mystream", 12)
    mystream.xadd("mystream", {"n": "13"}, minid=added[9], approximate=False)
    assert numbers(mystream.xrange("mystream")) == [10, 11, 12, 13]


def test_a_purged_stream_exists_and_goes_on(mystream: braidstream.Redis) -> None:
    added = fill(mystream, "mystream", 6)
    assert mystream.xtrim("mystream", maxlen=0, approximate=False) == 6
    assert (mystream.exists("mystream"), mystream.xlen("mystream")) == (1, 0)
    assert mystream.xinfo_stream("mystream")["last-generated-id"] == added[-1]
    entry = mystream.xadd("mystream", {"n": "7"})
    assert numbers(mystream.xread({"mystream": added[-1]})[0][1]) == [7]
    assert mystream.xrange("mystream") == [(entry, {"n": "7"})]
