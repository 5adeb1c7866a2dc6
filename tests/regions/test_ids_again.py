"""A server comes back without what it wrote last, while its IDs are ahead of its clock. It would count the
same IDs up again; peers have them with other entries."""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import redis

import braidstream
from braidstream.engine.address import parse_address
from braidstream.errors import BraidError
from braidstream.plan.lookup import scan_page
from braidstream.replication.detect import feed
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.heal import raising
from tests.support.daemons import all_replicating, numbered
from tests.support.gateways import Served
from tests.support.proxy import Proxy
from tests.support.regions import client_of
from tests.support.replicas import site
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually
from tests.support.world import World

pytestmark = pytest.mark.long

T = TypeVar("T")
WITHIN_S = 30
LOST, LATER = 300, 400
GATEWAY = pytest.param("gateway", marks=pytest.mark.nightly("In CI: clients, which do the same"))


def append(client: redis.Redis, text: str) -> str:
    return client.xadd("m", {"n": text})


def write_log(client: redis.Redis, text: str) -> int:
    return client.execute_command("TWRITE", "ledger", "t", text)


@contextmanager
def writing(
    client: redis.Redis, add: Callable[[redis.Redis, str], T] = append
) -> Iterator[list[tuple[T, str]]]:
    """An application that writes on, whatever happens: the IDs and texts that were acknowledged."""
    done, found = threading.Event(), list[tuple[T, str]]()

    def work() -> None:
        number = 0
        while not done.is_set():
            number += 1
            try:
                found.append((add(client, f"later {number}"), f"later {number}"))
            except (redis.RedisError, BraidError):
                done.wait(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def restore(engine: Engine, backup: Path) -> None:
    shutil.copy(backup, engine.directory / "dump.rdb")
    engine.start()


def texts(client: redis.Redis) -> dict[str, str]:
    return {entry: fields["n"] for entry, fields in client.xrange("m")}


def assert_alike(here: redis.Redis, there: redis.Redis, wanted: dict[str, str]) -> None:
    """Both regions have all of it, and the same."""
    eventually(lambda: texts(there).items() >= wanted.items(), within_s=WITHIN_S, why="all arrive")
    eventually(lambda: texts(there) == texts(here), within_s=WITHIN_S, why="the regions are alike")


@pytest.mark.parametrize("way", ["client", GATEWAY, "forwarded"])
def test_a_log_whose_home_goes_back_to_a_backup_gives_no_offset_twice(
    flavour: Flavour, tmp_path: Path, way: str
) -> None:
    """Offsets do not follow the clock: what the peer has must be asked, whatever the clock says."""
    with ExitStack() as stack:
        one, two = stack.enter_context(Engine(flavour)), stack.enter_context(Engine(flavour))
        sites = numbered([one, two])
        stack.enter_context(all_replicating(tmp_path, sites))
        here = stack.enter_context(client_of(one, decode_responses=True))
        there = stack.enter_context(client_of(two, decode_responses=True))
        if way == "gateway":
            gateway = stack.enter_context(Served(one.url))
            here = stack.enter_context(redis.Redis.from_url(gateway.url, decode_responses=True))
        written = {write_log(here, "first"): "first"}
        eventually(lambda: read_log(there) == written, within_s=WITHIN_S, why="the peer has it")
        with one.client() as engine:
            engine.save()
        backup = shutil.copy(one.directory / "dump.rdb", tmp_path / "backup.rdb")
        written |= {write_log(here, f"lost {number}"): f"lost {number}" for number in range(LOST)}
        eventually(lambda: read_log(there) == written, within_s=WITHIN_S, why="the peer has it all")
        if way == "forwarded":
            here = stack.enter_context(
                client_of(two, decode_responses=True, config=str(tmp_path / "braid.toml"))
            )
        for _ in range(2):
            one.kill()
            with writing(here, write_log) as later:
                restore(one, Path(backup))
                eventually(lambda: len(later) > LATER, within_s=WITHIN_S, why="the application writes on")  # noqa: B023
            assert not written.keys() & dict(later).keys()
            written |= dict(later)
            with client_of(one, decode_responses=True) as client:
                eventually(partial(is_read, client, written), within_s=WITHIN_S, why="all came back")
            eventually(partial(is_read, there, written), within_s=WITHIN_S, why="the regions are alike")


def is_read(client: redis.Redis, written: dict[int, str]) -> bool:
    return read_log(client) == written


def read_log(client: redis.Redis) -> dict[int, str]:
    read = client.execute_command("TREAD", "ledger", 1, 10_000, "SKIP")
    return {offset: entry for offset, _, entry in read}


@pytest.mark.parametrize("way", ["client", GATEWAY])
def test_a_server_that_comes_back_with_ids_ahead_of_its_clock_mints_none_twice(
    flavour: Flavour, tmp_path: Path, way: str
) -> None:
    """Its clock was an hour ahead, and was set right. So its IDs count up; a backup makes it forget some."""
    with ExitStack() as stack:
        one = stack.enter_context(Engine(flavour, clock_s=3600))
        two = stack.enter_context(Engine(flavour))
        stack.enter_context(all_replicating(tmp_path, numbered([one, two])))
        here = stack.enter_context(client_of(one, decode_responses=True))
        there = stack.enter_context(client_of(two, decode_responses=True))
        if way == "gateway":
            gateway = stack.enter_context(Served(one.url))
            here = stack.enter_context(redis.Redis.from_url(gateway.url, decode_responses=True))
        here.xadd("m", {"n": "first"})
        one.set_clock(0)
        ahead_ms = (time.time() + 600) * 1000
        eventually(lambda: generated_ms(one) > ahead_ms, within_s=WITHIN_S, why="the daemon knows of it")
        with one.client() as engine:
            engine.save()
        backup = shutil.copy(one.directory / "dump.rdb", tmp_path / "backup.rdb")
        lost = {here.xadd("m", {"n": f"lost {number}"}): f"lost {number}" for number in range(LOST)}
        eventually(lambda: there.xlen("m") == LOST + 1, within_s=WITHIN_S, why="the peer has it all")
        for _ in range(2):  # IDs from after the first loss must not be generated again after the second
            one.kill()
            with writing(here) as later:
                restore(one, Path(backup))
                eventually(lambda: len(later) > LATER, within_s=WITHIN_S, why="the application writes on")  # noqa: B023
            assert not lost.keys() & dict(later).keys()
            lost |= dict(later)
            assert_alike(here, there, lost)


def test_a_replica_with_a_slow_clock_that_is_promoted_mints_no_id_of_its_peers_twice(
    flavour: Flavour, tmp_path: Path
) -> None:
    """Without the durability gate: the peer has entries that the new primary lacks."""
    with ExitStack() as stack:
        home = stack.enter_context(site(flavour, clock_s=-30))
        peer = stack.enter_context(Engine(flavour))
        urls = numbered([home, peer])
        stack.enter_context(all_replicating(tmp_path, urls, durability=dict.fromkeys(urls, "none")))
        here = stack.enter_context(braidstream.Redis.from_url(home.url, decode_responses=True))
        there = stack.enter_context(client_of(peer, decode_responses=True))
        began = time.time()
        here.xadd("m", {"n": "first"})
        eventually(
            lambda: generated_ms(home.replica) > began * 1000,
            within_s=WITHIN_S,
            why="the replica has the note",
        )
        home.deafen()
        lost = {here.xadd("m", {"n": f"lost {number}"}): f"lost {number}" for number in range(LOST)}
        eventually(lambda: there.xlen("m") == LOST + 1, within_s=WITHIN_S, why="the peer has it all")
        home.fail_over()
        with writing(here) as later:
            eventually(lambda: len(later) > LATER, within_s=WITHIN_S, why="the application writes on")
        assert not lost.keys() & dict(later).keys()
        assert_alike(here, there, lost | dict(later))


def generated_ms(engine: Engine) -> int:
    """The highest ID of the region that its daemon has noted."""
    with engine.client(decode_responses=True) as client:
        return int((client.hget("bs:config", "generated") or "0").split()[0])


@contextmanager
def delayed(engine: Engine, one_way_ms: int) -> Iterator[str]:
    """The URL of an engine that is far away."""
    command = [sys.executable, "-m", "bench.delay", str(engine.port), str(one_way_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        try:
            yield f"redis://127.0.0.1:{proxy.stdout.readline().strip()}"
        finally:
            proxy.kill()


@pytest.fixture
def many_streams(make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> World:
    """If the peer is far, its answers together take longer than it may be silent."""
    monkeypatch.setattr(raising, "ASKED_WITHIN_S", 1.0)
    monkeypatch.setattr(feed, "scan_page", partial(scan_page, count=10))
    world = make_world(2)
    for number in range(200):
        world[1].xadd(f"stream-{number}", {"n": "1"})
    return world


def test_a_far_peer_is_asked_for_all_logs_also_if_that_takes_long(many_streams: World) -> None:
    world, logs = many_streams, [f"log-{number}" for number in range(20)]
    with world.engines[0].client() as engine:
        for name in logs:
            world[1].twrite(name, "t", "1")
            earlier = engine.dump(f"bs:1:t:{{{name}}}")
            world[1].twrite(name, "t", "2")
            world.ship(1, 2, name)
            engine.restore(f"bs:1:t:{{{name}}}", 0, earlier, replace=True)

    with delayed(world.engines[1], one_way_ms=40) as url:
        assert unreached(world, url) == []
    assert [world[1].twrite(name, "t", "3") for name in logs] == [3] * len(logs)


def unreached(world: World, url: str) -> list[str]:
    """Raise the home strands of region 1. Returns region 2, at this URL, if it could not be reached."""

    async def ask() -> list[str]:
        source = Endpoint(parse_address(world.engines[0].url))
        await source.connect()
        try:
            return await raising.raise_home(source, world.region(1), {"region-2": (2, parse_address(url))})
        finally:
            source.close()

    return asyncio.run(ask())


def test_a_far_peer_whose_connection_is_lost_once_is_asked_again(many_streams: World) -> None:
    """It takes longer to come as far as before than a peer may be silent."""
    world = many_streams

    async def scanned() -> list[bytes]:
        return [name async for page in feed.all_streams(world.endpoints[1]) for name in page]

    with delayed(world.engines[1], one_way_ms=40) as url, Proxy(parse_address(url).port) as proxy:
        proxy.lose_replies(b"{%b}" % asyncio.run(scanned())[-1], times=1)
        assert unreached(world, proxy.url) == []
        assert proxy.lost == 1


def test_a_peer_with_large_registries_is_asked_in_parts(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raising, "ASKED_WITHIN_S", 1.0)
    monkeypatch.setattr(raising, "PEER_REPLY_BYTES", 1_000_000)
    world = make_world(2)
    for client in world.clients.values():
        pipe = client.pipeline(transaction=False)
        for number in range(300):
            pipe.xadd(f"stream-{number}", {"n": "1"}).xgroup_create(f"stream-{number}", "x" * 4_000, "0")
        pipe.execute()
    assert unreached(world, world.engines[1].url) == []
