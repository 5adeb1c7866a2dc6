"""What a service needs around its handlers: routes, `retry_on=`, hooks, `until_empty=`, publishers, `run`."""

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

import braidstream
import braidstream.asyncio
from braidstream import Message
from tests.support.consumers import Log
from tests.support.matrix import on_the_newest
from tests.support.servers import Engine

flavour = on_the_newest


def is_own_name(name: str) -> bool:
    return not name.startswith("_")


@pytest.mark.parametrize("module", [braidstream, braidstream.asyncio], ids=["sync", "asyncio"])
def test_the_public_names_of_a_consumer_are_its_api(module: Any) -> None:
    consumer = module.Consumer(module.Redis(), "orders", group="g")
    api = {"handler", "is_ready", "middleware", "on", "on_partitions", "on_start", "on_stop", "run", "stop"}
    assert set(filter(is_own_name, dir(consumer))) == api


def test_entries_go_to_the_handler_of_their_field_and_others_to_the_dead_letters(
    region: braidstream.Redis,
) -> None:
    class Paid(BaseModel):
        order: int

    for kind, order in [("paid", 1), ("refunded", 2), ("lost", 3), ("paid", 4)]:
        region.xadd("orders", {"type": kind, "order": order})
    region.xadd("orders", {"order": 5})
    consumer = braidstream.Consumer(region, "orders", group="billing")
    log = Log()

    @consumer.on("type", "paid")
    def paid(order: Paid) -> None:
        log("paid", order.order)

    @consumer.on("type", "refunded", "returned")
    def back(message: Message) -> None:
        log("back", message["order"])

    consumer.run(until_empty=True)
    assert sorted(log.seen) == [("back", "2"), ("paid", 1), ("paid", 4)]
    reasons = {fields["order"]: fields["dead.reason"] for _, fields in region.xrange("orders.dead")}
    why = "rejected: there is no handler for the value of its field 'type'"
    assert reasons == {"3": why, "5": why}


async def with_a_handler_for_others(client: braidstream.asyncio.Redis) -> list[str]:
    consumer = braidstream.asyncio.Consumer(client, "orders", group="mail")
    seen = list[str]()

    @consumer.on("type", "paid")
    async def paid(message: Message) -> None:
        seen.append(f"paid {message['order']}")

    @consumer.handler
    async def other(message: Message) -> None:
        seen.append(f"other {message['order']}")

    await consumer.run(until_empty=True)
    return sorted(seen)


def test_a_handler_without_a_field_gets_all_others(engine: Engine, region: braidstream.Redis) -> None:
    for order, kind in enumerate(["paid", "lost"]):
        region.xadd("orders", {"type": kind, "order": order})

    async def run() -> list[str]:
        async with braidstream.asyncio.Redis.from_url(engine.url) as client:
            return await with_a_handler_for_others(client)

    assert asyncio.run(run()) == ["other 1", "paid 0"]


def test_handlers_by_field_that_cannot_be_told_apart_are_refused(region: braidstream.Redis) -> None:
    consumer = braidstream.Consumer(region, "orders", group="billing")
    consumer.on("type", "paid")(print_it)
    with pytest.raises(ValueError, match="there is a handler for type='paid' already"):
        consumer.on("type", "paid")(print_it)
    for wrong in [("kind", "paid"), ("type",)]:
        with pytest.raises(ValueError, match="name a field, the same for all handlers"):
            consumer.on(*wrong)
    batches = braidstream.Consumer(region, "orders", group="billing", batch=10)
    with pytest.raises(ValueError, match="batch= takes no such handlers"):
        batches.on("type", "paid")


def print_it(message: Message) -> None:
    print(message)


def test_only_the_errors_of_retry_on_are_tried_again(region: braidstream.Redis) -> None:
    for order in ("passing", "lasting"):
        region.xadd("orders", {"order": order})
    log = Log()
    consumer = braidstream.Consumer(
        region, "orders", group="billing", backoff=0.01, retry_on=(ConnectionError, TimeoutError)
    )

    @consumer.handler
    def handle(message: Message) -> None:
        log(message["order"], message.attempt)
        if message["order"] == "lasting":
            raise KeyError("amount")
        if message.attempt < 3:
            raise ConnectionResetError

    consumer.run(until_empty=True)
    assert sorted(log.seen) == [("lasting", 1), ("passing", 1), ("passing", 2), ("passing", 3)]
    [(_, fields)] = region.xrange("orders.dead")
    assert (fields["order"], fields["dead.attempts"]) == ("lasting", "1")


def test_an_error_of_a_batch_that_is_not_retried_buries_only_the_entry_that_causes_it(
    region: braidstream.Redis,
) -> None:
    for order in range(5):
        region.xadd("orders", {"order": order})
    log = Log()
    consumer = braidstream.Consumer(
        region, "orders", group="billing", batch=5, backoff=0.01, retry_on=ConnectionError
    )

    @consumer.handler
    def load(messages: list[Message]) -> None:
        orders = [message["order"] for message in messages]
        if "3" in orders:
            raise KeyError("amount")
        log(*orders)

    consumer.run(until_empty=True)
    assert sorted(order for seen in log.seen for order in seen) == ["0", "1", "2", "4"]
    assert [fields["order"] for _, fields in region.xrange("orders.dead")] == ["3"]


@pytest.mark.parametrize("wrong", ["ConnectionError", (), (ConnectionError, 3)])
def test_retry_on_wants_classes_of_errors(region: braidstream.Redis, wrong: Any) -> None:
    with pytest.raises(TypeError, match="retry_on: .* it must be classes of errors"):
        braidstream.Consumer(region, "orders", group="billing", retry_on=wrong)


def test_hooks_run_before_the_first_entry_and_after_the_last_one(
    engine: Engine, region: braidstream.Redis
) -> None:
    region.xadd("orders", {"order": 1})
    seen = list[str]()
    consumer = braidstream.Consumer(region, "orders", group="billing")
    consumer.on_start(lambda: seen.append("start"))
    consumer.on_stop(lambda: seen.append("stop"))
    consumer.handler(lambda message: seen.append(message["order"]))
    consumer.run(until_empty=True)
    assert seen == ["start", "1", "stop"]

    async def run() -> None:
        async with braidstream.asyncio.Redis.from_url(engine.url) as client:
            later = braidstream.asyncio.Consumer(client, "orders", group="mail")

            @later.on_start
            async def connect() -> None:
                seen.append("connect")

            @later.on_stop
            async def close() -> None:
                seen.append("close")

            @later.handler
            async def handle(message: Message) -> None:
                seen.append(message["order"])

            await later.run(until_empty=True)

    asyncio.run(run())
    assert seen[3:] == ["connect", "1", "close"]


def test_a_hook_that_fails_ends_the_run_before_anything_is_taken(region: braidstream.Redis) -> None:
    region.xadd("orders", {"order": 1})
    consumer = braidstream.Consumer(region, "orders", group="billing")
    consumer.handler(print_it)

    @consumer.on_start
    def connect() -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        consumer.run(until_empty=True)
    assert region.xinfo_groups("orders") == []


def test_until_empty_waits_for_retries_and_for_what_handlers_append(region: braidstream.Redis) -> None:
    region.xadd("orders", {"order": 0})
    log = Log()
    consumer = braidstream.Consumer(region, "orders", group="billing", backoff=0.2, max_backoff=0.2)

    @consumer.handler
    def handle(message: Message) -> None:
        number = int(message["order"])
        log(number, message.attempt)
        if message.attempt == 1:
            raise ValueError("again")
        if number < 3:
            region.xadd("orders", {"order": number + 1})

    consumer.run(until_empty=True)
    assert [number for number, attempt in log.seen if attempt == 2] == [0, 1, 2, 3]
    assert region.xinfo_groups("orders")[0]["pending"] == 0


def test_a_consumer_that_has_just_handled_an_entry_stops_without_waiting_for_others(
    region: braidstream.Redis,
) -> None:
    """Before, it waited for the end of a read of half a second: five of them took 2.5 s."""
    began = time.monotonic()
    for number in range(5):
        region.xadd("orders", {"order": number})
        consumer = braidstream.Consumer(region, "orders", group="billing")
        consumer.handler(lambda message, consumer=consumer: consumer.stop())
        consumer.run()
    assert time.monotonic() - began < 1.5


@dataclass
class Order:
    order: int
    day: date
    is_paid: bool = False
    note: str | None = None


class Basket(BaseModel):
    order: int
    items: list[str]


def test_a_handler_gets_the_models_that_were_published(region: braidstream.Redis) -> None:
    sent = [Order(7, date(2026, 11, 3), True), Order(8, date(2026, 11, 4), note="late")]
    orders = braidstream.Publisher(region, "orders")
    entries = [orders.publish(each, maxlen=100) for each in sent]
    seen = dict[str, Order]()
    consumer = braidstream.Consumer(region, "orders", group="billing", concurrency=1)

    @consumer.handler
    def handle(order: Order, message: Message) -> None:
        seen[message.id] = order

    consumer.run(until_empty=True)
    assert seen == dict(zip(entries, sent, strict=True))


def test_models_with_lists_are_published_as_json(engine: Engine, region: braidstream.Redis) -> None:
    with pytest.raises(TypeError, match="the field 'items' is a list, .*body=\"data\""):
        braidstream.Publisher(region, "baskets").publish(Basket(order=1, items=["tea"]))
    seen = list[Basket]()

    async def run() -> None:
        async with braidstream.asyncio.Redis.from_url(engine.url) as client:
            baskets = braidstream.Publisher(client, "baskets", body="data")
            await baskets.publish(Basket(order=1, items=["tea", "milk"]))
            consumer = braidstream.asyncio.Consumer(client, "baskets", group="billing", body="data")

            @consumer.handler
            async def handle(basket: Basket) -> None:
                seen.append(basket)

            await consumer.run(until_empty=True)

    asyncio.run(run())
    assert seen == [Basket(order=1, items=["tea", "milk"])]


def test_what_has_no_fields_is_not_published(region: braidstream.Redis) -> None:
    with pytest.raises(TypeError, match="it must be a dataclass, a pydantic model or a dict"):
        braidstream.Publisher(region, "orders").publish("order 7")


def test_an_error_of_one_consumer_stops_all_that_run_together(region: braidstream.Redis) -> None:
    fine = braidstream.Consumer(region, "orders", group="billing")
    fine.handler(print_it)
    bad = braidstream.Consumer(region, "orders", group="mail")
    with pytest.raises(ValueError, match="this consumer has no handler"):
        braidstream.run(fine, bad)
    assert not fine.is_ready


@pytest.mark.parametrize("wrong", [(), ([],), ("shop.workers",)])
def test_run_wants_consumers(wrong: Any) -> None:
    with pytest.raises(TypeError, match="run: .*first, second"):
        braidstream.run(*wrong)


def test_a_consumer_is_ready_while_its_server_answers(
    engine: Engine, region: braidstream.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    region.xadd("orders", {"order": 1})
    with caplog.at_level(logging.INFO, "braidstream"), braidstream.Redis.from_url(engine.url) as client:
        consumer = braidstream.Consumer(client, "orders", group="billing")
        seen = list[bool]()
        before = client.converse

        def fail_once(make: Any) -> Any:
            client.converse = before  # type: ignore[method-assign]
            seen.append(consumer.is_ready)
            raise ConnectionError("down")

        client.converse = fail_once  # type: ignore[method-assign]

        @consumer.handler
        def handle(message: Message) -> None:
            seen.append(consumer.is_ready)
            consumer.stop()

        consumer.run()
    assert seen == [False, True]
    said = [record.getMessage().split()[0] for record in caplog.records]
    assert said[:3] == ["consumer.unreached", "consumer.reached", "consumer.ready"]


@pytest.mark.parametrize(
    ("peers", "scope", "warnings"),
    [("", None, 0), ("2", None, 1), ("2", "EVERYWHERE", 0), ("2", "ONCE", 0)],
)
def test_a_worker_says_that_other_regions_handle_the_same_entries(
    region: braidstream.Redis, caplog: pytest.LogCaptureFixture, peers: str, scope: str | None, warnings: int
) -> None:
    region.execute_command("HSET", "bs:config", "writers", f"1 {peers}".strip())
    consumer = braidstream.Consumer(region, "orders", group="billing", scope=scope)
    consumer.handler(print_it)
    with caplog.at_level(logging.WARNING, "braidstream"):
        consumer.run(until_empty=True)
    assert caplog.text.count("consumer.everywhere") == warnings
    assert not warnings or "XGROUP SCOPE orders billing ONCE" in caplog.text


def test_a_missing_right_names_the_user_of_a_client_of_several_regions(
    region: braidstream.Redis, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    region.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-xreadgroup")
    client = braidstream.MultiRegion([engine.url], username="poor", password="any")
    consumer = braidstream.Consumer(client, "orders", group="billing")
    consumer.handler(print_it)
    consumer.on_start(lambda: threading.Timer(0.5, consumer.stop).start())
    with client, caplog.at_level(logging.WARNING, "braidstream"):
        consumer.run(signals=False)
    assert "braid acl worker --streams orders --user poor" in caplog.text
