"""`make bench-many`: three regions with many small streams: memory, CPU of the daemons, lag.

Every stream has one entry, a third of them written in each region. CPU seconds are those of one daemon. Then
entries are written in the first region, to streams at random (active.py).
"""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.active import RATES, SECONDS, ages, write_once
from bench.bed import NEWEST
from tests.support.daemons import Daemon, write_config
from tests.support.servers import EVERY, Engine
from tests.support.world import World

REGIONS = 3
IDLE_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.many", description=__doc__)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--engine", choices=EVERY, default=NEWEST[0])
    chosen = parser.parse_args()
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(chosen.engine)) for _ in range(REGIONS)]
        folder = Path(stack.enter_context(TemporaryDirectory()))
        world = World(engines)
        stack.callback(world.close)
        before = [_used(engine) for engine in engines]
        for region in world:
            write_once(world[region], range(region - 1, chosen.streams, REGIONS))
        urls = {number: engine.url for number, engine in enumerate(engines, start=1)}
        config = write_config(folder / "braid.toml", urls)
        daemons = [stack.enter_context(Daemon(config, number)) for number in range(1, REGIONS + 1)]
        print(f"{chosen.streams:,} streams, {REGIONS} regions, {chosen.engine}")
        took_s = _until(lambda: all(_streams(engine) >= chosen.streams for engine in engines))
        _until(lambda: all(daemon.said("daemon.ready") for daemon in daemons))
        _tell("until every region has every stream", f"{took_s:.0f} s")
        _tell("CPU of a daemon until then and ready", _shown([_cpu(daemon) for daemon in daemons], "s"))
        _tell("memory of a daemon", _shown([_resident_mb(daemon) for daemon in daemons], "MB"))
        spent = [_used(engine) - empty for engine, empty in zip(engines, before, strict=True)]
        _tell("engine memory a stream", _shown([each / chosen.streams for each in spent], "bytes"))
        _until(lambda: _is_quiet(daemons))
        began = [_cpu(daemon) for daemon in daemons]
        time.sleep(IDLE_S)
        idle = [100 * (_cpu(daemon) - cpu) / IDLE_S for daemon, cpu in zip(daemons, began, strict=True)]
        _tell("CPU of an idle daemon", _shown(idle, "% of a core"))
        first = daemons[0]
        write_once(world[1], range(chosen.streams))  # from now on only entries are added
        _until(lambda: _is_quiet(daemons))
        for rate in RATES:
            cpu = _cpu(first)
            with engines[1].client() as target:
                p50, p99 = ages(world[1], target, chosen.streams, rate)
            _until(lambda: _is_quiet(daemons))
            spent_us = (_cpu(first) - cpu) * 1e6 / (rate * SECONDS)
            _tell(f"{rate:,} entries/s, lag p50 and p99", f"{p50:.1f} ms, {p99:.1f} ms")
            _tell("CPU of that daemon for an entry, with all that follows", f"{spent_us:.0f} us")
        first.kill()
        ready = len(first.said("daemon.ready"))
        first.start()
        took_s = _until(lambda: len(first.said("daemon.ready")) > ready)
        _tell("a restarted daemon is ready after", f"{took_s:.1f} s, {_cpu(first):.1f} s CPU")


def _tell(what: str, figure: str) -> None:
    """At once: the whole takes a quarter of an hour."""
    print(f"{what:<56} {figure}", flush=True)


def _streams(engine: Engine) -> int:
    with engine.client() as client:
        return int(client.dbsize()) // 2  # a registry and one strand each


def _used(engine: Engine) -> int:
    with engine.client() as client:
        return int(client.info("memory")["used_memory"])


def _cpu(daemon: Daemon) -> float:
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident_mb(daemon: Daemon) -> float:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _is_quiet(daemons: list[Daemon]) -> bool:
    before = [_cpu(daemon) for daemon in daemons]
    time.sleep(5)
    return all(_cpu(daemon) - cpu < 0.5 for daemon, cpu in zip(daemons, before, strict=True))


def _until(done: Callable[[], bool], within_s: float = 1800) -> float:
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"not done after {within_s:g} s")
        time.sleep(0.2)
    return time.monotonic() - began


def _shown(values: list[float], unit: str) -> str:
    return " / ".join(f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in values) + f" {unit}"


if __name__ == "__main__":
    main()
