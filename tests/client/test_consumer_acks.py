"""Acknowledgements: together while handlers are busy, and never before an entry is handled."""

import threading
from typing import Any

import pytest

import braidstream
from braidstream import Message
from tests.support.consumers import WITHIN_S, Log, Runs, until_acknowledged
from tests.support.matrix import on_the_newest
from tests.support.servers import Engine
from tests.support.waiting import eventually

flavour = on_the_newest


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def fill(region: braidstream.Redis, count: int) -> list[str]:
    with region.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.xadd("orders", {"order": number})
        return pipe.execute()


def test_entries_are_acknowledged_while_the_next_one_of_the_same_worker_runs(
    runs: Runs, region: braidstream.Redis
) -> None:
    entries, go_on = fill(region, 101), threading.Event()

    def handle(message: Message) -> None:
        if message.id == entries[-1]:
            assert go_on.wait(WITHIN_S)

    def left() -> list[str]:
        rows = region.xpending_range("orders", "billing", "-", "+", 1000)
        return [row["message_id"] for row in rows]

    region.xgroup_create("orders", "billing", "0")
    with runs(handle, concurrency=1):
        eventually(lambda: left() == entries[-1:], within_s=WITHIN_S, why="all others are acknowledged")
        go_on.set()
        until_acknowledged(region)


def test_fast_handlers_share_acknowledgements_and_none_is_acknowledged_before_it_is_handled(
    engine: Engine, region: braidstream.Redis
) -> None:
    entries, log, early = fill(region, 3000), Log(), list[str]()
    with braidstream.Redis.from_url(engine.url, decode_responses=True) as looker:
        consumer = braidstream.Consumer(region, "orders", group="billing")

        @consumer.handler
        def handle(message: Message) -> None:
            if int(message["order"]) % 100 == 0:
                rows = looker.xpending_range("orders", "billing", message.id, message.id, 1)
                early.extend([] if rows else [message.id])
            log(message.id)
            if len(log.seen) == len(entries):
                consumer.stop()

        consumer.run()
    assert early == []
    assert sorted(log.firsts) == sorted(entries)
    assert region.xpending("orders", "billing")["pending"] == 0
    assert region.info("commandstats")["cmdstat_xack"]["calls"] < len(entries) / 5


@pytest.mark.parametrize(
    "options", [{}, {"decode_responses": True}, {"decode_responses": True, "protocol": 3}]
)
def test_entries_are_read_and_acknowledged_by_routes(
    engine: Engine, region: braidstream.Redis, options: dict[str, Any]
) -> None:
    entries, log = fill(region, 3000), Log()
    with braidstream.Redis.from_url(engine.url, **options) as client:
        consumer = braidstream.Consumer(client, "orders", group="billing")

        @consumer.handler
        def handle(message: Message) -> None:
            log(message.id, message["order"])
            if len(log.seen) == len(entries):
                consumer.stop()

        consumer.run()
        assert client.session.routes.taken > 5
    assert sorted(log.seen) == sorted((entry, str(number)) for number, entry in enumerate(entries))
    assert region.xpending("orders", "billing")["pending"] == 0


def test_all_handlers_start_with_the_entries_of_one_read(runs: Runs, region: braidstream.Redis) -> None:
    fill(region, 20)
    together = threading.Barrier(4)

    def handle(message: Message) -> None:
        together.wait(WITHIN_S)

    with runs(handle, concurrency=4):
        until_acknowledged(region)
    assert region.exists("orders.dead") == 0
