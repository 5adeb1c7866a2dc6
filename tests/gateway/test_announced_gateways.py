"""`braid gateway --announce`: to cluster clients two gateways are a cluster of two primaries."""

import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from braidstream.gateway.announce import parse_announced
from braidstream.gateway.hub import Settings
from tests.support.cli import braid
from tests.support.clients import Opener
from tests.support.cluster import Cluster, become_cluster
from tests.support.forked import braid_process
from tests.support.gateways import Line, Served, value_of
from tests.support.regions import become
from tests.support.servers import FLAVOURS, Engine, Flavour, free_port, tls_files
from tests.support.waiting import eventually

NAMES = [f"s{number}" for number in range(12)]
WITHIN_S = 30
# The longest that redis-py may fail after a gateway was killed. It takes about a second.
RECOVERS_WITHIN_S = 10

Pair = tuple[Served, Served]
Open = Callable[[int], Any]


@contextmanager
def announced(url: str, tls: ssl.SSLContext | None = None) -> Iterator[Pair]:
    """Two gateways before a region that name each other, once both know that the other answers."""
    places = [("127.0.0.1", free_port()) for _ in range(2)]
    settings = Settings(announce=tuple(places), tls=tls)
    first, second = (Served(url, settings, f"127.0.0.1:{port}") for _, port in places)
    with first, second:
        for one in (first, second):
            eventually(partial(knows_both, one), within_s=WITHIN_S, why="each should know the other")
        yield first, second


def knows_both(gateway: Served) -> bool:
    nodes = gateway.gateway.hub.announced
    assert nodes is not None
    return len(nodes._listed) == 2 and nodes._own == ("127.0.0.1", gateway.port)


@pytest.fixture(params=["server", "cluster"])
def pair(request: pytest.FixtureRequest, flavour: Flavour) -> Iterator[Pair]:
    if request.param == "server":
        engine: Engine = request.getfixturevalue("engine")
        become(engine)
        url = engine.url
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        become_cluster(cluster)
        url = cluster.url
    with announced(url) as gateways:
        yield gateways


@pytest.fixture(params=["sync", "asyncio"])
def cluster_client(request: pytest.FixtureRequest) -> Iterator[Open]:
    """redis-py's own cluster clients."""
    with ExitStack() as stack:
        opener = Opener(request.param, stack, "RedisCluster")
        yield lambda port: opener.bare(f"redis://127.0.0.1:{port}", decode_responses=True)


def appends_of(gateway: Served) -> int:
    metrics = gateway.gateway.hub.metrics
    return int(metrics.appended + metrics.commands.get("xadd", 0))


# What cluster clients do


def test_redis_py_spreads_streams_over_both_gateways(pair: Pair, cluster_client: Open) -> None:
    client = cluster_client(pair[0].port)
    ids = {name: client.xadd(name, {"of": name}) for name in NAMES}
    assert [appends_of(gateway) > 0 for gateway in pair] == [True, True]
    assert sum(map(appends_of, pair)) == len(NAMES)  # none was redirected
    for name in NAMES:
        assert client.xread({name: "0"}) == [[name, [(ids[name], {"of": name})]]]
        assert client.xgroup_create(name, "workers", id="0")
        read = client.xreadgroup("workers", "ann", {name: ">"})
        assert read == [[name, [(ids[name], {"of": name})]]]
        assert client.xack(name, "workers", ids[name]) == 1
    assert client.xread({NAMES[0]: "$"}, block=20) in (None, [])


@pytest.mark.parametrize("flavour", FLAVOURS, indirect=True)
def test_redis_py_finds_the_keys_of_commands_that_the_engine_lacks(pair: Pair, cluster_client: Open) -> None:
    client = cluster_client(pair[0].port)
    for name in NAMES[:4]:
        assert client.execute_command("TWRITE", f"log {name}", "tag", "entry") == 1
        assert client.execute_command("TREAD", f"log {name}", 1, 1) == [[1, "tag", "entry"]]
        entry = client.xadd(name, {"of": name})
        assert client.execute_command("XCFGSET", name, "IDMP-DURATION", 50) in ("OK", True)
        assert client.execute_command("XDELEX", name, "IDS", 1, entry) == [1]


def test_redis_py_runs_pipelines_transactions_and_plain_keys_of_many_slots(
    pair: Pair, cluster_client: Open
) -> None:
    client = cluster_client(pair[1].port)
    with client.pipeline() as pipe:
        for name in NAMES:
            pipe.set(f"key of {name}", name)
            pipe.xadd(name, {"of": name})
            pipe.xlen(name)
        replies = pipe.execute()
    assert replies[::3] == [True] * len(NAMES)
    assert replies[2::3] == [1] * len(NAMES)
    assert [client.get(f"key of {name}") for name in NAMES] == NAMES
    with client.pipeline(transaction=True) as pipe:
        pipe.incr("{a}1")
        pipe.xadd("{a}2", {"f": "v"})
        pipe.get("{a}1")
        done = pipe.execute()
    assert (done[0], done[2]) == (1, "1")
    assert client.mget_nonatomic(*(f"key of {name}" for name in NAMES)) == NAMES
    assert client.delete(*NAMES) == len(NAMES)
    assert client.info("cluster", target_nodes=client.get_random_node())["cluster_enabled"] == 1


def test_a_client_goes_on_through_the_other_gateway_when_one_is_killed(
    flavour: Flavour, cluster_client: Open
) -> None:
    with Engine(flavour) as engine, ExitStack() as stack:
        become(engine)
        ports = sorted([free_port(), free_port()])
        started = [stack.enter_context(gateway_process(engine, port, ports)) for port in ports]
        for port in ports:
            eventually(partial(lists, port, ports), within_s=WITHIN_S, why="both should be up")
        client = cluster_client(ports[0])
        for name in NAMES:
            client.xadd(name, {"before": 1})
        os.kill(started[0].pid, signal.SIGKILL)
        began = time.monotonic()
        eventually(
            lambda: all(works(client, name) for name in NAMES),
            within_s=RECOVERS_WITHIN_S,
            why="all streams should be written through the other gateway",
        )
        print(f"recovered after {time.monotonic() - began:.2f} s")
        assert lists(ports[1], ports[1:])
        stack.enter_context(gateway_process(engine, ports[0], ports))
        eventually(partial(lists, ports[1], ports), within_s=WITHIN_S, why="it should be listed again")


@contextmanager
def gateway_process(
    engine: Engine, port: int, ports: list[int], *more: str
) -> Iterator[subprocess.Popen[Any]]:
    names = ",".join(f"127.0.0.1:{each}" for each in ports)
    words = ["gateway", "--url", engine.url, "--listen", f"127.0.0.1:{port}", "--announce", names, *more]
    with braid_process(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=WITHIN_S)


def lists(port: int, ports: list[int]) -> bool:
    """Whether the gateway at a port tells clients of exactly these."""
    with Line(port) as line:
        return [node[1] for _, _, node in value_of(line.say("CLUSTER SLOTS"))] == ports


def works(client: Any, name: str) -> bool:
    try:
        return bool(client.xadd(name, {"after": 1}))
    except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.RedisClusterException):
        return False


def test_cluster_clients_connect_with_tls(flavour: Flavour, tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files["ca"]))
    context.load_cert_chain(files["cert"], files["key"])
    context.verify_mode = ssl.CERT_REQUIRED
    with Engine(flavour) as engine:
        become(engine)
        with announced(engine.url, context) as pair:
            url = f"rediss://127.0.0.1:{pair[0].port}?ssl_ca_certs={files['ca']}"
            url += f"&ssl_certfile={files['cert']}&ssl_keyfile={files['key']}"
            with redis.RedisCluster.from_url(url, decode_responses=True) as client:
                for name in NAMES:
                    assert client.xadd(name, {"f": "v"})
                [shard, _] = client.cluster_shards()
            assert shard["nodes"][0]["tls-port"] == min(each.port for each in pair)
            assert [appends_of(gateway) > 0 for gateway in pair] == [True, True]


def test_gateways_that_share_a_port_announce_one_address(flavour: Flavour) -> None:
    with Engine(flavour) as engine:
        become(engine)
        port = free_port()
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(gateway_process(engine, port, [port], "--reuse-port"))
            for _ in range(10):
                assert lists(port, [port])


# What gateways answer


def test_both_gateways_tell_of_the_same_cluster(pair: Pair) -> None:
    low, high = sorted(each.port for each in pair)
    with Line(pair[0].port) as one, Line(pair[1].port) as two:
        slots = value_of(one.say("CLUSTER SLOTS"))
        assert [[first, last, *node[:2]] for first, last, node in slots] == [
            [0, 8191, b"127.0.0.1", low],
            [8192, 16383, b"127.0.0.1", high],
        ]
        for words in ("CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER INFO", "CLUSTER KEYSLOT orders"):
            assert one.say(words) == two.say(words)
        ids = {node[1]: node[2] for _, _, node in slots}
        assert all(len(bytes.fromhex(each.decode())) == 20 for each in ids.values())
        for line, gateway in ((one, pair[0]), (two, pair[1])):
            assert value_of(line.say("CLUSTER MYID")) == ids[gateway.port]
            rows = value_of(line.say("CLUSTER NODES")).decode().splitlines()
            assert [row.split()[0].encode() for row in rows] == [ids[low], ids[high]]
            assert [row.split()[-1] for row in rows] == ["0-8191", "8192-16383"]
            [own] = [row for row in rows if "myself,master" in row]
            assert f":{gateway.port}@" in own
        assert one.say("CLUSTER KEYSLOT orders") == b":%d\r\n" % key_slot(b"orders")
        assert b"cluster_state:ok\r\n" in one.say("CLUSTER INFO")


def test_a_gateway_says_that_it_is_a_node_of_a_cluster(pair: Pair) -> None:
    with Line(pair[0].port) as line:
        for words in ("READONLY", "READWRITE", "ASKING", "SELECT 0"):
            assert line.say(words) == b"+OK\r\n", words
        assert line.say("SELECT 1").startswith(b"-ERR ")
        assert b"\r\ncluster_enabled:1\r\n" in line.say("INFO")
        assert b"_mode:cluster\r\n" in line.say("INFO server")
        assert value_of(line.say("HELLO 2"))[8:10] == [b"mode", b"cluster"]
        assert value_of(line.say("HELLO 3"))[b"mode"] == b"cluster"
        [shard, _] = value_of(line.say("CLUSTER SHARDS"))
        assert (shard[b"slots"], shard[b"nodes"][0][b"role"]) == ([0, 8191], b"master")
        assert line.say("CLUSTER NODES").startswith(b"=")
        replies = line.pipeline("SET a 1", "CLUSTER MYID", "GET a", "READONLY", "XLEN s")
        assert [reply[:2] for reply in replies] == [b"+O", b"$4", b"$1", b"+O", b":0"]


def test_what_only_a_real_cluster_can_do_is_refused(pair: Pair) -> None:
    with Line(pair[0].port) as line:
        for words in ("GETKEYSINSLOT 1 10", "COUNTKEYSINSLOT 1", "FAILOVER", "RESET", "FORGET x", "NONE"):
            assert line.say(f"CLUSTER {words}").startswith(b"-ERR CLUSTER "), words
            assert b"refused by braidstream" in line.say(f"CLUSTER {words}")
        assert line.say("CLUSTER").startswith(b"-ERR wrong number of arguments for 'cluster'")
        assert line.say("CLUSTER KEYSLOT").startswith(b"-ERR wrong number of arguments")
        assert line.say("PING") == b"+PONG\r\n"


def test_the_engine_says_who_may_ask(flavour: Flavour) -> None:
    with Engine(flavour) as engine:
        become(engine)
        with engine.client() as admin:
            admin.execute_command("ACL", "SETUSER", "boss", "on", ">secret", "~*", "&*", "+@all")
            admin.execute_command("ACL", "SETUSER", "bob", "on", ">b", "~*", "+get", "+readwrite")
            admin.execute_command("ACL", "SETUSER", "default", "off")
        with announced(engine.url.replace("//", "//boss:secret@")) as pair, Line(pair[0].port) as line:
            for words in ("CLUSTER SLOTS", "CLUSTER MYID", "READONLY"):
                assert line.say(words) == b"-NOAUTH Authentication required.\r\n"
            assert line.say("AUTH bob b") == b"+OK\r\n"
            assert line.say("CLUSTER SLOTS").startswith(b"-NOPERM")
            assert line.say("READONLY") == b"+OK\r\n"
            assert line.say("AUTH boss secret") == b"+OK\r\n"
            assert line.say("CLUSTER SLOTS").startswith(b"*2")


def test_without_announce_a_gateway_answers_as_the_engine_does(line: Line, bare: Line) -> None:
    refused = b"-ERR This instance has cluster support disabled\r\n"
    for words in (
        "CLUSTER SLOTS",
        "CLUSTER NODES",
        "CLUSTER",
        "READONLY",
        "READWRITE",
        "ASKING",
        "READONLY x",
    ):
        assert line.say(words) == bare.say(words)
    assert line.pipeline("SET a 1", "CLUSTER SLOTS", "GET a") == [b"+OK\r\n", refused, b"$1\r\n1\r\n"]
    assert b"\r\ncluster_enabled:0\r\n" in line.say("INFO")
    assert value_of(line.say("HELLO 3"))[b"mode"] == b"standalone"
    assert line.say("SELECT 1") == b"+OK\r\n"


# What --announce takes


def test_names_and_addresses_of_both_families_are_taken() -> None:
    assert parse_announced("gw-1.example:6390, 10.0.0.2:6390,[::1]:7") == (
        ("gw-1.example", 6390),
        ("10.0.0.2", 6390),
        ("::1", 7),
    )


@pytest.mark.parametrize(
    "text",
    ["", ",", "host", "host:", "host:0", "host:65536", ":6390", "a:1,,b:2", "a b:1", "redis://a:1", "::1:7"]
    + ["a..b:1", f"{'a' * 64}:1", "0.0.0.0:6390", "[::]:6390", "a:1,a:1", "unix:/tmp/x"],
)
def test_what_clients_cannot_connect_to_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|they reach|each gateway once"):
        parse_announced(text)


def test_wrong_uses_of_the_option_say_what_is_wrong() -> None:
    url, good = "redis://127.0.0.1:1", "127.0.0.1:6390"
    for words, why in (
        (["--url", url, "--announce", "host"], "is not a gateway's address"),
        (["--url", url, "--announce", good, "--listen", "unix:/tmp/x"], "needs a TCP address"),
        (["--url", f"{url}/3", "--announce", good], "database 0 only"),
    ):
        done = braid("gateway", *words)
        assert done.returncode == 2
        assert why in " ".join(done.stderr.replace("│", " ").split())
