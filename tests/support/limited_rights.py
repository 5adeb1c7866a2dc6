"""A link of a daemon whose user has few rights on its own server."""

import asyncio
import re
from pathlib import Path
from typing import Final

import braidstream
from braidstream.replication.link import Link
from tests.support.world import Here, World

GUIDE: Final = Path(__file__).parents[2] / "docs/guides/replication-security.md"
# What the guide grants to a daemon on its own server. It may not restore what the server has lost.
OWN: Final = re.findall(r"\+[^`~>]*?(?=\n```)", GUIDE.read_text())[0].split()


def ship(world: World, name: str, rights: list[str], *, to: int = 2) -> None:
    """A new link from region 1 to another, of a user with these rights in region 1, sends a stream."""
    with world.engines[0].client() as engine:
        engine.execute_command("ACL", "SETUSER", "daemon", "reset", "on", "nopass", "~bs:*", *rights)
    url = world.engines[0].url.replace("//", "//daemon:any@", 1)
    with braidstream.Redis.from_url(url) as limited:
        ends = Here(limited), world.endpoints[to]
        link = Link(*ends, here=world.region(1), there=world.region(to))
        asyncio.run(link.sync(name.encode()))
