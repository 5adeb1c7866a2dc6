"""A WATCH lasts as long as its connection: it is not lost silently, and no plan leaves one behind."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

import braidstream
from tests.support.clients import Opener
from tests.support.proxy import Proxy

TRANSACTIONS: dict[str, Callable[[Any], object]] = {
    "plain keys": lambda pipe: pipe.set("k", "mine"),
    "a stream": lambda pipe: pipe.xadd("x", {"n": "mine"}),
    "a new stream": lambda pipe: pipe.xadd("unborn", {"n": "mine"}),
    "a stream and a read": lambda pipe: pipe.xlen("x").xadd("x", {"n": "mine"}),
}


@pytest.mark.parametrize("transaction", TRANSACTIONS)
def test_a_connection_that_is_lost_under_watch_is_not_opened_again(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, transaction: str
) -> None:
    client = opened(proxy.url, health_check_interval=60, **opened.retry(3))
    client.xadd("x", {"n": "0"})
    with client.pipeline() as pipe:
        pipe.watch("k", "x")
        region.set("k", "theirs")
        proxy.cut()
        pipe.connection.next_health_check = 0  # a minute later
        pipe.multi()
        TRANSACTIONS[transaction](pipe)
        with pytest.raises((redis.WatchError, redis.ConnectionError)):
            pipe.execute()
    assert (region.get("k"), region.xlen("x"), region.xlen("unborn")) == ("theirs", 1, 0)
    client.xadd("x", {"n": "1"})  # and the client goes on
    assert region.xlen("x") == 2


COMMANDS: dict[str, Callable[[Any], object]] = {
    "GET": lambda pipe: pipe.get("k"),
    "XLEN": lambda pipe: pipe.xlen("x"),
    "XADD": lambda pipe: pipe.xadd("x", {"n": "1"}),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_under_watch_opens_no_lost_connection(
    opened: Opener, proxy: Proxy, region: braidstream.Redis, command: str
) -> None:
    client = opened(proxy.url, health_check_interval=60, **opened.retry(3))
    client.xadd("x", {"n": "0"})
    with client.pipeline() as pipe:
        pipe.watch("k")
        proxy.cut()
        pipe.connection.next_health_check = 0
        with pytest.raises((redis.WatchError, redis.ConnectionError)):
            COMMANDS[command](pipe)
    assert region.xlen("x") == 1


def test_health_checks_go_on_after_a_watch(proxy: Proxy) -> None:
    with braidstream.Redis.from_url(proxy.url, health_check_interval=1e-9) as client:
        with client.pipeline() as pipe:
            pipe.watch("k")
            pipe.multi()
            pipe.set("k", "1")
            assert pipe.execute() == [True]
        proxy.requests[-1].clear()
        client.get("k")
        client.get("k")
        assert bytes(proxy.requests[-1]).count(b"PING") == 2
