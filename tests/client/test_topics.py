"""Topics: how they are created, and where entries go.

Most tests run on one server and on a cluster, with the sync client and with its asyncio twin.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import redis

import braidstream
from tests.support.clients import Awaited, Opener
from tests.support.cluster import Cluster, become_cluster
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.servers import Engine

KEYS = [f"customer-{number}" for number in range(200)]


@dataclass
class Place:
    """A region: the kind of its client, its URL, its servers."""

    kind: str
    url: str
    engines: list[Engine]


@pytest.fixture(params=["Redis", "RedisCluster"])
def place(request: pytest.FixtureRequest, engine: Engine, cluster: Cluster) -> Place:
    if request.param == "Redis":
        become(engine)
        return Place("Redis", engine.url, [engine])
    become_cluster(cluster)
    return Place("RedisCluster", cluster.url, cluster.nodes)


@pytest.fixture(params=["sync", "asyncio"])
def open_client(request: pytest.FixtureRequest, place: Place) -> Iterator[Opener]:
    with ExitStack() as stack:
        yield Opener(request.param, stack, place.kind)


@pytest.fixture
def client(open_client: Opener, place: Place) -> Any:
    return open_client(place.url, decode_responses=True)


def topic_of(client: Any, name: str = "orders") -> Any:
    """A topic; that of an asyncio client is used as one of a sync client."""
    found = client.topic(name)
    return Awaited(client.runner, found) if isinstance(client, Awaited) else found


def test_entries_of_a_key_are_in_one_partition_in_order(client: Any) -> None:
    orders = topic_of(client)
    orders.create(8)
    placed = {key: [orders.add({"key": key, "n": n}, key=key) for n in range(2)] for key in KEYS[:30]}
    many = orders.add_many([(key, {"key": key, "n": n}) for n in range(2, 5) for key in KEYS[:30]])
    for at, key in enumerate(KEYS[:30]):
        placed[key] += many[at::30]
    streams, read = [stream.decode() for stream in orders.streams()], dict[str, list[tuple[int, str, str]]]()
    for number, stream in enumerate(streams):
        for entry, fields in client.xrange(stream):
            read.setdefault(fields["key"], []).append((number, entry, fields["n"]))
    assert read == {
        key: [(*position, str(n)) for n, position in enumerate(positions)]
        for key, positions in placed.items()
    }
    assert len({position.partition for positions in placed.values() for position in positions}) == 8
    assert orders.stream("customer-1").decode() == streams[placed["customer-1"][0].partition]


def test_a_topic_is_created_once(client: Any) -> None:
    orders, payments = topic_of(client), topic_of(client, "payments")
    with pytest.raises(braidstream.ResponseError, match="there is no topic orders"):
        orders.add({"n": 1})
    orders.create(4), orders.create(4)
    with pytest.raises(braidstream.ResponseError, match="exists with 4 partitions"):
        orders.create(8)
    client.xadd("payments", {"n": 1})
    with pytest.raises(braidstream.ResponseError, match="payments is a stream"):
        payments.create(4)
    for wrong in (0, 10_001):
        with pytest.raises(ValueError, match="1 to 10,000"):
            orders.create(wrong)
    with pytest.raises(ValueError, match="braces"):
        client.topic("{orders}")
    assert client.xlen("braid.topics") == 1


def test_entries_without_a_key_go_to_one_partition_for_a_while_then_to_the_next(client: Any) -> None:
    orders = topic_of(client)
    orders.create(3)
    found = [
        position.partition
        for _ in range(10)
        for position in orders.add_many([(None, {"n": n}) for n in range(300)])
    ]
    runs = [at for at in range(1, len(found)) if found[at] != found[at - 1]]
    assert 2 <= len(runs) <= 3
    assert all(later - earlier == 1_000 for earlier, later in zip(runs, runs[1:], strict=False))
    assert set(found) == {0, 1, 2}


def test_many_entries_are_one_round_trip_for_a_node(place: Place, client: Any) -> None:
    orders = topic_of(client)
    orders.create(12)
    some = [(key, {"n": "1"}) for key in KEYS[:24]]
    for _ in range(2):  # streams are created, and the client learns them
        orders.add_many(some)
    with ExitStack() as stack:
        operators = [stack.enter_context(engine.client()) for engine in place.engines]
        before = [reads(operator) for operator in operators]
        orders.add_many(some)
        used = [reads(operator) - early - 1 for operator, early in zip(operators, before, strict=True)]
    assert used == [1] * len(place.engines)


def reads(operator: redis.Redis) -> int:
    """How often the engine has read from sockets, with the read of this question."""
    return int(operator.info("stats")["total_reads_processed"])


def test_an_idempotent_client_sends_again_what_was_lost_and_it_stands_once(
    engine: Engine, opened: Opener, proxy: Proxy
) -> None:
    client = opened(proxy.url, idempotent=True, decode_responses=True, **opened.retry(10))
    orders = topic_of(client)
    orders.create(4)
    expected = list[tuple[int, str]]()
    for number in range(3):
        proxy.lose_replies(b"\r\nn\r\n", times=2)
        expected.append(tuple(orders.add({"n": number}, key="a")))
        assert proxy.lost == 2
        proxy.lose_replies(b"\r\nn\r\n", times=2)
        expected += map(tuple, orders.add_many([(key, {"n": number}) for key in KEYS[:20]]))
        assert proxy.lost == 2
    found = [
        (number, entry)
        for number, stream in enumerate(orders.streams())
        for entry, _ in client.xrange(stream)
    ]
    assert sorted(found) == sorted(expected)


def test_a_topic_of_another_region_is_known_when_it_has_arrived(make_world: Any) -> None:
    world = make_world(2)
    world[1].topic("orders").create(4)
    with pytest.raises(braidstream.ResponseError, match="no topic"):
        world[2].topic("orders").add({"n": 1})
    world.sync()
    world[2].topic("orders").create(4)
    placed = world[2].topic("orders").add({"n": 1}, key="a")
    assert world[1].topic("orders").add({"n": 2}, key="a").partition == placed.partition
