"""`braid` as a process that starts in milliseconds: forked from one that has imported it.

    with braid_process(["replicate", "--config", path], stderr=PIPE) as process: ...     # a subprocess.Popen

Importing braidstream costs a second of CPU, and the tests start a thousand processes. So each pytest process
has a template, with the modules imported, no thread and no event loop. It forks for every start; the new
process gets its own words, environment, folder and files, and becomes our child: signals, waiting and exit
codes are as usual. Its command line (in /proc) is the template's.

Modules may read the environment when they are imported. So a process whose environment differs from the
template's by more than a few that no module reads then is started the usual way.

    env=with_constants({"braidstream.replication.endpoint.SILENCE_S": 2.0})    # it waits 2 s instead of 10

A process that was started the usual way knows nothing of these, and takes its time.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
BRAID: Final = (sys.executable, "-m", "braidstream.cli.main")

_CONSTANTS: Final = "BRAID_CONSTANTS"
_PR_SET_CHILD_SUBREAPER: Final = 36
# What the tests start most often. Others are imported by the process that needs them.
_VERBS: Final = ("replicate", "region", "status", "streams", "init", "gateway", "logs")

_lock = threading.Lock()


class Template(NamedTuple):
    owner: int  # our process; a forked one needs a template of its own
    environment: dict[str, str]
    connection: socket.socket


_template: Template | None = None


def braid_process(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> "subprocess.Popen[Any]":
    """Start `braid` with these words. env: more environment variables; options: as for Popen."""
    wanted = {**os.environ, **(env or {})}
    if _at_import(wanted) == _at_import(_started().environment):
        return _Forked(list(words), env=wanted, **options)
    return subprocess.Popen([*BRAID, *words], env=wanted, **options)


def with_constants(values: Mapping[str, float]) -> dict[str, str]:
    """Environment of a process in which constants of modules, by their full names, have other values."""
    return {_CONSTANTS: json.dumps(dict(values))}


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """What modules may have read when they were imported."""
    later = ("BRAID_", "PYTEST_", "COLUMNS", "FAKETTY", "JAVA_HOME", "LINK_PASSWORD", "PATH")
    return {name: text for name, text in environment.items() if not name.startswith(later)}


class _Forked(subprocess.Popen[Any]):
    """A Popen whose process comes from the template. args: the words after `braid`."""

    def _execute_child(self, args: list[str], *more: Any) -> None:
        cwd, env = more[4], more[5]
        pipes = more[9:15]
        files = [given if given != -1 else own for own, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        folder = os.fspath(cwd or os.getcwd())
        request = json.dumps({"words": args, "env": dict(env), "folder": folder}).encode()
        connection = _started().connection
        with _lock:
            socket.send_fds(connection, [len(request).to_bytes(4, "big")], files)
            connection.sendall(request)
            self.pid = int.from_bytes(_exactly(connection, 4), "big")
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _started() -> Template:
    """Our template; the first use starts it."""
    global _template
    with _lock:
        if _template is None or _template.owner != os.getpid():
            _template = Template(os.getpid(), dict(os.environ), _start())
        return _template


def _start() -> socket.socket:
    # What the template starts has no parent soon: it becomes our child, as if we had started it.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    ours, its = socket.socketpair()
    with its:
        words = [sys.executable, "-m", "tests.support.forked", str(its.fileno())]
        template = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=ROOT, pass_fds=[its.fileno()])
        template.returncode = 0  # it is never waited for: it ends when we do
    return ours


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (more := connection.recv(size - len(found))):
            raise EOFError("the other end is gone")
        found += more
    return found


# In the template:


def _serve(connection: socket.socket) -> None:
    """Start a process for each request, until the tests are gone; in the new process, run `braid`."""
    main = import_module("braidstream.cli.main")
    for name in _VERBS:
        import_module(f"braidstream.cli.{name}")
    gc.freeze()  # a collection in a new process looks at its own objects only
    while True:
        head, files, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:
            return
        request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        if (child := _fork()) == 0:
            connection.close()
            _settle(request, files)
            sys.argv, sys.modules["__main__"] = [str(main.__file__), *request["words"]], main
            _run(main)
        connection.sendall(child.to_bytes(4, "big"))
        for file in files:
            os.close(file)


def _fork() -> int:
    """As os.fork, but the new process has a parent that ends at once: so the tests become its parent."""
    read, write = os.pipe()
    if (between := os.fork()) == 0:
        if (child := os.fork()) != 0:
            os.write(write, child.to_bytes(4, "big"))
            os._exit(0)
    else:
        os.waitpid(between, 0)
        child = int.from_bytes(os.read(read, 4), "big")
    os.close(read)
    os.close(write)
    return child


def _settle(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Make this process what a fresh one would be."""
    for own, file in enumerate(files):
        os.dup2(file, own)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    for name, value in json.loads(os.environ.pop(_CONSTANTS, "{}")).items():
        module, _, constant = name.rpartition(".")
        owner = import_module(module)
        assert hasattr(owner, constant), name
        setattr(owner, constant, value)


def _run(main: Any) -> None:
    """Run `braid` to its end, but for one thing: the interpreter does not take all modules apart.

    That costs ten times as much CPU as the rest of a short command.
    """
    try:
        main.app()
    except SystemExit as end:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does
        atexit._run_exitfuncs()
        gc.collect()  # what was left open is reported
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            if end.code is None or isinstance(end.code, int):
                os._exit(end.code or 0)
        raise


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _serve(socket.socket(fileno=int(sys.argv[1])))
