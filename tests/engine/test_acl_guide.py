"""The guide's users: each can do its work, needs every right it has, and reaches nothing else."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis

import braidstream
from braidstream.consumers.team import Team
from braidstream.model.strand import Strand
from braidstream.operations.membership import meet
from braidstream.plan.append import ensure_command
from braidstream.plan.lookup import current
from braidstream.plan.plan import send_one
from tests.support.cli import braid
from tests.support.limited_rights import IDEMPOTENT as PEER_IDEMPOTENT
from tests.support.limited_rights import OWN, PEER, PROGRAMS
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

# By user: patterns and rights. One block adds to those of a user: what a worker also needs, for dead letters.
# The last block has no user: what a writer needs besides, for messages.
_BLOCKS = [block.split() for block in re.findall(r"```\n((?:ACL SETUSER |\+)[^`]*)```", PROGRAMS, re.DOTALL)]
USERS = {block[2]: block[5:] for block in _BLOCKS if block[0] == "ACL" and block[3] == "on"}
[WORKER] = [block[3:] for block in _BLOCKS if block[0] == "ACL" and block[3] != "on"]
[IDEMPOTENT] = [block for block in _BLOCKS if block[0] != "ACL"]
# What a worker needs besides, for a topic.
TEAM = re.findall(r"`(\+hmget [^`]*)`, to share partitions", PROGRAMS)[0].split()
# What the client or the test calls in any case; COMMAND INFO is optional, says the guide.
OURS = {"acl|log", "auth", "hello", "info", "config|resetstat", "client|setinfo", "command|info"}


@pytest.fixture
def region(engine: Engine) -> Iterator[braidstream.Redis]:
    """A region that is alone."""
    become(engine, id_mode="liberal")
    with client_of(engine, decode_responses=True) as client:
        for name in ("orders", "payments"):
            for number in range(5):
                client.xadd(name, {"n": number})
        client.xdel("orders", client.xrange("orders")[3][0])
        client.xgroup_create("orders", "readers", "0")  # DEL removes it too
        yield client


def meet_a_peer(client: braidstream.Redis) -> None:
    """It has a peer now, of whose entries some have come."""
    client.run_plan(meet((1, 2)))
    client.delete("orders")
    client.xadd("orders", {"n": "1"})
    now = round(time.time() * 1000)
    client.run_plan(apply(Strand(b"orders", "s", 2), [((now, n), [b"n", b"2"]) for n in range(9)]))
    client.xdel("orders", client.xrange("orders")[5][0])


def read(client: Any) -> None:
    client.xlen("orders"), client.xrange("orders"), client.xrevrange("orders")
    client.xread({"orders": 0}), client.xread({"orders": "$"}, block=1), client.xinfo_stream("orders")
    client.exists("orders"), client.type("orders")


def write(client: Any) -> None:
    client.xadd("orders", {"n": "1"}, maxlen=5, approximate=False)
    far = round(time.time() * 1000) * 2
    client.xadd("orders", {"n": "2"}, id=f"{far}-5", maxlen=1, approximate=False)
    client.execute_command("XSETID", "orders", f"{far}-5000")
    client.xdel("orders", "1-1", client.xadd("orders", {"n": "3"})), client.xtrim("orders", maxlen=0)
    with client.pipeline() as pipe:
        pipe.watch("orders")
        pipe.unwatch()
        pipe.watch("orders")
        pipe.multi()
        pipe.xadd("orders", {"n": "4"}).delete("orders").exists("orders").execute()
    client.xadd("orders", {"n": "5"}, id="1-1")  # after DEL: the chosen strand starts another life
    client.type("orders"), client.unlink("orders")
    client.xadd("orders", {"n": "6"})


def consume(client: Any) -> None:
    client.xgroup_create("orders", "jobs", "0"), client.xreadgroup("jobs", "bob", {"orders": ">"}, count=1)
    client.xinfo_groups("orders")  # something was deleted, so the lag is counted
    [[_, entries]] = client.xreadgroup("jobs", "ann", {"orders": ">"})
    client.xack("orders", "jobs", entries[0][0])
    client.xgroup_setid("orders", "jobs", "0"), client.xreadgroup("jobs", "bob", {"orders": ">"}, count=1)
    client.xclaim("orders", "jobs", "bob", 0, [entries[1][0]]), client.xautoclaim("orders", "jobs", "ann", 0)
    for _ in range(3):
        client.xreadgroup("jobs", "ann", {"orders": ">"}, block=1)
    client.xreadgroup("jobs", "ann", {"orders": ">"}, block=1, count=1)
    client.xreadgroup("jobs", "ann", {"orders": "0"})
    client.xpending("orders", "jobs"), client.xpending_range("orders", "jobs", "-", "+", 10)
    client.xinfo_groups("orders"), client.xinfo_consumers("orders", "jobs")
    client.xgroup_createconsumer("orders", "jobs", "eve"), client.xgroup_delconsumer("orders", "jobs", "eve")
    client.xgroup_setid("orders", "jobs", "0"), client.xgroup_destroy("orders", "jobs")


def produce(client: Any) -> None:
    """Messages that are new, and one that was sent before."""
    client.execute_command("XADD", "orders", "IDMPAUTO", "p", "*", "n", "1")
    client.execute_command("XADD", "orders", "IDMP", "q", time.time(), "*", "n", "1")


def work_until_dead(client: Any, **options: Any) -> None:
    """A worker creates the stream, or the groups of a topic, and gives up on an entry."""
    what = options or {"streams": "orders"}
    consumer = braidstream.Consumer(client, **what, group="bills", concurrency=1, stop_timeout=1)

    @consumer.handler
    def handle(message: braidstream.Message) -> None:
        raise braidstream.Reject(message["n"])

    with ThreadPoolExecutor() as pool:
        running = pool.submit(consumer.run)
        try:
            dead = f"{options.get('topic', 'orders')}.dead"
            if not options:
                eventually(
                    lambda: running.done() or client.exists("orders"), within_s=20, why="it creates it"
                )
                client.xadd("orders", {"n": "bad"})
            eventually(lambda: running.done() or client.xlen(dead), within_s=20, why="a dead letter")
        finally:
            consumer.stop()
        running.result()


def read_log(client: Any) -> None:
    (
        client.tread("ledger", 1, 3),
        client.tread("ledger", 9, 1, block=1),
        client.tread("ledger", 1, 3, skip=True),
    )
    client.tread("ledger", count=0, withinfo=True), client.tread("ledger", 1, 9)


def write_log(client: Any) -> None:
    client.twrite("ledger", "t", "e", backlog=1_000), client.twrite("ledger", entries=[("t", "e")] * 3)
    client.tcfgset("ledger", backlog=5_000, maxage=3_600_000), client.tevict("ledger", 1)
    client.tevict("ledger", keep=1_000), client.tevict("ledger", older=3_600_000)
    client.delete("ledger"), client.twrite("ledger", "t", "e")
    # Another client was first.
    client.run_plan(send_one(ensure_command(client.run_plan(current(b"ledger")).strands[0])))


def share_log(client: Any) -> None:
    """A group without RETRY, one with it that is full, waits for room and entries, and is acknowledged."""
    client.tread("ledger", group="plain"), client.tread("ledger", group="plain", block=1)
    for _ in range(2):
        client.tread("ledger", group="retry", retry=(1, 60_000), count=1)
    client.tread("ledger", group="retry", retry=(60_000, 60_000), block=30)
    client.tread("ledger", group="retry", retry=(1, 1), count=9, block=30)
    with suppress(redis.ResponseError):  # NOGROUP, if there is no log
        client.tack("ledger", "retry", 1), client.tack("ledger", "retry", range(1, 9))
    client.tread("ledger", group="retry", retry=(1, 60_000), block=1)
    client.tread("ledger", group="late", start="LAST", retry=(1, 60_000), block=30, withinfo=True)


@pytest.mark.parametrize(
    ("user", "work"), [("logreader", read_log), ("logwriter", write_log), ("logconsumer", share_log)]
)
def test_a_user_of_a_log_needs_these_rights_and_no_other(
    region: braidstream.Redis, engine: Engine, user: str, work: Callable[[Any], None]
) -> None:
    region.tcfgset("ledger", pending=2)
    used = set[str]()
    for regions in [(1,), (1, 2)]:
        region.run_plan(meet(regions))
        region.twrite("ledger", entries=[("t", "e")] * 4)
        url = grant(engine, user, USERS[user])
        with braidstream.Redis.from_url(url, decode_responses=True) as client:
            work(client)
            used |= called(engine)
            region.delete("ledger")
            with engine.client() as operator:
                operator.unlink("bs:tick:{ledger}")
                operator.config_resetstat()
            work(client)
        used |= called(engine)
    assert refused(engine) == set()
    assert used == plain(USERS[user])


@pytest.mark.parametrize("others_have_read", [False, True])
def test_a_reader_that_lacks_a_right_is_refused_before_it_takes_anything(
    region: braidstream.Redis, engine: Engine, others_have_read: bool
) -> None:
    region.twrite("ledger", entries=[("t", "e")] * 4)
    times = (60_000, 600_000)
    for lacking in sorted(plain(USERS["logconsumer"])):
        region.xgroup_create("ledger", lacking, "0")
        if others_have_read:
            region.tread("ledger", count=1, group=lacking, retry=times), region.tack("ledger", lacking, 1)
        rights = [right for right in USERS["logconsumer"] if right != f"+{lacking}"]
        with braidstream.Redis.from_url(grant(engine, "lacks", rights)) as client:
            rows = []
            with suppress(redis.ResponseError):
                rows = client.tread("ledger", count=1, group=lacking, retry=times)
        assert region.xpending("ledger", lacking)["pending"] == len(rows), lacking


def test_braid_acl_prints_the_users_of_the_guide() -> None:
    def printed(*words: str) -> list[str]:
        line = braid("acl", *words).stdout
        assert line.startswith(f"ACL SETUSER {words[0]} on >PASSWORD ")
        return re.findall(r"\([^)]*\)|\S+", line)[5:]

    for kind in ("reader", "writer", "consumer"):
        assert printed(kind, "--streams", "orders") == USERS[kind]
    writer = printed("writer", "--streams", "orders", "--idempotent")
    assert {*writer} == {*USERS["writer"], *IDEMPOTENT, "%R~bs:status"}
    assert {*printed("worker", "--streams", "orders")} == {*USERS["consumer"], *WORKER}
    assert printed("reader", "--streams", "a*,b?")[:4] == [
        "%R~a*",
        "%R~bs:*:{a*",
        "%R~b\\?",
        "%R~bs:*:{b\\?}*",
    ]
    assert printed("daemon") == OWN
    assert printed("link") == PEER
    assert {*printed("link", "--idempotent")} == {*PEER, *PEER_IDEMPOTENT}
    for words in (("writer",), ("link", "--streams", "orders"), ("reader", "--streams", "a{b}")):
        assert braid("acl", *words).returncode == 2


def test_users_of_a_topic_need_the_rights_that_braid_acl_prints(
    region: braidstream.Redis, engine: Engine
) -> None:
    def url_of(kind: str) -> str:
        return grant(engine, kind, braid("acl", kind, "--topics", "bills").stdout.split()[5:])

    def open_as(kind: str) -> braidstream.Redis:
        return braidstream.Redis.from_url(url_of(kind), decode_responses=True)

    for regions in [(1,), (1, 2)]:
        region.run_plan(meet(regions))
        with braidstream.Redis.from_url(engine.url) as operator:
            operator.topic("bills").create(4)
        with open_as("writer") as client:
            orders = client.topic("bills")
            orders.add({"n": 1}, key="a"), orders.add_many([("a", {"n": 2}), ("b", {"n": 3})])
            stream = orders.stream("a").decode()
        with open_as("reader") as client:
            assert client.topic("bills").stream("a").decode() == stream
            assert len(client.xrange(stream)) == len(client.xread({stream: 0})[0][1])
        with open_as("consumer") as client:
            client.xgroup_create(stream, f"jobs-{len(regions)}", "0")
            [[_, entries]] = client.xreadgroup(f"jobs-{len(regions)}", "bob", {stream: ">"})
            client.xack(stream, f"jobs-{len(regions)}", *(entry for entry, _ in entries))
        assert refused(engine) == set()
        with open_as("writer") as client:
            for refuse in (
                lambda: client.topic("payments").create(4),
                lambda: client.xadd("bills", {"n": 1}),
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    refuse()


def test_a_worker_of_a_topic_needs_these_rights_too(region: braidstream.Redis, engine: Engine) -> None:
    used = set[str]()
    for regions in [(1,), (1, 2)]:
        region.run_plan(meet(regions))
        region.delete("bills.dead")
        region.topic("bills").create(4)
        region.topic("bills").add({"n": "bad"}, key="a")
        dead = Team("bills", "bills", "dead", session_s=0.001)
        region.converse(partial(dead.beat, now=0))
        rights = braid("acl", "worker", "--topics", "bills").stdout.split()[5:]
        with braidstream.Redis.from_url(grant(engine, "worker", rights), decode_responses=True) as client:
            work_until_dead(client, topic="bills")
        assert refused(engine) == set()
        used |= called(engine)
        assert plain(rights) == plain([*USERS["consumer"], *WORKER, *TEAM])
    assert plain(TEAM) <= used


WORK: dict[str, Callable[[Any], None]] = {"reader": read, "writer": write, "consumer": consume}


def grant(engine: Engine, user: str, rights: list[str]) -> str:
    """The URL of a user with these rights; from now on refusals and calls are noted."""
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", user, "reset", "on", ">secret", *rights)
        operator.execute_command("ACL", "LOG", "RESET")
        operator.config_resetstat()
    return engine.url.replace("//", f"//{user}:secret@")


def called(engine: Engine) -> set[str]:
    with engine.client() as operator:
        return {name.removeprefix("cmdstat_") for name in operator.info("commandstats")} - OURS


def refused(engine: Engine) -> set[str]:
    with engine.client() as operator:
        return {str(entry["object"]) for entry in operator.acl_log()} - OURS


def plain(rights: list[str]) -> set[str]:
    return {right.removeprefix("+") for right in rights if right.startswith("+")}


@pytest.mark.parametrize("user", WORK)
def test_a_user_of_the_guide_needs_these_rights_and_no_other(
    region: braidstream.Redis, engine: Engine, user: str
) -> None:
    url = grant(engine, user, USERS[user])
    with braidstream.Redis.from_url(url, decode_responses=True) as client:
        WORK[user](client)
    needed = called(engine)
    meet_a_peer(region)
    grant(engine, user, USERS[user])
    with braidstream.Redis.from_url(url, decode_responses=True) as client:
        WORK[user](client)
        if user == "writer":
            with engine.client() as operator:
                operator.delete("bs:1:s:{orders}")  # lost: the strand that replaces it calls TIME
            client.xadd("orders", {"n": "7"})
    assert refused(engine) == set()
    assert needed | called(engine) == plain(USERS[user])


def test_an_idempotent_writer_needs_these_rights_too(region: braidstream.Redis, engine: Engine) -> None:
    meet_a_peer(region)
    url = grant(engine, "writer", [*USERS["writer"], *IDEMPOTENT])
    region.execute_command("XCFGSET", "orders", "IDMP-MAXSIZE", 10_000, "IDMP-DURATION", 1)
    with braidstream.Redis.from_url(url, decode_responses=True) as client:
        eventually(
            lambda: produce(client) or plain(IDEMPOTENT) - called(engine) == set(),  # type: ignore[func-returns-value]
            within_s=10,
            why="when messages are forgotten, every right is used",
        )
    assert refused(engine) == set()
    assert called(engine) - plain(USERS["writer"]) - {"xcfgset"} == plain(IDEMPOTENT)


def test_an_idempotent_writer_of_a_log_needs_hdel_too(region: braidstream.Redis, engine: Engine) -> None:
    region.run_plan(meet((1, 2)))
    url = grant(engine, "logwriter", [*USERS["logwriter"], *IDEMPOTENT, "+hdel"])
    with braidstream.Redis.from_url(url, decode_responses=True) as client:
        for number in range(250):
            assert client.twrite("ledger", "t", "e", idmp=("p", f"{number}")) == number + 1
            assert client.twrite("ledger", "t", "e", idmp=("p", f"{number}")) == number + 1
    assert refused(engine) == set()


def test_a_worker_of_the_guide_needs_these_rights_too(region: braidstream.Redis, engine: Engine) -> None:
    used = set[str]()
    for regions in [(1,), (1, 2)]:
        region.run_plan(meet(regions))
        region.delete("orders", "orders.dead")  # the worker creates them
        url = grant(engine, "consumer", [*USERS["consumer"], *WORKER])
        with braidstream.Redis.from_url(url, decode_responses=True) as client:
            work_until_dead(client)
        # It looks whether something was put off, which a user without --later may not see.
        assert refused(engine) <= {"bs:meta:+{orders}.bills.again"}
        used |= called(engine)
    assert used - plain(USERS["consumer"]) == plain(WORKER)


@pytest.mark.parametrize("user", WORK)
def test_a_user_of_the_guide_reaches_nothing_else(
    region: braidstream.Redis, engine: Engine, user: str
) -> None:
    with redis.Redis.from_url(grant(engine, user, USERS[user])) as client:
        for command in (
            ("HSET", "bs:config", "writer", 2),
            ("UNLINK", "bs:config"),
            ("XRANGE", "bs:1:s:{payments}", "-", "+"),
            ("XADD", "bs:1:s:{payments}", "*", "n", 1),
            ("HGETALL", "bs:meta:{payments}"),
            ("FCALL", "bs_braid_delete", 2, "bs:meta:{orders}", "bs:1:s:{payments}", 1, "s1:0"),
            ("XRANGE", "payments", "-", "+"),
            ("CONFIG", "GET", "*"),
            ("FLUSHALL",),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
    assert region.hget("bs:config", "writer") == "1"
    assert region.xlen("payments") == 5
