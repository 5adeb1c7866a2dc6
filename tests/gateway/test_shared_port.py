"""`braid gateway --reuse-port`, twice: two processes on one port, and what clients see of it."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.test_gateway_restart import Worker
from tests.support.cli import braid
from tests.support.forked import braid_process
from tests.support.gateways import Line, value_of
from tests.support.regions import become
from tests.support.servers import NEWEST, Engine, free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 30
CLIENTS = 12


class Sharing:
    """A process of `braid gateway --reuse-port`, with a page of metrics of its own."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.port = port
        words = ["gateway", "--json", "--url", engine.url, "--listen", f"127.0.0.1:{port}", "--reuse-port"]
        self._words = [*words, "--metrics", "127.0.0.1:0"]

    def __enter__(self) -> Self:
        self.process = braid_process(self._words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self._metrics = json.loads(self.process.stdout.readline())["metrics"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.communicate(timeout=WITHIN_S)

    @property
    def clients(self) -> int:
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=20) as reply:
            page = reply.read().decode()
        found = {family.name: family.samples for family in text_string_to_metric_families(page)}
        return int(found["braid_gateway_clients"][0].value)

    def line(self, stack: ExitStack) -> Line:
        """A new client of this process. The kernel chooses, so it may take some attempts."""
        for _ in range(50):
            before = self.clients
            line = stack.enter_context(Line(self.port, timeout_s=WITHIN_S))
            assert line.say("PING") == b"+PONG\r\n"
            if self.clients > before:
                return line
        raise AssertionError("the kernel gave 50 clients to the other process")


@pytest.fixture(scope="module", params=NEWEST[:1])
def region(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(request.param) as engine:
        become(engine)
        yield engine


@pytest.fixture
def pair(region: Engine) -> Iterator[tuple[Sharing, Sharing]]:
    port = free_port()
    with Sharing(region, port) as one, Sharing(region, port) as two:
        yield one, two


@pytest.fixture
def lines(pair: tuple[Sharing, Sharing]) -> Iterator[tuple[Line, Line]]:
    """A client of each process."""
    with ExitStack() as stack:
        yield pair[0].line(stack), pair[1].line(stack)


def test_clients_of_a_gateway_that_stops_go_on_with_the_other_one(
    region: Engine, pair: tuple[Sharing, Sharing]
) -> None:
    one, two = pair
    workers = [Worker(one.port, who) for who in range(CLIENTS)]

    def all_append() -> None:
        before = [len(worker.acknowledged) for worker in workers]
        eventually(
            lambda: all(len(each.acknowledged) > n for each, n in zip(workers, before, strict=True)),
            within_s=WITHIN_S,
            why="every client should append",
        )

    for worker in workers:
        worker.thread.start()
    all_append()
    with ExitStack() as stack:
        one.line(stack)  # both of them get clients
        two.line(stack)
    one.process.terminate()
    assert one.process.wait(WITHIN_S) == 0
    all_append()
    eventually(lambda: two.clients == CLIENTS, within_s=WITHIN_S, why="the other one serves all of them")
    with Sharing(region, one.port) as again, ExitStack() as stack:
        assert again.line(stack).say("XLEN none") == b":0\r\n", "started again, it gets new clients"
        for worker in workers:
            worker.stop.set()
            worker.thread.join(WITHIN_S)
        stored = value_of(two.line(stack).say("XLEN s"))
    assert [worker.wrong for worker in workers] == [[]] * CLIENTS
    # A command whose reply was lost may have been applied.
    acknowledged = sum(len(worker.acknowledged) for worker in workers)
    lost = sum(worker.told["disconnected"] for worker in workers)
    assert acknowledged <= stored <= acknowledged + lost


def test_a_client_finds_kills_and_unblocks_clients_of_the_other_gateway(lines: tuple[Line, Line]) -> None:
    one, two = lines
    assert two.say("CLIENT SETNAME other") == b"+OK\r\n"
    number = value_of(two.say("CLIENT ID"))
    assert b" name=other " in one.say(f"CLIENT LIST ID {number}")
    two.send("BLPOP", "never", 0)
    eventually(
        lambda: one.say(f"CLIENT UNBLOCK {number}") == b":1\r\n", within_s=WITHIN_S, why="it is blocked soon"
    )
    assert two.read() == b"*-1\r\n"
    assert one.say(f"CLIENT KILL ID {number}") == b":1\r\n"
    assert two.read() == b""


def test_messages_and_monitor_reach_clients_of_the_other_gateway(lines: tuple[Line, Line]) -> None:
    one, two = lines
    assert two.say("SUBSCRIBE news").startswith(b"*3")
    assert one.say("PUBLISH news hello") == b":1\r\n"
    assert two.read().endswith(b"$5\r\nhello\r\n")
    two.say("RESET")
    assert two.say("MONITOR") == b"+OK\r\n"
    assert one.say("SET seen 1") == b"+OK\r\n"
    while b'"SET" "seen" "1"' not in two.read():
        pass


def test_blocked_consumers_of_both_gateways_are_served_in_order(
    region: Engine, pair: tuple[Sharing, Sharing]
) -> None:
    with ExitStack() as stack, region.client() as engine:
        writer = pair[0].line(stack)
        consumers = [pair[number % 2].line(stack) for number in range(6)]
        assert writer.say("XGROUP CREATE jobs g $ MKSTREAM") == b"+OK\r\n"
        blocked = engine.info("clients")["blocked_clients"]
        for number, line in enumerate(consumers, start=1):
            line.send(*f"XREADGROUP GROUP g c{number} COUNT 1 BLOCK 60000 STREAMS jobs >".split())
            eventually(
                lambda number=number: engine.info("clients")["blocked_clients"] == blocked + number,
                within_s=WITHIN_S,
                why=f"{number} are blocked",
            )
        for number, line in enumerate(consumers):
            writer.say(f"XADD jobs * n {number}")
            [[_, [[_, fields]]]] = value_of(line.read())
            assert fields == [b"n", b"%d" % number], "the one that waited longest gets the next entry"


def test_a_port_is_shared_only_by_gateways_that_have_the_option(region: Engine) -> None:
    port = free_port()
    with Sharing(region, port):
        done = braid("gateway", "--url", region.url, "--listen", f"127.0.0.1:{port}")
        assert done.returncode == 1
        assert f"127.0.0.1:{port}: cannot listen here: Address already in use" in done.stderr
    done = braid("gateway", "--url", region.url, "--listen", "unix:/tmp/never", "--reuse-port")
    assert done.returncode == 2
    assert "--reuse-port needs a TCP address" in done.stderr
