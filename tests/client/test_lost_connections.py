"""A connection that is lost: a write is never sent twice and the error says what is not known; a read is.

Every test runs on the sync client and on its asyncio twin.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.backoff import AbstractBackoff

import braidstream
from tests.support.clients import Opener
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

UNKNOWN = "may or may not have been applied"


def test_redis_py_itself_sends_an_append_eleven_times(opened: Opener, proxy: Proxy, engine: Engine) -> None:
    """The contrast: what the next tests rule out."""
    assert redis.Redis().get_retry().get_retries() == 10
    proxy.lose_replies(b"XADD", times=100)
    with pytest.raises(redis.ConnectionError):
        opened.bare(proxy.url, **opened.retry(10)).xadd("bare", {"n": "1"})
    with engine.client() as operator:
        assert (operator.xlen("bare"), proxy.lost) == (11, 11)


@pytest.mark.parametrize("stream", ["unborn", "known"])
def test_an_append_whose_reply_is_lost_was_sent_once_and_the_error_says_so(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, stream: str
) -> None:
    client = opened(proxy.url, **opened.retry(10))
    if stream == "known":
        client.xadd(stream, {"n": "0"})
    # A missing strand: the append returns nil, then one MULTI creates the strand and appends.
    proxy.lose_replies(b"bs_strand_ensure" if stream == "unborn" else b"XADD", times=100)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        client.xadd(stream, {"n": "1"})
    assert proxy.lost == 1
    assert [fields["n"] for _, fields in region.xrange(stream)][-1:] == ["1"]
    assert region.xlen(stream) == 1 + (stream == "known")
    proxy.lose_replies(b"", times=0)
    client.xadd(stream, {"n": "2"})  # and the client goes on
    assert [fields["n"] for _, fields in region.xrange(stream)][-2:] == ["1", "2"]


WRITES: dict[str, Callable[[Any], object]] = {
    "XADD 110": lambda client: client.xadd("x", {"n": "1"}, id="110"),
    "XADD MAXLEN": lambda client: client.xadd("x", {"n": "1"}, maxlen=5),
    "XADD NOMKSTREAM": lambda client: client.xadd("x", {"n": "1"}, nomkstream=True),
    "XDEL": lambda client: client.xdel("x", "1-1"),
    "XTRIM": lambda client: client.xtrim("x", maxlen=0),
    "DEL": lambda client: client.delete("x"),
    "RENAME": lambda client: client.rename("x", "{x}y"),
    "pipeline": lambda client: client.pipeline(transaction=False).get("k").xadd("x", {"n": "1"}).execute(),
    "MULTI": lambda client: client.pipeline().xadd("x", {"n": "1"}).xlen("x").execute(),
    "XREAD and XADD in a pipeline": lambda client: (
        client.pipeline(transaction=False).xread({"x": 0}).xadd("x", {"n": "1"}).execute()
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_no_write_is_sent_again_after_a_lost_reply(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, write: str
) -> None:
    client = opened(proxy.url, **opened.retry(10))
    client.xadd("x", {"n": "0"}, id="100")
    pattern = {"DEL": b"bs_braid_delete", "XADD NOMKSTREAM": b"NOMKSTREAM", "RENAME": b"UNLINK"}
    proxy.lose_replies(pattern.get(write, b"XTRIM" if write == "XTRIM" else b"bs:1:s:{x}"), times=100)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        WRITES[write](client)
    assert proxy.lost == 1
    assert region.xlen("x") + region.xlen("{x}y") <= 2


READS: dict[str, Callable[[Any], object]] = {
    "XRANGE": lambda client: len(client.xrange("x")),
    "XREVRANGE": lambda client: len(client.xrevrange("x")),
    "XLEN": lambda client: client.xlen("x"),
    "XREAD": lambda client: len(client.xread({"x": 0})[0][1]),
    "XINFO": lambda client: client.xinfo_stream("x")["length"],
    "EXISTS": lambda client: client.exists("x"),
    "TYPE": lambda client: client.type("x") == b"stream",
    "KEYS": lambda client: len(client.keys("x*")),
    "SCAN": lambda client: len(client.scan(0, match="x*", count=100)[1]),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_whose_reply_is_lost_is_asked_again(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, read: str
) -> None:
    region.xadd("x", {"n": "0"})
    client = opened(proxy.url, **opened.retry(10))
    client.ping()
    proxy.lose_replies(b"", times=3)  # the next three requests, whatever they are
    assert (READS[read](client), proxy.lost) == (1, 3)


def test_entries_that_a_group_read_has_delivered_are_returned_if_the_reply_about_the_next_stream_is_lost(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    for name in ("w", "x"):
        region.xgroup_create(name, "jobs", "0", mkstream=True)
        region.xadd(name, {"n": name})
    client = opened(proxy.url, decode_responses=True, **opened.retry(10))
    proxy.lose_replies(b"bs:1:s:{x}", times=100)
    [[name, [(_, fields)]]] = client.xreadgroup("jobs", "ann", {"w": ">", "x": ">"})
    assert (name, fields, proxy.lost) == ("w", {"n": "w"}, 1)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        client.xreadgroup("jobs", "ann", {"w": ">", "x": ">"})


def test_connecting_is_retried_because_nothing_was_sent(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    class OpensTheDoor(AbstractBackoff):
        """No answer for three attempts; then the server is back."""

        def compute(self, failures: int) -> float:
            if failures == 3:
                proxy.open()
            return 0

    client = opened(proxy.url, **opened.retry(10, OpensTheDoor()))
    client.xadd("x", {"n": "1"})
    proxy.cut_off()
    client.xadd("x", {"n": "2"})
    assert [fields["n"] for _, fields in region.xrange("x")] == ["1", "2"]


def test_a_connection_that_was_cut_while_idle_is_replaced_before_an_append_is_sent(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    client = opened(proxy.url, **opened.retry(10))
    for n in range(5):
        client.xadd("x", {"n": str(n)})
        proxy.cut()
    assert [fields["n"] for _, fields in region.xrange("x")] == ["0", "1", "2", "3", "4"]


def test_an_append_does_not_replace_a_connection_that_was_cut_under_watch(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    client = opened(proxy.url, **opened.retry(10))
    client.xadd("x", {"n": "0"})
    pipe = client.pipeline()
    pipe.watch("k")
    pipe.xadd("x", {"n": "1"})
    proxy.cut()
    with pytest.raises(redis.RedisError):
        pipe.xadd("x", {"n": "2"})


def test_a_pipeline_in_which_a_login_fails_is_sent_once_and_the_error_says_so(
    opened: Opener, proxy: Proxy, region: braidstream.Redis
) -> None:
    client = opened(proxy.url, **opened.retry(3))
    pipe = client.pipeline(transaction=False)
    pipe.execute_command("AUTH", "ann", "wrong")
    pipe.xadd("x", {"n": 0}).xadd("x", {"n": 1})
    with pytest.raises(redis.AuthenticationError, match=UNKNOWN):
        pipe.execute()
    assert [fields["n"] for _, fields in region.xrange("x")] == ["0", "1"]


def test_a_pipeline_that_is_refused_after_an_append_is_not_sent_again(opened: Opener, proxy: Proxy) -> None:
    client = opened(proxy.url, **opened.retry(3))
    client.xadd("x", {"n": 0})
    proxy.answer(b"XADD", b":0\r\n$3\r\n1-1\r\n-LOADING Redis is loading the dataset in memory\r\n")
    before = sum(sent.count(b"XADD") for sent in proxy.requests)
    with pytest.raises(redis.exceptions.BusyLoadingError, match=UNKNOWN):
        client.pipeline(transaction=False).xadd("x", {"n": 1}).xadd("x", {"n": 2}).execute()
    assert sum(sent.count(b"XADD") for sent in proxy.requests) == before + 2


def test_a_multi_that_was_refused_has_run_the_commands_before_a_refusal(opened: Opener, proxy: Proxy) -> None:
    """A user without the right to MULTI: the first entry of a stream is a MULTI of ours."""
    client = opened(proxy.url, **opened.retry(3))
    client.xadd("x", {"n": 0})
    before = sum(sent.count(b"MULTI") for sent in proxy.requests)
    refused = b"-NOPERM User app has no permissions to run the 'multi' command\r\n"
    proxy.answer(b"MULTI", refused + b":1\r\n-LOADING Redis is loading the dataset in memory\r\n")
    with pytest.raises(redis.exceptions.BusyLoadingError, match=UNKNOWN):
        client.xadd("new", {"n": 1})
    assert sum(sent.count(b"MULTI") for sent in proxy.requests) == before + 1


def test_a_refusal_by_a_server_that_is_loading_is_no_lost_reply(opened: Opener, flavour: Flavour) -> None:
    slow = ["--enable-debug-command", "yes", "--key-load-delay", "20000"]
    slow += ["--loading-process-events-interval-bytes", "1024"]
    with Engine(flavour, args=slow) as engine:
        become(engine)
        client = opened(engine.url, **opened.retry(0))
        client.xadd("x", {"n": "1"})
        with engine.client() as operator, ThreadPoolExecutor(1) as background:
            operator.mset({f"key {n}": n for n in range(40)})
            refused = list[str]()

            def reloaded() -> bool:
                reload = background.submit(operator.execute_command, "DEBUG", "RELOAD")
                while not reload.done():
                    try:
                        client.xadd("x", {"n": "2"})
                    except redis.exceptions.BusyLoadingError as error:
                        refused.append(str(error))
                return bool(refused)

            eventually(reloaded, within_s=20, why="a write should meet the server while it loads")
            assert not [text for text in refused if UNKNOWN in text]
