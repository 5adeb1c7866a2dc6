"""Examines how regions are set up: reads all of them and diagnoses. Behind `braid doctor` and the console."""

import asyncio
from typing import Final

from braidstream.admin.diagnosis import Finding, Level, Setup, diagnose, read_setup
from braidstream.admin.region_status import overview
from braidstream.config import Config, RegionConfig
from braidstream.errors import BraidError
from braidstream.inspection.region_reader import look
from braidstream.net.wire import connect, parse_address
from braidstream.protocol.plan import arun

_ORDER: Final[tuple[Level, ...]] = ("error", "warning", "note")


async def check_up(regions: Config, names: set[str]) -> list[Finding]:
    """What is wrong in the named regions, the worst first. It scans their keys: many round trips."""
    found = [
        Finding("error", each.kind, each.where, f"{each.text.rstrip('.')}.", each.fix)
        for each in overview(await look(regions)).problems
        if names & set(each.where.split(" -> "))
    ]
    wanted = [each for each in regions.region if each.name in names]
    setups = [each for each in await asyncio.gather(*map(_setup, wanted)) if each is not None]
    durability = {each.name: each.durability or "" for each in regions.region}
    found += diagnose(setups, {each.id: each.name for each in regions.region}, durability)
    return sorted(found, key=lambda finding: (_ORDER.index(finding.level), finding.where))


async def _setup(region: RegionConfig) -> Setup | None:
    """None if it is unreachable, or no region: `overview` has found that."""
    try:
        conn = await connect(parse_address(region.url))
    except (BraidError, OSError):
        return None
    try:
        return await arun(read_setup(region.name), conn.send)
    except (BraidError, OSError):
        return None
    finally:
        conn.close()
