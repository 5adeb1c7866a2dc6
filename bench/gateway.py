"""XADD through a gateway against the bare engine, both driven by redis-benchmark, in turns.

    redis-benchmark -c 50 [-P 16] XADD name * field value     at the engine, at the gateway, and again

The gateway is one process, as `braid gateway` starts it. Its CPU a command says what a core of its own could
do, whatever else the machine does meanwhile.

Then one gateway, and two on one port (--reuse-port), alternating. Without idle cores their rates say little;
CPU for a command, of all processes together, shows what sharing a port costs.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.bed import Bed
from bench.report import Result
from tests.support.servers import Flavour

NAME, SHARED_NAME = "gateway", "gateways on one port"
CLIENTS = 50
# Commands in flight of each client: how many commands a turn, and the goal: of the engine's rate, or a rate.
PIPELINES = {1: 30_000, 16: 160_000}
GOAL_RATE = 150_000
# By depth: the ratio of the rates, and the CPU for a command in us.
GOALS = {1: (0.60, 12.0), 16: (0.45, 3.2)}
# CPU for a command with two gateways on one port, of that with one.
GOAL_SHARED = 1.0
ROUNDS, QUICK_ROUNDS = 8, 2
TURN_WITHIN_S = 120
Processes = Sequence["subprocess.Popen[bytes]"]
WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None; from braidstream.cli.main import app; app()"


@dataclass(frozen=True, slots=True)
class Turn:
    """What redis-benchmark prints for a turn, and the gateway's CPU for each command in us."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Gateways:
    """One engine, one loop, one depth of pipelines: (gateway, engine) of each round."""

    name: str
    pipeline: int
    rounds: Sequence[tuple[Turn, Turn]]

    def median(self, field: str, side: int = 0) -> float:
        return statistics.median(getattr(both[side], field) for both in self.rounds)

    @property
    def ratio(self) -> float:
        return statistics.median(ours.rate / bare.rate for ours, bare in self.rounds)

    def results(self) -> list[Result]:
        ratio, rate = round(self.ratio, 3), round(self.median("rate"))
        goal, most_us = GOALS[self.pipeline]
        found = [Result(f"{self.name}: rate", ratio, "ours/bare", goal, ratio >= goal)]
        if self.pipeline > 1:
            found.append(Result(f"{self.name}: rate", rate, "XADD/s", GOAL_RATE, rate >= GOAL_RATE))
        cpu = round(self.median("cpu_us"), 2)
        return [*found, Result(f"{self.name}: gateway CPU", cpu, "us/XADD", most_us, cpu <= most_us)]


@dataclass(frozen=True, slots=True)
class SharedPort:
    """One engine, one depth of pipelines: the turns of one gateway, and of two on one port."""

    name: str
    pipeline: int
    rounds: Mapping[int, Sequence[Turn]]

    @property
    def ratio(self) -> float:
        pairs = zip(self.rounds[2], self.rounds[1], strict=True)
        return statistics.median(two.cpu_us / one.cpu_us for two, one in pairs)

    def results(self) -> list[Result]:
        ratio = round(self.ratio, 3)
        return [Result(f"{self.name}: CPU", ratio, "2 gateways/1", GOAL_SHARED, ratio <= GOAL_SHARED)]


def measure_shared(flavour: Flavour, *, quick: bool) -> list[SharedPort]:
    found = []
    with (
        Bed(flavour) as bed,
        running(bed.engine.url, "uvloop") as one,
        running(bed.engine.url, "uvloop", processes=2) as two,
    ):
        for pipeline, commands in PIPELINES.items():
            rounds = dict[int, list[Turn]]({1: [], 2: []})
            for number in range(QUICK_ROUNDS if quick else ROUNDS):
                turns = [(1, one), (2, two)]
                for count, (processes, port) in turns if number % 2 else reversed(turns):
                    turn(port, "ours", pipeline, commands // 10)
                    rounds[count].append(turn(port, "ours", pipeline, commands, processes))
            name = f"{flavour}: XADD through a gateway, {CLIENTS} clients, pipelines of {pipeline}"
            found.append(SharedPort(name, pipeline, rounds))
    return found


def measure(flavour: Flavour, *, quick: bool) -> list[Gateways]:
    found = []
    with Bed(flavour) as bed:
        for loop in ("uvloop",) if quick else ("uvloop", "asyncio"):
            with running(bed.engine.url, loop) as (processes, port):
                for pipeline, commands in PIPELINES.items():
                    turn(port, "ours", pipeline, commands // 10)
                    rounds = []
                    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
                        bare = turn(bed.engine.port, "bare", pipeline, commands)
                        rounds.append((turn(port, "ours", pipeline, commands, processes), bare))
                    how = f"({loop}), {CLIENTS} clients, pipelines of {pipeline}"
                    name = f"{flavour}: XADD through a gateway {how}"
                    found.append(Gateways(name, pipeline, rounds))
    return found


@contextmanager
def running(url: str, loop: str, processes: int = 1) -> Iterator[tuple[Processes, int]]:
    """Gateways on one port."""
    start = ["-m", "braidstream.cli.main"] if loop == "uvloop" else ["-c", WITHOUT_UVLOOP]
    words = [sys.executable, *start, "gateway", "--json", "--url", url, "--reuse-port"]
    port = 0
    with ExitStack() as stack:
        started = []
        for _ in range(processes):
            listen = ["--listen", f"127.0.0.1:{port}"]
            process = stack.enter_context(
                subprocess.Popen([*words, *listen], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
            stack.callback(process.terminate)
            started.append(process)
            assert process.stdout is not None
            port = int(json.loads(process.stdout.readline())["gateway"].rpartition(":")[2])
        yield started, port


def turn(port: int, name: str, pipeline: int, commands: int, processes: Processes = ()) -> Turn:
    words = ["redis-benchmark", "-p", str(port), "-c", str(CLIENTS), "-P", str(pipeline), "-n", str(commands)]
    before = cpu_s(processes)
    run = subprocess.run(
        [*words, "--csv", "XADD", name, "*", "field", "value"],
        capture_output=True,
        text=True,
        timeout=TURN_WITHIN_S,
        check=True,
    )
    return turn_of(run.stdout, (cpu_s(processes) - before) / commands * 1e6)


def turn_of(printed: str, cpu_us: float) -> Turn:
    row = list(csv.reader(printed.splitlines()))[-1]
    return Turn(rate=float(row[1]), p50_ms=float(row[4]), p99_ms=float(row[6]), cpu_us=cpu_us)


def cpu_s(processes: Processes) -> float:
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def show(measured: Sequence[Gateways]) -> None:
    table = Table(title="redis-benchmark at the gateway / at the engine, median of the rounds")
    for heading in ("case", "XADD/s", "ratio", "p50 ms", "p99 ms", "gateway CPU us/XADD"):
        table.add_column(heading)
    for each in measured:
        pairs = [
            f"{each.median(field):,.{digits}f} / {each.median(field, 1):,.{digits}f}"
            for field, digits in (("rate", 0), ("p50_ms", 2), ("p99_ms", 2))
        ]
        table.add_row(
            each.name, pairs[0], f"{each.ratio:.2f}", pairs[1], pairs[2], f"{each.median('cpu_us'):.1f}"
        )
    Console(width=170).print(table)


def show_shared(measured: Sequence[SharedPort]) -> None:
    table = Table(title="one gateway, and two on one port: CPU for an XADD, medians of the rounds")
    for heading in ("case", "1 gateway, us", "2 gateways, us", "ratio", "XADD/s, 1 / 2"):
        table.add_column(heading)
    for each in measured:
        cpu, rate = (
            [statistics.median(getattr(turn, field) for turn in each.rounds[count]) for count in (1, 2)]
            for field in ("cpu_us", "rate")
        )
        rates = " / ".join(f"{value:,.0f}" for value in rate)
        table.add_row(each.name, f"{cpu[0]:.2f}", f"{cpu[1]:.2f}", f"{each.ratio:.2f}", rates)
    Console(width=170).print(table)
