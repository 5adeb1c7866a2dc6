"""The first step of a sweep finds every stream that differs between regions, and few others."""

import asyncio
from collections.abc import Callable

import pytest

from braidstream.replication.detect.sweep import differing
from tests.support.world import World

NAME = b"orders"


def differ(world: World, source: int, target: int) -> bool:
    ends = world.endpoints[source], world.endpoints[target]
    return bool(asyncio.run(differing([NAME], world.region(source).writers, *ends)))


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    made = make_world(2)
    for number in range(10):
        made[1 + number % 2].xadd("orders", {"n": number})
    made.sync()
    return made


CHANGES: dict[str, Callable[[World], object]] = {
    "an entry": lambda world: world[1].xadd("orders", {"n": "new"}),
    "a deletion": lambda world: world[1].xdel("orders", world[1].xrange("orders")[4][0]),
    "a trim": lambda world: world[1].xtrim("orders", maxlen=3, approximate=False),
    "the deletion of the stream": lambda world: world[1].delete("orders"),
    "a group": lambda world: world[1].xgroup_create("orders", "billing", id="0"),
    "a message": lambda world: world[1].xadd("orders", {"n": "new"}, idmp=("producer", "1")),
    "a setting": lambda world: world[1].xcfgset("orders", idmp_maxsize=300),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_until_the_peer_has_it(world: World, change: str) -> None:
    assert not differ(world, 1, 2)
    CHANGES[change](world)
    assert differ(world, 1, 2)
    world.sync()
    assert [len(client.xrange("orders")) for client in world.clients.values()] in (
        [[count, count] for count in (0, 3, 9, 10, 11)]
    )
    if change != "a group":  # its entries are unread, which a link keeps an eye on
        assert not differ(world, 1, 2)


def test_what_a_group_acknowledges_is_seen_though_nothing_else_changes(world: World) -> None:
    world[1].xgroup_create("orders", "billing", id="0")
    world.sync()
    [[_, entries]] = world[1].xreadgroup("billing", "ann", {"orders": ">"})
    world[1].xack("orders", "billing", *(entry for entry, _ in entries))
    assert differ(world, 1, 2)
    world.sync()
    assert not differ(world, 1, 2)
    assert world[2].xreadgroup("billing", "bob", {"orders": ">"}) in ({}, [])


def test_a_stream_with_chosen_ids_is_always_compared_as_a_whole(make_world: Callable[..., World]) -> None:
    world = make_world(2, id_mode="liberal")
    world[1].xadd("orders", {"n": "1"}, id="5-1")
    world.sync()
    assert differ(world, 1, 2)
