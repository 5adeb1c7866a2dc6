"""`make bench-replication`: catch-up, lag and cost of replication, with real daemons on real engines.

Catch-up and lag are absolute, so the machine's load is told with them. The cost to the source is a ratio,
measured in turns: redis-benchmark against the region's engine with its daemon stopped (SIGSTOP) and running.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import redis
from rich.console import Console
from rich.table import Table

from bench.bed import NEWEST
from braidstream.replication.daemon.leases import RENEW_S
from tests.support.cli import BRAID
from tests.support.daemons import write_config
from tests.support.replicas import replica_of
from tests.support.servers import EVERY, Engine, Flavour
from tests.support.world import World

RESULTS = Path(__file__).parent / "results" / "replication.json"
FIELDS = ("order", "0123456789abcdef", "customer", "c-4711-0815", "amount", "129.90", "currency", "EUR")
ONE_WAY_MS = 50
RATE = 5_000
SHARED_STREAMS, SHARED_ENTRIES = 200, 50_000


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = True

    @property
    def ok(self) -> bool:
        return self.goal is None or (self.value >= self.goal if self.at_least else self.value <= self.goal)


class Bed:
    """A region, its peers, and its daemon. The peers may be behind a delay."""

    def __init__(
        self, flavour: Flavour, peers: int = 1, *, one_way_ms: int = 0, durability: str | None = None
    ) -> None:
        self.engines = [Engine(flavour) for _ in range(peers + 1)]
        self.one_way_ms, self.durability = one_way_ms, durability
        self._stack = ExitStack()

    def __enter__(self) -> "Bed":
        for engine in self.engines:
            self._stack.enter_context(engine)
        if self.durability:
            self._stack.enter_context(replica_of(self.engines[0]))
        self.world = World(self.engines)
        self.source, self.target = self.engines[0].client(), self.engines[1].client()
        self._stack.callback(self.world.close)
        folder = Path(self._stack.enter_context(TemporaryDirectory()))
        ports = [self.engines[0].port, *(self._port(engine) for engine in self.engines[1:])]
        self.config = folder / "braid.toml"
        urls = {number: f"redis://127.0.0.1:{port}" for number, port in enumerate(ports, start=1)}
        write_config(self.config, urls, durability={1: self.durability} if self.durability else {})
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _port(self, engine: Engine) -> int:
        if not self.one_way_ms:
            return engine.port
        command = [sys.executable, "-m", "bench.delay", str(engine.port), str(self.one_way_ms)]
        proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._stack.callback(lambda: (proxy.kill(), proxy.communicate()))
        assert proxy.stdout is not None
        return int(proxy.stdout.readline())

    @contextmanager
    def daemon(self, *, numpy: bool = True) -> "Iterator[subprocess.Popen[str]]":
        """numpy: without it, pages are parsed."""
        command = [*BRAID, "replicate", "--json"]
        command += ["--config", str(self.config), "--region", "region-1"]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ if numpy else without_numpy(self.config.parent),
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.terminate()
            process.communicate()

    def fill(self, entries: int, streams: int) -> None:
        for number in range(streams):
            self.world[1].xadd(f"s{number}", dict(zip(FIELDS[::2], FIELDS[1::2], strict=True)))
        pipe = self.source.pipeline(transaction=False)
        for number in range(streams, entries):
            pipe.execute_command("XADD", f"bs:1:s:{{s{number % streams}}}", "*", *FIELDS)
            if number % 5_000 == 0:
                pipe.execute()
        pipe.execute()


def without_numpy(folder: Path) -> dict[str, str]:
    """An environment in which `import numpy` fails."""
    (folder / "numpy.py").write_text("raise ModuleNotFoundError('hidden', name='numpy')\n")
    return {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


def arrived(client: redis.Redis, streams: int) -> int:
    pipe = client.pipeline(transaction=False)
    for number in range(streams):
        pipe.execute_command("XLEN", f"bs:1:s:{{s{number}}}")
    return sum(pipe.execute())


def appended(client: redis.Redis) -> int:
    """How many entries its server has appended since its start: one command, whatever number of streams."""
    xadd = client.info("commandstats").get("cmdstat_xadd")
    return xadd["calls"] if xadd else 0


def catch_up(
    flavour: Flavour, entries: int, streams: int, *, one_way_ms: int = 0, durability: str | None = None
) -> float:
    """Entries a second, from the first that arrives to the last."""
    with Bed(flavour, one_way_ms=one_way_ms, durability=durability) as bed:
        bed.fill(entries, streams)
        marks: list[tuple[float, int]] = []

        def watch() -> None:
            while not marks or marks[-1][1] < entries:
                marks.append((time.perf_counter(), appended(bed.target)))
                time.sleep(0.02)
            assert arrived(bed.target, streams) == entries

        watcher = threading.Thread(target=watch)
        watcher.start()
        with bed.daemon():
            watcher.join()
        moving = [mark for mark in marks if mark[1]]
        return (moving[-1][1] - moving[0][1]) / (moving[-1][0] - moving[0][0])


def lag(
    flavour: Flavour, seconds: float, *, one_way_ms: int = 0, durability: str | None = None
) -> tuple[float, float]:
    """p50 and p99 in milliseconds, from before XADD to a reader at the peer, at RATE entries a second."""
    with Bed(flavour, one_way_ms=one_way_ms, durability=durability) as bed, bed.daemon():
        bed.world[1].xadd("s0", {"t": "0"})
        while not arrived(bed.target, 1):
            time.sleep(0.01)
        seen: list[float] = []
        done = threading.Event()

        def read() -> None:
            last: bytes | str = "$"
            while not done.is_set():
                reply = bed.target.execute_command(
                    "XREAD", "COUNT", 1000, "BLOCK", 200, "STREAMS", "bs:1:s:{s0}", last
                )
                now = time.time()
                for entry, fields in _entries(reply):
                    seen.append(now - float(fields[b"t"]))
                    last = entry

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.3)
        start, sent = time.time(), 0
        while time.time() - start < seconds:
            due = int((time.time() - start) * RATE)
            pipe = bed.source.pipeline(transaction=False)
            for _ in range(due - sent):
                pipe.execute_command("XADD", "bs:1:s:{s0}", "*", "t", repr(time.time()), "p", "x" * 60)
            pipe.execute()
            sent = due
            time.sleep(0.001)
        while len(seen) < sent:
            time.sleep(0.05)
        done.set()
        reader.join()
        cuts = statistics.quantiles(seen, n=100)
        return cuts[49] * 1000, cuts[98] * 1000


def _entries(reply: object) -> list[tuple[bytes, dict[bytes, bytes]]]:
    if not reply:
        return []
    [(_, entries)] = reply.items() if isinstance(reply, dict) else reply  # type: ignore[misc]
    return entries[0] if isinstance(reply, dict) else entries


def cost(flavour: Flavour, peers: int, rounds: int, requests: int) -> tuple[float, float]:
    """XADD's rate with the daemon running over its rate with the daemon stopped; the same for engine CPU."""
    with Bed(flavour, peers=peers) as bed, bed.daemon() as daemon:
        bed.world[1].xadd("s0", {"t": "0"})
        rates, loads = [], []
        for number in range(rounds):
            turns = {}
            for stopped in (number % 2 == 0, number % 2 == 1):
                os.kill(daemon.pid, signal.SIGSTOP if stopped else signal.SIGCONT)
                turns[stopped] = _benchmark(bed, requests)
                os.kill(daemon.pid, signal.SIGCONT)
                while arrived(bed.target, 1) < arrived(bed.source, 1):
                    time.sleep(0.05)
            rates.append(turns[False][0] / turns[True][0])
            loads.append(turns[False][1] / turns[True][1])
        return statistics.median(rates), statistics.median(loads)


def link_cost(flavour: Flavour, entries: int, peers: int, *, numpy: bool) -> tuple[float, float]:
    """CPU of catch-up per entry, in microseconds: of the daemon for all peers, of one peer's engine."""
    with Bed(flavour, peers) as bed, bed.daemon(numpy=numpy) as daemon:
        bed.world[1].xadd("s0", dict(zip(FIELDS[::2], FIELDS[1::2], strict=True)))
        targets = [engine.client() for engine in bed.engines[1:]]
        while min(arrived(target, 1) for target in targets) < 1:
            time.sleep(0.02)
        os.kill(daemon.pid, signal.SIGSTOP)
        bed.fill(entries, 1)
        before = cpu_s(daemon.pid), cpu_s(bed.engines[1].pid)
        os.kill(daemon.pid, signal.SIGCONT)
        while min(arrived(target, 1) for target in targets) < entries:
            time.sleep(0.1)
        after = cpu_s(daemon.pid), cpu_s(bed.engines[1].pid)
        return (after[0] - before[0]) * 1e6 / entries, (after[1] - before[1]) * 1e6 / entries


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def link_figures(flavour: Flavour, quick: bool) -> Iterator[Figure]:
    """CPU for an entry, of the daemon and of a peer, in turns: with numpy (spliced) and without (parsed)."""
    ways = [(peers, numpy) for peers in (1, 4) for numpy in (True, False)]
    found = dict[tuple[int, bool], list[tuple[float, float]]]()
    for _ in range(3 if quick else 5):
        for peers, numpy in ways:
            cost = link_cost(flavour, 100_000 if quick else 300_000, peers, numpy=numpy)
            found.setdefault((peers, numpy), []).append(cost)
    daemon, engine = (
        {way: statistics.median(cost[place] for cost in costs) for way, costs in found.items()}
        for place in (0, 1)
    )
    for peers, numpy in ways:
        how = f"{peers} peer(s), {'spliced' if numpy else 'parsed'}"
        yield Figure(f"{flavour}: daemon CPU per entry, {how}", daemon[peers, numpy], "us")
    for peers in (1, 4):
        ratio = daemon[peers, True] / daemon[peers, False]
        yield Figure(f"{flavour}: spliced, of parsed, {peers} peer(s)", ratio, "ratio")
    four = daemon[4, True] / daemon[1, True]
    yield Figure(f"{flavour}: spliced, four peers, of one", four, "ratio", 1.5, at_least=False)
    saved = engine[1, True] / engine[1, False]
    yield Figure(f"{flavour}: a peer's engine, spliced, of parsed", saved, "ratio", 0.75, at_least=False)


def shared_cost(flavour: Flavour, daemons: int) -> list[float]:
    """CPU per entry, in microseconds, of each daemon of a region. They share its streams."""
    with Bed(flavour) as bed, ExitStack() as stack:
        processes = [stack.enter_context(bed.daemon()) for _ in range(daemons)]
        bed.fill(SHARED_STREAMS, SHARED_STREAMS)
        while arrived(bed.target, SHARED_STREAMS) < SHARED_STREAMS:
            time.sleep(0.02)
        time.sleep(2 * RENEW_S)  # until each knows its share
        before = [cpu_s(process.pid) for process in processes]
        bed.fill(SHARED_ENTRIES, SHARED_STREAMS)
        while arrived(bed.target, SHARED_STREAMS) < SHARED_STREAMS + SHARED_ENTRIES:
            time.sleep(0.05)
        after = [cpu_s(process.pid) for process in processes]
        return [(end - start) * 1e6 / SHARED_ENTRIES for start, end in zip(before, after, strict=True)]


def shared_figures(flavour: Flavour, quick: bool) -> Iterator[Figure]:
    """What two daemons of one region cost, and how evenly they share: one and two in turns."""
    found = dict[int, list[list[float]]]()
    for number in range(3 if quick else 5):
        for daemons in (1, 2) if number % 2 else (2, 1):
            found.setdefault(daemons, []).append(shared_cost(flavour, daemons))
    alone = statistics.median(sum(costs) for costs in found[1])
    both = statistics.median(sum(costs) for costs in found[2])
    share = statistics.median(max(costs) / sum(costs) for costs in found[2])
    where = f"{SHARED_STREAMS} streams"
    yield Figure(f"{flavour}: daemon CPU per entry, {where}, one daemon", alone, "us")
    yield Figure(f"{flavour}: the same, two daemons together", both, "us")
    yield Figure(f"{flavour}: two daemons together, of one", both / alone, "ratio")
    yield Figure(f"{flavour}: the larger share of two daemons", share, "ratio", 0.6, at_least=False)


def _benchmark(bed: Bed, requests: int) -> tuple[float, float]:
    before = bed.source.info("cpu")
    command = ["redis-benchmark", "-p", str(bed.engines[0].port), "-n", str(requests), "-c", "50", "-q"]
    words = ["XADD", "bs:1:s:{s0}", "*", *FIELDS]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    after = bed.source.info("cpu")
    used = sum(after[field] - before[field] for field in ("used_cpu_user", "used_cpu_sys"))
    rate = re.findall(r"([0-9.]+) requests per second", done.stdout.replace("\r", "\n"))[-1]
    return float(rate), used / requests


def figures(flavour: Flavour, quick: bool) -> Iterator[Figure]:
    entries = 100_000 if quick else 1_000_000
    for streams in (1, 1_000):
        rate = catch_up(flavour, entries, streams)
        name = f"{flavour}: catch-up of {entries:,} entries in {streams:,} stream{'s' * (streams > 1)}"
        yield Figure(name, rate, "entries/s", 150_000)
        if streams == 1:
            base = rate
    far = catch_up(flavour, entries, 1, one_way_ms=ONE_WAY_MS)
    yield Figure(f"{flavour}: catch-up at 100 ms round trip, of loopback's", far / base, "ratio", 0.8)
    seconds = 3 if quick else 20
    p50, p99 = lag(flavour, seconds)
    yield Figure(f"{flavour}: lag at {RATE:,} entries/s, p50", p50, "ms", 2, at_least=False)
    yield Figure(f"{flavour}: lag at {RATE:,} entries/s, p99", p99, "ms", 20, at_least=False)
    p50, p99 = lag(flavour, seconds, one_way_ms=ONE_WAY_MS)
    yield Figure(f"{flavour}: the same at 100 ms round trip, p50", p50, "ms", ONE_WAY_MS + 10, at_least=False)
    yield Figure(f"{flavour}: the same at 100 ms round trip, p99", p99, "ms")
    for peers in (1, 4):
        rate, load = cost(flavour, peers, 2 if quick else 8, 20_000 if quick else 100_000)
        yield Figure(f"{flavour}: XADD rate with {peers} peer(s), of the rate without", rate, "ratio", 0.85)
        yield Figure(f"{flavour}: engine CPU per XADD with {peers} peer(s)", load, "ratio")


def gate_figures(flavour: Flavour, quick: bool) -> Iterator[Figure]:
    """What waiting for a replica costs: with and without in turns, each with a replica."""
    turns, entries, seconds = (3, 100_000, 3) if quick else (5, 500_000, 10)
    lags, rates = dict[str, list[tuple[float, float]]](), dict[str, list[float]]()
    for number in range(turns):
        for durability in ("none", "replicas:1") if number % 2 else ("replicas:1", "none"):
            lags.setdefault(durability, []).append(lag(flavour, seconds, durability=durability))
            rates.setdefault(durability, []).append(catch_up(flavour, entries, 1, durability=durability))
    for place, name in enumerate(("p50", "p99")):
        free, gated = (statistics.median(each[place] for each in lags[how]) for how in ("none", "replicas:1"))
        yield Figure(f"{flavour}: lag {name} with a replica, durability none", free, "ms")
        yield Figure(f"{flavour}: lag {name}, durability replicas:1", gated, "ms")
        goal = 1.0 if name == "p50" else None
        yield Figure(
            f"{flavour}: what the gate adds to the lag {name}", gated - free, "ms", goal, at_least=False
        )
    free, gated = (statistics.median(rates[how]) for how in ("none", "replicas:1"))
    yield Figure(f"{flavour}: catch-up with the gate, of the rate without", gated / free, "ratio", 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replication", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, about a minute")
    parser.add_argument("--engine", choices=EVERY, action="append", help="another one")
    parser.add_argument("--gate", action="store_true", help="only what waiting for a replica costs")
    parser.add_argument("--cpu", action="store_true", help="only the CPU of links for an entry")
    parser.add_argument("--daemons", action="store_true", help="only how two daemons share the work")
    chosen = parser.parse_args()
    only = [
        part
        for part, is_chosen in (
            (gate_figures, chosen.gate),
            (link_figures, chosen.cpu),
            (shared_figures, chosen.daemons),
        )
        if is_chosen
    ]
    console, measured = Console(width=120), list[Figure]()
    for flavour in chosen.engine or NEWEST:
        parts = only or [figures, gate_figures, link_figures, shared_figures]
        for figure in chain.from_iterable(part(flavour, chosen.quick) for part in parts):
            measured.append(figure)
            console.print(f"{figure.name}: {figure.value:,.2f} {figure.unit}", highlight=False)
    table = Table(
        "figure", "value", "goal", title=f"load of the machine: {os.getloadavg()[0]:.1f} on 2 cores"
    )
    for each in measured:
        goal = "" if each.goal is None else f"{'>=' if each.at_least else '<='} {each.goal:,g}"
        colour = "green" if each.ok else "red"
        table.add_row(each.name, f"[{colour}]{each.value:,.2f} {each.unit}[/]", goal)
    console.print(table)
    if not (chosen.quick or only):
        RESULTS.write_text(json.dumps([asdict(each) for each in measured], indent=1) + "\n")


if __name__ == "__main__":
    main()
