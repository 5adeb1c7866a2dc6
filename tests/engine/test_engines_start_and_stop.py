"""The servers that all other tests lean on do what their names say."""

import asyncio
from pathlib import Path

import pytest
import redis

from braidstream.cli.up import Child, answering, engine_command
from tests.support.cluster import Cluster
from tests.support.gateways import Line
from tests.support.servers import DidNotStart, Engine, Flavour

pytestmark = pytest.mark.long


def test_a_killed_engine_with_an_append_only_file_comes_back_with_its_data(flavour: Flavour) -> None:
    with Engine(flavour, args=["--appendonly", "yes", "--appendfsync", "always"]) as engine:
        with engine.client() as client:
            entry = client.xadd("orders", {"v": "a"})
        port, pid = engine.port, engine.pid
        engine.kill()
        assert not engine.alive
        engine.restart()
        with engine.client() as client:
            assert client.xrange("orders") == [(entry, {b"v": b"a"})]
        assert engine.port == port
        assert engine.pid != pid


def test_braid_up_waits_until_an_engine_has_loaded_its_data(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(
        flavour, args=["--appendonly", "yes", "--appendfsync", "always", "--dir", str(tmp_path)]
    ) as engine:
        with engine.client() as client:
            pipe = client.pipeline(transaction=False)
            for number in range(5_000):
                pipe.incr(f"k{number % 10}")
            pipe.execute()
        engine.kill()
        command = [*engine_command(flavour, engine.port, tmp_path, keep=True), "--key-load-delay", "300"]

        async def start() -> None:
            child = Child("the engine", command, tmp_path / "engine.log")
            await child.start()
            try:
                await answering(engine.port, child)
                with Line(engine.port) as line:
                    assert line.say("GET k0") == b"$3\r\n500\r\n"
            finally:
                await child.stop()
            assert "DB loaded" in (tmp_path / "engine.log").read_text()

        asyncio.run(start())


def test_a_paused_engine_answers_nothing_until_it_is_resumed(flavour: Flavour) -> None:
    with Engine(flavour) as engine, engine.client(socket_timeout=0.2) as client:
        assert client.ping()
        engine.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        engine.resume()
        assert client.ping()


def test_an_engine_speaks_tls_and_listens_on_a_unix_socket(tls_flavour: Flavour) -> None:
    with Engine(tls_flavour, tls=True, unixsocket=True) as engine:
        assert engine.url.startswith("rediss://")
        with engine.client() as client:
            client.set("who", tls_flavour)
        with redis.Redis(unix_socket_path=str(engine.unixsocket)) as client:
            assert client.get("who") == tls_flavour.encode()


def test_an_engine_that_cannot_start_shows_its_log(flavour: Flavour) -> None:
    with pytest.raises(DidNotStart, match="no-such-option"), Engine(flavour, args=["--no-such-option", "1"]):
        pass


def test_a_shared_engine_is_handed_out_empty(engine: Engine) -> None:
    with engine.client() as client:
        assert client.dbsize() == 0
        assert client.execute_command("FUNCTION", "LIST") == []
        client.set("left", "behind")


def test_a_cluster_answers_for_every_slot(cluster: Cluster) -> None:
    with redis.RedisCluster.from_url(cluster.url) as client:
        for number in range(100):
            client.set(f"key:{number}", number)
        assert sum(len(client.keys(target_nodes=node)) for node in client.get_primaries()) == 100
        assert len(client.get_primaries()) == 3
