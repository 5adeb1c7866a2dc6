"""Writes to a log whose home is another region: gateways and clients that know the regions forward them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream.config import RegionConfig
from braidstream.exceptions import HomeError
from braidstream.gateway.homes import Homes
from braidstream.operations import log_upkeep
from tests.support.clients import Opener
from tests.support.daemons import write_config
from tests.support.gateways import Line, Served, value_of
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.world import World


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    world = make_world(3)
    world[1].twrite("log", "t", "1")
    world.sync()
    return world


def region(number: int, url: str) -> RegionConfig:
    return RegionConfig(id=number, name=f"region-{number}", url=url)


@pytest.fixture
def gateway(world: World) -> Iterator[Callable[..., Served]]:
    """Starts the gateway of a region. urls: where it finds other regions, if not at their servers."""
    with ExitStack() as stack:

        def start(number: int, urls: dict[int, str] | None = None) -> Served:
            places = {at: engine.url for at, engine in enumerate(world.engines, 1)} | (urls or {})
            others = [region(at, url) for at, url in places.items() if at != number]
            return stack.enter_context(Served(world.engines[number - 1].url, others=others))

        yield start


@pytest.fixture
def toml(world: World, tmp_path: Path) -> Path:
    urls = {number: engine.url for number, engine in enumerate(world.engines, 1)}
    return write_config(tmp_path / "braid.toml", urls)


def move(world: World, home: int, to: int) -> None:
    """A planned move, without a daemon."""
    registry = world[home].run_plan(log_upkeep.read_log(b"log"))
    world[home].run_plan(log_upkeep.end_epoch(b"log", log_upkeep.home_of(registry), to, force=False))
    world.ship(home, to, "log")


def bodies(world: World, number: int = 1) -> list[str]:
    return [row[2] for row in world[number].tread("log", 1, 100_000)]


def test_a_gateway_writes_at_the_home_and_tells_the_offset(
    world: World, gateway: Callable[..., Served]
) -> None:
    served = gateway(2)
    with Line(served.port) as line:
        assert line.say("TWRITE log t 2") == b":2\r\n"
        assert line.say("TWRITE log ENTRIES t 3 t 4") == b"*2\r\n:3\r\n:4\r\n"
        sent = line.pipeline("TWRITE log t 5", "SET plain 1", "TWRITE log t 6", "TREAD log 1 1")
        assert sent[:3] == [b":5\r\n", b"+OK\r\n", b":6\r\n"]
        assert value_of(sent[3])[0][0] == 1
        many = line.pipeline(*(f"TWRITE log t {n}" for n in range(7, 107)))
        assert many == [b":%d\r\n" % n for n in range(7, 107)]
        assert line.say("TWRITE log t") == b"-ERR wrong number of arguments for 'twrite' command\r\n"
    assert bodies(world) == [str(n) for n in range(1, 107)]
    assert "braid_gateway_forwarded_total" in {family.name for family in served.gateway.families()}
    assert isinstance(served.gateway.hub.homes, Homes)
    assert served.gateway.hub.homes.forwarded["region-1",] == 104


def test_a_message_that_is_sent_again_through_another_region_is_written_once(
    world: World, gateway: Callable[..., Served]
) -> None:
    for served in (gateway(2), gateway(3), gateway(1)):
        with Line(served.port) as line:
            assert line.say("TWRITE log IDMP me 1 t 2") == b":2\r\n"
            assert line.say("TWRITE log IDMP me 2 ENTRIES t 3 t 4") == b"*2\r\n:3\r\n:4\r\n"
    assert bodies(world) == ["1", "2", "3", "4"]


def test_eviction_by_age_runs_at_the_home(world: World, gateway: Callable[..., Served]) -> None:
    world[1].twrite("log", "t", "2")
    with pytest.raises(HomeError):
        world[2].tevict("log", older=0)
    with Line(gateway(2).port) as line:
        assert line.say("TEVICT log OLDER 3600000") == b":0\r\n"
        assert line.say("TEVICT log OLDER 0") == b":2\r\n"
    world.sync()
    assert [world[number].tread("log", 1, 5) for number in world] == [[None, None]] * 3


@pytest.mark.parametrize("home", [3, 77])
def test_a_password_goes_to_no_place_that_only_data_of_a_peer_names(world: World, home: int) -> None:
    """A bad region names a home of a log, and links merge it. Only braid.toml says where regions are."""
    world[3].hset("bs:meta:{log}", "home", f"0.1:1 1.{home}:2:1")
    world.sync()
    assert world[2].hget("bs:meta:{log}", "home") == f"0.1:1 1.{home}:2:1"
    with world.engines[1].client() as operator, ExitStack() as stack:
        operator.execute_command("ACL", "SETUSER", "ann", "on", ">a-secret", "~*", "+@all")
        stack.callback(operator.execute_command, "ACL", "DELUSER", "ann")
        named = stack.enter_context(Proxy(world.engines[0].port))
        served = stack.enter_context(Served(world.engines[1].url, others=[region(1, named.url)]))
        line = stack.enter_context(Line(served.port))
        assert line.say("AUTH ann a-secret") == b"+OK\r\n"
        assert line.say("TWRITE log t 2") == b"-HOME %d log 'log' is written in region %d\r\n" % (home, home)
        assert not any(b"a-secret" in sent for sent in named.requests)


def test_multi_is_not_forwarded(world: World, gateway: Callable[..., Served]) -> None:
    with Line(gateway(2).port) as line:
        line.say("MULTI")
        line.say("TWRITE log t 2")
        [error] = value_of(line.say("EXEC"))
    assert error == "HOME 1 log 'log' is written in region 1"
    assert bodies(world) == ["1"]


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_client_that_knows_the_regions_writes_at_the_home(world: World, toml: Path, kind: str) -> None:
    url = world.engines[2].url

    async def write() -> None:
        async with braidstream.asyncio.Redis.from_url(url, config=toml, decode_responses=True) as client:
            assert await client.twrite("log", "t", "2") == 2
            assert await client.twrite("log", entries=[("t", "3"), ("t", "4")]) == [3, 4]
            async with client.pipeline(transaction=False) as pipe:
                assert await pipe.twrite("log", "t", "5").get("x").twrite("log", "t", "6").execute() == [
                    5,
                    None,
                    6,
                ]
            await asyncio.to_thread(move, world, 1, 2)
            assert await client.twrite("log", "t", "7") == 7

    if kind == "asyncio":
        asyncio.run(write())
    else:
        with braidstream.Redis.from_url(url, config=str(toml), decode_responses=True) as client:
            assert client.twrite("log", "t", "2") == 2
            assert client.twrite("log", entries=[("t", "3"), ("t", "4")]) == [3, 4]
            with client.pipeline(transaction=False) as pipe:
                assert pipe.twrite("log", "t", "5").get("x").twrite("log", "t", "6").execute() == [5, None, 6]
            move(world, 1, 2)
            assert client.twrite("log", "t", "7") == 7
    assert bodies(world, 2) == [str(n) for n in range(1, 8)]


def test_a_pipeline_raises_that_the_home_was_lost(world: World, tmp_path: Path, opened: Opener) -> None:
    with Proxy(world.engines[0].port) as proxy:
        config = write_config(tmp_path / "b.toml", {1: proxy.url, 3: world.engines[2].url})
        client = opened(world.engines[2].url, config=config, **opened.retry(10))
        assert client.twrite("log", "t", "2") == 2
        proxy.lose_replies(b"XADD", times=1)
        lost = r"Command # 2 \(TWRITE log t 3\) .* may or may not have been applied"
        with pytest.raises(redis.ConnectionError, match=lost):
            client.pipeline(transaction=False).incr("n").twrite("log", "t", "3").execute()
        assert client.get("n") == b"1"
        assert bodies(world) == ["1", "2", "3"]
        proxy.lose_replies(b"XADD", times=1)
        pipe = client.pipeline(transaction=False).incr("n").twrite("log", "t", "4")
        found, error = pipe.execute(raise_on_error=False)
        assert (found, type(error)) == (2, redis.ConnectionError)


def test_a_pipeline_is_not_repeated_if_this_region_is_lost_while_it_looks_for_the_home(
    world: World, toml: Path, opened: Opener
) -> None:
    # Region 1 says that region 3 is the home, and region 3 does not know it yet: the write goes round.
    registry = world[1].run_plan(log_upkeep.read_log(b"log"))
    world[1].run_plan(log_upkeep.end_epoch(b"log", log_upkeep.home_of(registry), 3, force=False))
    with Proxy(world.engines[2].port) as proxy, ThreadPoolExecutor(1) as pool:
        client = opened(proxy.url, config=toml, **opened.retry(10))
        client.ping()
        pipe = client.pipeline(transaction=False).incr("n").twrite("log", "t", "2")
        done = pool.submit(pipe.execute)
        eventually(lambda: world[3].get("n"), within_s=20, why="the first command should run")
        proxy.lose_replies(b"bs:meta:{log}", times=1)
        with pytest.raises(redis.ConnectionError, match="may or may not have been applied"):
            done.result(20)
        assert proxy.lost == 1
        assert world[3].get("n") == "1"


def test_a_client_that_does_not_know_the_home_raises_an_error_with_its_number(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(HomeError, match="HOME 1 log 'log' is written in region 1") as raised:
        world[2].twrite("log", "t", "2")
    assert raised.value.region == 1
    without_home = write_config(tmp_path / "b.toml", {2: world.engines[1].url})
    with braidstream.Redis.from_url(world.engines[1].url, config=without_home) as client:
        with pytest.raises(HomeError, match="HOME 1"):
            client.twrite("log", "t", "2")
        with pytest.raises(HomeError, match="HOME 1"), client.pipeline() as pipe:
            pipe.twrite("log", "t", "2").execute()
    with pytest.raises(braidstream.exceptions.BraidError, match="cannot be read"):
        braidstream.Redis(config=tmp_path / "missing.toml")


def test_writers_at_two_gateways_follow_a_home_that_moves(
    world: World, gateway: Callable[..., Served]
) -> None:
    gateways, stop = {number: gateway(number) for number in (2, 3)}, threading.Event()
    told, errors = dict[int, str](), list[str]()

    def write_on(number: int, who: int) -> None:
        with redis.Redis(port=gateways[number].port) as client:
            count = 0
            while not stop.is_set():
                body, count = f"{who}.{count}", count + 1
                try:
                    told[client.execute_command("TWRITE", "log", "t", body)] = body
                except redis.RedisError as error:
                    errors.append(str(error))

    def more() -> None:
        count = len(told)
        eventually(lambda: len(told) > count + 50 or errors, within_s=60, why="writers should go on")

    threads = [threading.Thread(target=write_on, args=(2 + who % 2, who)) for who in range(4)]
    for thread in threads:
        thread.start()
    for home, to in ((1, 2), (2, 3), (3, 1), (1, 3)):
        more()
        move(world, home, to)
    more()
    stop.set()
    for thread in threads:
        thread.join()
    world.sync()
    assert errors == []
    assert [world[number].tread("log", 1, 100_000) for number in world] == [
        [(n, "t", told.get(n, "1")) for n in range(1, len(told) + 2)]
    ] * 3


def test_a_lost_reply_is_told_and_the_write_is_not_repeated(
    world: World, gateway: Callable[..., Served]
) -> None:
    with Proxy(world.engines[0].port) as proxy, Line(gateway(2, {1: proxy.url}).port) as line:
        assert line.say("TWRITE log t 2") == b":2\r\n"
        proxy.lose_replies(b"XADD", times=1)
        lost = line.say("TWRITE log t 3")
        assert lost.startswith(b"-LOST")
        assert b"may or may not have been applied" in lost
        assert bodies(world) == ["1", "2", "3"]
        assert line.say("TWRITE log t 4") == b":4\r\n"


def test_a_home_that_cannot_be_reached_is_named(world: World, gateway: Callable[..., Served]) -> None:
    with Proxy(world.engines[0].port) as proxy, Line(gateway(2, {1: proxy.url}).port) as line:
        proxy.shut()
        error = line.say("TWRITE log t 2").decode()
        assert error.startswith(
            "-HOME 1 log 'log' is written in region 1 (region-1), which cannot be reached"
        )
        assert error.endswith("Nothing was written\r\n")
        proxy.open()
        assert line.say("TWRITE log t 2") == b":2\r\n"


def test_it_writes_as_the_user_of_the_caller(world: World, gateway: Callable[..., Served]) -> None:
    for engine in world.engines[:2]:
        with engine.client() as operator:
            operator.execute_command("ACL SETUSER", "reader", "on", ">secret", "~*", "+@all")
    with world.engines[0].client() as operator:
        operator.execute_command("ACL SETUSER", "reader", "-xadd")
    try:
        with Line(gateway(2).port) as line:
            assert line.say("TWRITE log t 2") == b":2\r\n"
            assert line.say("AUTH reader secret") == b"+OK\r\n"
            assert line.say("TWRITE log t 3").startswith(b"-NOPERM")
            assert line.say("RESET") == b"+RESET\r\n"
            assert line.say("TWRITE log t 3") == b":3\r\n"
    finally:
        for engine in world.engines[:2]:
            with engine.client() as operator:
                operator.execute_command("ACL DELUSER", "reader")
    assert bodies(world) == ["1", "2", "3"]


def test_a_wrong_server_in_the_file_is_not_written_to(world: World, gateway: Callable[..., Served]) -> None:
    with Line(gateway(2, {1: world.engines[2].url}).port) as line:
        assert b"is another region" in line.say("TWRITE log t 2")
    assert bodies(world) == ["1"]
