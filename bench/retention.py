"""`make bench-retention`: a stream that grows under `--max-bytes 200mb --acked`, for twenty minutes.

It is written in region 1, 50 MB a minute. The group `audit` reads it in region 2. For a while it is slow:
then nothing goes that it needs, and `braid status` says so. Writes docs/drawings/retention.svg.
"""

import argparse
import json
import os
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import redis

import braidstream
from bench.bed import NEWEST
from bench.many import _cpu, _used
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.servers import EVERY, Engine

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "drawings" / "retention.svg"
LIMIT_MB: Final = 200
MB: Final = 2**20
BODY: Final = 8_000
# The parts of the time at which the group becomes slow, and fast again.
SLOW: Final = (0.35, 0.65)
SAMPLE_S, ASK_S = 2.0, 15.0


@dataclass
class Seen:
    """By time (minutes): MB of the stream in each region, MB that the group has not acknowledged; what
    `braid status` said."""

    times: list[float] = field(default_factory=list)
    sizes: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: []})
    behind: list[float] = field(default_factory=list)
    said: list[tuple[float, list[str]]] = field(default_factory=list)


class Work:
    """A writer in region 1, a group in region 2."""

    def __init__(self, engines: list[Engine], seconds: float, mb_a_minute: float) -> None:
        self.engines, self.seconds = engines, seconds
        self.pause_s = BODY / (mb_a_minute * MB / 60)
        self.written = self.acknowledged = 0
        self.began = time.monotonic()
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]

    @property
    def is_slow(self) -> bool:
        return SLOW[0] <= (time.monotonic() - self.began) / self.seconds < SLOW[1]

    def _write(self) -> None:
        with braidstream.Redis.from_url(self.engines[0].url) as client:
            while not self.stop.wait(max(0.0, self.began + self.written * self.pause_s - time.monotonic())):
                with suppress(redis.RedisError):  # the machine is busy: maybe it was written
                    client.xadd("orders", {"body": os.urandom(BODY // 2).hex()})
                self.written += 1

    def _read(self) -> None:
        with braidstream.Redis.from_url(self.engines[1].url) as client:
            while not self.stop.wait(0.5):
                most = max(1, round(0.1 * 0.5 / self.pause_s)) if self.is_slow else round(2 / self.pause_s)
                for _, entries in client.xreadgroup("audit", "ann", {"orders": ">"}, count=most) or ():
                    client.xack("orders", "audit", *(entry for entry, _ in entries))
                    self.acknowledged += len(entries)


def size_mb(engine: Engine) -> float:
    with engine.client() as client:
        keys = [key for key in client.scan_iter(match="bs:*:?:{orders}", count=1000) if b":j:" not in key]
        return sum(client.memory_usage(key, samples=5) or 0 for key in keys) / MB


def waits(config: Path) -> list[str]:
    """What `braid status` says of retention."""
    found = json.loads(braid("status", "--config", str(config), "--json").stdout)["problems"]
    return [f"{each['where']}: {each['text']}" for each in found if each["kind"] == "retention"]


def watch(work: Work, config: Path) -> Seen:
    seen, asked = Seen(), 0.0
    while (now := time.monotonic() - work.began) < work.seconds:
        seen.times.append(now / 60)
        for number, engine in enumerate(work.engines, start=1):
            seen.sizes[number].append(size_mb(engine))
        seen.behind.append((work.written - work.acknowledged) * BODY / MB)
        if now - asked >= ASK_S:
            asked = now
            said = waits(config)
            if not seen.said or seen.said[-1][1] != said:
                print(f"{now / 60:5.1f} min: {'; '.join(said) or 'nothing waits'}", flush=True)
            seen.said.append((now / 60, said))
        time.sleep(SAMPLE_S)
    return seen


def draw(seen: Seen, path: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "braidstream"
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    axes.plot(seen.times, seen.sizes[1], color="#1f6feb", lw=1.6, label="orders in region 1")
    axes.plot(seen.times, seen.sizes[2], color="#2b8a3e", lw=1.2, ls="--", label="orders in region 2")
    axes.plot(seen.times, seen.behind, color="#d9480f", lw=1.6, label="not acknowledged by audit")
    axes.axhline(LIMIT_MB, color="#666666", lw=0.8)
    axes.annotate("--max-bytes 200mb", (0, LIMIT_MB), xytext=(2, 3), textcoords="offset points", fontsize=8)
    top = max(map(max, seen.sizes.values())) * 1.05
    held = [bool(said) for _, said in seen.said]
    axes.fill_between([at for at, _ in seen.said], 0, top, where=held, color="#d9480f", alpha=0.08, lw=0,
                      label="braid status: waits")  # fmt: skip
    axes.set_xlabel("minutes", fontsize=9)
    axes.set_ylabel("MB", fontsize=9)
    axes.set_ylim(0, top)
    axes.set_xlim(0, seen.times[-1])
    axes.grid(visible=True, color="#dddddd", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def report(seen: Seen) -> dict[str, Any]:
    """The largest sizes while nothing waited, and at all."""
    slow_s, fast_s = (part * seen.times[-1] for part in SLOW)
    calm = [at for at, minute in enumerate(seen.times) if minute < slow_s]
    return {
        "largest while the group keeps up (MB)": [
            round(max(sizes[at] for at in calm)) for sizes in seen.sizes.values()
        ],
        "largest (MB)": [round(max(sizes)) for sizes in seen.sizes.values()],
        "at the end (MB)": [round(sizes[-1]) for sizes in seen.sizes.values()],
        "below the limit again after it is fast (s)": round(60 * (_back(seen, fast_s) - fast_s)),
        "said": sorted({line for _, said in seen.said for line in said}),
    }


def _back(seen: Seen, after: float) -> float:
    over = [
        minute for at, minute in enumerate(seen.times) if max(s[at] for s in seen.sizes.values()) > LIMIT_MB
    ]
    return max([after, *(minute for minute in over if minute >= after)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.retention", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--mb-a-minute", type=float, default=50)
    parser.add_argument("--engine", choices=EVERY, default=NEWEST[0])
    parser.add_argument("--picture", type=Path, default=PICTURE)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(chosen.engine)) for _ in range(2)]
        folder = Path(stack.enter_context(TemporaryDirectory()))
        config = write_config(folder / "braid.toml", numbered(engines))
        daemons = [stack.enter_context(Daemon(config, number)) for number in (1, 2)]
        for daemon in daemons:
            daemon.tells("daemon.ready")
        with braidstream.Redis.from_url(engines[1].url) as client:
            client.xgroup_create("orders", "audit", "0", mkstream=True)
        words = (
            "retention",
            "set",
            "orders",
            "--max-bytes",
            f"{LIMIT_MB}mb",
            "--acked",
            "--url",
            engines[0].url,
        )
        assert braid(*words).returncode == 0
        work = Work(engines, 60 * chosen.minutes, chosen.mb_a_minute)
        for thread in work.threads:
            thread.start()
        seen = watch(work, config)
        work.stop.set()
        for thread in work.threads:
            thread.join(30)
        print(f"{work.written:,} entries in {chosen.minutes:g} minutes, {chosen.engine}")
        for what, figure in report(seen).items():
            print(f"{what}: {figure}")
        print(f"CPU of the daemons (s): {[round(_cpu(daemon)) for daemon in daemons]}")
        print(f"used_memory of the engines (MB): {[round(_used(engine) / MB) for engine in engines]}")
        draw(seen, chosen.picture)


if __name__ == "__main__":
    main()
