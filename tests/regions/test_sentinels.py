"""Failovers by real sentinels, under load: daemons, gateways and clients follow, and regions stay alike."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

import braidstream
from braidstream.clusters.bulk import Server
from braidstream.plan.lookup import read_region
from tests.support.cli import braid
from tests.support.daemons import Daemon, replicating
from tests.support.gateways import Served
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.replicas import SentinelGroup, promote, replica_of, role_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 30
# The goal: so long after the promotion everything works again.
# On a quiet machine it takes 1.4 to 2.5 s, and the goal is 5 s; CI runs four tests at once on two cores.
FOLLOW_WITHIN_S = 15


@dataclass
class Writer:
    """Adds entries until stopped, and notes what was acknowledged and when."""

    client: redis.Redis
    name: str
    acknowledged: dict[str, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.is_set():
            try:
                entry = self.client.xadd("x", {"n": self.name})
                self.acknowledged[str(entry)] = time.monotonic()
            except redis.RedisError:
                pass  # a failover: it goes on
            time.sleep(0.005)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@dataclass
class Scene:
    """Region 1 is watched by sentinels, region 2 is one engine. Both have daemons, region 1 a gateway."""

    group: SentinelGroup
    peer: Engine
    daemons: list[Daemon]
    gateway: redis.Redis
    direct: redis.Redis
    two: redis.Redis

    def arrives(self, source: redis.Redis, target: Engine) -> bool:
        """Whether one more entry comes through; an entry that was lost on the way is sent again."""
        try:
            entry = source.xadd("x", {"n": "probe"})
        except redis.RedisError:
            return False
        with client_of(target, decode_responses=True) as there:
            deadline = time.monotonic() + 0.5
            while time.monotonic() < deadline:
                if there.xrange("x", entry, entry):
                    return True
                time.sleep(0.01)
        return False


@pytest.fixture
def scene(flavour: Flavour, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        group = stack.enter_context(SentinelGroup(flavour))
        peer = stack.enter_context(Engine(flavour))
        become(group.primary, region=1, name="region-1")
        become(peer, region=2, name="region-2")
        urls = {1: group.url, 2: peer.url}
        daemons = [stack.enter_context(replicating(tmp_path, urls, number)) for number in (1, 2)]
        for daemon in daemons:
            daemon.tells("daemon.ready")
        served = stack.enter_context(Served(group.url))
        gateway = stack.enter_context(redis.Redis(port=served.port, decode_responses=True))
        direct = stack.enter_context(braidstream.Redis.from_url(group.url, decode_responses=True))
        two = stack.enter_context(client_of(peer, decode_responses=True))
        yield Scene(group, peer, daemons, gateway, direct, two)


def difference(home: redis.Redis, peer: redis.Redis) -> dict[str, list[str]]:
    one, two = (dict(client.xrange("x")) for client in (home, peer))
    only = {"at home only": one.keys() - two.keys(), "at the peer only": two.keys() - one.keys()}
    return {
        where: sorted(f"{entry} {(one | two)[entry]}" for entry in found)
        for where, found in only.items()
        if found
    }


def planned(group: SentinelGroup) -> None:
    group.fail_over()


def killed(group: SentinelGroup) -> None:
    group.primary.kill()


def frozen(group: SentinelGroup) -> None:
    group.primary.pause()


@pytest.mark.parametrize("fails", [planned, killed, frozen])
def test_everybody_follows_a_failover_and_no_entry_is_at_a_peer_only(
    scene: Scene, fails: Callable[[SentinelGroup], None]
) -> None:
    group, old = scene.group, scene.group.primary
    writers = [Writer(scene.gateway, "gateway"), Writer(scene.direct, "direct"), Writer(scene.two, "two")]
    eventually(lambda: scene.two.xlen("x") > 100, within_s=WITHIN_S, why="entries should flow")
    fails(group)
    new = group.promoted(old)
    promoted_at = time.monotonic()
    for what, source, target in (
        ("gateway to peer", scene.gateway, scene.peer),
        ("peer to new primary", scene.two, new),
    ):
        left_s = promoted_at + FOLLOW_WITHIN_S - time.monotonic()
        eventually(
            lambda source=source, target=target: scene.arrives(source, target),  # type: ignore[misc]
            within_s=left_s,
            why=f"{what} within {FOLLOW_WITHIN_S} s after the promotion",
        )
    print(f"{fails.__name__}: everybody followed {time.monotonic() - promoted_at:.1f} s after the promotion")
    if fails is frozen:
        old.resume()
    if fails is not killed:
        eventually(lambda: role_of(old) == "slave", within_s=WITHIN_S, why="the old primary is a replica now")
    for writer in writers:
        writer.stop()
    assert not scene.daemons[0].said("link.lost"), "the own server failed over, not the peer"
    with client_of(new, decode_responses=True) as home:
        eventually(
            lambda: not difference(home, scene.two),
            within_s=WITHIN_S,
            why=f"nothing should be at one region only, {difference(home, scene.two)}",
        )
        kept = {entry for entry, _ in home.xrange("x")}
        assert len(kept) == home.xlen("x")
        assert kept >= set(writers[2].acknowledged), "what the peer took is everywhere"
        later = {entry for entry, at in writers[0].acknowledged.items() if at > promoted_at + FOLLOW_WITHIN_S}
        assert kept >= later, "what the gateway took since then is everywhere"


class InLoop:
    """A client of asyncio, called from a thread."""

    def __init__(self, url: str) -> None:
        self._runner, self._url = asyncio.Runner(), url
        self._client: Any = None

    def xadd(self, *args: Any) -> Any:
        return self._runner.run(self._add(*args))

    async def _add(self, *args: Any) -> Any:
        if self._client is None:
            self._client = braidstream.asyncio.from_url(self._url, decode_responses=True)
        return await self._client.xadd(*args)

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


def test_a_planned_failover_loses_nothing_of_our_clients_and_the_gateway(flavour: Flavour) -> None:
    """The old primary acknowledges writes for 10 s more, until the sentinels demote it."""
    with ExitStack() as stack:
        group = stack.enter_context(SentinelGroup(flavour, replicas=1))
        become(group.primary)
        served = stack.enter_context(Served(group.url))
        sentinel = braidstream.Sentinel(group.addresses)
        opened = {
            "gateway": stack.enter_context(redis.Redis(port=served.port, decode_responses=True)),
            "URL": stack.enter_context(braidstream.from_url(group.url, decode_responses=True)),
            "Sentinel": stack.enter_context(sentinel.master_for("m", decode_responses=True)),
            "asyncio": stack.enter_context(closing(InLoop(group.url))),
        }
        stack.callback(lambda: [each.close() for each in sentinel.sentinels])
        writers = [Writer(client, name) for name, client in opened.items()]
        for writer in writers:
            stack.callback(writer.stop)
        eventually(lambda: group.subscribers() >= 4 * 3, within_s=WITHIN_S, why="all should subscribe")
        old = group.primary
        group.fail_over()
        new = group.promoted(old)
        for writer in writers:
            wanted = len(writer.acknowledged) + 50
            eventually(
                lambda writer=writer, wanted=wanted: len(writer.acknowledged) > wanted,  # type: ignore[misc]
                within_s=WITHIN_S,
                why=f"{writer.name} should go on",
            )
        for writer in writers:
            writer.stop()
        with client_of(new, decode_responses=True) as home:
            kept = {entry for entry, _ in home.xrange("x")}
        lost = {writer.name: len(set(writer.acknowledged) - kept) for writer in writers}
        assert lost == dict.fromkeys(opened, 0)


def test_a_demoted_primary_behind_a_plain_address_is_left(flavour: Flavour, tmp_path: Path) -> None:
    """As with a virtual IP address that moves without cutting connections: READONLY is a lost connection."""
    with (
        Engine(flavour) as old,
        replica_of(old) as new,
        Engine(flavour) as peer,
        Proxy(old.port) as address,
    ):
        become(old, region=1, name="region-1")
        become(peer, region=2, name="region-2")
        urls = {1: address.url, 2: peer.url}
        with (
            replicating(tmp_path, urls) as one,
            replicating(tmp_path, urls, 2) as two,
            client_of(peer, decode_responses=True) as there,
            client_of(new, decode_responses=True) as here,
            Served(address.url) as served,
            redis.Redis(port=served.port, decode_responses=True) as gateway,
        ):
            for daemon in (one, two):
                daemon.tells("daemon.ready")
            gateway.xadd("x", {"n": "1"})
            eventually(lambda: there.xlen("x") == 1, within_s=WITHIN_S, why="the link should work")
            promote(new)
            address.target_port = new.port  # connections stay
            with old.client() as operator:
                operator.execute_command("REPLICAOF", "127.0.0.1", new.port)
            there.xadd("x", {"n": "2"})
            eventually(lambda: here.xlen("x") == 2, within_s=WITHIN_S, why="the peer's link should follow")
            entry = here.xadd("x", {"n": "3"})
            eventually(lambda: there.xrange("x", entry), within_s=WITHIN_S, why="the own daemon too")

            def writes() -> bool:
                try:
                    return bool(gateway.xadd("x", {"n": "4"}))
                except redis.ReadOnlyError:
                    return False

            eventually(writes, within_s=WITHIN_S, why="the gateway too")


def test_wherever_a_url_is_taken_it_may_name_sentinels(flavour: Flavour) -> None:
    with SentinelGroup(flavour, replicas=1) as group:
        done = braid("init", "--url", group.url, "--region", "1", "--name", "one")
        assert done.returncode == 0, done.stderr
        assert f"{group.url} is region 1" in done.stdout
        with braidstream.from_url(group.url, decode_responses=True) as client:
            entry = client.xadd("x", {"n": "1"})
            assert client.pipeline().xlen("x").execute() == [1]

        async def read() -> list[str]:
            async with braidstream.asyncio.from_url(group.url, decode_responses=True) as client:
                return [entry for entry, _ in await client.xrange("x")]

        assert asyncio.run(read()) == [entry]
        server = Server(group.url)  # what Spark's source and sink use
        try:
            assert server.run(read_region(), b"").id == 1
        finally:
            server.close()


def test_sentinels_give_idempotent_clients(flavour: Flavour) -> None:
    options = {"idempotent": True, "producer": "web"}
    with SentinelGroup(flavour, replicas=0) as group:
        become(group.primary)
        with braidstream.Sentinel(group.addresses).master_for("m", **options) as client:
            assert client.xadd("x", {"n": "1"})
            assert client.session.producer.name == b"web"

        async def append() -> None:
            sentinel = braidstream.asyncio.Sentinel(group.addresses)
            async with sentinel.master_for("m", **options) as client:
                assert await client.xadd("x", {"n": "1"})
                assert client.session.producer.name == b"web"
            for each in sentinel.sentinels:
                await each.aclose()

        asyncio.run(append())


def test_an_idle_link_to_a_frozen_server_is_noticed_in_seconds(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as home, Engine(flavour) as peer:
        become(home, region=1, name="region-1")
        become(peer, region=2, name="region-2")
        with replicating(tmp_path, {1: home.url, 2: peer.url}) as daemon:
            daemon.tells("daemon.ready")
            with peer.paused():
                daemon.tells("link.lost peer=region-2", within_s=20)
            daemon.tells("link.up peer=region-2")
