"""A region lost entries, and its daemon's user may not restore them: no peer deletes its copies."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import braidstream
from braidstream.errors import ReplyError
from braidstream.replication.link import Link
from tests.support.world import Here, World

GUIDE = Path(__file__).parents[2] / "docs/guides/replication-security.md"
# What the guide grants to a daemon on its own server.
OWN = re.findall(r"\+[^`~>]*?(?=\n```)", GUIDE.read_text())[0].split()


@pytest.fixture
def world(make_world: Callable[..., World]) -> Iterator[World]:
    world = make_world(2)
    yield world
    with world.engines[0].client() as engine:
        engine.execute_command("ACL DELUSER daemon")


def ship(world: World, rights: list[str]) -> None:
    """A new link from region 1 to 2, of a user with these rights in region 1."""
    with world.engines[0].client() as engine:
        engine.execute_command("ACL", "SETUSER", "daemon", "reset", "on", "nopass", "~bs:*", *rights)
    url = world.engines[0].url.replace("//", "//daemon:any@", 1)
    with braidstream.Redis.from_url(url) as limited:
        ends = Here(limited), world.endpoints[2]
        asyncio.run(Link(*ends, here=world.region(1), there=world.region(2)).sync(b"m"))


def lose(world: World) -> list[str]:
    """Region 1 loses entries that 2 has, and goes on."""
    before = [world[1].xadd("m", {"n": str(number)}) for number in range(5)]
    with world.engines[0].client() as engine:
        earlier = engine.dump("bs:1:s:{m}")
        lost = [world[1].xadd("m", {"n": str(number)}) for number in range(5)]
        world.sync()
        engine.restore("bs:1:s:{m}", 0, earlier, replace=True)
    return before + lost


def test_what_the_guides_rights_do_not_restore_stays_at_the_peer(world: World) -> None:
    kept = lose(world)
    gone, later = (world[1].xadd("m", {"n": text}) for text in ("gone", "later"))
    ship(world, OWN)
    world[1].xdel("m", gone)
    with world.engines[0].client() as engine:
        engine.xtrim("bs:1:j:{m}", maxlen=0)  # so all entries are compared
    ship(world, OWN)
    there = [entry for entry, _ in world[2].xrange("m")]
    assert there[: len(kept)] == kept
    assert there[-1] == later


def test_a_loss_that_cannot_be_noted_is_an_error_and_nothing_is_sent(world: World) -> None:
    kept = lose(world)
    world[1].xadd("m", {"n": "later"})
    with pytest.raises(ReplyError, match="It lost entries"):
        ship(world, [right for right in OWN if right != "+hset"])
    assert [entry for entry, _ in world[2].xrange("m")] == kept
