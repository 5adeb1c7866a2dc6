"""A user's MULTI: all of it or none of it, and a WATCH that holds. The last of the traps of test_traps.py."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

import braidstream
from braidstream.model.strand import Strand
from tests.support.clients import Opener
from tests.support.gateways import Line, Served
from tests.support.proxy import Proxy
from tests.support.regions import apply, client_of
from tests.support.servers import Engine

pytestmark = pytest.mark.long

FAR = 99_999_999_999_999  # a millisecond that the clock of no test reaches


def _rename_onto(client: braidstream.Redis) -> None:
    client.xadd("y", {"n": "0"})
    client.rename("y", "x")


def _arrives(client: braidstream.Redis) -> None:
    client.run_plan(apply(Strand(b"x", "s", 2), [((1, 0), [b"n", b"1"])]))


BEFORE: dict[str, Callable[[braidstream.Redis, redis.Redis], object]] = {
    "unborn": lambda other, operator: other.delete("a", "b"),
    "known": lambda other, operator: [other.xtrim(name, maxlen=0, approximate=False) for name in "ab"],
    "deleted by another client": lambda other, operator: other.delete("a", "b"),
    "lost": lambda other, operator: operator.delete("bs:1:s:{a}", "bs:1:s:{b}"),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("also", ["no other command", "a read"])
def test_a_reader_sees_all_entries_of_a_multi_or_none(
    region: braidstream.Redis, engine: Engine, before: str, also: str
) -> None:
    """The MULTI is held up on its way, as often as it can be, and each time someone looks."""
    with Proxy(engine.port) as proxy, engine.client() as operator, ThreadPoolExecutor(1) as background:
        with braidstream.Redis.from_url(proxy.url) as writer:
            for stream in "ab" if before != "unborn" else "":
                writer.xadd(stream, {"n": "0"})
            BEFORE[before](region, operator)
            pipe = writer.pipeline(transaction=True)
            for n in range(3):
                pipe.xadd("a", {"n": str(n)}).xadd("b", {"n": str(n)})
            if also == "a read":
                pipe.xlen("a")
            proxy.stall(b"XADD")
            done, seen = background.submit(pipe.execute), list[list[int]]()
            while not done.done():
                if proxy.stalled.wait(0.01):
                    seen.append(region.pipeline().xlen("a").xlen("b").execute())
                    proxy.go_on()
            assert done.result()[6:] == [3] * (also == "a read")
        assert seen
        assert [lengths for lengths in seen if lengths not in ([0, 0], [3, 3])] == []
        assert [fields["n"] for _, fields in region.xrange("a")] == ["0", "1", "2"]


def test_a_multi_that_bears_a_strand_and_reads_it_back_is_one_step(region: braidstream.Redis) -> None:
    before, first, second, found, length, gone, after = (
        region.pipeline()
        .exists("x")
        .xadd("x", {"n": "1"})
        .xadd("x", {"n": "2"})
        .xrange("x")
        .xlen("x")
        .delete("x")
        .exists("x")
        .execute()
    )
    assert (before, length, gone, after) == (0, 2, 1, 0)
    assert found == [(first, {"n": "1"}), (second, {"n": "2"})]


def test_a_command_the_engine_would_not_queue_aborts_the_whole_multi(
    region: braidstream.Redis, engine: Engine
) -> None:
    with engine.client(decode_responses=True) as bare:
        for client in (bare, region):
            pipe = client.pipeline().set("plain", "1").xadd("x", {"n": "1"})
            pipe.execute_command("XADD", "x", "*")
            with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'xadd' command"):
                pipe.execute()
            assert (client.get("plain"), client.xlen("x")) == (None, 0), client


CHANGES: dict[str, Callable[[braidstream.Redis], object]] = {
    "XADD": lambda other: other.xadd("x", {"n": "other"}),
    "XADD of a chosen ID": lambda other: other.xadd("x", {"n": "other"}, id=f"{FAR}-5"),
    "XDEL": lambda other: other.xdel("x", other.xrange("x", count=1)[0][0]),
    "XTRIM": lambda other: other.xtrim("x", maxlen=0, approximate=False),
    "DEL": lambda other: other.delete("x"),
    "RENAME onto": _rename_onto,
    "an entry of another region": _arrives,
}


@pytest.mark.parametrize("strands", ["s", "sc", "unborn"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_watched_stream_that_another_client_changes_aborts_exec(
    liberal: braidstream.Redis, engine: Engine, change: str, strands: str
) -> None:
    if strands == "unborn" and change in ("XDEL", "XTRIM", "DEL"):
        return  # nothing to change yet
    if "s" in strands:
        liberal.xadd("x", {"n": "generated"})
    if "c" in strands:
        liberal.xadd("x", {"n": "chosen"}, id=f"{FAR}-1")
    with client_of(engine, decode_responses=True) as other, liberal.pipeline() as pipe:
        pipe.watch("x")
        read = pipe.xrange("x")  # what the decision rests on; it must not lift the WATCH
        CHANGES[change](other)
        pipe.multi()
        pipe.xadd("x", {"n": "mine", "after": str(len(read))})
        with pytest.raises(redis.WatchError):
            pipe.execute()
        assert "mine" not in [fields["n"] for _, fields in other.xrange("x")]


@pytest.mark.parametrize("name", ["x", "unborn"])
def test_a_watched_stream_that_nobody_changes_lets_exec_through(
    liberal: braidstream.Redis, engine: Engine, name: str
) -> None:
    liberal.xadd("x", {"n": "generated"})
    liberal.xadd("x", {"n": "chosen"}, id=f"{FAR}-1")
    with client_of(engine, decode_responses=True) as other, liberal.pipeline() as pipe:
        pipe.watch(name)
        length = pipe.xlen(name)
        other.xadd("elsewhere", {"n": "other"})
        pipe.multi()
        [entry] = pipe.xadd(name, {"n": "mine"}).execute()
        assert [seen for seen, _ in other.xrange(name)][length:] == [entry]


@pytest.mark.parametrize("changes", [1, 5, 30])
def test_a_multi_goes_through_though_others_change_what_it_relies_on(
    region: braidstream.Redis, engine: Engine, changes: int
) -> None:
    """The registry is WATCHed by us, not by the user: that it changed is our own business to try again."""
    with Proxy(engine.port) as proxy, ThreadPoolExecutor(1) as background:
        with braidstream.Redis.from_url(proxy.url, decode_responses=True) as writer:
            region.xadd("x", {"n": "other"})
            proxy.stall(b"XADD")
            pipe = writer.pipeline().xadd("x", {"n": "mine"}).xlen("x").xrange("x")
            done = background.submit(pipe.execute)
            while not done.done():
                if proxy.stalled.wait(0.01):
                    for _ in range(min(changes, 1)):
                        region.delete("x")
                        region.xadd("x", {"n": "other"})
                        changes -= 1
                    proxy.go_on()
        entry, length, found = done.result()
        assert (changes, length, found) == (0, 2, [*region.xrange("x", count=1), (entry, {"n": "mine"})])


@pytest.mark.parametrize(
    "command", [("RENAME", "x", "y"), ("RENAMENX", "x", "y"), ("COPY", "x", "y"), ("FLUSHDB",)]
)
def test_what_cannot_be_one_step_is_refused_in_multi_with_the_reason(
    region: braidstream.Redis, command: tuple[str, ...]
) -> None:
    entry = region.xadd("x", {"n": "1"})
    pipe = region.pipeline().set("plain", "1")
    pipe.execute_command(*command)
    with pytest.raises(redis.ResponseError, match=f"{command[0]} inside MULTI refused.*several round trips"):
        pipe.execute()
    assert (region.get("plain"), region.xrange("x"), region.exists("y")) == (None, [(entry, {"n": "1"})], 0)


@pytest.mark.parametrize(
    "words",
    [
        ("XCLAIM", "orders", "g", "c", 0, "4-3", "FORCE"),
        ("XPENDING", "orders", "g"),
        ("XPENDING", "orders", "g", "-", "+", -1),
    ],
    ids=str,
)
def test_errors_after_a_deletion_in_the_same_multi_name_the_stream(
    region: braidstream.Redis, words: tuple[str | int, ...]
) -> None:
    region.xgroup_create("orders", "g", "0", mkstream=True)
    with region.pipeline(transaction=True) as pipe:
        pipe.execute_command("PEXPIREAT", "orders", 0, "LT")
        pipe.execute_command(*words)
        deleted, refused = pipe.execute(raise_on_error=False)
    assert deleted
    assert str(refused) == "NOGROUP No such key 'orders' or consumer group 'g'"


def test_a_pipeline_sees_a_plain_key_that_it_deletes_later(region: braidstream.Redis) -> None:
    region.set("plain", "v")
    pipe = region.pipeline(transaction=False).xclaim("plain", "g", "c", 0, ["5-0"]).unlink("plain")
    refused, deleted = pipe.execute(raise_on_error=False)
    assert (str(refused).split()[0], deleted) == ("WRONGTYPE", 1)


def test_a_pipeline_does_not_see_a_plain_key_that_it_sets_later(region: braidstream.Redis) -> None:
    pipe = region.pipeline(transaction=True).xdel("later", ">").set("later", "v")
    assert pipe.execute(raise_on_error=False) == [0, True]


def test_a_pipeline_reads_no_stream_beside_a_plain_key_that_it_deletes_later(
    region: braidstream.Redis,
) -> None:
    region.xadd("orders", {"n": 1})
    region.hset("plain", "f", "v")
    pipe = region.pipeline(transaction=False).xread({"plain": "0", "orders": "0"}).delete("plain")
    refused, deleted = pipe.execute(raise_on_error=False)
    assert (str(refused).split()[0], deleted) == ("WRONGTYPE", 1)


def test_commands_of_several_round_trips_do_not_read_all_streams_of_a_pipeline_again(
    region: braidstream.Redis, engine: Engine
) -> None:
    with engine.client() as operator, region.pipeline(transaction=False) as pipe:
        for number in range(200):
            pipe.xgroup_create(f"orders-{number}", "jobs", mkstream=True)
        operator.config_resetstat()
        assert pipe.execute() == [True] * 200
        assert operator.info("commandstats")["cmdstat_type"]["calls"] < 200 * 10


def _sent_after_exec(proxy: Proxy) -> bytes:
    return b"".join(bytes(sent).partition(b"EXEC")[2] for sent in proxy.requests)


def test_a_multi_after_an_append_that_made_no_stream_is_one_step(opened: Opener, proxy: Proxy) -> None:
    client = opened(proxy.url, decode_responses=True)
    assert client.xadd("x", {"n": 0}, nomkstream=True) is None
    entry, is_set = client.pipeline(transaction=True).xadd("x", {"n": 1}).set("plain", "v").execute()
    assert (client.xrange("x"), is_set) == ([(entry, {"n": "1"})], True)
    assert b"XADD" not in _sent_after_exec(proxy)


def test_a_pipeline_after_an_append_that_made_no_stream_runs_in_order(opened: Opener, proxy: Proxy) -> None:
    client = opened(proxy.url)
    assert client.xadd(b"x", {"n": 0}, nomkstream=True) is None
    assert client.pipeline(transaction=False).xadd(b"x", {"n": 1}).xlen(b"x").execute()[1] == 1
    nothing = client.pipeline(transaction=False).xadd(b"y", {"n": 0}, nomkstream=True).xlen(b"y").execute()
    assert nothing == [None, 0]
    assert client.pipeline(transaction=False).xadd(b"y", {"n": 1}).xlen(b"y").execute()[1] == 1


def test_a_multi_at_a_gateway_after_an_append_that_made_no_stream_is_one_step(proxy: Proxy) -> None:
    with Served(proxy.url) as gateway, Line(gateway.port) as line:
        assert line.say("XADD x NOMKSTREAM * n 0") == b"$-1\r\n"
        line.pipeline("MULTI", "XADD x * n 1", "SET plain v", "EXEC")
        assert b"XADD" not in _sent_after_exec(proxy)
        assert line.say("XLEN x") == b":1\r\n"
