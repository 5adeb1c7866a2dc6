"""What would take a region away, said through the gateway: refused, or done so that the region stays."""

import re

import pytest
import redis

import braidstream
from braidstream import lua as functions
from braidstream.gateway.hub import Settings
from braidstream.operations.membership import initialise
from tests.support.gateways import Line, Served, packed, value_of
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

ENTRY = b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"


def is_whole(line: Line) -> bool:
    return ENTRY in line.say("XRANGE s - +") and line.say("XADD s * a b").startswith(b"$")


@pytest.mark.parametrize("database", [0, 9])
@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "FUNCTION FLUSH",
        "FUNCTION DELETE braidstream",
        "SWAPDB 0 5",
        "SWAPDB 5 0",
    ],
)
def test_a_multi_cannot_take_a_region_away(line: Line, command: str, database: int) -> None:
    line.say("XADD s * a b")
    replies = line.pipeline(f"SELECT {database}", "SET k 1", "MULTI", "SET k 2", command, "EXEC", "GET k")
    assert b"refused by braidstream" in replies[4]
    assert replies[5:] == [
        b"-EXECABORT Transaction discarded because of previous errors.\r\n",
        b"$1\r\n1\r\n",
    ]
    line.say("SELECT 0")
    assert is_whole(line)


def test_the_database_of_a_region_is_not_swapped(line: Line, engine: Engine) -> None:
    line.say("XADD s * a b")
    for command in ("SWAPDB 0 5", "SWAPDB 5 0"):
        assert b"refused by braidstream" in line.say(command)
    assert line.say("SWAPDB 5 6") == b"+OK\r\n"
    assert line.say("SWAPDB 0 x").startswith(b"-")
    assert is_whole(line)


OWN = "#!lua name=mine\nredis.register_function('mine', function() return 1 end)"
HOSTILE = [
    ["LOAD", "REPLACE", "#!lua name=braidstream\nredis.register_function('bs', function() end)"],
    ["LOAD", "REPLACE", '#!lua "name=\\x62raidstream"\nredis.register_function("bs", function() end)'],
    ["LOAD", "#!lua NAME=Braidstream_facts\n"],
    ["DELETE", functions.NAME],
    ["FLUSH"],
    ["FLUSH", "ASYNC"],
    ["RESTORE", "x", "REPLACE"],
    ["restore", "x", "flush"],
]


def test_clients_cannot_change_the_functions_of_braidstream(line: Line, engine: Engine) -> None:
    line.say("XADD s * a b")
    with engine.client() as admin:
        before = admin.execute_command("FUNCTION", "LIST", "WITHCODE")
        for words in HOSTILE:
            reply = line.say("FUNCTION", *words)
            assert b"refused by braidstream" in reply
            assert b"--functions-admin" in reply
            line.pipeline("MULTI", "PING")
            assert b"refused by braidstream" in line.say("FUNCTION", *words)
            assert line.say("EXEC").startswith(b"-EXECABORT")
        assert admin.execute_command("FUNCTION", "LIST", "WITHCODE") == before
    assert line.say("FUNCTION", "LOAD", OWN) == b"$4\r\nmine\r\n"
    assert line.say("FUNCTION DELETE mine") == b"+OK\r\n"
    assert is_whole(line)


def test_the_administrator_may_and_functions_that_are_deleted_come_back(engine: Engine) -> None:
    become(engine)
    with (
        Served(engine.url, Settings(functions_admin="default")) as gateway,
        Line(gateway.port) as line,
        Line(engine.port) as admin,
    ):
        line.say("XADD s * a b")
        for words in (["DELETE", functions.NAME], ["FLUSH"]):
            assert line.say("FUNCTION", *words) == b"+OK\r\n"
            assert line.say(f"XGROUP CREATE s {words[0]} 0") == b"+OK\r\n"
        assert is_whole(line)
        admin.say("ACL SETUSER other on >p ~* &* +@all")
        line.say("AUTH other p")
        assert b"refused by braidstream" in line.say("FUNCTION FLUSH")
        admin.say("ACL DELUSER other")


@pytest.mark.parametrize("command", ["PSYNC", "SYNC now", "PSYNC x"])
def test_a_replica_that_is_refused_stays_an_ordinary_client(line: Line, command: str) -> None:
    line.say("XADD s * a b")
    assert line.say(command).startswith(b"-ERR")
    assert line.say("KEYS *") == b"*1\r\n$1\r\ns\r\n"
    assert line.pipeline("FLUSHALL", "EXISTS s", command, "XADD s * a b")[:2] == [b"+OK\r\n", b":0\r\n"]
    assert is_whole(line)


def test_a_replica_that_is_accepted_gets_the_bytes_of_the_engine(line: Line) -> None:
    line.say("XADD s * a b")
    line.socket.sendall(packed("PSYNC", "?", "-1"))
    found = b""
    while not re.search(rb"REDIS0|VALKEY", found):  # the snapshot's first bytes, after the reply
        data = line.socket.recv(65536)
        assert data, found
        found += data
    assert found.startswith(b"+FULLRESYNC ")


# As native commands of a user who may write stream `a` and its registry.
FILLING = (
    "HSET bs:meta:{a} k:g x",
    "hsetnx bs:meta:{a} k:g x",
    "RPUSH bs:q.0:3:{a}p x",
    "ZADD bs:waits:3:{a}:g 1 x",
    "LMOVE list bs:q.0:3:{a}p LEFT LEFT",
    "SORT list STORE bs:q.0:3:{a}p ALPHA",
    "MSET x v bs:meta:{a} v",
    "msetnx x v bs:q.0:3:{a}p v",
    "MSETEX 2 x v bs:meta:{a} v",
    "SMOVE set bs:q.0:3:{a}p x",
    "BITOP NOT bs:q.0:3:{a}p string",
    "FCALL bs_braid_look 2 bs:meta:{a} bs:1:s:{a} s1:0",
    "FCALL_RO BS_BRAID_LOOK 2 bs:meta:{a} bs:1:s:{a} s1:0",
    "FCALL Bs_Group_Read 2 bs:meta:{a} bs:1:s:{a} g c 1 _ s1:0 _",
)


def test_clients_store_by_stream_commands_alone(line: Line, engine: Engine) -> None:
    """What functions read word by word: many fields, or one long value, would keep Redis busy for seconds."""
    line.pipeline("XADD a * f v", "RPUSH list x y", "SET fine bs:meta:{a}", "RPUSH fine-too bs:meta:{a}")
    with engine.client() as operator:
        before = {key: operator.dump(key) for key in operator.keys("*")}
        for each in FILLING:
            assert b"refused by braidstream" in line.say(each), each
            assert b"refused by braidstream" in line.pipeline("GET x", each, "GET x")[1], each
            line.say("MULTI")
            assert b"refused by braidstream" in line.say(each), each
            assert line.say("EXEC").startswith(b"-EXECABORT")
        assert {key: operator.dump(key) for key in operator.keys("*")} == before
    assert b"s1" in line.say("HGETALL bs:meta:{a}")
    assert line.say("HDEL bs:meta:{a} k:g") == b":0\r\n"


def test_braidstreams_own_keys_are_not_overwritten(line: Line, engine: Engine) -> None:
    refused = b"refused by braidstream: bs:config is a key of braidstream's own storage. Use another name."
    for each in ("SET bs:config x", "setex bs:config 9 x", "PSETEX bs:config 9 x"):
        assert refused in line.say(each)
    assert refused in line.pipeline("SET a 1", "SET bs:config x", "SET b 1")[1]
    line.say("MULTI")
    assert refused in line.say("SET bs:config x")
    assert line.say("EXEC").startswith(b"-EXECABORT")
    with client_of(engine) as client, pytest.raises(redis.ResponseError, match="own storage"):
        client.set("bs:config", "x")
    assert line.say("SET", "bs:mine", 1) == b"+OK\r\n"
    assert line.say("TYPE bs:mine") == b"+string\r\n"
    with engine.client() as operator:
        assert operator.type("bs:config") == b"hash"


def test_a_replica_that_reports_how_far_it_is_gets_no_reply(line: Line) -> None:
    assert line.say("REPLCONF listening-port 7") == b"+OK\r\n"
    line.send("REPLCONF", "ACK", "0")
    assert line.say("PING") == b"+PONG\r\n"
    assert line.say("REPLCONF nosuch 1").startswith(b"-ERR")
    assert line.pipeline("PING", "XLEN s") == [b"+PONG\r\n", b":0\r\n"]


@pytest.mark.parametrize("database", [0, 9])
def test_a_region_that_was_flushed_takes_no_plain_streams(line: Line, engine: Engine, database: int) -> None:
    """They would stand in the way when `braid region rejoin` brings the data back."""
    if database:
        with braidstream.Redis(port=engine.port, db=database) as client:
            client.run_plan(initialise(9, "nine"))
            client.run_plan(functions.load())
    line.say(f"SELECT {database}")
    line.say("XADD s * a b")
    assert is_whole(line)
    dump = value_of(line.say("DUMP s"))
    with redis.Redis(port=engine.port, db=database) as operator:
        operator.flushall()
        eventually(
            lambda: line.say("XADD s * a b").startswith(b"-NOREGION"),
            within_s=5,
            why="the gateway sees that the region is gone",
        )
        assert b"braid region rejoin" in line.say("RESTORE", "copy", 0, dump)
        assert b"braid region rejoin" in line.say("XGROUP CREATE s g 0 MKSTREAM")
        assert line.say("SET plain 1") == b"+OK\r\n"
        assert operator.keys("*") == [b"plain"]


@pytest.mark.parametrize("commands", [1, 2], ids=["one", "several"])
@pytest.mark.parametrize("command", ["XADD s * a b", "XADD s MAXLEN 9 * a b", "XGROUP CREATE s g 0 MKSTREAM"])
def test_a_region_that_was_just_flushed_takes_no_write(
    line: Line, engine: Engine, command: str, commands: int
) -> None:
    """The gateway still remembers it for a second: new IDs could be below those that groups have read."""
    for _ in range(3):  # then it knows the strand
        line.say("XADD s * a b")
    with engine.client() as operator:
        operator.flushall()
        replies = line.pipeline(*[command] * commands)
        assert [reply[:9] for reply in replies] == [b"-NOREGION"] * commands
        assert operator.keys("*") == []
