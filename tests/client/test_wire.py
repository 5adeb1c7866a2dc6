"""The pipelined connection that the gateway and the links use: order, errors, loss, back-pressure, pushes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from braidstream.commands.table import TABLE
from braidstream.engine import connection
from braidstream.engine.address import parse_address
from braidstream.engine.connection import Connection, connect
from braidstream.errors import LostError, ReplyError
from braidstream.plan.lookup import read_region
from braidstream.plan.plan import Batch, Plan, arun
from braidstream.plan.view import View
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.servers import Engine, Flavour


def on(url: str, talk: Callable[[Connection], Awaitable[Any]], **options: Any) -> Any:
    """Open a connection, run `talk` on it, close it."""

    async def whole() -> Any:
        conn = await connect(parse_address(url), **options)
        try:
            return await talk(conn)
        finally:
            conn.close()

    return asyncio.run(whole())


def test_a_thousand_batches_in_flight_each_get_their_own_replies(engine: Engine) -> None:
    async def talk(conn: Connection) -> None:
        one = [conn.send(Batch([("SET", f"k{n}", n), ("GET", f"k{n}")])) for n in range(1000)]
        assert await asyncio.gather(*one) == [[b"OK", b"%d" % n] for n in range(1000)]

    on(engine.url, talk)


def test_a_batch_without_commands_is_no_round_trip_and_hinders_nobody(engine: Engine) -> None:
    async def talk(conn: Connection) -> None:
        assert await conn.send(Batch([])) == []
        assert await conn.send(Batch([("PING",)])) == [b"PONG"]

    on(engine.url, talk)


def test_an_atomic_batch_is_a_multi_and_a_watched_change_makes_it_none(engine: Engine) -> None:
    async def talk(conn: Connection) -> None:
        assert await conn.send(Batch([("INCR", "n"), ("INCR", "n")], atomic=True)) == [1, 2]
        await conn.send(Batch([("WATCH", "n")]))
        with engine.client() as other:
            other.set("n", 9)
        assert await conn.send(Batch([("INCR", "n")], atomic=True)) is None

    on(engine.url, talk)


def test_error_replies_are_values_and_a_refused_multi_is_raised(engine: Engine) -> None:
    async def talk(conn: Connection) -> None:
        replies = await conn.send(Batch([("SET", "k", "v"), ("INCR", "k")], attempt=True))
        assert replies[0] == b"OK"
        assert isinstance(replies[1], ReplyError)
        assert replies[1].code == "ERR"
        with pytest.raises(ReplyError, match="wrong number of arguments"):
            await conn.send(Batch([("GET",)], atomic=True))
        assert await conn.send(Batch([("PING",)])) == [b"PONG"]

    on(engine.url, talk)


@pytest.mark.parametrize("protocol", [2, 3])
def test_plans_run_on_it_and_see_the_same_shapes_by_both_protocols(engine: Engine, protocol: int) -> None:
    become(engine, id_mode="liberal")

    def plan(view: View, line: str) -> Plan[Any]:
        argv = line.encode().split()
        return TABLE[argv[0]].plan(view, argv)

    async def talk(conn: Connection) -> None:
        view = View(await arun(read_region(), conn.send))
        assert await arun(plan(view, "XADD s 1-1 a b"), conn.send) == b"1-1"
        read = await arun(plan(view, "XREAD STREAMS s 0"), conn.send)
        assert read == [[b"s", [[b"1-1", [b"a", b"b"]]]]]
        info = await arun(plan(view, "XINFO STREAM s"), conn.send)
        assert info[:2] == [b"length", 1]

    on(engine.url, talk, protocol=protocol)


def test_push_messages_go_to_the_callback_and_never_among_the_replies(engine: Engine) -> None:
    pushed = list[Any]()

    async def talk(conn: Connection) -> None:
        await conn.send(Batch([("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "bs:1:")]))
        with engine.client() as other:
            other.set("bs:1:x", 1)
        while not pushed:
            assert await conn.send(Batch([("PING",)])) == [b"PONG"]

    on(engine.url, talk, protocol=3, on_push=pushed.append)
    assert pushed == [[b"invalidate", [b"bs:1:x"]]]


def test_raw_replies_among_others_each_go_where_they_belong(engine: Engine) -> None:
    async def talk(conn: Connection) -> None:
        await conn.send(Batch([("RPUSH", "list", *range(3_000)), ("SET", "text", "x"), ("SET", "n", 1)]))
        raw, plain = Batch([("LRANGE", "list", 0, -1), ("GET", "n")], raw=True), Batch([("GET", "text")])
        failing = Batch([("LRANGE", "text", 0, -1), ("GET", "n")], raw=True, attempt=True)
        gone = asyncio.ensure_future(conn.send(raw))
        await asyncio.sleep(0)
        gone.cancel()  # its replies come nevertheless
        whole = asyncio.gather(*(conn.send(each) for _ in range(20) for each in (raw, plain, failing, plain)))
        for listed, x, (error, n), y in zip(*[iter(await whole)] * 4, strict=True):
            assert (listed[1], x, n, y) == (b"1", [b"x"], b"1", [b"x"])
            assert (type(listed[0]), len(listed[0].split())) == (bytearray, 6_001)
            assert isinstance(error, ReplyError)

    on(engine.url, talk)


def test_a_raw_reply_of_a_server_that_does_not_speak_resp_ends_the_connection() -> None:
    """It sends the mark, which it has just got, within another reply; or more than a reply may have."""

    async def talk(answer: Callable[[bytes], bytes], most_bytes: int | None = None) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = await reader.readuntil(b"GET")
            writer.write(answer(data[data.index(b"$32") :][:39]))
            with suppress(ConnectionError):
                await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        conn = await connect(parse_address(f"redis://127.0.0.1:{port}"), most_bytes=most_bytes)
        with pytest.raises(LostError) as lost:
            await conn.send(Batch([("XRANGE", "s", "-", "+"), ("GET", "n")], raw=True))
        server.close()
        return lost.value.why

    for answer in (
        lambda mark: b"$200\r\n" + mark + b"*0\r\n" + mark,
        lambda mark: b"+OK\r\n" + mark + b"*0\r\n" + mark,
        lambda mark: mark + b"*0\r\n" + mark + b"?",
    ):
        assert "invalid reply" in asyncio.run(talk(answer))
    assert "more than" in asyncio.run(talk(lambda mark: mark + b"*9\r\n" + b"x" * 3_000, 2_000))


def test_the_replies_to_a_batch_have_a_limit_together(engine: Engine) -> None:
    async def talk(conn: Connection) -> None:
        await conn.send(Batch([("SET", "k", "x" * 1_000_000)]))
        for _ in range(5):
            assert len(await conn.send(Batch([("GET", "k")] * 2, resend=True))) == 2
        with pytest.raises(LostError, match="more than 3,000,000 bytes"):
            await conn.send(Batch([("GET", "k")] * 10, resend=True))

    on(engine.url, talk, most_bytes=3_000_000)


def test_a_lost_connection_fails_all_in_flight_and_says_which_may_have_written(proxy: Proxy) -> None:
    async def talk(conn: Connection) -> None:
        assert await conn.send(Batch([("PING",)])) == [b"PONG"]  # the proxy knows both ends by now
        write = asyncio.ensure_future(conn.send(Batch([("BLPOP", "nothing", 0)], block_ms=0)))
        read = asyncio.ensure_future(conn.send(Batch([("GET", "k")], resend=True)))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, proxy.cut)
        with pytest.raises(LostError, match="may or may not have been applied") as lost:
            await write
        assert lost.value.wrote
        with pytest.raises(LostError, match="Nothing was changed") as lost:
            await read
        assert not lost.value.wrote
        with pytest.raises(LostError):
            await conn.send(Batch([("PING",)]))

    on(proxy.url, talk)


def test_who_cannot_be_reached_is_named_without_secrets() -> None:
    with pytest.raises(LostError, match="127.0.0.1:1") as lost:
        on("redis://user:secret@127.0.0.1:1/0", lambda conn: conn.send(Batch([("PING",)])))
    assert "secret" not in str(lost.value)
    assert "secret" not in repr(parse_address("redis://user:secret@127.0.0.1:1/0"))


def test_a_sender_waits_while_the_engine_takes_no_more(flavour: Flavour) -> None:
    big = b"x" * 1_000_000

    async def talk(conn: Connection) -> None:
        with engine.paused():
            sent = [asyncio.ensure_future(conn.send(Batch([("SET", "k", big)]))) for _ in range(200)]
            while not conn.is_full:
                await asyncio.sleep(0.01)
            assert conn.in_flight < 200
        assert await asyncio.gather(*sent) == [[b"OK"]] * 200

    with Engine(flavour) as engine:
        on(engine.url, talk)


def test_no_more_than_so_many_batches_are_in_flight(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IN_FLIGHT", 3)

    async def talk(conn: Connection) -> None:
        most = 0
        sent = [asyncio.ensure_future(conn.send(Batch([("INCR", "n")]))) for _ in range(100)]
        while not all(each.done() for each in sent):
            await asyncio.sleep(0)
            most = max(most, conn.in_flight)
        assert most == 3
        assert [each.result() for each in sent] == [[n + 1] for n in range(100)]

    on(engine.url, talk)


def test_a_silent_engine_is_given_up_but_not_while_it_may_block(flavour: Flavour) -> None:
    async def talk(conn: Connection) -> None:
        assert await conn.send(Batch([("BLPOP", "nothing", 1)], block_ms=1000)) == [None]
        with engine.paused(), pytest.raises(LostError, match="said nothing for 0.3 s"):
            await conn.send(Batch([("PING",)]))

    with Engine(flavour) as engine:
        on(engine.url, talk, silence_s=0.3)


def test_tls_and_users_and_databases_come_from_the_url(tls_flavour: Flavour) -> None:
    async def who(conn: Connection) -> list[Any]:
        return await conn.send(Batch([("ACL", "WHOAMI"), ("CLIENT", "INFO")]))

    with Engine(tls_flavour, tls=True) as engine:
        with engine.client() as admin:
            admin.acl_setuser("ada", enabled=True, passwords=["+p@ss/word"], commands=["+@all"], keys=["*"])
        url = engine.url.replace("rediss://", "rediss://ada:p%40ss%2Fword@").replace("/0?", "/3?")
        for protocol in (2, 3):
            name, info = on(url, who, protocol=protocol)
            assert name == b"ada"
            assert b" db=3 " in info
            with pytest.raises(ReplyError, match="WRONGPASS"):
                on(url.replace("word", "wrong"), who, protocol=protocol)


def test_unix_sockets_work(flavour: Flavour) -> None:
    with Engine(flavour, unixsocket=True) as engine:
        url = f"unix://{engine.unixsocket}?db=2"
        [info] = on(url, lambda conn: conn.send(Batch([("CLIENT", "INFO")])))
        assert b" db=2 " in info


def test_an_engine_that_has_no_room_for_a_client_is_an_error(flavour: Flavour) -> None:
    with Engine(flavour, args=["--maxclients", "1"]) as engine, engine.client() as only:
        only.ping()
        with pytest.raises((LostError, ReplyError), match="max number of clients"):
            on(engine.url, lambda conn: conn.send(Batch([("PING",)], attempt=True)), protocol=3)
