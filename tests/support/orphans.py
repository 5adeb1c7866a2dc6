"""No process that tests start outlives them, not even when pytest is killed by SIGKILL.

    guard()     # in this process, before the first child is started; conftest.py and Engine call it

Every child inherits a mark: servers, daemons, `braid up`, node, JVMs and their own children, whichever thread
started them. (PR_SET_PDEATHSIG reaches direct children only, and kills them when the thread that started
them ends.) The guard is a process that waits until we are gone, gives the others a moment to end by
themselves, and kills those that are left.

The mark is a resource limit that nobody uses, the CPU time of real-time threads. Nothing else is inherited
by all: Redis overwrites its environment, and subprocess closes files and may start sessions.
"""

import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 3.0
_BASE = 10**12

_guarded = 0


def guard() -> None:
    """Once in each process; a forked one needs its own."""
    global _guarded
    if _guarded == os.getpid():
        return
    _guarded = os.getpid()
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    above = [str(soft - _BASE)] if soft > _BASE else []  # whose tests started us
    command = [sys.executable, "-I", "-S", __file__, str(_guarded), *above]
    quiet = [(os.POSIX_SPAWN_OPEN, file, os.devnull, os.O_RDWR, 0) for file in (0, 1)]
    # Not a Popen: the guard is never waited for, and a Popen warns about that.
    os.posix_spawn(sys.executable, command, os.environ, file_actions=quiet, setsid=True)
    resource.setrlimit(resource.RLIMIT_RTTIME, (_BASE + _guarded, hard))


def marked(pid: int) -> list[int]:
    """The processes that carry the mark of this one, itself among them."""
    found = []
    for file in Path("/proc").glob("[0-9]*/limits"):
        try:
            limits = dict(line.split()[2:4] for line in file.read_text().splitlines() if "realtime t" in line)
            state = file.with_name("stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if limits.get("timeout") == str(_BASE + pid) and state != "Z":
            found.append(int(file.parent.name))
    return found


def _watch(pid: int, *above: int) -> None:
    resource.setrlimit(resource.RLIMIT_RTTIME, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    gone = select.poll()
    with suppress(ProcessLookupError):  # it has ended already
        for each in (pid, *above):
            gone.register(os.pidfd_open(each), select.POLLIN)
        gone.poll()
    deadline = time.monotonic() + GRACE_S
    while left := marked(pid):
        for each in left if time.monotonic() > deadline else []:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    _watch(*map(int, sys.argv[1:]))
