"""What `compression = "zstd"` between daemons saves and costs: `python -m bench.compression`.

Two regions. The daemon of region 1 sends straight to the engine of region 2, or through the receiver there,
in turns. Bytes are those of the link, as /metrics counts them: without TLS, TCP and IP.

    long     one stream, written while daemon 1 is stopped: pages of many entries
    live     500 entries a second, one by one
    busy     5,000 entries a second, ten at a time
    orders   8 fields that vary as orders do, on average 126 bytes of payload
    random   84 bytes of payload, of which half are random: what compresses badly

The lag is the median time from an XADD to the entry at the peer, one at a time, with nothing else to send.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import Any

from bench.bed import NEWEST
from bench.replication import Bed, arrived, cpu_s
from tests.support.cli import BRAID
from tests.support.daemons import write_config
from tests.support.servers import EVERY, Flavour, free_port

# Writes a second, and the entries of each.
LIVE = {"live": (500, 1), "busy": (500, 10)}
LIVE_S = 8
LAGS = 200
Entries = Iterator[list[bytes]]
_SAMPLE = re.compile(r'^braid_link_(raw|wire)_bytes_total\{.*direction="sent"\} (\S+)$', re.MULTILINE)


def orders(seed: int = 7) -> Entries:
    dice, number = random.Random(seed), 0
    while True:
        number += 1
        about = {
            "order": uuid.UUID(int=dice.getrandbits(128)).hex,
            "customer": f"c-{dice.randrange(5_000_000)}",
            "amount": f"{dice.randrange(100_000) / 100:.2f}",
            "currency": dice.choice(["EUR", "USD"]),
            "status": dice.choice(["new", "paid", "shipped"]),
            "sku": f"SKU-{dice.randrange(40_000):06d}",
            "ts": str(1_794_747_000_000 + number),
            "note": dice.choice(["", "gift", "express delivery"]),
        }
        yield [word.encode() for pair in about.items() for word in pair]


def half_random(seed: int = 7) -> Entries:
    dice = random.Random(seed)
    while True:
        yield [b"kind", b"reading-of-a-sensor-in-hall-4-north", b"raw", dice.randbytes(42)]


KINDS: dict[str, Callable[[], Entries]] = {"orders": orders, "random": half_random}


@dataclass(frozen=True, slots=True)
class Cost:
    """For an entry: bytes before and after (none if sent straight), microseconds of the two daemons."""

    raw: float
    wire: float
    sender_us: float
    receiver_us: float


class Pair(Bed):
    """Two regions and both daemons. is_compressed: region 1 sends through the receiver of region 2."""

    def __init__(self, flavour: Flavour, *, is_compressed: bool) -> None:
        super().__init__(flavour)
        self.is_compressed, self.metrics, self.receiver = is_compressed, free_port(), free_port()

    def __enter__(self) -> "Pair":
        super().__enter__()
        urls = {number: engine.url for number, engine in enumerate(self.engines, start=1)}
        more = {"receiver": {2: f"tcp://127.0.0.1:{self.receiver}"}, "listen": {1: str(self.metrics)}}
        if self.is_compressed:
            more["compression"] = {2: "zstd"}
        write_config(self.config, urls, **more)
        return self

    @contextmanager
    def daemons(self) -> "Iterator[list[subprocess.Popen[str]]]":
        """Of region 1 and of region 2."""
        command = [*BRAID, "replicate", "--json", "--config", str(self.config), "--region"]
        words = (["region-1"], ["region-2", "--receive", str(self.receiver)])
        running = [
            subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for more in words
        ]
        try:
            for each in running:
                assert each.stdout is not None
                each.stdout.readline()
            yield running
        finally:
            for each in running:
                each.terminate()
                each.communicate()

    def sent(self) -> dict[str, float]:
        """Bytes of the link so far, by `raw` and `wire`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as page:
            return {state: float(value) for state, value in _SAMPLE.findall(page.read().decode())}

    def append(self, entries: Entries) -> None:
        pipe: Any = self.source.pipeline(transaction=False)
        for words in entries:
            pipe.execute_command("XADD", "bs:1:s:{s0}", "*", *words)
        pipe.execute()

    def wait(self, entries: int) -> None:
        while arrived(self.target, 1) < entries:
            time.sleep(0.05)


def measure(
    flavour: Flavour, kind: str, entries: int, *, is_compressed: bool
) -> tuple[dict[str, Cost], float]:
    """The costs by load, and the lag in milliseconds."""
    found, made = dict[str, Cost](), KINDS[kind]()
    with Pair(flavour, is_compressed=is_compressed) as bed, bed.daemons() as (sender, receiver):
        bed.world[1].xadd("s0", {"n": "0"})
        bed.wait(1)

        def spent(work: Callable[[], None], count: int) -> Cost:
            def now() -> list[float]:
                cpu = [cpu_s(each.pid) * 1e6 for each in (sender, receiver)]
                sent = bed.sent()
                return [sent.get("raw", 0.0), sent.get("wire", 0.0), *cpu]

            before = now()
            work()
            return Cost(*((end - start) / count for start, end in zip(before, now(), strict=True)))

        def catch_up() -> None:
            os.kill(sender.pid, signal.SIGSTOP)
            while left := [*islice(made, min(1_000, entries + 1 - arrived(bed.source, 1)))]:
                bed.append(iter(left))
            os.kill(sender.pid, signal.SIGCONT)
            bed.wait(1 + entries)

        def write(rate: int, size: int) -> None:
            start, there = time.monotonic(), arrived(bed.source, 1)
            for number in range(rate * LIVE_S):
                time.sleep(max(0.0, start + number / rate - time.monotonic()))
                bed.append(islice(made, size))
            bed.wait(there + rate * LIVE_S * size)

        found["long"] = spent(catch_up, entries)
        for load, (rate, size) in LIVE.items():
            found[load] = spent(partial(write, rate, size), rate * LIVE_S * size)
        return found, statistics.median(lag(bed, made) for _ in range(LAGS))


def lag(bed: Pair, made: Entries) -> float:
    there, start = arrived(bed.target, 1), time.perf_counter()
    bed.append(islice(made, 1))
    while arrived(bed.target, 1) == there:
        pass
    return (time.perf_counter() - start) * 1_000


def _how(is_compressed: bool) -> str:
    return "zstd" if is_compressed else "straight"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compression", description=__doc__)
    parser.add_argument("--engine", choices=EVERY, default=NEWEST[0])
    parser.add_argument("--entries", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    found, lags = dict[tuple[str, str, bool], list[Cost]](), dict[tuple[str, bool], list[float]]()
    for number in range(chosen.rounds):
        for kind in KINDS:
            for is_compressed in (True, False) if number % 2 else (False, True):
                costs, lag_ms = measure(chosen.engine, kind, chosen.entries, is_compressed=is_compressed)
                lags.setdefault((kind, is_compressed), []).append(lag_ms)
                for load, cost in costs.items():
                    found.setdefault((kind, load, is_compressed), []).append(cost)
                print(kind, _how(is_compressed), costs, f"lag {lag_ms:.2f} ms", flush=True)
    for (kind, load, is_compressed), some in sorted(found.items()):
        names = [each.name for each in fields(Cost)]
        medians = {name: round(statistics.median(getattr(cost, name) for cost in some), 2) for name in names}
        print(json.dumps({"entries": kind, "load": load, "link": _how(is_compressed), **medians}))
    for (kind, is_compressed), times in sorted(lags.items()):
        ms = round(statistics.median(times), 2)
        print(json.dumps({"entries": kind, "link": _how(is_compressed), "lag_ms": ms}))
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
