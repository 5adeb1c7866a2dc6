"""Engines whose wall clocks step, or are apart."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 30


class Daemon:
    """`braid replicate` of one region."""

    def __init__(self, config: Path, region: int) -> None:
        self.log = config.with_name(f"log-{region}")
        command = [sys.executable, "-m", "braidstream.cli.main", "replicate"]
        command += ["--config", str(config), "--region", str(region)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def said(self, event: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if f" {event} " in line]


@contextmanager
def replicating(folder: Path, engines: Sequence[Engine]) -> Iterator[list[Daemon]]:
    """Regions r1, r2 ... and the daemon of each."""
    config = folder / "braid.toml"
    config.write_text(
        "".join(
            f'[[region]]\nid = {number}\nname = "r{number}"\nurl = "{engine.url}"\n'
            for number, engine in enumerate(engines, start=1)
        )
    )
    command = [sys.executable, "-m", "braidstream.cli.main", "init"]
    for number, engine in enumerate(engines, start=1):
        words = ["--url", engine.url, "--region", str(number), "--name", f"r{number}"]
        subprocess.run([*command, *words], check=True, capture_output=True)
    daemons = [Daemon(config, number) for number in range(1, len(engines) + 1)]
    try:
        for daemon in daemons:
            eventually(lambda daemon=daemon: daemon.said("daemon.ready"), within_s=WITHIN_S, why="it starts")  # type: ignore[misc]
        yield daemons
    finally:
        for daemon in daemons:
            daemon.process.terminate()
        for daemon in daemons:
            daemon.process.wait(WITHIN_S)


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_streams_go_on_when_the_clock_steps_and_the_daemon_is_killed(
    flavour: Flavour, tmp_path: Path, step_s: float
) -> None:
    """What the dead one left behind must not look alive for as long as the clock went back."""
    with (
        Engine(flavour, clock_s=0) as one,
        Engine(flavour) as two,
        replicating(tmp_path, [one, two]) as daemons,
        client_of(one) as here,
        client_of(two) as there,
    ):
        names = [f"stream-{number}" for number in range(64)]
        daemons[0].process.kill()
        daemons[0].process.wait()
        one.set_clock(step_s)
        daemons[0] = Daemon(tmp_path / "braid.toml", 1)
        for name in names:
            here.xadd(name, {"n": "1"})
        eventually(
            lambda: [name for name in names if not there.exists(name)] == [],
            within_s=WITHIN_S,
            why="every stream should be replicated",
        )
