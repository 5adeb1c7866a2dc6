"""`braid replicate` as a child process, with what it logs.

with replicating(tmp_path, {1: one.url, 2: two.url}) as daemon:
    daemon.hears("link.up peer=region-2")
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

WITHIN_S = 30


@dataclass(slots=True)
class Daemon:
    """One process. `seen`: how much of its log earlier waits have used up."""

    process: "subprocess.Popen[bytes]"
    log: Path
    seen: int = field(default=0)

    def tells(self, words: str, within_s: float = WITHIN_S) -> str:
        """Wait for a line that contains `words`, after the last one that was waited for; return it."""

        def line() -> str:
            text = self.log.read_text(errors="replace")[self.seen :]
            return next((line for line in text.splitlines() if words in line), "")

        found = eventually(line, within_s=within_s, why=f"the daemon should tell {words!r}")
        self.seen = self.log.read_text(errors="replace").index(found, self.seen) + len(found)
        return found

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


def write_config(path: Path, urls: Mapping[int, str], **more: Mapping[int, Any]) -> Path:
    """braid.toml for regions by number; `more` are further fields, by region."""
    lines = list[str]()
    for number, url in urls.items():
        lines += ["[[region]]", f"id = {number}", f'name = "region-{number}"', f'url = "{url}"']
        lines += [f'{name} = "{values[number]}"' for name, values in more.items() if number in values]
    path.write_text("\n".join([*lines, ""]))
    return path


@contextmanager
def replicating(
    folder: Path, urls: Mapping[int, str], region: int = 1, **more: Mapping[int, Any]
) -> Iterator[Daemon]:
    """The daemon of one region. It may not be ready yet."""
    config = write_config(folder / f"braid-{region}.toml", urls, **more)
    command = [sys.executable, "-m", "braidstream.cli.main", "replicate", "--config", str(config)]
    log = folder / f"daemon-{region}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen([*command, "--region", f"region-{region}"], stdout=out, stderr=out)
    try:
        yield Daemon(process, log)
    finally:
        process.terminate()
        process.wait(20)
