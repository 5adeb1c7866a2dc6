"""Pipelines, MULTI and WATCH of both cluster clients, on streams that lie on different nodes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.exceptions import CrossSlotTransactionError, WatchError

from tests.support.clients import Opener
from tests.support.cluster_clients import NAMES, cluster_client, cluster_opener, values

opened = cluster_opener
client = cluster_client


def test_a_pipeline_over_all_nodes_answers_in_order(client: Any) -> None:
    with client.pipeline() as pipe:
        for n, name in enumerate(NAMES):
            pipe.xadd(name, {"n": "1"}, id=f"{n + 1}-1")
            pipe.set(f"plain-{name}", n)
            pipe.xlen(name)
            pipe.get(f"plain-{name}")
        found = pipe.execute()
    assert found == [each for n in range(len(NAMES)) for each in (f"{n + 1}-1", True, 1, str(n))]
    with client.pipeline() as pipe:  # appends alone, to streams that are known by now
        entries = [pipe.xadd(NAMES[n % 12], {"n": str(n)}) for n in range(600)] and pipe.execute()
    assert len({(NAMES[n % 12], entry) for n, entry in enumerate(entries)}) == 600
    for at, name in enumerate(NAMES):
        assert values(client, name)[1:] == [str(n) for n in range(at, 600, 12)]


def test_the_commands_of_a_pipeline_run_in_order_in_each_stream(client: Any) -> None:
    client.xadd("a", {"n": "1"}, id="1-1")
    client.xadd("b", {"n": "1"}, id="1-1")
    with client.pipeline() as pipe:
        pipe.xread({"a": "0", "b": "0"}).xadd("a", {"n": "2"}, id="2-2").xread({"b": "0", "a": "0"})
        pipe.delete("a").xlen("a").xadd("a", {"n": "3"}).xread({"a": "0", "b": "0"}).xtrim("a", 0).xlen("a")
        found = pipe.execute()
    counts = [{name: len(entries) for name, entries in dict(found[at]).items()} for at in (0, 2, 6)]
    assert counts == [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 1}]
    assert (found[1], found[3:5], found[7:]) == ("2-2", [1, 0], [1, 0])


def test_the_errors_of_a_pipeline_belong_to_their_commands(client: Any) -> None:
    client.set("plain", "1")
    with client.pipeline() as pipe:
        pipe.xadd("a", {"n": "1"}).xadd("plain", {"n": "1"}).incr("b").xlen("a")
        found = pipe.execute(raise_on_error=False)
        assert "WRONGTYPE" in str(found[1])
        assert found[2:] == [1, 1]
        pipe.xlen("a").xadd("plain", {"n": "1"})
        with pytest.raises(redis.ResponseError, match=r"Command # 2 \(XADD plain .*WRONGTYPE"):
            pipe.execute()


def test_a_pipeline_without_streams_is_redis_pys(client: Any) -> None:
    with client.pipeline() as pipe:
        for name in NAMES:
            pipe.incr(name)
        assert pipe.execute() == [1] * len(NAMES)
    assert client.mget_nonatomic(NAMES) == ["1"] * len(NAMES)


def test_a_multi_is_one_step_in_one_slot(client: Any) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.xadd("{a}s", {"n": "1"}).set("{a}k", "1").xlen("{a}s")
        assert pipe.execute()[1:] == [True, 1]
        pipe.xadd("a", {"n": "1"}).xadd("b", {"n": "1"})
        with pytest.raises(CrossSlotTransactionError, match="must map to the same slot"):
            pipe.execute()
    assert client.exists("a", "b") == 0


def test_a_multi_without_keys_says_which_words_are_missing(client: Any) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("XREAD", "STREAMS", "x")
        with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'xread'"):
            pipe.execute()
        pipe.execute_command("XREAD", "COUNT", "1", "STREAMS", "x")
        with pytest.raises(redis.ResponseError, match="Unbalanced"):
            pipe.execute()
        for keyless in (["PING"], ["XINFO", "HELP"], ["XGROUP HELP"]):
            pipe.execute_command(*keyless)
            pipe.execute_command("SCRIPT FLUSH")
            with pytest.raises(redis.exceptions.RedisClusterException, match="with a key is needed"):
                pipe.execute()


def test_a_watch_sees_changes_of_streams(client: Any) -> None:
    client.xadd("s", {"n": "1"})
    with client.pipeline(transaction=True) as pipe:
        pipe.watch("s")
        assert pipe.xlen("s") == 1
        pipe.multi()
        pipe.xadd("s", {"n": "2"})
        assert len(pipe.execute()) == 1
        pipe.watch("s")
        client.xadd("s", {"n": "3"})
        pipe.multi()
        pipe.xadd("s", {"n": "4"})
        with pytest.raises(WatchError):
            pipe.execute()
        pipe.watch("s")
        with pytest.raises(CrossSlotTransactionError):
            pipe.xlen("another")
    assert values(client, "s") == ["1", "2", "3"]


def test_a_transaction_is_repeated_until_nobody_interferes(client: Any, opened: Opener) -> None:
    def add_next(pipe: Any) -> None:
        count = pipe.xlen("s")
        pipe.multi()
        pipe.xadd("s", {"n": str(count)})

    async def add_next_later(pipe: Any) -> None:
        count = await pipe.xlen("s")
        pipe.multi()
        pipe.xadd("s", {"n": str(count)})

    work: Any = add_next if opened.kind == "sync" else add_next_later
    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(client.transaction, work, "s") for _ in range(30)]:
            each.result()
    assert values(client, "s") == [str(n) for n in range(30)]


def test_a_watch_lasts_until_its_own_exec(client: Any) -> None:
    client.set("{t}a", "1")
    client.mset({"{t}b": "1", "{t}c": "1"})
    with client.pipeline(transaction=True) as pipe:
        pipe.watch("{t}a")
        assert pipe.delete("{t}b", "{t}c") == 2
        client.set("{t}a", "2")
        pipe.multi()
        pipe.set("{t}a", "3")
        with pytest.raises(WatchError):
            pipe.execute()
    assert client.get("{t}a") == "2"
