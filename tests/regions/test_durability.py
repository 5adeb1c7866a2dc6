"""The durability gate: what a failover takes away at home, no peer has ever seen."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis

import braidstream
from braidstream.engine.address import parse_address
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.gate import WAIT_MS, Durability, Gate
from tests.support.cli import braid
from tests.support.daemons import numbered, replicating, write_config
from tests.support.regions import become, client_of
from tests.support.replicas import Site, promote, site
from tests.support.servers import NEWEST, Engine, Flavour, free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

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


def test_a_choice_that_is_deleted_from_the_file_does_not_count_any_more(
    flavour: Flavour, tmp_path: Path
) -> None:
    with Engine(flavour) as home, Engine(flavour) as peer:
        urls = numbered([home, peer])
        file = tmp_path / "braid-1.toml"
        one, two = (client_of(engine, decode_responses=True) for engine in (home, peer))
        with one, two, replicating(tmp_path, urls, durability={1: "replicas:1"}) as daemon:
            one.xadd("x", {"n": "1"})
            daemon.tells("link.held")
            write_config(file, urls)
            eventually(lambda: two.xlen("x") == 1, within_s=WITHIN_S, why="it never had a replica")


def page(port: int, path: str) -> str:
    """Of the daemon's probes and metrics; also if it is not ready."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as reply:
            return str(reply.read().decode())
    except HTTPError as error:
        return str(error.read().decode())


def test_links_that_are_held_say_what_for_and_go_on_by_tune_until_it_is_undone(
    failover: Failover, tmp_path: Path
) -> None:
    one = client_of(failover.primary, decode_responses=True)
    two = client_of(failover.peer, decode_responses=True)
    probes = free_port()
    with one, two, replicating(tmp_path, failover.urls, listen={1: probes}) as daemon:
        file = str(tmp_path / "braid-1.toml")
        tune = ("tune", "durability", "--config", file, "--region", "region-1")
        daemon.tells("gate.chosen")
        failover.cut_off()
        one.xadd("x", {"n": "1"})
        daemon.tells("link.held")
        held = eventually(lambda: problem(file, "held"), within_s=WITHIN_S, why="status should show it")
        assert held["text"].endswith("s: 0 of 1 replicas have what was written")
        assert held["fix"].endswith("To go on without it: braid tune durability none --region region-1")
        waits = "replication waits for durability replicas:1"
        eventually(lambda: waits in page(probes, "readyz"), within_s=WITHIN_S, why="the probe should say so")

        assert braid(*tune, "none").returncode == 0
        assert "durability=none" in daemon.tells("gate.tuned")
        eventually(lambda: two.xlen("x") == 1, within_s=WITHIN_S, why="it should go on")
        tuned = eventually(lambda: problem(file, "tuned"), within_s=WITHIN_S, why="status should show it")
        assert tuned["fix"].endswith("braid tune durability file --region region-1")
        eventually(lambda: problem(file, "held") is None, within_s=WITHIN_S, why="it does not wait any more")
        waived = 'braid_durability_waived{region="region-1"} 1'
        eventually(lambda: waived in page(probes, "metrics"), within_s=WITHIN_S, why="so say the metrics")

        assert braid(*tune, "file").returncode == 0
        assert "durability=file" in daemon.tells("gate.tuned")
        one.xadd("x", {"n": "2"})
        eventually(lambda: problem(file, "held"), within_s=WITHIN_S, why="it waits for the replica again")
        eventually(lambda: problem(file, "tuned") is None, within_s=WITHIN_S, why="nothing is tuned now")
        assert two.xlen("x") == 1


def test_after_a_time_limit_links_go_on_until_a_replica_is_back(failover: Failover, tmp_path: Path) -> None:
    one = client_of(failover.primary, decode_responses=True)
    two = client_of(failover.peer, decode_responses=True)
    with one, two, replicating(tmp_path, failover.urls, durability_timeout_s={1: 1.5}) as daemon:
        daemon.tells("gate.chosen")
        failover.cut_off()
        one.xadd("x", {"n": "1"})
        assert "durability=replicas:1" in daemon.tells("gate.waived")
        eventually(lambda: two.xlen("x") == 1, within_s=WITHIN_S, why="the limit is over")
        one.xadd("x", {"n": "2"})
        eventually(lambda: two.xlen("x") == 2, within_s=WITHIN_S, why="links go on")
        assert daemon.text.count("gate.waived") == 1, "the time does not begin again"
        file = str(tmp_path / "braid-1.toml")
        eventually(lambda: problem(file, "waived"), within_s=WITHIN_S, why="status should show it")
        failover.line.open()
        daemon.tells("gate.restored")
        failover.cut_off()
        one.xadd("x", {"n": "3"})
        daemon.tells("link.held")


def test_links_that_lack_a_right_name_it(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as home, Engine(flavour) as peer:
        urls = numbered([home, peer])
        with home.client() as admin:
            admin.execute_command("ACL", "SETUSER", "link", "on", ">secret", "~*", "&*", "+@all", "-publish")
        urls[1] = f"redis://link:secret@127.0.0.1:{home.port}"
        with (
            client_of(home) as one,
            replicating(tmp_path, urls, durability={1: "replicas:1"}) as daemon,
        ):
            one.xadd("x", {"n": "1"})
            assert "NOPERM" in daemon.tells("link.held")
            file = str(tmp_path / "braid-1.toml")
            held = eventually(lambda: problem(file, "held"), within_s=WITHIN_S, why="status should show it")
        assert "publish" in held["text"]
        assert held["fix"].endswith("ACL SETUSER USER &bs:gate +publish +wait +waitaof")


def problem(file: str, kind: str) -> dict[str, str] | None:
    """A problem that `braid status` shows."""
    found = json.loads(braid("status", "--config", file, "--json").stdout)
    return next((each for each in found["problems"] if each["kind"] == kind), None)


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


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_a_new_choice_is_not_confirmed_by_the_reply_to_the_old_one(engine: Engine) -> None:
    """The operator changes replicas:1 to aof while WAIT runs. It returns 0, which says nothing of the AOF."""

    def read() -> Plan[None]:
        yield Batch([("PING",)])

    async def is_held() -> bool:
        source = Endpoint(parse_address(engine.url))
        await source.connect()
        gate = Gate(source, Durability(replicas=1))
        reading = asyncio.create_task(gate.of(source.nodes[0]).run(read()))
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
