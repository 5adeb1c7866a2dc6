"""A region loses data that it had acknowledged, with real daemons: a failover to a replica that lagged, an
old backup, keys deleted by hand. The peers keep everything, and give it back."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import redis

import braidstream
from braidstream.model import keys
from braidstream.operations.membership import meet, set_fence
from tests.support.cli import braid
from tests.support.daemons import IMPATIENT, Daemon, all_replicating, numbered, write_config
from tests.support.matrix import installed
from tests.support.regions import become
from tests.support.replicas import Site, site
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

T = TypeVar("T")

WITHIN_S = 30
RETRIED = (redis.RedisError, braidstream.errors.BraidError)


@dataclass
class Regions:
    """Region 1 is the site that will lose something. `daemons` are all ready."""

    site: Site
    peers: list[Engine]
    config: Path
    daemons: list[Daemon]
    clients: dict[int, braidstream.Redis] = field(default_factory=dict)

    def __getitem__(self, region: int) -> braidstream.Redis:
        return self.clients[region]


def client(url: str) -> braidstream.Redis:
    return braidstream.Redis.from_url(url, decode_responses=True)


@contextmanager
def started(flavour: Flavour, folder: Path, peers: int) -> Iterator[Regions]:
    with ExitStack() as stack:
        home = stack.enter_context(site(flavour))
        engines = [stack.enter_context(Engine(flavour)) for _ in range(peers)]
        urls = numbered([home, *engines])
        # Without the gate: peers know what a failover will lose.
        daemons = stack.enter_context(all_replicating(folder, urls, env=IMPATIENT, durability={1: "none"}))
        regions = Regions(home, engines, folder / "braid.toml", daemons)
        for number, url in urls.items():
            regions.clients[number] = stack.enter_context(client(url))
        yield regions


def ids(one: braidstream.Redis, name: str = "x") -> list[str]:
    return [entry for entry, _ in one.xrange(name)]


def write(one: braidstream.Redis, count: int, name: str = "x") -> list[str]:
    return [patiently(lambda n=number: one.xadd(name, {"n": str(n)})) for number in range(count)]  # type: ignore[misc]


def patiently(do: Callable[[], T]) -> T:
    """As an application does while its region fails over."""

    def answer() -> tuple[T] | None:
        try:
            return (do(),)
        except RETRIED:
            return None

    found = eventually(answer, within_s=WITHIN_S, why="the region answers again")
    assert found is not None
    return found[0]


def everywhere(regions: Regions, expected: list[str], name: str = "x") -> None:
    def seen() -> dict[int, list[str]]:
        return {number: patiently(lambda o=one: ids(o, name)) for number, one in regions.clients.items()}  # type: ignore[misc]

    wanted = dict.fromkeys(regions.clients, expected)
    eventually(lambda: seen() == wanted, within_s=WITHIN_S, why=f"all have {len(expected)} entries")


@contextmanager
def traffic(url: str, name: str = "x") -> Iterator[list[str]]:
    """An application that writes all the time, and what was acknowledged."""
    done, found = threading.Event(), list[str]()

    def work() -> None:
        with client(url) as own:
            while not done.wait(0.005):
                try:
                    found.append(own.xadd(name, {"n": "later"}))
                except RETRIED:
                    continue

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def test_a_failover_that_loses_a_stream_deletes_it_nowhere(flavour: Flavour, tmp_path: Path) -> None:
    """The replica never heard of the stream, and the application writes on."""
    with started(flavour, tmp_path, 2) as regions:
        regions.site.deafen()
        lost = write(regions[1], 50)
        everywhere(regions, lost)
        with traffic(regions.site.url) as later:
            regions.site.fail_over()
            eventually(lambda: len(later) > 100, within_s=WITHIN_S, why="the application goes on")
        everywhere(regions, lost + later)
        # Whichever daemon looks first gives the entries back, as a lost tail or as a hole.
        events = ("region.lost_tail", "peer.lost_tail", "stream.refilled")
        eventually(
            lambda: any(daemon.said(event) for daemon in regions.daemons for event in events),
            within_s=WITHIN_S,
            why="a daemon says what was lost",
        )


def test_a_failover_that_loses_the_end_of_a_stream_leaves_no_hole(flavour: Flavour, tmp_path: Path) -> None:
    with started(flavour, tmp_path, 1) as regions:
        before = write(regions[1], 20)
        everywhere(regions, before)
        regions[1].xgroup_create("x", "jobs", "0")
        assert len(regions[1].xreadgroup("jobs", "ann", {"x": ">"}, count=100)[0][1]) == 20
        regions[1].xack("x", "jobs", *before)
        at_peer = lambda: [group["last-delivered-id"] for group in regions[2].xinfo_groups("x")]  # noqa: E731
        eventually(lambda: at_peer() == [before[-1]], within_s=WITHIN_S, why="the peer knows what is done")
        with regions.site.primary.client() as one, regions.site.replica.client() as two:
            offset = one.info("replication")["master_repl_offset"]
            following = lambda: two.info("replication")["slave_repl_offset"] >= offset  # noqa: E731
            eventually(following, within_s=WITHIN_S, why="the replica has it all")
        regions.site.deafen()
        lost = write(regions[1], 20)
        everywhere(regions, before + lost)
        regions.site.fail_over()
        later = write(regions[1], 30)
        everywhere(regions, before + lost + later)
        given = set[str]()

        def work() -> bool:
            for one in regions.clients.values():
                for _, entries in patiently(lambda o=one: o.xreadgroup("jobs", "ann", {"x": ">"}, count=100)):  # type: ignore[misc]
                    given.update(entry for entry, _ in entries)
                    one.xack("x", "jobs", *(entry for entry, _ in entries))
            return given >= {*lost, *later}

        eventually(work, within_s=WITHIN_S, why="consumers are given what was lost")
        assert not given & set(before)


def test_what_was_deleted_before_a_failover_does_not_come_back(flavour: Flavour, tmp_path: Path) -> None:
    with started(flavour, tmp_path, 1) as regions:
        own, other = write(regions[1], 10), write(regions[2], 5)
        dropped = write(regions[1], 5, "d")
        ordered = sorted([*own, *other], key=lambda entry: tuple(map(int, entry.split("-"))))
        everywhere(regions, ordered)
        everywhere(regions, dropped, "d")
        with regions.site.replica.client() as replica:
            for writer in (1, 2):
                copied = lambda w=writer: replica.xlen(f"bs:{w}:s:{{x}}") == len((own, other)[w - 1])  # type: ignore[misc] # noqa: E731
                eventually(copied, within_s=WITHIN_S, why="the replica has it all")
        regions.site.deafen()
        gone = [own[4], own[5], other[2]]
        regions[1].xdel("x", *gone)
        regions[1].delete("d")
        left = [entry for entry in ordered if entry not in gone]
        everywhere(regions, left)
        everywhere(regions, [], "d")
        regions.site.fail_over()
        later = write(regions[1], 1)
        everywhere(regions, left + later)
        everywhere(regions, [], "d")


def test_an_old_backup_under_traffic_is_brought_up_to_date(flavour: Flavour, tmp_path: Path) -> None:
    with started(flavour, tmp_path, 2) as regions:
        primary = regions.site.primary
        write(regions[1], 1, "other")
        with primary.client() as engine:
            engine.save()
        backup = (primary.directory / "dump.rdb").read_bytes()
        before = write(regions[1], 500)
        everywhere(regions, before)
        with traffic(regions.site.url) as later:
            eventually(lambda: len(later) > 20, within_s=WITHIN_S, why="the application writes")
            primary.kill()
            (primary.directory / "dump.rdb").write_bytes(backup)
            primary.start()
            count = len(later)
            eventually(lambda: len(later) > count + 100, within_s=WITHIN_S, why="the application goes on")

        def kept() -> bool:
            seen = [set(patiently(lambda o=one: ids(o))) for one in regions.clients.values()]  # type: ignore[misc]
            return all(found >= set(before) for found in seen) and seen[0] == seen[1] == seen[2]

        eventually(kept, within_s=WITHIN_S, why="what was written before the crash is everywhere")
        # Entries acknowledged just before the crash may have reached no peer.
        assert len(set(later) - set(ids(regions[1]))) < 20
        assert "other" in regions[1].keys("*")


@pytest.mark.parametrize("how", ["empty", "flushed"])
def test_a_server_that_lost_everything_is_refused_and_rejoins(
    flavour: Flavour, tmp_path: Path, how: str
) -> None:
    with started(flavour, tmp_path, 2) as regions:
        primary, daemon = regions.site.primary, regions.daemons[0]
        tuned = braid("tune", "id-mode", "liberal", "--config", str(regions.config))
        assert tuned.returncode == 0, tuned.stderr
        send = ("XADD", "m", "IDMP", "till", "1", "*", "n", "paid")
        message = regions[1].execute_command(*send)
        before = write(regions[1], 300)
        regions[1].xgroup_create("x", "jobs", "0")
        [[_, entries]] = regions[1].xreadgroup("jobs", "ann", {"x": ">"}, count=100)
        regions[1].xack("x", "jobs", *(entry for entry, _ in entries))
        regions[1].xdel("x", before[250])
        left = [entry for entry in before if entry != before[250]]
        everywhere(regions, left)
        everywhere(regions, [message], "m")
        first, deleted = write(regions[1], 2, "y")
        ms = int(deleted.partition("-")[0])
        eventually(lambda: time.time() * 1000 > ms + 1, within_s=WITHIN_S, why="the next ID is in another ms")
        [last] = write(regions[1], 1, "y")
        regions[1].xdel("y", deleted)
        everywhere(regions, [first, last], "y")
        late = list[str]()
        done = lambda: regions[2].xinfo_groups("x")[0]["last-delivered-id"]  # noqa: E731
        eventually(lambda: done() == before[99], within_s=WITHIN_S, why="the peer knows what is done")
        with traffic(regions.site.url) as later:
            if how == "empty":
                primary.kill()
                primary.start()
            else:
                with primary.client() as engine:
                    engine.flushall()
                    # A client that has not noticed yet. Without the old IDs it gets one among those of peers.
                    engine.hset(keys.meta(b"y"), "s1", "0:+:0-0")
                    engine.xadd(keys.strand(b"y", keys.GENERATED, 1), {"n": "late"}, id=f"{ms}-5")
                    late.append(f"{ms}-{5 * 1024 + 1}")
            daemon.kill()
            refused = braid("replicate", "--config", str(regions.config), "--region", "region-1")
            assert refused.returncode == 1
            assert "braid region rejoin region-1" in " ".join(refused.stderr.split())
            rejoined = braid("region", "rejoin", "region-1", "--config", str(regions.config))
            assert rejoined.returncode == 0, rejoined.stderr
            with primary.client() as engine:
                assert engine.hget(keys.CONFIG, "id-mode") == b"liberal", "the mode of its peers"
            daemon.start()
            count = len(later)
            eventually(lambda: len(later) > count + 20, within_s=WITHIN_S, why="clients are served again")
        lost = set(later) - set(ids(regions[1]))
        assert len(lost) < 20  # acknowledged in the last moment before the loss; no peer had them yet
        everywhere(regions, left + [entry for entry in later if entry not in lost])
        everywhere(regions, [first, *late, last], "y")
        assert regions[1].execute_command(*send) == message
        [[_, entries]] = regions[1].xreadgroup("jobs", "ann", {"x": ">"}, count=10)
        assert [entry for entry, _ in entries] == before[100:110]


@pytest.mark.parametrize(
    "fields",
    [
        "library left met run alive generated doubts",
        pytest.param("writer", marks=pytest.mark.nightly("In CI: all other fields")),
    ],
)
def test_a_server_that_lost_a_part_of_its_config_says_so_everywhere_and_rejoins(
    flavour: Flavour, tmp_path: Path, fields: str
) -> None:
    """The first case is what an engine leaves that drops every MULTI of its AOF at a restart."""
    with started(flavour, tmp_path, 1) as regions:
        primary, [daemon, peer] = regions.site.primary, regions.daemons
        before = write(regions[1], 20)
        everywhere(regions, before)
        with primary.client() as engine:
            engine.hdel("bs:config", *fields.split())
            if "library" in fields:
                engine.hset("bs:config", "writers", "1")
            engine.save()
        primary.kill()
        primary.start()
        daemon.tells("region.lost ")
        assert "braid region rejoin region-1" in peer.tells("peer.misconfigured peer=region-1")
        with pytest.raises(braidstream.BraidError, match="braid region rejoin region-1"):
            regions[1].xadd("x", {"n": "refused"})
        for verb in ("status", "doctor"):
            said = " ".join(braid(verb, "--config", str(regions.config)).stdout.split())
            assert "region-1: this server lost data" in said
            assert "then run: braid region rejoin region-1" in said
            assert "braid init" not in said
        daemon.kill()
        refused = braid("replicate", "--config", str(regions.config), "--region", "region-1")
        assert refused.returncode == 1
        assert "braid region rejoin region-1" in " ".join(refused.stderr.split())
        rejoined = braid("region", "rejoin", "region-1", "--config", str(regions.config))
        assert rejoined.returncode == 0, rejoined.stderr
        daemon.start()
        everywhere(regions, [*before, *write(regions[1], 1)])
        with primary.client(decode_responses=True) as engine:
            assert engine.hget("bs:config", "writers") == "1 2"


def test_a_region_that_a_backup_has_fenced_is_told(flavour: Flavour, tmp_path: Path) -> None:
    """The backup was made during a rejoin: its daemon continues, clients get LOADING until an operator
    acts."""
    with started(flavour, tmp_path, 1) as regions:
        primary, daemon = regions.site.primary, regions.daemons[0]
        before = write(regions[1], 5)
        everywhere(regions, before)
        regions[1].run_plan(set_fence(True))
        with primary.client() as engine:
            engine.save()
        regions[1].run_plan(set_fence(False))
        primary.kill()
        primary.start()
        told = lambda: daemon.said("region.fenced")  # noqa: E731
        eventually(told, within_s=WITHIN_S, why="the daemon tells that its region is fenced")
        with pytest.raises(redis.BusyLoadingError, match="braid region rejoin"):
            regions[1].xadd("x", {"n": "refused"})
        daemon.kill()
        rejoined = braid("region", "rejoin", "region-1", "--config", str(regions.config))
        assert rejoined.returncode == 0, rejoined.stderr
        said = " ".join(rejoined.stdout.split())
        assert "has 1 stream again;" in said
        assert (
            "restored by this command. Its peers' daemons may have restored others at the same time." in said
        )
        daemon.start()
        everywhere(regions, before)


def test_keys_deleted_by_hand_are_brought_back(flavour: Flavour, tmp_path: Path) -> None:
    with started(flavour, tmp_path, 1) as regions:
        before = write(regions[1], 20)
        everywhere(regions, before)
        with regions.site.primary.client() as engine:
            engine.delete(*engine.keys("bs:*{x}*"))
        later = write(regions[1], 3)
        regions[1].xdel("x", later[0])
        everywhere(regions, before + later[1:])


def test_an_empty_server_does_not_become_a_region_while_a_peer_is_unreachable(
    flavour: Flavour, tmp_path: Path
) -> None:
    """The peer may have the data that this server lost."""
    with Engine(flavour) as home, Engine(flavour) as peer:
        config = write_config(tmp_path / "braid.toml", {1: home.url, 2: peer.url})
        peer.kill()
        refused = braid("replicate", "--config", str(config), "--region", "region-1")
        said = " ".join(refused.stderr.split())
        assert (refused.returncode, "region-2 cannot say whether" in said) == (1, True), said
        with home.client() as engine:
            assert engine.exists(keys.CONFIG) == 0
        peer.start()
        with Daemon(config, "region-1"), home.client() as engine:
            eventually(lambda: engine.exists(keys.CONFIG), within_s=WITHIN_S, why="all peers have answered")


def test_one_peer_that_knows_an_empty_server_is_enough_to_advise_a_rejoin(
    flavour: Flavour, tmp_path: Path
) -> None:
    """Another peer is down. `braid init`, which is right for a new region, would be wrong advice."""
    with Engine(flavour) as home, Engine(flavour) as down, Engine(flavour) as peer:
        become(peer, region=3, name="region-3")
        with client(peer.url) as knowing:
            knowing.run_plan(meet((1, 2, 3)))
        config = write_config(tmp_path / "braid.toml", {1: home.url, 2: down.url, 3: peer.url})
        down.kill()
        refused = braid("replicate", "--config", str(config), "--region", "region-1")
        said = " ".join(refused.stderr.split())
        assert "region-3 has data of it. Restore it first: braid region rejoin region-1" in said
        assert "braid init" not in said
        rejoin = ("region", "rejoin", "region-1", "--config", str(config))
        stopped = " ".join(braid(*rejoin).stderr.split())
        assert "region 'region-2'" in stopped
        assert "If it is down, add --without region-2. Nothing was changed." in stopped
        rejoined = braid(*rejoin, "--without", "region-2")
        assert rejoined.returncode == 0, rejoined.stderr


def test_a_rejoin_that_fails_lifts_its_fence_or_says_how_to(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as home, Engine(flavour) as peer:
        for number, engine in enumerate((home, peer), 1):
            become(engine, region=number, name=f"region-{number}")
            with client(engine.url) as one:
                one.run_plan(meet((1, 2)))
                one.xadd("x", {"n": str(number)})
        config = write_config(tmp_path / "braid.toml", numbered([home, peer]))
        rejoin = ("region", "rejoin", "region-1", "--config", str(config))
        with home.client(decode_responses=True) as operator, client(home.url) as one:
            operator.delete("bs:meta:{x}")
            operator.set("bs:meta:{x}", "not a registry")
            failed = braid(*rejoin)
            said = " ".join(failed.stderr.split())
            assert (failed.returncode, "WRONGTYPE" in said) == (1, True), said
            assert "clients of region-1 are served as before. Run this again." in said
            one.xadd("y", {"n": "served"})
            operator.hdel("bs:config", "identity")
            said = " ".join(braid(*rejoin).stderr.split())
            assert "Clients of region-1 get LOADING until this command has succeeded." in said
            assert "redis-cli -u URL HDEL bs:config fenced" in said
            with pytest.raises(redis.BusyLoadingError), client(home.url) as other:
                other.xadd("y", {"n": "refused"})
            operator.delete("bs:meta:{x}")
            assert braid(*rejoin).returncode == 0
            assert patiently(lambda: one.xadd("y", {"n": "served again"}))


@pytest.mark.parametrize("loser", ["redis-7.0", "valkey-8.0"])
def test_an_engine_that_drops_transactions_at_a_restart_gets_everything_back(
    loser: Flavour, tmp_path: Path
) -> None:
    """Its user `default` was restricted after `braid init`. Functions write transactions. The advice of
    `braid status` restores all of it, and the healthy region loses nothing."""
    users = tmp_path / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\nuser admin on >pw ~* &* +@all\n")
    args = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0", "--aclfile", str(users)]
    with Engine(installed(loser), args=args) as home, Engine(installed(loser)) as peer:
        admin = home.url.replace("redis://", "redis://admin:pw@")
        with (
            all_replicating(tmp_path, {1: admin, 2: peer.url}) as [daemon, other],
            client(admin) as one,
            client(peer.url) as two,
        ):
            for number in range(400):
                two.xadd("x", {"n": str(number)})
                if number > 20:
                    one.xadd("x", {"n": str(number)})
            why = "both have everything"
            eventually(lambda: one.xlen("x") == two.xlen("x") == 779, within_s=WITHIN_S, why=why)
            before = ids(two)
            users.write_text("user default off\nuser admin on >pw ~* &* +@all\n")
            home.restart()
            with home.client(username="admin", password="pw") as operator:
                left = [operator.xlen(keys.strand(b"x", keys.GENERATED, writer)) for writer in (1, 2)]
            assert sum(left) < len(before), "the engine should have lost entries"
            config = ("--config", str(tmp_path / "braid.toml"))
            said = " ".join(braid("status", *config).stdout.split())
            assert "region-1: this server lost data" in said
            assert "then run: braid region rejoin region-1" in said
            daemon.kill()
            rejoined = braid("region", "rejoin", "region-1", *config)
            assert rejoined.returncode == 0, rejoined.stderr
            daemon.start()
            for name, region in (("region 1", one), ("region 2", two)):
                eventually(lambda r=region: ids(r) == before, within_s=WITHIN_S, why=f"{name} has everything")  # type: ignore[misc]
            assert other.alive
