"""Consumers: order per key, batches, and handlers that take models."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import braidstream
from braidstream import Message
from tests.support.consumers import WITHIN_S, Log, Runs, until_acknowledged
from tests.support.servers import Engine


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def reasons(region: braidstream.Redis, stream: str = "orders.dead") -> dict[str, str]:
    return {fields["order"]: fields["dead.reason"] for _, fields in region.xrange(stream)}


# Order per key


@pytest.mark.parametrize("prefetch", [0, 1000])
def test_entries_of_one_key_run_one_after_the_other_and_a_retry_holds_the_next(
    runs: Runs, region: braidstream.Redis, prefetch: int
) -> None:
    for number in range(40):
        region.xadd("orders", {"order": number, "customer": f"c{number % 4}"})
    log = Log()

    def handle(message: Message) -> None:
        log(message["customer"], int(message["order"]), message.attempt)
        if int(message["order"]) % 7 == 0 and message.attempt < 3:
            raise ValueError("again")

    with runs(handle, key="customer", concurrency=8, prefetch=prefetch):
        until_acknowledged(region)
    by_key = defaultdict[str, list[tuple[int, int]]](list)
    for key, order, attempt in log.seen:
        by_key[key].append((order, attempt))
    assert {key: sorted(seen) for key, seen in by_key.items()} == dict(by_key)
    assert len({order for seen in by_key.values() for order, _ in seen}) == 40


def test_different_keys_run_at_the_same_time_and_do_not_wait_for_a_retry(
    runs: Runs, region: braidstream.Redis
) -> None:
    for number, customer in enumerate(["a", "a", "b", "c"]):
        region.xadd("orders", {"order": number, "customer": customer})
    log, all_here = Log(), threading.Barrier(3, timeout=20)

    def handle(message: Message) -> None:
        log(message["order"])
        if message["order"] != "1":
            all_here.wait()

    with runs(handle, key=lambda message: message["customer"]):
        until_acknowledged(region)
    assert sorted(log.firsts[:3]) == ["0", "2", "3"]
    assert log.firsts[3] == "1"


def test_an_entry_waits_for_an_earlier_one_of_its_key_in_another_process(
    runs: Runs, region: braidstream.Redis
) -> None:
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    region.xadd("orders", {"order": 1, "customer": "a"})
    region.xadd("orders", {"order": 2, "customer": "b"})
    region.xreadgroup("billing", "crashed", {"orders": ">"}, count=1)
    region.xadd("orders", {"order": 3, "customer": "a"})
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])

    with runs(handle, key="customer", claim_after=0.5):
        until_acknowledged(region)
    assert sorted(log.firsts) == ["1", "2", "3"]
    assert log.firsts.index("1") < log.firsts.index("3")


def test_entries_of_a_dead_worker_that_wait_for_each_other_are_taken_over_together(
    runs: Runs, region: braidstream.Redis, engine: Engine
) -> None:
    """Each claim reads the list of pending entries: one for each entry would make all workers slow."""
    entries = 300
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    for number in range(entries):
        region.xadd("orders", {"order": number, "customer": "a"})
    region.xreadgroup("billing", "crashed", {"orders": ">"})
    log, before = Log(), _looks(engine)

    def handle(message: Message) -> None:
        log(message["order"])

    with runs(handle, key="customer", concurrency=1, prefetch=0, claim_after=0.5):
        until_acknowledged(region)
    assert log.firsts == [str(number) for number in range(entries)]
    assert _looks(engine) - before < entries


def _looks(engine: Engine) -> int:
    """How often the list of pending entries was read."""
    with engine.client() as operator:
        return int(operator.info("commandstats").get("cmdstat_xpending", {}).get("calls", 0))


def test_two_processes_keep_the_order_of_a_key_between_them(runs: Runs, region: braidstream.Redis) -> None:
    log = Log()
    for number in range(60):
        region.xadd("orders", {"order": number, "customer": f"c{number % 3}"})

    def handle(message: Message) -> None:
        log(message["customer"], int(message["order"]))

    with runs(handle, key="customer", concurrency=2), runs(handle, key="customer", concurrency=2):
        until_acknowledged(region)
    for key in ("c0", "c1", "c2"):
        seen = [order for customer, order in log.seen if customer == key]
        assert seen == sorted(seen)


def test_a_key_that_cannot_be_found_makes_a_dead_letter(runs: Runs, region: braidstream.Redis) -> None:
    region.xadd("orders", {"order": 1})
    region.xadd("orders", {"order": 2, "customer": "a"})
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])

    with runs(handle, key=lambda message: message["customer"]):
        until_acknowledged(region)
    assert log.firsts == ["2"]
    assert reasons(region) == {"1": "key= failed: KeyError: 'customer'"}


# Batches


def test_a_batch_handler_gets_lists_and_all_of_them_are_acknowledged(
    runs: Runs, region: braidstream.Redis
) -> None:
    for number in range(25):
        region.xadd("orders", {"order": number})
    log = Log()

    def handle(messages: list[Message]) -> None:
        log([int(message["order"]) for message in messages])

    with runs(handle, batch=10, concurrency=1, batch_wait=0.3):
        until_acknowledged(region)
    assert log.firsts == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


def test_entries_of_a_failed_batch_are_tried_again_alone(runs: Runs, region: braidstream.Redis) -> None:
    for number in range(4):
        region.xadd("orders", {"order": number})
    log = Log()

    def handle(messages: list[Message]) -> None:
        log(sorted(int(message["order"]) for message in messages), messages[0].attempt)
        if any(message["order"] == "2" for message in messages):
            raise ValueError("two")

    with runs(handle, batch=4, attempts=3):
        until_acknowledged(region)
    assert log.seen[0] == ([0, 1, 2, 3], 1)
    assert sorted(log.seen[1:]) == [([0], 2), ([1], 2), ([2], 2), ([2], 3), ([3], 2)]
    assert reasons(region) == {"2": "ValueError: two"}


# Models


class Order(BaseModel):
    order: int
    amount: int = Field(gt=0)


@dataclass
class Plain:
    order: int
    amount: float


class Typed(TypedDict):
    order: int


def test_a_pydantic_model_is_made_of_the_fields_and_invalid_entries_are_dead_letters(
    runs: Runs, region: braidstream.Redis
) -> None:
    for order, amount in ((1, "30"), (2, "-1"), (3, "many")):
        region.xadd("orders", {"order": order, "amount": amount})
    log = Log()

    def handle(order: Order, message: Message) -> None:
        log(order.order, order.amount, message.attempt)

    with runs(handle):
        until_acknowledged(region)
    assert log.seen == [(1, 30, 1)]
    assert reasons(region) == {
        "2": "rejected: amount: Input should be greater than 0",
        "3": "rejected: amount: Input should be a valid integer, unable to parse string as an integer",
    }


def test_dataclasses_typed_dicts_and_json_in_one_field(runs: Runs, region: braidstream.Redis) -> None:
    region.xadd("orders", {"order": 1, "amount": "2.5"})
    region.xadd("documents", {"data": b'{"order": 7}', "order": "x"})
    region.xadd("documents", {"other": b"", "order": "no data"})
    log = Log()

    def handle(order: Plain) -> None:
        log(order)

    with runs(handle):
        until_acknowledged(region)

    def handle_json(order: Typed) -> None:
        log(order)

    with runs(handle_json, "documents", body="data"):
        until_acknowledged(region, "documents")
    assert log.firsts == [Plain(1, 2.5), {"order": 7}]
    assert reasons(region, "documents.dead") == {"no data": "rejected: it has no field 'data'"}


def test_invalid_entries_of_a_batch_are_left_out(runs: Runs, region: braidstream.Redis) -> None:
    for order, amount in ((1, "1"), (2, "x"), (3, "3")):
        region.xadd("orders", {"order": order, "amount": amount})
    log = Log()

    def handle(orders: list[Order], messages: list[Message]) -> None:
        log([order.order for order in orders], len(messages))

    with runs(handle, batch=3, batch_wait=0.3):
        until_acknowledged(region)
    assert log.seen == [([1, 3], 2)]
    assert list(reasons(region)) == ["2"]


def test_bytes_that_are_no_text_reach_the_handler_and_the_dead_letter_as_they_are(
    runs: Runs, engine: Engine, region: braidstream.Redis
) -> None:
    region.xadd("orders", {"order": b"\xff\x00"})
    log = Log()

    def handle(message: Message) -> None:
        log(message.raw)
        assert message.fields

    with runs(handle, attempts=1):
        until_acknowledged(region)
    assert log.firsts == [{b"order": b"\xff\x00"}]
    with braidstream.Redis.from_url(engine.url) as client:
        [(_, fields)] = client.xrange("orders.dead")
    assert fields[b"order"] == b"\xff\x00"
    assert fields[b"dead.reason"].startswith(b"UnicodeDecodeError")


def test_a_list_without_batch_is_refused(region: braidstream.Redis) -> None:
    def handle(messages: list[Message]) -> None: ...

    with pytest.raises(TypeError, match="takes a list, and gets one entry"):
        braidstream.Consumer(region, "orders", group="g").handler(handle)


@pytest.mark.parametrize("wrong", ["none", "two models", "three", "no list"])
def test_handlers_that_cannot_be_called_are_refused(region: braidstream.Redis, wrong: str) -> None:
    def none() -> None: ...
    def two(a: Order, b: Plain) -> None: ...
    def three(a: Order, b: Message, c: Message) -> None: ...
    def no_list(a: Order) -> None: ...

    chosen: Any = {"none": none, "two models": two, "three": three, "no list": no_list}[wrong]
    consumer = braidstream.Consumer(region, "orders", group="g", batch=2 if wrong == "no list" else None)
    with pytest.raises(TypeError, match="must take"):
        consumer.handler(chosen)


class Called:
    async def __call__(self, message: Message) -> None: ...


async def coroutine(message: Message) -> None: ...


async def coroutine_of(db: str, message: Message) -> None: ...


async def of_batch(messages: list[Message]) -> None: ...


async def surrounds(messages: Any, call_next: Any) -> None: ...


def generator(message: Message) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("wrong", "batch"),
    [
        (coroutine, None),
        (Called(), None),
        (partial(coroutine_of, "db"), None),
        (partial(Called()), None),
        (of_batch, 2),
        (generator, None),
    ],
)
def test_a_consumer_of_threads_refuses_handlers_that_it_would_not_run(
    region: braidstream.Redis, wrong: Any, batch: int | None
) -> None:
    consumer = braidstream.Consumer(region, "orders", group="g", batch=batch)
    with pytest.raises(TypeError, match="async def|generator"):
        consumer.handler(wrong)
    with pytest.raises(TypeError, match="async def"):
        consumer.middleware(surrounds)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key: it is async def"):
        braidstream.Consumer(region, "orders", group="g", key=coroutine)


@pytest.mark.parametrize("surrounded", [False, True], ids=["alone", "middleware"])
def test_a_plain_handler_that_returns_a_coroutine_fails(region: braidstream.Redis, surrounded: bool) -> None:
    region.xadd("orders", {"order": 1})
    consumer = braidstream.Consumer(region, "orders", group="billing", attempts=1)
    consumer.handler(lambda message: coroutine(message))
    if surrounded:
        consumer.middleware(lambda messages, call_next: call_next())
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        until_acknowledged(region)
    finally:
        consumer.stop()
        thread.join(WITHIN_S)
    [(_, letter)] = region.xrange("orders.dead")
    assert "the handler returned a coroutine" in letter["dead.reason"]


def test_a_partial_keeps_the_types_of_its_function(runs: Runs, region: braidstream.Redis) -> None:
    region.xadd("orders", {"order": 1, "amount": 2})
    log = Log()

    def handle(into: Log, order: Order) -> None:
        into(type(order).__name__)

    async def handle_async(into: Log, order: Order) -> None:
        into(type(order).__name__)

    with runs(partial(handle if runs.kind == "sync" else handle_async, log)):
        until_acknowledged(region)
    assert log.firsts == ["Order"]
