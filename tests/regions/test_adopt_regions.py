"""An adopted stream is replicated like any other, with its groups, and deleted like any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from braidstream.commands.expire import carry_out
from braidstream.errors import BraidError
from braidstream.operations.adoption import adopt, bring_in, find_native, release
from braidstream.plan.view import View
from tests.support.daemons import all_replicating, numbered
from tests.support.waiting import eventually
from tests.support.world import World


def _bare(world: World, region: int) -> Any:
    options = world[region].connection_pool.connection_kwargs
    return redis.Redis(host=options["host"], port=options["port"], decode_responses=True)


def _native(world: World, region: int, entries: int = 20) -> list[Any]:
    with _bare(world, region) as bare:
        for at in range(entries):
            bare.xadd("orders", {"at": f"{region}.{at}"})
        bare.xgroup_create("orders", "billing", 0)
        [[_, taken]] = bare.xreadgroup("billing", "ann", {"orders": ">"}, count=10)
        bare.xack("orders", "billing", *(entry for entry, _ in taken[:4]))
        return bare.xrange("orders")


def _values(page: Any) -> list[tuple[str, str]]:
    return [(_text(entry), _text(next(iter(fields.values())))) for entry, fields in page]


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def test_an_adopted_stream_reaches_every_region(make_world: Callable[..., World]) -> None:
    world = make_world(3)
    entries = _native(world, 1)
    assert world[1].run_plan(adopt(b"orders")).problem == ""
    world.sync()
    for region in world:
        assert _values(world[region].xrange("orders")) == _values(entries)
        assert [_text(each["name"]) for each in world[region].xinfo_groups("orders")] == ["billing"]
    new = [world[region].xadd("orders", {"at": f"{region}.new"}) for region in world]
    world.sync()
    pages = [_values(world[region].xrange("orders")) for region in world]
    assert pages[0] == pages[1] == pages[2]
    assert [entry for entry, _ in pages[0][20:]] == sorted(map(_text, new), key=_order)
    # What was acknowledged in region 1 is not delivered again elsewhere; everything else is.
    [[_, rest]] = world[2].xreadgroup("billing", "bob", {"orders": ">"})
    assert [value for _, value in _values(rest)][:3] == ["1.4", "1.5", "1.6"]


def test_two_regions_may_adopt_streams_of_one_name(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    mine, theirs = _native(world, 1), _native(world, 2, 5)
    for region in world:
        assert world[region].run_plan(adopt(b"orders")).problem == ""
    world.sync()
    pages = [sorted(_values(world[region].xrange("orders"))) for region in world]
    assert pages[0] == pages[1] == sorted(_values([*mine, *theirs]))
    world[2].delete("orders")
    world.sync()
    for region in world:
        assert world[region].exists("orders") == 0
        assert world[region].type("orders") in (b"none", "none")
        assert world[region].xlen("orders") == 0
        assert world[region].keys("*") == []
    with _bare(world, 1) as bare:
        assert bare.type("orders") == "hash", "the fence holds in the region that did not delete it"
    entry = world[1].xadd("orders", {"at": "again"})
    world.sync()
    assert [_text(each) for each, _ in world[2].xrange("orders")] == [_text(entry)]


def test_a_native_stream_beside_one_that_came_from_a_peer_is_a_stray(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    world[1].xadd("orders", {"at": "1.ours"})
    _native(world, 2, 12)
    assert world[2].xlen("orders") == 12
    world.sync()
    assert world[2].xlen("orders") == 1
    assert "exists already" in world[2].run_plan(adopt(b"orders")).problem
    [stray] = world[2].run_plan(find_native([b"orders"]))
    assert (stray.name, stray.entries) == (b"orders", 12)
    assert world[2].run_plan(bring_in(b"orders")).entries == 12
    world.sync()
    for region in world:
        values = [value for _, value in _values(world[region].xrange("orders"))]
        assert values == ["1.ours", *(f"2.{at}" for at in range(12))]


def test_with_peers_an_adoption_cannot_be_undone(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    _native(world, 1)
    world[1].run_plan(adopt(b"orders"))
    with pytest.raises(BraidError, match="has peers"):
        world[1].run_plan(release(b"orders"))
    assert world[1].xlen("orders") == 20


def test_the_fence_goes_after_another_region_has_deleted_the_stream(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world(2)
    _native(world, 1)
    world[1].run_plan(adopt(b"orders"))
    with all_replicating(tmp_path, numbered(world.engines)), _bare(world, 1) as bare:
        eventually(lambda: world[2].xlen("orders") == 20, within_s=30, why="it arrives")
        assert bare.type("orders") == "hash"
        world[2].delete("orders")
        eventually(lambda: not bare.exists("orders"), within_s=30, why="the fence goes")
        assert world[1].lpush("orders", "1") == 1
        assert world[1].exists("orders") == 1
        assert world[1].keys("*") == ["orders"]
        assert world[1].ttl("orders") == -1
        assert world[1].delete("orders") == 1


def test_a_key_that_replaced_the_fence_of_a_deleted_stream_stays(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world(2)
    _native(world, 1)
    world[1].run_plan(adopt(b"orders"))
    world.sync()
    world[2].delete("orders")
    world.sync()
    world[1].set("orders", "v")
    with all_replicating(tmp_path, numbered(world.engines)):
        eventually(lambda: world[1].exists("orders") == 1, within_s=30, why="it is a key like any other")
    assert (world[1].get("orders"), world[1].ttl("orders")) == ("v", -1)


def test_the_fence_goes_with_a_stream_that_expires(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    _native(world, 1)
    world[1].run_plan(adopt(b"orders"))
    world[1].pexpire("orders", 20)
    until = world[1].pexpiretime("orders")
    with _bare(world, 1) as bare:
        eventually(lambda: bare.time()[0] * 1000 > until, within_s=30, why="the deadline passes")
        while world[1].run_plan(carry_out(View(world.region(1)), b"orders")) > 1:
            pass
        assert bare.exists("orders") == 0
    assert world[1].xadd("orders", {"at": "again"})


def _order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))
