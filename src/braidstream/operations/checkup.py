"""Examines how regions are set up: reads all of them and diagnoses. Behind `braid doctor` and the console."""

import asyncio
import contextlib
import re
import stat
from pathlib import Path
from ssl import CERT_NONE
from typing import Final

from braidstream.config import Config, RegionConfig
from braidstream.engine.address import Listen, parse_address
from braidstream.engine.connection import connect
from braidstream.engine.exposure import needs_no_login
from braidstream.errors import BraidError
from braidstream.model.region import Region
from braidstream.operations.cluster_map import ClusterNode
from braidstream.operations.doctor import CheckedUser, Finding, Level, Setup, diagnose, read_setup
from braidstream.operations.read_regions import NodeLines, look, nodes_at
from braidstream.operations.rights import daemon_rights
from braidstream.operations.status import overview
from braidstream.plan.plan import Plan, arun

_SILENCE_S: Final = 10.0
# A URL with a password that is not a variable.
_PASSWORD: Final = re.compile(r"""://[^\s"'@/:]*:(?!\$\{\w+\}@)[^\s"'@]+@|_password=(?!\$\{)[^\s"'&]""")
_ORDER: Final[tuple[Level, ...]] = ("error", "warning", "note")


async def check_up(
    regions: Config,
    names: set[str],
    *,
    has_file: bool = True,
    user: str | None = None,
    program: tuple[str, tuple[str, ...]] | None = None,
) -> list[Finding]:
    """What is wrong in the named regions, the worst first. It scans their keys: many round trips.

    has_file: `regions` are those of a file, which the servers should agree with. user: whose rights to check.
    program: what it is, and what rights that needs. Else the user is one of daemons: if it is named like a
    region, of that one's; else of all.
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
        None
        if user is None
        else _user(user, program, own=user not in listed_names or user == name, peer=user != name)
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
    takes_over = not has_file or regions.groups.takeover_after_s is not None
    found += diagnose(setups, listed, durability, takes_over=takes_over)
    for some in await asyncio.gather(*(_exposure(each) for each in wanted)):
        found += some
    return sorted(found, key=lambda finding: (_ORDER.index(finding.level), finding.where))


def _user(name: str, program: tuple[str, tuple[str, ...]] | None, *, own: bool, peer: bool) -> CheckedUser:
    what, rights = program or ("a daemon", tuple(daemon_rights(own=own, peer=peer)))
    return CheckedUser(name, what, rights)


async def _exposure(region: RegionConfig) -> list[Finding]:
    """Whether others on the way can read the passwords, and whether the server needs one. Not on loopback."""
    address = parse_address(region.url)
    hosts = [address.host] if address.sentinels is None else [host for host, _ in address.sentinels.places]
    if address.path is not None or all(Listen(host).is_local for host in hosts):
        return []
    found = list[tuple[str, str, str]]()
    if address.tls is None:
        text = "its URL does not use TLS: everyone on the way can read passwords and entries."
        fix = "Set tls-port on the server, and write rediss://...?ssl_ca_certs=FILE as its url in braid.toml."
        found.append(("tls", text, fix))
    elif address.tls.verify_mode == CERT_NONE:
        text = "its URL has ssl_cert_reqs=none: anyone on the way can pretend to be the server."
        fix = "Delete ssl_cert_reqs from its url in braid.toml, and write ssl_ca_certs=FILE instead."
        found.append(("certificate", text, fix))
    with contextlib.suppress(BraidError, OSError):
        if await needs_no_login(address):
            text = "it requires no password: anyone who can reach it can read and change everything."
            fix = "CONFIG SET requirepass LONG-PASSWORD, then CONFIG REWRITE, and the password in every URL."
            found.append(("password", text, fix))
    return [Finding("warning", check, region.name, text, fix) for check, text, fix in found]


def check_file(path: Path) -> list[Finding]:
    """Whether other users of this machine can read a password in the file."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    if not mode & (stat.S_IRGRP | stat.S_IROTH) or not _PASSWORD.search(text):
        return []
    why = f"other users of this machine can read the passwords in it (mode {stat.S_IMODE(mode):o})."
    fix = f"chmod 600 {path}, or write ${{NAME}} instead of a password and set that environment variable."
    return [Finding("warning", "file-mode", str(path), why, fix)]


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
        return await lines.run(node, plan)
    except (BraidError, OSError) as error:
        return _unchecked(region, error, node.name)


def _unchecked(region: RegionConfig, error: Exception, *nodes: str) -> Finding:
    text = f"its setup could not be checked: {error}"
    return Finding("warning", "unchecked", region.name, text, "Run it with an administrator's URL.", nodes)
