"""Consumers of a topic share its partitions: each entry once, in the order of its partition.

Also when consumers come, go and die. Most tests run with threads and with asyncio.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import prometheus_client
import pytest
import redis

import braidstream
from braidstream import Message, Reject
from braidstream.consumers.team import Team
from braidstream.model import keys
from tests.support.cli import braid
from tests.support.cluster import Cluster, become_cluster
from tests.support.consumers import Log, Runs
from tests.support.proxy import Proxy
from tests.support.servers import Engine
from tests.support.waiting import eventually

WITHIN_S = 40


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def fill(client: Any, entries: int, partitions: int = 4, topic: str = "orders", first: int = 0) -> None:
    """Entries whose number tells their order."""
    orders = client.topic(topic)
    orders.create(partitions)
    keyed = ((f"key-{n % 40}", n) for n in range(first, first + entries))
    orders.add_many([(key, {"key": key, "n": n}) for key, n in keyed])


class Watched(Log):
    """Notes who handles which entry, and fails if two handle one partition at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.busy = threading.Lock(), dict[str, str]()
        self.overlaps, self.by_partition = list[Any](), defaultdict[str, list[int]](list)
        self.by_worker = defaultdict[str, int](int)

    def handler(self, worker: str, takes_s: float = 0.0) -> Any:
        def handle(message: Message) -> None:
            with self.lock:
                if message.stream in self.busy:
                    self.overlaps.append((message.stream, worker, self.busy[message.stream]))
                self.busy[message.stream] = worker
                self.by_partition[message.stream].append(int(message["n"]))
                self.by_worker[worker] += 1
            if takes_s:
                time.sleep(takes_s)
            with self.lock:
                self.busy.pop(message.stream, None)

        return handle

    @property
    def numbers(self) -> list[int]:
        return sorted(n for numbers in self.by_partition.values() for n in numbers)

    def assert_in_order(self) -> None:
        assert self.overlaps == []
        for numbers in self.by_partition.values():
            assert numbers == sorted(numbers)

    def until(self, entries: int) -> None:
        eventually(
            lambda: len(set(self.numbers)) >= entries, within_s=WITHIN_S, why=f"{entries} should be handled"
        )


def test_one_consumer_handles_everything_in_the_order_of_each_partition(
    runs: Runs, region: braidstream.Redis
) -> None:
    fill(region, 300)
    log = Watched()
    with runs(log.handler("a"), (), topic="orders"):
        log.until(300)
        fill(region, 20, first=300)
        log.until(320)
    assert log.numbers == [*range(320)]
    log.assert_in_order()
    assert len(log.by_partition) == 4
    for stream in log.by_partition:
        assert region.xpending(stream, "billing")["pending"] == 0
        assert region.xinfo_consumers(stream, "billing") == []  # it has left


def test_consumers_share_the_work_while_some_come_and_go(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 400, partitions=8)
    log = Watched()
    with runs(log.handler("a", 0.003), (), topic="orders"):
        log.until(50)
        with runs(log.handler("b", 0.003), (), topic="orders"):
            eventually(lambda: log.by_worker["b"] >= 50, within_s=WITHIN_S, why="b should have a part")
            with runs(log.handler("c", 0.003), (), topic="orders"):
                fill(region, 400, partitions=8, first=400)
                eventually(lambda: log.by_worker["c"] >= 20, within_s=WITHIN_S, why="c should have a part")
        fill(region, 100, partitions=8, first=800)
        log.until(900)
    assert log.numbers == [*range(900)]  # each once
    log.assert_in_order()


def test_a_consumer_that_joins_gets_its_part_at_once(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 40, partitions=10)
    log = Watched()
    with runs(log.handler("a"), (), topic="orders"):
        log.until(40)
        began = time.monotonic()
        with runs(log.handler("b"), (), topic="orders") as second:
            eventually(lambda: second.consumer is not None, within_s=WITHIN_S, why="it starts")
            turns = second.consumer._turns
            eventually(lambda: len(turns.streams) == 5, within_s=WITHIN_S, why="it should get half")
            took_s = time.monotonic() - began
    print(f"settled after {took_s:.3f} s")
    assert took_s < 2  # 0.5 on a quiet machine


def test_what_a_dead_consumer_had_in_hand_is_handled_first(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 60)
    streams = [name.decode() for name in region.topic("orders").streams()]
    dead = Team("orders", "billing", "dead", session_s=1.0)
    eventually(
        lambda: region.converse(lambda view_of: dead.beat(view_of, time.monotonic())) or len(dead.has) == 4,
        within_s=WITHIN_S,
        why="it should have everything",
    )
    for stream in streams:
        region.xgroup_create(stream, "billing", "0")
        region.xreadgroup("billing", "dead", {stream: ">"}, count=5)
    log = Watched()
    with runs(log.handler("alive"), (), topic="orders"):
        log.until(60)
    assert log.numbers == [*range(60)]
    log.assert_in_order()


def test_a_retry_holds_up_its_partition_only(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 80)
    log, failed = Watched(), set[str]()
    inner = log.handler("a")

    def handle(message: Message) -> None:
        if message["n"] in ("0", "7", "30") and message["n"] not in failed:
            failed.add(message["n"])
            raise ValueError("not yet")
        inner(message)

    with runs(handle, (), topic="orders", backoff=0.1):
        log.until(80)
    assert log.numbers == [*range(80)]
    log.assert_in_order()


def test_with_a_key_entries_of_other_keys_do_not_wait(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 80, partitions=1)
    log, handled = Log(), threading.Event()

    def handle(message: Message) -> None:
        if message["key"] == "key-0":
            assert handled.wait(WITHIN_S)
        log(message["key"], int(message["n"]))
        if len(log.seen) >= 70:
            handled.set()

    with runs(handle, (), topic="orders", key="key"):
        eventually(lambda: len(log.seen) == 80, within_s=WITHIN_S, why="all should be handled")
    by_key = defaultdict[str, list[int]](list)
    for key, number in log.seen:
        by_key[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_dead_letters_of_all_partitions_are_in_one_stream_and_go_back(
    runs: Runs, engine: Engine, region: braidstream.Redis
) -> None:
    fill(region, 10)
    log = Watched()
    inner = log.handler("a")

    def handle(message: Message) -> None:
        if int(message["n"]) in (3, 4):
            raise Reject("odd")
        inner(message)

    with runs(handle, (), topic="orders"):
        log.until(8)
        eventually(lambda: region.xlen("orders.dead") == 2, within_s=WITHIN_S, why="two dead letters")
    done = braid("dead", "retry", "orders.dead", "--all", "--url", engine.url)
    assert done.returncode == 0, done.stdout
    assert region.xlen("orders.dead") == 0
    with runs(inner, (), topic="orders"):
        log.until(10)


def test_little_of_a_partition_is_in_hand_and_others_go_on(runs: Runs, region: braidstream.Redis) -> None:
    """Else a dead consumer would leave a long list, and one slow partition would hold up all others."""
    fill(region, 800)
    slow, *others = (name.decode() for name in region.topic("orders").streams())
    log, go_on = Watched(), threading.Event()
    inner = log.handler("a")

    def handle(message: Message) -> None:
        if message.stream == slow:
            assert go_on.wait(WITHIN_S)
        inner(message)

    with runs(handle, (), topic="orders"):
        log.until(sum(region.xlen(name) for name in others))
        assert region.xlen(slow) > 100
        assert region.xpending(slow, "billing")["pending"] < 100
        go_on.set()
        log.until(800)
    log.assert_in_order()


def test_metrics_name_the_topic(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 20)
    registry, log = prometheus_client.CollectorRegistry(), Watched()
    with runs(log.handler("a"), (), topic="orders", metrics=registry):
        log.until(20)
    text = prometheus_client.generate_latest(registry).decode()
    assert 'stream="orders"' in text
    assert "orders/0" not in text


def test_hooks_come_before_the_first_entry_and_after_the_last(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 40)
    log, has, wrong = Watched(), dict[str, set[str]](), list[str]()
    streams = [name.decode() for name in region.topic("orders").streams()]

    def hook_of(worker: str) -> Any:
        def changed(given: list[int], taken: list[int]) -> None:
            mine = has.setdefault(worker, set())
            wrong.extend(streams[at] for at in given if any(streams[at] in each for each in has.values()))
            mine.update(streams[at] for at in given)
            mine.difference_update(streams[at] for at in taken)

        async def later(given: list[int], taken: list[int]) -> None:
            changed(given, taken)

        return changed if runs.kind == "sync" else later

    def handler_of(worker: str) -> Any:
        inner = log.handler(worker, 0.002)

        def handle(message: Message) -> None:
            if message.stream not in has.get(worker, ()):
                wrong.append(message.stream)
            inner(message)

        return handle

    with runs(handler_of("a"), (), topic="orders", hooks={"on_partitions": hook_of("a")}):
        log.until(40)
        with runs(handler_of("b"), (), topic="orders", hooks={"on_partitions": hook_of("b")}):
            eventually(lambda: len(has.get("b", ())) == 2, within_s=WITHIN_S, why="b should get half")
            fill(region, 40, first=40)
            log.until(80)
            assert [len(each) for each in has.values()] == [2, 2]
    assert (has, wrong) == ({"a": set(), "b": set()}, [])


def test_it_ends_when_the_topic_is_empty(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 50)
    consumer, log = braidstream.Consumer(region, topic="orders", group="billing"), Watched()
    consumer.handler(log.handler("a"))
    consumer.run(until_empty=True)
    assert log.numbers == [*range(50)]


def test_wrong_arguments_are_refused(region: braidstream.Redis) -> None:
    for options in ({"batch": 10}, {"streams": "orders"}, {"topic": "{a}"}, {"topic": ""}):
        with pytest.raises(ValueError, match="topic"):
            braidstream.Consumer(region, **{"topic": "orders", "group": "g", **options})
    with pytest.raises(ValueError, match="streams"):
        braidstream.Consumer(region, group="g")
    consumer = braidstream.Consumer(region, topic="orders", group="g")
    consumer.handler(lambda message: None)
    with pytest.raises(redis.ResponseError, match="no topic orders"):
        consumer.run()


def test_who_believes_in_its_session_too_long_reads_nothing_more(
    runs: Runs, region: braidstream.Redis
) -> None:
    """As after a pause of a virtual machine, whose clock stood still."""
    fill(region, 60)
    log, more = Watched(), count(1_000, 12)
    with runs(log.handler("a"), (), topic="orders", name="a") as paused:
        log.until(60)
        turns = paused.consumer._turns
        team = turns.partitions.team
        part, _, beat = turns._parts[0]
        turns._parts[0] = part, lambda now: False, beat
        team.is_over, team.next_time = lambda now: False, lambda now: now + 0.01
        region.execute_command(
            "FCALL", "bs_team_beat", 3, *keys.team(b"orders", b"billing"), "a", 0, 4, "", ""
        )
        assert len(team.has) == 4
        with runs(log.handler("b"), (), topic="orders") as second:
            eventually(lambda: second.consumer is not None, within_s=WITHIN_S, why="it starts")
            eventually(lambda: len(second.consumer._turns.streams) == 4, within_s=WITHIN_S, why="it has all")
            log.by_worker["a"] = 0
            for _ in range(3):
                until_busy(region, log, "b", more)
            assert log.by_worker["a"] == 0
    log.assert_in_order()
    assert len(log.numbers) == len(set(log.numbers))


def test_no_handler_starts_after_the_session(runs: Runs, region: braidstream.Redis) -> None:
    """Work that waits for a handler was handed out before the process was frozen."""
    fill(region, 60)
    log, go_on = Watched(), threading.Event()
    inner = log.handler("a")

    def handle(message: Message) -> None:
        inner(message)
        assert len(log.numbers) < 60 or go_on.wait(WITHIN_S)

    with runs(handle, (), topic="orders", concurrency=1) as running:
        log.until(60)  # its last handler waits, and others get more work
        fill(region, 40, first=100)
        hand, team = running.consumer._hand, running.consumer._turns.partitions.team
        eventually(lambda: hand._running > 1, within_s=WITHIN_S, why="work should wait for the handler")
        team._ends_at = time.monotonic()
        go_on.set()
        log.until(100)
        assert team.life > 2  # it came back, and got everything again
    log.assert_in_order()


@pytest.mark.long
def test_a_consumer_without_a_connection_stops_in_time_and_comes_back(
    runs: Runs, engine: Engine, region: braidstream.Redis
) -> None:
    """It drops its partitions before another one gets them, and gets some again later."""
    fill(region, 100, partitions=6)
    log, more = Watched(), count(1_000, 12)
    with Proxy(engine.port) as proxy:
        cut_off = Runs(runs.kind, proxy.url)
        with cut_off(log.handler("a", 0.002), (), topic="orders"):
            log.until(100)
            with runs(log.handler("b", 0.002), (), topic="orders"):
                until_busy(region, log, "b", more)
                proxy.swallow()
                began = time.monotonic()
                fill(region, 100, 6, first=100_000)
                eventually(
                    lambda: {*range(100_000, 100_100)} <= {*log.numbers}, within_s=WITHIN_S, why="b has all"
                )
                assert time.monotonic() - began > 3
                proxy.deliver()
                log.by_worker["a"] = 0
                until_busy(region, log, "a", more)
    assert log.overlaps == []


def until_busy(client: Any, log: Watched, worker: str, more: Iterator[int]) -> None:
    """Entries come until a consumer has handled some. more: numbers for them."""
    partitions = len(client.topic("orders").streams())

    def is_busy() -> bool:
        fill(client, 12, partitions, first=next(more))
        return log.by_worker[worker] > 9

    eventually(is_busy, within_s=WITHIN_S, why=f"{worker} should have a part")


@pytest.fixture
def cluster_region(cluster: Cluster) -> Iterator[Any]:
    become_cluster(cluster)
    with braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as client:
        yield client


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_consumers_share_a_topic_of_a_cluster(kind: str, cluster: Cluster, cluster_region: Any) -> None:
    fill(cluster_region, 300, partitions=9)
    runs, log = Runs(kind, cluster.url, is_cluster=True), Watched()
    with runs(log.handler("a", 0.002), (), topic="orders"):
        log.until(50)
        with runs(log.handler("b", 0.002), (), topic="orders"):
            fill(cluster_region, 300, partitions=9, first=300)
            log.until(600)
            until_busy(cluster_region, log, "b", count(1_000, 12))
    assert len(log.by_partition) == 9
    assert {*range(600)} <= {*log.numbers}
    assert len(log.numbers) == len(set(log.numbers))
    assert log.overlaps == []
