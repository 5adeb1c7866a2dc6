"""What programs do most, with the installed redis-py; `make oldest-redis-py` runs it with the oldest one."""

from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.cache import CacheConfig
from redis.crc import key_slot

import braidstream
from braidstream.model import keys
from tests.support.clients import Opener
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.servers import NEWEST, Engine
from tests.support.waiting import eventually


@pytest.mark.parametrize("protocol", [2, 3])
def test_streams_groups_and_plain_keys_work(opened: Opener, engine: Engine, protocol: int) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True, protocol=protocol)
    first = client.xadd("orders", {"order": "1"})
    second = client.xadd("orders", {"order": "2"}, maxlen=100)
    assert client.xrange("orders") == [(first, {"order": "1"}), (second, {"order": "2"})]
    assert client.xgroup_create("orders", "billing", id="0")
    taken = client.xreadgroup("billing", "worker", {"orders": ">"}, count=1, block=1000)
    assert taken in ([["orders", [(first, {"order": "1"})]]], {"orders": [[(first, {"order": "1"})]]})
    assert client.xpending("orders", "billing")["pending"] == 1
    assert client.xack("orders", "billing", first) == 1
    assert client.xinfo_groups("orders")[0]["lag"] == 1
    assert client.set("plain", "x")
    assert (client.get("plain"), client.type("orders"), client.delete("orders")) == ("x", "stream", 1)


@pytest.mark.parametrize("transaction", [True, False], ids=["MULTI", "pipeline"])
def test_pipelines_mix_streams_and_plain_keys(opened: Opener, engine: Engine, transaction: bool) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    for _ in range(2):
        pipe = client.pipeline(transaction=transaction)
        pipe.xadd("orders", {"order": "1"})
        pipe.incr("count")
        pipe.xlen("orders")
        entry, count, length = pipe.execute()
    assert (count, length) == (2, 2)
    assert client.xrevrange("orders", count=1)[0][0] == entry


def test_a_blocking_read_waits_longer_than_the_socket_timeout(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, socket_timeout=0.5)
    assert not client.xread({"orders": "$"}, block=1000)


def test_an_idempotent_client_sends_a_lost_message_again(opened: Opener, proxy: Proxy) -> None:
    client = opened(proxy.url, idempotent=True, **opened.retry(3))
    client.xadd("orders", {"order": "1"})
    proxy.lose_replies(b"order", times=1)
    client.xadd("orders", {"order": "2"})
    assert client.xlen("orders") == 2


def test_a_connection_that_the_server_closed_is_replaced_before_an_append(
    opened: Opener, proxy: Proxy
) -> None:
    client = opened(proxy.url)
    for _ in range(3):
        client.xadd("orders", {"order": "1"})
        proxy.cut()
    assert client.xlen("orders") == 3


def test_another_client_does_not(opened: Opener, proxy: Proxy) -> None:
    client = opened(proxy.url, **opened.retry(3))
    client.xadd("orders", {"order": "1"})
    proxy.lose_replies(b"order", times=1)
    with pytest.raises(redis.ConnectionError, match="may or may not have been applied"):
        client.xadd("orders", {"order": "2"})


def test_memory_that_is_full_is_told_in_redis_pys_class(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url)
    client.xadd("orders", {"order": "1"})
    with engine.client() as operator:
        operator.config_set("maxmemory", "1")
        try:
            with pytest.raises(redis.OutOfMemoryError):
                client.xadd("orders", {"order": "2"})
            assert client.xtrim("orders", maxlen=0, approximate=False) == 1
        finally:
            operator.config_set("maxmemory", "0")


@pytest.mark.parametrize("flavour", NEWEST[:1], indirect=True)
def test_a_client_side_cache_serves_plain_keys_and_no_stale_streams(
    region: braidstream.Redis, engine: Engine
) -> None:
    options: dict[str, Any] = {"protocol": 3, "cache_config": CacheConfig(), "decode_responses": True}
    with redis.Redis.from_url(engine.url, **options) as probe:
        try:
            probe.ping()
        except redis.ConnectionError as refused:
            pytest.skip(str(refused))
    with braidstream.Redis.from_url(engine.url, **options) as client:
        for n in range(2):
            region.set("plain", n)
            eventually(lambda n=n: client.get("plain") == str(n), within_s=10, why="invalidations arrive")
            region.xadd("orders", {"n": n})
            client.xadd("orders", {"n": n})
            assert client.xlen("orders") == 2 * (n + 1)
            region.set("plain", "changed")
            assert client.exists("orders")  # the plan reads the invalidation
            eventually(lambda: client.get("plain") == "changed", within_s=10, why="invalidations arrive")
            assert client.pipeline().xlen("orders").get("plain").execute() == [2 * (n + 1), "changed"]
        assert client.connection_pool.cache.size


@pytest.mark.parametrize(
    ("options", "text"), [({"encoding": "latin-1"}, "é"), ({"encoding_errors": "surrogateescape"}, "\udcff")]
)
def test_every_append_uses_the_encoding_of_the_client(
    opened: Opener, engine: Engine, options: dict[str, str], text: str
) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True, **options)
    for _ in range(2):
        client.xadd(text, {text: text})
        pipe = client.pipeline()
        pipe.xadd(text, {text: text})
        pipe.execute()
    assert [fields for _, fields in client.xrange(text)] == [{text: text}] * 4


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_cluster_client_finds_streams_on_all_nodes_and_in_slots_that_moved(
    cluster: Cluster, kind: str
) -> None:
    names = [f"stream-{number}" for number in range(6)]
    become_cluster(cluster)
    with ExitStack() as stack:
        client = Opener(kind, stack, "RedisCluster")(cluster.url, decode_responses=True)
        pipe = client.pipeline()
        for name in names:
            pipe.xadd(name, {"n": "1"}).set(f"plain-{name}", "1")
        pipe.execute()
        with SlotMove(cluster, key_slot(keys.meta(names[0].encode()))) as moving:
            moving.finish()
            client.xadd(names[0], {"n": "2"})
            [added, count] = (
                client.pipeline(transaction=True).xadd(names[0], {"n": "3"}).xlen(names[0]).execute()
            )
        assert (client.xread({names[0]: "0"})[0][1][-1][0], count) == (added, 3)
        assert len(client.xread(dict.fromkeys(names, "0"), block=1000)) == 6
        assert not client.xread(dict.fromkeys(names, "$"), block=100)
        assert (client.dbsize(), client.delete(*names)) == (12, 6)
