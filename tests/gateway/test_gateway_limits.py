"""What one client may hold: before a login, in commands that it sends, in replies that it does not read."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from braidstream.gateway.hub import Settings
from tests.support.collisions import words_that_collide
from tests.support.event_counts import counted_events
from tests.support.gateways import Line, Served, packed, value_of
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually


@pytest.fixture
def needs_login(engine: Engine) -> Iterator[str]:
    """The URL of a region that needs a login."""
    become(engine)
    with engine.client() as admin:
        admin.execute_command("ACL", "SETUSER", "boss", "on", ">p", "~*", "&*", "+@all")
        admin.config_set("requirepass", "pp")
        yield engine.url.replace("//", "//boss:p@")
        admin.config_set("requirepass", "")
        admin.acl_deluser("boss")


def test_before_a_login_a_command_has_ten_words_of_16_kb(needs_login: str) -> None:
    with Served(needs_login) as gateway:
        for data, why in (
            (b"*2\r\n$4\r\nAUTH\r\n$16385\r\n", b"unauthenticated bulk length"),
            (b"*11\r\n", b"unauthenticated multibulk length"),
        ):
            with Line(gateway.port) as line:
                assert line.say("GET", "x" * 16384).startswith(b"-NOAUTH")
                line.socket.sendall(packed("PING") + data)
                assert line.read().startswith(b"-NOAUTH")
                assert line.read() == b"-ERR Protocol error: " + why + b"\r\n"
                assert line.read() == b""


def test_a_login_lifts_that_and_reset_brings_it_back(needs_login: str) -> None:
    large = packed("SET", "k", "x" * 100_000)
    with Served(needs_login) as gateway, Line(gateway.port) as line:
        line.socket.sendall(packed("AUTH", "boss", "p") + large + packed("DEL", *map(str, range(300))))
        assert [line.read() for _ in range(3)] == [b"+OK\r\n", b"+OK\r\n", b":0\r\n"]
        line.socket.sendall(packed("RESET") + packed("PING"))
        assert line.read() == b"+RESET\r\n"
        assert line.read().startswith(b"-NOAUTH")
        line.socket.sendall(large)
        assert line.read() == b"-ERR Protocol error: unauthenticated bulk length\r\n"


def test_where_no_login_is_needed_there_is_no_such_limit(engine: Engine) -> None:
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        for _ in range(2):
            assert line.say("XADD", "s", "*", "f", "x" * 100_000).startswith(b"$")
        assert line.say("DEL", *map(str, range(300))) == b":0\r\n"


def test_a_client_that_does_not_log_in_is_disconnected(needs_login: str) -> None:
    with Served(needs_login, Settings(login_s=0.3)) as gateway, Line(gateway.port) as fine:
        assert fine.say("AUTH boss p") == b"+OK\r\n"
        with Line(gateway.port) as silent, Line(gateway.port) as trying:
            trying.say("PING")
            for line in (silent, trying):
                with suppress(ConnectionError):
                    assert line.read() == b""
        assert fine.say("XLEN s") == b":0\r\n"


def test_a_client_that_needs_no_login_may_be_silent(engine: Engine) -> None:
    become(engine)
    with Served(engine.url, Settings(login_s=0.05)) as gateway, Line(gateway.port) as silent:
        eventually(
            lambda: any(client.is_known for client in gateway.gateway.hub.clients),
            within_s=10,
            why="the gateway should have looked",
        )
        assert silent.say("PING") == b"+PONG\r\n"


def test_replies_that_a_client_does_not_read_stay_few(engine: Engine) -> None:
    """1 MB each: without a limit all of them are held at once."""
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as line, Line(gateway.port) as other:
        for _ in range(10):
            line.say("XADD", "s", "*", "f", "x" * 100_000)
        line.socket.sendall(packed("XRANGE", "s", "-", "+") * 100 + packed("XLEN", "s"))
        most = 0
        for _ in range(50):
            other.say("PING")
            most = max(most, gateway.most_waiting())
        assert most < 3_000_000
        for _ in range(100):
            assert len(line.read()) > 1_000_000
        assert line.read() == b":10\r\n"


def test_small_reads_with_a_count_share_a_round_trip(engine: Engine) -> None:
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        line.say("XADD s * f v")
        lines = [f"XRANGE s - + COUNT {1 + n % 9}" for n in range(100)]
        assert len({*line.pipeline(*lines)}) == 1


def test_the_client_that_holds_most_is_disconnected_if_all_hold_too_much(engine: Engine) -> None:
    become(engine)
    settings = Settings(maxmemory_clients=20_000_000)
    with (
        counted_events() as counts,
        Served(engine.url, settings) as gateway,
        Line(gateway.port) as fair,
        Line(gateway.port) as sender,
        Line(gateway.port) as reader,
    ):
        for _ in range(12):
            assert fair.say("XADD", "s", "*", "f", "x" * 1_000_000).startswith(b"$")
        reader.send("XRANGE", "s", "-", "+")  # 12 MB, never read
        eventually(lambda: gateway.gateway.hub.memory > 7_000_000, within_s=20, why="a reply should wait")
        sender.socket.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000000\r\n")
        with pytest.raises(ConnectionError):
            sender.socket.sendall(b"x" * 100_000_000)
        eventually(lambda: gateway.gateway.hub.memory < 20_000_000, within_s=20, why="it should be freed")
        assert fair.say("XLEN s") == b":12\r\n"
        assert len(reader.read()) > 12_000_000, "it held less"
    assert counts["gateway.client_evicted"] == 1


def test_a_reply_that_is_too_large_is_an_error_and_the_next_command_works(engine: Engine) -> None:
    become(engine)
    with Served(engine.url, Settings(most_reply=500_000)) as gateway, Line(gateway.port) as fair:
        for _ in range(10):
            fair.say("XADD", "s", "*", "f", "x" * 100_000)
        with Line(gateway.port) as greedy:
            assert greedy.say("XRANGE s - +").startswith(b"-LOST")
            assert greedy.say("XRANGE s - + COUNT 1").startswith(b"*1")
        assert fair.say("XLEN s") == b":10\r\n"


def test_words_with_the_same_hash_in_lua_are_refused(engine: Engine) -> None:
    """50,000 of them would keep Redis busy for seconds, as arguments of a function or later as an entry."""
    become(engine)
    with Served(engine.url) as gateway:
        for command in (("XADD", "s", "*"), ("FCALL", "bs_entry_drop", "1", "bs:1:s:{s}")):
            with Line(gateway.port) as line:
                assert line.say("XADD", "s", "*", *map(str, range(2_000))).startswith(b"$")
                line.socket.sendall(packed(*command, *(word.decode() for word in words_that_collide(1_000))))
                assert line.read().startswith(b"-ERR Protocol error: hundreds of words with the same hash")
                assert line.read() == b""


@pytest.mark.parametrize("what", ["an entry", "groups"])
def test_a_payload_with_words_of_one_hash_is_not_restored(engine: Engine, what: str) -> None:
    """It is one word for the gateway. 40,000 words in it kept Redis busy for 11 s."""
    words = words_that_collide(2_000)
    with engine.client() as attacker:
        attacker.execute_command("XADD", "x", "*", *(words if what == "an entry" else ("f", "v")))
        for group in words[: 400 if what == "groups" else 0]:
            attacker.xgroup_create("x", group, "0")
        hostile = attacker.dump("x")
        attacker.flushall()
        attacker.execute_command("XADD", "y", "*", *map(str, range(2_000)))
        usual = attacker.dump("y")
        attacker.delete("y")
    become(engine)
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        assert line.say("RESTORE", "s", 0, hostile).startswith(b"-ERR the payload of 's' cannot be restored")
        assert line.say("KEYS *") == b"*0\r\n"
        assert line.say("RESTORE", "s", 0, usual) == b"+OK\r\n"
        assert line.say("XLEN s") == b":1\r\n"


@pytest.mark.parametrize(
    ("line", "most"),
    [("COMMAND INFO {get}", 510), ("WATCH {s}", 9_999), ("XREAD COUNT 1 STREAMS {s} {0}", 9_998)],
)
def test_a_command_with_thousands_of_names_is_refused(engine: Engine, line: str, most: int) -> None:
    """The gateway looks at each name, or at a row for it, and no other client is served meanwhile."""
    become(engine)

    def words(names: int) -> list[str]:
        return [
            name
            for word in line.split()
            for name in ([word[1:-1]] * names if word.startswith("{") else [word])
        ]

    refused = f"-ERR {line.split()[0]} with ".encode()
    with Served(engine.url) as gateway, Line(gateway.port, timeout_s=30) as client:
        client.say("XADD s * f v")
        assert client.say(*words(most + 1)).startswith(refused)
        assert client.say(*words(most))[:1] in (b"+", b"*")
        client.say("RESET")
        client.say("MULTI")
        in_multi = (b"-ERR WATCH inside MULTI", b"-ERR Command not allowed inside a transaction")
        assert client.say(*words(most + 1)).startswith((refused, *in_multi))


def say_until_disconnected(line: Line, data: list[bytes]) -> int:
    """How many of these commands were answered."""
    for number, each in enumerate(data):
        try:
            line.socket.sendall(each)
            if line.read() == b"":
                return number
        except ConnectionError:
            return number
    return len(data)


def test_what_a_multi_holds_counts_for_the_memory_of_all_clients(engine: Engine) -> None:
    become(engine)
    large = packed("XADD", "s", "*", "f", "x" * 1_000_000)
    with Served(engine.url, Settings(maxmemory_clients=8_000_000)) as gateway, Line(gateway.port) as fair:
        for end in ("EXEC", "DISCARD"):
            for _ in range(3):
                assert say_until_disconnected(fair, [packed("MULTI"), *[large] * 5, packed(end)]) == 7
        with Line(gateway.port) as greedy:
            assert say_until_disconnected(greedy, [packed("MULTI"), *[large] * 30]) < 12
        assert fair.say("XLEN s") == b":15\r\n"


def test_the_names_of_subscriptions_count_too(engine: Engine) -> None:
    become(engine)
    with Served(engine.url, Settings(maxmemory_clients=2_000_000)) as gateway, Line(gateway.port) as fair:
        for _ in range(3):
            for name in ("SUBSCRIBE", "UNSUBSCRIBE"):
                fair.send(name, *(f"{number:1000}" for number in range(1_000)))
                for _ in range(1_000):
                    fair.read()
        with Line(gateway.port) as greedy:
            commands = [packed("SUBSCRIBE", f"{number:10000}") for number in range(1_000)]
            assert say_until_disconnected(greedy, commands) < 300
        assert fair.say("XLEN s") == b":0\r\n"


def test_a_scan_looks_at_a_thousand_keys_at_once(engine: Engine) -> None:
    become(engine)
    names = {f"key-{number}".encode() for number in range(5_000)}
    with engine.client() as client:
        client.mset(dict.fromkeys(names, ""))
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        cursor, found, most = b"0", list[bytes](), 0
        while cursor != b"0" or not found:
            cursor, some = value_of(line.say("SCAN", cursor, "COUNT", 1_000_000))
            found += some
            most = max(most, len(some))
        assert {*found} == names
        assert most < 1_500
        for count in ("0", "-1", "x", "9" * 30):
            assert line.say("SCAN", "0", "COUNT", count).startswith(b"-ERR")
