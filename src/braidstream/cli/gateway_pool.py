"""The parent of `braid gateway --workers N`: N processes that listen on one port.

clients ---- port (SO_REUSEPORT: the kernel chooses a worker for each connection)
               |-- worker 0 --+
               `-- worker 1 --+-- engine           parent: starts, watches and stops them; /metrics of all

The parent serves no client. Workers share nothing, as several gateways behind a load balancer.
"""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from braidstream.cli.engines import die_with_parent
from braidstream.cli.gateway_worker import FAMILIES, LONGEST_LINE, METRICS, READY, Job
from braidstream.errors import BraidError
from braidstream.net.listen import Listen
from braidstream.observability.events import emit, event_families
from braidstream.observability.metrics import Family, Values, process_families
from braidstream.replication.endpoint import back_off

_ANSWERS_WITHIN_S: Final = 3.0
# A worker answers running commands within 10 seconds.
_STOPS_WITHIN_S: Final = 15.0
# A worker that ran for so long is started again at once.
_STEADY_S: Final = 60.0
_MOST_TRIES: Final = 20
_COMMAND: Final = (sys.executable, "-P", "-m", "braidstream.cli.gateway_worker")


@contextmanager
def reserved(listen: Listen) -> Iterator[Listen]:
    """Hold a TCP address for the workers, with its port if that was 0. OSError if it is in use.

    Another gateway with workers could share the port, and get some of the clients: this is refused.
    """
    found = socket.getaddrinfo(
        listen.host or None, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, (host, port, *more) = found[0]  # with several addresses, the first has the port of all
    with _bound(family, (host, port, *more)) as alone:
        port = alone.getsockname()[1]
    with _bound(family, (host, port, *more), socket.SO_REUSEPORT):
        yield replace(listen, port=port)


def _bound(family: int, address: tuple[object, ...], *options: int) -> socket.socket:
    """A socket that does not listen, so the kernel gives it no clients."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in (socket.SO_REUSEADDR, *options):
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


class Worker:
    """One worker, as its parent sees it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.name = str(job.number)
        self.is_up = False
        self._process: asyncio.subprocess.Process | None = None
        self._asked = dict[bytes, asyncio.Future[bytes]]()

    async def start(self) -> None:
        """Returns when it listens. BraidError if it cannot."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # no Ctrl-C from the terminal: the parent stops its workers
                preexec_fn=die_with_parent,
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_LINE)
        self._writer.write(self.job.model_dump_json().encode() + b"\n")
        if why := json.loads(await self._line() or '"it ended before it listened"'):
            self._writer.close()
            await self._process.wait()
            raise BraidError(why)
        self.is_up = True
        emit("gateway.worker_started", worker=self.name, pid=self._process.pid)

    async def run(self) -> str:
        """Take its answers until it ends. Returns how it ended."""
        assert self._process is not None
        while line := await self._line():
            request, _, answer = line.partition(b" ")
            self._asked.pop(request).set_result(answer)
        self.is_up = False
        self._writer.close()
        for future in self._asked.values():
            future.set_result(b"")
        self._asked.clear()
        code = await self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def _line(self) -> bytes:
        """The next line from it; empty if it is gone, perhaps in the middle of a line, or if the line is too
        long: then it is stopped, and started again."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            return b""
        return line if line.endswith(b"\n") else b""

    async def ask(self, request: bytes) -> bytes:
        """Its answer; empty if it does not answer. Concurrent calls share one request."""
        if not self.is_up:
            return b""
        future = self._asked.get(request)
        if future is None:
            future = self._asked[request] = asyncio.get_running_loop().create_future()
            self._writer.write(request + b"\n")
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                return await asyncio.shield(future)
        return b""

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOPS_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class WorkerPool:
    """See the top of the file."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._workers = [Worker(job) for job in jobs]
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when all of them listen. BraidError if one cannot."""
        for worker, failed in zip(self._workers, await self._each(Worker.start), strict=True):
            if failed is not None:
                await self._each(Worker.stop)
                raise BraidError(f"worker {worker.name} does not start: {failed}")
        self._watching = [asyncio.ensure_future(self._keep(worker)) for worker in self._workers]

    async def stop(self) -> None:
        """Each of them answers its running commands, then ends."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._each(Worker.stop)

    async def families(self) -> list[Family]:
        """For /metrics: those of every worker that answers, and those of the parent."""
        found, up = list[Family](), dict[tuple[str, ...], float]()
        for worker, answer in await self._ask(METRICS, self._workers):
            up[worker.name,] = 1.0 if answer else 0.0
            found += _labelled(FAMILIES.validate_json(answer or b"[]"), worker.name)
        found += _labelled([*process_families("gateway"), *event_families()], "parent")
        return [*_merged(found), workers_family(up)]

    async def why_not_ready(self) -> str:
        """A worker that does not run gets no clients, so it does not count while another one runs."""
        found = await self._ask_running(READY)
        reasons = {worker.name: json.loads(answer or '"it does not answer"') for worker, answer in found}
        if not found:
            return "no worker runs"
        return "; ".join(f"worker {name}: {why}" for name, why in reasons.items() if why)

    async def why_not_healthy(self) -> str:
        """A worker that runs and does not answer is stuck. One that ended is started again."""
        stuck = [worker.name for worker, answer in await self._ask_running(METRICS) if not answer]
        return f"no answer from worker {', '.join(stuck)}" if stuck else ""

    async def _ask_running(self, request: bytes) -> list[tuple[Worker, bytes]]:
        """Without those that end before they answer."""
        found = await self._ask(request, [worker for worker in self._workers if worker.is_up])
        return [(worker, answer) for worker, answer in found if worker.is_up]

    async def _ask(self, request: bytes, workers: Sequence[Worker]) -> list[tuple[Worker, bytes]]:
        answers = await asyncio.gather(*(worker.ask(request) for worker in workers))
        return list(zip(workers, answers, strict=True))

    async def _each(self, call: Callable[[Worker], Awaitable[None]]) -> list[BaseException | None]:
        return await asyncio.gather(*(call(worker) for worker in self._workers), return_exceptions=True)

    async def _keep(self, worker: Worker) -> None:
        """Start it again whenever it ends."""
        clock, tries = asyncio.get_running_loop().time, 0
        began, why = clock(), await worker.run()
        while True:
            tries = 0 if clock() - began > _STEADY_S else min(tries + 1, _MOST_TRIES)
            emit("gateway.worker_died", worker=worker.name, why=why)
            await back_off(tries)
            began = clock()
            try:
                await worker.start()
                why = await worker.run()
            except (BraidError, OSError) as error:
                why = str(error)


def workers_family(up: Values) -> Family:
    return Family.gauge(
        "braid_gateway_worker_up", "Only with --workers: 1 if the worker answers.", up, ("worker",)
    )


def _labelled(families: Iterable[Family], worker: str) -> Iterator[Family]:
    for family in families:
        samples = ((suffix, (*labels, ("worker", worker)), value) for suffix, labels, value in family.samples)
        yield replace(family, samples=tuple(samples))


def _merged(families: Iterable[Family]) -> list[Family]:
    """Each metric once, with the samples of all processes."""
    found = dict[str, Family]()
    for family in families:
        known = found.get(family.name, replace(family, samples=()))
        found[family.name] = replace(known, samples=known.samples + family.samples)
    return list(found.values())
