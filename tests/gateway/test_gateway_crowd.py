"""Many clients at one gateway. BRAID_IDLE and BRAID_BUSY say how many (make crowd: 10,000 and 500)."""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.cli import BRAID
from tests.support.gateways import Line, packed
from tests.support.regions import become
from tests.support.servers import Engine

pytestmark = pytest.mark.long

IDLE = int(os.environ.get("BRAID_IDLE", "800"))
BUSY = int(os.environ.get("BRAID_BUSY", "100"))
APPENDS = 20

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def said(pair: Pair, *words: str) -> bytes:
    reader, writer = pair
    writer.write(packed(*words))
    head = await reader.readline()
    return head if not head.startswith(b"$") else await reader.readexactly(int(head[1:]) + 2)


async def busy(port: int, who: int) -> list[bytes]:
    pair = await asyncio.open_connection("127.0.0.1", port)
    assert await said(pair, "SET", f"k{who}", str(who)) == b"+OK\r\n"
    ids = [await said(pair, "XADD", f"s{who % 10}", "*", "who", str(who)) for _ in range(APPENDS)]
    assert await said(pair, "GET", f"k{who}") == b"%d\r\n" % who
    pair[1].close()
    return ids


async def crowd(port: int) -> None:
    idle = list[Pair]()
    for _ in range(0, IDLE, 100):
        idle += await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", port) for _ in range(min(100, IDLE - len(idle))))
        )
    for begin in range(0, IDLE, 200):
        replies = await asyncio.gather(*(said(pair, "PING") for pair in idle[begin : begin + 200]))
        assert set(replies) == {b"+PONG\r\n"}
    began = time.monotonic()
    ids = [
        entry for each in await asyncio.gather(*(busy(port, who) for who in range(BUSY))) for entry in each
    ]
    took = time.monotonic() - began
    print(
        f"\n{IDLE:,} idle, {BUSY:,} busy: {len(ids) / took:,.0f} appends/s", file=sys.__stderr__, flush=True
    )
    assert len(ids) == BUSY * APPENDS
    assert not any(entry.startswith(b"-") for entry in ids)
    for begin in range(0, IDLE, 200):
        assert set(await asyncio.gather(*(said(pair, "PING") for pair in idle[begin : begin + 200]))) == {
            b"+PONG\r\n"
        }
    for _, writer in idle:
        writer.close()


@contextmanager
def gateway_process(words: list[str], tmp_path: Path) -> Iterator[int]:
    """The port of a gateway that is a process; what it logs is in the folder."""
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().decode()
            yield int(ready.partition('"gateway": "127.0.0.1:')[2].split('"')[0])
        finally:
            process.terminate()


def test_idle_clients_cost_no_engine_connections_and_busy_ones_are_served(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 2 * BUSY + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine lets a process open {hard} files, {wanted} are needed: ulimit -n {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with Engine("redis-7.0", args=["--maxclients", "1000"]) as engine:
        become(engine)
        words = [*BRAID, "gateway", "--json", "--url", engine.url]
        words += ["--listen", "127.0.0.1:0", "--backends", "300"]
        with gateway_process(words, tmp_path) as port:
            asyncio.run(crowd(port))
            with engine.client() as client:
                assert len(client.client_list()) < 1000
    assert (tmp_path / "log").read_text().count("gateway.failed") == 0


def test_who_comes_when_no_more_files_can_be_opened_is_told_and_the_others_are_served(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(Engine())
        become(engine)
        words = [*BRAID, "gateway", "--json", "--url", engine.url]
        words += ["--listen", "127.0.0.1:0"]
        limited = ["sh", "-c", 'ulimit -Sn 100; ulimit -Hn 200; exec "$@"', "sh", *words]
        port = stack.enter_context(gateway_process(limited, tmp_path))
        lines = [stack.enter_context(Line(port)) for _ in range(68)]
        for line in lines:
            assert line.say("SET k v") == b"+OK\r\n"
            assert line.say("XADD s * a b").startswith(b"$")
        for _ in range(80):
            late = stack.enter_context(Line(port))
            assert late.read() == b"-ERR max number of clients reached\r\n"
    logged = (tmp_path / "log").read_text()
    assert "gateway.limited maxclients=68 asked=20000 files=200" in logged
    assert "Too many open files" not in logged


@pytest.mark.parametrize(("words", "warns"), [((), False), (("--maxclients", "20000"), True)])
def test_a_limit_of_files_that_is_high_enough_is_no_warning_unless_more_clients_were_wanted(
    tmp_path: Path, words: tuple[str, ...], warns: bool
) -> None:
    with Engine() as engine:
        become(engine)
        start = [*BRAID, "gateway", "--json", "--url", engine.url, "--listen", "127.0.0.1:0", *words]
        limited = ["sh", "-c", 'ulimit -Sn 1000; ulimit -Hn 20000; exec "$@"', "sh", *start]
        with gateway_process(limited, tmp_path) as port, Line(port) as line:
            assert line.say("SET k v") == b"+OK\r\n"
    assert ("gateway.limited" in (tmp_path / "log").read_text()) is warns
