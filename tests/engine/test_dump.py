"""DUMP and RESTORE of streams: what goes out comes back, here and in a bare engine, and from there."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis

import braidstream
from braidstream.commands import rename
from braidstream.model.strand import Strand
from tests.support.gateways import Line, Served, value_of
from tests.support.matrix import on_every_engine
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

pytestmark = pytest.mark.every_engine

flavour = on_every_engine

# The bare engine, in a database that is not a region.
BARE_DB = 5


@pytest.fixture
def bare(engine: Engine) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(engine.url.replace("/0", f"/{BARE_DB}"), decode_responses=True) as client:
        yield client


def fill(client: redis.Redis, name: str = "x") -> None:
    """A stream with a history: deleted entries, two groups, pending entries, an idle consumer."""
    for number in range(1, 7):
        client.xadd(name, {"n": str(number)}, id=f"{number}-0")
    client.xdel(name, "3-0")
    client.xgroup_create(name, "jobs", id="0")
    client.xgroup_create(name, "later", id="4-0")
    client.xreadgroup("jobs", "ann", {name: ">"}, count=2)
    client.xreadgroup("jobs", "bob", {name: ">"}, count=1)
    client.xgroup_createconsumer(name, "jobs", "idle")
    client.xclaim(name, "jobs", "bob", 0, ["2-0"], retrycount=7)
    client.xack(name, "jobs", "1-0")


def told(client: redis.Redis, name: str = "x") -> object:
    """What users can see of it, but for times."""
    info = client.xinfo_stream(name)
    groups = client.xinfo_groups(name)
    return {
        "entries": client.xrange(name),
        **{
            key: info[key] for key in ("length", "last-generated-id", "max-deleted-entry-id", "entries-added")
        },
        "groups": [(each["name"], each["last-delivered-id"], each["pending"]) for each in groups],
        "consumers": [sorted(c["name"] for c in client.xinfo_consumers(name, g["name"])) for g in groups],
        "pending": [
            [
                (row["message_id"], row["consumer"], row["times_delivered"])
                for row in client.xpending_range(name, each["name"], "-", "+", 100)
            ]
            for each in groups
        ],
    }


def payload_of(client: redis.Redis, name: str = "x") -> bytes:
    options = {**client.connection_pool.connection_kwargs, "decode_responses": False}
    with closing(redis.ConnectionPool(**options)) as pool:
        return bytes(redis.Redis(connection_pool=pool).execute_command("DUMP", name))


@pytest.mark.parametrize("name", ["x", "a{b}c", "}x"])
def test_a_stream_of_the_bare_engine_becomes_a_stream_of_the_region(
    liberal: braidstream.Redis, bare: redis.Redis, name: str
) -> None:
    fill(bare, name)
    assert liberal.restore(name, 0, payload_of(bare, name)) in (True, "OK", b"OK")
    assert told(liberal, name) == told(bare, name)
    entry = liberal.xadd(name, {"n": "new"})
    [[_, [first, second, last]]] = liberal.xreadgroup("jobs", "ann", {name: ">"})
    assert (first[0], second[0], last[0]) == ("5-0", "6-0", entry)
    assert liberal.dbsize() == 1


def test_what_is_dumped_is_restored_here_and_in_the_bare_engine(
    liberal: braidstream.Redis, engine: Engine, bare: redis.Redis
) -> None:
    fill(liberal)
    liberal.xadd("x", {"n": "generated"})
    with braidstream.Redis.from_url(engine.url) as raw:
        payload = raw.dump("x")
    want = told(liberal)
    bare.restore("y", 0, payload)
    assert told(bare, "y") == want
    liberal.restore("y", 0, payload)
    assert (told(liberal, "y"), told(liberal, "x")) == (want, want)
    with redis.Redis.from_url(engine.url) as operator:
        assert operator.keys("bs:copy:*") == []


def test_a_group_that_stands_at_several_places_skips_nothing_after_a_restore(
    liberal: braidstream.Redis, engine: Engine, bare: redis.Redis
) -> None:
    for entry in ("10-0", "30-0"):
        liberal.xadd("x", {"n": entry}, id=entry)
    liberal.xgroup_create("x", "g", id="0")
    liberal.xreadgroup("g", "ann", {"x": ">"})
    # An entry of region 2 arrives late: before 30-0, which was given out.
    liberal.run_plan(apply(Strand(b"x", "s", 2), [((20, 0), [b"n", b"late"])]))
    with braidstream.Redis.from_url(engine.url) as raw:
        bare.restore("x", 0, raw.dump("x"))
    [[_, found]] = bare.xreadgroup("g", "ann", {"x": ">"})
    assert [fields["n"] for _, fields in found] == ["late", "30-0"]


def test_a_restore_over_something_needs_replace_and_unmakes_what_was(
    liberal: braidstream.Redis, bare: redis.Redis
) -> None:
    fill(bare)
    payload = payload_of(bare)
    bare.set("text", "hello")
    plain = payload_of(bare, "text")
    liberal.xadd("x", {"n": "old"}, id="100-0")
    for each in (payload, plain):
        with pytest.raises(redis.ResponseError, match="Target key name already exists"):
            liberal.execute_command("RESTORE", "x", 0, each)
    with pytest.raises(redis.ResponseError, match="syntax error"):
        liberal.execute_command("RESTORE", "x", 0, payload, "NOW")
    with pytest.raises(redis.ResponseError, match="DUMP payload version or checksum are wrong"):
        liberal.execute_command("RESTORE", "new", 0, payload[:-1] + b"?")
    assert (liberal.exists("new"), liberal.xlen("x")) == (0, 1)
    liberal.restore("x", 0, payload, replace=True)
    assert told(liberal) == told(bare)
    liberal.restore("x", 0, plain, replace=True)
    assert (liberal.type("x"), liberal.get("x")) == ("string", "hello")
    liberal.restore("x", 0, payload, replace=True)
    assert (liberal.type("x"), liberal.dbsize()) == ("stream", 1)


OVER: dict[str, Callable[[braidstream.Redis, bytes], object]] = {
    "RESTORE": lambda client, payload: client.restore("a}b", 0, payload, replace=True),
    "RENAME": lambda client, _: client.rename("old", "a}b"),
    "COPY": lambda client, _: client.copy("old", "a}b", replace=True),
}


@pytest.mark.parametrize("command", OVER)
def test_a_plain_key_in_another_slot_than_the_stream_is_replaced(
    liberal: braidstream.Redis, bare: redis.Redis, engine: Engine, command: str
) -> None:
    fill(bare)
    liberal.xadd("old", {"n": "1"}, id="1-0")
    liberal.set("a}b", "plain")
    OVER[command](liberal, payload_of(bare))
    assert (liberal.type("a}b"), liberal.xrange("a}b")[0]) == ("stream", ("1-0", {"n": "1"}))
    with engine.client() as behind:
        assert not behind.exists("a}b")


@pytest.mark.parametrize("command", ["RESTORE", "RENAME"])
def test_what_is_refused_leaves_a_plain_key_in_another_slot(
    liberal: braidstream.Redis, bare: redis.Redis, engine: Engine, command: str
) -> None:
    fill(bare)
    liberal.xadd("old", {"n": "1"}, id="1-0")
    liberal.set("a}b", "plain")
    liberal.acl_setuser("few", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-xsetid"])
    with client_of(engine, username="few", password="any") as few, pytest.raises(redis.ResponseError):
        OVER[command](few, payload_of(bare))
    assert (liberal.get("a}b"), liberal.xlen("old")) == ("plain", 1)
    liberal.acl_deluser("few")


def test_a_payload_of_a_type_that_we_do_not_know_becomes_what_it_is(
    liberal: braidstream.Redis, bare: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rename, "_STREAM", frozenset())
    monkeypatch.setattr(rename, "_OTHER", frozenset())
    fill(bare, "stream")
    bare.set("string", "hello")
    bare.hset("hash", "f", "v")
    bare.rpush("list", "a")
    for kind in ("stream", "string", "hash", "list"):
        liberal.restore("x", 0, payload_of(bare, kind), replace=True)
        assert liberal.type("x") == kind
        with pytest.raises(redis.ResponseError, match="Target key name already exists"):
            liberal.restore("x", 0, payload_of(bare, kind))
    with pytest.raises(redis.ResponseError, match="DUMP payload version or checksum are wrong"):
        liberal.execute_command("RESTORE", "new", 0, payload_of(bare, "string")[:-1] + b"?")
    liberal.restore("x", 0, payload_of(bare, "stream"), replace=True)
    assert told(liberal) == told(bare, "stream")
    assert liberal.keys() == ["x"]


def test_what_another_client_made_of_a_stream_is_dumped_and_left_in_place(
    liberal: braidstream.Redis, bare: redis.Redis, engine: Engine
) -> None:
    bare.set("text", "hello")
    text = payload_of(bare, "text")
    with client_of(engine) as other:
        liberal.xadd("x", {"n": "1"})
        other.delete("x")
        assert liberal.restore("x", 0, text) == "OK"
        liberal.xadd("y", {"n": "1"})
        other.rename("x", "y")
        assert payload_of(liberal, "y") == text


def test_dump_and_restore_pass_through_a_gateway(engine: Engine, bare: redis.Redis) -> None:
    become(engine, id_mode="liberal")
    fill(bare)
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        assert line.say("RESTORE", "x", 0, payload_of(bare)) == b"+OK\r\n"
        payload = value_of(line.say("DUMP x"))
        assert line.say("RESTORE", "y", 0, payload) == b"+OK\r\n"
        assert line.say("DUMP none") == b"$-1\r\n"
        assert line.pipeline("MULTI", "DUMP none", "EXEC")[-1] == b"*1\r\n$-1\r\n"
        *_, refused = line.pipeline("MULTI", "DUMP x", "EXEC")
        assert refused.startswith(b"-ERR DUMP inside MULTI refused by braidstream")
        with redis.Redis.from_url(gateway.url, decode_responses=True) as client:
            assert told(client) == told(client, "y") == told(bare)
