"""`braid replicate` as a process, with what it logs.

with replicating(tmp_path, {1: one.url, 2: two.url}) as daemon:
    daemon.tells("link.up peer=region-2")
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.forked import braid_process, with_constants
from tests.support.regions import become
from tests.support.replicas import Site
from tests.support.servers import Engine
from tests.support.waiting import eventually

WITHIN_S = 30
# Constants of a daemon for tests with one daemon for each region. A server is lost after 3 s of silence,
# instead of 10; a killed daemon is replaced after 2 s, instead of 6; what was refused is tried again soon.
SILENCE: Final = {
    f"braidstream.replication.{name}.SILENCE_S": 3.0 for name in ("endpoint", "detect.feed", "gate")
}
IMPATIENT: Final = with_constants(
    {
        **SILENCE,
        "braidstream.replication.daemon.leases.RENEW_S": 0.5,
        "braidstream.replication.daemon.leases.LOST_S": 2.0,
        "braidstream.replication.later_job.AGAIN_MS": 2_000,
        "braidstream.replication.retention_job.NEAR_S": 0.5,
    }
)


class Daemon:
    """The daemon of one region, by number or name. Runs from the start; may be killed and started again.

    seen: how much of its log earlier waits have used up.
    """

    def __init__(
        self, config: Path, region: int | str, *words: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.region, self.env = region, env
        self.words = ["replicate", "--config", str(config), "--region", str(region), *words]
        self.log = config.with_name(f"{config.stem}-daemon-{region}.log")
        self.seen = 0
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(WITHIN_S)

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = braid_process(self.words, env=self.env, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def said(self, event: str) -> list[str]:
        """The lines of an event so far."""
        return [line for line in self.text.splitlines() if f" {event} " in line]

    def tells(self, words: str, within_s: float = WITHIN_S) -> str:
        """Wait for a line that contains `words`, after the last one that was waited for; return it."""

        def line() -> str:
            return next((line for line in self.text[self.seen :].splitlines() if words in line), "")

        found = eventually(line, within_s=within_s, why=f"the daemon should tell {words!r}")
        self.seen = self.text.index(found, self.seen) + len(found)
        return found


def write_config(path: Path, urls: Mapping[int, str], **more: Mapping[int, Any]) -> Path:
    """braid.toml for regions by number; `more` are further fields, by region."""
    lines = list[str]()
    for number, url in urls.items():
        lines += ["[[region]]", f"id = {number}", f'name = "region-{number}"', f'url = "{url}"']
        lines += [f'{name} = "{values[number]}"' for name, values in more.items() if number in values]
    path.write_text("\n".join([*lines, ""]))
    return path


def numbered(engines: Sequence[Engine | Site], first: int = 1) -> dict[int, str]:
    """Make engines regions; their addresses, by number."""
    for number, engine in enumerate(engines, start=first):
        become(engine, region=number, name=f"region-{number}")
    return {number: engine.url for number, engine in enumerate(engines, start=first)}


@contextmanager
def replicating(
    folder: Path,
    urls: Mapping[int, str],
    region: int = 1,
    *,
    env: Mapping[str, str] | None = None,
    **more: Mapping[int, Any],
) -> Iterator[Daemon]:
    """The daemon of one region. It may not be ready yet."""
    config = write_config(folder / f"braid-{region}.toml", urls, **more)
    with Daemon(config, f"region-{region}", env=env) as daemon:
        yield daemon


@contextmanager
def all_replicating(
    folder: Path, urls: Mapping[int, str], *, env: Mapping[str, str] | None = None, **more: Mapping[int, Any]
) -> Iterator[list[Daemon]]:
    """The daemons of all regions, ready."""
    config = write_config(folder / "braid.toml", urls, **more)
    with ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(config, f"region-{number}", env=env)) for number in urls]
        for daemon in daemons:
            daemon.tells("daemon.ready")
        yield daemons
