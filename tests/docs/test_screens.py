"""The recorded screens in docs/guides/monitoring.md are what the commands print, but for times and sizes.

BRAID_RECORD=1 writes them anew.
"""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path

from tests.support.cli import BRAID
from tests.support.matrix import installed
from tests.support.servers import NEWEST
from tests.support.up import Up, braid_up

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "monitoring.md"
WITHIN_S = 60


def watched(config: Path, columns: int, wanted: str) -> str:
    """The first screen of `braid status --watch` that matches, in a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    words = [*BRAID, "status", "--config", str(config), "--watch", "--every", "1"]
    seen, until = "", time.monotonic() + WITHIN_S
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env={**env, "TERM": "xterm"}, start_new_session=True
    ) as process:
        os.close(slave)
        while time.monotonic() < until:
            seen += os.read(master, 65_536).decode()
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", seen)
            for screen in re.split(r"(?=\d\d:\d\d:\d\d  Ctrl-C stops)", text)[1:-1]:
                if re.search(wanted, screen, re.DOTALL):
                    process.send_signal(signal.SIGINT)
                    process.wait(30)
                    os.close(master)
                    return "\n".join(line.rstrip() for line in screen.strip().splitlines())
    raise AssertionError(f"no screen matches {wanted}: {seen[-2000:]}")


def shape(screen: str) -> str:
    """Without what differs from run to run: numbers, how far a link is, and the width of columns."""
    text = re.sub(r"(\d+ behind(, [\d.]+s)?|ok)(, [\d,.k]+/s)?", "LINK", screen)
    return re.sub(r" +", " ", re.sub(r"[+-]?\d[\d.,:]*", "N", text))


def recorded(name: str) -> str:
    [found] = re.findall(rf"<!-- recorded: {name} -->\n```\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    return str(found)


def check(name: str, screen: str) -> None:
    if os.environ.get("BRAID_RECORD"):
        head = f"<!-- recorded: {name} -->\n```\n"
        PAGE.write_text(PAGE.read_text().replace(f"{head}{recorded(name)}\n", f"{head}{screen}\n"))
    assert shape(recorded(name)) == shape(screen)


def write(up: Up, stop: threading.Event) -> None:
    with up.client(1) as client:
        while not stop.wait(0.005):
            client.xadd("orders", {"order": 7})


def test_the_recorded_screen_is_that_of_a_run(tmp_path: Path) -> None:
    stop = threading.Event()
    with braid_up(2, installed(NEWEST[0]), "--dir", str(tmp_path)) as up:
        writer = threading.Thread(target=write, args=(up, stop))
        writer.start()
        try:
            for columns in (80, 120):
                screen = watched(tmp_path / "braid.toml", columns, r"\d/s.*No problems found\.")
                assert max(map(len, screen.splitlines())) <= columns
                check("braid status --watch", screen)
        finally:
            stop.set()
            writer.join()
