"""Connections to the engine that end at the worst place, and clients that say more than is done."""

import socket
import struct
import threading
from contextlib import suppress

import pytest

from braidstream.gateway import lanes
from tests.support.gateways import Line, Served, packed, value_of
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("sound")]


def test_a_value_that_breaks_off_is_not_made_up_with_an_error(engine: Engine) -> None:
    become(engine)
    value = b"x" * 500 + b"THE REST" + b"y" * 500
    with Proxy(engine.port) as proxy, Served(proxy.url) as gateway, Line(gateway.port) as line:
        assert line.say("SET", "k", value) == b"+OK\r\n"
        proxy.break_off(b"THE REST")
        line.send("GET", "k")
        seen = b""
        while data := line.socket.recv(65536):
            seen += data
        assert seen == b"$%d\r\n" % len(value) + b"x" * 500


def test_nothing_is_written_into_a_message_that_is_on_its_way(engine: Engine) -> None:
    become(engine)
    script = "redis.call('PUBLISH', 'c', string.rep('m', 4000000))"
    with Served(engine.url) as gateway, Line(gateway.port) as line, Line(engine.port) as other:
        line.say("HELLO 3")
        line.say("SUBSCRIBE c")
        with engine.paused():
            line.socket.sendall(packed("PING") + packed("XLEN"))
            [client] = gateway.gateway.hub.clients
            eventually(
                lambda: client.own and not client.own.is_idle, within_s=20, why="the PING should be sent"
            )
            other.send("EVAL", script, 0)
        replies = [line.read() for _ in range(3)]
        assert b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4000000\r\n" + b"m" * 4_000_000 + b"\r\n" in replies
        assert b"+PONG\r\n" in replies
        assert any(reply.startswith(b"-ERR wrong number") for reply in replies)


def test_a_watch_that_is_lost_is_not_taken_for_kept(engine: Engine) -> None:
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as line, Line(engine.port) as admin:
        admin.say("SET k 0")
        number = value_of(line.say("CLIENT ID"))
        assert line.say("WATCH k") == b"+OK\r\n"
        with engine.paused():
            gateway.forget()  # the next command reads which region this is, on another connection
            admin.send("CLIENT", "KILL", "ID", number)
            line.send("XLEN", "s")
        assert admin.read() == b":1\r\n"
        assert admin.say("SET k changed") == b"+OK\r\n"
        with suppress(OSError):
            line.read()
            for each in ("MULTI", "SET k mine", "EXEC"):
                line.say(each)
        assert admin.say("GET k") == b"$7\r\nchanged\r\n"


def test_appends_of_one_client_stay_in_order_when_the_stream_was_deleted(engine: Engine) -> None:
    become(engine)
    with (
        Served(engine.url) as gateway,
        Served(engine.url) as elsewhere,
        Line(gateway.port) as line,
        Line(elsewhere.port) as other,
    ):
        for _ in range(2):
            assert line.say("XADD s * n 0").startswith(b"$")
        assert other.say("DEL s") == b":1\r\n"
        with engine.paused():
            line.send("XADD", "s", "*", "n", 1)
            [client] = gateway.gateway.hub.clients
            eventually(lambda: not client.is_idle, within_s=20, why="the first should be taken")
            line.send("XADD", "s", "*", "n", 2)
            eventually(
                lambda: client.queue or (client.lane.only.conn and client.lane.only.conn.in_flight > 1),
                within_s=20,
                why="the second should have come",
            )
        ids = [value_of(line.read()), value_of(line.read())]
        assert value_of(line.say("XRANGE s - +")) == [[ids[0], [b"n", b"1"]], [ids[1], [b"n", b"2"]]]


def test_an_append_that_comes_while_the_last_is_answered_is_not_forgotten(engine: Engine) -> None:
    become(engine)
    with Proxy(engine.port) as proxy, Served(proxy.url) as gateway, Line(gateway.port) as line:
        for _ in range(2):
            assert line.say("XADD s * n zero").startswith(b"$")
        proxy.stall(b"two")
        [client] = gateway.gateway.hub.clients
        eventually(lambda: client.is_idle, within_s=20, why="both appends are answered")
        with engine.paused():
            line.send("XADD", "s", "*", "n", "one")
            eventually(lambda: not client.is_idle, within_s=20, why="the first should be taken")
            line.send("XADD", "s", "*", "n", "two")
            eventually(lambda: client.queue, within_s=20, why="the second should wait for the first")
        assert line.read().startswith(b"$")
        assert proxy.stalled.wait(20)
        line.send("XADD", "s", "*", "n", "three")
        eventually(lambda: client.queue, within_s=20, why="the third should wait for the second")
        proxy.go_on()
        assert line.read().startswith(b"$")
        assert line.read().startswith(b"$")
        assert line.say("XLEN s") == b":5\r\n"


def test_what_waits_of_one_client_is_bounded(engine: Engine) -> None:
    become(engine)
    pair, times = packed("SET", "k", "x" * 1_000_000) + packed("BLPOP", "none", "0.01"), 12
    with Served(engine.url) as gateway, Line(gateway.port, timeout_s=60) as line:
        sender = threading.Thread(target=lambda: line.socket.sendall(pair * times), daemon=True)
        sender.start()
        most = 0
        for _ in range(times):
            assert line.read() == b"+OK\r\n"
            assert line.read() == b"*-1\r\n"
            most = max(most, gateway.most_queued())
        sender.join(20)
        assert 0 < most < 7_000_000


def test_a_write_that_was_applied_is_not_said_to_have_changed_nothing(engine: Engine) -> None:
    become(engine)
    with Proxy(engine.port) as proxy, Served(proxy.url) as gateway, Line(gateway.port) as line:
        proxy.lose_replies(b"KEYS", times=1)  # they come in a round trip after the append
        replies = line.pipeline("XADD s * n 1", "KEYS nothing", "XLEN s")
        assert proxy.lost == 1
        assert line.say("XLEN s") == b":1\r\n"
        for reply in replies:
            assert reply.startswith(b"-LOST")
            assert b"may or may not have been applied" in reply
            assert b"Nothing was changed" not in reply


def test_a_connection_that_says_nothing_any_more_is_replaced(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "SILENCE_S", 2.0)
    become(engine)
    with Proxy(engine.port) as proxy, Served(proxy.url) as gateway, Line(gateway.port) as line:
        assert line.say("XADD s * n 1").startswith(b"$")
        with Line(gateway.port) as other:
            assert other.say("XLEN s") == b":1\r\n"
            proxy.swallow()
            other.send("XADD", "s", "*", "n", 2)
            assert line.say("XLEN s").startswith(b"-LOST")
            assert b"may or may not have been applied" in other.read()
        proxy.deliver()
        assert line.say("XLEN s") == b":1\r\n"


def _reset(line: Line) -> None:
    """End the connection as a client does that has not read all its replies, and as a killed one does."""
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.socket.close()


@pytest.mark.parametrize("command", ["COPY x y", "RENAME x y"])
def test_a_client_that_leaves_during_a_copy_leaves_no_half_of_it(engine: Engine, command: str) -> None:
    become(engine)
    with Proxy(engine.port) as proxy, Served(proxy.url) as gateway, engine.client() as operator:
        with Line(gateway.port) as line:
            line.pipeline(*[f"XADD x * n {n}" for n in range(1_200)])  # three pages
            proxy.stall(b"bs:copy:")
            line.send(*command.split())
            eventually(proxy.stalled.is_set, within_s=20, why="the copy should begin")
            _reset(line)
        eventually(lambda: not gateway.gateway.hub.clients, within_s=20, why="the client should be gone")
        proxy.stall(b"no such bytes")
        proxy.go_on()
        with Line(gateway.port) as other:
            eventually(lambda: other.say("XLEN y") == b":1200\r\n", within_s=20, why="it should be copied")
        assert operator.keys("bs:copy:*") == []
        eventually(lambda: gateway.gateway.hub.backends.owned == 0, within_s=20, why="it should be closed")


def test_a_lone_client_that_leaves_during_flushdb_leaves_an_empty_database(engine: Engine) -> None:
    become(engine)
    with Proxy(engine.port) as proxy, Served(proxy.url) as gateway, engine.client() as operator:
        operator.mset({f"key {n}": n for n in range(5_000)})
        with Line(gateway.port) as line:
            line.say("PING")
            proxy.stall(b"UNLINK")
            line.send("FLUSHDB")
            eventually(proxy.stalled.is_set, within_s=20, why="the deletion should begin")
            _reset(line)
        eventually(lambda: not gateway.gateway.hub.clients, within_s=20, why="the client should be gone")
        proxy.stall(b"no such bytes")
        proxy.go_on()
        eventually(lambda: not operator.keys("key *"), within_s=20, why="all keys should be deleted")
