"""What a viewer of the console costs: `make bench-console`.

Five regions with daemons under load. A viewer loads the map every two seconds, as the page's script does.
CPU of the console's process is read from /proc, without viewers and with several.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final

from tests.support.cli import BRAID
from tests.support.matrix import installed
from tests.support.servers import NEWEST
from tests.support.up import Up, braid_up

REGIONS: Final = 5
VIEWERS: Final = 5
SECONDS: Final = 30.0
WRITES_PER_S: Final = 200


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        braid_up(REGIONS, installed(NEWEST[0]), "--dir", folder) as up,
    ):
        stop = threading.Event()
        writer = threading.Thread(target=_write, args=(up, stop))
        writer.start()
        command = [*BRAID, "console", "--config", str(Path(folder) / "braid.toml"), "--listen", "0", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            for path in ("", "stream?name=orders", "tail?name=orders"):
                _measure(process.pid, url + path)
        finally:
            stop.set()
            writer.join()
            process.terminate()
            process.wait(30)
    return 0


def _measure(pid: int, url: str) -> None:
    _view(url)
    alone = _cpu_share(pid, SECONDS, [])
    watched = _cpu_share(pid, SECONDS, [url] * VIEWERS)
    each = (watched - alone) / VIEWERS
    print(f"{url}: {alone:.2%} of a core without viewers, {each:.2%} more for each viewer", flush=True)


def _cpu_share(pid: int, seconds: float, viewed: list[str]) -> float:
    stop = threading.Event()
    viewers = [threading.Thread(target=_watch, args=(url, stop)) for url in viewed]
    for viewer in viewers:
        viewer.start()
    began, used = time.monotonic(), _cpu_s(pid)
    stop.wait(seconds)
    share = (_cpu_s(pid) - used) / (time.monotonic() - began)
    stop.set()
    for viewer in viewers:
        viewer.join()
    return share


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _watch(url: str, stop: threading.Event) -> None:
    while not stop.wait(2.0):
        _view(url)


def _view(url: str) -> None:
    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()


def _write(up: Up, stop: threading.Event) -> None:
    clients = [up.client(number) for number in up.urls]
    number = 0
    while not stop.wait(1 / WRITES_PER_S):
        number += 1
        clients[number % len(clients)].xadd("orders", {"order": number, "body": '{"total": 42}'})
    for client in clients:
        client.close()


if __name__ == "__main__":
    sys.exit(main())
