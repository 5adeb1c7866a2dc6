"""`braid adopt`: native streams become streams of ours in place; strays; the fence."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from braidstream.commands.rename import rename
from braidstream.model.keys import meta
from braidstream.operations.adoption import adopt, bring_in, find_native, release
from braidstream.plan.lookup import read_region
from braidstream.plan.plan import Plan
from braidstream.plan.view import View
from tests.support.cli import braid
from tests.support.clients import Opener
from tests.support.gateways import Line, Served
from tests.support.native_streams import adopt_here, bare_client, native_stream
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.world import World


def test_an_adopted_stream_keeps_entries_groups_and_pending_entries(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        entries = native_stream(bare)
        before = bare.xpending_range("orders", "billing", "-", "+", 100)
        adopt_here(region)
        assert region.xrange("orders") == entries
        assert [each["name"] for each in region.xinfo_groups("orders")] == ["audit", "billing"]
        after = region.xpending_range("orders", "billing", "-", "+", 100)
        for row in (*before, *after):
            row.pop("time_since_delivered")
        assert before == after
        assert region.xinfo_groups("orders")[1]["lag"] == 10
        new = region.xadd("orders", {"at": "new"})
        assert [entry for entry, _ in region.xrange("orders")] == [*(entry for entry, _ in entries), new]
        [[_, rest]] = region.xreadgroup("billing", "ann", {"orders": ">"})
        assert [entry for entry, _ in rest] == [*(entry for entry, _ in entries[10:]), new]
        assert region.xreadgroup("audit", "a", {"orders": ">"}) == [["orders", [(new, {"at": "new"})]]]
        assert region.xack("orders", "billing", entries[5][0], new) == 2
        assert region.xlen("orders") == 21


def test_ids_continue_above_those_of_an_adopted_stream_whose_ids_are_ahead(
    region: Any, engine: Engine
) -> None:
    with bare_client(engine) as bare:
        last = f"{int(time.time() * 1000) + 30_000}-7"
        bare.xadd("orders", {"n": 1}, id=last)
        adopt_here(region)
        assert _order(region.xadd("orders", {"n": 2})) > _order(last)
        bare.xadd("empty", {"n": 1}, id="0-1")
        bare.xdel("empty", "0-1")
        adopt_here(region, "empty")
        region.xadd("empty", {"n": 1})
        assert region.xlen("empty") == 1


def _order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


def test_the_fence_refuses_clients_of_the_engine(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        native_stream(bare)
        adopt_here(region)
        for command in (
            ("XADD", "orders", "*", "f", "v"),
            ("XGROUP", "CREATE", "orders", "g", "$", "MKSTREAM"),
            ("XREADGROUP", "GROUP", "billing", "ann", "STREAMS", "orders", ">"),
            ("XLEN", "orders"),
        ):
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                bare.execute_command(*command)
        assert "braidstream client or gateway" in bare.hgetall("orders")["braidstream"]


def test_no_command_shows_the_fence(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    with bare_client(engine) as bare, client_of(engine) as operator:
        native_stream(bare)
        bare.hset("plain", "f", "v")
        adopt_here(operator)
        client.session.cache.expire_region()
        assert sorted(client.keys("*")) == ["orders", "plain"]
        assert sorted(client.scan(count=1000)[1]) == ["orders", "plain"]
        assert client.scan(count=1000, _type="hash")[1] == ["plain"]
        assert client.scan(count=1000, _type="stream")[1] == ["orders"]
        assert client.dbsize() == 2
        assert client.type("orders") == "stream"
        assert client.exists("orders", "orders", "plain", "none") == 3
        assert client.touch("orders", "plain") == 2
        assert client.object("ENCODING", "orders") == "stream"
        assert client.ttl("orders") == -1
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.get("orders")
        assert client.set("orders", 1, nx=True) is None
        assert client.renamenx("plain", "orders") in (0, False)
        client.rename("orders", "moved")
        assert sorted(client.keys("*")) == ["moved", "plain"]
        assert not bare.exists("orders")


@pytest.mark.parametrize("transaction", [None, False, True])
@pytest.mark.parametrize("cached", [True, False])
def test_del_takes_the_fence_and_counts_one(
    opened: Opener, engine: Engine, cached: bool, transaction: bool | None
) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    with bare_client(engine) as bare, client_of(engine) as operator:
        native_stream(bare)
        adopt_here(operator)
        if cached:
            client.xlen("orders")
        if transaction is None:
            assert client.delete("orders") == 1
        else:
            assert client.pipeline(transaction=transaction).delete("orders").execute() == [1]
        assert bare.exists("orders", "bs:1:c:{orders}", "bs:1:s:{orders}") == 0
        assert client.delete("orders") == 0
        client.xadd("orders", {"n": 1})
        assert client.xlen("orders") == 1
        for at in range(3):
            native_stream(bare, f"n{at}")
            adopt_here(operator, f"n{at}")
        bare.set("plain", 1)
        assert client.delete("n0", "n1", "plain", "none") == 3
        client.flushdb()
        assert sorted(bare.keys("*")) == sorted(bare.keys("bs:*"))
        assert client.keys("*") == []


def test_a_fence_outlives_a_stream_that_a_peer_deleted(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        native_stream(bare)
        adopt_here(region)
        # What the merge with a peer does: strands are gone, the registry keeps their cuts.
        for label, life in (("c1", "0"), ("s1", "0")):
            last = bare.xinfo_stream(f"bs:1:{label[0]}:{{orders}}")["last-generated-id"]
            bare.delete(f"bs:1:{label[0]}:{{orders}}")
            bare.hset(meta(b"orders").decode(), label, f"{life}:-:{last}")
        for group in ("billing", "audit"):
            bare.hdel(meta(b"orders").decode(), f"g:{group}")
        region.session.cache.forget_all()
        region.session.cache.expire_region()
        assert region.type("orders") == "none"
        assert region.exists("orders") == 0
        assert region.keys("*") == []
        assert region.xlen("orders") == 0
        assert region.xread({"orders": "0"}) == []
        assert region.ttl("orders") == -2
        assert region.expire("orders", 1) is False
        assert region.delete("orders") == 0
        bare.hset("orders", "f", "v")
        assert region.type("orders") == "hash"
        bare.delete("orders")
        assert region.xadd("orders", {"n": 1})


def test_a_log_may_be_made_where_a_fence_is_left(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    with bare_client(world.engines[0]) as bare:
        bare.xadd("orders", {"n": 1})
        adopt_here(world[1])
        world.sync()
        world[2].delete("orders")
        world.sync()
        assert bare.type("orders") == "hash"
        assert world[1].twrite("orders", "t", "1") == 1
        assert world[1].tread("orders") == [(1, "t", "1")]


def test_a_second_adoption_starts_a_new_life(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        for _ in range(3):
            entries = native_stream(bare)
            adopt_here(region)
            assert region.xrange("orders") == entries
            region.xadd("orders", {"n": 1})
            assert region.delete("orders") == 1


def test_what_cannot_be_adopted_is_left_as_it_is(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        native_stream(bare)
        bare.expire("orders", 1000)
        assert "time to live" in region.run_plan(adopt(b"orders")).problem
        assert "not a native stream" in region.run_plan(adopt(b"none")).problem
        assert "not adopted" in region.run_plan(release(b"none")).problem
        bare.persist("orders")
        adopt_here(region)
        assert "not a native stream" in region.run_plan(adopt(b"orders")).problem
        assert region.xlen("orders") == 20


def test_names_with_tags_and_bytes_are_adopted_too(region: Any, engine: Engine) -> None:
    with redis.Redis.from_url(engine.url) as bare, client_of(engine) as client:
        for name in (b"{tag}a", b"a{tag}b", b"}odd", b"a}b", b"\xff\x00", b" ", b"*"):
            bare.xadd(name, {"n": 1})
            assert client.run_plan(adopt(name)).problem == ""
            client.xadd(name, {"n": 2})
            assert client.xlen(name) == 2
            assert client.run_plan(release(name)).problem == ""
            assert bare.xlen(name) == 2


def test_a_producer_with_few_rights_appends_to_an_adopted_stream(region: Any, engine: Engine) -> None:
    """Those of docs/rights.md, also where it must create the strand beside the fence."""
    rights = "+del +exec +exists +fcall +hget +hgetall +hset +hsetnx +multi +time +type +unlink +unwatch"
    more = "+watch +xadd +xdel +xgroup|create +xgroup|destroy +xinfo|stream +xsetid +xlen"
    with bare_client(engine) as bare:
        bare.execute_command(
            "ACL", "SETUSER", "bob", "on", ">b", "~bs:*", "~orders*", *rights.split(), *more.split()
        )
        try:
            native_stream(bare)
            adopt_here(region)
            bare.delete("bs:1:s:{orders}")
            direct = redis.Redis.from_url(engine.url, username="bob", password="b")
            with direct, pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                direct.xadd("orders", {"n": 1})
            with client_of(engine, username="bob", password="b") as bob:
                bob.xadd("orders", {"n": 1})
                assert bob.xlen("orders") == 21
        finally:
            bare.execute_command("ACL", "DELUSER", "bob")


# Strays


def test_strays_are_found_and_brought_in_once(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        region.xadd("orders", {"n": "ours"})
        region.xgroup_create("orders", "billing", "$")
        for at in range(2300):
            bare.xadd("orders", {"n": at})
        native_stream(bare, "other")
        [stray] = region.run_plan(find_native([b"orders"]))
        assert (stray.name, stray.entries, stray.is_stray) == (b"orders", 2300, True)
        assert [each.name for each in region.run_plan(find_native())] == [b"orders", b"other"]
        assert region.run_plan(bring_in(b"orders")).entries == 2300
        assert region.run_plan(find_native([b"orders"])) == []
        assert [fields["n"] for _, fields in region.xrange("orders")] == ["ours", *map(str, range(2300))]
        assert len(region.xreadgroup("billing", "a", {"orders": ">"})[0][1]) == 2300
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            bare.xadd("orders", {"n": "late"})
        assert region.run_plan(bring_in(b"orders")).entries == 0


def test_an_interrupted_stray_is_finished_later(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        region.xadd("orders", {"n": "ours"})
        for at in range(30):
            bare.xadd("orders", {"n": at})
        bare.rename("orders", "bs:stray:{orders}")
        for at in range(30, 40):
            bare.xadd("orders", {"n": at})
        [stray] = region.run_plan(find_native([b"orders"]))
        assert stray.entries == 40
        assert region.run_plan(bring_in(b"orders")).entries == 40
        assert [fields["n"] for _, fields in region.xrange("orders")] == ["ours", *map(str, range(40))]


def test_a_native_stream_beside_a_log_is_left_alone_and_said(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        region.twrite("ledger", "t", "1")
        region.xadd("orders", {"n": "ours"})
        for name in ("ledger", "orders"):
            bare.xadd(name, {"n": "beside"})
        done = braid("adopt", "--strays", "--url", engine.url)
        assert done.returncode == 1
        assert "ledger: not done: a log has its name" in done.stdout
        assert "1 stream brought in. 1 could not be." in done.stdout
        assert (bare.type("ledger"), bare.xlen("ledger")) == ("stream", 1)
        assert region.twrite("ledger", "t", "2") == 2
        assert region.xlen("orders") == 2


def test_strays_are_not_appended_by_who_may_not_delete_them(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        region.xadd("orders", {"n": "ours"})
        bare.xadd("orders", {"n": "beside"})
        bare.execute_command("ACL", "SETUSER", "bob", "on", ">b", "~*", "+@all", "-xdel")
        try:
            with client_of(engine, username="bob", password="b") as bob:
                for _ in range(2):
                    with pytest.raises(redis.exceptions.NoPermissionError, match="'xdel'"):
                        bob.run_plan(bring_in(b"orders"))
        finally:
            bare.execute_command("ACL", "DELUSER", "bob")
        assert region.run_plan(bring_in(b"orders")).entries == 1
        assert [fields["n"] for _, fields in region.xrange("orders")] == ["ours", "beside"]


# Under way


@pytest.mark.parametrize("through", ["client", "gateway"])
@pytest.mark.parametrize("how", ["XREADGROUP", "XREADGROUP COUNT", "XREAD", "XREAD mixed"])
@pytest.mark.parametrize("back", [False, True])
def test_readers_that_wait_see_what_comes_after_an_adoption(
    engine: Engine,
    background: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    through: str,
    back: bool,
) -> None:
    monkeypatch.setattr("braidstream.commands.xread.UNDO_SLICE_MS", 1_000)  # they wait so long for an undo
    become(engine)
    with (
        bare_client(engine) as bare,
        client_of(engine, decode_responses=True) as client,
        Served(engine.url) as gateway,
        redis.Redis.from_url(gateway.url, decode_responses=True, socket_timeout=30) as other,
    ):
        native_stream(bare)
        bare.xreadgroup("billing", "ann", {"orders": ">"})
        if back:
            adopt_here(client)
        reader = client if through == "client" else other

        def read() -> Any:
            if how.startswith("XREADGROUP"):
                count = 1 if "COUNT" in how else None
                return reader.xreadgroup("billing", "ann", {"orders": ">"}, block=20_000, count=count)
            names = {"orders": "$"} if how == "XREAD" else {"none": "$", "orders": "$"}
            return reader.xread(names, block=20_000)

        waiting = background.submit(read)
        until = time.monotonic() + 10
        while not bare.info("clients")["blocked_clients"]:
            assert time.monotonic() < until
        with client_of(engine, decode_responses=True) as operator:
            if back:
                assert operator.run_plan(release(b"orders")).problem == ""
            else:
                adopt_here(operator)
            entry = operator.xadd("orders", {"n": "new"})
        assert waiting.result(10) == [["orders", [(entry, {"n": "new"})]]]


def test_a_gateway_that_knew_the_native_stream_follows(line: Line, engine: Engine) -> None:
    with bare_client(engine) as bare, client_of(engine) as operator:
        native_stream(bare)
        for at in range(3):
            assert line.say("XADD orders * f v").startswith(b"$")
            assert line.say("XLEN orders") == b":%d\r\n" % (21 + 4 * at)
            adopt_here(operator)
            said = line.pipeline("XADD orders * f v", "XADD orders * f v", "XLEN orders", "MULTI")
            assert said[2:] == [b":%d\r\n" % (23 + 4 * at), b"+OK\r\n"]
            assert line.pipeline("XADD orders * f v", "EXEC")[1].startswith(b"*1\r\n$")
            operator.run_plan(release(b"orders"))
        assert bare.xlen("orders") == 32


def test_a_connection_lost_after_rename_leaves_no_fence(region: Any, engine: Engine) -> None:
    def cut_off(plan: Plan[Any]) -> Plan[None]:
        """Nothing is sent after the step that makes the new stream."""
        batch = next(plan)
        while True:
            replies = yield batch
            if any("bs_braid_adopt" in command for command in batch.commands):
                return
            batch = plan.send(replies)

    with bare_client(engine) as bare:
        entries = native_stream(bare)
        adopt_here(region)
        view = View(region.run_plan(read_region()))
        region.run_plan(cut_off(rename(view, [b"RENAME", b"orders", b"sales"])))
        assert region.xrange("sales") == entries
        assert bare.exists("orders") == 0
        assert region.xadd("orders", {"at": "again"})
