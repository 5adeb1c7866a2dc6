"""`make bench-scale`: the constants of docs/design/scale.md. Writes bench/results/scale.json.

That file is committed, and scripts/scale.py computes the tables of the page from it. All constants are CPU
time for an entry, or bytes: other load on the machine changes them less than it changes rates.
"""

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import redis

from bench import gateway
from bench.bed import Bed as Alone
from bench.replication import Bed as Linked
from bench.replication import cpu_s
from braidstream.model.ids import ZERO
from braidstream.model.strand import Strand
from tests.support.regions import apply
from tests.support.servers import EVERY, Flavour

RESULTS = Path(__file__).parent / "results" / "scale.json"
# Names and values together: 200 bytes.
FIELDS = (
    "order", "0123456789abcdef0123456789abcdef", "customer", "c-4711-0815-2342-1701-0001",
    "amount", "129.90", "currency", "EUR", "items", "4711x2,0815x1,2342x3,1701x1",
    "note", "leave it at the door, ring twice, thanks", "channel", "web-checkout-2026-11-16",
)  # fmt: skip
PEERS = 4
STRANDS = PEERS + 1
COUNT = 100


class Constants:
    """Values by name: all that were measured, of which the median counts."""

    def __init__(self) -> None:
        self.found = dict[str, list[float]]()

    def add(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)
        print(f"{name}: {value:,.2f}", flush=True)

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(values), 3) for name, values in self.found.items()}


def long_pages(flavour: Flavour, peers: int, entries: int, found: Constants) -> None:
    """One stream, which a daemon copies to its peers after it was stopped.

    Few entries: with 300,000, the peers received half as many bytes again. The cause is not known.
    """
    with Linked(flavour, peers) as bed, bed.daemon() as daemon:
        name = "long"
        _first(bed, [name])
        os.kill(daemon.pid, signal.SIGSTOP)
        before = _engine_us(bed.source), bed.source.info("memory")["used_memory"]
        _fill(bed.source, [name], entries)
        if peers == PEERS:
            found.add("engine_append_us", (_engine_us(bed.source) - before[0]) / entries)
            found.add("entry_bytes", (bed.source.info("memory")["used_memory"] - before[1]) / entries)
        spent = _spent(bed, daemon.pid, lambda: _wait(bed, [name], 1 + entries))
        found.add(f"daemon_{peers}_us", spent["daemon"] / entries)
        if peers == PEERS:
            found.add("engine_send_us", spent["source"] / entries)
            found.add("engine_apply_us", spent["target"] / entries)
            found.add("wire_bytes", spent["wire"] / entries)


def short_visits(flavour: Flavour, streams: int, rounds: int, found: Constants) -> None:
    """Many streams, each with one new entry: what a visit of a stream costs, for all peers together."""
    with Linked(flavour, PEERS) as bed, bed.daemon() as daemon:
        names = [f"short-{number}" for number in range(streams)]
        _first(bed, names)
        for number in range(1, rounds + 1):
            _until_quiet(daemon.pid)
            os.kill(daemon.pid, signal.SIGSTOP)
            _fill(bed.source, names, streams)

            def done(number: int = number) -> None:
                _wait(bed, names, streams * (1 + number))
                _until_quiet(daemon.pid)

            spent = _spent(bed, daemon.pid, done)
            found.add("daemon_visit_us", spent["daemon"] / streams)
            found.add("engine_visit_us", spent["source"] / streams)
            found.add("engine_visited_us", spent["target"] / streams)


def one_region(flavour: Flavour, entries: int, found: Constants) -> None:
    """A region without peers against a bare engine; and a group that reads the strands of five regions."""
    with Alone(flavour) as bed:
        ours, bare = bed.ours(), bed.bare()
        ours.xadd("kept", {"n": 1})
        keys = [key for key in bare.scan_iter("*{kept}*") if key != b"bs:1:s:{kept}"]
        found.add("stream_bytes", sum(bare.memory_usage(key) or 0 for key in keys))
        costs = dict[str, float]()
        for client, name in ((ours, "ours"), (bare, "bare")):
            before = bed.engine_cpu()
            for _ in range(entries // 500):
                pipe = client.pipeline(transaction=False)
                for _ in range(500):
                    pipe.execute_command("XADD", name, "*", *FIELDS)
                pipe.execute()
            costs[name] = bed.engine_cpu() - before
        found.add("alone_engine_ratio", costs["ours"] / costs["bare"])
        _group(bed, entries, found)


def _group(bed: Alone, entries: int, found: Constants) -> None:
    bare = bed.bare()
    bare.hset("bs:config", "writers", " ".join(str(writer) for writer in range(1, STRANDS + 1)))
    client = bed.ours()
    words = [word.encode() for word in FIELDS]
    for writer in range(1, STRANDS + 1):
        mine = iter([((1_700_000_000_000 + n, 0), words) for n in range(writer, entries, STRANDS)])
        after = ZERO
        while batch := list(islice(mine, 500)):
            client.run_plan(apply(Strand(b"all", "s", writer), batch, after))
            after = batch[-1][0]
    client.xgroup_create("all", "g", "0")
    before, read = bed.engine_cpu(), 0
    while reply := client.xreadgroup("g", "c", {"all": ">"}, count=COUNT):
        [entries_read] = reply.values() if isinstance(reply, dict) else [each[1] for each in reply]
        entries_read = entries_read[0] if isinstance(reply, dict) else entries_read
        client.xack("all", "g", *(entry for entry, _ in entries_read))
        read += len(entries_read)
    found.add("engine_group_us", (bed.engine_cpu() - before) * 1e6 / read)


def gateways(flavour: Flavour, *, quick: bool, found: Constants) -> None:
    """CPU of gateways for an XADD: of one alone, and of two on one port."""
    for each in gateway.measure_shared(flavour, quick=quick):
        for count, turns in each.rounds.items():
            cpu_us = statistics.median(turn.cpu_us for turn in turns)
            found.add(f"gateway_{count}_pipeline_{each.pipeline}_us", cpu_us)


def _first(bed: Linked, names: Sequence[str]) -> None:
    """Every stream with one entry, in all regions."""
    for some in _parts(names):
        pipe = bed.world[1].pipeline(transaction=False)
        for name in some:
            pipe.xadd(name, dict(zip(FIELDS[::2], FIELDS[1::2], strict=True)))
        pipe.execute()
    _wait(bed, names, len(names))


def _fill(client: "redis.Redis", names: Sequence[str], entries: int) -> None:
    """Entries in turns, past the clients: straight into the strands of region 1."""
    for some in _parts(range(entries)):
        pipe = client.pipeline(transaction=False)
        for number in some:
            pipe.execute_command("XADD", f"bs:1:s:{{{names[number % len(names)]}}}", "*", *FIELDS)
        pipe.execute()


def _wait(bed: Linked, names: Sequence[str], entries: int) -> None:
    for engine in bed.engines[1:]:
        client = engine.client()
        while sum(_lengths(client, names)) < entries:
            time.sleep(0.2)


def _lengths(client: "redis.Redis", names: Sequence[str]) -> Iterable[int]:
    for some in _parts(names, 2_000):
        pipe = client.pipeline(transaction=False)
        for name in some:
            pipe.xlen(f"bs:1:s:{{{name}}}")
        yield sum(pipe.execute())


def _spent(bed: Linked, pid: int, done: Callable[[], None]) -> dict[str, float]:
    """Microseconds of the daemon, the source and a peer from SIGCONT until done, and bytes to that peer."""

    def now() -> dict[str, float]:
        return {
            "daemon": cpu_s(pid) * 1e6,
            "source": _engine_us(bed.source),
            "target": _engine_us(bed.target),
            "wire": bed.target.info("stats")["total_net_input_bytes"],
        }

    before = now()
    os.kill(pid, signal.SIGCONT)
    done()
    after = now()
    return {name: after[name] - before[name] for name in before}


def _until_quiet(pid: int) -> None:
    """Comparisons follow the entries. Then a daemon needs less than a tenth of a core."""
    while True:
        before = cpu_s(pid)
        time.sleep(1)
        if cpu_s(pid) - before < 0.1:
            return


def _engine_us(client: "redis.Redis") -> float:
    used = client.info("cpu")
    return (used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6


def _parts(items: Sequence[object], size: int = 500) -> Iterable[Sequence[object]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--engine", choices=EVERY, default="redis-8.10")
    parser.add_argument("--quick", action="store_true", help="small numbers; writes nothing")
    chosen = parser.parse_args()
    found, loads = Constants(), list[float]()
    assert sum(map(len, FIELDS)) == 200
    part = 5 if chosen.quick else 1
    for rounds in range(1, 2 if chosen.quick else 4):
        for peers in (1, PEERS):
            long_pages(chosen.engine, peers, 60_000 // part, found)
        short_visits(chosen.engine, 1_000 // part, 1, found)
        one_region(chosen.engine, 20_000 // part, found)
        gateways(chosen.engine, quick=True, found=found)
        loads.append(os.getloadavg()[0])
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "command": "python -m bench.scale",
            "rounds": rounds,
            "engine": chosen.engine,
            "payload_bytes": sum(map(len, FIELDS)),
            "cores": os.cpu_count(),
            "load": round(statistics.median(loads), 1),
        }
        if not chosen.quick:
            RESULTS.write_text(json.dumps({"measured": about, "constants": found.medians()}, indent=1) + "\n")
            print(f"written to {RESULTS}. Then: make docs-scale", flush=True)


if __name__ == "__main__":
    main()
