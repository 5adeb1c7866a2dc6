"""Examines how regions are set up: reads all of them and diagnoses. Behind `braid doctor` and the console."""

import asyncio
from typing import Final

from braidstream.admin.cluster_map import ClusterNode
from braidstream.admin.diagnosis import CheckedUser, Finding, Level, Setup, diagnose, read_setup
from braidstream.admin.region_status import overview
from braidstream.config import Config, RegionConfig
from braidstream.errors import BraidError
from braidstream.inspection.node_lines import NodeLines, nodes_at
from braidstream.inspection.region_reader import look
from braidstream.model.region_config import Region
from braidstream.net.wire import connect, parse_address
from braidstream.protocol.plan import Plan, arun

_SILENCE_S: Final = 10.0
_ORDER: Final[tuple[Level, ...]] = ("error", "warning", "note")


async def check_up(
    regions: Config, names: set[str], *, has_file: bool = True, user: str | None = None
) -> list[Finding]:
    """What is wrong in the named regions, the worst first. It scans their keys: many round trips.

    has_file: `regions` are those of a file, which the servers should agree with. user: of daemons, whose
    rights to check. If it is named like a region, it is that of its daemons; else of all.
    """
    views = await look(regions)
    found = [
        Finding("error", each.kind, each.where, f"{each.text.rstrip('.')}.", each.fix, each.nodes)
        for each in overview(views, has_file=has_file).problems
        if names & set(each.where.split(" -> "))
    ]
    readable = {view.name: view.region for view in views if not view.error}  # others are problems already
    wanted = [each for each in regions.region if each.name in names & readable.keys()]
    listed_names = {each.name for each in regions.region}
    users = [
        None if user is None else CheckedUser(user, user not in listed_names or user == name, user != name)
        for name in (each.name for each in wanted)
    ]
    read = await asyncio.gather(
        *(_setups(each, readable[each.name], who) for each, who in zip(wanted, users, strict=True))
    )
    checked = [each for some in read for each in some]
    found += [each for each in checked if isinstance(each, Finding)]
    setups = [each for each in checked if isinstance(each, Setup)]
    durability = {each.name: each.durability or "" for each in regions.region}
    listed = {each.id: each.name for each in regions.region} if has_file else None
    found += diagnose(setups, listed, durability)
    return sorted(found, key=lambda finding: (_ORDER.index(finding.level), finding.where))


async def _setups(
    region: RegionConfig, known: Region | None, user: CheckedUser | None
) -> list[Setup | Finding]:
    """The setup of a server, or of each node of a cluster."""
    try:
        address = parse_address(region.url)
        conn = await connect(address, silence_s=_SILENCE_S)
        try:
            nodes = await nodes_at(conn)
            if nodes is None:
                return [await arun(read_setup(region.name, user=user), conn.send)]
        finally:
            conn.close()
    except (BraidError, OSError) as error:
        return [_unchecked(region, error)]
    lines = NodeLines(address, nodes, _SILENCE_S)
    await lines.open()
    try:
        plans = [(node, read_setup(region.name, node, known, user)) for node in lines.reached]
        return [*await asyncio.gather(*(_setup(region, lines, *each) for each in plans))]
    finally:
        lines.close()


async def _setup(
    region: RegionConfig, lines: NodeLines, node: ClusterNode, plan: Plan[Setup]
) -> Setup | Finding:
    try:
        return await arun(plan, lines.sender(node))
    except (BraidError, OSError) as error:
        return _unchecked(region, error, node.name)


def _unchecked(region: RegionConfig, error: Exception, *nodes: str) -> Finding:
    text = f"its setup could not be checked: {error}"
    return Finding("warning", "unchecked", region.name, text, "Run it with an administrator's URL.", nodes)
