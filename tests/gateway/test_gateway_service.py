"""The gateway as a service: logins and rights, limits, shutdown and restart."""

import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path

import pytest
import redis

import braidstream
from braidstream import lua as functions
from braidstream.engine.resp import Limits
from braidstream.gateway.hub import Settings
from braidstream.operations.membership import initialise
from tests.support.gateways import Line, Served, packed
from tests.support.regions import become
from tests.support.servers import Engine, Flavour, tls_files
from tests.support.waiting import eventually


def read_all(one: socket.socket) -> bytes:
    found = b""
    while data := one.recv(65536):
        found += data
    return found


def test_each_client_has_its_own_rights(flavour: Flavour) -> None:
    with Engine(flavour) as engine:
        become(engine)
        with engine.client() as admin:
            stream = ["+@stream", "+@hash", "+fcall", "+type", "+exists", "+multi", "+exec", "+time"]
            admin.acl_setuser("ada", enabled=True, passwords=["+a"], commands=stream, keys=["*"])
            admin.acl_setuser(
                "bob", enabled=True, passwords=["+b"], commands=["+get", "+hgetall"], keys=["*"]
            )
            admin.execute_command("ACL", "SETUSER", "boss", "on", ">secret", "~*", "&*", "+@all")
            admin.execute_command("ACL", "SETUSER", "default", "resetpass", "-@all", "+auth", "+hello", "off")
            url = engine.url.replace("//", "//boss:secret@")
            with Served(url) as gateway, Line(gateway.port) as one, Line(gateway.port) as two:
                assert one.say("XADD s * a b") == b"-NOAUTH Authentication required.\r\n"
                assert one.say("GET k") == b"-NOAUTH Authentication required.\r\n"
                assert one.say("AUTH ada wrong").startswith(b"-WRONGPASS")
                assert one.say("AUTH ada a") == b"+OK\r\n"
                assert two.say("HELLO 3 AUTH bob b").startswith(b"%")
                for _ in range(3):
                    assert one.say("XADD s * a b").startswith(b"$")
                    assert two.say("XADD s * a b").startswith(b"-NOPERM")
                assert one.say("GET k").startswith(b"-NOPERM")
                assert two.say("GET k") == b"_\r\n"


def test_a_failed_tls_handshake_holds_no_connection_to_the_engine(engine: Engine, tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    become(engine)
    with Served(engine.url, Settings(tls=context)) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as stranger:
            stranger.sendall(b"PING\r\n" * 10)
            with suppress(ConnectionError):
                while stranger.recv(100):
                    pass
        assert not gateway.gateway.hub.backends._lanes


def test_clients_that_never_begin_the_tls_handshake_are_closed(engine: Engine, tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    become(engine)
    with (
        Served(engine.url, Settings(tls=context)) as gateway,
        socket.create_connection(("127.0.0.1", gateway.port)) as silent,
    ):
        silent.settimeout(20)
        with suppress(ConnectionError):
            assert silent.recv(1) == b""


def test_tls_and_unix_sockets_on_both_sides(tls_flavour: Flavour, tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["cert"], files["key"])
    with Engine(tls_flavour, tls=True) as engine:
        become(engine)
        with Served(engine.url, Settings(tls=context)) as gateway:
            url = f"rediss://127.0.0.1:{gateway.port}/0?ssl_ca_certs={files['ca']}"
            with redis.Redis.from_url(url) as client:
                assert client.xadd("s", {"a": 1})
                assert client.set("k", "v")
    with Engine(tls_flavour, unixsocket=True) as engine:
        become(engine)
        place = tmp_path / "gateway.sock"
        with Served(f"unix://{engine.unixsocket}", listen=f"unix:{place}"), Line(str(place)) as line:
            assert line.say("XADD s * a b").startswith(b"$")
            assert line.say("GET none") == b"$-1\r\n"
        assert not place.exists()
        place.write_text("not a socket")
        with pytest.raises(OSError, match="in use"), Served(engine.url, listen=f"unix:{place}"):
            pass
        assert place.read_text() == "not a socket"


def test_limits_are_limits(engine: Engine) -> None:
    become(engine)
    settings = Settings(maxclients=2, limits=Limits(bulk=1000, words=10, buffered=3000))
    with Served(engine.url, settings) as gateway:
        for words, why in (
            (["SET", "k", "x" * 1001], b"invalid bulk length"),
            (["DEL", *map(str, range(10))], b"invalid multibulk length"),
            (["DEL", *["x" * 900] * 4], b"too big request"),
        ):
            with Line(gateway.port) as one:
                assert one.say("SET", "k", "x" * 1000) == b"+OK\r\n"
                assert one.say(*words) == b"-ERR Protocol error: " + why + b"\r\n"
                assert one.read() == b""
        eventually(lambda: not gateway.gateway.hub.clients, within_s=30, why="all should be gone")
        with Line(gateway.port) as one, Line(gateway.port) as two:
            one.say("PING")
            two.say("PING")
            with Line(gateway.port) as three:
                assert three.read() == b"-ERR max number of clients reached\r\n"
                assert three.read() == b""


def stuff(one: socket.socket, data: bytes) -> int:
    """Send until the other side takes no more; how many bytes went. A command may be torn at the end."""
    sent = 0
    one.setblocking(False)
    try:
        while sent < len(data):
            sent += one.send(data[sent : sent + 65536])
    except BlockingIOError:
        pass
    one.settimeout(60)
    return sent


def test_a_client_that_stops_reading_costs_little_and_hinders_nobody(served: Served, line: Line) -> None:
    size = 200_000
    line.say("SET", "big", "x" * size)
    with Line(served.port) as slow, Line(served.port, timeout_s=60) as fast:
        asked = packed("GET", "big") * 20_000
        sent = stuff(slow.socket, asked)
        for n in range(100):
            assert fast.say(f"SET k {n}") == b"+OK\r\n"
        assert served.most_waiting() < 5_000_000
        for _ in range(min(200, sent // len(packed("GET", "big")))):
            assert len(slow.read()) == size + len(b"$200000\r\n\r\n")


def test_a_shutdown_answers_what_was_taken(engine: Engine) -> None:
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as one, Line(gateway.port) as blocked:
        blocked.send("BLPOP", "never", 0)
        one.say("XADD s * a b")
        one.socket.sendall(packed("XADD", "s", "*", "a", "b") * 500 + packed("XLEN", "s"))
        one.read()  # it was taken
        began = time.monotonic()
        gateway.stop()
        assert time.monotonic() - began < 20
        replies = read_all(one.socket)
        assert replies.endswith(b":501\r\n")
        assert blocked.read() == b""


def test_many_idle_clients_share_few_connections_and_keep_who_they_are(engine: Engine) -> None:
    become(engine)
    with Served(engine.url, Settings(backends=10)) as gateway:
        lines = [Line(gateway.port) for _ in range(60)]
        for n, one in enumerate(lines):
            one.say("HELLO 3")
            one.say(f"CLIENT SETNAME n{n}")
            one.say("SELECT 2")
        for n, one in enumerate(lines):
            assert one.say("CLIENT GETNAME") == b"$%d\r\nn%d\r\n" % (len(f"n{n}"), n)
            assert one.say("GET none") == b"_\r\n"
        with engine.client() as client:
            assert len(client.client_list()) < 20
        for one in lines:
            one.socket.close()


def test_an_engine_that_restarts_is_an_error_and_then_works_again(flavour: Flavour) -> None:
    with Engine(flavour, args=["--appendonly", "yes", "--appendfsync", "always"]) as engine:
        become(engine)
        with Served(engine.url) as gateway, Line(gateway.port) as plain, Line(gateway.port) as stream:
            assert plain.say("SET k v") == b"+OK\r\n"
            assert stream.say("XADD s * a b").startswith(b"$")
            engine.kill()
            assert plain.read() == b""
            assert stream.say("XADD s * a b").startswith(b"-LOST lost the engine")
            assert stream.say("XLEN s").startswith(b"-LOST lost the engine")
            engine.start()
            assert stream.say("XLEN s") == b":1\r\n"
            assert stream.say("XADD s * a b").startswith(b"$")
            with Line(gateway.port) as again:
                assert again.say("GET k") == b"$1\r\nv\r\n"


def test_a_region_in_another_database_is_where_clients_start(flavour: Flavour) -> None:
    with Engine(flavour) as engine:
        url = engine.url.replace("/0", "/9")
        with braidstream.Redis.from_url(url) as client:
            client.run_plan(initialise(1, "us-east"))
            client.run_plan(functions.load())
        with Served(url) as gateway, Line(gateway.port) as line:
            assert line.say("XADD s * a b").startswith(b"$")
            assert line.say("SET k v") == b"+OK\r\n"
            assert line.say("SELECT 0") == b"+OK\r\n"
            assert line.say("GET k") == b"$-1\r\n"
            assert line.say("RESET") == b"+RESET\r\n"
            assert line.say("GET k") == b"$1\r\nv\r\n"
            assert line.say("XLEN s") == b":1\r\n"


def test_the_loss_of_the_server_and_its_return_are_logged(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "braidstream")
    with Engine(flavour) as engine:
        become(engine)
        with engine.client() as admin:
            admin.execute_command("ACL", "SETUSER", "boss", "on", ">secret", "~*", "&*", "+@all")
        with Served(engine.url.replace("//", "//boss:secret@")) as gateway, Line(gateway.port) as line:

            def logged(*words: str) -> bool:
                return any(all(word in text for word in words) for text in caplog.messages)

            assert line.say("XADD s * a b").startswith(b"$")
            with engine.client() as admin:
                admin.execute_command("ACL", "SETUSER", "boss", ">new", "<secret")
                admin.execute_command("CLIENT", "KILL", "USER", "boss")
            is_told = lambda: logged("gateway.engine_lost", "of the gateway itself (WRONGPASS)")  # noqa: E731
            eventually(is_told, within_s=20, why="it is logged whose password is wrong")
            told = line.say("XLEN s")
            assert told.startswith(b"-LOST")
            assert b"WRONGPASS" in told
            assert b"username" not in told
            with engine.client() as admin:
                admin.execute_command("ACL", "SETUSER", "boss", ">secret")
            eventually(lambda: logged("gateway.engine_up"), within_s=20, why="its return is logged")
            assert line.say("XLEN s") == b":1\r\n"
        assert sum("gateway.engine_lost" in text for text in caplog.messages) <= 2
