"""`braid up` as a child process: real engines and real daemons."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import braidstream
from tests.support.forked import braid_process
from tests.support.servers import Flavour

STOP_WITHIN_S = 20


@dataclass(frozen=True)
class Up:
    """What `braid up` started."""

    process: "subprocess.Popen[bytes]"
    urls: dict[int, str]
    gateways: dict[int, str]
    metrics: dict[int, str]
    gateway_metrics: dict[int, str]

    def client(self, region: int) -> braidstream.Redis:
        return braidstream.Redis.from_url(self.urls[region], decode_responses=True)

    def children(self, word: str) -> list[int]:
        """Its child processes whose command line has a word, in the order they were started."""
        found = []
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                parent = next(line for line in status.read_text().splitlines() if line.startswith("PPid:"))
                command = status.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, StopIteration):
                continue
            if int(parent.split()[1]) == self.process.pid and word in command:
                found.append(int(status.parent.name))
        return sorted(found)


@contextmanager
def braid_up(regions: int, flavour: Flavour, *words: str) -> Iterator[Up]:
    command = ["up", "--json", "--regions", str(regions), "--engine", flavour, "--port", "0", *words]
    process = braid_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        places = ("url", "gateway", "metrics", "gateway_metrics")
        yield Up(process, *({each["id"]: each[what] for each in said["regions"]} for what in places))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_WITHIN_S)
