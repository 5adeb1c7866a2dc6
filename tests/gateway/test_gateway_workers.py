"""`braid gateway --workers 2`: two processes on one port, and what clients and operators see of it."""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cli import BRAID, braid
from tests.support.gateways import Line, packed, value_of
from tests.support.killing import is_alive
from tests.support.regions import become
from tests.support.servers import NEWEST, Engine
from tests.support.waiting import eventually

SILENT = "the region's engine does not answer"
WITHIN_S = 30
PASSWORD = "open-sesame"


class Pool:
    """A gateway with two workers. Its URL, with a password, is in its environment only."""

    def __init__(self, engine: Engine, log: Path) -> None:
        self.engine, self.log = engine, log
        self.url = engine.url.replace("//", f"//boss:{PASSWORD}@")

    def __enter__(self) -> Self:
        words = ["gateway", "--json", "--workers", "2", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*BRAID, *words],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "BRAID_URL": self.url},
            )
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())
        self.port = int(self.facts["gateway"].rpartition(":")[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.communicate(timeout=WITHIN_S)

    @property
    def workers(self) -> list[int]:
        """The process of each worker, as last logged."""
        found = re.findall(r"gateway\.worker_started worker=(\d) pid=(\d+)", self.log.read_text())
        return [int(pid) for _, pid in sorted(dict(found).items())]

    def get(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.facts['metrics']}{page}", timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> dict[str, float]:
        """The values of a metric, by worker."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and sample.labels.items() >= labels.items():
                    found[sample.labels["worker"]] = sample.value
        return found

    def line_at(self, worker: int, stack: ExitStack) -> Line:
        """A new client of this worker. The kernel chooses, so it may take some attempts."""
        for _ in range(50):
            before = self.metric("braid_gateway_clients")
            line = stack.enter_context(Line(self.port, timeout_s=WITHIN_S))
            assert line.say("PING") == b"+PONG\r\n"
            after = self.metric("braid_gateway_clients")
            if after[str(worker)] > before[str(worker)]:
                return line
        raise AssertionError(f"the kernel gave 50 clients to workers other than {worker}")


@pytest.fixture(scope="module", params=NEWEST[:1])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Engine(request.param) as engine:
        become(engine)
        with engine.client() as client:
            client.execute_command("ACL", "SETUSER", "boss", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        with Pool(engine, tmp_path_factory.mktemp("workers") / "log") as running:
            yield running


@pytest.fixture
def lines(pool: Pool) -> Iterator[tuple[Line, Line]]:
    """A client of each worker."""
    with ExitStack() as stack:
        yield pool.line_at(0, stack), pool.line_at(1, stack)
    eventually(
        lambda: set(pool.metric("braid_gateway_clients").values()) == {0.0}, within_s=WITHIN_S, why="all left"
    )


def test_both_workers_serve_the_port_and_one_page_has_the_metrics_of_both(
    pool: Pool, lines: tuple[Line, Line]
) -> None:
    assert pool.facts["workers"] == 2
    before = pool.metric("braid_gateway_commands_total", command="xadd")
    for line in lines:
        for _ in range(3):
            assert line.say("XADD orders * n 1").startswith(b"$")
        assert line.say("XLEN orders") in (b":3\r\n", b":6\r\n")
    after = pool.metric("braid_gateway_commands_total", command="xadd")
    assert {worker: after[worker] - before.get(worker, 0) for worker in after} == {"0": 3, "1": 3}
    assert pool.metric("braid_gateway_worker_up") == {"0": 1, "1": 1}
    assert set(pool.metric("process_resident_memory_bytes")) == {"0", "1", "parent"}
    assert pool.get("/readyz") == (200, "ready\n")
    assert pool.get("/healthz") == (200, "ok\n")


def test_no_process_shows_the_password_in_its_arguments(pool: Pool) -> None:
    for pid in (pool.process.pid, *pool.workers):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"gateway" in words
        assert PASSWORD.encode() not in words


def test_a_client_finds_kills_and_unblocks_clients_of_the_other_worker(
    pool: Pool, lines: tuple[Line, Line]
) -> None:
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


def test_messages_and_monitor_cross_workers(lines: tuple[Line, Line]) -> None:
    one, two = lines
    assert two.say("SUBSCRIBE news").startswith(b"*3")
    assert one.say("PUBLISH news hello") == b":1\r\n"
    assert two.read().endswith(b"$5\r\nhello\r\n")
    two.say("RESET")
    assert two.say("MONITOR") == b"+OK\r\n"
    assert one.say("SET seen 1") == b"+OK\r\n"
    while b'"SET" "seen" "1"' not in two.read():
        pass


def test_blocked_consumers_of_both_workers_are_served_in_turn(pool: Pool) -> None:
    with ExitStack() as stack, pool.engine.client() as engine:
        writer = pool.line_at(0, stack)
        consumers = [pool.line_at(number % 2, stack) for number in range(6)]
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


def test_a_worker_that_is_killed_is_reported_and_started_again(pool: Pool) -> None:
    with ExitStack() as stack:
        killed, other = pool.line_at(0, stack), pool.line_at(1, stack)
        first = pool.workers
        os.kill(first[0], signal.SIGKILL)
        with suppress(ConnectionError):
            assert killed.read() == b""
        assert other.say("PING") == b"+PONG\r\n"
        assert pool.get("/readyz")[0] == 200, "the other one serves all clients"
        eventually(
            lambda: 'worker_died worker=0 why="killed by SIGKILL"' in pool.log.read_text(),
            within_s=WITHIN_S,
            why="it is reported",
        )
        eventually(lambda: pool.workers[0] != first[0], within_s=WITHIN_S, why="it is started again")
        assert pool.line_at(0, stack).say("XLEN none") == b":0\r\n"
        assert pool.workers[1] == first[1]
        assert pool.metric("braid_events_total", event="gateway.worker_died")["parent"] == 1


def test_a_stuck_worker_and_a_stuck_engine_are_seen_by_probes(pool: Pool) -> None:
    os.kill(pool.workers[1], signal.SIGSTOP)
    try:
        assert pool.get("/healthz") == (503, "no answer from worker 1\n")
        assert pool.get("/readyz") == (503, "worker 1: it does not answer\n")
        assert pool.metric("braid_gateway_worker_up") == {"0": 1, "1": 0}
    finally:
        os.kill(pool.workers[1], signal.SIGCONT)
    eventually(lambda: pool.get("/healthz")[0] == 200, within_s=WITHIN_S, why="it answers again")
    os.kill(pool.engine.pid, signal.SIGSTOP)
    try:
        assert pool.get("/readyz")[0] == 503
        both = "both workers say why, as soon as the parent has the time to wait for them"
        eventually(lambda: pool.get("/readyz")[1].count(SILENT) == 2, within_s=WITHIN_S, why=both)
    finally:
        os.kill(pool.engine.pid, signal.SIGCONT)
    eventually(lambda: pool.get("/readyz")[0] == 200, within_s=WITHIN_S, why="the engine answers again")


def test_another_gateway_does_not_share_the_port(pool: Pool) -> None:
    for workers in ("1", "2"):
        done = braid(
            "gateway", "--url", pool.engine.url, "--listen", pool.facts["gateway"], "--workers", workers
        )
        assert done.returncode == 1
        assert f"{pool.facts['gateway']}: cannot listen here: Address already in use" in done.stderr


def test_workers_need_a_tcp_address_and_a_region(pool: Pool) -> None:
    done = braid("gateway", "--url", pool.engine.url, "--listen", "unix:/tmp/never", "--workers", "2")
    assert done.returncode == 2
    assert "--workers needs a TCP address" in done.stderr
    other = pool.engine.url.replace("/0", "/7")
    done = braid("gateway", "--json", "--url", other, "--listen", "127.0.0.1:0", "--workers", "2")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, "NOREGION")


def test_sigterm_answers_what_was_taken_and_leaves_no_process(pool: Pool, tmp_path: Path) -> None:
    with Pool(pool.engine, tmp_path / "log") as going, ExitStack() as stack:
        lines = [going.line_at(worker, stack) for worker in (0, 1)]
        for number, line in enumerate(lines):
            line.say(f"XADD last-{number} * a b")
            line.socket.sendall(packed("XADD", f"last-{number}", "*", "a", "b") * 300)
            line.read()  # it was taken
        workers = going.workers
        going.process.terminate()
        assert going.process.wait(WITHIN_S) == 0
        assert not any(map(is_alive, workers))
        assert "gateway.stopped" in going.log.read_text()
        assert "worker_died" not in going.log.read_text()
        answered = [1 + len(list(iter(line.read, b""))) for line in lines]
    with pool.engine.client() as engine:
        stored = [engine.xlen(f"bs:1:s:{{last-{number}}}") - 1 for number in (0, 1)]
    assert stored == answered


def test_workers_end_with_their_parent(pool: Pool, tmp_path: Path) -> None:
    with Pool(pool.engine, tmp_path / "log") as going:
        workers = going.workers
        assert all(map(is_alive, workers))
        going.process.kill()
        eventually(lambda: not any(map(is_alive, workers)), within_s=WITHIN_S, why="they end too")
