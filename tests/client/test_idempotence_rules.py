"""Requirements IP-1 to IP-13 (docs/design/requirements.md), on all engines."""

import time
from typing import Any

import pytest
import redis

import braidstream
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

ENTRY = {"field": "value"}


def bodies(client: braidstream.Redis, name: str = "mystream") -> list[dict[str, str]]:
    return [fields for _, fields in client.xrange(name)]


def facts(client: braidstream.Redis, name: str = "mystream") -> dict[str, Any]:
    """What XINFO STREAM says of idempotence."""
    info = client.xinfo_stream(name)
    return {key: value for key, value in info.items() if key.startswith(("idmp-", "pids-", "iids-"))}


def test_the_two_examples_of_idempotency_modes(region: braidstream.Redis) -> None:
    manual = "XADD mystream IDMP producer-1 iid-1 * field value"
    automatic = "XADD mystream IDMPAUTO producer-2 * field value"
    first = [region.execute_command(*command.split()) for command in (manual, automatic)]
    again = [region.execute_command(*command.split()) for command in (manual, automatic)]
    assert again == first
    assert bodies(region) == [ENTRY, ENTRY]


def test_a_message_sent_again_is_not_added_again_and_the_answer_is_its_id(region: braidstream.Redis) -> None:
    first = region.xadd("mystream", ENTRY, idmp=("producer1", b"msg1"))
    assert region.xadd("mystream", {"another": "body"}, idmp=("producer1", b"msg1")) == first
    assert region.xadd("mystream", ENTRY, idmp=("producer1", b"msg2")) != first
    assert bodies(region) == [ENTRY, ENTRY]


def test_the_answer_is_the_original_id_even_if_the_entry_was_deleted(region: braidstream.Redis) -> None:
    first = region.xadd("mystream", ENTRY, idmp=("producer1", b"msg1"))
    region.xdel("mystream", first)
    assert region.xadd("mystream", ENTRY, idmp=("producer1", b"msg1")) == first
    assert bodies(region) == []


def test_the_same_content_is_the_same_message_whatever_the_order_of_its_pairs(
    region: braidstream.Redis,
) -> None:
    first = region.xadd("mystream", {"a": "1", "b": "2"}, idmpauto="producer1")
    assert region.xadd("mystream", {"b": "2", "a": "1"}, idmpauto="producer1") == first
    for other in ({"a": "2", "b": "1"}, {"a": "1"}, {"a": "1", "b": "2", "c": "3"}, {"a1b": "2"}):
        assert region.xadd("mystream", other, idmpauto="producer1") != first
    assert region.xlen("mystream") == 5


def test_pairs_given_twice_are_another_message(region: braidstream.Redis) -> None:
    once = region.execute_command("XADD", "s", "IDMPAUTO", "p", "*", "a", "1")
    assert region.execute_command("XADD", "s", "IDMPAUTO", "p", "*", "a", "1", "a", "1") != once


def test_producers_are_isolated(region: braidstream.Redis) -> None:
    one = region.xadd("mystream", ENTRY, idmp=("producer-1", b"iid-1"))
    other = region.xadd("mystream", ENTRY, idmp=("producer-2", b"iid-1"))
    assert one != other
    assert region.xadd("mystream", ENTRY, idmp=("producer-2", b"iid-1")) == other
    assert facts(region)["pids-tracked"] == 2


def test_streams_are_isolated(region: braidstream.Redis) -> None:
    region.xadd("one", ENTRY, idmp=("p", b"1"))
    region.xadd("other", ENTRY, idmp=("p", b"1"))
    assert (region.xlen("one"), region.xlen("other")) == (1, 1)


def test_the_defaults_are_a_hundred_seconds_and_a_hundred_messages(region: braidstream.Redis) -> None:
    region.xadd("mystream", ENTRY, idmp=("p", b"1"))
    assert facts(region) == {
        "idmp-duration": 100,
        "idmp-maxsize": 100,
        "pids-tracked": 1,
        "iids-tracked": 1,
        "iids-added": 1,
        "iids-duplicates": 0,
    }


def test_the_facts_are_shown_where_idempotency_is_used_or_the_engine_always_shows_them(
    region: braidstream.Redis, engine: Engine
) -> None:
    region.xadd("mystream", ENTRY)
    assert (facts(region) != {}) == ("XCFGSET" in engine.vocabulary)
    assert set(facts(region).values()) <= {0, 100}
    region.xcfgset("mystream", idmp_duration=300, idmp_maxsize=1000)
    assert (facts(region)["idmp-duration"], facts(region)["idmp-maxsize"]) == (300, 1000)


@pytest.mark.parametrize("size", [1, 2, 7, 16, 100])
def test_the_last_maxsize_messages_of_a_producer_are_known_and_no_more(
    region: braidstream.Redis, size: int
) -> None:
    region.xadd("mystream", ENTRY)
    region.xcfgset("mystream", idmp_maxsize=size)
    sent = size + 37
    first = {n: region.xadd("mystream", ENTRY, idmp=("p", b"%d" % n)) for n in range(sent)}
    assert facts(region)["iids-tracked"] == size
    for n in range(sent - size, sent):
        assert region.xadd("mystream", ENTRY, idmp=("p", b"%d" % n)) == first[n], n
    assert region.xadd("mystream", ENTRY, idmp=("p", b"%d" % (sent - size - 1))) != first[sent - size - 1]
    assert facts(region)["iids-added"] == sent + 1
    assert facts(region)["iids-duplicates"] == size


def test_a_full_producer_takes_nothing_from_another(region: braidstream.Redis) -> None:
    region.xadd("mystream", ENTRY)
    region.xcfgset("mystream", idmp_maxsize=5)
    quiet = region.xadd("mystream", ENTRY, idmp=("quiet", b"1"))
    for n in range(50):
        region.xadd("mystream", ENTRY, idmp=("busy", b"%d" % n))
    assert region.xadd("mystream", ENTRY, idmp=("quiet", b"1")) == quiet


def test_a_message_is_known_for_its_duration_and_not_longer(region: braidstream.Redis) -> None:
    region.xadd("mystream", ENTRY)
    region.xcfgset("mystream", idmp_duration=1)
    first = region.xadd("mystream", ENTRY, idmp=("p", b"1"))
    began = time.monotonic()
    again = region.xadd("mystream", ENTRY, idmp=("p", b"1"))
    assert again == first or time.monotonic() - began > 0.9
    eventually(
        lambda: region.xadd("mystream", ENTRY, idmp=("p", b"1")) != first,
        within_s=30,
        why="a message must be forgotten after its second",
    )
    assert time.monotonic() - began > 0.9, "and not before"
    assert facts(region)["iids-tracked"] == 1


def test_the_clock_of_expiry_starts_at_the_message_and_not_at_its_last_duplicate(
    region: braidstream.Redis,
) -> None:
    region.xadd("mystream", ENTRY)
    region.xcfgset("mystream", idmp_duration=1)
    first = region.xadd("mystream", ENTRY, idmp=("p", b"1"))
    began = time.monotonic()
    while region.xadd("mystream", ENTRY, idmp=("p", b"1")) == first:
        assert time.monotonic() - began < 30, "duplicates must not keep it alive"


def test_what_is_expired_is_no_longer_tracked_though_counts_are_for_life(region: braidstream.Redis) -> None:
    region.xadd("mystream", ENTRY)
    region.xcfgset("mystream", idmp_duration=1)
    for n in range(20):
        region.xadd("mystream", ENTRY, idmp=("p", b"%d" % n))
    region.xadd("mystream", ENTRY, idmp=("p", b"19"))
    eventually(lambda: facts(region)["pids-tracked"] == 0, within_s=30, why="all is over after a second")
    assert facts(region)["iids-tracked"] == 0
    assert facts(region)["iids-added"] == 20
    assert facts(region)["iids-duplicates"] == 1


def test_what_a_producer_left_behind_takes_no_memory_for_ever(
    region: braidstream.Redis, engine: Engine
) -> None:
    region.xadd("mystream", ENTRY)
    region.xcfgset("mystream", idmp_duration=1)
    for n in range(30):
        region.xadd("mystream", ENTRY, idmp=(f"run-{n}", b"1"))
    with engine.client() as operator:
        eventually(lambda: not operator.keys("bs:[iq].*"), within_s=30, why="maps and queues must expire")
        for n in range(10):  # each new producer strikes off a few that are over
            region.xadd("mystream", ENTRY, idmp=(f"next-{n}", b"1"))
        assert operator.hlen("bs:idmp:{mystream}") < 20


@pytest.mark.parametrize(
    "change", [{"idmp_duration": 200}, {"idmp_maxsize": 50}, {"idmp_duration": 7, "idmp_maxsize": 7}]
)
def test_a_changed_setting_clears_what_is_known(region: braidstream.Redis, change: dict[str, int]) -> None:
    first = region.xadd("mystream", ENTRY, idmp=("p", b"1"))
    assert region.xcfgset("mystream", **change) in ("OK", True)
    assert (facts(region)["pids-tracked"], facts(region)["iids-tracked"]) == (0, 0)
    assert region.xadd("mystream", ENTRY, idmp=("p", b"1")) != first
    assert facts(region)["iids-added"] == 2


def test_setting_what_is_set_clears_nothing(region: braidstream.Redis) -> None:
    first = region.xadd("mystream", ENTRY, idmp=("p", b"1"))
    region.xcfgset("mystream", idmp_duration=100, idmp_maxsize=100)
    assert region.xadd("mystream", ENTRY, idmp=("p", b"1")) == first


def test_a_client_that_knew_the_old_settings_uses_the_new_ones(
    region: braidstream.Redis, engine: Engine
) -> None:
    with client_of(engine, decode_responses=True) as other:
        for client in (region, other):
            client.xadd("mystream", ENTRY, idmp=("p", b"0"))
            client.xadd("mystream", ENTRY, idmp=("p", b"0"))
        other.xcfgset("mystream", idmp_maxsize=1)
        first = region.xadd("mystream", ENTRY, idmp=("p", b"1"))
        assert other.xadd("mystream", ENTRY, idmp=("p", b"1")) == first
        region.xadd("mystream", ENTRY, idmp=("p", b"2"))
        assert other.xadd("mystream", ENTRY, idmp=("p", b"1")) != first


@pytest.mark.parametrize("how", ["append-only file", "rewritten append-only file", "snapshot"])
def test_everything_persists_over_a_restart(flavour: Flavour, how: str) -> None:
    append_only = ["--appendonly", "yes", "--appendfsync", "always"]
    with Engine(flavour, args=[] if how == "snapshot" else append_only) as engine:
        become(engine)
        with client_of(engine, decode_responses=True) as client, engine.client() as operator:
            client.xadd("mystream", ENTRY)
            client.xcfgset("mystream", idmp_duration=600, idmp_maxsize=3)
            first = {n: client.xadd("mystream", ENTRY, idmp=("p", b"%d" % n)) for n in range(5)}
            before = facts(client)
            if how == "snapshot":
                operator.save()
            elif how.startswith("rewritten"):
                operator.bgrewriteaof()
                eventually(
                    lambda: not operator.info("persistence")["aof_rewrite_in_progress"],
                    within_s=10,
                    why="the append-only file should be rewritten",
                )
        engine.kill()
        engine.restart()
        with client_of(engine, decode_responses=True) as client:
            assert facts(client) == before
            for n in (2, 3, 4):
                assert client.xadd("mystream", ENTRY, idmp=("p", b"%d" % n)) == first[n]
            assert client.xadd("mystream", ENTRY, idmp=("p", b"1")) != first[1]


def test_wrongtype_is_told(region: braidstream.Redis) -> None:
    region.set("plain", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.xadd("plain", ENTRY, idmp=("p", b"1"))
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.xcfgset("plain", idmp_duration=5)


def test_nomkstream_of_a_stream_that_does_not_exist_adds_nothing(region: braidstream.Redis) -> None:
    """IP-12: the server answers nil, as for plain XADD, and so do we."""
    assert region.xadd("none", ENTRY, nomkstream=True, idmp=("p", b"1")) is None
    assert region.exists("none") == 0
    first = region.xadd("none", ENTRY, idmp=("p", b"1"))
    assert region.xadd("none", ENTRY, nomkstream=True, idmp=("p", b"1")) == first
    with pytest.raises(redis.ResponseError, match="no such key"):
        region.xcfgset("gone", idmp_duration=5)


WRONG = {
    "XADD s IDMP p * f v": "wrong number of arguments|Invalid stream ID",
    "XADD s IDMPAUTO p 5-1 f v": "syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
    "XADD s IDMP p 1 5 f v": "syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
    "XADD s IDMP p 1 IDMPAUTO p * f v": "syntax error, IDMP/IDMPAUTO specified multiple times",
    "XADD s IDMP '' 1 * f v": "syntax error, IDMP requires a non-empty producer ID",
    "XADD s IDMP p '' * f v": "syntax error, IDMP requires a non-empty idempotent ID",
    "XADD s IDMPAUTO '' * f v": "syntax error, IDMPAUTO requires a non-empty producer ID",
    "XCFGSET s": "At least one parameter must be specified",
    "XCFGSET s IDMP-DURATION": "syntax error",
    "XCFGSET s NONSENSE 1": "syntax error",
    "XCFGSET s IDMP-DURATION 0": "IDMP-DURATION must be between 1 and 86400 seconds",
    "XCFGSET s IDMP-DURATION 86401": "IDMP-DURATION must be between 1 and 86400 seconds",
    "XCFGSET s IDMP-MAXSIZE 0": "IDMP-MAXSIZE must be between 1 and 10000 entries",
    "XCFGSET s IDMP-MAXSIZE 10001": "IDMP-MAXSIZE must be between 1 and 10000 entries",
    "XCFGSET s IDMP-MAXSIZE x": "value is not an integer",
    "XCFGSET s IDMP-MAXSIZE 1 IDMP-MAXSIZE 2": "IDMP-MAXSIZE specified multiple times",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_refused_in_the_servers_words_and_changes_nothing(
    region: braidstream.Redis, line: str
) -> None:
    region.xadd("s", ENTRY, idmp=("p", b"0"))
    before = facts(region, "s")
    with pytest.raises(redis.ResponseError, match=WRONG[line]):
        region.execute_command(*[word.strip("'") for word in line.split()])
    assert facts(region, "s") == before
    assert region.xlen("s") == 1


@pytest.mark.parametrize("duration", [1, 300, 301, 86400])
@pytest.mark.parametrize("size", [1, 10000])
def test_the_servers_whole_ranges_are_accepted_where_redis_py_would_refuse(
    region: braidstream.Redis, duration: int, size: int
) -> None:
    region.xadd("s", ENTRY)
    region.xcfgset("s", idmp_duration=duration, idmp_maxsize=size)
    assert (facts(region, "s")["idmp-duration"], facts(region, "s")["idmp-maxsize"]) == (duration, size)
