"""An engine that knows messages itself (XADD IDMP) does so while the region has no peers, and no longer."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import braidstream
from braidstream.operations.membership import meet, part
from tests.support.regions import become, client_of
from tests.support.servers import NEWEST, Engine
from tests.support.world import World

# Redis has XADD IDMP of its own, Valkey does not.
pytestmark = pytest.mark.parametrize("flavour", NEWEST[:1], indirect=True)

Make = Callable[..., World]
ENTRY = {"f": "v"}


@pytest.fixture
def capable(engine: Engine) -> Engine:
    with engine.client() as operator:
        if b"xcfgset" not in operator.command_list():
            pytest.skip("this engine has no XADD IDMP of its own")
    become(engine)
    return engine


@pytest.fixture
def client(capable: Engine) -> Iterator[braidstream.Redis]:
    with client_of(capable, decode_responses=True) as one:
        yield one


def send(client: Any, number: int, name: str = "s") -> Any:
    return client.xadd(name, {"n": number}, idmp=("p", b"%d" % number))


def send_many(client: Any, numbers: range, *, multi: bool = False) -> list[Any]:
    pipe = client.pipeline(transaction=multi)
    for number in numbers:
        pipe.xadd("s", {"n": number}, idmp=("p", b"%d" % number))
    found: list[Any] = pipe.execute()
    return found


def stale(client: braidstream.Redis) -> None:
    """The client will not ask for some time who the server is."""
    cache = client.session.cache
    assert cache.region is not None
    cache.learn_region(cache.region, time.monotonic() + 3600)


def calls(engine: Engine, what: Callable[[], object]) -> dict[str, int]:
    with engine.client() as operator:
        operator.config_resetstat()
        what()
        stats = operator.info("commandstats")
    return {name.removeprefix("cmdstat_"): facts["calls"] for name, facts in stats.items()}


def test_a_message_alone_is_one_native_command(client: braidstream.Redis, capable: Engine) -> None:
    first = send(client, 1)
    counted = calls(capable, lambda: [send(client, number) for number in (1, 2, 3)])
    assert counted["xadd"] == 3
    assert "fcall" not in counted
    assert send(client, 1) == first
    auto = client.xadd("s", ENTRY, idmpauto="p")
    assert client.xadd("s", ENTRY, idmpauto="p") == auto
    assert client.xlen("s") == 4
    with capable.client() as operator:
        assert not operator.keys("bs:[iq].*")


def test_by_content_it_is_the_id_that_every_region_would_give(client: braidstream.Redis) -> None:
    """An engine's own hash differs from ours: a message known by its content must be known elsewhere too."""
    send(client, 0)
    first = client.xadd("s", ENTRY, idmpauto="p")
    client.run_plan(meet((1, 2)))
    client.session.cache.expire_region()
    assert client.xadd("s", ENTRY, idmpauto="p") == first


def test_messages_in_a_pipeline_are_native_commands(client: braidstream.Redis, capable: Engine) -> None:
    many = send_many(client, range(60))
    assert send_many(client, range(60)) == many
    counted = calls(capable, lambda: send_many(client, range(100)))
    assert counted["xadd"] == 100
    assert counted["fcall"] == 1  # that the strand is there
    client.xcfgset("s", idmp_maxsize=1)
    again = send_many(client, range(50, 100))
    assert client.xlen("s") == 150
    assert send_many(client, range(99, 100)) == again[-1:]


def test_a_pipeline_that_has_not_noticed_the_first_peer_adds_nothing_twice(
    client: braidstream.Redis, capable: Engine
) -> None:
    many = send_many(client, range(30))
    assert send_many(client, range(30)) == many
    with client_of(capable, decode_responses=True) as other:
        other.run_plan(meet((1, 2)))
        stale(client)
        assert send_many(other, range(15, 45))[:15] == many[15:]
        assert send_many(client, range(60))[:30] == many
        client.session.cache.expire_region()
        assert send_many(client, range(60))[:30] == many
        assert other.xlen("s") == 60


@pytest.mark.parametrize("lost", [True, False])
def test_a_pipeline_to_a_strand_that_is_gone_makes_it_again(
    client: braidstream.Redis, capable: Engine, lost: bool
) -> None:
    send_many(client, range(10))
    send_many(client, range(10))
    with client_of(capable) as other, capable.client() as operator:
        if lost:
            operator.delete("bs:1:s:{s}")
        else:
            other.delete("s")
    many = send_many(client, range(20))
    assert client.xlen("s") == 20
    assert send_many(client, range(20)) == many


@pytest.mark.parametrize("multi", [False, True])
def test_all_ways_to_send_know_each_other(client: braidstream.Redis, capable: Engine, multi: bool) -> None:
    one = [send(client, number) for number in range(5)]
    many = send_many(client, range(120), multi=multi)
    assert many[:5] == one
    assert send_many(client, range(60, 120), multi=multi) == many[60:]
    with client_of(capable, decode_responses=True) as other:
        assert [send(other, number) for number in range(100, 120)] == many[100:]
    assert client.xlen("s") == 120


def test_settings_are_the_engines_too_and_a_change_forgets(
    client: braidstream.Redis, capable: Engine
) -> None:
    first = send(client, 1)
    client.xcfgset("s", idmp_maxsize=2, idmp_duration=900)
    assert send(client, 1) != first
    known = [send(client, number) for number in (2, 3)]
    info = client.xinfo_stream("s")
    assert (info["idmp-maxsize"], info["idmp-duration"], info["iids-tracked"]) == (2, 900, 2)
    assert [send(client, number) for number in (2, 3)] == known
    assert send(client, 1) > known[1]  # the third before the last: forgotten
    with capable.client() as operator:
        operator.delete("bs:1:s:{s}")  # lost: it is made again
    send(client, 1)
    info = client.xinfo_stream("s")
    assert (info["idmp-maxsize"], info["idmp-duration"], info["length"]) == (2, 900, 1)


def test_settings_may_come_before_the_first_message(client: braidstream.Redis, capable: Engine) -> None:
    client.xadd("s", ENTRY)
    client.xcfgset("s", idmp_maxsize=3)
    send(client, 1)
    assert "fcall" not in calls(capable, lambda: send(client, 2))
    assert client.xinfo_stream("s")["idmp-maxsize"] == 3


def test_deletion_and_renaming_forget(client: braidstream.Redis) -> None:
    first = send(client, 1)
    client.xcfgset("s", idmp_maxsize=3)
    client.delete("s")
    again = send(client, 1)
    assert again != first
    assert client.xinfo_stream("s")["idmp-maxsize"] == 100
    client.rename("s", "t")
    assert send(client, 1, "t") != again
    assert send(client, 1) != again
    assert (client.xlen("s"), client.xlen("t")) == (1, 2)


def test_what_the_engine_knew_is_known_when_the_first_peer_comes(
    client: braidstream.Redis, capable: Engine
) -> None:
    first = send_many(client, range(20))
    with client_of(capable, decode_responses=True) as other:
        send(other, 0)
        client.run_plan(meet((1, 2)))
        stale(other)  # it still believes that there are no peers
        client.session.cache.expire_region()
        assert [send(client, number) for number in range(10)] == first[:10]
        assert send_many(client, range(20)) == first
        late = send(other, 20)
        assert send(client, 20) == late
        new = send(client, 21)
        assert send(other, 21) == new
    assert client.xlen("s") == 22
    with capable.client() as operator:
        assert operator.xlen("bs:1:j:{s}") == 1  # only what a client with peers accepted


def test_what_was_known_with_peers_is_known_when_they_have_left(
    client: braidstream.Redis, capable: Engine
) -> None:
    alone = send(client, 1)
    client.run_plan(meet((1, 2)))
    client.session.cache.expire_region()
    together = send(client, 2)
    client.run_plan(part([2]))
    client.session.cache.expire_region()
    assert (send(client, 1), send(client, 2)) == (alone, together)
    assert client.xlen("s") == 2


def before_the_peer(world: World) -> None:
    """Region 1 as it was before it met the other."""
    with world.engines[0].client() as operator:
        if b"xcfgset" not in operator.command_list():
            pytest.skip("this engine has no XADD IDMP of its own")
        operator.hset("bs:config", "writers", "1")
        operator.hincrby("bs:config", "topology", 1)
    world[1].session.cache.expire_region()


def with_the_peer(world: World) -> None:
    world[1].run_plan(meet((1, 2)))
    world[1].session.cache.expire_region()


def read(world: World) -> list[list[str]]:
    return [[entry for entry, _ in world[region].xrange("s")] for region in world]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_message_known_to_the_engine_and_accepted_elsewhere_ends_as_one_entry(
    make_world: Make, order: tuple[int, int]
) -> None:
    world = make_world(2)
    before_the_peer(world)
    send(world[1], 0)
    accepted = [send(world[region], 1) for region in order]
    smallest = min(accepted, key=lambda entry: tuple(map(int, entry.split("-"))))
    with_the_peer(world)
    world.sync()
    zero, one = read(world)[0]
    assert one == smallest
    assert read(world) == [[zero, one]] * 2
    assert send(world[1], 1) == smallest
    send(world[2], 1)
    send(world[1], 2)
    world.sync()
    assert read(world)[0] == read(world)[1]
    assert [world[region].xlen("s") for region in world] == [3, 3]


def test_a_client_that_does_not_know_of_the_peer_adds_nothing_that_the_peer_has_told(
    make_world: Make,
) -> None:
    world = make_world(2)
    before_the_peer(world)
    with client_of(world.engines[0], decode_responses=True) as late:
        send(late, 0)
        stale(late)
        with_the_peer(world)
        send(world[2], 1)
        world.sync()
        send(late, 1)
        world.sync()
    assert read(world)[0] == read(world)[1]
    assert [world[region].xlen("s") for region in world] == [2, 2]
