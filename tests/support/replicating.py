"""Regions r1, r2 ... on engines, and `braid replicate` for each as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers import Engine
from tests.support.waiting import eventually

READY_WITHIN_S = 30
_BRAID = (sys.executable, "-m", "braidstream.cli.main")


class Daemon:
    """`braid replicate` of one region, and what it says."""

    def __init__(self, config: Path, region: int) -> None:
        self.config, self.region = config, region
        self.log = config.with_name(f"log-{region}")
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(READY_WITHIN_S)

    def start(self) -> None:
        command = [*_BRAID, "replicate", "--config", str(self.config), "--region", str(self.region)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self, event: str) -> list[str]:
        """The lines of an event, of all daemons of this region so far."""
        return [line for line in self.log.read_text().splitlines() if f" {event} " in line]


def config_file(folder: Path, urls: dict[int, str], name: str = "braid.toml") -> Path:
    path = folder / name
    blocks = (
        f'[[region]]\nid = {number}\nname = "r{number}"\nurl = "{url}"\n' for number, url in urls.items()
    )
    path.write_text("".join(blocks))
    return path


def initialised(engines: Sequence[Engine], first: int = 1) -> None:
    for number, engine in enumerate(engines, start=first):
        words = ["--url", engine.url, "--region", str(number), "--name", f"r{number}"]
        subprocess.run([*_BRAID, "init", *words], check=True, capture_output=True)


@contextmanager
def replicating(
    folder: Path, engines: Sequence[Engine], urls: dict[int, str] | None = None, durability: str = ""
) -> Iterator[list[Daemon]]:
    """All daemons, ready. urls: where the file says that the engines are, if it is not where they are."""
    initialised(engines)
    config = config_file(
        folder, urls or {number: engine.url for number, engine in enumerate(engines, start=1)}
    )
    if durability:
        wanted = f'[[region]]\ndurability = "{durability}"\n'
        config.write_text(config.read_text().replace("[[region]]\n", wanted))
    with ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(config, number)) for number in range(1, len(engines) + 1)]
        for daemon in daemons:
            eventually(
                lambda daemon=daemon: daemon.said("daemon.ready"),  # type: ignore[misc]
                within_s=READY_WITHIN_S,
                why=f"the daemon of region {daemon.region} starts",
            )
        yield daemons
