"""Consumers with a MultiRegion client follow it: none is skipped, only what was in hand is handled twice."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import braidstream
import braidstream.asyncio
from tests.support.multi_region import Lab, on
from tests.support.servers import NEWEST, Flavour
from tests.support.waiting import eventually

CONCURRENCY = 4


@pytest.fixture(scope="module", params=NEWEST)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    flavour: Flavour = request.param
    with Lab(tmp_path_factory.mktemp("lab"), flavour) as lab:
        yield lab


KINDS = ("sync", "asyncio")


def in_ci(chosen: str) -> pytest.MarkDecorator:
    """Both kinds every night, one in CI: tests take turns."""
    marks = {each: () if each == chosen else pytest.mark.nightly(f"In CI: {chosen}") for each in KINDS}
    params = [pytest.param(each, marks=marks[each]) for each in KINDS]
    return pytest.mark.parametrize("kind", params, indirect=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, lab: Lab) -> Iterator[str]:
    yield request.param
    lab.bring_back()


@contextmanager
def working(lab: Lab, kind: Any, stream: str, handled: Counter[str], **options: Any) -> Iterator[Any]:
    """A consumer that runs; yields its client. Handlers take 5 ms."""
    with ExitStack() as stack:
        client = lab.open(kind, stack, failback_after=0.5)
        if kind == "sync":
            consumer: Any = braidstream.Consumer(
                client, stream, group="g", concurrency=CONCURRENCY, **options
            )

            @consumer.handler
            def handle(message: braidstream.Message) -> None:
                time.sleep(0.005)
                handled[message["n"]] += 1

            run: Callable[[], None] = lambda: consumer.run(signals=False)  # noqa: E731
        else:
            consumer = braidstream.asyncio.Consumer(
                client.target, stream, group="g", concurrency=CONCURRENCY, **options
            )

            @consumer.handler
            async def handle_async(message: braidstream.Message) -> None:
                await asyncio.sleep(0.005)
                handled[message["n"]] += 1

            run = lambda: client.runner.run(consumer.run(signals=False))  # noqa: E731
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield client
        finally:
            consumer.stop()
            thread.join(30)
            assert not thread.is_alive()


def write(lab: Lab, stream: str, numbers: range, region: int) -> None:
    for number in numbers:
        lab.plain[region - 1].xadd(stream, {"n": number})


@dataclass(frozen=True)
class Missing:
    """True if nothing is."""

    numbers: set[str]

    def __bool__(self) -> bool:
        return not self.numbers


def missing(handled: Counter[str], count: int) -> Callable[[], Missing]:
    return lambda: Missing({str(number) for number in range(count)} - handled.keys())


@in_ci("sync")
def test_after_a_kill_the_consumer_goes_on_in_the_other_region(lab: Lab, kind: str) -> None:
    stream, handled = f"kill-{kind}", Counter[str]()
    lab.plain[0].xgroup_create(stream, "g", "0", mkstream=True)
    with working(lab, kind, stream, handled) as client:
        write(lab, stream, range(200), 1)
        eventually(lambda: len(handled) >= 100, within_s=30, why="some should be handled")
        lab.settle(stream)
        lab.one.kill()
        write(lab, stream, range(200, 300), 2)
        eventually(missing(handled, 300), within_s=30, why="all should be handled in region 2")
        assert client.region == "region-2"
        lab.bring_back()
        on(client)("region-1")
        write(lab, stream, range(300, 400), 1)
        eventually(missing(handled, 400), within_s=30, why="all should be handled, again in region 1")
    print(f"{kind}, killed: handled {len(handled)}, twice {sum(handled.values()) - len(handled)}")
    assert sum(handled.values()) - len(handled) <= 2 * CONCURRENCY + 100  # of the last tenth of a second


@in_ci("asyncio")
def test_before_a_planned_change_it_finishes_what_it_has(lab: Lab, kind: str) -> None:
    stream, handled = f"planned-{kind}", Counter[str]()
    lab.plain[0].xgroup_create(stream, "g", "0", mkstream=True)
    with working(lab, kind, stream, handled) as client:
        write(lab, stream, range(200), 1)
        lab.settle(stream)
        eventually(lambda: len(handled) >= 50, within_s=30, why="some should be handled")
        client.prefer("region-2")  # it does not wait for its next heartbeat, which is after 20 s
        eventually(missing(handled, 200), within_s=12, why="all should be handled")
        consumers = lambda region: len(lab.plain[region - 1].xinfo_consumers(stream, "g"))  # noqa: E731
        eventually(lambda: consumers(1) == 0, within_s=10, why="it should leave region 1")
        eventually(lambda: consumers(2) == 1, within_s=10, why="it should join in region 2")
    print(f"{kind}, planned: handled {len(handled)}, twice {sum(handled.values()) - len(handled)}")
    # What no handler had was given back here, is handled there, and its acknowledgement comes back.
    pending = lambda: lab.plain[0].xpending(stream, "g")["pending"]  # noqa: E731
    eventually(lambda: pending() == 0, within_s=30, why="nothing should be left in region 1")


@in_ci("asyncio")
def test_scope_once_is_taken_over_and_nothing_is_skipped(lab: Lab, kind: str) -> None:
    stream, handled = f"once-{kind}", Counter[str]()
    lab.plain[0].execute_command("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM", "SCOPE", "ONCE")
    with working(lab, kind, stream, handled):
        write(lab, stream, range(200), 1)
        eventually(lambda: len(handled) >= 50, within_s=30, why="some should be handled")
        lab.settle(stream)
        lab.one.kill()
        write(lab, stream, range(200, 300), 2)
        eventually(missing(handled, 300), within_s=60, why="region 2 should take over what region 1 had")
    print(f"{kind}, ONCE, killed: handled {len(handled)}, twice {sum(handled.values()) - len(handled)}")
    assert sum(handled.values()) - len(handled) <= 2 * CONCURRENCY + 100


@in_ci("sync")
def test_a_client_that_comes_back_at_once_does_not_stop_it(lab: Lab, kind: str) -> None:
    stream, handled = f"back-{kind}", Counter[str]()
    lab.plain[0].xgroup_create(stream, "g", "0", mkstream=True)
    with working(lab, kind, stream, handled) as client:
        write(lab, stream, range(500), 1)
        for _ in range(10):
            client.prefer("region-2")
            client.prefer("region-1")
        eventually(missing(handled, 500), within_s=12, why="all should be handled in region 1")
        write(lab, stream, range(500, 520), 1)
        eventually(missing(handled, 520), within_s=12, why="also what is written later")
