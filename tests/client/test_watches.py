"""A WATCH lasts as long as its connection: it is not lost silently, and no plan leaves one behind."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream import lua
from braidstream.engine.sender import Sender
from braidstream.errors import ReplyError
from braidstream.operations.membership import initialise
from braidstream.plan.plan import Batch, Plan, run
from tests.support.clients import Opener
from tests.support.gateways import Line, Served
from tests.support.proxy import Proxy
from tests.support.regions import client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

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


# The right without which a plan fails after its WATCH.
HALF_WAY = {
    "RENAME": "-exists",
    "COPY": "-exists",
    "DUMP": "-unlink",
}


@pytest.mark.parametrize("command", HALF_WAY)
@pytest.mark.parametrize("through", ["client", "pipeline", "gateway"])
def test_a_command_that_is_refused_half_way_leaves_no_watch_behind(
    opened: Opener, served: Served, engine: Engine, region: braidstream.Redis, command: str, through: str
) -> None:
    region.xadd("x", {"n": "0"})
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "~*", "+@all")
        operator.execute_command("ACL", "SETUSER", "half", HALF_WAY[command])
        try:
            url = (served.url if through == "gateway" else engine.url).replace("//", "//half:any@", 1)
            client = (opened.bare if through == "gateway" else opened)(url, max_connections=1)
            words = ("x",) if command == "DUMP" else ("x", "{x}y")
            pipe = client.pipeline(transaction=False)
            pipe.execute_command(command, *words)
            with pytest.raises(redis.exceptions.NoPermissionError):
                pipe.execute() if through == "pipeline" else client.execute_command(command, *words)
            region.xadd("x", {"n": "1"})
            region.xadd("{x}y", {"n": "1"})
            region.delete("x")
            assert client.pipeline().set("k", "1").execute() == [True]
        finally:
            operator.execute_command("ACL", "DELUSER", "half")


@pytest.mark.parametrize(
    ("make", "right"), [(partial(initialise, 1, "us-east"), "-hgetall"), (lua.load, "-hget")]
)
def test_a_setup_that_is_refused_half_way_leaves_no_watch_behind(
    engine: Engine, region: braidstream.Redis, make: Callable[[], Plan[Any]], right: str
) -> None:
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "~*", "+@all", right)
        try:
            with redis.Redis.from_url(engine.url.replace("//", "//half:any@", 1)) as half:
                conn = half.connection_pool.get_connection()
                with pytest.raises(ReplyError, match="NOPERM"):
                    run(make(), Sender(conn))
                operator.hincrby("bs:config", "topology", 1)
                assert Sender(conn)(Batch([("SET", "k", "1")], atomic=True)) == [b"OK"]
        finally:
            operator.execute_command("ACL", "DELUSER", "half")


def test_a_refused_watch_at_a_gateway_watches_nothing(
    line: Line, engine: Engine, region: braidstream.Redis
) -> None:
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "plain", "reset", "on", "nopass", "~k", "+@all")
        try:
            assert line.say("AUTH plain any") == b"+OK\r\n"
            assert line.say("WATCH k").startswith(b"-NOPERM")
            region.set("k", "theirs")
            assert line.say("MULTI") == b"+OK\r\n"
            assert line.say("SET k mine") == b"+QUEUED\r\n"
            assert line.say("EXEC") == b"*1\r\n+OK\r\n"
        finally:
            operator.execute_command("ACL", "DELUSER", "plain")


@pytest.mark.parametrize("is_piped", [False, True], ids=["alone", "in a pipeline"])
@pytest.mark.parametrize("command", ["COPY x y", "RENAME x y", "DUMP x"])
def test_a_cancelled_copy_leaves_no_hidden_key(
    proxy: Proxy, engine: Engine, region: braidstream.Redis, command: str, is_piped: bool
) -> None:
    async def copy(client: braidstream.asyncio.Redis) -> None:
        if is_piped:
            await client.pipeline(transaction=False).execute_command(*command.split()).execute()
        else:
            await client.execute_command(*command.split())

    async def cancel() -> None:
        async with braidstream.asyncio.Redis.from_url(proxy.url) as client:
            proxy.stall(b"XSETID")  # the copy has all its entries
            copying = asyncio.create_task(copy(client))
            await asyncio.to_thread(proxy.stalled.wait, 20)
            assert list(operator.scan_iter("bs:copy:*"))
            copying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copying
            assert list(operator.scan_iter("bs:copy:*")) == []
            proxy.stall(b"no such bytes")
            proxy.go_on()
            assert await client.xlen("x") == 3  # and the client goes on
            assert await client.xlen("y") == 0

    for n in range(3):
        region.xadd("x", {"n": str(n)})
    with engine.client() as operator:
        asyncio.run(cancel())
        assert list(operator.scan_iter("bs:copy:*")) == []


@pytest.mark.parametrize("command", ["COPY x y", "RENAME x y", "DUMP x"])
def test_an_interrupted_copy_leaves_no_hidden_key(
    proxy: Proxy, engine: Engine, region: braidstream.Redis, background: ThreadPoolExecutor, command: str
) -> None:
    for n in range(3):
        region.xadd("x", {"n": str(n)})

    def interrupt() -> list[bytes]:
        assert proxy.stalled.wait(20)
        copies = list(operator.scan_iter("bs:copy:*"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # Ctrl-C
        return copies

    with engine.client() as operator, braidstream.Redis.from_url(proxy.url) as client:
        proxy.stall(b"XSETID")  # the copy has all its entries
        interrupting = background.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.execute_command(*command.split())
        assert len(interrupting.result()) == 1
        assert list(operator.scan_iter("bs:copy:*")) == []
        proxy.stall(b"no such bytes")
        proxy.go_on()
        assert (client.xlen("x"), client.xlen("y")) == (3, 0)  # and the client goes on


def test_a_restore_that_is_cancelled_while_it_is_sent_leaves_no_hidden_key(
    proxy: Proxy, engine: Engine, region: braidstream.Redis
) -> None:
    region.xadd("x", {"n": os.urandom(16_000_000)})  # more than sockets buffer
    with client_of(engine) as plain:
        payload = plain.dump("x")

    async def cancel() -> None:
        async with braidstream.asyncio.Redis.from_url(proxy.url) as client:
            before = len(operator.client_list())
            proxy.stall(b"RESTORE")
            restoring = asyncio.create_task(client.restore("y", 0, payload))
            await asyncio.to_thread(proxy.stalled.wait, 20)
            restoring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await restoring
            proxy.stall(b"no such bytes")
            proxy.go_on()
            await client.aclose()
            ended = partial(
                eventually, lambda: len(operator.client_list()) == before, within_s=20, why="it has ended"
            )
            await asyncio.to_thread(ended)

    with engine.client() as operator:
        asyncio.run(cancel())
        assert list(operator.scan_iter("bs:copy:*")) == []
