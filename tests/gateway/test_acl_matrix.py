"""A user with the keys of stream `a` gets nothing of stream `b` and log `l`: every command, by every way in.

Each command must be refused, must not return what `b` holds, and must change none of its keys.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from redis.exceptions import RedisClusterException, RedisError

import braidstream
from braidstream.commands.table import TABLE as COMMANDS
from braidstream.errors import BraidError
from braidstream.gateway.own_connections import parse
from tests.support.cluster import start_alone
from tests.support.gateways import Line, Served
from tests.support.regions import become
from tests.support.servers import Engine, Flavour

SECRET = "of-b-alone"
MALLORY = "mallory on >m ~a ~bs:*:{a}* %R~bs:config &* +@all"

STREAMS = """
XADD b * f v|XADD b NOMKSTREAM * f v|XADD b IDMP p i * f v|XADD b MAXLEN 0 * f v|XLEN b|XRANGE b - +
XREVRANGE b + -
XREAD STREAMS b 0|XREAD STREAMS a b 0 0|XREAD BLOCK 1 STREAMS b 0|XREAD BLOCK 1 STREAMS a b $ 0
XTRIM b MAXLEN 0|XDEL b 1-1|XDELEX b IDS 1 1-1|XACKDEL b g IDS 1 1-1|XSETID b 9999999999999-1
XGROUP CREATE b h 0|XGROUP CREATE b h 0 MKSTREAM|XGROUP DESTROY b g|XGROUP SETID b g 0
XGROUP CREATECONSUMER b g c|XGROUP DELCONSUMER b g c|XGROUP SCOPE b g ONCE|XGROUP TAKE b g REGION 1
XINFO STREAM b|XINFO STREAM b FULL|XINFO GROUPS b|XINFO CONSUMERS b g
XREADGROUP GROUP g c STREAMS b >|XREADGROUP GROUP g c BLOCK 1 STREAMS b >|XREADGROUP GROUP g c STREAMS a b > >
XACK b g 1-1|XPENDING b g|XPENDING b g - + 10|XCLAIM b g c 0 1-1|XAUTOCLAIM b g c 0 0|XNACK b g FAIL IDS 1 1-1
XCFGSET b IDMP-DURATION 10|XIDMPRECORD b p i 1-1
"""
LOGS = """
TWRITE l tag entry|TWRITE l ENTRIES tag entry|TREAD l 1 10|TREAD l 1 10 BLOCK 1|TREAD l 1 10 GROUP g
TACK l g 1|TEVICT l 1|TEVICT l -1|TCFGSET l BACKLOG 1|XLEN l|XRANGE l - +|DEL l
"""
KEYS = """
DEL b|UNLINK b|DEL a2 b|EXISTS b|TOUCH b|TYPE b|RENAME b a|RENAME a b|RENAMENX b a|COPY b a REPLACE
COPY a b REPLACE
EXPIRE b 1|PEXPIRE b 1|EXPIREAT b 1|PEXPIREAT b 1|TTL b|PTTL b|EXPIRETIME b|PEXPIRETIME b|PERSIST b
OBJECT ENCODING b
DUMP b|RESTORE b 0 x|RESTORE b 0 x REPLACE|MOVE b 1|SORT b|SORT a BY nosort GET b|SET b v|SETEX b 10 v
GET b|GETDEL b
APPEND b v|MGET a b|MSET a v b v|LPUSH b v|BLPOP b 0.01|WATCH b
"""
OWN_KEYS = """
HGETALL bs:meta:{b}|HSET bs:meta:{b} x 1|DEL bs:meta:{b}|DUMP bs:meta:{b}|XRANGE bs:1:s:{b} - +
XADD bs:1:s:{b} * f v
XTRIM bs:1:s:{b} MAXLEN 0|XREAD STREAMS bs:1:s:{b} 0|COPY bs:1:s:{b} a|RENAME bs:meta:{b} bs:meta:{a}
TYPE bs:1:s:{b}
UNLINK bs:1:s:{b}|EXPIRE bs:1:s:{b} 1|HSET bs:config fenced 1|DEL bs:config|SET bs:config v
HDEL bs:config writer
FCALL bs_strand_ensure 2 bs:meta:{b} bs:1:s:{b} s1|FCALL bs_strand_ensure 0
FCALL bs_entry_drop 1 bs:1:s:{b} KEEPREF
"""
SCRIPTS: list[list[str]] = [
    ["EVAL", "return redis.call('XRANGE', KEYS[1], '-', '+')", "1", "bs:1:s:{b}"],
    ["EVAL", "return redis.call('XRANGE', 'bs:1:s:{b}', '-', '+')", "0"],
    ["EVAL", "return redis.call('HGETALL', 'bs:meta:{b}')", "1", "a"],
    ["EVAL", "return redis.call('DEL', 'bs:meta:{b}')", "1", "a"],
]
TABLE = [
    line.split()
    for part in (STREAMS, LOGS, KEYS, OWN_KEYS)
    for row in part.strip().splitlines()
    for line in row.split("|")
] + SCRIPTS

Say = Callable[[list[str]], Any]


def keys_of_others(admin: "redis.Redis") -> dict[bytes, bytes]:
    """Every key that is none of mallory's, and its contents."""
    found = sorted(key for key in admin.keys("*") if b"{a}" not in key and key != b"a")
    return {key: admin.dump(key) for key in found}


@pytest.fixture(params=["server", "cluster"])
def region(request: pytest.FixtureRequest, flavour: Flavour) -> Iterator[Engine]:
    with ExitStack() as stack:
        if request.param == "cluster":
            engine = start_alone(flavour)
            stack.callback(engine.stop)
        else:
            engine = stack.enter_context(Engine(flavour))
        become(engine)
        with owner_of(engine) as client:
            for name in ("a", "b"):
                client.xadd(name, {"f": SECRET if name == "b" else "v"})
                client.xgroup_create(name, "g", "0")
            client.execute_command("TWRITE", "l", "tag", SECRET)
        with engine.client() as admin:
            admin.execute_command("ACL", "SETUSER", *MALLORY.split())
        yield engine


def owner_of(engine: Engine, login: str = "") -> Any:
    kind = braidstream.RedisCluster if engine.cluster else braidstream.Redis
    return kind.from_url(engine.url.replace("//", f"//{login}"))


@contextmanager
def by_gateway(engine: Engine) -> Iterator[Say]:
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        assert line.say("AUTH mallory m") == b"+OK\r\n"
        yield lambda words: parse(line.say(*words))


@contextmanager
def by_multi(engine: Engine) -> Iterator[Say]:
    with Served(engine.url) as gateway, Line(gateway.port) as line:
        assert line.say("AUTH mallory m") == b"+OK\r\n"

        def say(words: list[str]) -> Any:
            line.say("MULTI")
            queued, done = parse(line.say(*words)), parse(line.say("EXEC"))
            return queued if isinstance(queued, Exception) else done

        yield say


@contextmanager
def by_client(engine: Engine) -> Iterator[Say]:
    with owner_of(engine, "mallory:m@") as client:

        def say(words: list[str]) -> Any:
            try:
                return client.execute_command(*words)
            except (RedisError, RedisClusterException, BraidError) as error:
                return error

        yield say


@pytest.mark.parametrize("way", [by_gateway, by_multi, by_client])
def test_no_command_reaches_the_stream_of_another_user(region: Engine, way: Any) -> None:
    with region.client() as admin, way(region) as say:
        before = keys_of_others(admin)
        assert any(SECRET.encode() in value for value in before.values())
        reached = {}
        for words in TABLE:
            reply = say(words)
            refusals = reply if isinstance(reply, list) and way is by_multi else [reply]
            if SECRET in repr(reply) or not any(isinstance(each, Exception) for each in refusals):
                reached[" ".join(words)] = reply
            if (now := keys_of_others(admin)) != before:
                reached[" ".join(words)] = "changed"
                before = now
        assert reached == {}
        assert say(["XADD", "a", "*", "f", "v"]), "its own stream works"


def test_the_table_has_every_command_of_braidstream_that_names_a_key() -> None:
    without_keys = {"SCAN", "KEYS", "RANDOMKEY", "DBSIZE", "FLUSHDB", "FLUSHALL"}
    assert {name.decode() for name in COMMANDS} - without_keys <= {words[0] for words in TABLE}
    assert len(TABLE) > 89
