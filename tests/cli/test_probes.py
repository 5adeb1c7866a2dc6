"""/metrics, /healthz and /readyz of daemons and gateways, as Prometheus and Kubernetes see them."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

import braidstream
from braidstream.observability.probes import MOST_CONNECTIONS, Answers, ProbeServer
from tests.support.cli import braid
from tests.support.daemons import SILENCE, Daemon, numbered, write_config
from tests.support.forked import braid_process, with_constants
from tests.support.matrix import installed
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.up import Up, braid_up
from tests.support.waiting import eventually

WITHIN_S = 40
# A peer that says nothing counts as lost after 3 s, and groups are measured every second.
QUICK = with_constants({**SILENCE, "braidstream.replication.daemon.daemon.GROUPS_EVERY_S": 1.0})


@dataclass(frozen=True)
class Pair:
    """Two regions with daemons, the first with a gateway: their URLs and pages."""

    urls: dict[int, str]
    metrics: dict[int, str]
    gateway: str
    gateway_metrics: str

    def client(self, region: int) -> braidstream.Redis:
        return braidstream.Redis.from_url(self.urls[region], decode_responses=True)


@pytest.fixture(scope="module", params=NEWEST[:1])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(installed(request.param))) for _ in range(2)]
        urls = numbered(engines)
        config = write_config(tmp_path_factory.mktemp("pair") / "braid.toml", urls)
        daemons = {
            number: stack.enter_context(Daemon(config, number, "--listen", "0", env=QUICK)) for number in urls
        }
        metrics = {}
        for number, daemon in daemons.items():
            [metrics[number]] = re.findall(r"metrics=(\S+)", daemon.tells("daemon.listening"))
            daemon.tells("daemon.ready")
        listen = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
        place = ("--config", str(config), "--region", "region-1")
        gateway = braid_process(["gateway", "--json", *place, *listen], stdout=subprocess.PIPE)
        stack.callback(gateway.communicate, timeout=WITHIN_S)
        stack.callback(gateway.terminate)
        assert gateway.stdout is not None
        ready = json.loads(gateway.stdout.readline())
        yield Pair(urls, metrics, ready["gateway"], ready["metrics"])


def get(where: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{where}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def metrics(where: str) -> dict[str, float]:
    """Every sample, by its name and labels but the region's."""
    found = {}
    for family in text_string_to_metric_families(get(where, "/metrics")[1]):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "region")
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_daemon_tells_the_lag_of_each_peer(pair: Pair) -> None:
    """Nothing while the peer follows; entries and seconds while it cannot be reached; nothing after that."""
    where, peer = pair.metrics[1], "{peer=region-2}"
    with pair.client(1) as client:
        for number in range(5):
            client.xadd("orders", {"n": number})
        eventually(
            lambda: (
                metrics(where).get(f"braid_link_entries_total{peer}") == 5
                and metrics(where).get(f"braid_link_lag_entries{peer}") == 0
            ),
            within_s=WITHIN_S,
            why="the peer has all entries",
        )
        seen = metrics(where)
        assert seen[f"braid_link_up{peer}"] == 1
        assert seen[f"braid_link_bytes_total{peer}"] > 5
        assert seen["braid_engine_up"] == 1
        with redis.Redis.from_url(pair.urls[2]) as engine:
            pid = int(engine.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(7):
                client.xadd("orders", {"n": number})
            eventually(
                lambda: (
                    metrics(where)[f"braid_link_up{peer}"] == 0
                    and metrics(where)[f"braid_link_lag_entries{peer}"] == 7
                    and metrics(where)[f"braid_link_lag_seconds{peer}"] > 1
                ),
                within_s=WITHIN_S,
                why="the peer lacks 7 entries",
            )
            assert get(where, "/readyz")[0] == 200, "a peer that is down does not make the daemon unready"
        finally:
            os.kill(pid, signal.SIGCONT)
        eventually(
            lambda: (
                metrics(where)[f"braid_link_lag_entries{peer}"] == 0
                and metrics(where)[f"braid_link_lag_seconds{peer}"] == 0
                and metrics(where)[f"braid_link_up{peer}"] == 1
            ),
            within_s=WITHIN_S,
            why="the peer caught up",
        )


def test_the_lag_of_a_peer_without_functions_does_not_stay_zero(pair: Pair) -> None:
    """FUNCTION FLUSH: the connection is fine, and every change is refused."""
    where, there, peer = pair.metrics[1], pair.metrics[2], "{peer=region-2}"
    with pair.client(1) as client, redis.Redis.from_url(pair.urls[2]) as engine:
        client.xadd("flushed", {"n": 0})
        eventually(
            lambda: metrics(where).get(f"braid_link_lag_entries{peer}") == 0,
            within_s=WITHIN_S,
            why="it follows",
        )
        engine.execute_command("FUNCTION", "FLUSH")
        for number in range(5):
            client.xadd("flushed", {"n": number})
        eventually(
            lambda: (
                metrics(where).get(f"braid_link_lag_entries{peer}", 0) >= 5
                and metrics(where).get(f"braid_link_lag_seconds{peer}", 0) > 1
            ),
            within_s=WITHIN_S,
            why="the peer lacks 5 entries",
        )
        eventually(lambda: metrics(there)["braid_functions_version"] == 0, within_s=WITHIN_S, why="none")
        assert "no engine functions" in get(there, "/readyz")[1]
    braid("init", "--url", pair.urls[2], "--region", "2", "--name", "region-2")
    eventually(
        lambda: metrics(where).get(f"braid_link_lag_entries{peer}") == 0 and get(there, "/readyz")[0] == 200,
        within_s=WITHIN_S,
        why="all is well again",
    )


@pytest.mark.parametrize("damage", ["malformed", "wrong type"])
def test_a_damaged_stream_does_not_hide_the_lag_of_the_others(pair: Pair, damage: str) -> None:
    """Its user may write its registry. Only its own entries are not counted."""
    where, peer = pair.metrics[1], "{peer=region-2}"
    with (
        pair.client(1) as client,
        redis.Redis.from_url(pair.urls[1]) as engine,
        redis.Redis.from_url(pair.urls[2]) as there,
    ):
        there.config_set("min-replicas-to-write", 1)  # it accepts nothing
        try:
            client.xadd("damaged", {"n": 0})
            if damage == "malformed":
                engine.hset("bs:meta:{damaged}", "o:s1", "notanumber")
            else:
                engine.set("bs:1:s:{damaged}", "no stream")
            for number in range(5):
                client.xadd("sound", {"n": number})
            eventually(
                lambda: metrics(where).get(f"braid_link_lag_entries{peer}", 0) >= 5,
                within_s=WITHIN_S,
                why="the sound stream counts",
            )
        finally:
            there.config_set("min-replicas-to-write", 0)
        eventually(
            lambda: metrics(where).get(f"braid_link_lag_entries{peer}") == 0,
            within_s=WITHIN_S,
            why="the peer has all of the sound one",
        )
        for server in (engine, there):
            for key in server.scan_iter("bs:*{damaged}*"):
                server.delete(key)


def test_a_gateway_says_whether_its_region_is_behind_or_fenced(pair: Pair) -> None:
    where = pair.gateway_metrics
    with pair.client(1) as here, pair.client(2) as there:
        eventually(
            lambda: get(where, "/readyz") == (200, "ready\n"), within_s=WITHIN_S, why="it should be ready"
        )
        here.config_set("maxmemory", 1)
        try:
            there.xadd("behind", {"n": 1})
            eventually(
                lambda: get(where, "/readyz?behind=1")[0] == 503, within_s=WITHIN_S, why="it should be behind"
            )
            status, text = get(where, "/readyz")
            assert status == 200
            assert text.startswith("ready\nregion region-1 is behind: region-2 has had entries for ")
            assert get(where, "/readyz?behind=1000")[0] == 200
        finally:
            here.config_set("maxmemory", 0)
        eventually(
            lambda: get(where, "/readyz?behind=1") == (200, "ready\n"),
            within_s=WITHIN_S,
            why="it should have caught up",
        )
        here.execute_command("HSET", "bs:config", "fenced", "1")
        try:
            eventually(lambda: get(where, "/readyz")[0] == 503, within_s=WITHIN_S, why="it should be fenced")
            assert "lost its data and is being restored" in get(where, "/readyz")[1]
        finally:
            here.execute_command("HDEL", "bs:config", "fenced")


def test_a_gateway_counts_commands_latencies_and_errors(pair: Pair) -> None:
    host, port = pair.gateway.split(":")
    with redis.Redis(host, int(port)) as client:
        for number in range(20):
            client.xadd("sales", {"n": number})
        pipe = client.pipeline(transaction=False)
        for number in range(16):
            pipe.xadd("sales", {"n": number})
        pipe.execute()
        assert client.xlen("sales") == 36
        client.set("plain", "1")
        with pytest.raises(redis.ResponseError):
            client.xadd("sales", {"n": 1}, id="5-5")
        seen = metrics(pair.gateway_metrics)
    assert seen["braid_gateway_commands_total{command=xadd}"] == 37
    assert seen["braid_gateway_commands_total{command=xlen}"] == 1
    assert seen["braid_gateway_commands_total{command=native}"] >= 1
    assert seen["braid_gateway_errors_total{code=ERR}"] == 1
    timed = sum(
        seen[f"braid_gateway_command_duration_seconds_count{{way={way}}}"] for way in ("append", "plan")
    )
    assert 38 - 2 * 16 <= timed <= 38, "one in 16 single appends is timed, and stands for those before it"
    assert seen["braid_gateway_clients"] == 1


def test_both_are_unready_and_healthy_while_their_engine_is_dead(flavour: Flavour) -> None:
    with braid_up(1, flavour) as up:
        _kill_and_look(up)


def test_a_key_that_is_no_registry_does_not_stop_the_lags_of_groups(pair: Pair) -> None:
    with pair.client(1) as client, redis.Redis.from_url(pair.urls[1]) as plain:
        plain.set("bs:meta:{bad}", "plain")
        try:
            client.xadd("work", {"n": 1})
            client.xgroup_create("work", "jobs", "0")
            fill_a_topic(client)
            for stream, lag in (("work", 1), ("parts", 10)):  # of a topic: of all partitions
                name = f"braid_group_lag_entries{{group=jobs,stream={stream}}}"
                eventually(
                    lambda name=name, lag=lag: metrics(pair.metrics[1]).get(name) == lag,  # type: ignore[misc]
                    within_s=WITHIN_S,
                    why="the group has not read an entry",
                )
            assert not [name for name in metrics(pair.metrics[1]) if "parts/0" in name]
        finally:
            plain.delete("bs:meta:{bad}")


def fill_a_topic(client: braidstream.Redis) -> None:
    topic = client.topic("parts")
    topic.create(4)
    topic.add_many([(f"k{number}", {"n": number}) for number in range(10)])
    for stream in topic.streams():
        client.xgroup_create(stream, "jobs", "0", mkstream=True)


def _kill_and_look(up: Up) -> None:
    held = "braid_links_held_seconds"
    eventually(lambda: held in metrics(up.metrics[1]), within_s=WITHIN_S, why="the state is known")
    with redis.Redis.from_url(up.urls[1]) as engine:
        os.kill(int(engine.info("server")["process_id"]), signal.SIGKILL)
    for where in (up.metrics[1], up.gateway_metrics[1]):
        status, why = eventually(
            lambda where=where: (found := get(where, "/readyz"))[0] == 503 and found,
            within_s=WITHIN_S,
            why="it should be unready",
        )
        assert status == 503
        assert "127.0.0.1" in why
        assert get(where, "/healthz") == (200, "ok\n")
        assert held not in metrics(where), "the last state is not shown for ever"


def test_strange_requests_are_refused_and_harm_nobody(pair: Pair) -> None:
    host, port = pair.metrics[1].split(":")

    def send(data: bytes) -> bytes:
        with socket.create_connection((host, int(port)), 10) as conn:
            conn.sendall(data)
            return conn.recv(100)

    assert send(b"POST /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405")
    assert send(b"GET /passwd HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404")
    assert send(b"\x16\x03\x01 not http\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert send(b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert send(b"HEAD /healthz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")
    idle = [socket.create_connection((host, int(port)), 10) for _ in range(70)]
    try:
        assert eventually(
            lambda: get(f"{host}:{port}", "/healthz")[0] == 200,
            within_s=WITHIN_S,
            why="idle ones are dropped",
        )
    finally:
        for conn in idle:
            conn.close()


def test_an_address_that_is_taken_is_named(pair: Pair, tmp_path: Path) -> None:
    done = braid("gateway", "--url", pair.urls[1], "--listen", "127.0.0.1:0", "--metrics", pair.metrics[1])
    assert done.returncode == 1
    assert f"{pair.metrics[1]}: cannot listen here: Address already in use" in done.stderr
    assert "--metrics" in done.stderr


def test_streams_that_a_client_writes_past_us_are_counted_until_they_are_brought_in(pair: Pair) -> None:
    def strays() -> tuple[float | None, float | None]:
        seen = metrics(pair.metrics[1])
        return seen.get("braid_stray_streams"), seen.get("braid_stray_entries")

    with pair.client(1) as client, redis.Redis.from_url(pair.urls[1]) as plain:
        client.xadd("sessions", {"n": 1})
        eventually(lambda: strays() == (0, 0), within_s=60, why="none yet")
        for number in range(3):
            plain.xadd("sessions", {"n": number})
        plain.xadd("nobodys", {"n": 1})  # a native stream that nobody adopted is not a stray
        eventually(lambda: strays() == (1, 3), within_s=60, why="one stream with three entries")
        assert braid("adopt", "--strays", "--url", pair.urls[1]).returncode == 0
        eventually(lambda: strays() == (0, 0), within_s=60, why="they are brought in")
        assert client.xlen("sessions") == 4
        plain.delete("nobodys")


def test_connections_that_say_nothing_keep_no_probe_out() -> None:
    async def ready() -> str:
        return ""

    async def probe() -> bytes:
        server = ProbeServer(Answers("r", list, ready))
        host, _, port = (await server.start("127.0.0.1", 0)).rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(MOST_CONNECTIONS + 6)]
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        for _, each in [*silent, (reader, writer)]:
            each.close()
        server.close()
        return answer

    assert asyncio.run(probe()).startswith(b"HTTP/1.1 200 OK")
