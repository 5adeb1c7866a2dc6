"""Engines and daemons as child processes of `braid up`, on loopback ports. They end with the parent."""

import asyncio
import contextlib
import ctypes
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.net.wire import Address, connect
from braidstream.protocol.plan import Batch

READY_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_free(port: int) -> None:
    """BraidError if a process listens on a loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore sockets that are closing
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise BraidError(
                f"port {port} is in use. Stop what listens there, or choose others: braid up --port 8001 "
                "(--port 0: any free ones)"
            ) from None


def engine_command(engine: str, port: int, directory: Path, keep: bool) -> list[str]:
    """A server with its own configuration that listens on loopback only and allows DEBUG.

    engine: `redis` means the program redis-server; with a slash it is the program's path.
    """
    wanted = engine if "/" in engine else f"{engine}-server"
    program = shutil.which(wanted)
    if program is None:
        raise BraidError(
            f"found no program {wanted}. Install it (apt-get install redis-server or valkey-server), "
            "or choose another one: --engine redis, --engine valkey or --engine /path/to/a/server"
        )
    store = ["--appendonly", "yes" if keep else "no", "--save", ""]
    store += ["--logfile", str(directory.resolve() / "engine.log")]
    here = ["--bind", "127.0.0.1", "--enable-debug-command", "local"]
    log = ["--logfile", str((directory / "engine.log").absolute())]
    return [program, *here, "--port", str(port), "--dir", str(directory), *log, *store]


def braid_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "braidstream.cli.main", *words]


class Child:
    """A process that ends when we do. Its stderr goes to a file."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.command, self.log = name, command, log
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # no Ctrl-C from the terminal: we stop our children in order
                preexec_fn=die_with_parent,
            )

    async def line(self) -> str:
        """The first line it prints; BraidError if it ends instead."""
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                line = await self.process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise BraidError(f"{self.name} did not start within {READY_WITHIN_S:g} s. Its log: {self.log}")
        return line.decode("utf-8", "replace").strip()

    async def ended(self) -> str:
        """Wait until it ends; returns a sentence that says how."""
        assert self.process is not None
        code = await self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}. Its log: {self.log}"

    async def stop(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def answering(port: int, child: Child) -> None:
    """Wait until an engine accepts commands. There is no timeout while it loads its data."""
    loop = asyncio.get_running_loop()
    until = loop.time() + READY_WITHIN_S
    while loop.time() < until and child.process is not None and child.process.returncode is None:
        try:
            conn = await connect(Address("127.0.0.1", port))
            [reply] = await conn.send(Batch([("PING",)], resend=True, attempt=True))
            conn.close()
            if not isinstance(reply, ReplyError):
                return
            if reply.code == "LOADING":
                until = loop.time() + READY_WITHIN_S
        except (LostError, ReplyError):
            pass
        await asyncio.sleep(0.02)
    raise BraidError(f"{child.name} does not answer on port {port}. Its log: {child.log}")


def die_with_parent() -> None:
    """In the child, before exec: request a SIGTERM when the parent dies (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
