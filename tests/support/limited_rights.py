"""A link of a daemon whose user has few rights on its own server."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import braidstream
from braidstream.replication.link.link import Link
from tests.support.world import Here, World

# What programs and what daemons need: the two parts of the page.
PROGRAMS, _DAEMONS = (Path(__file__).parents[2] / "docs/rights.md").read_text("utf-8").split("\n## Daemons\n")
# Its lists, with a pattern of keys first: what a daemon needs on its own server (it may not restore
# what the server has lost), and on that of a peer; the latter also for idempotent producers.
OWN, PEER, IDEMPOTENT = (
    re.findall(r"\([^)]*\)|\S+", block)
    for block in re.findall(r"```\n(?:ACL SETUSER \S+ on >PASSWORD )?([~+][^`]*)```", _DAEMONS)
)


def ship(world: World, name: str, rights: list[str], *, to: int = 2) -> None:
    """A new link from region 1 to another, of a user with these rights in region 1, sends a stream."""
    with link_of(world, rights, to=to) as link:
        asyncio.run(link.sync(name.encode()))


@contextmanager
def link_of(world: World, rights: list[str], *, to: int = 2) -> Iterator[Link]:
    with world.engines[0].client() as engine:
        engine.execute_command("ACL", "SETUSER", "daemon", "reset", "on", "nopass", *rights)
    url = world.engines[0].url.replace("//", "//daemon:any@", 1)
    with braidstream.Redis.from_url(url) as limited:
        ends = Here(limited), world.endpoints[to]
        yield Link(*ends, here=world.region(1), there=world.region(to))
