"""Idempotent production beside everything else: pipelines, MULTI, caps, deletion, odd names, odd clocks."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import braidstream
from braidstream.commands.arguments import FUNCTION_ARGUMENTS
from braidstream.model.strand import Strand
from braidstream.operations.membership import meet
from tests.support.clients import Opener
from tests.support.gateways import Line, Served, value_of
from tests.support.matrix import on_every_engine
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

pytestmark = pytest.mark.every_engine

flavour = on_every_engine

ENTRY = {"f": "v"}


def tracked(client: Any, name: str = "s") -> tuple[int, int]:
    info = client.xinfo_stream(name)
    return info["pids-tracked"], info["iids-tracked"]


def meet_another(engine: Engine) -> None:
    """With a peer it is always us who know the messages. Alone, an engine that can has its own rules."""
    with client_of(engine) as operator:
        operator.run_plan(meet((1, 2)))


def test_both_clients_know_messages(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url)
    first = client.xadd("s", ENTRY, idmp=("p", b"1"))
    assert client.xadd("s", ENTRY, idmp=("p", b"1")) == first
    auto = client.xadd("s", ENTRY, idmpauto="p")
    assert client.xadd("s", ENTRY, idmpauto="p") == auto
    client.xcfgset("s", idmp_duration=900)
    assert client.xinfo_stream("s")["idmp-duration"] == 900
    assert client.xlen("s") == 2


@pytest.mark.parametrize("multi", [False, True])
def test_messages_in_a_pipeline_share_calls_and_keep_their_order(
    opened: Opener, engine: Engine, multi: bool
) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    pipe = client.pipeline(transaction=multi)
    for n in range(120):
        pipe.xadd("s", {"n": n}, idmp=("p", b"%d" % n))
    pipe.xadd("s", {"n": "again"}, idmp=("p", b"119"))
    pipe.xadd("t", {"n": "other"}, idmp=("p", b"119"))
    pipe.xadd("s", {"n": "auto"}, idmpauto="q")
    pipe.xadd("s", {"n": "plain"})
    with engine.client() as operator:
        operator.config_resetstat()
        replies = pipe.execute()
        calls = operator.info("commandstats")["cmdstat_fcall"]["calls"]
    assert calls <= 8  # three for the run of 121, one each for two more, births
    assert replies[120] == replies[119]
    assert [fields["n"] for _, fields in client.xrange("s")] == [*map(str, range(120)), "auto", "plain"]
    assert [entry for entry, _ in client.xrange("s")] == [*replies[:120], *replies[122:]]
    assert client.xlen("t") == 1


@pytest.mark.parametrize("multi", [False, True])
def test_a_message_and_a_plain_command_share_a_pipeline(region: braidstream.Redis, multi: bool) -> None:
    pipe = region.pipeline(transaction=multi)
    pipe.xadd("s", {"n": 1}, idmp=("p", b"1"))
    pipe.hgetall("hash")
    pipe.xadd("s", {"n": 2}, idmp=("p", b"2"))
    first, plain, second = pipe.execute()
    assert plain == {}
    assert [entry for entry, _ in region.xrange("s")] == [first, second]


@pytest.mark.parametrize("multi", [False, True])
def test_a_pipeline_may_delete_configure_and_ask_in_between(region: braidstream.Redis, multi: bool) -> None:
    pipe = region.pipeline(transaction=multi)
    pipe.xadd("s", ENTRY, idmp=("p", b"1"))
    pipe.xcfgset("s", idmp_maxsize=7)
    pipe.xadd("s", ENTRY, idmp=("p", b"1"))
    pipe.xinfo_stream("s")
    pipe.delete("s")
    pipe.xadd("s", ENTRY, idmp=("p", b"1"))
    pipe.xadd("s", ENTRY, idmp=("p", b"1"))
    pipe.xinfo_stream("s")
    one, _, two, info, gone, three, four, after = pipe.execute()
    assert one != two
    assert three == four != two
    assert (info["length"], info["idmp-maxsize"], info["iids-added"], gone) == (2, 7, 2, 1)
    assert (after["length"], after["idmp-maxsize"], after["iids-added"]) == (1, 100, 1)


def test_a_message_that_is_wrong_does_not_spoil_its_neighbours(region: braidstream.Redis) -> None:
    pipe = region.pipeline(transaction=False)
    pipe.xadd("s", ENTRY, idmp=("p", b"1"))
    pipe.xadd("s", ENTRY, idmp=("p", b""))
    pipe.xadd("s", ENTRY, idmp=("p", b"2"))
    one, wrong, two = pipe.execute(raise_on_error=False)
    assert isinstance(wrong, redis.ResponseError)
    assert [entry for entry, _ in region.xrange("s")] == [one, two]


def test_more_messages_at_once_than_are_kept(region: braidstream.Redis) -> None:
    region.xadd("s", ENTRY)
    region.xcfgset("s", idmp_maxsize=3)
    pipe = region.pipeline(transaction=False)
    for n in range(10):
        pipe.xadd("s", {"n": n}, idmp=("p", b"%d" % n))
    first = pipe.execute()
    assert [region.xadd("s", ENTRY, idmp=("p", b"%d" % n)) for n in (7, 8, 9)] == first[7:]
    assert region.xlen("s") == 11


def test_a_cap_counts_the_whole_stream_and_a_known_message_trims_nothing(
    region: braidstream.Redis,
) -> None:
    region.run_plan(apply(Strand(b"s", "s", 2), [((n, 0), [b"n", b"far"]) for n in range(1, 6)]))
    region.xadd("s", {"n": "1"}, maxlen=3, approximate=False, idmp=("p", b"1"))
    assert region.xlen("s") == 3
    region.xadd("s", {"n": "2"})
    region.xadd("s", {"n": "3"}, idmp=("p", b"3"))
    region.xadd("s", {"n": "1"}, maxlen=1, approximate=False, idmp=("q", b"1"))
    assert region.xlen("s") == 1


def test_deletion_forgets_messages_settings_and_counts(region: braidstream.Redis) -> None:
    region.xadd("s", ENTRY, idmp=("p", b"1"))
    region.xcfgset("s", idmp_duration=5)
    region.xadd("s", ENTRY, idmp=("p", b"1"))
    region.delete("s")
    first = region.xadd("s", ENTRY, idmp=("p", b"1"))
    info = region.xinfo_stream("s")
    assert (info["length"], info["idmp-duration"], info["iids-added"]) == (1, 100, 1)
    assert region.xadd("s", ENTRY, idmp=("p", b"1")) == first


def test_another_client_notices_the_deletion(region: braidstream.Redis, engine: Engine) -> None:
    with client_of(engine, decode_responses=True) as other:
        for client in (region, other, region):
            client.xadd("s", ENTRY, idmp=("p", b"1"))
        other.delete("s")
        region.xadd("s", ENTRY, idmp=("p", b"1"))
        assert other.xadd("s", ENTRY, idmp=("p", b"1")) == region.xrange("s")[0][0]
        assert region.xlen("s") == 1


def test_a_stream_that_is_renamed_or_copied_starts_without_known_messages(region: braidstream.Redis) -> None:
    region.xadd("s", ENTRY, idmp=("p", b"1"))
    region.copy("s", "t")
    region.xadd("t", ENTRY, idmp=("p", b"1"))
    region.rename("s", "u")
    region.xadd("u", ENTRY, idmp=("p", b"1"))
    region.xadd("s", ENTRY, idmp=("p", b"1"))
    assert [region.xlen(name) for name in "stu"] == [1, 2, 2]


def test_our_keys_stay_hidden_and_a_flush_takes_them(region: braidstream.Redis, engine: Engine) -> None:
    region.xadd("s", ENTRY, idmp=("p", b"1"))
    assert region.keys("*") == ["s"]
    assert list(region.scan_iter()) == ["s"]
    region.flushdb()
    with engine.client() as operator:
        assert not operator.keys("bs:[iq].*")
        assert not operator.keys("bs:idmp:*")
    region.xadd("s", ENTRY, idmp=("p", b"1"))
    assert tracked(region) == (1, 1)


def test_an_id_ahead_of_the_clock_does_not_keep_messages_for_ever(
    liberal: braidstream.Redis, engine: Engine
) -> None:
    """Expiry goes by when a message came, not by its ID: here IDs are of the year 2286."""
    meet_another(engine)
    liberal.xadd("s", ENTRY, id="9999999999999-0")
    liberal.xcfgset("s", idmp_duration=1)
    first = liberal.xadd("s", ENTRY, idmp=("p", b"1"))
    assert first.startswith("9999999999999-")
    began = time.monotonic()
    seen = first
    while seen == first:
        assert time.monotonic() - began < 30, "it must be forgotten in time"
        seen = liberal.xadd("s", ENTRY, idmp=("p", b"1"))
    assert time.monotonic() - began > 0.5, "and not at once"


def test_a_stream_moved_ahead_between_two_messages_keeps_none_for_ever(
    liberal: braidstream.Redis, engine: Engine
) -> None:
    meet_another(engine)
    liberal.xadd("s", ENTRY)
    liberal.xcfgset("s", idmp_duration=1)
    liberal.xadd("s", ENTRY, idmp=("p", b"0"))
    liberal.xadd("s", ENTRY, id="9999999999999-18446744073709551615")
    first = liberal.xadd("s", ENTRY, idmp=("p", b"1"))
    assert first.startswith("10000000000000-")
    began = time.monotonic()
    while liberal.xadd("s", ENTRY, idmp=("p", b"1")) == first:
        assert time.monotonic() - began < 30, "it must be forgotten in time"


def test_any_bytes_name_a_producer_and_a_message(region: braidstream.Redis, engine: Engine) -> None:
    odd = [b"\0", b" ", b"{", b"}", b"a}:b", b"\xff\r\n", b"=x", b"since", b"x" * 300]
    with client_of(engine) as client:
        for name in (b"s", b"s}:1:{t", b"a{b}c", b"", b"}"):
            for producer in odd:
                first = [client.xadd(name, ENTRY, idmp=(producer, iid)) for iid in odd]  # type: ignore[arg-type]
                again = [client.xadd(name, ENTRY, idmp=(producer, iid)) for iid in odd]  # type: ignore[arg-type]
                assert again == first
            info = client.xinfo_stream(name)
            assert (info["length"], info["pids-tracked"], info["iids-tracked"]) == (81, 9, 81)


def test_an_entry_too_wide_for_a_function_is_refused_with_a_reason(region: braidstream.Redis) -> None:
    wide = {f"f{n}": "v" for n in range(FUNCTION_ARGUMENTS // 2 + 1)}
    with pytest.raises(redis.ResponseError, match="at most 3500 fields"):
        region.xadd("s", wide, idmp=("p", b"1"))
    fits = dict(list(wide.items())[:-1])
    first = region.xadd("s", fits, idmp=("p", b"1"))
    assert region.xadd("s", fits, idmp=("p", b"1")) == first


def test_one_message_sent_by_many_clients_at_once_is_added_once(
    engine: Engine, background: ThreadPoolExecutor
) -> None:
    become(engine)
    with client_of(engine) as client:
        client.xadd("s", ENTRY)
        client.xcfgset("s", idmp_maxsize=1000)  # one of them may be far behind
        client.xtrim("s", maxlen=0)
    start = threading.Barrier(4)

    def send(_: int) -> list[bytes]:
        with client_of(engine) as client:
            start.wait()
            return [client.xadd("s", ENTRY, idmp=("p", b"%d" % n)) for n in range(200)]  # type: ignore[misc]

    answers = list(background.map(send, range(4)))
    with client_of(engine) as client:
        entries = [entry for entry, _ in client.xrange("s")]
    assert entries == sorted(set(answers[0]), key=lambda entry: entries.index(entry))
    assert all(each == answers[0] for each in answers)


def test_any_client_produces_through_the_gateway(engine: Engine) -> None:
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as line, Line(gateway.port) as other:
        first = line.say("XADD s IDMP p 1 * f v")
        assert other.say("XADD s IDMP p 1 * f v") == first
        auto = line.say("XADD s IDMPAUTO p * a 1 b 2")
        assert other.say("XADD s IDMPAUTO p * b 2 a 1") == auto
        again, new, same = line.pipeline(
            "XADD s IDMP p 1 * f v", "XADD s IDMP p 2 * f v", "XADD s IDMP p 2 * f v"
        )
        assert again == first
        assert new == same != first
        assert line.say("XCFGSET s IDMP-DURATION 86400") == b"+OK\r\n"
        assert line.say("XCFGSET s IDMP-DURATION 0").startswith(b"-ERR IDMP-DURATION must be")
        assert b"idmp-duration" in line.say("XINFO STREAM s")
        line.say("MULTI"), line.say("XADD s IDMP p 1 * f v"), line.say("XADD s IDMP p 1 * f v")
        one, two = value_of(line.say("EXEC"))
        assert one == two
        assert line.say("XLEN s") == b":4\r\n"


# Beyond the rights of a writer, see docs/rights.md.
PRODUCER = "fcall_ro hmget hdel hincrby hrandfield pexpireat rpush lpop lindex lrange llen lrem"
WRITER = (
    "fcall xadd xlen xrange xinfo|stream hgetall exists type multi exec time hget hset hsetnx unlink xsetid"
)


def test_an_acl_user_with_these_rights_can_produce(region: braidstream.Redis, engine: Engine) -> None:
    rights = [
        f"+{right}" for right in [*WRITER.split(), "xgroup|create", "xgroup|destroy", *PRODUCER.split()]
    ]
    with engine.client() as operator:
        if b"xcfgset" in operator.command_list():
            rights.append("+xcfgset")
        operator.execute_command(
            *("ACL", "SETUSER", "app", "reset", "on", ">secret"),
            *("~orders*", "~bs:*:{orders*", "%R~bs:config", *rights),
        )
        try:
            with braidstream.Redis.from_url(engine.url.replace("//", "//app:secret@")) as client:
                client.xadd("orders", ENTRY)
                client.xcfgset("orders", idmp_duration=1, idmp_maxsize=20)
                first = client.xadd("orders", ENTRY, idmp=("p", b"0"))
                began = time.monotonic()
                while client.xadd("orders", ENTRY, idmp=("p", b"0")) == first:
                    assert time.monotonic() - began < 30
                for n in range(60):  # more than are kept, and an old one at the head
                    client.xadd("orders", ENTRY, idmp=("p", b"%d" % n))
                assert client.xinfo_stream("orders")["iids-tracked"] == 20
        finally:
            operator.execute_command("ACL", "DELUSER", "app")


def test_an_entry_can_be_named_later_where_the_engine_knows_messages_itself(
    region: braidstream.Redis, engine: Engine
) -> None:
    first, second = (region.xadd("s", ENTRY) for _ in range(2))
    record = ("XIDMPRECORD", "s", "p", "1")
    if "XCFGSET" not in engine.vocabulary:
        with pytest.raises(redis.ResponseError, match="this engine does not have the command"):
            region.execute_command(*record, first)
        return
    assert [region.execute_command(*record, first) for _ in range(2)] == ["OK", "OK"]
    assert region.xadd("s", {"other": "body"}, idmp=("p", b"1")) == first
    for words, text in (
        ((*record, second), "IID already exists for this producer with a different stream ID"),
        ((*record, "999-1"), "No such message in stream"),
        (("XIDMPRECORD", "none", "p", "1", "1-1"), "no such key"),
        (("XIDMPRECORD", "s", "", "1", first), "producer ID must be non-empty"),
        (("XIDMPRECORD", "s", "p", "", first), "idempotent ID must be non-empty"),
    ):
        with pytest.raises(redis.ResponseError, match=text):
            region.execute_command(*words)


def test_an_entry_cannot_be_named_later_where_peers_have_to_know(engine: Engine) -> None:
    become(engine)
    with client_of(engine, decode_responses=True) as client:
        client.run_plan(meet((1, 2)))
        client.session.cache.expire_region()  # do not wait until the client reads its region again
        entry = client.xadd("s", ENTRY)
        with pytest.raises(redis.ResponseError, match="refused by braidstream"):
            client.execute_command("XIDMPRECORD", "s", "p", "1", entry)


def test_a_message_that_is_known_trims_nothing(region: braidstream.Redis) -> None:
    """Also in a stream of several strands, which the engine does not trim by itself."""
    first = region.xadd("s", {"n": "0"})
    later = f"{int(first.split('-')[0]) + 2000}-2"
    region.execute_command("XSETID", "s", later)
    region.xadd("s", {"n": "1"}, idmp=("p", "1"))
    for number in ("2", "3"):
        region.xadd("s", {"n": number})
    for _ in range(2):
        region.execute_command("XADD", "s", "MAXLEN", "=", 3, "IDMP", "p", "1", "*", "n", "again")
    assert [fields["n"] for _, fields in region.xrange("s")] == ["0", "1", "2", "3"]
    region.execute_command("XADD", "s", "MAXLEN", "=", 3, "IDMP", "p", "2", "*", "n", "4")
    assert [fields["n"] for _, fields in region.xrange("s")] == ["2", "3", "4"]


def test_a_message_with_a_cap_that_gets_no_id_is_refused_as_by_the_engine(engine: Engine) -> None:
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        client.xadd("s", ENTRY, id="18446744073709551615-18446744073709551615")
        with pytest.raises(redis.ResponseError, match="exhausted the last possible ID"):
            client.execute_command("XADD", "s", "MAXLEN", "~", 36, "ACKED", "IDMPAUTO", "p", "*", "f", "v")


def test_a_message_that_is_refused_trims_nothing(engine: Engine) -> None:
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        client.xadd("s", ENTRY)
        client.xadd("s", ENTRY, id="18446744073709551615-18446744073709551615")
        with pytest.raises(redis.ResponseError, match="exhausted the last possible ID"):
            client.execute_command("XADD", "s", "MAXLEN", "=", 1, "IDMPAUTO", "p", "*", "f", "v")
        assert client.xlen("s") == 2
