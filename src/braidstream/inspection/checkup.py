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

_SILENCE_S: Final = 10.0
_ORDER: Final[tuple[Level, ...]] = ("error", "warning", "note")


async def check_up(regions: Config, names: set[str]) -> list[Finding]:
    """What is wrong in the named regions, the worst first. It scans their keys: many round trips."""
    views = await look(regions)
    found = [
        Finding("error", each.kind, each.where, f"{each.text.rstrip('.')}.", each.fix)
        for each in overview(views).problems
        if names & set(each.where.split(" -> "))
    ]
    readable = {view.name for view in views if not view.error}  # the others are problems already
    wanted = [each for each in regions.region if each.name in names & readable]
    checked = await asyncio.gather(*map(_setup, wanted))
    found += [each for each in checked if isinstance(each, Finding)]
    setups = [each for each in checked if isinstance(each, Setup)]
    durability = {each.name: each.durability or "" for each in regions.region}
    found += diagnose(setups, {each.id: each.name for each in regions.region}, durability)
    return sorted(found, key=lambda finding: (_ORDER.index(finding.level), finding.where))


async def _setup(region: RegionConfig) -> Setup | Finding:
    try:
        conn = await connect(parse_address(region.url), silence_s=_SILENCE_S)
        try:
            return await arun(read_setup(region.name), conn.send)
        finally:
            conn.close()
    except (BraidError, OSError) as error:
        text = f"its setup could not be checked: {error}"
        return Finding("warning", "unchecked", region.name, text, "Run it with an administrator's URL.")
