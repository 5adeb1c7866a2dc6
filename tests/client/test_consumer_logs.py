"""Consumers of logs: entries have offsets, a tag and a body."""

import pytest
from pydantic import BaseModel

import braidstream
from braidstream import Message
from tests.support.consumers import WITHIN_S, Log, Runs, until_acknowledged
from tests.support.event_counts import counted_events
from tests.support.matrix import on_the_newest
from tests.support.servers import Engine
from tests.support.waiting import eventually

flavour = on_the_newest


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def test_entries_of_a_log_are_handled_tried_again_and_set_aside(
    runs: Runs, region: braidstream.Redis
) -> None:
    region.twrite("orders", entries=[("mail", "1"), ("bad", "2")])
    log = Log()

    def handle(message: Message) -> None:
        log(message.id, message["t"], message["e"], message.attempt)
        if message["t"] == "bad":
            raise ValueError("no")

    with runs(handle, attempts=2):
        log.wait(3)
        region.twrite("orders", "print", "3")  # it waits for this one
        log.wait(4)
        until_acknowledged(region)
    assert sorted(log.seen) == [
        ("0-1", "mail", "1", 1),
        ("0-2", "bad", "2", 1),
        ("0-2", "bad", "2", 2),
        ("0-3", "print", "3", 1),
    ]
    [(_, letter)] = region.xrange("orders.dead")
    assert (letter["dead.stream"], letter["dead.id"], letter["dead.attempts"]) == ("orders", "0-2", "2")
    assert (letter["t"], letter["e"]) == ("bad", "2")


def test_entries_of_a_tag_keep_their_order_and_those_of_a_crashed_consumer_come_first(
    runs: Runs, region: braidstream.Redis
) -> None:
    region.twrite("orders", entries=[("ab"[number % 2], str(number)) for number in range(20)])
    region.xgroup_create("orders", "billing", "0")
    region.xreadgroup("billing", "gone", {"orders": ">"}, count=3)
    log = Log()

    def handle(message: Message) -> None:
        log(message["t"], int(message["e"]))

    with runs(handle, key="t", claim_after=0.3):
        log.wait(20)
        until_acknowledged(region)
    for tag, first in (("a", 0), ("b", 1)):
        assert [number for each, number in log.seen if each == tag] == list(range(first, 20, 2))


class Order(BaseModel):
    amount: int


def test_the_body_of_an_entry_may_be_a_model(runs: Runs, region: braidstream.Redis) -> None:
    region.twrite("orders", entries=[("ada", '{"amount": 7}'), ("bob", "{}")])
    log = Log()

    def handle(order: Order, message: Message) -> None:
        log(message["t"], order.amount)

    with runs(handle, body="e"):
        until_acknowledged(region)
    assert log.seen == [("ada", 7)]
    assert region.xlen("orders.dead") == 1


def test_a_log_that_is_deleted_while_a_consumer_runs_stays_a_log(
    runs: Runs, region: braidstream.Redis
) -> None:
    region.twrite("orders", "mail", "1")
    log = Log()

    def handle(message: Message) -> None:
        log(message.id)

    with counted_events() as events, runs(handle):
        log.wait(1)
        until_acknowledged(region)
        region.delete("orders")
        # Its read fails, and then its attempt to create the group again.
        eventually(lambda: events["consumer.unreached"] >= 2, within_s=WITHIN_S, why="it should try to join")
        assert region.twrite("orders", "mail", "2") == 2
        log.wait(2)
        until_acknowledged(region)
    assert log.firsts == ["0-1", "0-2"]
