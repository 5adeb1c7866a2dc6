"""The durability gate: what a failover takes away at home, no peer has ever seen."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import redis

import braidstream
from braidstream.net.address import parse_address
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.gate import WAIT_MS, Durability, Gate
from tests.support.daemons import numbered, replicating, write_config
from tests.support.regions import become, client_of
from tests.support.replicas import Site, promote, site
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 20
T = TypeVar("T")


@dataclass
class Failover(Site):
    """Region 1, and region 2 beside it. A replica of the replica follows it when it is promoted."""

    peer: Engine

    @property
    def urls(self) -> dict[int, str]:
        return {1: self.url, 2: self.peer.url}


@pytest.fixture
def failover(flavour: Flavour) -> Iterator[Failover]:
    with site(flavour, second=True) as home, Engine(flavour) as peer:
        numbered([home, peer])
        yield Failover(home.primary, home.replica, home.line, home.door, peer)


def again(act: Callable[[], T]) -> T:
    """A client that tries again while its region fails over."""
    found: list[T] = []

    def attempt() -> bool:
        try:
            found.append(act())
        except redis.ConnectionError:
            return False
        return True

    eventually(attempt, within_s=WITHIN_S, why="the region should answer again")
    return found[0]


def alike(one: braidstream.Redis, two: braidstream.Redis, name: str = "x") -> list[str]:
    """Wait until both regions have the same entries; their `n`."""
    eventually(
        lambda: again(lambda: one.xrange(name)) == two.xrange(name), within_s=WITHIN_S, why="alike in the end"
    )
    return [fields["n"] for _, fields in two.xrange(name)]


def test_what_a_failover_loses_is_lost_alike_everywhere(failover: Failover, tmp_path: Path) -> None:
    one = braidstream.Redis.from_url(failover.url, decode_responses=True)
    two = client_of(failover.peer, decode_responses=True)

    def send(message: str) -> str:
        return str(one.execute_command("XADD", "x", "IDMP", "producer", message, "*", "n", message))

    with (
        one,
        two,
        replicating(tmp_path, failover.urls) as daemon,
        replicating(tmp_path, failover.urls, 2),
    ):
        send("m0")
        kept = [one.xadd("x", {"n": "kept"}) for _ in range(5)]
        eventually(lambda: two.xlen("x") == 6, within_s=WITHIN_S, why="the link should work")
        failover.deafen()
        messages = [f"m{number}" for number in range(1, 11)]
        lost = {send(message) for message in messages}
        lost |= {one.xadd("x", {"n": "lost"}) for _ in range(300)}
        one.xdel("x", kept[0])
        daemon.tells("link.held")
        assert [fields["n"] for _, fields in two.xrange("x")] == ["m0"] + ["kept"] * 5

        failover.fail_over()
        new = [again(lambda: one.xadd("x", {"n": "new"})) for _ in range(300)]
        for message in messages:
            send(message)
        assert one.xdel("x", kept[1]) == 1
        seen = alike(one, two)
        assert sorted(n for n in seen if n[0] == "m") == sorted(["m0", *messages])
        assert seen.count("new") == len(set(new)) == 300
        assert seen.count("kept") == 4
        assert "lost" not in seen
        assert failover.replica.alive
        assert not lost.intersection(entry for entry, _ in two.xrange("x") if entry not in new)


def test_an_old_primary_that_lives_on_alone_tells_nobody(failover: Failover, tmp_path: Path) -> None:
    one = client_of(failover.primary, decode_responses=True)
    two = client_of(failover.peer, decode_responses=True)
    with one, two, replicating(tmp_path, failover.urls) as daemon:
        one.xadd("x", {"n": "1"})
        eventually(lambda: two.xlen("x") == 1, within_s=WITHIN_S, why="the link should work")
        failover.cut_off()
        promote(failover.replica)
        one.xadd("x", {"n": "nobody else knows"})
        assert "0 of 1 replicas" in daemon.tells("link.held")
        assert two.xlen("x") == 1


def test_held_links_go_on_when_a_replica_is_back_or_the_operator_says_so(
    failover: Failover, tmp_path: Path
) -> None:
    one = client_of(failover.primary, decode_responses=True)
    two = client_of(failover.peer, decode_responses=True)
    with one, two, replicating(tmp_path, failover.urls) as daemon:
        assert "durability=replicas:1" in daemon.tells("gate.chosen")
        failover.cut_off()
        one.xadd("x", {"n": "1"})
        daemon.tells("link.held")
        assert two.xlen("x") == 0
        failover.line.open()
        daemon.tells("link.released")
        eventually(lambda: two.xlen("x") == 1, within_s=WITHIN_S, why="it should go on")

        failover.cut_off()
        one.xadd("x", {"n": "2"})
        daemon.tells("link.held")
        write_config(tmp_path / "braid-1.toml", failover.urls, durability={1: "none"})
        eventually(lambda: two.xlen("x") == 2, within_s=WITHIN_S, why="nobody waits for replicas any more")


def test_a_region_without_replicas_may_wait_for_its_disk(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour, args=["--appendonly", "yes"]) as home, Engine(flavour) as peer:
        become(home, region=1, name="region-1")
        become(peer, region=2, name="region-2")
        urls = {1: home.url, 2: peer.url}
        one, two = (client_of(engine, decode_responses=True) for engine in (home, peer))
        with one, two, replicating(tmp_path, urls, durability={1: "aof"}) as daemon:
            one.xadd("x", {"n": "1"})
            if knows(home, "WAITAOF"):
                eventually(lambda: two.xlen("x") == 1, within_s=WITHIN_S, why="it is on disk in a second")
            else:
                assert "WAITAOF" in daemon.tells("link.held")
                assert two.xlen("x") == 0


def knows(engine: Engine, command: str) -> bool:
    with engine.client() as client:
        return command.lower().encode() in client.command_list()


@pytest.mark.parametrize("flavour", NEWEST, indirect=True)
def test_a_new_choice_is_not_confirmed_by_the_reply_to_the_old_one(engine: Engine) -> None:
    """The operator changes replicas:1 to aof while WAIT runs. It returns 0, which says nothing of the AOF."""

    def read() -> Plan[None]:
        yield Batch([("PING",)])

    async def is_held() -> bool:
        source = Endpoint(parse_address(engine.url))
        await source.connect()
        gate = Gate(source, Durability(replicas=1))
        reading = asyncio.create_task(gate.run(read()))
        async with asyncio.timeout(WITHIN_S):
            while not gate.held_s:
                await asyncio.sleep(0.01)
        gate.want(Durability(aof=True))
        done, _ = await asyncio.wait([reading], timeout=4 * WAIT_MS / 1000)
        reading.cancel()
        gate.close()
        source.close("the test is over")
        return not done

    assert asyncio.run(is_held())
