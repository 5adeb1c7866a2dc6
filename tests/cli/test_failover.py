"""`braid failover`, by real sentinels and under load."""

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
import redis.sentinel

import braidstream
from tests.support.cli import braid
from tests.support.gateways import Served
from tests.support.regions import become, client_of
from tests.support.replicas import SentinelGroup, role_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 30


def _writing(stack: ExitStack, add: Callable[[str], object]) -> list[str]:
    """Add numbered values in a thread until the stack is closed; what was acknowledged so far."""
    acknowledged, stop = list[str](), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                add(str(number))
                acknowledged.append(str(number))
            except redis.RedisError:
                pass  # a write that waited is refused when the primary has become a replica
            stop.wait(0.002)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)
    return acknowledged


def test_no_acknowledged_write_of_any_client_is_lost(flavour: Flavour, tmp_path: Path) -> None:
    """Also of redis-py's own clients, which do not hear of a failover."""
    with ExitStack() as outer:
        group = outer.enter_context(SentinelGroup(flavour, replicas=2))
        become(group.primary, region=1, name="us-east")
        file = tmp_path / "braid.toml"
        file.write_text(f'[[region]]\nid = 1\nname = "us-east"\nurl = "{group.url}"\n')
        old = group.primary
        with ExitStack() as stack:
            served = stack.enter_context(Served(group.url))
            gateway = stack.enter_context(redis.Redis(port=served.port))
            ours = stack.enter_context(braidstream.from_url(group.url))
            sentinels = redis.sentinel.Sentinel(group.addresses)
            stack.callback(lambda: [each.close() for each in sentinels.sentinels])
            plain = stack.enter_context(sentinels.master_for("m"))
            writes = {
                "ours": _writing(stack, lambda n: ours.xadd("ours", {"n": n})),
                "gateway": _writing(stack, lambda n: gateway.xadd("gateway", {"n": n})),
                "plain": _writing(stack, lambda n: plain.rpush("plain", n)),
            }
            eventually(lambda: all(map(len, writes.values())), within_s=WITHIN_S, why="all should write")
            done = braid("failover", "--config", str(file), "--region", "us-east", "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            before = {name: len(each) for name, each in writes.items()}
            for name, each in writes.items():
                eventually(
                    lambda each=each, name=name: len(each) > before[name] + 20,  # type: ignore[misc]
                    within_s=WITHIN_S,
                    why=f"{name} should go on",
                )
        facts = json.loads(done.stdout)
        new = next(engine for engine in group.engines if facts["new"] == f"127.0.0.1:{engine.port}")
        assert (new, facts["old"], role_of(old)) == (group.primary, f"127.0.0.1:{old.port}", "slave")
        with client_of(new, decode_responses=True) as home:
            kept = {name: {fields["n"] for _, fields in home.xrange(name)} for name in ("ours", "gateway")}
            kept["plain"] = {*home.lrange("plain", 0, -1)}
        assert {name: len({*each} - kept[name]) for name, each in writes.items()} == dict.fromkeys(writes, 0)


def test_a_replica_that_does_not_follow_stops_it_and_writes_go_on(flavour: Flavour) -> None:
    with SentinelGroup(flavour, replicas=1) as group:
        primary, replica = group.engines
        become(primary)
        with primary.client() as client, replica.paused():
            client.set("k", 1)
            done = braid("failover", "--url", group.url, "--timeout", "1")
            assert done.returncode == 1
            assert f"after 1 s replica 127.0.0.1:{replica.port} did not have everything" in done.stderr
            assert "--timeout SECONDS" in done.stderr
            assert client.set("k", 2)
        assert role_of(primary) == "master"


@pytest.mark.parametrize("replicas", [0, 1])
def test_without_a_replica_to_promote_nothing_changes(flavour: Flavour, replicas: int) -> None:
    """None at all, or one that the sentinels must not promote."""
    with SentinelGroup(flavour, replicas=replicas, priority=0) as group:
        done = braid("failover", "--url", group.url)
        assert done.returncode == 1
        wanted = "whose replica-priority is not 0" if replicas else "no replica is connected"
        assert wanted in done.stderr
        with group.engines[0].client(socket_timeout=5) as client:
            assert client.set("k", 1)


def test_without_sentinels_it_says_what_to_type_instead(flavour: Flavour) -> None:
    with Engine(flavour) as engine, Engine(flavour, cluster=True) as node:
        for url, wanted in ((engine.url, "type FAILOVER into the primary"), (node.url, "CLUSTER FAILOVER")):
            done = braid("failover", "--url", url)
            assert (done.returncode, wanted in done.stderr) == (1, True), done.stderr
    assert braid("failover").returncode == 2
