"""Consumers: every entry is handled, tried again, or moved to the dead letters."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

import braidstream
from braidstream import Message, Reject
from tests.support.consumers import WITHIN_S, Log, Runs, until_acknowledged
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def orders(region: braidstream.Redis, *numbers: int, stream: str = "orders") -> list[str]:
    return [region.xadd(stream, {"order": number}) for number in numbers]


def dead(region: braidstream.Redis, stream: str = "orders.dead") -> list[dict[str, str]]:
    return [fields for _, fields in region.xrange(stream)]


def pending(region: braidstream.Redis) -> list[dict[str, Any]]:
    return region.xpending_range("orders", "billing", "-", "+", 100)


def test_every_entry_is_handled_and_acknowledged(runs: Runs, region: braidstream.Redis) -> None:
    entries, log = orders(region, *range(50)), Log()

    def handle(message: Message) -> None:
        log(message.id, message.stream, message.fields, message.attempt)

    with runs(handle):
        until_acknowledged(region)
        later = region.xadd("orders", {"order": "later"})
        until_acknowledged(region)
    wanted = [(entry, "orders", {"order": str(at)}, 1) for at, entry in enumerate(entries)]
    assert sorted(log.seen, key=lambda call: entries.index(call[0]) if call[0] in entries else 99) == [
        *wanted,
        (later, "orders", {"order": "later"}, 1),
    ]


def test_a_failed_entry_is_tried_again_and_others_do_not_wait_for_it(
    runs: Runs, region: braidstream.Redis
) -> None:
    orders(region, 1, 2, 3)
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"], message.attempt)
        if message["order"] == "1" and message.attempt < 3:
            raise ValueError("not yet")

    with runs(handle, concurrency=1, backoff=0.3):
        until_acknowledged(region)
    assert log.seen == [("1", 1), ("2", 1), ("3", 1), ("1", 2), ("1", 3)]
    assert dead(region) == []


def test_after_the_last_attempt_an_entry_is_a_dead_letter_and_acknowledged(
    runs: Runs, region: braidstream.Redis
) -> None:
    [bad, _] = orders(region, 1, 2)
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"], message.attempt)
        if message["order"] == "1":
            raise ValueError("no such customer")

    with runs(handle, attempts=3, name="worker-1"):
        until_acknowledged(region)
    assert [call for call in log.seen if call[0] == "1"] == [("1", 1), ("1", 2), ("1", 3)]
    [letter] = dead(region)
    assert [letter] == [
        {
            "dead.stream": "orders",
            "dead.id": bad,
            "dead.group": "billing",
            "dead.consumer": "worker-1",
            "dead.attempts": "3",
            "dead.reason": "ValueError: no such customer",
            "dead.traceback": letter["dead.traceback"],
            "order": "1",
        }
    ]


def test_the_traceback_of_a_handler_is_logged_and_in_the_dead_letter(
    runs: Runs, region: braidstream.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    orders(region, 1)

    def look_up(customers: dict[str, str]) -> str:
        return customers["ann"]

    def handle(message: Message) -> None:
        look_up({})

    with caplog.at_level(logging.WARNING), runs(handle, attempts=2):
        until_acknowledged(region)
    [letter] = dead(region)
    logged = [record for record in caplog.records if record.getMessage().startswith("consumer.")]
    assert [record.getMessage().split()[0] for record in logged] == ["consumer.failed", "consumer.dead"]
    for trace in (letter["dead.traceback"], *(record.getMessage() for record in logged)):
        assert trace.endswith("KeyError: 'ann'")
        assert 'return customers["ann"]' in trace
        assert "braidstream/consumers" not in trace, "only what the user wrote"


def test_a_rejected_entry_is_a_dead_letter_at_once_where_the_consumer_says(
    runs: Runs, region: braidstream.Redis
) -> None:
    orders(region, 1)

    def handle(message: Message) -> None:
        raise Reject("it is from last year")

    with runs(handle, dead_letter="graveyard"):
        until_acknowledged(region)
    [letter] = dead(region, "graveyard")
    assert (letter["dead.attempts"], letter["dead.reason"]) == ("1", "rejected: it is from last year")


def test_entries_of_a_dead_consumer_are_taken_over(runs: Runs, region: braidstream.Redis) -> None:
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    entries, log = orders(region, 1, 2), Log()
    region.xreadgroup("billing", "crashed", {"orders": ">"})

    def handle(message: Message) -> None:
        log(message.id)

    with runs(handle, claim_after=0.3):
        until_acknowledged(region)
    assert sorted(log.firsts) == sorted(entries)


@pytest.mark.parametrize("how", [{}, {"prefetch": 0}, {"key": "customer"}])
def test_many_entries_that_were_given_back_are_taken_over_at_once(
    runs: Runs, region: braidstream.Redis, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """Claims are seconds apart, and a few entries each: it goes on as soon as handlers are free."""
    monkeypatch.setattr("braidstream.consumers.lifecycle._EVERY_S", 2.0)  # the first one comes within that
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    entries = [region.xadd("orders", {"order": number, "customer": number % 20}) for number in range(200)]
    region.xreadgroup("billing", "stopped", {"orders": ">"})
    region.execute_command("XNACK", "orders", "billing", "FAIL", "IDS", len(entries), *entries)
    log = Log()

    def handle(message: Message) -> None:
        log(message.id)

    with runs(handle, **how):
        until_acknowledged(region)
    assert sorted(log.firsts) == sorted(entries)


@pytest.mark.parametrize(("prefetch", "crashes"), [(0, 2), (100, 3)])
def test_an_entry_that_crashed_its_consumers_too_often_is_a_dead_letter(
    runs: Runs, region: braidstream.Redis, prefetch: int, crashes: int
) -> None:
    """With prefetch the first delivery is not counted: it may have waited for its handler."""
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    [entry] = orders(region, 1)
    region.xreadgroup("billing", "crashed", {"orders": ">"})
    for _ in range(crashes - 1):
        region.xclaim("orders", "billing", "crashed", 0, [entry])
    log = Log()

    def handle(message: Message) -> None:
        log(message.id)

    with runs(handle, claim_after=0.2, attempts=2, prefetch=prefetch):
        until_acknowledged(region)
    assert log.seen == []
    [letter] = dead(region)
    assert (letter["dead.id"], letter["dead.attempts"]) == (entry, "2")
    assert "crashed" in letter["dead.reason"]


def test_entries_that_only_waited_in_a_crashed_process_lose_no_attempt(
    runs: Runs, region: braidstream.Redis
) -> None:
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    orders(region, 1)
    region.xreadgroup("billing", "crashed", {"orders": ">"})
    log = Log()

    def handle(message: Message) -> None:
        log(message.attempt)
        raise ValueError

    with runs(handle, claim_after=0.2, attempts=2):
        until_acknowledged(region)
    assert log.firsts == [1, 2]


def test_a_slow_handler_keeps_its_entry(runs: Runs, region: braidstream.Redis) -> None:
    orders(region, 1)
    log, go_on = Log(), threading.Event()

    def handle(message: Message) -> None:
        log(message.id)
        assert go_on.wait(20)

    with runs(handle, claim_after=2, name="slow"), runs(handle, claim_after=2, name="eager"):
        log.wait(1)
        until = time.monotonic() + 3.5
        eventually(lambda: time.monotonic() > until, within_s=9, why="time passes")
        [row] = pending(region)
        go_on.set()
        until_acknowledged(region)
    assert len(log.seen) == 1
    assert (row["times_delivered"], row["time_since_delivered"] < 2000) == (1, True)


def test_a_handler_that_takes_too_long_counts_as_failed(runs: Runs, region: braidstream.Redis) -> None:
    orders(region, 1, 2)
    log, go_on = Log(), threading.Event()

    def handle(message: Message) -> None:
        log(message["order"], message.attempt)
        if message["order"] == "1":
            go_on.wait(20)

    with runs(handle, timeout=0.2, attempts=2, concurrency=1):
        until_acknowledged(region)
        go_on.set()
    assert sorted(log.seen) == [("1", 1), ("1", 2), ("2", 1)]
    assert [letter["dead.reason"] for letter in dead(region)] == [
        "TimeoutError: the handler did not end within 0.2 s"
    ]


def test_stop_waits_for_running_handlers_and_gives_back_the_rest(
    runs: Runs, region: braidstream.Redis
) -> None:
    orders(region, 1, 2, 3)
    log, go_on = Log(), threading.Event()

    def handle(message: Message) -> None:
        log(message["order"])
        if message["order"] == "1":
            raise ValueError("later")
        assert go_on.wait(20)

    with runs(handle, concurrency=2, backoff=60, prefetch=0) as running:
        log.wait(3)
        running.halt()
        go_on.set()
    [row] = pending(region)
    assert (row["consumer"], row["times_delivered"]) == ("", 1)
    assert region.xinfo_consumers("orders", "billing") == []
    log.seen.clear()

    def handle_again(message: Message) -> None:
        log(message["order"], message.attempt)

    with runs(handle_again, prefetch=0, claim_after=1):
        until_acknowledged(region)
    assert log.seen == [("1", 2)]


def test_several_streams_of_one_consumer(runs: Runs, region: braidstream.Redis) -> None:
    orders(region, 1, stream="eu")
    orders(region, 2, stream="us")
    log = Log()

    def handle(message: Message) -> None:
        log(message.stream, message["order"])
        if message.stream == "us":
            raise Reject("no")

    with runs(handle, ["eu", "us"]):
        until_acknowledged(region, "eu")
        until_acknowledged(region, "us")
    assert sorted(log.seen) == [("eu", "1"), ("us", "2")]
    assert [letter["dead.stream"] for letter in dead(region, "us.dead")] == ["us"]


def test_a_consumer_survives_a_restart_of_the_engine_and_a_deleted_group(request: Any, flavour: Any) -> None:
    with Engine(flavour, args=["--appendonly", "yes"]) as engine:
        become(engine)
        log = Log()

        def handle(message: Message) -> None:
            log(message["order"])

        with client_of(engine, decode_responses=True) as region, Runs("sync", engine.url)(handle):
            orders(region, 1)
            log.wait(1)
            engine.restart()
            orders(region, 2)
            log.wait(2)
            region.delete("orders")
            orders(region, 3)
            log.wait(3)
            until_acknowledged(region)
        assert log.firsts == ["1", "2", "3"]


def test_a_group_is_created_with_the_scope_of_the_consumer_and_not_changed(
    runs: Runs, region: braidstream.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])

    for number, scope, warnings in ((1, "ONCE", 0), (2, "EVERYWHERE", 1)):
        with caplog.at_level(logging.WARNING), runs(handle, scope="ONCE"):
            orders(region, number)
            log.wait(number)
            [group] = region.xinfo_groups("orders")
            assert group.get("scope", "everywhere") == scope.lower()
        assert caplog.text.count("consumer.everywhere") == warnings
        region.execute_command("XGROUP SCOPE", "orders", "billing", "EVERYWHERE")


@pytest.mark.parametrize("since", ["before it joined", "while it runs"])
def test_a_group_of_scope_once_that_was_deleted_is_created_again_with_its_scope(
    runs: Runs, region: braidstream.Redis, since: str
) -> None:
    scope = ("SCOPE", "ONCE") if since == "before it joined" else ()
    region.execute_command("XGROUP CREATE", "orders", "billing", "0", "MKSTREAM", *scope)
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"])
        if message["order"] == "2":
            time.sleep(1)  # some beats

    with runs(handle, claim_after=0.6):
        orders(region, 1)
        log.wait(1)
        region.execute_command("XGROUP SCOPE", "orders", "billing", "ONCE")
        orders(region, 2)
        log.wait(2)
        until_acknowledged(region)
        region.delete("orders")
        orders(region, 3)
        log.wait(3)
        [group] = region.xinfo_groups("orders")
        assert group.get("scope") == "once"


def test_entries_whose_delivery_was_lost_with_the_connection_are_handled_soon(
    runs: Runs, region: braidstream.Redis
) -> None:
    """They are pending for the consumer, which does not know them. It looks after it was disconnected."""
    region.xgroup_create("orders", "billing", "0", mkstream=True)
    log = Log()

    def handle(message: Message) -> None:
        log(message["order"], message.attempt)

    with runs(handle, name="worker-1", prefetch=0):
        orders(region, 1)
        log.wait(1)
        until_acknowledged(region)
        waits = lambda: region.info("clients")["blocked_clients"] == 1  # noqa: E731
        eventually(waits, within_s=WITHIN_S, why="the consumer should wait for the next entry")
        with region.pipeline() as pipe:  # as if the reply had been lost
            pipe.xadd("orders", {"order": 2})
            pipe.xreadgroup("billing", "worker-1", {"orders": ">"})
            pipe.execute()
        region.client_kill_filter(_type="normal", skipme=True)
        log.wait(2)
    assert log.seen == [("1", 1), ("2", 1)]


def test_what_cannot_work_is_refused(engine: Engine, region: braidstream.Redis) -> None:
    for wrong in (
        {"concurrency": 0},
        {"attempts": 0},
        {"group": ""},
        {"timeout": 0},
        {"batch": 2, "key": "customer"},
        {"dead_letter": "orders"},
        {"claim_after": 0},
        {"prefetch": -1},
        {"backoff": 5, "max_backoff": 1},
    ):
        with pytest.raises(ValueError, match=r"\."):
            braidstream.Consumer(region, "orders", **{"group": "g", **wrong})
    for wrong, said in (
        ({"start": "beginning"}, "start: 'beginning' given, it must be an ID"),
        ({"backoff": "1s"}, "backoff: '1s' given, it must be a number"),
        ({"scope": "once"}, "scope: 'once' given, it must be 'ONCE' or 'EVERYWHERE'"),
        ({"attempts": True}, "attempts: True given, it must be a number"),
        ({"metrics": True}, "metrics: True given, it must be a registry"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            braidstream.Consumer(region, "orders", **{"group": "g", **wrong})
    others: list[Any] = [redis.Redis(), engine.url, braidstream.asyncio.Redis(), None]
    for client in others:
        with pytest.raises(TypeError, match=r"client: .* it must be braidstream\.Redis"):
            braidstream.Consumer(client, "orders", group="g")
    with pytest.raises(TypeError, match=r"it must be braidstream\.asyncio\.Redis"):
        braidstream.asyncio.Consumer(region, "orders", group="g")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name one stream"):
        braidstream.Consumer(region, [], group="g")
    consumer = braidstream.Consumer(region, "orders", group="g")
    with pytest.raises(ValueError, match="no handler"):
        consumer.run()
    aio = braidstream.asyncio.Consumer(braidstream.asyncio.Redis(), "orders", group="g")
    with pytest.raises(TypeError, match="must be a coroutine"):
        aio.handler(lambda message: None)


def test_a_message_is_a_mapping_of_its_fields() -> None:
    message = Message("orders", "1-1", [b"order", b"7", b"customer", b"ann"])
    assert ("order" in message, "none" in message, message.get("none", "-")) == (True, False, "-")
    assert dict(message) == {"order": "7", "customer": "ann"}
    assert len({message, Message("orders", "1-1", message.words)}) == 2


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(
        "import sys, time, braidstream\n"
        "r = braidstream.Redis.from_url(sys.argv[1])\n"
        "consumer = braidstream.Consumer(r, 'orders', group='billing')\n"
        "@consumer.handler\n"
        "def handle(message: braidstream.Message) -> None:\n"
        "    print('began', flush=True)\n"
        "    time.sleep(0.5)\n"
        "    print('ended', flush=True)\n"
        "consumer.run()\n"
        "print('left', flush=True)\n"
    )
    return path


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_after_its_handler(
    engine: Engine, region: braidstream.Redis, program: Path, by: signal.Signals
) -> None:
    orders(region, 1)
    command = [sys.executable, str(program), engine.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "began\n"
        worker.send_signal(by)
        assert worker.stdout.read() == "ended\nleft\n"
        assert worker.wait(20) == 0
    assert pending(region) == []
