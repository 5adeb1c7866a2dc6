"""What tests start ends with them, also when they are killed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.killing import is_alive
from tests.support.servers import Flavour
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
# An engine, `braid up` with its children, and a child of a thread that has ended.
STARTS = """
import os, subprocess, sys, threading
from tests.support.orphans import marked
from tests.support.servers import Engine
from tests.support.up import braid_up

with Engine(sys.argv[1]), braid_up(1, sys.argv[1]):
    thread = threading.Thread(target=lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True))
    thread.start()
    thread.join()
    print(*marked(os.getpid()), flush=True)
    sys.stdin.read()
"""


def test_children_of_a_killed_process_end(flavour: Flavour) -> None:
    command = [sys.executable, "-c", STARTS, flavour]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdout is not None
        children = [int(pid) for pid in process.stdout.readline().split()]
        # itself, engine, sleep, the template that forks `braid`, up; and up's engine, daemon and gateway
        assert len(children) == 8
        assert all(map(is_alive, children))
        process.kill()
    eventually(
        lambda: not any(map(is_alive, children)), within_s=30, why="all that it started should have ended"
    )
