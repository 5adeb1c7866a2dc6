"""`make bench-later`: many entries wait for later, in two regions with real daemons.

100,000 entries become due, 1,000 a second: how late they appear. Then 1,000,000 wait: memory of the daemon
that promotes them, its idle CPU, and the time until one that was started again promotes.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import braidstream
from bench.bed import NEWEST
from bench.many import _cpu, _resident_mb, _tell, _until, _used
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.servers import EVERY, Engine

AT_ONCE = 1_000
BODY = "0123456789abcdef" * 4
IDLE_S = 60.0
YEAR_MS = 365 * 86_400_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.later", description=__doc__)
    parser.add_argument("--due", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--engine", choices=EVERY, default=NEWEST[0])
    chosen = parser.parse_args()
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(chosen.engine)) for _ in range(2)]
        folder = Path(stack.enter_context(TemporaryDirectory()))
        config = write_config(folder / "braid.toml", numbered(engines))
        daemons = [stack.enter_context(Daemon(config, number)) for number in (1, 2)]
        for daemon in daemons:
            daemon.tells("daemon.ready")
        one, two = (
            stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True))
            for engine in engines
        )
        print(f"{chosen.engine}, two regions, entries of {len(BODY)} bytes")
        _tell("memory of a daemon before", f"{_resident_mb(daemons[0]):.0f} MB")
        _measure_lateness(one, two, engines, daemons, chosen.due, chosen.rate)
        _measure_waiting(one, two, engines, daemons, chosen.waiting)


def _write(client: braidstream.Redis, name: str, count: int, due_ms: Callable[[int], int]) -> None:
    for first in range(0, count, AT_ONCE):
        with client.pipeline(transaction=False) as pipe:
            for number in range(first, min(count, first + AT_ONCE)):
                pipe.xadd(f"{{{name}}}.later", {"later.at": due_ms(number), "n": number, "body": BODY})
            pipe.execute()


def _measure_lateness(
    one: braidstream.Redis,
    two: braidstream.Redis,
    engines: list[Engine],
    daemons: list[Daemon],
    count: int,
    rate: int,
) -> None:
    """Half a minute to write them, and for region 2 to get them."""
    first_ms = round(time.time() * 1000) + 30_000 + count // 5
    _write(one, "orders", count, lambda number: first_ms + 1000 * number // rate)
    _until(lambda: two.xlen("{orders}.later") == count)
    assert time.time() * 1000 < first_ms, "the machine is too slow for this bench"
    time.sleep(first_ms / 1000 - time.time())
    began = [_cpu(daemon) for daemon in daemons], [_engine_s(engine) for engine in engines]
    _until(lambda: two.xlen("orders") == count and two.xlen("{orders}.later") == 0)
    spent = [
        [now - then for now, then in zip(each, before, strict=True)]
        for each, before in zip(
            ([_cpu(daemon) for daemon in daemons], [_engine_s(engine) for engine in engines]),
            began,
            strict=True,
        )
    ]
    late_ms, last = list[int](), "-"
    while page := one.xrange("orders", last, "+", count=AT_ONCE):
        late_ms += [
            int(entry.partition("-")[0]) - first_ms - 1000 * int(each["n"]) // rate for entry, each in page
        ]
        last = f"({page[-1][0]}"
    assert len(late_ms) == count
    assert min(late_ms) >= 0, "early"
    parts = quantiles(late_ms, n=100)
    _tell(
        f"{count:,} entries, {rate:,} due a second: late by p50, p99, most",
        f"{parts[49]:.0f}, {parts[98]:.0f}, {max(late_ms)} ms",
    )
    us = [[f"{1e6 * each / count:.0f}" for each in some] for some in spent]
    _tell(
        "CPU of an entry: daemons 1 and 2, engines 1 and 2",
        f"{' and '.join(us[0])}, {' and '.join(us[1])} us",
    )


def _measure_waiting(
    one: braidstream.Redis, two: braidstream.Redis, engines: list[Engine], daemons: list[Daemon], count: int
) -> None:
    far_ms = round(time.time() * 1000) + YEAR_MS
    before = _used(engines[0])
    _write(one, "jobs", count, lambda number: far_ms + number)
    _until(lambda: two.xlen("{jobs}.later") == count)
    _tell("engine memory of a waiting entry", f"{(_used(engines[0]) - before) / count:.0f} bytes")
    first = daemons[0]
    _tell(f"memory of the daemon with {count:,} waiting", f"{_resident_mb(first):.0f} MB")
    first.kill()
    ready = len(first.said("daemon.ready"))
    one.xadd("jobs", {"n": "due"}, delay=0)
    began_s = _engine_s(engines[0])
    first.start()
    took_s = _until(lambda: len(first.said("daemon.ready")) > ready)
    _tell("... started again, it is ready after", f"{took_s:.1f} s")
    took_s += _until(lambda: one.xlen("jobs") == 1)
    engine_s = _engine_s(engines[0]) - began_s
    _tell(
        "... and has promoted what was due after",
        f"{took_s:.1f} s, {_cpu(first):.1f} s CPU, engine {engine_s:.1f} s",
    )
    _tell("... its memory then", f"{_resident_mb(first):.0f} MB")
    time.sleep(10)
    began, engine_s = _cpu(first), _engine_s(engines[0])
    time.sleep(IDLE_S)
    idle, engine_idle = (_cpu(first) - began) / IDLE_S, (_engine_s(engines[0]) - engine_s) / IDLE_S
    _tell("... idle", f"{100 * idle:.2f} % of a core, engine {100 * engine_idle:.2f} %")


def _engine_s(engine: Engine) -> float:
    with engine.client() as client:
        used = client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])


if __name__ == "__main__":
    main()
