"""The gateway, as a client of any language sees it: bytes in, bytes out, as from the engine itself."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.support.gateways import Line, Served, value_of
from tests.support.proxy import Proxy
from tests.support.servers import Engine
from tests.support.waiting import eventually

NATIVE = [
    "SET k v EX 100",
    "GET k",
    "GET none",
    "INCR k",
    "NOSUCH a b",
    "GET",
    "RPUSH l 1 2 3",
    "LRANGE l 0 -1",
    "LPOP nolist 3",
    "HSET h a 1 b 2.5",
    "HGETALL h",
    "HINCRBYFLOAT h b 1",
    "SADD s a",
    "SMEMBERS s",
    "SISMEMBER s a",
    "ZADD z 1.5 a 2 b",
    "ZRANGE z 0 -1 WITHSCORES",
    "ZSCORE z a",
    "ZADD z INCR 1 a",
    "EVAL return{1,{'a',false,{ok='fine'}}} 0",
    "EVAL return{err='My(error)'} 0",
    "CONFIG GET maxmemory-policy",
    "CONFIG SET nosuch 1",
    "MEMORY USAGE none",
    "OBJECT ENCODING k",
    "OBJECT HELP",
    "OBJECT ENCODING none",
    "TYPE k",
    "TYPE none",
    "TTL none",
    "DUMP none",
    "EXISTS k l none",
    "DEL l none",
    "RENAME k k2",
    "RENAME none k2",
    "COPY k2 k3",
    "PERSIST k2",
    "SELECT 99",
    "SELECT x",
    "AUTH a b c d",
    "CLIENT SETNAME me",
    "CLIENT GETNAME",
    "CLIENT REPLY MAYBE",
    "CLIENT NOSUCH",
    "MULTI",
    "MULTI",
    "SET k 1",
    "NOSUCH",
    "EXEC",
    "EXEC",
    "DISCARD",
    "MULTI",
    "HGETALL h",
    "ZRANGE z 0 -1 WITHSCORES",
    "GET none",
    "LPOP nolist 3",
    "EXEC",
    "WATCH k",
    "MULTI",
    "INCR n",
    "EXEC",
    "UNWATCH",
    "SUBSCRIBE a b",
    "PING",
    "UNSUBSCRIBE",
    "PING x",
    "ECHO hi",
]


@pytest.mark.parametrize("resp", [2, 3])
def test_what_is_not_about_streams_passes_byte_for_byte(line: Line, bare: Line, resp: int) -> None:
    hello = [one.say(f"HELLO {resp}") for one in (line, bare)]
    assert hello[0][:1] == hello[1][:1]
    for words in NATIVE:
        for one in (line, bare):
            one.send(*words.split())
        replies = 2 if words.startswith(("SUBSCRIBE", "UNSUBSCRIBE")) else 1
        for _ in range(replies):
            assert (words, line.read()) == (words, bare.read())


@pytest.mark.parametrize("resp", [2, 3])
def test_a_pipeline_of_everything_is_answered_in_order(line: Line, bare: Line, resp: int) -> None:
    for one in (line, bare):
        one.say(f"HELLO {resp}")
    lines = [*(f"SET k{n} {n}" for n in range(300)), *(f"GET k{n}" for n in range(300))]
    assert line.pipeline(*lines) == bare.pipeline(*lines)
    mixed = ["SET a 1", "XADD st * f v", "GET a", "XLEN st", "XADD st * f v", "XLEN st", "DEL st", "INCR a"]
    ours, theirs = line.pipeline(*mixed), bare.pipeline(*mixed)
    assert [ours[at] for at in (0, 2, 3, 5, 6, 7)] == [theirs[at] for at in (0, 2, 3, 5, 6, 7)]


def test_appends_in_pipelines_of_many_clients_each_get_their_own_ids(served: Served) -> None:
    def add(who: int) -> list[bytes]:
        with Line(served.port) as one:
            return [reply for _ in range(20) for reply in one.pipeline(*[f"XADD s * who {who}"] * 25)]

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(add, range(8)))
    with redis.Redis.from_url(served.url) as client:
        entries = client.xrange("s")
    by_writer = {
        who: [entry for entry, fields in entries if fields == {b"who": b"%d" % who}] for who in range(8)
    }
    assert {who: [value_of(reply) for reply in ids[who]] for who in range(8)} == by_writer


def test_an_append_after_the_stream_was_deleted_makes_it_again(line: Line, served: Served) -> None:
    assert line.say("XADD s * a 1").startswith(b"$")
    assert line.say("XADD s * a 1").startswith(b"$")
    with Line(served.port) as other:
        assert other.say("DEL s") == b":1\r\n"
    assert all(reply.startswith(b"$") for reply in line.pipeline(*["XADD s * a 1"] * 5))
    assert line.say("DEL s") == b":1\r\n"
    assert line.say("XADD s * a 1").startswith(b"$")
    assert line.say("XLEN s") == b":1\r\n"


def test_streams_stand_in_multi_among_native_commands(line: Line) -> None:
    assert line.pipeline("MULTI", "SET k 1", "XADD s * f v", "XLEN s", "LPOP no", "EXEC")[:-1] == [
        b"+OK\r\n",
        *[b"+QUEUED\r\n"] * 4,
    ]
    line.say("MULTI")
    for words in ("SET k 2", "XADD s * f v", "XLEN s", "GET k", "XREAD STREAMS s 9-9", "SMEMBERS none"):
        assert line.say(words) == b"+QUEUED\r\n"
    reply = line.say("EXEC")
    assert reply.startswith(b"*6\r\n+OK\r\n$")
    assert reply.endswith(b":2\r\n$1\r\n2\r\n*-1\r\n*0\r\n") or b":2\r\n$1\r\n2\r\n" in reply


def test_a_spoilt_multi_with_streams_does_nothing(line: Line) -> None:
    replies = line.pipeline("MULTI", "XADD s * f v", "XADD s", "SET k", "EXEC", "EXISTS s k")
    assert replies[0:2] == [b"+OK\r\n", b"+QUEUED\r\n"]
    assert replies[2] == b"-ERR wrong number of arguments for 'xadd' command\r\n"
    assert replies[3] == b"-ERR wrong number of arguments for 'set' command\r\n"
    assert replies[4] == b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    assert replies[5] == b":0\r\n"


def test_a_command_that_takes_several_steps_is_refused_in_multi_with_the_reason(line: Line) -> None:
    replies = line.pipeline("MULTI", "XGROUP CREATE s g $ MKSTREAM", "EXEC")
    assert b"inside MULTI refused by braidstream" in replies[1]
    assert replies[2].startswith(b"-EXECABORT")


@pytest.mark.parametrize("changed", ["k", "s"])
def test_watch_guards_plain_keys_and_streams_and_both_kinds_of_multi(
    line: Line, served: Served, changed: str
) -> None:
    change = {"k": "SET k 9", "s": "XADD s * a b"}[changed]
    line.say("XADD s * a b")
    with Line(served.port) as other:
        for queued in (["SET n 1"], ["SET n 1", "XADD s * c d"], ["XLEN s"]):
            assert line.say("WATCH k s") == b"+OK\r\n"
            other.say(change)
            assert line.pipeline("MULTI", *queued, "EXEC")[-1] == b"*-1\r\n"
            assert line.say("WATCH k s") == b"+OK\r\n"
            assert line.pipeline("MULTI", *queued, "EXEC")[-1].startswith(b"*%d\r\n" % len(queued))
        line.say("WATCH k s")
        other.say(change)
        line.pipeline("MULTI", "SET n 1", "DISCARD")
        assert line.pipeline("MULTI", "XLEN s", "EXEC")[-1].startswith(b"*1\r\n"), "DISCARD ends WATCH"


def test_a_blocked_reader_hinders_nobody_and_is_woken(line: Line, served: Served) -> None:
    line.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    with Line(served.port) as other:
        for n in range(3):
            assert other.say(f"SET k {n}") == b"+OK\r\n"
        entry = value_of(other.say("XADD s * a b"))
    assert value_of(line.read()) == [[b"s", [[entry, [b"a", b"b"]]]]]
    line.send("BLPOP", "l", 0)
    with Line(served.port) as other:
        other.say("RPUSH l x")
    assert value_of(line.read()) == [b"l", b"x"]


def test_a_blocked_reader_can_be_unblocked_by_its_id(line: Line, served: Served) -> None:
    number = value_of(line.say("CLIENT ID"))
    line.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    with Line(served.port) as other:
        eventually(
            lambda: other.say("CLIENT", "UNBLOCK", number) == b":1\r\n",
            within_s=30,
            why="the reader should block",
        )
    assert line.read() == b"*-1\r\n"


def test_a_blocked_reader_that_leaves_takes_its_connection_along(engine: Engine, served: Served) -> None:
    def blocked() -> int:
        with engine.client() as client:
            return int(client.info("clients")["blocked_clients"])

    with Line(served.port) as leaving:
        leaving.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        eventually(lambda: blocked() == 1, within_s=30, why="the reader should block")
    eventually(lambda: blocked() == 0, within_s=30, why="nobody should be blocked any more")


@pytest.mark.parametrize("resp", [2, 3])
def test_messages_come_while_streams_are_used(line: Line, served: Served, resp: int) -> None:
    line.say(f"HELLO {resp}")
    line.send("SUBSCRIBE", "news")
    assert value_of(line.read()) == [b"subscribe", b"news", 1]
    with Line(served.port) as other:
        assert other.say("PUBLISH news hello") == b":1\r\n"
        assert value_of(line.read()) == [b"message", b"news", b"hello"]
        if resp == 2:
            assert line.say("XLEN s").startswith(b"-ERR Can't execute 'xlen'")
            line.send("UNSUBSCRIBE", "news")
            assert value_of(line.read()) == [b"unsubscribe", b"news", 0]
        assert line.say("XADD s * a b").startswith(b"$")
        assert line.say("XLEN s") == b":1\r\n"


def test_reset_and_select_and_reply_off_do_what_they_do_on_the_engine(line: Line) -> None:
    line.say("HELLO 3")
    assert line.say("GET none") == b"_\r\n"
    assert line.say("RESET") == b"+RESET\r\n"
    assert line.say("GET none") == b"$-1\r\n"
    line.say("SELECT 3")
    line.say("SET k there")
    assert line.say("XADD s 1-7 a b") == b"$3\r\n1-7\r\n"  # no region: plain Redis
    assert line.pipeline("WATCH s", "MULTI", "XLEN s", "DEL s", "EXEC")[-1] == b"*2\r\n:1\r\n:1\r\n"
    assert line.pipeline("DBSIZE", "KEYS *", "TYPE k", "DEL k", "EXISTS k") == [
        *(b":1\r\n", b"*1\r\n$1\r\nk\r\n", b"+string\r\n", b":1\r\n", b":0\r\n")
    ]
    assert line.pipeline("WATCH k", "MULTI", "DEL k", "EXEC")[-1] == b"*1\r\n:0\r\n"
    line.pipeline("SET k there", "SELECT 0", "SET k here", "XADD s * a b", "SELECT 3")
    assert line.pipeline("FLUSHALL", "DBSIZE", "SELECT 0", "DBSIZE") == [b"+OK\r\n", b":0\r\n"] * 2
    assert line.say("GET k") == b"$-1\r\n"
    line.send("CLIENT", "REPLY", "OFF")
    line.send("SET", "k", "1")
    line.send("XADD", "s", "*", "a", "b")
    assert line.say("CLIENT REPLY ON") == b"+OK\r\n"
    line.send("CLIENT", "REPLY", "SKIP")
    line.send("XADD", "s", "*", "a", "b")
    assert line.say("XLEN s") == b":2\r\n"
    assert line.say("QUIT") == b"+OK\r\n"
    assert line.read() == b""


def waits(line: Line) -> bool:
    return b"blocked_clients:1" in line.say("INFO clients")


@pytest.mark.parametrize("end", ["DEL x", "FLUSHALL", "SET x 1"])
def test_a_reader_that_waits_is_told_as_the_engine_tells_that_its_stream_is_gone(
    served: Served, line: Line, bare: Line, engine: Engine, end: str
) -> None:
    said = list[bytes]()
    for port, writer in ((served.port, line), (engine.port, bare)):
        with Line(port) as reader:
            reader.say("SELECT 0" if writer is line else "SELECT 9")
            writer.pipeline("XADD x * f v", "XGROUP CREATE x g $")
            reader.send("XREADGROUP", "GROUP", "g", "ann", "BLOCK", "0", "STREAMS", "x", ">")
            eventually(lambda: waits(bare), within_s=10, why="the reader should wait")
            writer.say(end)
            said.append(reader.read())
        writer.say("DEL x")
    assert said[0] == said[1]


def test_set_on_the_name_of_a_stream_replaces_it(line: Line) -> None:
    for command, reply in (("SET x 1", b"+OK\r\n"), ("SET x 1 XX", b"+OK\r\n"), ("SETEX x 9 1", b"+OK\r\n")):
        line.say("XADD x * f v")
        assert line.say(command) == reply
        assert line.pipeline("TYPE x", "GET x", "DEL x", "EXISTS x") == [
            *(b"+string\r\n", b"$1\r\n1\r\n", b":1\r\n", b":0\r\n")
        ]
    line.say("XADD x * f v")
    assert line.say("SET x 1 NX") == b"$-1\r\n"
    assert line.say("SET x 1 GET").startswith(b"-WRONGTYPE ")
    assert line.pipeline("TYPE x", "DBSIZE") == [b"+stream\r\n", b":1\r\n"]


@pytest.mark.parametrize("expiring", [0, 1])
def test_info_counts_the_keys_that_users_see(line: Line, engine: Engine, expiring: int) -> None:
    line.say("XADD s IDMP producer 1 * a b")
    line.say("SET plain 1")
    for number in range(expiring):
        line.say(f"SET expiring{number} 1 PX 100000")
    with engine.client() as operator:
        if "XCFGSET" not in engine.vocabulary:  # else the engine itself knows the message
            assert operator.info("keyspace")["db0"]["expires"] > expiring, "keys of ours expire"
    told = line.say("INFO keyspace").decode()
    [keys, expires, ttl] = re.findall(r"db0:keys=(\d+),expires=(\d+),avg_ttl=(\d+)", told)[0]
    assert (int(keys), int(expires)) == (2 + expiring, expiring)
    assert expiring or ttl == "0"


def test_messages_come_though_replies_are_off(line: Line, served: Served) -> None:
    line.say("HELLO 3")
    line.send("CLIENT", "REPLY", "OFF")
    line.send("SUBSCRIBE", "news")
    assert line.read() == b">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"
    line.send("SET", "k", "v")
    with Line(served.port) as other:
        assert other.say("PUBLISH news hello") == b":1\r\n"
    assert line.read() == b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n"
    assert line.say("CLIENT REPLY ON") == b"+OK\r\n"
    assert line.say("GET k") == b"$1\r\nv\r\n"


def test_monitor_shows_what_others_do(line: Line, served: Served) -> None:
    assert line.say("MONITOR") == b"+OK\r\n"
    with Line(served.port) as other:
        other.say("SET k v")
    seen = b""
    while b'"SET" "k" "v"' not in seen:
        seen = line.read()
    line.send("RESET")
    while line.read() != b"+RESET\r\n":
        pass
    assert line.say("GET k") == b"$1\r\nv\r\n"


def test_the_reply_to_monitor_comes_before_its_lines(proxy: Proxy, engine: Engine) -> None:
    with Served(proxy.url) as served, Line(served.port) as line, Line(engine.port) as other:
        line.say("CLIENT ID")  # it has its connection to the engine
        with engine.paused():  # so that the engine runs both at once
            line.send("MONITOR")
            eventually(lambda: any(b"MONITOR" in sent for sent in proxy.requests), within_s=20, why="sent")
            other.send("SET", "k", "v")
        assert line.read() == b"+OK\r\n"
        assert b'"SET" "k" "v"' in line.read()


def test_a_command_of_a_client_that_has_left_is_still_done(served: Served, line: Line) -> None:
    line.say("XADD s * a b")
    for words in (["XADD", "s", "*", "a", "b"], ["XTRIM", "s", "MAXLEN", "1"], ["COPY", "s", "other"]):
        with Line(served.port) as leaving:
            leaving.send(*words)
    eventually(lambda: line.say("EXISTS other") == b":1\r\n", within_s=30, why="the copy should be made")


def test_inline_commands_work_as_typed(line: Line) -> None:
    line.socket.sendall(b"SET k \"a b\\x21\\n\"\r\nGET k\n\r\n  XADD s * f 'it''s' \r\n")
    assert [line.read(), line.read()] == [b"+OK\r\n", b"$5\r\na b!\n\r\n"]
    assert line.read() == b"-ERR Protocol error: unbalanced quotes in request\r\n"
    assert line.read() == b""
