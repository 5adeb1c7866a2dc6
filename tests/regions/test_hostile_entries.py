"""Entries and groups with words of one hash in Lua would keep a peer's engine busy: they are not sent."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from braidstream.errors import DamagedError, ReplyError
from braidstream.model import keys
from tests.support.collisions import words_that_collide
from tests.support.daemons import all_replicating, numbered
from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually
from tests.support.world import World


@pytest.mark.parametrize(
    ("entries", "width"),
    [(1, 400), (1, 4_000), (1, 8_000), (200, 20)],
    ids=["few", "wide", "native", "small"],
)
def test_a_stream_with_hostile_entries_stops_alone(
    make_world: Callable[..., World], entries: int, width: int
) -> None:
    world = make_world(2)
    for name in ("a", "b"):
        world[1].xadd(name, {"n": "1"})
    world.sync()
    words = iter(words_that_collide(8_000) * 2)
    added = [
        world[1].execute_command("XADD", "a", "*", *(next(words) for _ in range(width)))
        for _ in range(entries)
    ]
    with pytest.raises(ReplyError, match="^HOSTILE entries .* of stream 'a' have hundreds of words"):
        world.ship(1, 2, "a")
    assert world[2].xlen("a") == 1
    world[1].xadd("b", {"n": "2"})
    world.ship(1, 2, "b")
    assert world[2].xlen("b") == 2
    world[1].xdel("a", *added)
    world[1].xadd("a", {"n": "3"})
    world.sync()
    assert world[2].xlen("a") == 2


def test_usual_wide_entries_are_sent(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    for width in (400, 4_000, 8_000):
        world[1].xadd("a", {f"field-{number}": str(number) for number in range(width // 2)})
    world.sync()
    assert world[2].xrange("a") == world[1].xrange("a")


def create_groups(client: redis.Redis, names: list[bytes]) -> None:
    for name in names:
        client.xgroup_create("a", name, "0")


@pytest.mark.parametrize("before", ["", "g:", keys.turn(b"a", b"").decode()], ids=["name", "field", "turn"])
def test_groups_with_hostile_names_stop_their_stream_alone(
    make_world: Callable[..., World], before: str
) -> None:
    """2,000 of them took XGROUP CREATE 0.1 s each time, and 1,500 kept a peer busy for seconds."""
    world = make_world(2)
    for name in ("a", "b"):
        world[1].xadd(name, {"n": "1"})
    world.sync()
    with pytest.raises(redis.ResponseError, match="^DAMAGED .* same hash in Lua"):
        create_groups(world[1], words_that_collide(600, len(before)))
    with pytest.raises(DamagedError, match="same hash in Lua"):
        world.ship(1, 2, "a")
    assert world[2].xinfo_groups("a") == []
    world[1].xadd("b", {"n": "2"})
    world.ship(1, 2, "b")
    assert world[2].xlen("b") == 2


def test_a_merge_lists_the_groups_of_a_strand_once(make_world: Callable[..., World]) -> None:
    """A list for each group took 0.4 s of a peer's engine for 400 groups, and 7 s for 1,500."""
    world = make_world(2)
    world[1].xadd("a", {"n": "1"})
    for number in range(40):
        world[1].xgroup_create("a", f"group-{number}", "0")
        world[1].xreadgroup(f"group-{number}", "ann", {"a": ">"}, noack=True)
    with world.engines[1].client() as there:
        there.config_resetstat()
        world.ship(1, 2, "a")
        stats = there.info("commandstats")
    assert stats["cmdstat_xinfo|groups"]["calls"] < 15
    assert {group["name"] for group in world[2].xinfo_groups("a")} == {f"group-{n}" for n in range(40)}


def test_keys_with_very_long_names_are_not_sent_to_peers(flavour: Flavour, tmp_path: Path) -> None:
    """They kept the daemons of both regions busy for good. The user may write stream `a` only."""
    with Engine(flavour) as one, Engine(flavour) as two:
        urls = numbered([one, two])
        with all_replicating(tmp_path, urls), client_of(one) as here, client_of(two) as there:
            rights = ("~a", "~bs:*:{a}*", "+hset")
            here.execute_command("ACL", "SETUSER", "tenant", "reset", "on", "nopass", *rights)
            with redis.Redis.from_url(one.url, username="tenant", password="x") as tenant:
                tenant.hset(b"bs:meta:{a}" + b"y" * 40_000_000, "s1", "0:+:0-0")
            for number in range(5):
                entry = here.xadd("b", {"n": number})
                eventually(
                    lambda entry=entry: there.xrange("b", entry, entry), within_s=30, why="b is replicated"
                )
            assert there.info("stats")["total_net_input_bytes"] < 40_000_000
