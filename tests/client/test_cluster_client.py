"""Both cluster clients: the commands of `braidstream.Redis`, on streams that lie on different nodes."""

import ast
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import RedisClusterException, WatchError

import braidstream
from braidstream.model import keys
from tests.support.clients import Opener
from tests.support.cluster import Cluster, SlotMove, become_cluster, facts_of
from tests.support.cluster_clients import NAMES, cluster_client, cluster_opener, slot, values
from tests.support.waiting import eventually

opened = cluster_opener
client = cluster_client


def test_the_names_lie_on_every_node(cluster: Cluster) -> None:
    assert {cluster.owner(slot(name)) for name in NAMES} == set(cluster.nodes)


# One stream


def test_each_stream_is_one_of_braidstream(client: Any, cluster: Cluster) -> None:
    for name in NAMES:
        assert [client.xadd(name, {"n": str(n)}) for n in range(3)] == [
            entry for entry, _ in client.xrange(name)
        ]
        with cluster.owner(slot(name)).client() as bare:
            assert bare.xlen(keys.strand(name.encode(), "s", 1)) == 3
            assert bare.exists(name) == 0
    assert [client.xlen(name) for name in NAMES] == [3] * len(NAMES)


def test_a_reader_gives_each_entry_once(client: Any, opened: Opener) -> None:
    for name in NAMES:
        first = client.xadd(name, {"n": "1"})
        reader = client.reader(name, block=50)
        for wanted in ([(first, {"n": "1"})], []):
            found = reader.read()
            assert (opened.runner.run(found) if opened.runner else found) == wanted


def test_names_whose_plain_key_is_in_another_slot(client: Any) -> None:
    for name in ("a}b", "}", "{}", "a{}b", "{a}b"):
        client.xadd(name, {"n": "1"})
        client.set(f"{name}-plain", "x")
        assert (client.type(name), client.xlen(name), client.exists(name)) == ("stream", 1, 1)
        with client.pipeline() as pipe:
            assert pipe.xadd(name, {"n": "2"}).xlen(name).type(name).execute()[1:] == [2, "stream"]
        assert client.delete(name) == 1
        assert (client.type(name), client.exists(name)) == ("none", 0)
        client.set(name, "plain")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.xadd(name, {"n": "1"})
        assert client.delete(name) == 1


def test_groups_messages_logs_and_deadlines(client: Any) -> None:
    for name in NAMES:
        first = client.xadd(name, {"n": "1"})
        client.xgroup_create(name, "g", "0")
        assert client.xreadgroup("g", "ann", {name: ">"}) == [[name, [(first, {"n": "1"})]]]
        assert client.xpending(name, "g")["pending"] == 1
        assert client.xack(name, "g", first) == 1
        message = ("XADD", name, "IDMP", "p", "1", "*", "n", "2")
        assert client.execute_command(*message) == client.execute_command(*message)
        assert client.expire(name, 100)
        assert 0 < client.ttl(name) <= 100
        assert client.twrite(f"log-{name}", "tag", "entry") == client.tread(f"log-{name}", 0, 1)[0][0]


def test_a_stream_is_renamed_and_copied_within_its_slot(client: Any) -> None:
    entry = client.xadd("{a}1", {"n": "1"})
    assert client.rename("{a}1", "{a}2")
    assert client.copy("{a}2", "{a}3")
    assert client.xrange("{a}3") == [(entry, {"n": "1"})]
    assert client.exists("{a}1", "{a}2", "{a}3") == 2


def test_what_needs_one_slot_is_refused_in_redis_pys_words(
    client: Any, cluster: Cluster, opened: Opener
) -> None:
    theirs = opened.bare(cluster.url)
    theirs.ping()  # the asyncio one reads the map of slots now
    for command in ("RENAME", "COPY", "DEL", "EXISTS"):
        with pytest.raises(RedisClusterException) as refused:
            theirs.execute_command(command, "a", "b")
        with pytest.raises(RedisClusterException) as also:
            client.execute_command(command, "a", "b")
        assert str(also.value) == str(refused.value)


def test_a_set_replaces_a_stream(client: Any) -> None:
    for name in NAMES:
        client.xadd(name, {"n": "1"})
        client.set(name, "plain")
        assert (client.type(name), client.get(name)) == ("string", "plain")


def test_the_id_mode_is_read_again_before_an_id_is_refused(opened: Opener, cluster: Cluster) -> None:
    become_cluster(cluster)
    client = opened(cluster.url)
    with pytest.raises(braidstream.RefusedError, match="ID mode"):
        client.xadd("s", {"n": "1"}, id="1-1")
    facts_of(cluster, {b"id-mode": b"liberal", b"topology": b"3"})
    assert client.xadd("s", {"n": "1"}, id="1-1") == b"1-1"


# All keys


def test_commands_about_all_keys_ask_every_node(client: Any) -> None:
    for name in NAMES:
        client.xadd(name, {"n": "1"})
        client.set(f"plain-{name}", "1")
    everything = sorted([*NAMES, *(f"plain-{name}" for name in NAMES)])
    assert sorted(client.keys("*")) == everything
    assert sorted(client.keys("stream-1*")) == ["stream-1", "stream-10", "stream-11"]
    assert sorted(client.scan_iter(count=3)) == everything
    assert sorted(client.scan_iter(_type="stream")) == sorted(NAMES)
    cursors, found = client.scan(count=1000)
    assert (sorted(found), set(cursors.values()), len(cursors)) == (everything, {0}, 3)
    assert client.dbsize() == len(everything)
    assert client.randomkey() in everything
    assert client.exists(*NAMES, "nothing") == len(NAMES)
    assert client.touch(*NAMES) == len(NAMES)
    assert client.delete(*NAMES[:3], "nothing") == 3
    assert client.unlink(*NAMES[3:6]) == 3
    assert client.dbsize() == len(everything) - 6
    client.flushdb()
    assert (client.dbsize(), client.keys("*"), client.randomkey()) == (0, [], None)
    assert client.xadd("stream-1", {"n": "1"})


# Several slots


def test_a_read_of_streams_on_several_nodes(client: Any) -> None:
    for n, name in enumerate(NAMES):
        client.xadd(name, {"n": str(n)}, id=f"{n + 1}-1")
        client.xgroup_create(name, "g", "0")
    wanted = [[name, [(f"{n + 1}-1", {"n": str(n)})]] for n, name in enumerate(NAMES)]
    assert client.xread(dict.fromkeys(NAMES, "0")) == wanted
    assert client.xread({NAMES[5]: "0", NAMES[2]: "9-9", NAMES[7]: "0"}) == [wanted[5], wanted[7]]
    assert client.xreadgroup("g", "ann", dict.fromkeys(NAMES, ">")) == wanted
    assert client.xreadgroup("g", "ann", dict.fromkeys(NAMES, ">")) == []
    with pytest.raises(redis.ResponseError, match="NOGROUP"):
        client.xreadgroup("h", "ann", dict.fromkeys(NAMES, ">"))


def test_a_read_with_too_few_ids_is_refused_by_the_engine(client: Any) -> None:
    with pytest.raises(redis.ResponseError, match="Unbalanced"):
        client.execute_command("XREAD", "STREAMS", *NAMES[:3], "0", "0")


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_read_waits_in_all_slots_at_once(
    client: Any, cluster: Cluster, opened: Opener, protocol: int
) -> None:
    client.xadd(NAMES[0], {"n": "0"})
    reader = opened(cluster.url, decode_responses=True, protocol=protocol)
    with ThreadPoolExecutor(1) as pool:
        for name in NAMES[:6]:
            reading = pool.submit(reader.xread, dict.fromkeys(NAMES[:6], "$"), block=20_000)
            _blocked(cluster)
            began = time.monotonic()
            entry = client.xadd(name, {"n": "1"})
            found = dict(reading.result())
            assert time.monotonic() - began < 5
            assert found in ({name: [(entry, {"n": "1"})]}, {name: [[(entry, {"n": "1"})]]})
        _blocked(cluster, 0)


def test_a_group_waits_in_all_slots_at_once_and_delivers_each_entry_once(
    client: Any, cluster: Cluster
) -> None:
    for name in NAMES[:6]:
        client.xgroup_create(name, "g", "$", mkstream=True)
    seen, stop = list[str](), threading.Event()

    def consume(consumer: str) -> None:
        while not stop.is_set():
            for _, entries in client.xreadgroup("g", consumer, dict.fromkeys(NAMES[:6], ">"), block=200):
                seen.extend(fields["n"] for _, fields in entries)

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(consume, consumer) for consumer in ("ann", "bob")]
        for n in range(200):
            client.xadd(NAMES[n % 6], {"n": str(n)})
        eventually(lambda: len(seen) >= 200, within_s=20, why="all entries should be delivered")
        stop.set()
        for each in working:
            each.result()
    assert sorted(seen, key=int) == [str(n) for n in range(200)]


def test_a_wait_ends_at_its_timeout(client: Any) -> None:
    began = time.monotonic()
    assert client.xread(dict.fromkeys(NAMES, "$"), block=300) == []
    assert 0.25 < time.monotonic() - began < 5


def _blocked(cluster: Cluster, clients: int = 6) -> None:
    def count() -> int:
        total = 0
        for node in cluster.nodes:
            with node.client() as operator:
                total += operator.info("clients")["blocked_clients"]
        return total

    eventually(lambda: count() == clients, within_s=20, why=f"{clients} clients should be waiting")


def test_the_guide_prints_what_it_says(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    become_cluster(cluster)
    guide = Path(__file__).parents[2] / "docs/guides/clusters.md"
    text = guide.read_text(encoding="utf-8").partition("\n## Spark\n")[0]
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code.replace("7000", str(cluster.nodes[0].port)), {})
    read, *counts = capsys.readouterr().out.splitlines()
    assert [name for name, _ in ast.literal_eval(read)] == ["orders", "payments"]
    assert counts == ["[1, 2]", "[1, 3]"]
    assert cluster.owner(slot("orders")) is not cluster.owner(slot("payments"))


# A primary that was added


def test_a_primary_without_functions_gets_them_from_another(opened: Opener, cluster: Cluster) -> None:
    become_cluster(cluster)
    with cluster.nodes[1].client() as added:
        added.function_flush("SYNC")
    client = opened(cluster.url)
    for name in NAMES:
        with client.pipeline(transaction=True) as pipe:
            assert len(pipe.xadd(name, {"n": "1"}).xlen(name).execute()) == 2
    with cluster.nodes[1].client() as added:
        assert added.fcall_ro("bs_region", 0)[:2] == [b"region", b"1"]


def test_a_cluster_that_is_no_region_is_told_so(opened: Opener, cluster: Cluster) -> None:
    client = opened(cluster.url)
    with pytest.raises(braidstream.NotARegionError, match="braid init"):
        client.xadd("s", {"n": "1"})
    client.set("plain", "1")
    assert client.get("plain") == b"1"


# Idempotent producers


def test_an_idempotent_client_appends_each_message_once(opened: Opener, cluster: Cluster) -> None:
    become_cluster(cluster)
    client = opened(cluster.url, idempotent=True, decode_responses=True)
    with client.pipeline() as pipe:
        for n in range(120):
            pipe.xadd(NAMES[n % 12], {"n": str(n)})
        assert len(pipe.execute()) == 120
    for name in NAMES:
        client.xadd(name, {"n": "last"})
        assert (client.xlen(name), values(client, name)[-1]) == (11, "last")


# Slots that move


def test_a_client_follows_a_slot_that_has_moved(client: Any, cluster: Cluster) -> None:
    client.xadd("s", {"n": "0"})
    client.xgroup_create("s", "g", "0")
    with SlotMove(cluster, slot("s")) as moving:
        moving.finish()
        client.xadd("s", {"n": "1"})
        with client.pipeline() as pipe:
            pipe.xadd("s", {"n": "2"}).xadd("elsewhere", {"n": "1"}).xlen("s")
            assert pipe.execute()[2] == 3
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd("s", {"n": "3"}).xlen("s")
            assert pipe.execute()[1] == 4
        [[_, entries]] = client.xreadgroup("g", "ann", {"s": ">"})
        assert [fields["n"] for _, fields in entries] == ["0", "1", "2", "3"]
    assert values(client, "s") == ["0", "1", "2", "3"]


def test_the_first_slot_of_a_new_primary_may_be_moving(
    client: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map of slots does not name a node without slots."""
    client.xadd("s", {"n": "1"})
    for kind in (redis.RedisCluster, redis.asyncio.RedisCluster):
        monkeypatch.setattr(kind, "get_node", lambda *_, **__: None)
    with SlotMove(cluster, slot("s")) as move:
        move.move()
        client.xadd("s", {"n": "2"})
        assert values(client, "s") == ["1", "2"]


def test_a_watch_on_a_slot_that_moves_fails(client: Any, cluster: Cluster) -> None:
    client.xadd("s", {"n": "0"})
    with ExitStack() as stack, client.pipeline(transaction=True) as pipe:
        pipe.watch("s")
        moving = stack.enter_context(SlotMove(cluster, slot("s")))
        moving.finish()
        client.xadd("s", {"n": "1"})  # the client knows the new node by now
        pipe.multi()
        pipe.xadd("s", {"n": "2"})
        with pytest.raises(WatchError):
            pipe.execute()
    assert values(client, "s") == ["0", "1"]


def test_while_a_slot_moves_reads_and_appends_find_each_key(client: Any, cluster: Cluster) -> None:
    client.xadd("s", {"n": "0"})
    strand = keys.strand(b"s", "s", 1)
    with SlotMove(cluster, slot("s")) as moving:
        client.xadd("s", {"n": "1"})
        moving.move(strand)
        client.xadd("s", {"n": "2"})
        moving.move()
        client.xadd("s", {"n": "3"})
        assert values(client, "s") == ["0", "1", "2", "3"]
        with client.pipeline() as pipe:
            assert len(pipe.xadd("s", {"n": "4"}).xadd("s", {"n": "5"}).execute()) == 2
    assert values(client, "s") == ["0", "1", "2", "3", "4", "5"]


def test_commands_that_need_keys_of_both_nodes_wait_until_the_slot_has_moved(
    client: Any, cluster: Cluster
) -> None:
    commands = (
        ("XGROUP", "CREATE", "s", "g", "0"),
        ("XADD", "{s}new", "*", "n", "1"),
        ("XADD", "s", "99-99", "n", "1"),
        ("RENAME", "{s}renamed", "{s}2"),
    )
    for name in ("s", "{s}renamed"):
        client.xadd(name, {"n": "0"}, id="1-1")
    with SlotMove(cluster, slot("s")) as moving, ThreadPoolExecutor(len(commands)) as pool:
        moving.move(keys.meta(b"s"), keys.meta(b"{s}renamed"))
        waiting = [pool.submit(client.execute_command, *words) for words in commands]
        time.sleep(0.3)
        assert not any(each.done() for each in waiting)
        moving.finish()
        assert all(each.result(10) for each in waiting)


def test_a_deletion_that_must_wait_is_not_overtaken(client: Any, cluster: Cluster) -> None:
    """The function that deletes needs all keys of the stream, the append one: it would pass first."""
    client.xadd("s", {"n": "old"})
    client.xgroup_create("s", "g", "0")
    with SlotMove(cluster, slot("s")) as moving, ThreadPoolExecutor(1) as pool:
        moving.move(keys.meta(b"s"))

        def replace() -> list[Any]:
            with client.pipeline() as pipe:
                return list(pipe.delete("s").xadd("s", {"n": "new"}).execute())

        replacing = pool.submit(replace)
        time.sleep(0.3)
        assert not replacing.done()
        moving.finish()
        assert replacing.result()[0] == 1
        assert values(client, "s") == ["new"]
