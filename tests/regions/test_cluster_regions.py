"""`braid replicate` and `braid region` with regions that are clusters."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

import braidstream
from braidstream.engine.address import parse_address
from braidstream.model import keys
from braidstream.replication.daemon.reporting import measure
from braidstream.replication.endpoint import Endpoint
from tests.support.cli import braid
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.daemons import Daemon, all_replicating, write_config
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

NAMES = [f"s{number}" for number in range(9)]
WITHIN_S = 30

Region = Cluster | Engine


def numbered(*regions: Region) -> dict[int, str]:
    """Make them regions; their addresses, by number."""
    for number, region in enumerate(regions, start=1):
        how = become_cluster if isinstance(region, Cluster) else become
        how(region, region=number, name=f"region-{number}")  # type: ignore[operator]
    return {number: region.url for number, region in enumerate(regions, start=1)}


@contextmanager
def clients_of(*regions: Region) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        yield [stack.enter_context(_open(region)) for region in regions]


def _open(region: Region) -> Any:
    if isinstance(region, Cluster):
        return braidstream.RedisCluster.from_url(
            region.url, decode_responses=True, require_full_coverage=False
        )
    return braidstream.Redis.from_url(region.url, decode_responses=True)


def state_of(client: Any, name: str) -> Any:
    """The entries of a stream, and how far its groups are. None if it does not exist."""
    try:
        groups = [(group["name"], group["last-delivered-id"]) for group in client.xinfo_groups(name)]
    except braidstream.ResponseError as error:
        if str(error) != "no such key":
            raise
        return None
    return client.xrange(name), sorted(groups)


def become_equal(clients: list[Any], names: list[str] = NAMES) -> None:
    for name in names:

        def are_equal(name: str = name) -> bool:
            one, *others = [state_of(client, name) for client in clients]
            return all(other == one for other in others)

        try:
            eventually(are_equal, within_s=WITHIN_S, why=f"{name} should be the same in all regions")
        except AssertionError:
            print(*(state_of(client, name) for client in clients), sep="\n")
            raise


def slot(name: str) -> int:
    return int(key_slot(keys.meta(name.encode())))


@pytest.mark.parametrize("peer", ["server", "cluster"])
def test_a_cluster_and_a_peer_become_equal(
    flavour: Flavour, cluster: Cluster, tmp_path: Path, peer: str
) -> None:
    with Cluster(flavour) if peer == "cluster" else Engine(flavour) as other:
        urls = numbered(cluster, other)
        with clients_of(cluster, other) as clients, all_replicating(tmp_path, urls):
            one, two = clients
            for number in range(90):
                for client in clients:
                    client.xadd(NAMES[number % 9], {"n": str(number)})
            become_equal(clients)

            one.xgroup_create("s1", "jobs", "0")
            two.xgroup_create("s2", "jobs", "0")
            become_equal(clients)
            last = {}
            for client, name in ((two, "s1"), (one, "s2")):
                [[_, entries]] = client.xreadgroup("jobs", "ann", {name: ">"}, count=7)
                client.xack(name, "jobs", *(entry for entry, _ in entries))
                last[name] = entries[-1][0]
            one.xdel("s3", *(entry for entry, _ in one.xrange("s3")[::2]))
            two.xtrim("s4", maxlen=3, approximate=False)
            one.delete("s5")
            two.delete("s6")
            one.xadd("s6", {"n": "anew"})
            two.expire("s7", 1)
            become_equal(clients)
            for name, acknowledged in last.items():
                for client in clients:
                    eventually(
                        lambda client=client, name=name, upto=acknowledged: (  # type: ignore[misc]
                            client.xinfo_groups(name)[0]["last-delivered-id"] == upto
                        ),
                        within_s=WITHIN_S,
                        why=f"{name}: what was acknowledged should be known in both regions",
                    )
            assert [client.xlen("s3") for client in clients] == [10, 10]
            assert [client.exists("s5") for client in clients] == [0, 0]
            for client in clients:
                eventually(
                    lambda client=client: not client.exists("s7"),  # type: ignore[misc]
                    within_s=WITHIN_S,
                    why="its time is over in both regions",
                )


def test_slots_that_move_while_links_run_lose_nothing(
    flavour: Flavour, cluster: Cluster, tmp_path: Path
) -> None:
    with Engine(flavour) as server:
        urls = numbered(cluster, server)
        with clients_of(cluster, server) as clients, all_replicating(tmp_path, urls) as daemons:
            stop, written = threading.Event(), [0, 0]

            def write(which: int) -> None:
                while not stop.is_set():
                    clients[which].xadd(NAMES[written[which] % 9], {"n": f"{which}:{written[which]}"})
                    written[which] += 1

            with ThreadPoolExecutor(2) as pool:
                writing = [pool.submit(write, which) for which in (0, 1)]
                try:
                    for name in ("s0", "s1", "s2"):
                        before = sum(written)
                        with SlotMove(cluster, slot(name)) as move:
                            eventually(lambda: sum(written) > before + 50, within_s=WITHIN_S, why="writes")  # noqa: B023
                            move.move()
                finally:
                    stop.set()
                for each in writing:
                    each.result()
            become_equal(clients)
            stored = [fields["n"] for name in NAMES for _, fields in clients[1].xrange(name)]
            assert len(stored) == len(set(stored)) == sum(written)
            assert not any(daemon.said("link.lost") or daemon.said("link.failed") for daemon in daemons)


def test_native_streams_of_a_cluster_are_adopted_while_links_run_and_a_slot_moves(
    flavour: Flavour, cluster: Cluster, tmp_path: Path
) -> None:
    with Engine(flavour) as server, redis.RedisCluster.from_url(cluster.url, decode_responses=True) as bare:
        urls = numbered(cluster, server)
        taken = {}
        for name in NAMES:
            entries = [bare.xadd(name, {"n": f"{name}.{at}"}) for at in range(20)]
            bare.xgroup_create(name, "billing", 0)
            bare.xreadgroup("billing", "ann", {name: ">"}, count=10)
            taken[name] = entries[:10]
            bare.xack(name, "billing", *entries[:4])
        stop, written = threading.Event(), list[str]()
        with clients_of(cluster, server) as clients, all_replicating(tmp_path, urls) as daemons:

            def write() -> None:
                while not stop.is_set():
                    clients[0].xadd(NAMES[len(written) % 9], {"n": f"new.{len(written)}"})
                    written.append(f"new.{len(written)}")

            with ThreadPoolExecutor(2) as pool:
                writing = pool.submit(write)
                try:
                    eventually(lambda: len(written) > 20, within_s=WITHIN_S, why="writes")
                    with SlotMove(cluster, slot("s4")) as move:
                        adopting = pool.submit(braid, "adopt", "s*", "--url", cluster.url)
                        eventually(lambda: bare.type("s3") == "hash", within_s=WITHIN_S, why="s4 is next")
                        move.move()
                    done = adopting.result()
                    before = len(written)
                    eventually(lambda: len(written) > before + 20, within_s=WITHIN_S, why="writes")
                finally:
                    stop.set()
                writing.result()
            assert done.returncode == 0, done.stdout + done.stderr
            wanted = sorted([*written, *(f"{name}.{at}" for name in NAMES for at in range(20))])

            def have_all() -> bool:
                pages = [[client.xrange(name) for name in NAMES] for client in clients]
                stored = [sorted(fields["n"] for page in each for _, fields in page) for each in pages]
                return stored == [wanted, wanted]

            eventually(have_all, within_s=WITHIN_S, why="all entries are in both regions")
            for name in NAMES:
                assert [each["name"] for each in clients[1].xinfo_groups(name)] == ["billing"]
                pending = clients[0].xpending_range(name, "billing", "-", "+", 100)
                assert [each["message_id"] for each in pending] == taken[name][4:]
            assert not any(daemon.said("link.failed") for daemon in daemons)


def test_a_killed_primary_stops_its_streams_only(flavour: Flavour, tmp_path: Path) -> None:
    args = ("--cluster-node-timeout", "4000", "--cluster-require-full-coverage", "no")
    with Cluster(flavour, args=args) as cluster, Engine(flavour) as server:
        urls = numbered(cluster, server)
        cluster.add_replica(cluster.nodes[0])
        there = [name for name in NAMES if cluster.owner(slot(name)) is cluster.nodes[0]]
        elsewhere = [name for name in NAMES if name not in there]
        assert there
        assert elsewhere
        with all_replicating(tmp_path, urls) as daemons:
            with clients_of(cluster, server) as clients:
                for client in clients:
                    for name in NAMES:
                        client.xadd(name, {"n": "before"})
                become_equal(clients)
            cluster.nodes[0].kill()
            with (
                braidstream.RedisCluster.from_url(
                    cluster.nodes[1].url, decode_responses=True, require_full_coverage=False
                ) as one,
                clients_of(server) as [two],
            ):
                killed_s = time.monotonic()
                for client in (one, two):
                    for name in elsewhere:
                        client.xadd(name, {"n": "while it is down"})
                for name in there:
                    two.xadd(name, {"n": "while it is down"})
                become_equal([one, two], elsewhere)
                assert time.monotonic() - killed_s < 4, "the others should not have waited for the failover"

                def writes() -> bool:
                    try:
                        return bool(one.xadd(there[0], {"n": "after"}))
                    except redis.RedisError:
                        return False

                eventually(writes, within_s=WITHIN_S, why="the replica should take over")
                become_equal([one, two])
                assert all(len(one.xrange(name)) >= 3 for name in NAMES)
            for daemon in daemons:
                assert not daemon.said("link.lost"), daemon.text
                assert daemon.said("node.lost"), daemon.text


def beat_of(client: Any, region: int) -> int:
    return int(client.hget(keys.BEATS, str(region)) or 0)


def gone(clients: list[Any], name: str) -> bool:
    return not any(client.exists(name) for client in clients)


async def groups_with_lag(cluster: Cluster) -> set[str]:
    """What /metrics shows."""
    source = Endpoint(parse_address(cluster.url))
    await source.connect()
    found = await measure(source, lambda name: True)
    source.close()
    return {each.stream for each in found.lags}


def test_the_work_on_all_streams_goes_on_without_a_lost_primary(flavour: Flavour, tmp_path: Path) -> None:
    """Of a primary without a replica, which has the heartbeats and the leases of the region."""
    args = ("--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")
    with Cluster(flavour, args=args) as cluster, Engine(flavour) as server:
        lost = cluster.owner(int(key_slot(keys.BEATS)))
        assert cluster.owner(int(key_slot(keys.DAEMONS))) is lost is not cluster.nodes[0]
        many = [name for name in map(str, range(6_000)) if cluster.owner(slot(name)) is lost][:1_400]
        elsewhere = [name for name in NAMES if cluster.owner(slot(name)) is not lost]
        config = write_config(tmp_path / "braid.toml", numbered(cluster, server))
        config.write_text(f"{config.read_text()}[groups]\ntakeover_after_s = 5\n")
        with (
            clients_of(cluster, server) as clients,
            Daemon(config, 1) as here,
            Daemon(config, 2) as there,
        ):
            one, two = clients
            here.tells("daemon.ready")
            there.tells("daemon.ready")
            for name in elsewhere:
                one.execute_command("XGROUP CREATE", name, "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")
                one.xadd(name, {"n": "1"})
            become_equal(clients, elsewhere)
            eventually(lambda: beat_of(two, 1) and beat_of(two, 2), within_s=WITHIN_S, why="they beat")
            one.xadd(many[0], {"n": "1"})
            for name in (many[0], *elsewhere[1:]):
                one.pexpire(name, 8_000)
            eventually(lambda: two.pttl(elsewhere[-1]) > 0, within_s=WITHIN_S, why="the deadlines arrive")
            lost.kill()
            here.tells("node.lost")

            beat = beat_of(two, 1)
            for name in elsewhere[1:]:
                eventually(lambda name=name: gone(clients, name), within_s=WITHIN_S, why="its time is over")  # type: ignore[misc]
            eventually(lambda: beat_of(two, 1) > beat + 3_000, within_s=WITHIN_S, why="the region beats on")
            assert asyncio.run(groups_with_lag(cluster)) == {elsewhere[0]}

            there.kill()
            with two.pipeline(
                transaction=False
            ) as pipe:  # nothing of this can arrive, and it delays no other
                for name in many:
                    pipe.xadd(name, {"n": "1"})
                pipe.execute()
            for name in elsewhere[1:]:
                two.xadd(name, {"n": "2"})
            here.tells("groups.taken_over region=2 groups=1")
            here.kill()
            one.xadd(elsewhere[0], {"n": "2"})
            for daemon in (here, there):
                daemon.start()
            become_equal(clients, elsewhere[1:])
            arrived = lambda: two.xlen(elsewhere[0]) == 2  # noqa: E731
            eventually(arrived, within_s=WITHIN_S, why="the cluster sends without its leases")


def test_a_cluster_joins_and_leaves(flavour: Flavour, cluster: Cluster, tmp_path: Path) -> None:
    with Engine(flavour) as server:
        become(server, region=1, name="region-1")
        config = write_config(tmp_path / "braid.toml", {1: server.url})
        with clients_of(server) as [one]:
            for number in range(90):
                one.xadd(NAMES[number % 9], {"n": str(number)})
            one.xgroup_create("s1", "jobs", "0")
            about = ("--id", "2", "--name", "region-2", "--url", cluster.url)
            done = braid("region", "add", "--config", str(config), *about)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "90 entries were copied" in done.stdout
            with clients_of(cluster) as [two]:
                become_equal([one, two])
                with Daemon(config, "region-2") as daemon:
                    daemon.tells("daemon.ready")
                    two.xadd("s1", {"n": "from the cluster"})
                    eventually(
                        lambda: one.xrange("s1")[-1][1] == {"n": "from the cluster"},
                        within_s=WITHIN_S,
                        why="what the cluster writes should arrive",
                    )
                done = braid("region", "remove", "--config", str(config), "region-1")
                assert done.returncode == 0, done.stdout + done.stderr
                with Daemon(
                    write_config(tmp_path / "old.toml", {1: server.url, 2: cluster.url}), "region-1"
                ) as old:
                    old.tells("peer.misconfigured")


def test_peers_get_only_what_a_replica_of_the_primary_has(flavour: Flavour, tmp_path: Path) -> None:
    args = ("--cluster-node-timeout", "60000")
    with Cluster(flavour, args=args) as cluster, Engine(flavour) as server:
        urls = numbered(cluster, server)
        replica = cluster.add_replica(cluster.nodes[0])
        there = next(name for name in NAMES if cluster.owner(slot(name)) is cluster.nodes[0])
        elsewhere = next(name for name in NAMES if cluster.owner(slot(name)) is not cluster.nodes[0])
        with clients_of(cluster, server) as clients, all_replicating(tmp_path, urls) as [daemon, _]:
            one, two = clients
            one.xadd(there, {"n": "1"})
            become_equal(clients, [there])
            with replica.paused():
                one.xadd(there, {"n": "2"})
                one.xadd(elsewhere, {"n": "1"})
                become_equal(clients, [elsewhere])
                daemon.tells("link.held")
                assert two.xlen(there) == 1
            become_equal(clients, [there])
            assert two.xlen(there) == 2


def test_streams_that_one_primary_holds_do_not_hold_up_those_of_others(
    flavour: Flavour, tmp_path: Path
) -> None:
    """Also if new entries of both are sent together, again and again."""
    args = ("--cluster-node-timeout", "60000")
    with Cluster(flavour, args=args) as cluster, Engine(flavour) as server:
        urls = numbered(cluster, server)
        replica = cluster.add_replica(cluster.nodes[0])
        names = [f"s{number}" for number in range(48)]
        there = [name for name in names if cluster.owner(slot(name)) is cluster.nodes[0]]
        elsewhere = [name for name in names if name not in there]
        with clients_of(cluster, server) as clients, all_replicating(tmp_path, urls) as [daemon, _]:
            one, two = clients
            for name in names:
                one.xadd(name, {"n": "1"})
            become_equal(clients, names)
            with replica.paused():
                for held, free in zip(there[:12], elsewhere[:12], strict=True):
                    pipe = one.pipeline()
                    pipe.xadd(held, {"n": "2"})
                    pipe.xadd(free, {"n": "2"})
                    pipe.execute()
                    become_equal(clients, [free])
                daemon.tells("link.held")
                assert [two.xlen(name) for name in there] == [1] * len(there)
            become_equal(clients, names)
