"""One worker of `braid gateway --workers`: a gateway that shares its port. gateway_pool.py starts it.

    python -m braidstream.cli.gateway_worker 5        # 5: an inherited socket, to the parent

parent --> worker    a job, which may contain passwords: so it is in no argument. Then requests, one a line
worker --> parent    why it cannot serve, or "". Then to each request a line: the request, a blank, the answer

A worker stops on SIGTERM, and when its parent is gone.
"""

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from braidstream.cli.event_loop import new_loop
from braidstream.cli.replicate import LogFormats, log_to_stderr
from braidstream.cli.serving_tls import read_users, tls_context
from braidstream.config import RegionConfig
from braidstream.errors import BraidError
from braidstream.gateway.hub import Settings
from braidstream.gateway.server import Gateway
from braidstream.net.listen import Listen
from braidstream.net.resp import Limits
from braidstream.net.sentinels import Place
from braidstream.net.wire import parse_address
from braidstream.observability.events import add_to_events
from braidstream.observability.metrics import Family
from braidstream.replication.endpoint import reason

METRICS: Final = b"metrics"  # the answer: FAMILIES
READY: Final = b"ready"  # the answer: why it is not, or ""
FAMILIES: Final = TypeAdapter(list[Family])
LONGEST_LINE: Final = 1 << 24


class Job(BaseModel):
    """What a worker serves, and where. maxclients, backends: of this worker alone."""

    model_config = ConfigDict(frozen=True)

    number: int
    url: str = Field(repr=False)
    others: tuple[RegionConfig, ...]
    listen: str
    maxclients: int
    backends: int
    query_limit: int
    most_reply: int
    maxmemory_clients: int
    functions_admin: str
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    tls_users: Path | None
    announce: tuple[Place, ...]
    log_format: LogFormats


def main() -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        sys.exit(runner.run(_work(socket.socket(fileno=int(sys.argv[1])))))


async def _work(parent: socket.socket) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    reader, writer = await asyncio.open_unix_connection(sock=parent, limit=LONGEST_LINE)
    job = Job.model_validate_json(await reader.readline())
    log_to_stderr(verbose=False, log_format=job.log_format)
    add_to_events(worker=job.number)
    try:
        server = await _start(job)
    except (BraidError, OSError) as error:
        writer.write(json.dumps(str(error)).encode() + b"\n")
        await writer.drain()
        return 1
    writer.write(b'""\n')
    answering = asyncio.ensure_future(_answer(server, reader, writer))
    answering.add_done_callback(lambda _: stop.set())
    await stop.wait()
    await server.stop()
    return 0


async def _start(job: Job) -> Gateway:
    tls = None if job.tls_cert is None else tls_context(job.tls_cert, job.tls_key, job.tls_ca)
    settings = Settings(
        maxclients=job.maxclients,
        backends=job.backends,
        tls=tls,
        announce=job.announce,
        limits=Limits(buffered=job.query_limit),
        most_reply=job.most_reply,
        maxmemory_clients=job.maxmemory_clients,
        functions_admin=job.functions_admin,
        users={} if job.tls_users is None else read_users(job.tls_users),
    )
    server = Gateway(parse_address(job.url), settings, job.others)
    await server.start(Listen.parse(job.listen), is_worker=True)
    return server


async def _answer(server: Gateway, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the parent closes the socket, or ends."""
    while request := (await reader.readline()).strip():
        writer.write(b"%b %b\n" % (request, await _answer_to(request, server)))


async def _answer_to(request: bytes, server: Gateway) -> bytes:
    """An error of ours is logged, and the worker serves on: its metrics are missing, or it is not ready."""
    try:
        if request == METRICS:
            return FAMILIES.dump_json(server.families())
        return json.dumps(await server.why_not_ready()).encode()
    except Exception as error:
        server.hub.crashed(error)
        return b"[]" if request == METRICS else json.dumps(reason(error)).encode()


if __name__ == "__main__":
    main()
