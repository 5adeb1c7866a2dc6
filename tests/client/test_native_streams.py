"""Native streams, which nobody has adopted, work natively through clients and gateway."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from braidstream.operations.adoption import adopt
from tests.support.clients import Opener
from tests.support.gateways import Line, Served
from tests.support.regions import become, client_of
from tests.support.servers import Engine

# Every stream command on a stream `n` with entries 1-1 to 5-1 and a group `g`. IDs and idle times are fixed.
SAID = [
    "XLEN n",
    "XADD n 6-1 f v",
    "XADD n 6-1 f v",
    "XADD n NOMKSTREAM 7-1 f v",
    "XADD n MAXLEN = 6 8-1 f v",
    "XADD n * odd",
    "XRANGE n - + COUNT 2",
    "XREVRANGE n + - COUNT 2",
    "XREAD COUNT 2 STREAMS n 0",
    "XREAD COUNT 2 BLOCK 100 STREAMS n 0",
    "XREAD BLOCK 10 STREAMS n $",
    "XREAD STREAMS n nonsense",
    "XREAD STREAMS n",
    "XREADGROUP GROUP g c COUNT 3 STREAMS n >",
    "XREADGROUP GROUP g c COUNT 2 BLOCK 100 STREAMS n >",
    "XREADGROUP GROUP g c NOACK STREAMS n >",
    "XREADGROUP GROUP g c STREAMS n 0",
    "XREADGROUP GROUP none c STREAMS n >",
    "XREADGROUP GROUP g c BLOCK 10 STREAMS n >",
    "XACK n g 3-1 9-9",
    "XPENDING n g",
    "XPENDING n g - + 10 other",
    "XCLAIM n g d 0 4-1 JUSTID",
    "XAUTOCLAIM n g d 0 0 COUNT 1 JUSTID",
    "XINFO CONSUMERS none g",
    "XGROUP CREATE n h 0",
    "XGROUP CREATE n h 0",
    "XGROUP CREATE n k $ MKSTREAM",
    "XGROUP CREATECONSUMER n h x",
    "XGROUP DELCONSUMER n h x",
    "XGROUP SETID n h 3-1",
    "XGROUP DESTROY n k",
    "XINFO GROUPS n",
    "XINFO STREAM n",
    "XINFO STREAM n FULL COUNT 1",
    "XDEL n 5-1",
    "XTRIM n MAXLEN 3",
    "XSETID n 9-9",
    "XADD n 9-* f v",
    "XLEN n",
    "TYPE n",
    "EXISTS n",
    "DEL n",
    "XLEN n",
]
TIMES = ("XINFO STREAM n FULL COUNT 1",)
NOT_QUEUED = ("XADD n * odd", "XREAD STREAMS n", "XINFO CONSUMERS none g")


def _fill(client: redis.Redis, name: str = "n", group: str = "g") -> None:
    for at in range(1, 6):
        client.xadd(name, {"f": "v"}, id=f"{at}-1")
    client.xgroup_create(name, group, 0)


def _bare(engine: Engine) -> redis.Redis:
    return redis.Redis.from_url(engine.url, decode_responses=True)


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("style", ["one by one", "pipeline", "MULTI"])
def test_the_gateway_passes_every_stream_command_on(
    line: Line, bare: Line, engine: Engine, style: str, resp: int
) -> None:
    with _bare(engine) as here, redis.Redis.from_url(engine.url.replace("/0", "/9")) as there:
        _fill(here)
        _fill(there)
    if resp == 3:
        line.say("HELLO 3")
        bare.say("HELLO 3")
    said = [each for each in SAID if each not in TIMES]
    if style == "MULTI":
        said = ["MULTI", *(each for each in said if each not in NOT_QUEUED), "EXEC"]
    if style == "one by one":
        for each in said:
            assert line.say(each) == bare.say(each), each
    else:
        seen = zip(said, line.pipeline(*said), bare.pipeline(*said), strict=True)
        assert [(each, got) for each, got, want in seen if got != want] == []
    # The stream was deleted: the next append starts one of ours.
    assert line.say("XADD n * f v").rstrip().endswith(b"1")
    assert line.say("XLEN n") == b":1\r\n"


@pytest.fixture(params=["client", "pipeline", "MULTI", "gateway"])
def call(request: pytest.FixtureRequest, opened: Opener, engine: Engine) -> Iterator[Callable[..., Any]]:
    """Sends one command line: by a client, by its pipelines, by redis-py through a gateway."""
    become(engine)
    if request.param == "gateway":
        with Served(engine.url) as gateway, redis.Redis.from_url(gateway.url) as client:
            yield client.execute_command
        return
    client = opened(engine.url)

    def call(*words: Any) -> Any:
        if request.param == "client":
            return client.execute_command(*words)
        pipe = client.pipeline(transaction=request.param == "MULTI")
        pipe.execute_command(*words)
        return pipe.execute()[0]

    yield call


def test_a_client_uses_a_native_stream_as_it_is(call: Callable[..., Any], engine: Engine) -> None:
    with _bare(engine) as bare:
        _fill(bare)
        entry = call("XADD", "n", "*", "f", "v")
        assert call("XLEN", "n") == 6 == bare.xlen("n")
        assert bare.xrange("n")[-1][0].encode() == entry
        assert bare.keys("bs:*") == ["bs:config"]
        [[name, page]] = call("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "n", ">")
        assert (name, [entry for entry, _ in page]) == (b"n", [b"1-1", b"2-1"])
        assert call("XACK", "n", "g", "1-1") == 1
        assert bare.xpending("n", "g")["pending"] == 1
        assert call("XGROUP", "CREATE", "n", "h", "0", "MKSTREAM") in (True, b"OK")
        assert call("XSETID", "n", "9999999999999-1") in (True, b"OK")
        assert [each["name"] for each in bare.xinfo_groups("n")] == ["g", "h"]


def test_native_and_braided_streams_share_one_read(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    with _bare(engine) as bare:
        _fill(bare)
        ours = client.xadd("ours", {"f": "v"})
        client.xgroup_create("ours", "g", 0)
        for _ in range(2):
            both = client.xread({"n": "0", "ours": "0"}, count=1)
            assert [(name, page[0][0]) for name, page in both] == [("n", "1-1"), ("ours", ours)]
            assert [name for name, _ in client.xread({"ours": "0", "n": "$"})] == ["ours"]
        taken = client.xreadgroup("g", "c", {"n": ">", "ours": ">"}, count=2)
        assert [(name, len(page)) for name, page in taken] == [("n", 2), ("ours", 1)]
        taken = client.xreadgroup("g", "c", {"n": "0", "ours": "0"})
        assert [(name, len(page)) for name, page in taken] == [("n", 2), ("ours", 1)]
        assert client.xreadgroup("g", "c", {"n": ">", "ours": ">"}, block=50) == [
            ["n", [(f"{at}-1", {"f": "v"}) for at in (3, 4, 5)]]
        ]
        assert client.xreadgroup("g", "c", {"n": ">", "ours": ">"}, block=50) == []
        client.xgroup_create("n", "h", 0)
        with pytest.raises(redis.ResponseError, match="NOGROUP No such key 'ours' or consumer group 'h'"):
            client.xreadgroup("h", "c", {"n": ">", "ours": ">"})
        assert bare.xpending("n", "h")["pending"] == 0, "nothing is delivered by a refused read"


@pytest.mark.parametrize("where", ["n", "ours"])
@pytest.mark.parametrize("grouped", [True, False], ids=["XREADGROUP", "XREAD"])
def test_a_reader_of_both_waits_for_both(
    engine: Engine, background: ThreadPoolExecutor, where: str, grouped: bool
) -> None:
    become(engine)
    with _bare(engine) as bare, client_of(engine, decode_responses=True) as client:
        bare.xgroup_create("n", "g", 0, mkstream=True)
        client.xgroup_create("ours", "g", 0, mkstream=True)

        def read() -> Any:
            if grouped:
                return client.xreadgroup("g", "c", {"n": ">", "ours": ">"}, block=20_000)
            return client.xread({"n": "$", "ours": "$"}, block=20_000)

        waiting = background.submit(read)
        blocked = time.monotonic() + 10
        while not bare.info("clients")["blocked_clients"]:
            assert time.monotonic() < blocked
        with client_of(engine, decode_responses=True) as writer:
            entry = writer.xadd(where, {"f": "v"})
        assert waiting.result(10) == [[where, [(entry, {"f": "v"})]]]


def test_a_pipeline_appends_to_both(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    with _bare(engine) as bare:
        _fill(bare)
        for transaction in (False, True, False):
            pipe = client.pipeline(transaction=transaction)
            for at in range(10):
                pipe.xadd("n", {"at": at})
                pipe.xadd("ours", {"at": at})
                pipe.set("k", at)
            pipe.xlen("n")
            pipe.xlen("ours")
            found = pipe.execute()
            length = bare.xlen("n")
            assert found[-2:] == [length, length - 5]
        assert [fields["at"] for _, fields in bare.xrange("n", count=40)[5:]] == [
            str(n) for n in range(10)
        ] * 3


def test_a_deleted_native_stream_comes_back_as_one_of_ours(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    with _bare(engine) as bare:
        for _ in range(3):
            _fill(bare)
            client.xadd("n", {"f": "v"})
            bare.delete("n")
            client.xgroup_create("n", "g", 0, mkstream=True)
            assert not bare.exists("n")
            client.xadd("n", {"f": "v"})
            assert client.xlen("n") == 1
            client.delete("n")


def test_the_append_of_a_cached_stream_of_ours_sends_nothing_more(engine: Engine) -> None:
    become(engine)
    with _bare(engine) as bare, client_of(engine) as client:
        client.xadd("ours", {"f": "v"})
        client.xadd("n", {"f": "v"})
        before = int(bare.info("commandstats")["cmdstat_xadd"]["calls"]), bare.info("stats")
        for _ in range(20):
            client.xadd("ours", {"f": "v"})
        after = int(bare.info("commandstats")["cmdstat_xadd"]["calls"]), bare.info("stats")
        assert after[0] - before[0] == 20
        ran = after[1]["total_commands_processed"] - before[1]["total_commands_processed"]
        assert ran <= 20 + 4, "XADDs, INFOs, and at most one look at the region"


def test_a_key_of_another_type_still_answers_wrongtype(call: Callable[..., Any], engine: Engine) -> None:
    with _bare(engine) as bare:
        bare.set("n", "1")
    for words in (("XADD", "n", "*", "f", "v"), ("XLEN", "n"), ("XREAD", "STREAMS", "n", "0")):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call(*words)


@pytest.mark.parametrize("style", ["one by one", "pipeline", "MULTI"])
def test_an_idempotent_client_appends_to_a_native_stream_also_when_it_is_adopted(
    opened: Opener, engine: Engine, style: str
) -> None:
    become(engine)
    with _bare(engine) as bare, client_of(engine) as operator:
        _fill(bare)
        client = opened(engine.url, idempotent=True, decode_responses=True)
        for number in range(4):
            if number == 2:
                assert not operator.run_plan(adopt(b"n")).problem
            pipe = client if style == "one by one" else client.pipeline(transaction=style == "MULTI")
            pipe.xadd("n", {"f": number})
            pipe.xadd("n", {"f": number})
            if style != "one by one":
                pipe.execute()
        assert [fields["f"] for _, fields in client.xrange("n")][5:] == list("00112233")
