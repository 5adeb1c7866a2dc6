"""What an upgrade of a region to this release would do, and who could not go on: `braid upgrade --check`.

    daemons     their version is in bs:status
    clients     CLIENT LIST has the version of braidstream's own (Redis 7.2, Valkey 7.2 and newer)
    gateways    braid_build_info at the address that braid.toml gives their metrics

Programs of one series (0.1.x, later 1.x) go on with newer functions: docs/design/stability.md.
"""

import re
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, Literal

from braidstream import lua
from braidstream.config import RegionConfig
from braidstream.engine.address import Listen
from braidstream.engine.redis_py import LIBRARY
from braidstream.errors import BraidError, ReplyError
from braidstream.model.keys import CONFIG
from braidstream.operations.doctor import Finding
from braidstream.operations.open_region import CLIENT_ERRORS, open_region
from braidstream.operations.requirements import CURE, drops_transactions, read_default_user
from braidstream.operations.rights import missing_right
from braidstream.operations.status import View
from braidstream.plan.lookup import info_facts
from braidstream.plan.plan import Batch, Plan

OURS: Final = version(LIBRARY)
WITHIN_S: Final = 2.0
_CLIENT: Final = re.compile(rb"lib-name=\S*" + LIBRARY.encode() + rb"_v([\w.+-]+)")
_OTHER: Final = re.compile(rb"lib-name=([\w.-]+)")
_BUILD: Final = re.compile(r'^braid_build_info\{[^}]*version="([^"]+)",role="gateway"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """Programs that use a region. version: of braidstream; empty if unknown. where: which ones, in words."""

    kind: Literal["daemon", "client", "gateway"]
    version: str
    where: str


@dataclass(frozen=True, slots=True)
class Check:
    """functions: the version that the servers have, the oldest of a cluster's nodes. brings: that of this
    release."""

    region: str
    engine: str = ""
    functions: int = 0
    brings: int = lua.VERSION
    programs: tuple[Program, ...] = ()
    findings: list[Finding] = field(default_factory=list)

    @property
    def can_go_on(self) -> bool:
        return not any(each.level == "error" for each in self.findings)


@dataclass(frozen=True, slots=True)
class _Server:
    functions: int
    changed: str
    drops: str
    clients: bytes | None
    denied: tuple[str, ...]


def _read_server() -> Plan[_Server]:
    user, info, listed = yield Batch(
        [("ACL", "WHOAMI"), ("INFO",), ("CLIENT", "LIST")], resend=True, attempt=True
    )
    functions = yield from lua.installed()
    changed = yield from lua.read_changed()
    about, default_is_whole = info_facts(info), (yield from read_default_user())
    denied = list[str]()
    if not isinstance(user, ReplyError):
        load = ("FUNCTION", "LOAD", "REPLACE", "#!lua name=x"), ("HSET", CONFIG, "library", "1")
        asked = [("ACL", "DRYRUN", user, *words) for words in load]
        replies = yield Batch(asked, resend=True, attempt=True)
        refused = [reply for reply in replies if not isinstance(reply, ReplyError) and bytes(reply) != b"OK"]
        denied = [missing_right(reply.decode()) or f"%W~{CONFIG.decode()}" for reply in refused]
    return _Server(
        functions,
        changed,
        drops_transactions(about, default_is_whole),
        None if isinstance(listed, ReplyError) else bytes(listed),
        tuple(denied),
    )


def check_upgrade(region: RegionConfig, views: Sequence[View]) -> Check:
    """views: of all regions that are known, as `look` reads them. Nothing is changed."""
    own = next(view for view in views if view.name == region.name)
    if own.error:
        text = f"its server cannot be read: {own.error}"
        return Check(
            region.name, findings=[Finding("error", "unreadable", region.name, text, own.trouble[1])]
        )
    try:
        with closing(open_region(region.url, socket_timeout=WITHIN_S)) as client:
            servers: list[_Server] = client.run_on_primaries(_read_server)
    except (BraidError, OSError, *CLIENT_ERRORS) as error:
        text = f"its server cannot be read: {error}"
        return Check(
            region.name, findings=[Finding("error", "unreadable", region.name, text, "Run: braid status")]
        )
    programs = [Program("daemon", each.version, f"process {each.pid} on {each.host}") for each in own.live]
    clients, unnamed = _clients(region.name, servers)
    programs += [*clients, *_gateways(region)]
    found = [*_refusals(region.name, servers), *_others(region.name, views)]
    found += [finding for each in programs for finding in _stands(region.name, each)]
    functions = min(each.functions for each in servers)
    return Check(region.name, own.engine, functions, programs=tuple(programs), findings=[*found, *unnamed])


_READ: Final = "Read Stored state in the changelog of this release, and upgrade it soon after the functions."


def _refusals(name: str, servers: Iterable[_Server]) -> Iterable[Finding]:
    """Why `braid init` would refuse."""
    for each in servers:
        if each.functions > lua.VERSION:
            text = f"its engine functions have version {each.functions}, newer than those of this program."
            yield Finding(
                "error", "newer", name, text, "Install the newer release here: pip install -U braidstream"
            )
        elif each.changed:
            fix = "Find out who may run FUNCTION LOAD, then: braid init --force"
            yield Finding("error", "changed", name, f"its engine functions: {each.changed}.", fix)
        if each.drops:
            yield Finding("error", "aof-user", name, each.drops, f"{CURE}.")
        if each.denied:
            text = f"the user of its url may not load functions: it lacks {' '.join(each.denied)}."
            yield Finding("error", "rights", name, text, "Run it with an administrator's URL.")


def _others(name: str, views: Iterable[View]) -> Iterable[Finding]:
    for view in views:
        functions = view.functions
        if view.name != name and functions is not None and 0 < functions < lua.OLDEST:
            text = (
                f"{view.name} has version {functions} of the functions, and links of this release need "
                f"{lua.OLDEST}: entries for it wait until it is upgraded too. Nothing is lost."
            )
            yield Finding("warning", "peer", name, text, f"Upgrade {view.name} right after it.")


def _stands(name: str, program: Program) -> Iterable[Finding]:
    if _series(program.version) != _series(OURS):
        has = f"has braidstream {program.version}" if program.version else "does not say its version"
        text = f"a {program.kind} ({program.where}) {has}. It may not go on with the functions of {OURS}."
        yield Finding("warning", program.kind, name, text, _READ)


def _series(text: str) -> tuple[str, ...]:
    """0.1 of 0.1.7, and 2 of 2.3.1: what goes on with newer functions of the same."""
    parts = text.split(".")
    return tuple(parts[:2] if parts[0] == "0" else parts[:1])


def _clients(name: str, servers: Iterable[_Server]) -> tuple[list[Program], list[Finding]]:
    """Clients by their version, and what is unknown of others."""
    found, others, denied = Counter[str](), Counter[str](), False
    for each in servers:
        denied = denied or each.clients is None
        for line in (each.clients or b"").splitlines():
            if b" cmd=client|list " in line:  # this check
                continue
            if ours := _CLIENT.search(line):
                found[ours[1].decode()] += 1
            else:
                other = _OTHER.search(line)
                others[other[1].decode() if other else "no name"] += 1
    programs = [Program("client", text, _connections(count)) for text, count in sorted(found.items())]
    if denied:
        text, fix = "its clients cannot be seen without +client|list.", "Run it with an administrator's URL."
    elif others:
        names = ", ".join(f"{text} {count}" for text, count in sorted(others.items()))
        text = (
            f"{_connections(sum(others.values()))} without a version of braidstream ({names}): daemons, "
            "gateways and their clients, other programs, and all programs if the server is Redis 7.0."
        )
        fix = "Compare braid_build_info of gateways, and pip freeze of programs."
    else:
        return programs, []
    return programs, [Finding("note", "clients", name, text, fix)]


def _connections(count: int) -> str:
    return f"{count:,} connection{'' if count == 1 else 's'}"


def _gateways(region: RegionConfig) -> list[Program]:
    if region.gateway_metrics is None:
        return []
    found = _BUILD.findall(fetch_metrics(region.gateway_metrics))
    return [Program("gateway", each, f"metrics on {region.gateway_metrics}") for each in found]


def fetch_metrics(address: str) -> str:
    """/metrics of a daemon or gateway, if it can be reached from here; else an empty text."""
    at = Listen.parse_http(address)
    host = "127.0.0.1" if at.host == "0.0.0.0" else at.host
    opener: Any = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{Listen(host, at.port)}/metrics", timeout=WITHIN_S) as reply:
            return bytes(reply.read(10_000_000)).decode("utf-8", "replace")
    except OSError:
        return ""
