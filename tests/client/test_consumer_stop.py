"""Consumers stop: nothing is lost, and what was not started is given back."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

import braidstream
import braidstream.asyncio
from braidstream import Message
from braidstream.clients.shared import Conversation
from braidstream.plan.plan import Batch
from tests.support.consumers import WITHIN_S, Log, Runs, until_acknowledged
from tests.support.matrix import on_the_newest
from tests.support.observed import observed
from tests.support.servers import Engine
from tests.support.waiting import eventually

flavour = on_the_newest

T = TypeVar("T")


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def pending(region: braidstream.Redis) -> list[dict[str, Any]]:
    return region.xpending_range("orders", "billing", "-", "+", 10_000)


def fill(region: braidstream.Redis) -> None:
    with region.pipeline(transaction=False) as pipe:
        for number in range(3000):
            pipe.xadd("orders", {"order": number})
        pipe.execute()


class Watched(braidstream.Redis):
    """A client that calls `before_leaving` before its consumer is deleted."""

    before_leaving: Callable[[], Any] = staticmethod(lambda: None)

    def converse(self, make: Conversation[T]) -> T:
        return super().converse(lambda view_of: observed(make(view_of), self._see))

    def _see(self, batch: Batch) -> None:
        if any("DELCONSUMER" in command for command in batch.commands):
            self.before_leaving()


def test_an_entry_that_arrives_while_a_consumer_leaves_is_not_lost(
    engine: Engine, region: braidstream.Redis
) -> None:
    region.xgroup_create("orders", "billing", "0", mkstream=True)

    def is_reading() -> bool:
        return bool(region.info("clients")["blocked_clients"])

    def arrive() -> None:
        if is_reading():
            region.xadd("orders", {"order": 1})
            eventually(lambda: pending(region), within_s=WITHIN_S, why="the running read should get it")

    with Watched.from_url(engine.url) as client:
        client.before_leaving = arrive
        consumer = braidstream.Consumer(client, "orders", group="billing", name="worker")
        consumer.handler(lambda message: None)
        thread = threading.Thread(target=consumer.run)
        thread.start()
        eventually(is_reading, within_s=WITHIN_S, why="the consumer should wait for entries")
        consumer.stop(now=True)
        thread.join(WITHIN_S)
    assert len(pending(region)) == region.xlen("orders"), "what arrived can be claimed"


def test_work_that_was_taken_ahead_is_given_back_uncounted_and_never_started(
    runs: Runs, region: braidstream.Redis
) -> None:
    """Fast handlers make the consumer take many ahead; then one of them waits."""
    fill(region)
    log, go_on, waits = Log(), threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        log(message["order"])
        if len(log.seen) >= 1000:
            waits.set()
            assert go_on.wait(WITHIN_S)

    with runs(handle, concurrency=1) as running:
        assert waits.wait(WITHIN_S)
        hand = running.consumer._hand
        eventually(lambda: hand.running > 5, within_s=WITHIN_S, why="works are handed out ahead")
        started = len(log.seen)
        running.halt()
        eventually(lambda: hand.running <= 1, within_s=WITHIN_S, why="they should be taken back")
        go_on.set()
    assert len(log.seen) == started, "no other handler was started"
    assert {(row["consumer"], row["times_delivered"]) for row in pending(region)} == {("", 1)}
    assert region.xinfo_consumers("orders", "billing") == []

    def handle_again(message: Message) -> None:
        log(message["order"])

    with runs(handle_again, claim_after=1):
        until_acknowledged(region)
    assert sorted(log.firsts, key=int) == [str(number) for number in range(3000)], "each was handled once"


def test_a_consumer_that_stops_at_once_starts_no_handler_afterwards(
    runs: Runs, region: braidstream.Redis
) -> None:
    fill(region)
    log, go_on, waits = Log(), threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        log(message["order"])
        if len(log.seen) >= 1000:
            waits.set()
            go_on.wait(WITHIN_S)

    with runs(handle, concurrency=1, stop_timeout=0.2) as running:
        assert waits.wait(WITHIN_S)
        hand = running.consumer._hand
        eventually(lambda: hand.running > 5, within_s=WITHIN_S, why="works are handed out ahead")
        started = len(log.seen)
        running.halt()
        eventually(lambda: hand.running <= 1, within_s=WITHIN_S, why="they should be taken back")
        if runs.kind == "sync":
            running.join(WITHIN_S)
            assert not running.is_alive(), "it does not wait for the handler"
        go_on.set()
    eventually(
        lambda: not any(each.name == "braidstream-handler" for each in threading.enumerate()),
        within_s=WITHIN_S,
        why="handlers should end",
    )
    assert len(log.seen) == started


def test_a_handler_that_swallows_its_cancellation_does_not_keep_a_consumer_from_stopping(
    engine: Engine, region: braidstream.Redis
) -> None:
    region.xadd("orders", {"order": 1})
    log = Log()

    async def handle(message: Message) -> None:
        log(message["order"])
        try:
            await asyncio.sleep(WITHIN_S)
        except asyncio.CancelledError:
            log("cancelled")

    with Runs("asyncio", engine.url)(handle, stop_timeout=0.1):
        log.wait(1)
    assert log.firsts == ["1", "cancelled"]


START = """
import asyncio, contextlib, signal, sys, time
import braidstream, braidstream.asyncio

def consumer_of(kind):
    module = braidstream if kind == "sync" else braidstream.asyncio
    client = module.Redis.from_url(sys.argv[1])
    made = module.Consumer(client, "orders", group=f"billing {time.monotonic_ns()}")
    def handle(message):
        print("began", flush=True)
        time.sleep(0.3)
        print("ended", flush=True)
    async def coroutine(message):
        print("began", flush=True)
        await asyncio.sleep(0.3)
        print("ended", flush=True)
    made.handler(handle if kind == "sync" else coroutine)
    return made

def heard(*_):
    print("heard", flush=True)
"""

OWN_HANDLERS = {
    "two consumers in one loop": """
async def main():
    await asyncio.gather(consumer_of("asyncio").run(), consumer_of("asyncio").run())
asyncio.run(main())
""",
    "two consumers, one of each kind": """
braidstream.run(consumer_of("sync"), consumer_of("asyncio"))
""",
    "two consumers of threads": """
braidstream.run(consumer_of("sync"), consumer_of("sync"))
""",
    "a handler of the program, sync": """
signal.signal(signal.SIGTERM, heard)
consumer_of("sync").run()
""",
    "a handler of the program, asyncio": """
signal.signal(signal.SIGTERM, heard)
asyncio.run(consumer_of("asyncio").run())
""",
    "a handler of the loop": """
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard)
    await consumer_of("asyncio").run()
asyncio.run(main())
""",
    "a web server": """
import uvicorn
from starlette.applications import Starlette

@contextlib.asynccontextmanager
async def lifespan(app):
    running = asyncio.create_task(consumer_of("asyncio").run())
    yield
    await running
    print("heard", flush=True)

app = Starlette(lifespan=lifespan)
with contextlib.suppress(KeyboardInterrupt):
    uvicorn.run(app, port=0, log_level="critical")
""",
    "a handler that exits": """
def leave(*_):
    heard()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
consumer_of("sync").run()
print("not here", flush=True)
""",
}


@pytest.mark.parametrize("program", OWN_HANDLERS)
def test_the_first_signal_stops_all_consumers_and_reaches_other_handlers(
    region: braidstream.Redis, engine: Engine, program: str
) -> None:
    region.xadd("orders", {"order": 1})
    code = START + OWN_HANDLERS[program]
    consumers = 2 if "two" in program else 1
    with running_program(code, engine.url) as worker:
        assert [worker.stdout.readline() for _ in range(consumers)] == ["began\n"] * consumers
        worker.send_signal(signal.SIGTERM)
        said = worker.stdout.read().split()
        left = worker.wait(WITHIN_S)
    others = [] if "two" in program else ["heard"]
    assert sorted(said) == sorted(["ended"] * consumers + others)
    # A web server raises the signal again, when it has ended.
    assert left == (-signal.SIGTERM if program == "a web server" else 0)
    assert all(group["pending"] == 0 for group in region.xinfo_groups("orders"))


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGTERM, heard)\n"], ids=["default", "own"])
def test_a_consumer_that_has_ended_leaves_signals_as_they_were(
    region: braidstream.Redis, engine: Engine, kind: str, before: str
) -> None:
    run = "consumer.run()" if kind == "sync" else "asyncio.run(consumer.run())"
    code = f"consumer = consumer_of({kind!r})\nconsumer.stop()\n{run}\nsignal.raise_signal(signal.SIGTERM)\n"
    with running_program(START + before + code, engine.url) as worker:
        said = worker.stdout.read()
        left = worker.wait(WITHIN_S)
    assert (said, left) == (("heard\n", 0) if before else ("", -signal.SIGTERM))


@contextmanager
def running_program(code: str, url: str) -> Iterator[Any]:
    """A program that the test ends, if it does not end by itself."""
    command = [sys.executable, "-c", code, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as worker:
        timer = threading.Timer(WITHIN_S, worker.kill)
        timer.start()
        try:
            yield worker
        finally:
            timer.cancel()
            worker.kill()
