"""Real engines and real daemons, as `braid up` starts them."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

import braidstream
from braidstream.engine.address import parse_address
from braidstream.model import keys
from braidstream.model.journal import KEPT
from braidstream.operations.membership import meet
from braidstream.replication.daemon.daemon import Daemon
from braidstream.replication.detect.sweep import SWEEP_S
from tests.support import daemons
from tests.support.cli import braid
from tests.support.event_counts import counted_events
from tests.support.killing import is_alive
from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.up import braid_up
from tests.support.waiting import eventually
from tests.support.world import World, fresh_world

pytestmark = pytest.mark.long

WITHIN_S = 20


def texts(client: braidstream.Redis, name: str = "m") -> list[str]:
    return [fields["n"] for _, fields in client.xrange(name)]


def test_what_is_written_in_any_region_is_soon_in_all(flavour: Flavour) -> None:
    with braid_up(3, flavour) as up:
        clients = [up.client(region) for region in (1, 2, 3)]
        for number, client in enumerate(clients):
            client.xadd("m", {"n": str(number)})
        for client in clients:
            eventually(
                lambda client=client: sorted(texts(client)) == ["0", "1", "2"],  # type: ignore[misc]
                within_s=WITHIN_S,
                why="every region should have all three",
            )
        orders = [client.xrange("m") for client in clients]
        assert orders[0] == orders[1] == orders[2]

        gone = orders[0][1][0]
        clients[2].xdel("m", gone)
        clients[0].xgroup_create("m", "jobs", "0")
        for client in clients:
            eventually(
                lambda client=client: len(texts(client)) == 2 and client.xinfo_groups("m"),  # type: ignore[misc]
                within_s=WITHIN_S,
                why="a deletion and a group should be everywhere",
            )

        [[_, entries]] = clients[0].xreadgroup("jobs", "alice", {"m": ">"})
        clients[0].xack("m", "jobs", *(entry for entry, _ in entries))
        eventually(
            lambda: clients[1].xinfo_groups("m")[0]["last-delivered-id"] == entries[-1][0],
            within_s=WITHIN_S,
            why="acknowledgements should travel",
        )
        assert clients[1].xreadgroup("jobs", "bob", {"m": ">"}) == []

        clients[1].delete("m")
        for client in clients:
            eventually(lambda client=client: not client.exists("m"), within_s=WITHIN_S, why="DEL travels")  # type: ignore[misc]
            client.close()


def test_sigterm_stops_everything_it_started(flavour: Flavour) -> None:
    with braid_up(2, flavour) as up:
        children = up.children("")
        assert len(children) >= 4
    for child in children:
        assert not is_alive(child), f"process {child} is still there"


def test_a_killed_daemon_is_replaced_by_another_that_finds_out_where_to_resume(
    flavour: Flavour, tmp_path: Path
) -> None:
    with _two_regions(flavour) as (urls, one, two):
        config = daemons.write_config(tmp_path / "braid.toml", urls)
        with daemons.Daemon(config, 1) as killed:
            one.xadd("m", {"n": "before"})
            eventually(lambda: texts(two) == ["before"], within_s=WITHIN_S, why="the link should work")
            killed.kill()
        for number in range(1000):
            one.xadd("m", {"n": str(number)})
        one.delete("other")
        with daemons.Daemon(config, 1):
            eventually(
                lambda: two.xlen("m") == 1001, within_s=WITHIN_S, why="its successor should bring the rest"
            )
        assert one.xrange("m") == two.xrange("m")


def test_a_journal_keeps_what_all_peers_have_applied_for_ten_minutes_up_to_a_bound(
    flavour: Flavour, tmp_path: Path
) -> None:
    journal = keys.journal(b"m", 1)
    with _two_regions(flavour) as (urls, one, two), redis.Redis.from_url(urls[1]) as bare:
        for client in (one, two):
            client.run_plan(meet((1, 2)))
        entries = [one.xadd("m", {"n": "1"}) for _ in range(4)]
        one.xdel("m", entries.pop())
        [[_, words]] = bare.xrange(journal)
        seconds, _ = bare.time()
        bare.delete(journal)
        for seq in (1, 2):  # eleven minutes ago
            bare.xadd(journal, words, id=f"{(seconds - 660) * 1000}-{seq}")

        def has_applied(left: int) -> None:
            eventually(lambda: two.xlen("m") == left, within_s=WITHIN_S, why="region 2 gets all deletions")

        config = daemons.write_config(tmp_path / "braid.toml", urls)
        with daemons.Daemon(config, 1), daemons.Daemon(config, 2):
            has_applied(3)
            eventually(lambda: bare.xlen(journal) == 1, within_s=2 * SWEEP_S, why="the old ones go")
            for left in (2, 1):
                one.xdel("m", entries.pop())
                has_applied(left)
            young = bare.xrange(journal)[-2:]
            eventually(lambda: bare.xrange(journal) == young, within_s=2 * SWEEP_S, why="the young ones stay")

            with one.pipeline(transaction=False) as many:
                for _ in range(KEPT):
                    many.xadd("m", {"n": "2"})
                gone = many.execute()
                for entry in gone:
                    many.xdel("m", entry)
                many.execute()
            has_applied(1)
            eventually(lambda: bare.xlen(journal) <= KEPT, within_s=2 * SWEEP_S, why="there is a bound")


def test_two_daemons_of_one_region_share_its_streams(flavour: Flavour, tmp_path: Path) -> None:
    names = [f"stream-{number}" for number in range(100)]
    with (
        _two_regions(flavour) as (urls, one, two),
        daemons.Daemon(daemons.write_config(tmp_path / "first.toml", urls), 1) as first,
        daemons.Daemon(daemons.write_config(tmp_path / "second.toml", urls), 1) as second,
    ):
        for daemon in (first, second):
            daemon.tells("lease.taken ranges=128 of=256")
        for name in names:
            one.xadd(name, {"n": name})
        _all_arrive(two, {name: [name] for name in names})
        shares = eventually(
            lambda: sum(found := _sent(one)) >= len(names) and found,
            within_s=WITHIN_S,
            why="both should report what they sent",
        )
        assert (len(shares), sum(shares), min(shares) >= 25) == (2, len(names), True), shares

        second.kill()
        first.tells("lease.taken ranges=256 of=256")
        for name in names:
            one.xadd(name, {"n": "again"})
        _all_arrive(two, {name: [name, "again"] for name in names})


def test_a_daemon_that_was_killed_and_starts_again_does_not_wait_for_itself(
    flavour: Flavour, tmp_path: Path
) -> None:
    with _two_regions(flavour) as (urls, one, _), daemons.replicating(tmp_path, urls) as daemon:
        daemon.tells("lease.taken ranges=256 of=256")
        daemon.kill()
        daemon.start()
        assert "ranges=256 of=256" in daemon.tells("lease.taken")
        assert one.hlen("bs:daemons") == 1


def test_a_daemon_beside_one_of_an_older_release_serves_all_streams(flavour: Flavour, tmp_path: Path) -> None:
    """They divide the streams in different ways. docs/guides/operations.md upgrades one after the other."""
    names = [f"stream-{number}" for number in range(50)]
    with _two_regions(flavour) as (urls, one, two):

        def keep_older_alive() -> None:
            one.hincrby("bs:daemons", "0123456789abcdef", 1)

        keep_older_alive()
        with daemons.replicating(tmp_path, urls) as daemon:
            for name in names:
                one.xadd(name, {"n": name})
            _all_arrive(two, {name: [name] for name in names}, keep_older_alive)
            assert "ranges=256 of=256" in daemon.tells("lease.taken")


@contextmanager
def _two_regions(
    flavour: Flavour,
) -> Iterator[tuple[dict[int, str], braidstream.Redis, braidstream.Redis]]:
    """Two regions without daemons: their addresses, and a client of each."""
    with (
        Engine(flavour) as here,
        Engine(flavour) as there,
        client_of(here, decode_responses=True) as one,
        client_of(there, decode_responses=True) as two,
    ):
        yield daemons.numbered([here, there]), one, two


def _all_arrive(
    client: braidstream.Redis, expected: dict[str, list[str]], between: Callable[[], None] = lambda: None
) -> None:
    def lacking() -> list[str]:
        between()
        return [name for name, entries in expected.items() if texts(client, name) != entries]

    eventually(lambda: not lacking(), within_s=WITHIN_S, why="all streams should arrive")


def _sent(client: braidstream.Redis) -> list[int]:
    """How many entries each daemon of a region has sent."""
    found = map(json.loads, client.hgetall("bs:status").values())
    return [sum(link["entries"] for link in daemon["links"].values()) for daemon in found]


def test_a_peer_that_comes_back_gets_what_it_missed(flavour: Flavour, tmp_path: Path) -> None:
    late = Engine(flavour)
    late.start()
    late.kill()
    try:
        with Engine(flavour) as engine:
            urls = {**daemons.numbered([engine]), 2: late.url}
            with daemons.replicating(tmp_path, urls), client_of(engine, decode_responses=True) as one:
                for number in range(500):
                    one.xadd("m", {"n": str(number)})
                late.start()
                done = braid("init", "--url", late.url, "--region", "2", "--name", "region-2")
                assert done.returncode == 0, done.stderr
                with client_of(late, decode_responses=True) as two:
                    eventually(lambda: two.xlen("m") == 500, within_s=WITHIN_S, why="all should arrive")
    finally:
        late.stop()


def test_many_streams_with_pending_entries_do_not_keep_a_sweep_from_the_others(
    flavour: Flavour, tmp_path: Path
) -> None:
    """Each of them wants to be looked at again and again, and all are there before the daemon is."""
    with _two_regions(flavour) as (urls, one, two):
        names = [f"stream-{number}" for number in range(900)]
        for name in names:
            one.xgroup_create(name, "g", "0", mkstream=True)
            one.xadd(name, {"n": name})
            one.xreadgroup("g", "a", {name: ">"})
        with daemons.Daemon(daemons.write_config(tmp_path / "braid.toml", urls), 1):
            eventually(
                lambda: all(two.exists(name) for name in names),
                within_s=60,
                why="all should arrive",
            )


def test_a_daemon_that_starts_when_memory_is_full_still_tells_the_others(
    flavour: Flavour, tmp_path: Path
) -> None:
    with _two_regions(flavour) as (urls, one, two):
        for client in (one, two):
            client.run_plan(meet((1, 2)))
        one.xadd("m", {"n": "1"})
        one.config_set("maxmemory", "1")
        with daemons.Daemon(daemons.write_config(tmp_path / "braid.toml", urls), 1):
            eventually(lambda: texts(two) == ["1"], within_s=WITHIN_S, why="it should arrive")
            one.delete("m")
            eventually(lambda: not two.exists("m"), within_s=WITHIN_S, why="so should its deletion")


def test_a_peer_that_is_removed_while_it_is_asked_is_left_alone(flavour: Flavour) -> None:
    """Its link fails and is cancelled at the same time: it must not connect again."""

    async def remove(engines: tuple[Engine, Engine], world: World) -> None:
        daemon = Daemon(parse_address(engines[0].url))
        running = asyncio.ensure_future(daemon.run())
        try:
            daemon.set_peers({"region-2": (2, parse_address(engines[1].url))})
            await asyncio.wait_for(daemon.ready.wait(), WITHIN_S)
            [serving], conn = daemon._tasks.values(), daemon.peers["region-2"].endpoint.conn
            assert conn is not None
            engines[1].pause()
            world[1].xadd("m", {"n": "1"})
            async with asyncio.timeout(WITHIN_S):
                while not conn.in_flight:
                    await asyncio.sleep(0.01)
            conn.close()  # as when it is lost, and in the same moment
            await asyncio.sleep(0)
            daemon.set_peers({})
            _, serving_still = await asyncio.wait([serving], timeout=WITHIN_S)
            assert not serving_still, "the link to a removed peer goes on"
        finally:
            engines[1].resume()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with Engine(flavour) as one, Engine(flavour) as two, fresh_world([one, two]) as world:
        asyncio.run(remove((one, two), world))


@pytest.mark.parametrize(
    "turns",
    [
        each if each < 3 else pytest.param(each, marks=pytest.mark.nightly("In CI: the first turns"))
        for each in range(8)
    ],
)
def test_a_daemon_that_is_stopped_while_a_link_fails_ends(
    make_world: Callable[..., World], turns: int
) -> None:
    """The link may not swallow the cancellation, in whichever turn of the loop it fails."""
    world = make_world(2)

    async def stop() -> None:
        daemon = Daemon(parse_address(world.engines[0].url))
        running = asyncio.ensure_future(daemon.run())
        daemon.set_peers({"region-2": (2, parse_address(world.engines[1].url))})
        await asyncio.wait_for(daemon.ready.wait(), WITHIN_S)
        conn = daemon.peers["region-2"].endpoint.conn
        assert conn is not None
        world.engines[1].pause()
        world[1].xadd("m", {"n": "1"})
        async with asyncio.timeout(WITHIN_S):
            while not conn.in_flight:
                await asyncio.sleep(0.01)
        running.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        conn.close()
        _, still = await asyncio.wait([running], timeout=WITHIN_S / 2)
        assert not still, "the daemon goes on"

    try:
        asyncio.run(stop())
    finally:
        world.engines[1].resume()


def test_a_deadline_that_cannot_be_read_is_logged_and_ends_nothing(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as one, Engine(flavour) as two:
        urls = daemons.numbered([one, two])
        with one.client() as engine:
            engine.hset("bs:meta:{odd}", "until", "changed by hand")
        with (
            daemons.replicating(tmp_path, urls) as daemon,
            client_of(one, decode_responses=True) as here,
            client_of(two, decode_responses=True) as there,
        ):
            assert "is not a deadline" in daemon.tells("deadline.refused stream=odd")
            here.xadd("m", {"n": "1"})
            eventually(lambda: texts(there) == ["1"], within_s=WITHIN_S, why="the links should go on")
            assert daemon.alive
            assert len(daemon.said("deadline.refused")) == 1


def test_an_engine_that_refuses_to_tell_of_changes_is_asked_again(flavour: Flavour) -> None:
    """Changes waited for the next sweep, up to half a minute, for as long as the daemon ran."""

    async def listen(engines: tuple[Engine, Engine], world: World) -> None:
        with engines[0].client() as operator, counted_events() as counts:
            operator.execute_command("ACL SETUSER daemon on nopass ~* &* +@all -client|tracking")
            url = engines[0].url.replace("//", "//daemon:any@")
            daemon = Daemon(parse_address(url))
            running = asyncio.ensure_future(daemon.run())
            try:
                daemon.set_peers({"region-2": (2, parse_address(engines[1].url))})
                await asyncio.wait_for(daemon.ready.wait(), WITHIN_S)
                async with asyncio.timeout(WITHIN_S):
                    while not counts["feed.refused"]:
                        await asyncio.sleep(0.01)
                operator.execute_command("ACL SETUSER daemon +client|tracking")
                async with asyncio.timeout(WITHIN_S):
                    while not operator.info("clients")["tracking_clients"]:
                        await asyncio.sleep(0.01)
                world[1].xadd("m", {"n": "1"})
                async with asyncio.timeout(SWEEP_S / 3):
                    while texts(world[2]) != ["1"]:
                        await asyncio.sleep(0.01)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    with Engine(flavour) as one, Engine(flavour) as two, fresh_world([one, two]) as world:
        asyncio.run(listen((one, two), world))
