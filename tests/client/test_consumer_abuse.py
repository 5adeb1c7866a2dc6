"""Consumers under abuse: whatever happens to one entry, the others go on."""

import asyncio
import threading
import time
from typing import Any

import pytest
import redis
from pydantic import BaseModel, field_validator

import braidstream
import braidstream.asyncio
from braidstream import Message
from braidstream.model.strand import Strand
from tests.support.consumers import Log, Runs, until_acknowledged
from tests.support.matrix import on_the_newest
from tests.support.regions import apply
from tests.support.servers import Engine
from tests.support.waiting import eventually

flavour = on_the_newest


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def reasons(region: braidstream.Redis) -> list[str]:
    return [fields["dead.reason"] for _, fields in region.xrange("orders.dead")]


def failed_appends(bare: redis.Redis) -> int:
    return int(bare.info("commandstats").get("cmdstat_xadd", {}).get("failed_calls", 0))


class Strange(BaseException):
    """Not an Exception."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Broken(BaseModel):
    order: int

    @field_validator("order")
    @classmethod
    def check(cls, value: int) -> int:
        if value == 1:
            raise KeyError("a bug in a validator")
        return value


def test_errors_of_any_kind_count_as_failures_and_the_next_entries_are_handled(
    runs: Runs, region: braidstream.Redis
) -> None:
    kinds: list[Any] = [Strange, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Mute]
    for number in range(len(kinds) + 3):
        region.xadd("orders", {"order": number})
    log = Log()

    def handle(message: Message) -> None:
        number = int(message["order"])
        if number < len(kinds):
            raise kinds[number]
        log(number)

    if runs.kind == "asyncio":  # in a thread these would not reach the coroutine as they are

        async def coroutine(message: Message) -> None:
            handle(message)

        chosen: Any = coroutine
    else:
        chosen = handle
    with runs(chosen, attempts=2, concurrency=2):
        until_acknowledged(region)
    assert sorted(log.firsts) == [6, 7, 8]
    assert len(reasons(region)) == len(kinds)


class MuteReject(braidstream.Reject):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def mute_key(message: Message) -> str:
    if message.fields["order"] == "1":
        raise Mute
    return "a"


def test_a_rejection_and_a_key_whose_errors_have_no_text_stop_nothing_else(
    runs: Runs, region: braidstream.Redis
) -> None:
    for number in range(4):
        region.xadd("orders", {"order": number})
    log = Log()

    def handle(message: Message) -> None:
        if message.fields["order"] == "0":
            raise MuteReject
        log(message.fields["order"])

    with runs(handle, key=mute_key):
        until_acknowledged(region)
    assert log.firsts == ["2", "3"]
    assert sorted(reasons(region)) == ["key= failed: Mute", "rejected"]


def test_a_model_that_fails_in_an_unexpected_way_is_a_failed_attempt(
    runs: Runs, region: braidstream.Redis
) -> None:
    for number in (1, 2):
        region.xadd("orders", {"order": number})
    log = Log()

    def handle(order: Broken) -> None:
        log(order.order)

    with runs(handle, attempts=2, concurrency=1):
        until_acknowledged(region)
    assert log.firsts == [2]
    assert reasons(region) == ["KeyError: 'a bug in a validator'"]


def test_a_late_entry_of_another_region_waits_for_the_running_one_of_its_key(
    runs: Runs, region: braidstream.Redis
) -> None:
    region.xadd("orders", {"order": "local", "customer": "a"})
    go_on, log = threading.Event(), Log()
    running = list[int]()

    def handle(message: Message) -> None:
        running.append(1)
        log(message["order"], len(running))
        if message["order"] == "local":
            assert go_on.wait(20)
        running.pop()

    with runs(handle, key="customer"):
        log.wait(1)
        far = Strand(b"orders", "s", 7)
        region.run_plan(apply(far, [((1000, 1), [b"order", b"late", b"customer", b"a"])]))
        region.xadd("orders", {"order": "other", "customer": "b"})
        log.wait(2)  # the other key does not wait
        go_on.set()
        until_acknowledged(region)
    assert [call for call in log.seen if call[0] == "late"] == [("late", 1)]


def test_entries_deleted_and_acknowledged_behind_its_back_do_not_stop_a_consumer(
    runs: Runs, region: braidstream.Redis
) -> None:
    entries = [region.xadd("orders", {"order": number}) for number in range(3)]
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])
        if message["order"] in ("0", "1") and message.attempt == 1:
            raise ValueError

    with runs(handle, backoff=0.4, claim_after=0.9):
        log.wait(3)
        region.xdel("orders", entries[0])
        region.xack("orders", "billing", entries[1])
        region.xadd("orders", {"order": 3})
        log.wait(4)
        until = time.monotonic() + 1.5
        eventually(lambda: time.monotonic() > until, within_s=5, why="time passes")
        region.xadd("orders", {"order": 4})
        log.wait(5)
        until_acknowledged(region)
    assert sorted(log.firsts)[-2:] == ["3", "4"]


def test_a_stream_of_dead_letters_that_is_no_stream_stops_nothing_else(
    runs: Runs, region: braidstream.Redis
) -> None:
    region.set("orders.dead", "a string")
    region.xadd("orders", {"order": 1})
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])
        if message["order"] == "1":
            raise braidstream.Reject("no")

    with runs(handle, claim_after=1):
        log.wait(1)
        for number in range(2, 20):
            region.xadd("orders", {"order": number})
        log.wait(19)
        [row] = eventually(
            lambda: [
                rows for rows in [region.xpending_range("orders", "billing", "-", "+", 10)] if len(rows) == 1
            ],
            within_s=20,
            why="only the rejected entry should be pending",
        )[0]
        assert row["times_delivered"] == 1
        region.delete("orders.dead")
        until_acknowledged(region)
    assert reasons(region) == ["rejected: no"]


def test_a_stream_of_dead_letters_that_refuses_does_not_hold_up_those_of_other_streams(
    engine: Engine, region: braidstream.Redis
) -> None:
    region.set("orders.dead", "a string")
    for number in range(5):
        region.xadd("orders", {"order": number})
    region.xadd("payments", {"order": 1})

    def handle(message: Message) -> None:
        raise braidstream.Reject("no")

    with Runs("sync", engine.url)(handle, ["orders", "payments"], stop_timeout=0.1):
        until_acknowledged(region, "payments")
    assert region.xlen("payments.dead") == 1
    assert region.xpending("orders", "billing")["pending"] == 5


def test_a_log_as_the_stream_of_dead_letters_loses_none(runs: Runs, region: braidstream.Redis) -> None:
    region.twrite("orders.dead", "not", "a letter")
    entry = region.xadd("orders", {"order": 1})
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])
        raise braidstream.Reject("no")

    with runs(handle, claim_after=0.6, stop_timeout=0.1):
        log.wait(1)
        until = time.monotonic() + 1.5  # some attempts to move it, and some beats
        eventually(lambda: time.monotonic() > until, within_s=5, why="time passes")
        rows = region.xpending_range("orders", "billing", "-", "+", 10)
        assert [row["message_id"] for row in rows] == [entry]
    assert region.xlen("orders.dead") == 1


def test_a_dead_letter_that_was_acknowledged_and_not_appended_is_appended_later(
    runs: Runs, region: braidstream.Redis, engine: Engine
) -> None:
    """It becomes pending again, and stays in hand until the append succeeds."""
    strand = Strand(b"orders.dead", "s", 1).key
    region.xadd("orders", {"order": 1})

    def handle(message: Message) -> None:
        raise braidstream.Reject("no")

    with engine.client() as bare, runs(handle, claim_after=0.6):
        bare.set(strand, "no stream: the append fails inside EXEC")
        bare.config_resetstat()
        eventually(lambda: failed_appends(bare) > 0, within_s=20, why="the letter should be refused")
        until = time.monotonic() + 1.0  # some beats
        eventually(lambda: time.monotonic() > until, within_s=5, why="time passes")
        bare.delete(strand)
        eventually(lambda: reasons(region), within_s=20, why="the letter should be appended")
        until_acknowledged(region)
    assert reasons(region) == ["rejected: no"]


def test_a_dead_letter_that_cannot_be_appended_stays_pending(
    runs: Runs, region: braidstream.Redis, engine: Engine
) -> None:
    """A process that ends leaves it to others."""
    entry = region.xadd("orders", {"order": 1})

    def handle(message: Message) -> None:
        raise braidstream.Reject("no")

    with engine.client() as bare:
        # A stream of Redis itself that is full: the append fails inside EXEC.
        bare.xadd("orders.dead", {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
        bare.config_resetstat()
        with runs(handle, claim_after=0.6, stop_timeout=1):
            eventually(lambda: failed_appends(bare) > 1, within_s=20, why="the letter should be refused")
    found = region.xpending_range("orders", "billing", "-", "+", 10)
    assert [row["message_id"] for row in found] == [entry]


def test_a_consumer_that_cannot_reach_its_engine_stops_when_it_is_told(runs: Runs, engine: Engine) -> None:
    unreachable = Runs(runs.kind, "redis://127.0.0.1:1/0")

    def handle(message: Message) -> None: ...

    with unreachable(handle):
        pass


def test_a_paused_engine_costs_no_entry(runs: Runs, region: braidstream.Redis, engine: Engine) -> None:
    """Longer than the socket's timeout and than claim_after: leases run out, and are checked."""
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])

    with runs(handle, claim_after=0.5), runs(handle, claim_after=0.5):
        for number in range(50):
            region.xadd("orders", {"order": number})
        log.wait(10)
        with engine.paused():
            until = time.monotonic() + 1.5
            eventually(lambda: time.monotonic() > until, within_s=5, why="time passes")
        until_acknowledged(region)
    assert set(log.firsts) == {str(number) for number in range(50)}
    assert reasons(region) == []


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols(region: braidstream.Redis, engine: Engine, protocol: int) -> None:
    region.xadd("orders", {"order": 1})
    with braidstream.Redis.from_url(engine.url, protocol=protocol, decode_responses=True) as client:
        consumer = braidstream.Consumer(client, "orders", group="billing")
        log = Log()

        @consumer.handler
        def handle(message: Message) -> None:
            log(message.fields)
            consumer.stop()

        consumer.run(signals=False)
    assert log.firsts == [{"order": "1"}]
