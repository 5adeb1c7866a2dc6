"""The receiver of `braid replicate --receive` and its own engine: clusters that grow, engines that hang."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from braidstream.engine.address import Listen, parse_address
from braidstream.engine.tunnel import HELLO, OK, store
from braidstream.replication import receiver
from braidstream.replication.endpoint import Endpoint
from tests.support.cluster import start_alone
from tests.support.compressed_links import HELLO_LINE, WITHIN_S, is_greeted, say
from tests.support.daemons import Daemon, write_config
from tests.support.regions import become
from tests.support.servers import Engine, Flavour, free_port
from tests.support.waiting import eventually


@asynccontextmanager
async def received(source: Endpoint) -> AsyncIterator[int]:
    """A receiver in this process. Yields its port."""
    receiving = receiver.Receiver(source, needs_password=False)
    where = await receiving.start(Listen("127.0.0.1", 0), None)
    try:
        yield int(where.rpartition(":")[2])
    finally:
        receiving.close()


async def greet(port: int, wanted: Engine) -> tuple[bytes, asyncio.StreamWriter]:
    """The first line of the answer to a hello, and the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO + b"127.0.0.1:%d\n" % wanted.port)
    async with asyncio.timeout(WITHIN_S):
        return await reader.readline(), writer


def give_slot(slot: int, first: Engine, second: Engine) -> None:
    """Make a server a node of the cluster of another one, and give it a slot."""
    with first.client() as one, second.client() as two:
        two.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port)
        name = two.execute_command("CLUSTER", "MYID").decode()
        eventually(
            lambda: name in str(one.execute_command("CLUSTER NODES")),
            within_s=WITHIN_S,
            why="they should meet",
        )
        for each in (two, one):
            each.execute_command("CLUSTER SETSLOT", slot, "NODE", name)
        eventually(
            lambda: str(second.port) in str(one.execute_command("CLUSTER SLOTS")),
            within_s=WITHIN_S,
            why="the first node should know who serves the slot",
        )


def test_a_receiver_finds_a_node_of_its_cluster_that_it_has_not_seen_yet(flavour: Flavour) -> None:
    """A peer may read the map of slots before the receiver does."""

    async def work(first: Engine, second: Engine) -> list[bytes]:
        source = Endpoint(parse_address(first.url))
        await source.connect()
        async with received(source) as port:
            before, line = await greet(port, second)
            line.close()
            await asyncio.to_thread(give_slot, 0, first, second)
            after, line = await greet(port, second)
            line.close()
        source.close()
        return [before, after]

    with ExitStack() as stack:
        first = start_alone(flavour)
        stack.callback(first.stop)
        second = stack.enter_context(Engine(flavour, cluster=True))
        before, after = asyncio.run(work(first, second))
    assert b"is not a primary of this region" in before
    assert after == OK


def test_an_engine_that_hangs_is_not_blamed_on_the_peer(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receiver, "IDLE_S", 1.0)
    caplog.set_level(logging.INFO, "braidstream")

    async def work(engine: Engine) -> None:
        async with received(Endpoint(parse_address(engine.url))) as port:
            answer, line = await greet(port, engine)
            assert answer == OK
            with engine.paused():
                line.write(store(bytes(32 << 20)))
                async with asyncio.timeout(WITHIN_S):
                    while "receiver.refused" not in caplog.text:
                        await asyncio.sleep(0.1)
            line.transport.abort()

    with Engine(flavour) as engine:
        asyncio.run(work(engine))
    assert "this region's engine read nothing for too long" in caplog.text


def test_an_engine_that_loses_its_password_is_not_opened_to_the_network(
    flavour: Flavour, tmp_path: Path
) -> None:
    """After the start, as by CONFIG SET, or a failover to a server that has none."""
    with Engine(flavour) as engine, engine.client() as operator:
        become(engine, region=1, name="region-1")
        operator.config_set("requirepass", "secret")
        config = write_config(tmp_path / "braid.toml", {1: engine.url.replace("//", "//:secret@", 1)})
        port = free_port()
        with Daemon(config, 1, "--receive", f"0.0.0.0:{port}", "--allow-open") as daemon:
            daemon.tells("receiver.open")
            daemon.tells("receiver.ready")
            assert is_greeted(port)
            operator.config_set("requirepass", "")
            assert b"requires no password" in say(port, HELLO_LINE)
            assert "requires no password" in daemon.tells("receiver.refused")
