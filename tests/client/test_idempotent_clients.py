"""`Redis(..., idempotent=True)`: what is lost on the way is sent again, and stands in the stream once."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.retry import Retry

import braidstream
import braidstream.asyncio
from tests.support.clients import Opener
from tests.support.proxy import Proxy
from tests.support.regions import client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

MESSAGE = b"\r\nn\r\n"  # what every message here has, however it is sent: its field
UNKNOWN = "may or may not have been applied"
# `make lost-replies` sends 100,000.
MESSAGES = int(os.environ.get("BRAID_MESSAGES", "1500"))


def numbers(client: braidstream.Redis, name: str = "s") -> list[str]:
    return [fields["n"] for _, fields in client.xrange(name)]


def messages(client: Any, count: int, multi: bool) -> list[Any]:
    pipe = client.pipeline(transaction=multi)
    for n in range(count):
        pipe.xadd("s", {"n": n})
    found: list[Any] = pipe.execute()
    return found


WRITES: dict[str, Callable[[Any], object]] = {
    "XADD": lambda client: client.xadd("s", {"n": 0}),
    "XADD MAXLEN": lambda client: client.xadd("s", {"n": 0}, maxlen=100),
    "XADD MAXLEN over regions": lambda client: client.xadd("s", {"n": 0}, maxlen=100, ref_policy="ACKED"),
    "XADD IDMP": lambda client: client.xadd("s", {"n": 0}, idmp=("mine", b"1")),
    "XADD IDMPAUTO": lambda client: client.xadd("s", {"n": 0}, idmpauto="mine"),
    "pipeline": lambda client: messages(client, 1, False),
    "MULTI": lambda client: messages(client, 1, True),
    "XADD and XLEN in a pipeline": lambda client: (
        client.pipeline(transaction=False).xadd("s", {"n": 0}).xlen("s").execute()
    ),
}


@pytest.mark.parametrize("stream", ["unborn", "there", "known"])
@pytest.mark.parametrize("write", WRITES)
def test_a_message_whose_reply_is_lost_is_sent_again_and_stands_once(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, write: str, stream: str
) -> None:
    client = opened(proxy.url, idempotent=True, **opened.retry(10))
    if stream != "unborn":
        region.xadd("s", {"n": "before"})
    if stream == "known":
        client.xadd("s", {"n": "before"})
    before = region.xlen("s")
    proxy.lose_replies(MESSAGE, times=3)
    WRITES[write](client)
    assert proxy.lost == 3
    assert region.xlen("s") == before + 1


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("stream", ["unborn", "known"])
def test_a_pipeline_far_larger_than_what_is_kept_is_sent_again_as_a_whole(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, multi: bool, stream: str
) -> None:
    client = opened(proxy.url, idempotent=True, decode_responses=True, **opened.retry(10))
    if stream == "known":
        messages(client, 60, multi)
        region.xtrim("s", maxlen=0)
    proxy.lose_replies(MESSAGE, times=2)
    found = messages(client, 1000, multi)
    assert numbers(region) == [str(n) for n in range(1000)]
    assert [entry for entry, _ in region.xrange("s")] == found


@pytest.mark.parametrize("multi", [False, True])
def test_pipelines_go_on_when_another_client_changes_the_settings_or_deletes_the_stream(
    opened: Opener, engine: Engine, region: braidstream.Redis, multi: bool
) -> None:
    client = opened(engine.url, idempotent=True, decode_responses=True)
    for _ in range(3):
        messages(client, 70, multi)
    region.xcfgset("s", idmp_maxsize=3)
    for _ in range(3):
        found = messages(client, 70, multi)
    assert [entry for entry, _ in region.xrange("s")][-70:] == found
    assert numbers(region) == [str(n) for n in range(70)] * 6
    assert region.xinfo_stream("s")["iids-added"] == 420
    region.delete("s")
    for _ in range(2):
        messages(client, 70, multi)
    assert numbers(region) == [str(n) for n in range(70)] * 2


@pytest.mark.parametrize("change", ["XCFGSET", "DEL"])
@pytest.mark.parametrize("stream", ["unborn", "known"])
@pytest.mark.parametrize("named", [False, True])
def test_a_change_in_the_middle_of_a_pipeline_sends_only_the_rest_again(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, named: bool, stream: str, change: str
) -> None:
    client = opened(proxy.url, idempotent=not named, decode_responses=True)
    if stream == "known":
        messages(client, 60, multi=False)
        region.xtrim("s", maxlen=0)
    pipe = client.pipeline(transaction=False)
    for n in range(170):
        pipe.xadd("s", {"n": f"m{n}"}, **({"idmp": ("mine", b"%d" % n)} if named else {}))

    def change_it() -> None:
        assert proxy.stalled.wait(20)
        eventually(lambda: region.xlen("s") == 100, within_s=20, why="the engine should have two calls")
        region.xcfgset("s", idmp_maxsize=7) if change == "XCFGSET" else region.delete("s")
        proxy.stall(b"never again")
        proxy.go_on()

    proxy.stall(b"m120")
    other = threading.Thread(target=change_it)
    other.start()
    found = pipe.execute()
    other.join()
    stays = 0 if change == "XCFGSET" else 100
    assert numbers(region) == [f"m{n}" for n in range(stays, 170)]
    assert [entry for entry, _ in region.xrange("s")] == found[stays:]
    assert len(set(found)) == 170


@pytest.mark.parametrize("stream", ["unborn", "known"])
def test_more_messages_of_one_name_than_are_kept_are_not_sent_again(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, stream: str
) -> None:
    client = opened(proxy.url, idempotent=True, **opened.retry(10))
    if stream == "known":
        messages(client, 1, multi=False)
        region.xtrim("s", maxlen=0)
    pipe = client.pipeline(transaction=False)
    for n in range(170):
        pipe.xadd("s", {"n": n}, idmp=("mine", b"%d" % n))
    proxy.lose_replies(MESSAGE, times=1)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        pipe.execute()
    assert numbers(region) == [str(n) for n in range(len(numbers(region)))]


def test_it_does_not_depend_on_how_few_are_kept(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    region.xadd("s", {"n": "0"})
    region.xcfgset("s", idmp_maxsize=1)
    region.xtrim("s", maxlen=0)
    client = opened(proxy.url, idempotent=True, **opened.retry(10))
    proxy.lose_replies(MESSAGE, times=2)
    pipe = client.pipeline(transaction=False)
    for n in range(40):
        pipe.xadd("s", {"n": n})
        pipe.xadd("t", {"n": n})
    pipe.execute()
    assert numbers(region) == numbers(region, "t") == [str(n) for n in range(40)]


def test_a_pipeline_with_commands_that_count_twice_is_not_sent_again(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    client = opened(proxy.url, idempotent=True, **opened.retry(10))
    proxy.lose_replies(MESSAGE, times=100)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        client.pipeline(transaction=False).incr("k").xadd("s", {"n": 0}).execute()
    assert (region.get("k"), proxy.lost) == ("1", 1)


@pytest.mark.parametrize("write", ["XADD IDMP", "XADD IDMPAUTO"])
@pytest.mark.parametrize("stream", ["unborn", "known"])
def test_without_it_nothing_is_sent_again(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, write: str, stream: str
) -> None:
    client = opened(proxy.url, **opened.retry(10))
    if stream == "known":
        client.xadd("s", {"n": "before"}, idmp=("mine", b"0"))
    proxy.lose_replies(MESSAGE, times=100)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        WRITES[write](client)
    assert proxy.lost == 1
    proxy.lose_replies(b"", times=0)
    WRITES[write](client)  # the user may, under the same ID
    assert region.xlen("s") == 1 + (stream == "known")


def test_when_no_reply_ever_comes_the_error_says_what_is_not_known(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    client = opened(proxy.url, idempotent=True, **opened.retry(3))
    client.xadd("s", {"n": 0})
    proxy.lose_replies(MESSAGE, times=100)
    with pytest.raises(redis.ConnectionError, match=f"same idempotent ID.*{UNKNOWN}"):
        client.xadd("s", {"n": 1})
    assert proxy.lost == 4
    assert numbers(region) == ["0", "1"]


def test_chosen_ids_are_sent_once_as_ever(opened: Opener, proxy: Proxy, region: braidstream.Redis) -> None:
    client = opened(proxy.url, idempotent=True, **opened.retry(10))
    client.xadd("s", {"n": 0}, id="110")
    proxy.lose_replies(b"XADD", times=100)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        client.xadd("s", {"n": 1}, id="111")
    assert proxy.lost == 1


def test_two_equal_appends_are_two_messages(region: braidstream.Redis, engine: Engine) -> None:
    with client_of(engine, idempotent=True) as client:
        assert client.xadd("s", {"n": 0}) != client.xadd("s", {"n": 0})
    assert region.xlen("s") == 2


def test_a_named_producer_keeps_its_name_and_what_it_sent_before_is_not_taken_for_new(
    region: braidstream.Redis, engine: Engine
) -> None:
    for _ in range(3):  # three runs of one program
        with client_of(engine, idempotent=True, producer="web-1") as client:
            client.xadd("s", {"n": 0})
    assert region.xlen("s") == 3
    assert region.xinfo_stream("s")["pids-tracked"] == 1


def test_a_producer_needs_a_name_that_is_one_and_a_client_that_is_idempotent(engine: Engine) -> None:
    with pytest.raises(ValueError, match="cannot be empty"):
        braidstream.Redis.from_url(engine.url, idempotent=True, producer="")
    with pytest.raises(ValueError, match="idempotent=True as well"):
        braidstream.Redis.from_url(engine.url, producer="web-1")


def test_under_load_with_replies_lost_at_random_each_message_stands_once(
    proxy: Proxy, region: braidstream.Redis, engine: Engine
) -> None:
    """Two threads one by one, tasks one by one, pipelines and MULTIs, all at once, on two streams."""
    each = MESSAGES // 5
    proxy.lose_at_random(0.02, seed=5)
    failures = list[BaseException]()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    def one_by_one(worker: str) -> None:
        with braidstream.Redis.from_url(proxy.url, idempotent=True, retry=Retry(NoBackoff(), 50)) as client:
            for n in range(each):
                client.xadd("s" if n % 2 else "t", {"n": f"{worker}-{n}"})

    def in_pipelines(worker: str, multi: bool) -> None:
        with braidstream.Redis.from_url(proxy.url, idempotent=True, retry=Retry(NoBackoff(), 50)) as client:
            for start in range(0, each, 150):
                pipe = client.pipeline(transaction=multi)
                for n in range(start, min(start + 150, each)):
                    pipe.xadd("s" if n % 2 else "t", {"n": f"{worker}-{n}"})
                pipe.execute()

    async def tasks() -> None:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 50)
        async with braidstream.asyncio.Redis.from_url(proxy.url, idempotent=True, retry=retry) as client:

            async def some(first: int) -> None:
                for n in range(first, each, 8):
                    await client.xadd("s" if n % 2 else "t", {"n": f"task-{n}"})

            await asyncio.gather(*map(some, range(8)))

    works: list[Callable[[], None]] = [
        lambda: one_by_one("one"),
        lambda: one_by_one("two"),
        lambda: in_pipelines("pipe", False),
        lambda: in_pipelines("multi", True),
        lambda: asyncio.run(tasks()),
    ]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = Counter(numbers(region, "s") + numbers(region, "t"))
    wanted = {f"{worker}-{n}" for worker in ("one", "two", "pipe", "multi", "task") for n in range(each)}
    assert proxy.lost > 5
    assert {n: count for n, count in found.items() if count > 1} == {}
    assert set(found) == wanted


def in_a_child(work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        failed = 1
        try:
            work()
            failed = 0
        finally:
            os._exit(failed)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("producer", [None, "web-1"])
@pytest.mark.parametrize("write", ["XADD", "pipeline", "MULTI"])
def test_processes_forked_from_one_client_are_producers_of_their_own(
    engine: Engine, region: braidstream.Redis, producer: str | None, write: str
) -> None:
    with client_of(engine, idempotent=True, producer=producer) as client:
        client.xadd("s", {"n": "before"})
        for _ in range(2):
            in_a_child(lambda: WRITES[write](client))
        WRITES[write](client)
    assert region.xlen("s") == 4


@pytest.mark.parametrize("multi", [None, False, True], ids=["alone", "pipeline", "MULTI"])
def test_producers_that_users_name_like_those_of_the_client_stay_apart(
    opened: Opener, engine: Engine, region: braidstream.Redis, multi: bool | None
) -> None:
    def add(producer: str, n: int) -> Any:
        client = opened(engine.url, idempotent=True, producer="checkout", decode_responses=True)
        found = []
        for _ in range(2):  # the second append of a client skips the plan
            pipe = client if multi is None else client.pipeline(transaction=multi)
            result = pipe.xadd("s", {"n": n}, idmp=(producer, b"1"))
            found.append(result if multi is None else pipe.execute()[0])
        assert found[0] == found[1] == region.xadd("s", {"n": n}, idmp=(producer, b"1"))
        return found[0]

    names = ["checkout/10.0.0.7", "checkout/10.0.0.8", "checkout/host.example", "checkout/0.7"]
    entries = [add(name, n) for n, name in enumerate(names)]
    assert [entry for entry, _ in region.xrange("s")] == entries
    assert numbers(region) == ["0", "1", "2", "3"]
