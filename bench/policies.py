"""`make bench-policies`: what the daemons' standing jobs cost over 10,000 streams, in two regions.

A minute of each: the daemons without these jobs, with them and nothing to do, with a policy that removes ten
entries of each stream, and with policies that remove nothing more.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import braidstream
from bench.bed import NEWEST
from bench.later import _engine_s
from bench.many import _cpu, _is_quiet, _streams, _tell, _until
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.forked import with_constants
from tests.support.servers import EVERY, Engine

MINUTE_S = 60.0
HOUR_MS = 3_600_000
OLD = NEW = 10
AT_ONCE = 100
# The daemons as if they had neither job.
WITHOUT = with_constants(
    {f"braidstream.replication.daemon.daemon.{name}": 1e6 for name in ("RETENTION_LOOKS_S", "LATER_EVERY_S")}
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.policies", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--engine", choices=EVERY, default=NEWEST[0])
    chosen = parser.parse_args()
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(chosen.engine)) for _ in range(2)]
        folder = Path(stack.enter_context(TemporaryDirectory()))
        config = write_config(folder / "braid.toml", numbered(engines))
        one, two = (
            stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True))
            for engine in engines
        )
        print(f"{chosen.streams:,} streams, {chosen.engine}")
        _write(one, chosen.streams)
        with ExitStack() as some:
            daemons = [some.enter_context(Daemon(config, number, env=WITHOUT)) for number in (1, 2)]
            _until(lambda: _streams(engines[1]) >= chosen.streams)
            _until(lambda: _is_quiet(daemons))
            _minute("without the jobs", daemons, engines)
        daemons = [stack.enter_context(Daemon(config, number)) for number in (1, 2)]
        for daemon in daemons:
            daemon.tells("daemon.ready")
        one.xadd("orders", {"n": 1}, delay=86_400)
        _until(lambda: two.xlen("{orders}.later") == 1)
        _until(lambda: _is_quiet(daemons))
        _minute("idle: no policy, one entry waits", daemons, engines)
        last = f"s{chosen.streams - 1}"
        _set(one, "max-age", "1h", "acked", "1")
        _minute("a policy removes 10 entries of each stream", daemons, engines)
        _until(lambda: [client.xlen(last) for client in (one, two)] == [NEW, NEW])
        _until(lambda: _is_quiet(daemons))
        _minute("... and has nothing more to remove", daemons, engines)
        _set(one, "max-bytes", "2kb")
        _until(lambda: _is_quiet(daemons))
        _minute("by size, all streams near their limit", daemons, engines)


def _write(client: braidstream.Redis, streams: int) -> None:
    old_ms = round(time.time() * 1000) - 2 * HOUR_MS
    for first in range(0, streams, AT_ONCE):
        with client.pipeline(transaction=False) as pipe:
            for stream in range(first, first + AT_ONCE):
                for number in range(OLD):
                    pipe.xadd(f"s{stream}", {"n": number, "body": "x" * 100}, id=str(old_ms + number))
                for number in range(NEW):
                    pipe.xadd(f"s{stream}", {"n": number, "body": "x" * 100})
            pipe.execute()


def _set(client: braidstream.Redis, *words: str) -> None:
    client.execute_command("XADD", "braid.retention", "*", "streams", "s*", *words)


def _minute(what: str, daemons: list[Daemon], engines: list[Engine]) -> None:
    before = [*map(_cpu, daemons), *map(_engine_s, engines)]
    time.sleep(MINUTE_S)
    spent = [
        now - then for now, then in zip([*map(_cpu, daemons), *map(_engine_s, engines)], before, strict=True)
    ]
    shown = [f"{each:.2f}" for each in spent]
    _tell(what, f"daemons {shown[0]} and {shown[1]} s, engines {shown[2]} and {shown[3]} s of CPU")


if __name__ == "__main__":
    main()
