"""Words that are no command, or hardly one, at the gateway: refused, and answered, as the engine does."""

import pytest
import redis

from tests.support.gateways import Line, Served, value_of
from tests.support.regions import client_of
from tests.support.servers import FLAVOURS, Engine

BROKEN = {
    b"*-5\r\n*1\r\n$4\r\nPING\r\n": b"+PONG\r\n",
    b"*0\r\n*1\r\n$4\r\nPING\r\n": b"+PONG\r\n",
    b"*x\r\n": b"-ERR Protocol error: invalid multibulk length\r\n",
    b"*99999999999\r\n": b"-ERR Protocol error: invalid multibulk length\r\n",
    b"*1\r\n+PING\r\n": b"-ERR Protocol error: expected '$', got '+'\r\n",
    b"*1\r\n*1\r\n$4\r\nPING\r\n": b"-ERR Protocol error: expected '$', got '*'\r\n",
    b"*1\r\n$-1\r\n": b"-ERR Protocol error: invalid bulk length\r\n",
    b"*1\r\n$9999999999\r\n": b"-ERR Protocol error: invalid bulk length\r\n",
    b"*1\r\n$ 4\r\nPING\r\n": b"-ERR Protocol error: invalid bulk length\r\n",
    b"*" + b"1" * 70_000: b"-ERR Protocol error: too big mbulk count string\r\n",
    b"*1\r\n$" + b"1" * 70_000: b"-ERR Protocol error: too big bulk count string\r\n",
    b"x" * 70_000: b"-ERR Protocol error: too big inline request\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\n\r\n": b"",
}


@pytest.mark.parametrize("hostile", BROKEN, ids=lambda each: repr(each[:20]))
def test_what_is_no_command_is_refused_in_the_engines_words(
    served: Served, bare: Line, hostile: bytes
) -> None:
    for port in (served.port, bare.socket.getpeername()[1]):
        with Line(port, timeout_s=10 if port == served.port else 2) as one:
            one.socket.sendall(hostile)
            try:
                assert one.read() == BROKEN[hostile]
            except TimeoutError:  # Redis 8.10 goes on reading digits of a bulk's length
                assert port != served.port
                assert hostile.startswith(b"*1\r\n$111")
                continue
            if not BROKEN[hostile].startswith(b"+"):
                assert _is_closed(one)


def _is_closed(line: Line) -> bool:
    """An engine that closes before it has read everything resets the connection."""
    try:
        return line.read() == b""
    except ConnectionResetError:
        return True


def test_a_value_is_never_part_of_the_protocol(line: Line, engine: Engine) -> None:
    """SET ... GET of a name that the gateway knows as a stream, and a key whose name is a status."""
    hostile = b"x\r\n+INJECTED"
    line.pipeline("XADD s * a 1", "XLEN s")
    with client_of(engine) as other:
        other.delete("s")
        other.set("s", hostile)
    assert line.say("SET s v GET") == b"$%d\r\n%b\r\n" % (len(hostile), hostile)
    assert line.say("SET s OK GET") == b"$1\r\nv\r\n"
    assert line.say("SET s v2 GET") == b"$2\r\nOK\r\n"
    assert line.say("SET s v3") == b"+OK\r\n"
    line.pipeline("FLUSHDB", "SET OK 1")
    assert line.say("RANDOMKEY") == b"$2\r\nOK\r\n"


HUGE = "9" * 5000
NUMBERS = [
    f"EXPIRE k {HUGE}",
    f"PEXPIREAT k -{HUGE}",
    f"XADD s MAXLEN {HUGE} * a b",
    f"XADD s MAXLEN ~ 1 LIMIT {HUGE} * a b",
    f"XADD s {HUGE} a b",
    f"XADD s 1-{HUGE} a b",
    f"XADD s {HUGE}-* a b",
    f"XTRIM s MAXLEN {HUGE}",
    f"XTRIM s MINID {HUGE}",
    f"XRANGE s - + COUNT {HUGE}",
    f"XRANGE s {HUGE} +",
    f"XREVRANGE s + ({HUGE}",
    f"XREAD COUNT {HUGE} STREAMS s 0",
    f"XREAD BLOCK {HUGE} STREAMS s 0",
    f"XREAD STREAMS s {HUGE}-1",
    f"XREADGROUP GROUP g c COUNT {HUGE} STREAMS s >",
    f"XPENDING s g IDLE {HUGE} - + 1",
    f"XPENDING s g - + {HUGE}",
    f"XCLAIM s g c {HUGE} 1-1",
    f"XCLAIM s g c 0 1-1 RETRYCOUNT {HUGE}",
    f"XAUTOCLAIM s g c {HUGE} 0",
    f"XAUTOCLAIM s g c 0 {HUGE}",
    f"XAUTOCLAIM s g c 0 0 COUNT {HUGE}",
    f"XGROUP CREATE s h {HUGE}",
    f"XGROUP SETID s g {HUGE}-1",
    f"XGROUP CREATE s h 0 ENTRIESREAD {HUGE}",
    f"XSETID s {HUGE}",
    f"XSETID s 99999999999999-1 ENTRIESADDED {HUGE}",
    f"XDEL s {HUGE}-1",
    f"XACK s g {HUGE}-1",
    f"XINFO STREAM s FULL COUNT {HUGE}",
    f"SCAN {HUGE}",
    f"SCAN 0 COUNT {HUGE}",
    f"COPY s t DB {HUGE}",
    f"RESTORE t {HUGE} x",
    f"OBJECT ENCODING {HUGE}",
]


def test_a_number_of_thousands_of_digits_is_refused_in_the_words_of_the_engine(
    line: Line, bare: Line
) -> None:
    for one in (line, bare):
        one.pipeline("XADD s * a b", "XGROUP CREATE s g 0", "SET k v")
    seen = [(words[:40], line.say(words)) for words in NUMBERS]
    assert seen == [(words[:40], bare.say(words)) for words in NUMBERS]
    for newer in (f"XDELEX s IDS {HUGE} 1-1", f"XACKDEL s g IDS {HUGE} 1-1"):
        assert line.say(newer) == b"-ERR Number of IDs must be a positive integer\r\n"


@pytest.mark.parametrize("order", ["GROUP streams streams COUNT 1", "COUNT 1 GROUP streams block"])
def test_a_group_may_be_called_streams(served: Served, line: Line, order: str) -> None:
    line.pipeline("XADD s * n 1", "XADD s * n 2", "XADD s * n 3", "XGROUP CREATE s streams 0")
    read = f"XREADGROUP {order} STREAMS s >"
    with Line(served.port) as fresh:
        served.forget()
        first, second = fresh.pipeline(read, read)
        assert (b"\r\n$1\r\n1\r\n" in first, b"\r\n$1\r\n2\r\n" in second) == (True, True), (first, second)
        served.forget()
        [*_, done] = fresh.pipeline("MULTI", read, "EXEC")
        assert b"\r\n$1\r\n3\r\n" in done, done
    refused = line.say(f"XREADGROUP {order} STREAMS bs:1:s:{{s}} >")
    assert b"braidstream's own storage" in refused


def test_an_exec_that_fails_ends_the_watch(served: Served, engine: Engine) -> None:
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "+@all", "-type", "~*")
        try:
            with Line(served.port) as user, Line(served.port) as other:
                assert user.say("AUTH app secret") == b"+OK\r\n"
                [*_, failed] = user.pipeline("SET k 1", "WATCH k", "MULTI", "XLEN s", "EXEC")
                assert failed.startswith(b"-NOPERM"), failed
                other.say("SET k 2")
                assert user.pipeline("MULTI", "GET k", "EXEC")[-1] == b"*1\r\n$1\r\n2\r\n"
        finally:
            operator.execute_command("ACL", "DELUSER", "app")


def test_a_user_without_discard_runs_one_multi_after_another(served: Served, engine: Engine) -> None:
    with engine.client() as operator:
        operator.execute_command(
            "ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", "-discard"
        )
        try:
            with Line(served.port) as user:
                assert user.say("AUTH app pw") == b"+OK\r\n"
                for number in range(1, 4):
                    [*_, done] = user.pipeline("MULTI", "INCR n", "XADD s * f v", "XLEN s", "EXEC")
                    assert done.startswith(b"*3\r\n:%d\r\n" % number), done
                    assert user.say("GET n") == b"$1\r\n%d\r\n" % number
                [*_, refused, queued, aborted] = user.pipeline(
                    "MULTI", "INCR n", "DISCARD", "XADD s * f v", "EXEC"
                )
                assert refused.startswith(b"-NOPERM")
                assert queued == b"+QUEUED\r\n"
                assert aborted.startswith(b"-EXECABORT")
                assert user.pipeline("GET n", "XLEN s") == [b"$1\r\n3\r\n", b":3\r\n"]
        finally:
            operator.execute_command("ACL", "DELUSER", "app")


@pytest.mark.parametrize("flavour", FLAVOURS, indirect=True)
@pytest.mark.parametrize("protocol", [2, 3])
def test_command_lists_the_commands_of_the_gateway_too(served: Served, engine: Engine, protocol: int) -> None:
    with (
        redis.Redis(port=served.port, protocol=protocol, decode_responses=True) as client,
        engine.client(protocol=protocol, decode_responses=True) as native,
    ):
        there, here = native.command(), client.command()
        assert {**here, **there} == here
        added = here.keys() - there.keys()
        assert added >= {"twrite", "tread", "tack", "tevict", "tcfgset"}
        twrite = here["twrite"]
        assert (twrite["arity"], twrite["first_key_pos"], twrite["last_key_pos"]) == (-4, 1, 1)
        assert twrite["flags"] == here["xadd"]["flags"]
        assert client.command_count() == len(here) == native.command_count() + len(added)
        assert set(client.command_list()) - set(native.command_list()) == added
        assert client.command_list(pattern="tw*") == ["twrite"]
        assert "tack" in client.command_list(category="stream")
        assert client.command_list(module="none") == []
        assert list(client.execute_command("COMMAND", "INFO", "get", "TWRITE", "xnack")) == [
            "get",
            "twrite",
            "xnack",
        ]
        assert client.command_getkeys("TWRITE", "log", "t", "e") == ["log"]
        [[key, flags]] = client.command_getkeysandflags("TACK", "log", "g", "1")
        assert (key, "RW" in flags) == ("log", True)
        with pytest.raises(redis.ResponseError, match="Invalid number of arguments"):
            client.command_getkeys("TWRITE", "log")
        with pytest.raises(redis.ResponseError, match="Invalid command"):
            client.command_getkeys("NOSUCH", "log")
        docs = client.execute_command("COMMAND DOCS", "get", "twrite", "nosuch")
        names = docs.keys() if isinstance(docs, dict) else docs[::2]
        assert sorted(names) == ["get", "twrite"]
    with Line(served.port) as line:
        assert value_of(line.say("COMMAND INFO nosuch")) == [None]
