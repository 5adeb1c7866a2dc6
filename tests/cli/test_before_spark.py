"""`braid spark` says what is wrong with servers and streams before a JVM starts, which takes long."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import braid
from tests.support.regions import become, client_of
from tests.support.servers import Engine, free_port


def run_without_java(*words: str) -> "subprocess.CompletedProcess[str]":
    """If it started a JVM, it would fail with an error about Java."""
    return braid(*words, within_s=300, env={"JAVA_HOME": "/nonexistent"})


def verbs(url: str, streams: str, folder: Path) -> dict[str, list[str]]:
    lake, config = folder / "lake", folder / "braid.toml"
    config.write_text(f'[[region]]\nid = 1\nname = "one"\nurl = "{url}"\n')
    source = ["--url", url, "--streams", streams]
    times = ["--since", "2026-11-01", "--until", "2026-11-02"]
    return {
        "archive": [*source, "--lake", str(lake)],
        "audit": ["--config", str(config), "--streams", streams],
        "compact": [*source, "--key", "user"],
        "forget": [*source, "--lake", str(lake), "--where", "true"],
        "replay": [*source, *times, "--to-url", url, "--to", "again", "--job", "j"],
        "stats": source,
    }


VERBS = ["archive", "audit", "compact", "forget", "replay", "stats"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_stream_is_told(engine: Engine, tmp_path: Path, verb: str) -> None:
    become(engine)
    with client_of(engine) as client:
        client.xadd("orders", {"n": 1})
        client.xadd("gone", {"n": 1})
        client.delete("gone")
    done = run_without_java("spark", verb, *verbs(engine.url, "orders,gone,nosuch", tmp_path)[verb])
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no stream 'gone', 'nosuch'. List them: braid streams" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("verb", ["archive", "replay"])
def test_a_wrong_password_and_a_dead_server_are_told(engine: Engine, tmp_path: Path, verb: str) -> None:
    become(engine)
    address = engine.url.removeprefix("redis://")
    for url, why in (
        (f"redis://link:wrong@{address}", "invalid username-password pair"),
        (f"redis://127.0.0.1:{free_port()}", "Connection refused"),
    ):
        done = run_without_java("spark", verb, *verbs(url, "orders", tmp_path)[verb])
        assert (done.returncode, done.stdout) == (1, "")
        assert why in done.stderr
        assert "wrong@" not in done.stderr
        assert "braidstream.errors" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


PROGRAM = """
import subprocess
from braidstream.cli.spark_run import bar, logs_above_bars
with bar("working", 10) as shown, logs_above_bars():
    child = subprocess.Popen(["sh", "-c", "for n in 1 2 3 4 5; do echo WARN line $n >&2; sleep 0.2; done"])
    child.wait()
    shown.refresh()
"""


def test_log_lines_of_a_child_are_printed_above_the_progress_bar() -> None:
    master, slave = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=slave, stdout=slave, stdin=slave):
        os.close(slave)
        seen = b""
        try:
            while piece := os.read(master, 4096):
                seen += piece
        except OSError:  # the terminal was closed
            pass
    os.close(master)
    assert b"working" in seen
    rows = [row.replace("\r", "") for row in seen.decode().split("\n")]
    logs = [row for row in rows if "WARN" in row]
    assert len(logs) == 5
    for row in logs:
        assert "working" not in row.rpartition("\x1b[2K")[2], row
