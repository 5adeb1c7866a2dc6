"""`braid worker`: runs the consumers of a module in several processes, and answers probes for them.

    braid worker shop.workers:consumer --processes 2 --metrics 127.0.0.1:9200
        |--- process 1 ---.   "+" or "-" twice a second, by a pipe: consumers/process.py
        |--- process 2 ---|
        `<----------------'   /healthz, /readyz, /metrics

A process that dies is started again. A signal stops all of them; a second one does not wait for handlers.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from braidstream.cli.replicate import log_to_stderr
from braidstream.cli.serving import parse_probes, serve_probes
from braidstream.consumers.process import EVERY_S, MISUSED
from braidstream.engine.address import Listen
from braidstream.observability.events import emit
from braidstream.observability.metrics import Family, process_families
from braidstream.observability.probes import Answers

# A process that has not reported for this long is not ready.
_SILENT_S: Final = 10 * EVERY_S
# How long to wait before a process that died is started again: twice as long each time, up to the most.
_LEAST_PAUSE_S: Final = 0.1
_MOST_PAUSE_S: Final = 5.0
# How often --reload looks for changed files.
_LOOK_S: Final = 0.5
# Names the folder in which prometheus_client collects the metrics of several processes.
_FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def worker(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="MODULE:CONSUMER", help="Consumers. A module alone: all that it has."),
    ],
    processes: Annotated[int, typer.Option(min=1, help="How many processes, each with all consumers.")] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file in this folder changes.")
    ] = False,
    metrics: Annotated[
        str | None, typer.Option(help="HOST:PORT for /metrics, /healthz and /readyz. Default: none.")
    ] = None,
) -> None:
    """Run consumers until a signal; a second signal does not wait for running handlers.

    A process that dies is started again. If one cannot start, all end, and the exit code is 1.

    Example: braid worker shop.workers:consumer --processes 4 --metrics 127.0.0.1:9200
    """
    listen = parse_probes(metrics)
    log_to_stderr(verbose=False)
    shared = tempfile.mkdtemp(prefix="braid-worker-")
    try:
        pool = Pool(targets, processes, is_reloading=reload, shared=shared if listen else "")
        code = asyncio.run(pool.run(listen))
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    raise typer.Exit(code)


@dataclass
class Seat:
    """The place of one process. changed: files have changed, so it starts (again)."""

    process: asyncio.subprocess.Process | None = None
    is_ready: bool = False
    was_ready: bool = False
    heard_at: float = 0.0
    restarts: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def terminate(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()


class Pool:
    """The processes. shared: the folder of their metrics, if those are served."""

    def __init__(self, targets: list[str], processes: int, *, is_reloading: bool, shared: str) -> None:
        self._targets, self._is_reloading, self._shared = targets, is_reloading, shared
        self._seats = [Seat() for _ in range(processes)]
        self._is_stopping = False
        self._code = 0

    async def run(self, listen: Listen | None) -> int:
        """Until all have ended. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        answers = Answers("", self._families, self._why_not_ready)
        probes, where = await serve_probes(listen, answers, option="--metrics", as_json=False)
        if where:
            emit("daemon.listening", address=where)
        watch = asyncio.create_task(self._watch()) if self._is_reloading else None
        await asyncio.gather(*map(self._keep, self._seats))
        if watch is not None:
            watch.cancel()
        probes.close()
        return self._code

    def _stop(self) -> None:
        self._is_stopping = True
        for seat in self._seats:
            seat.changed.set()
            seat.terminate()

    # Processes

    async def _keep(self, seat: Seat) -> None:
        pause_s = _LEAST_PAUSE_S
        while not self._is_stopping:
            seat.was_ready = False
            seat.changed.clear()
            began = time.monotonic()
            code = await self._run_one(seat)
            if self._is_stopping or seat.changed.is_set():
                continue
            if code == 0:
                return
            if self._is_reloading:
                await seat.changed.wait()
            elif not seat.was_ready:
                self._code = code if code == MISUSED else 1
                self._stop()
            else:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                emit("worker.died", how=how, restarts=seat.restarts)
                seat.restarts += 1
                if time.monotonic() - began > _MOST_PAUSE_S:
                    pause_s = _LEAST_PAUSE_S
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    async def _run_one(self, seat: Seat) -> int:
        """One process, from its start to its end. Returns its exit code."""
        loop, (reports, pipe) = asyncio.get_running_loop(), os.pipe()
        flags = (str(int(len(self._seats) > 1)), str(int(bool(self._shared))))
        words = ("-m", "braidstream.consumers.process", str(pipe), *flags, *self._targets)
        environment = {_FOLDER_VARIABLE: self._shared, **os.environ} if self._shared else None
        try:
            seat.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                pass_fds=(pipe,),
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us only, and we send each one signal
            )
        finally:
            os.close(pipe)

        def hear() -> None:
            said = os.read(reports, 1000)
            seat.is_ready, seat.heard_at = said.endswith(b"+"), loop.time()
            seat.was_ready = seat.was_ready or seat.is_ready
            if not said:
                loop.remove_reader(reports)

        loop.add_reader(reports, hear)
        if self._is_stopping:
            seat.terminate()
        code = await seat.process.wait()
        loop.remove_reader(reports)
        os.close(reports)
        seat.is_ready = False
        if self._shared:
            _forget(seat.process.pid, os.environ.get(_FOLDER_VARIABLE, self._shared))
        return code

    async def _watch(self) -> None:
        before = await asyncio.to_thread(_files)
        while True:
            await asyncio.sleep(_LOOK_S)
            now = await asyncio.to_thread(_files)
            if now != before:
                before = now
                emit("worker.reloading")
                for seat in self._seats:
                    seat.changed.set()
                    seat.terminate()

    # Probes

    async def _why_not_ready(self) -> str:
        now = asyncio.get_running_loop().time()
        silent = [seat for seat in self._seats if not seat.is_ready or now - seat.heard_at > _SILENT_S]
        if not silent:
            return ""
        of = f"{len(silent)} of {len(self._seats)} processes"
        return f"{of} have not joined their groups, or lost their server"

    @property
    def families(self) -> list[Family]:
        """Of this process: without those of the consumers."""
        ready = sum(seat.is_ready for seat in self._seats)
        restarts = sum(seat.restarts for seat in self._seats)
        return [
            Family.gauge("braid_worker_processes", "Processes that are ready.", {(): ready}),
            Family.counter("braid_worker_restarts_total", "Processes that died.", {(): restarts}),
            *process_families("worker"),
        ]

    def _families(self) -> Iterator[Family]:
        yield from self.families
        try:
            from prometheus_client import CollectorRegistry, multiprocess
        except ImportError:
            return
        folder = os.environ.get(_FOLDER_VARIABLE, self._shared)
        collector = multiprocess.MultiProcessCollector(CollectorRegistry(), folder)  # type: ignore[no-untyped-call]
        for metric in collector.collect():  # type: ignore[no-untyped-call]
            name = metric.name + ("_total" if metric.type == "counter" else "")
            samples = (
                (each.name[len(name) :], tuple(each.labels.items()), each.value) for each in metric.samples
            )
            yield Family(name, metric.type, metric.documentation, tuple(samples))


def _forget(process: int, folder: str) -> None:
    """A dead process has nothing in hand: drop its gauges."""
    try:
        from prometheus_client import multiprocess
    except ImportError:
        return
    multiprocess.mark_process_dead(process, folder)  # type: ignore[no-untyped-call]


def _files() -> dict[Path, int]:
    """When the Python files of this folder were changed. Not those of environments and hidden folders."""
    found = dict[Path, int]()
    for folder, folders, names in os.walk("."):
        hides = {each for each in folders if Path(folder, each, "pyvenv.cfg").exists()}
        folders[:] = [each for each in folders if not each.startswith((".", "__")) and each not in hides]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and path.exists():
                found[path] = path.stat().st_mtime_ns
    return found
