"""Users with few rights: what the engine would refuse is refused, and then nothing has happened.

Functions act with the rights of their caller. A command that a plan is made of may be allowed where the
command itself is not, or the other way round; neither may do half of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

import braidstream
from braidstream.commands.table import TABLE
from tests.support.gateways import Line, Served
from tests.support.matrix import on_every_engine
from tests.support.regions import become, client_of
from tests.support.servers import Engine

pytestmark = pytest.mark.every_engine

flavour = on_every_engine

Grant = Callable[..., None]


@pytest.fixture
def grant(engine: Engine) -> Iterator[Grant]:
    """Give the user `app` exactly these rights."""
    with engine.client() as operator:

        def give(*rights: str) -> None:
            operator.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "&*", *rights)

        yield give
        operator.execute_command("ACL", "DELUSER", "app")


@contextmanager
def as_user(port: int) -> Iterator[Line]:
    with Line(port) as line:
        assert line.say("AUTH app secret") == b"+OK\r\n"
        yield line


def fill(line: Line) -> None:
    line.pipeline("FLUSHDB", "XADD s * n 1", "XADD s * n 2", "XGROUP CREATE s g 0", "SET plain 1")


def state(line: Line) -> list[bytes]:
    return line.pipeline("XRANGE s - +", "XINFO GROUPS s", "XPENDING s g", "GET plain", "EXISTS s t")


# What each command of ours is refused as, where the engine has it.
COMMANDS = {
    "XADD": "s * n 3",
    "XLEN": "s",
    "XRANGE": "s - +",
    "XREVRANGE": "s + -",
    "XREAD": "STREAMS s 0",
    "XDEL": "s 1-1",
    "XTRIM": "s MAXLEN 0",
    "XSETID": "s 99999999999999-1",
    "XINFO": "STREAM s",
    "DEL": "s",
    "UNLINK": "s",
    "EXISTS": "s",
    "TOUCH": "s",
    "TYPE": "s",
    "RENAME": "s t",
    "RENAMENX": "s t",
    "COPY": "s t",
    "EXPIRE": "s 10",
    "PEXPIRE": "s 10",
    "EXPIREAT": "s 10",
    "PEXPIREAT": "s 10",
    "TTL": "s",
    "PTTL": "s",
    "EXPIRETIME": "s",
    "PEXPIRETIME": "s",
    "PERSIST": "s",
    "OBJECT": "ENCODING s",
    "DUMP": "s",
    "RESTORE": "t 0 x",
    "SCAN": "0",
    "KEYS": "*",
    "RANDOMKEY": "",
    "DBSIZE": "",
    "FLUSHDB": "",
    "FLUSHALL": "",
    "WATCH": "s",
    "XGROUP": "DESTROY s g",
    "XREADGROUP": "GROUP g c STREAMS s >",
    "XACK": "s g 1-1",
    "XPENDING": "s g",
    "XCLAIM": "s g c 0 1-1",
    "XAUTOCLAIM": "s g c 0 0",
}
# The same of commands that only some engines have, and those that are ours on every engine.
NEWER = {"XDELEX": "s IDS 1 1-1", "XACKDEL": "s g IDS 1 1-1", "XNACK": "s g FAIL IDS 1 1-1"}
OURS = {"XCFGSET", "XIDMPRECORD", "TWRITE", "TREAD", "TEVICT", "TACK", "TCFGSET"}


def test_a_user_who_may_not_run_a_command_cannot_run_it_by_its_parts(
    engine: Engine, served: Served, line: Line, grant: Grant
) -> None:
    assert COMMANDS.keys() | NEWER.keys() | OURS == {name.decode() for name in TABLE}
    wrong = list[tuple[str, bytes]]()
    fill(line)
    before = state(line)
    had = {name: rest for name, rest in NEWER.items() if name in engine.vocabulary}
    for name, rest in (COMMANDS | had).items():
        grant("+@all", f"-{name}", "~*")
        with as_user(served.port) as user:
            user.say("XLEN s")  # so that the strands are known
            replies = [user.say(f"{name} {rest}"), *user.pipeline(f"{name} {rest}", "PING")[:1]]
        wrong += [
            (name, reply) for reply in replies if b"permissions" not in reply and b"can't run" not in reply
        ]
        if state(line) != before:
            wrong.append((name, b"something has changed"))
            fill(line)
            before = state(line)
    assert wrong == []


@pytest.mark.parametrize(
    "command", ["FLUSHDB", "FLUSHALL", "RENAME s t", "RENAMENX s t", "COPY s t", "DEL s"]
)
def test_what_is_refused_is_refused_in_the_words_of_the_engine(
    engine: Engine, served: Served, line: Line, grant: Grant, command: str
) -> None:
    fill(line)
    grant("+@all", f"-{command.split()[0]}", "~*")
    with as_user(served.port) as user, as_user(engine.port) as bare:
        assert user.say(command) == bare.say(command)


def test_the_usual_user_of_production_flushes_nothing(line: Line, served: Served, grant: Grant) -> None:
    fill(line)
    before = state(line)
    grant("+@all", "-@dangerous", "~*")
    with as_user(served.port) as user:
        for command in ("FLUSHDB", "FLUSHALL", "FLUSHDB ASYNC"):
            assert user.say(command).startswith(b"-NOPERM")
    assert state(line) == before


@pytest.mark.parametrize("rights", [["+@all", "-del", "~*"], ["+@all", "~bs:*"]])
def test_a_deletion_that_is_refused_deletes_no_stream(
    line: Line, served: Served, engine: Engine, grant: Grant, rights: list[str]
) -> None:
    fill(line)
    line.say("XADD t * n 1")
    grant(*rights)
    before = state(line)
    with as_user(served.port) as user:
        user.pipeline("XLEN s", "XLEN t")
        for lines in (["DEL s"], ["DEL s t"], ["XLEN s", "DEL s", "DEL t s"], ["MULTI", "DEL s", "EXEC"]):
            replies = user.pipeline(*lines)
            assert any(reply.startswith((b"-NOPERM", b"-EXECABORT")) for reply in replies), lines
            assert state(line) == before, lines
    url = engine.url.replace("//", "//app:secret@")
    with braidstream.Redis.from_url(url) as client:
        client.xlen("s")
        for names in (["s"], ["s", "t"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.delete(*names)
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.pipeline(transaction=False).xlen("s").delete(*names).execute()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.pipeline().delete("s").execute()
        assert client.xlen("s") == 2
    assert state(line) == before


@pytest.mark.parametrize("rights", [["-multi"], ["-multi", "-exec"]])
def test_the_first_entry_of_a_user_without_multi_is_answered_with_its_id(
    line: Line, served: Served, engine: Engine, grant: Grant, rights: list[str]
) -> None:
    grant("+@all", *rights, "~*")
    with as_user(served.port) as user:
        assert user.say("XADD s * n 1").startswith(b"$")
        assert line.say("XLEN s") == b":1\r\n"
        [*_, refused] = user.pipeline("MULTI", "XADD s * n 2", "EXEC")
        assert refused.startswith(b"-")
    with braidstream.Redis.from_url(
        engine.url.replace("//", "//app:secret@"), decode_responses=True
    ) as client:
        added = client.xadd("t", {"n": "1"})
        assert [entry for entry, _ in client.xrange("t")] == [added]
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.pipeline(transaction=True).xadd("t", {"n": "2"}).execute()
        # It relies on WATCH: without MULTI it would lose what others write at the same time.
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.rename("t", "u")


def test_of_several_names_all_must_be_allowed(line: Line, served: Served, grant: Grant) -> None:
    fill(line)
    grant("+@all", "~s", "~bs:*")
    with as_user(served.port) as user:
        assert user.say("DEL s t").startswith(b"-NOPERM")
        assert user.say("XLEN s") == b":2\r\n"
        assert user.say("DEL s") == b":1\r\n"


INSIDE = {
    "DEL s": ["exists", "xinfo|stream", "time", "unlink", "hget", "hset", "hdel"],
    "RENAME s t": ["rename", "unlink", "hset", "hsetnx", "hdel", "hget", "time", "xsetid"],
    "XGROUP DESTROY s g": ["xgroup|destroy", "hdel", "unlink", "hget", "hset", "time"],
    "XGROUP CREATE s h 0": ["xgroup|create", "hget", "hset", "time", "unlink"],
    "XGROUP SCOPE s g ONCE": ["hget", "hset", "time", "unlink"],
    "XGROUP SETID s g $": ["xgroup|setid", "hget", "hset", "time", "unlink"],
}


@pytest.mark.parametrize("command", INSIDE)
def test_a_function_that_lacks_a_right_has_done_nothing(
    line: Line, served: Served, grant: Grant, command: str
) -> None:
    fill(line)
    before = state(line)
    for inside in INSIDE[command]:
        grant("+@all", f"-{inside}", "~*")
        with as_user(served.port) as user:
            user.say("XLEN s")
            reply = user.say(command)
        assert b"permissions" in reply or b"can't run" in reply, inside
        assert state(line) == before, inside


@pytest.mark.parametrize("rights", ["xgroup|create", "xgroup|destroy", "hset", "xsetid"])
@pytest.mark.parametrize("entry", ["*", "99999999999999-1"])
def test_a_stream_that_a_user_may_not_make_again_is_not_half_made(
    engine: Engine, served: Served, grant: Grant, entry: str, rights: str
) -> None:
    """Half a strand would take the appends of others, and show none of them."""
    become(engine, id_mode="liberal")
    with Line(served.port) as line:
        line.pipeline("XADD s * n 1", "XADD s 99999999999999-0 n 2", "DEL s")
        grant("+@all", f"-{rights}", "~*")
        with as_user(served.port) as user:
            assert b"permissions" in user.say(f"XADD s {entry} n 3")
        assert line.say("EXISTS s") == b":0\r\n"
        assert line.say(f"XADD s {entry} n 4").startswith(b"$")
        assert line.say("XLEN s") == b":1\r\n"


def test_an_acknowledgement_without_the_right_to_delete_acknowledges_nothing(
    line: Line, served: Served, engine: Engine, grant: Grant
) -> None:
    fill(line)
    line.say("XREADGROUP GROUP g c STREAMS s >")
    with client_of(engine) as client:
        first = client.xrange("s", count=1)[0][0].decode()
    before = state(line)
    native = "XACKDEL" in engine.vocabulary
    grant("+@all", "-xackdel" if native else "-xdel", "~*")
    with as_user(served.port) as user:
        assert b"permissions" in user.say(f"XACKDEL s g IDS 1 {first}")
    assert state(line) == before
