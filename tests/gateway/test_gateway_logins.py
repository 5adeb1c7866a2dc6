"""Passwords, users with few rights, clients that leave: the gateway grants no more than the engine."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest
import redis

import braidstream
from braidstream import lua as functions
from braidstream.gateway.session import Login
from braidstream.operations.membership import initialise
from tests.support.gateways import Line, Served
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("sound")]

NOAUTH = b"-NOAUTH Authentication required.\r\n"


@pytest.fixture
def alone(flavour: Flavour) -> Iterator[Engine]:
    """An engine of the test's own: it changes who may come in."""
    with Engine(flavour) as engine:
        become(engine)
        yield engine


@pytest.mark.parametrize(
    ("shut", "reopen"),
    [
        ("CONFIG SET requirepass pp", ["CONFIG", "SET", "requirepass", ""]),
        ("ACL SETUSER default off", ["ACL", "SETUSER", "default", "on"]),
    ],
)
def test_who_comes_after_a_password_was_set_is_asked_for_it(
    alone: Engine, shut: str, reopen: list[str]
) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway, Line(gateway.port) as before:
        for _ in range(3):
            assert before.say("XADD s * a b").startswith(b"$")
        assert admin.say(shut) == b"+OK\r\n"
        for _ in range(2):
            with Line(gateway.port) as after:
                for line in ("XLEN s", "XADD s * a b", "XRANGE s - +", "KEYS *", "DEL s", "GET k", "XLEN s"):
                    assert after.say(line) == NOAUTH
                assert after.pipeline("XADD s * a b", "XADD s * a b") == [NOAUTH, NOAUTH]
        assert before.say("XADD s * a b").startswith(b"$"), "whom the engine let in stays in"
        assert before.say("XLEN s") == b":4\r\n"
        assert before.say("RESET") == b"+RESET\r\n"
        assert before.say("XLEN s") == NOAUTH
        assert admin.say(*reopen) == b"+OK\r\n"
        with Line(gateway.port) as after:
            assert after.say("XLEN s") == before.say("XLEN s") == b":4\r\n"


@pytest.mark.parametrize("login", ["AUTH pp", "HELLO 2 AUTH default pp", "HELLO 3 AUTH default pp"])
def test_a_client_logs_in_to_a_region_in_another_database(flavour: Flavour, login: str) -> None:
    with Engine(flavour, args=["--requirepass", "pp"]) as engine:
        url = f"redis://:pp@127.0.0.1:{engine.port}/2"
        with braidstream.Redis.from_url(url) as client:
            client.run_plan(initialise(1, "one"))
            client.run_plan(functions.load())
        with Served(url) as gateway, Line(gateway.port) as line:
            for each in ("PING", "XLEN s", "GET k", "XADD s * a b", "AUTH"):
                assert line.say(each).startswith((b"-NOAUTH", b"-ERR wrong number"))
            assert line.say("AUTH wrong").startswith(b"-WRONGPASS")
            assert not line.say(login).startswith(b"-")
            assert line.say("SET k v") == b"+OK\r\n"
            assert line.say("XADD s * a b").startswith(b"$")
        with redis.Redis.from_url(url) as operator:
            assert operator.get("k") == b"v"
            assert operator.exists("bs:1:s:{s}") == 1


def test_a_client_without_a_login_stays_in_its_database_when_the_password_is_removed(
    flavour: Flavour,
) -> None:
    with Engine(flavour) as engine, Line(engine.port) as admin:
        url = f"redis://:pp@127.0.0.1:{engine.port}/2"
        admin.say("CONFIG SET requirepass pp")
        with braidstream.Redis.from_url(url) as client:
            client.run_plan(initialise(1, "one"))
            client.run_plan(functions.load())
        with Served(url) as gateway, Line(gateway.port) as line:
            for each in ("GET k", "XLEN s"):
                assert line.say(each) == NOAUTH
            assert admin.say("ACL", "SETUSER", "default", "nopass") == b"+OK\r\n"
            assert line.say("SET k v") == b"+OK\r\n"
            assert line.say("XADD s * a b").startswith(b"$")
        assert admin.say("DBSIZE") == b":0\r\n"
        admin.say("SELECT 2")
        assert admin.say("GET k") == b"$1\r\nv\r\n"


def test_who_logs_in_may_go_on_and_who_logged_in_before_too(alone: Engine) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway, Line(gateway.port) as before:
        admin.say("ACL SETUSER u on >old ~* &* +@all")
        assert before.say("AUTH u old") == b"+OK\r\n"
        assert before.say("XADD s * a b").startswith(b"$")
        admin.say("ACL SETUSER u <old >new")
        with Line(gateway.port) as after:
            assert after.say("AUTH u old").startswith(b"-WRONGPASS")
            assert after.say("AUTH u new") == b"+OK\r\n"
            assert after.say("XLEN s") == before.say("XLEN s") == b":1\r\n"


def test_a_user_and_any_password_where_none_is_needed(alone: Engine) -> None:
    with Served(alone.url) as gateway, Line(gateway.port) as line:
        assert line.say("AUTH default x") == b"+OK\r\n"
        assert line.pipeline("WATCH k", "MULTI", "SET k v") == [b"+OK\r\n", b"+OK\r\n", b"+QUEUED\r\n"]
        assert line.say("EXEC") == b"*1\r\n+OK\r\n"
        assert line.say("XADD s * a b").startswith(b"$")


def test_a_client_that_resets_and_is_gone_takes_nobody_along(alone: Engine) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway, Line(gateway.port) as stays:
        admin.say("ACL SETUSER u on >topsecret ~* &* +@all")
        leaves = Line(gateway.port)
        for line in (stays, leaves):
            assert line.say("AUTH u topsecret") == b"+OK\r\n"
            for _ in range(2):
                assert line.say("XADD s * a b").startswith(b"$")
        alone.pause()
        leaves.socket.sendall(b"XADD s * a b\r\n" * 3 + b"RESET\r\n")
        stays.send("XADD", "s", "*", "a", "b")
        leaves.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        leaves.socket.close()
        eventually(lambda: len(gateway.gateway.hub.clients) == 1, within_s=20, why="one should be gone")
        alone.resume()
        assert stays.read().startswith(b"$")
        assert stays.say("XADD s * a b").startswith(b"$")
    assert "topsecret" not in repr(Login(b"u", b"topsecret"))


def test_subscribing_ends_where_ping_is_refused(alone: Engine) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway:
        admin.say("ACL SETUSER p on >p &* +subscribe +unsubscribe +publish")
        said = ["AUTH p p", "SUBSCRIBE c", "PING", "PING x", "UNSUBSCRIBE c", "PUBLISH c m", "PING"]
        with Line(alone.port) as bare, Line(gateway.port) as line:
            assert [line.say(each) for each in said] == [bare.say(each) for each in said]
        admin.say("CONFIG SET requirepass pp")
        said = ["SUBSCRIBE a b", "PSUBSCRIBE c", "UNSUBSCRIBE", "AUTH pp", "SUBSCRIBE c", "PING"]
        with Line(alone.port) as bare, Line(gateway.port) as line:
            assert [line.say(each) for each in said] == [bare.say(each) for each in said]


def test_a_user_without_the_right_to_command_info_is_denied_it_once_per_connection(alone: Engine) -> None:
    """The gateway reads the region every second: a denial each time would fill ACL LOG."""
    with alone.client(decode_responses=True) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">pp", "~*", "+@all", "-command")
        admin.execute_command("ACL", "LOG", "RESET")
        url = alone.url.replace("//", "//app:pp@", 1)
        with Served(url) as gateway, Line(gateway.port) as line:
            ours = count(start=1)
            before = admin.info("commandstats")["cmdstat_info"]["calls"]

            def times_read() -> int:
                """How often the gateway has read the region: it sends INFO with that, and so do we."""
                line.say("XLEN s")
                return int(admin.info("commandstats")["cmdstat_info"]["calls"]) - before - next(ours)

            eventually(lambda: times_read() > 3, within_s=20, why="the region is read again and again")
        denied = [each for each in admin.acl_log() if each["object"].startswith("command")]
        assert sum(each["count"] for each in denied) <= 2, (
            "one for each connection: at the start, and the lane"
        )


def test_restore_without_rights_is_refused_as_the_engine_refuses_it(alone: Engine) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway, Line(gateway.port) as line:
        admin.say("ACL SETUSER mallory on >m ~a ~bs:*:{a}* %R~bs:config +@all")
        assert line.say("AUTH mallory m") == b"+OK\r\n"
        assert line.say("RESTORE b 0 x REPLACE").startswith(b"-NOPERM")
        assert line.say("PING") == b"+PONG\r\n"


def test_wrong_passwords_are_logged_counted_and_delayed_for_the_client_that_sent_them(
    alone: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway:
        admin.say("ACL SETUSER ada on >right ~* &* +@all")
        with Line(gateway.port) as guessing, Line(gateway.port) as fine, caplog.at_level("INFO"):
            began = time.monotonic()
            for _ in range(8):
                assert guessing.say("AUTH ada wrong").startswith(b"-WRONGPASS")
            assert time.monotonic() - began > 0.6  # 0.1 + 0.2 + 0.4
            guessing.send("HELLO", 3, "AUTH", "ada", "wrong")
            began = time.monotonic()
            assert fine.say("AUTH ada right") == b"+OK\r\n"
            assert time.monotonic() - began < 0.5, "who knows its password does not wait"
            assert guessing.read().startswith(b"-WRONGPASS")
        values = {
            family.name: family.samples[0][2] for family in gateway.gateway.families() if family.samples
        }
    assert values["braid_gateway_login_failures_total"] == 9
    [line] = [each for each in caplog.messages if each.startswith("gateway.login_failed")]
    assert "client=127.0.0.1:" in line
    assert "user=ada" in line


def test_guesses_over_many_connections_are_refused_but_known_logins_are_not(alone: Engine) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway, ExitStack() as stack:
        admin.say("ACL SETUSER ada on >right ~* &* +@all")
        admin.say("ACL SETUSER bob on >other ~* &* +@all")
        with Line(gateway.port) as before:
            assert before.say("AUTH ada right") == b"+OK\r\n"
        guessing = [stack.enter_context(Line(gateway.port)) for _ in range(80)]
        for number, line in enumerate(guessing):
            line.send("AUTH", "ada", f"wrong-{number}")
        replies = [line.read() for line in guessing]
        assert all(reply.startswith((b"-WRONGPASS", b"-ERR too many wrong")) for reply in replies)
        with Line(gateway.port) as line:
            assert line.say("AUTH bob other").startswith(b"-ERR too many wrong passwords")
            assert line.say("HELLO 3 AUTH bob other").startswith(b"-ERR too many wrong passwords")
            # The engine uses the last login of a HELLO.
            for first in ("AUTH ada right", "SETNAME AUTH"):
                reply = line.say(f"HELLO 3 {first} AUTH bob other")
                assert reply.startswith(b"-ERR too many wrong passwords"), first
            assert line.say("HELLO 3").startswith((b"%", b"-NOAUTH"))
            assert line.say("AUTH ada right") == b"+OK\r\n"


def test_denials_are_counted_and_administrative_commands_are_logged_with_who_and_from_where(
    alone: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with Line(alone.port) as admin, Served(alone.url) as gateway, Line(gateway.port) as line:
        admin.say("ACL SETUSER ada on >a ~a ~bs:*:{a}* %R~bs:config &* +@all")
        line.say("AUTH ada a")
        with caplog.at_level("INFO"):
            for each in ("GET b", "XLEN b", "SET b v", "XADD b * f v"):
                assert line.say(each).startswith(b"-NOPERM")
            line.say("ACL SETUSER eve on >s3cr3t")
            line.say("CONFIG GET port")
            line.pipeline("CONFIG SET maxmemory 0", "FLUSHDB")
        values = {
            family.name: family.samples[0][2] for family in gateway.gateway.families() if family.samples
        }
    assert values["braid_gateway_denied_total"] >= 4
    lines = [each for each in caplog.messages if each.startswith("gateway.admin")]
    assert [each.partition("command=")[2] for each in lines] == ['"ACL SETUSER"', '"CONFIG SET"', "FLUSHDB"]
    assert all("user=ada" in each and "client=127.0.0.1:" in each for each in lines)
    assert "s3cr3t" not in caplog.text
