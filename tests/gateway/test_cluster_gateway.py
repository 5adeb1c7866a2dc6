"""A gateway before a cluster of three primaries: to its clients it is one server."""

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import redis
from redis.crc import key_slot

from braidstream.errors import ConfigError
from braidstream.model import keys
from tests.support.clients import Opener
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.gateways import Line, Served, value_of
from tests.support.waiting import eventually

NAMES = [f"s{number}" for number in range(12)]
CROSS_SLOT = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"


@pytest.fixture
def served(cluster: Cluster) -> Iterator[Served]:
    become_cluster(cluster, id_mode="liberal")
    with Served(cluster.url) as gateway:
        yield gateway


def test_streams_of_all_nodes_are_read_and_written_as_on_one_server(line: Line) -> None:
    for name in NAMES:
        assert line.say(f"XADD {name} 1-1 f {name}") == b"$3\r\n1-1\r\n"
    added = line.pipeline(*(f"XADD {name} * f {name}" for _ in range(3) for name in NAMES))
    assert all(reply.startswith(b"$") for reply in added)
    assert line.pipeline(*(f"XLEN {name}" for name in NAMES)) == [b":4\r\n"] * len(NAMES)
    read = value_of(line.say("XREAD", "COUNT", 1, "STREAMS", *NAMES, *["0"] * len(NAMES)))
    assert sorted(read) == sorted([name.encode(), [[b"1-1", [b"f", name.encode()]]]] for name in NAMES)
    for name in NAMES:
        assert line.say(f"XGROUP CREATE {name} g 0") == b"+OK\r\n"
    read = value_of(line.say("XREADGROUP", "GROUP", "g", "ann", "STREAMS", *NAMES, *[">"] * len(NAMES)))
    assert sorted(name.decode() for name, _ in read) == sorted(NAMES)
    assert all(len(entries) == 4 for _, entries in read)
    assert line.say(f"XACK {NAMES[0]} g 1-1") == b":1\r\n"
    assert line.say("HELLO 3").startswith(b"%")
    assert line.say(f"XREAD COUNT 1 STREAMS {NAMES[0]} 0").startswith(b"%1\r\n")


def test_a_reader_waits_in_the_slots_of_all_its_streams(line: Line, served: Served) -> None:
    with Line(served.port) as other:
        for name in NAMES:  # on each of them, and on one node several slots
            line.send("XREAD", "BLOCK", 0, "STREAMS", *NAMES, *["$"] * len(NAMES))
            eventually(lambda: _blocked(served) > 0, within_s=30, why="the reader should wait")
            entry = value_of(other.say(f"XADD {name} * a b"))
            assert value_of(line.read()) == [[name.encode(), [[entry, [b"a", b"b"]]]]]
        assert line.say("XREAD", "BLOCK", 20, "STREAMS", *NAMES, *["$"] * len(NAMES)) == b"*-1\r\n"
        for name in NAMES:
            other.say(f"XGROUP CREATE {name} g $")
        line.send("XREADGROUP", "GROUP", "g", "ann", "BLOCK", 0, "STREAMS", *NAMES, *[">"] * len(NAMES))
        eventually(lambda: _blocked(served) > 0, within_s=30, why="the group's reader should wait")
        entry = value_of(other.say(f"XADD {NAMES[5]} * a b"))
        assert value_of(line.read()) == [[NAMES[5].encode(), [[entry, [b"a", b"b"]]]]]
        line.send("BLPOP", "l", 0)
        assert other.say("RPUSH l x") == b":1\r\n"
        assert value_of(line.read()) == [b"l", b"x"]


def _blocked(served: Served) -> int:
    return sum(client.blocking for client in served.gateway.hub.clients)  # type: ignore[attr-defined]


def test_it_answers_as_a_server_that_is_no_cluster(line: Line, cluster: Cluster) -> None:
    for words in ("CLUSTER SLOTS", "CLUSTER INFO", "READONLY", "READWRITE", "ASKING"):
        assert line.say(words) == b"-ERR This instance has cluster support disabled\r\n"
    assert b"cluster_enabled:0" in line.say("INFO cluster")
    assert b"mode:standalone" in line.say("INFO server")
    for resp in (2, 3):
        hello = value_of(line.say(f"HELLO {resp}"))
        facts = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2], strict=True))
        assert facts[b"mode"] == b"standalone"
    assert line.say("SELECT 0") == b"+OK\r\n"
    assert line.say("SELECT 1") == b"-ERR a region that is a cluster has database 0 only\r\n"
    for words in ("MONITOR", "PSYNC ? -1", "SSUBSCRIBE a", "CLIENT TRACKING ON", "FUNCTION FLUSH"):
        assert b"refused by braidstream" in line.say(words), words
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}/1"
    with pytest.raises(ConfigError, match="database 0"), Served(url):
        pass


def test_plain_keys_go_to_their_nodes_and_answers_are_joined(line: Line) -> None:
    assert line.say("MSET", *(word for name in NAMES for word in (name, name.upper()))) == b"+OK\r\n"
    assert value_of(line.say("MGET", *NAMES, "none")) == [*(name.upper().encode() for name in NAMES), None]
    replies = line.pipeline(*(f"GET {name}" for name in NAMES), "PING", "NOSUCH a", "GET", "INCR n")
    assert replies[: len(NAMES)] == [b"$%d\r\n%b\r\n" % (len(name), name.upper().encode()) for name in NAMES]
    assert replies[len(NAMES)] == b"+PONG\r\n"
    assert replies[-3].startswith(b"-ERR unknown command")
    assert replies[-2:] == [b"-ERR wrong number of arguments for 'get' command\r\n", b":1\r\n"]
    assert line.say("EXISTS", *NAMES, NAMES[0], "none") == b":13\r\n"
    assert line.say("TOUCH", *NAMES) == b":12\r\n"
    for words in ("MSETNX s0 1 s1 1", "RENAME s0 s1", "COPY s0 s1", "SINTERSTORE s0 s1 s2", "BLPOP a b c 1"):
        assert line.say(words) == CROSS_SLOT, words
    assert line.say("RENAME {a}1 {a}2") == b"-ERR no such key\r\n"
    assert line.say("EVAL return{KEYS[1],ARGV[1]} 1 s7 x") == b"*2\r\n$2\r\ns7\r\n$1\r\nx\r\n"
    assert line.say("EVAL return{1} 0") == b"*1\r\n:1\r\n"
    assert line.say("EVAL return{1} x") == b"-ERR value is not an integer or out of range\r\n"
    sha = value_of(line.say("SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])")).decode()
    for name in NAMES:
        assert value_of(line.say("EVALSHA", sha, 1, name)) == name.upper().encode()
    line.say("RPUSH {l}1 3 1 2")
    assert line.say("SORT {l}1 STORE {l}2") == b":3\r\n"
    line.say(f"XADD {NAMES[3]} * f v")
    assert line.say("DEL", *NAMES, "{l}1", "none") == b":13\r\n"
    assert line.say("EXISTS", *NAMES) == b":0\r\n"
    assert line.say("WAIT 0 100") == b":0\r\n"


def test_all_keys_means_the_keys_of_all_nodes(line: Line, cluster: Cluster) -> None:
    for number in range(60):
        line.say(f"SET k{number} 1")
    for name in NAMES:
        line.say(f"XADD {name} * f v")
    every = {*(f"k{number}".encode() for number in range(60)), *map(str.encode, NAMES)}
    assert line.say("DBSIZE") == b":72\r\n"
    assert set(value_of(line.say("KEYS *"))) == every
    assert value_of(line.say("RANDOMKEY")) in every
    assert _scanned(line, "COUNT", "7") == every
    assert _scanned(line, "MATCH", "s*", "TYPE", "stream") == set(map(str.encode, NAMES))
    cursor, found = value_of(line.say("SCAN 0 COUNT 3"))
    with SlotMove(cluster, key_slot(b"k1")) as moving:
        moving.finish()
        assert line.say("GET k1") == b"$1\r\n1\r\n"  # the gateway notices
        later = _scanned(line, "COUNT", "30", cursor=cursor)
    assert every <= {*found, *later}, "a scan goes on when slots have moved"
    assert line.say("SCAN x") == b"-ERR invalid cursor\r\n"
    assert line.say("FLUSHALL") == b"+OK\r\n"
    assert line.say("DBSIZE") == b":0\r\n"
    assert line.say(f"XADD {NAMES[0]} * f v").startswith(b"$")


def _scanned(line: Line, *options: str, cursor: bytes = b"0") -> set[bytes]:
    found = set[bytes]()
    while True:
        cursor, some = value_of(line.say("SCAN", cursor, *options))
        found.update(some)
        if cursor == b"0":
            return found


def test_a_watch_outlives_commands_about_the_connection(line: Line, served: Served) -> None:
    line.say("SET k 1")
    kept = [
        "CLIENT SETINFO LIB-NAME mine",
        "CLIENT SETNAME ann",
        "SELECT 0",
        "AUTH ann wrong",
        "HELLO 3",
        "HELLO 2",
    ]
    assert line.say("WATCH k") == b"+OK\r\n"
    for words in kept:
        line.say(words)
    assert line.pipeline("MULTI", "SET k 2", "GET k", "EXEC")[-1] == b"*2\r\n+OK\r\n$1\r\n2\r\n"
    assert line.say("WATCH k") == b"+OK\r\n"
    line.say("CLIENT SETNAME bob")
    with Line(served.port) as other:
        other.say("SET k 3")
    assert line.pipeline("MULTI", "SET k 4", "EXEC")[-1] == b"*-1\r\n"
    assert line.say("GET k") == b"$1\r\n3\r\n"


def test_multi_runs_on_the_node_of_its_first_key(line: Line, served: Served) -> None:
    queued = ["PING", "SET {a}k 1", "XADD {a}s 1-1 f v", "XLEN {a}s", "GET {a}k"]
    assert line.pipeline("MULTI", *queued, "EXEC")[:-1] == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 5]
    assert line.pipeline("MULTI", *queued[3:], "EXEC")[-1] == b"*2\r\n:1\r\n$1\r\n1\r\n"
    refused = line.pipeline("MULTI", "SET {a}k 2", "SET {b}k 2", "EXEC", "GET {a}k")
    assert refused[2] == CROSS_SLOT
    assert refused[3:] == [
        b"-EXECABORT Transaction discarded because of previous errors.\r\n",
        b"$1\r\n1\r\n",
    ]
    assert line.pipeline("MULTI", "XADD {a}s 2-1 f v", "XADD {b}s 2-1 f v", "EXEC")[-2] == CROSS_SLOT
    wrong = line.pipeline(
        "MULTI", "SET {a}k", "NOSUCH", "EXEC", "EXEC", "DISCARD", "MULTI", "MULTI", "DISCARD"
    )
    assert wrong[1] == b"-ERR wrong number of arguments for 'set' command\r\n"
    assert wrong[3].startswith(b"-EXECABORT")
    assert wrong[4:6] == [b"-ERR EXEC without MULTI\r\n", b"-ERR DISCARD without MULTI\r\n"]
    assert wrong[7].startswith(b"-ERR ")  # each engine has words of its own
    assert line.pipeline("MULTI", "EXEC")[-1] == b"*0\r\n"
    with Line(served.port) as other:
        for change in ("SET {a}k 9", "XADD {a}s * a b"):
            for inside in (["SET {a}n 1"], ["SET {a}n 1", "XADD {a}s * c d"], ["PING"], []):
                assert line.say("WATCH {a}k {a}s") == b"+OK\r\n"
                other.say(change)
                assert line.pipeline("MULTI", *inside, "EXEC")[-1] == b"*-1\r\n", inside
                line.say("WATCH {a}k {a}s")
                assert line.pipeline("MULTI", *inside, "EXEC")[-1].startswith(b"*%d\r\n" % len(inside))
        line.say("WATCH {a}k")
        other.say("SET {a}k 10")
        assert line.say("UNWATCH") == b"+OK\r\n"
        assert line.pipeline("MULTI", "GET {a}k", "EXEC")[-1] == b"*1\r\n$2\r\n10\r\n"
    assert line.say("WATCH {a}k {b}k") == CROSS_SLOT
    line.say("WATCH {a}k")
    assert line.say("WATCH {b}k") == CROSS_SLOT
    assert line.pipeline("MULTI", "GET {b}k", "EXEC")[-1].startswith(b"-EXECABORT")


def test_messages_reach_subscribers_through_any_node(line: Line, served: Served, cluster: Cluster) -> None:
    line.send("SUBSCRIBE", "news")
    assert value_of(line.read()) == [b"subscribe", b"news", 1]
    with Line(served.port) as other:
        assert other.say("PUBLISH news hello") == b":1\r\n"
        assert value_of(line.read()) == [b"message", b"news", b"hello"]
    with cluster.nodes[2].client() as node:
        node.publish("news", "again")
    assert value_of(line.read()) == [b"message", b"news", b"again"]
    line.send("UNSUBSCRIBE")
    line.read()
    assert line.say("XADD s0 * f v").startswith(b"$")


def test_redis_cli_sees_one_server_also_if_it_may_follow_redirects(served: Served) -> None:
    typed = "\n".join(f"XADD {name} * f v" for name in NAMES) + "\nDBSIZE\nCLUSTER NODES\nXLEN s3\n"
    for option in ([], ["-c"]):
        words = ["redis-cli", *option, "-p", str(served.port)]
        done = subprocess.run(words, input=typed, capture_output=True, text=True, timeout=60, check=True)
        assert "Redirected" not in done.stdout
        *_, size, disabled, length = filter(None, done.stdout.splitlines())
        assert (size, disabled) == ("12", "ERR This instance has cluster support disabled")
        assert int(length) == (1 if not option else 2)


def test_users_have_their_own_rights_on_every_node(line: Line, cluster: Cluster) -> None:
    for node in cluster.nodes:
        with node.client() as operator:
            operator.execute_command(
                "ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@read", "+hello", "+fcall_ro"
            )
    try:
        for name in NAMES:
            line.say(f"SET k{name} 1")
        assert line.say("AUTH ann pw") == b"+OK\r\n"
        for name in NAMES:
            assert line.say(f"GET k{name}") == b"$1\r\n1\r\n"
            assert line.say(f"SET k{name} 2").startswith(b"-NOPERM")
            assert line.say(f"XADD {name} * f v").startswith(b"-NOPERM")
            assert line.pipeline("MULTI", f"SET k{name} 3", "EXEC")[1].startswith(b"-NOPERM")
    finally:
        for node in cluster.nodes:
            with node.client() as operator:
                operator.execute_command("ACL", "DELUSER", "ann")


@pytest.fixture
def limited(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """limited("-multi"): the user `app` lacks one right on every node."""

    def tell(*words: str) -> None:
        for node in cluster.nodes:
            with node.client() as operator:
                operator.execute_command("ACL", *words)

    yield lambda right: tell("SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", right)
    tell("DELUSER", "app")


def test_a_user_without_discard_runs_one_multi_after_another(
    line: Line, limited: Callable[[str], None]
) -> None:
    limited("-discard")
    assert line.say("AUTH app pw") == b"+OK\r\n"
    for number in range(1, 4):
        [*_, done] = line.pipeline("MULTI", "INCR {a}n", "XADD {a}s * f v", "XLEN {a}s", "EXEC")
        assert done.startswith(b"*3\r\n:%d\r\n" % number), done
        assert done.endswith(b":%d\r\n" % number), done
    assert line.pipeline("MULTI", "INCR {a}n", "NOSUCH", "EXEC")[-1].startswith(b"-EXECABORT")
    assert line.say("GET {a}n") == b"$1\r\n3\r\n"


def test_commands_of_a_user_without_multi_run_once(line: Line, limited: Callable[[str], None]) -> None:
    limited("-multi")
    assert line.say("AUTH app pw") == b"+OK\r\n"
    replies = line.pipeline("INCR {a}n", "MGET {a}n {a}x", "INCR {a}n", "LPUSH {a}n 1")
    assert replies[:3] == [b":1\r\n", b"*2\r\n$1\r\n1\r\n$-1\r\n", b":2\r\n"]
    assert replies[3].startswith(b"-WRONGTYPE")
    assert line.say("XADD {a}new * n 1").startswith(b"$")
    assert line.say("XLEN {a}new") == b":1\r\n"


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_redis_py_works_as_with_one_server(served: Served, kind: str) -> None:
    with ExitStack() as stack:
        client = Opener(kind, stack).bare(served.url, decode_responses=True)
        ids = {name: client.xadd(name, {"n": "1"}) for name in NAMES}
        read = client.xread(dict.fromkeys(NAMES, "0"))
        found = [(name, pages[0]) for name, pages in read.items()] if isinstance(read, dict) else read
        assert {name: entries[0][0] for name, entries in found} == ids
        with client.pipeline(transaction=False) as pipe:
            for name in NAMES:
                pipe.xadd(name, {"n": "2"})
                pipe.set(f"k{name}", name)
                pipe.xlen(name)
            assert pipe.execute()[2::3] == [2] * len(NAMES)
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd("{t}s", {"n": "1"})
            pipe.incr("{t}n")
            assert pipe.execute()[1] == 1
        assert len(client.keys("*")) == 26
        assert client.delete(*NAMES) == 12
        assert client.mget([f"k{name}" for name in NAMES]) == NAMES


def test_a_primary_that_was_added_without_functions_gets_them(line: Line, cluster: Cluster) -> None:
    lacking = cluster.nodes[2]
    with lacking.client() as operator:
        operator.function_flush("SYNC")
    there = [name for name in NAMES if cluster.owner(key_slot(keys.meta(name.encode()))) is lacking]
    with Served(cluster.nodes[0].url) as fresh, Line(fresh.port) as other:
        for name in there:
            assert other.say(f"XADD {name} 1-1 f v") == b"$3\r\n1-1\r\n"


def test_many_clients_append_to_streams_of_all_nodes_and_each_gets_its_own_ids(served: Served) -> None:
    def add(who: int) -> list[bytes]:
        with Line(served.port) as one:
            lines = [f"XADD {NAMES[at % len(NAMES)]} * who {who}" for at in range(36)]
            return [reply for _ in range(8) for reply in one.pipeline(*lines)]

    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(add, range(6)))
    with redis.Redis.from_url(served.url) as client:
        stored = {name: client.xrange(name) for name in NAMES}
    for who, said in enumerate(replies):
        for at, name in enumerate(NAMES):
            mine = [entry for entry, fields in stored[name] if fields == {b"who": b"%d" % who}]
            assert [value_of(reply) for reply in said[at :: len(NAMES)]] == mine
