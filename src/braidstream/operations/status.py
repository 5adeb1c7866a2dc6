"""The state of all regions and links, as `braid status` shows it: read from the engines, not from daemons.

    engines --read_view()--> View of each region --overview()--> Overview: links, problems

What daemons know is in their engine. Everything else comes from the engine: its memory,
its clock, who replicates to it.
"""

import contextlib
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from braidstream.errors import BraidError, ClusterError, ReplyError
from braidstream.lua import FUNCTIONS_VERSION, VERSION, version_of
from braidstream.model.keys import CONFIG, STATUS, claim
from braidstream.model.region import Region
from braidstream.model.strand import Command, facts
from braidstream.operations.cluster_map import place_text
from braidstream.operations.requirements import engine_of
from braidstream.operations.rights import missing_right
from braidstream.plan.lookup import info_facts, is_cluster, ms_of
from braidstream.plan.plan import Batch, Plan

# ----------------------------------------------------------------------------------------------------
#
# The status of a replication daemon's links, which it stores in its region's engine for `braid status`.
#
#     HSET bs:status <daemon> {"at_ms": ..., "links": {"eu-west": {"state": "up", ...}}}     every second
#
# So `braid status` needs no connection to a daemon, and a stale status shows a daemon that hangs or
# crashed. `at_ms` is by the engine's own clock, so the age has no skew.

S = TypeVar("S")

EVERY_S: Final = 1.0
# An older status is stale: the daemon hangs, crashed, or cannot write.
STALE_MS: Final = 3_500
# How long the last status of a region without daemons is kept.
EXPIRE_S: Final = 86_400

# silent: connected, but the peer has not answered for seconds
LinkState = Literal["up", "silent", "down", "misconfigured", "starting"]


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One direction: from the daemon's region to a peer.

    since_ms: since when it has this state; why: the last error, while it is not up.
    lag_entries, lag_ms: how many entries the peer lacks, and the age of the oldest; None if unknown.
    entries, bytes, refused: since the daemon started. refusal: what the peer refuses now, if it does.
    clock_ms: how far the peer's clock is ahead, when it was last measured.
    holes: in how many strands one of the two regions lacks entries that it lost; hole: one of them.
    """

    state: LinkState = "starting"
    since_ms: int = 0
    why: str = ""
    lag_entries: int | None = None
    lag_ms: int | None = None
    entries: int = 0
    bytes: int = 0
    refused: int = 0
    refusal: str = ""
    clock_ms: int | None = None
    holes: int = 0
    hole: str = ""


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """One daemon. held_ms: how long its links have waited for `durability`; 0 if they do not wait.

    held_why: what for. waived_ms: how long they have gone on without it, after `durability_timeout_s`.
    tuned: what `braid tune durability` set; empty: what the file says counts.

    taken: regions that it delivers for, because their heartbeat stopped, and in how many groups.
    file: what its file says of each region, by name: number and selection, which must agree everywhere.
    file_error: why its changed file cannot be used; it goes on with the old one.
    functions_changed: why the engine functions are not those that it ships; empty if it does not know.
    waits: regions that could not be asked what their groups need, and a stream that keeps entries for that.
    retention: streams that keep entries which a policy would remove, and for which group and region.
    """

    at_ms: int
    started_ms: int
    host: str
    pid: int
    version: str
    durability: str = ""
    held_ms: int = 0
    held_why: str = ""
    waived_ms: int = 0
    tuned: str = ""
    links: dict[str, LinkStatus] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    file: dict[str, str] = field(default_factory=dict)
    file_error: str = ""
    functions_changed: str = ""
    waits: dict[str, str] = field(default_factory=dict)
    retention: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def parse(text: bytes) -> "DaemonStatus | None":
        """Without fields of a newer version of braidstream. None if it cannot be read."""
        try:
            found: dict[str, Any] = json.loads(text)
            links = {str(name): _known(LinkStatus, link) for name, link in found.pop("links").items()}
            return replace(_known(DaemonStatus, found), links=links)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _known(kind: type[S], found: dict[str, Any]) -> S:
    """The fields that this version knows. TypeError if a field is missing or has another type."""
    types = get_type_hints(kind)
    known = {name: value for name, value in found.items() if name in types}
    if not all(_fits(value, types[name]) for name, value in known.items()):
        raise TypeError
    return kind(**known)


def _fits(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) is Literal:
        return isinstance(value, str)
    if get_origin(wanted) is dict:
        return all(isinstance(each, get_args(wanted)[1]) for each in value.values())
    return isinstance(value, wanted)


def store_status(daemon: bytes, status: DaemonStatus) -> Plan[None]:
    """One round trip. An engine that takes no writes (it is full), or is lost, keeps the old one."""
    commands = [("HSET", STATUS, daemon, status.text), ("EXPIRE", STATUS, EXPIRE_S)]
    with contextlib.suppress(ReplyError):
        yield Batch(commands, attempt=True, optional=True)


def forget_status(*daemons: bytes) -> Plan[None]:
    yield Batch([("HDEL", STATUS, *daemons)], attempt=True)


# ----------------------------------------------------------------------------------------------------
# Status

_CLOCK_MS: Final = 1_000
NO_REPLICAS: Final = "no replica is connected, and min-replicas-to-write wants one"
_FULL: Final = 0.98
_NEARLY_FULL: Final = 0.9
_HELD_MS: Final = 1_000
LAG_MS: Final = 60_000
# Why a server that answers cannot be read: kind of the problem, and what to do. Else it is unreachable.
_UNREADABLE: Final = {
    "NOREGION": ("noregion", "Run: braid region rejoin {}"),
    "LOADING": ("loading", "Wait until the server has loaded its data."),
    "NOPERM": ("rights", "Give the user of its url the rights of the guide on replication security."),
    "CONFIG": ("config", "Correct the file, or bs:config of the server."),
    "LOSTPART": ("lost", ""),
    "CLUSTER": ("cluster", "Remove it from the file."),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a server, in bytes. most: 0 without a limit."""

    used: int = 0
    most: int = 0

    @property
    def share(self) -> float:
        return self.used / self.most if self.most else 0.0


@dataclass(frozen=True, slots=True)
class View:
    """A region as its engine shows it. error, code: why it could not be read; then the rest is empty.

    clock_ms, clock_error_ms: the engine's clock, compared with that of the machine that runs `braid status`.
    claims: regions whose daemon replicates to this one, by number (replication/daemon/peer.py).
    functions: the version that its engine has, 0 if none; None if unknown. bs:config has what was noted once.
    is_node: it is a node of a cluster. nodes, node_problems: of a whole one (cluster_status.py).
    """

    id: int
    name: str
    error: str = ""
    code: str = ""
    region: Region | None = None
    is_replica: bool = False
    now_ms: int = 0
    engine: str = ""
    memory: Memory = field(default_factory=Memory)
    writes_refused: str = ""
    functions: int | None = None
    daemons: tuple[DaemonStatus, ...] = ()
    claims: frozenset[int] = frozenset()
    clock_ms: float = 0.0
    clock_error_ms: float = 0.0
    is_node: bool = False
    nodes: tuple[dict[str, Any], ...] = ()
    node_problems: "tuple[Problem, ...]" = ()

    @property
    def trouble(self) -> tuple[str, str]:
        """Why it could not be read: the kind of the problem, and what to do."""
        if _is_login_refused(self.error):
            return "unreachable", _login_fix(self.name)
        unreachable = "unreachable", "Check the server, its address and the password: redis-cli -u URL ping"
        kind, fix = _UNREADABLE.get(self.code, unreachable)
        return kind, fix.format(self.name)

    @property
    def is_full(self) -> bool:
        return self.memory.share >= _FULL or any(each.kind == "full" for each in self.node_problems)

    @property
    def live(self) -> tuple[DaemonStatus, ...]:
        """Daemons that reported lately."""
        return tuple(each for each in self.daemons if self.now_ms - each.at_ms <= STALE_MS)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong where, and what to do. kind: one word, for scripts. nodes: which ones of a cluster."""

    kind: str
    where: str
    text: str
    fix: str
    nodes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return place_text(self.where, self.nodes)


@dataclass(frozen=True, slots=True)
class LinkView:
    """One direction. status: None if unknown."""

    source: str
    target: str
    status: LinkStatus | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it. links: between the views; of a region that was read alone, those that its daemons know."""

    views: tuple[View, ...]
    links: tuple[LinkView, ...]
    problems: tuple[Problem, ...]

    def needs_daemon(self, view: View) -> bool:
        return not _is_alone(view, self.views)


def read_view(number: int, name: str, peers: Sequence[int]) -> Plan[View]:
    """One round trip. peers: numbers of the other regions. A node of a cluster has the code CLUSTER."""
    who: list[Command] = [("HGETALL", CONFIG), FUNCTIONS_VERSION]
    view, [config, version] = yield from read_about(View(number, name), peers, who)
    view = replace(view, functions=version_of(version))
    if view.is_node:
        return View(number, name, error=str(ClusterError()), code=ClusterError.code)
    if view.error:
        return view
    if isinstance(config, ReplyError):
        return View(number, name, error=str(config), code=config.code)
    try:
        return replace(view, region=Region.parse(config))
    except BraidError as error:
        return replace(view, error=str(error), code=error.code)


def read_about(view: View, peers: Sequence[int], who: Sequence[Command]) -> Plan[tuple[View, list[Any]]]:
    """What a server says of itself, and its replies to other commands. One round trip."""
    fixed: list[Command] = [("TIME",), ("HGETALL", STATUS), ("INFO",)]
    claims = [("EXISTS", claim(peer)) for peer in peers]
    replies = yield Batch([*fixed, *who, *claims], resend=True, attempt=True)
    (now, stored, info), found, claimed = replies[:3], replies[3 : 3 + len(who)], replies[3 + len(who) :]
    view = replace(view, is_node=is_cluster(info))
    if isinstance(now, ReplyError):
        return replace(view, error=str(now), code=now.code), found
    about = info_facts(info)
    daemons = [] if isinstance(stored, ReplyError) else map(DaemonStatus.parse, facts(stored).values())
    view = replace(
        view,
        is_replica=about.get(b"role") == b"slave",
        now_ms=ms_of(now),
        engine=engine_of(about),
        memory=Memory(int(about.get(b"used_memory", 0)), int(about.get(b"maxmemory", 0))),
        writes_refused=_writes_refused(about),
        daemons=tuple(sorted((each for each in daemons if each is not None), key=lambda each: -each.at_ms)),
        claims=frozenset(peer for peer, reply in zip(peers, claimed, strict=True) if reply == 1),
    )
    return view, found


def _writes_refused(info: dict[bytes, bytes]) -> str:
    """Why the engine may refuse every write: its disk, its replicas. Empty if it does not say so."""
    if info.get(b"min_slaves_good_slaves") == b"0":  # only there if min-replicas-to-write is set
        return NO_REPLICAS
    if info.get(b"rdb_last_bgsave_status") == b"err":
        return "its last RDB save failed"
    return "its append-only file cannot be written" if info.get(b"aof_last_write_status") == b"err" else ""


def overview(views: Sequence[View], max_lag_ms: int = LAG_MS, *, has_file: bool = True) -> Overview:
    """What the views mean together. has_file: they are all regions of a file. Else it is one region, read by
    its URL: its peers are those that its daemons know."""
    sound = [view for view in views if not view.error]
    middle = statistics.median_low([view.clock_ms for view in sound]) if sound else 0.0
    problems, links = list[Problem](), list[LinkView]()
    for view in views:
        found = _of_region(view, views if has_file else (), middle)
        problems += found
        if not view.error and not any(each.kind == "lost" for each in found):
            alive = view.live or view.is_replica or _claims_somewhere(view, views) or _is_alone(view, views)
            problems += [] if alive else [_no_daemon(view)]
            problems += _unlinked(view, views)
            peers = [other.name for other in views if other is not view] if has_file else _linked(view)
            mine = [_link(view, peer) for peer in peers]
            problems += [*_held(view), *_waived(view)]
            problems += [*_taken_over(view), *_waits(view)]
            broken = {each.name for each in views if each.functions == 0}
            held = view.name if _held(view) else ""
            problems += [each for link in mine for each in _of_link(link, max_lag_ms, {*broken, held})]
            links += mine
        else:
            links += [LinkView(view.name, other.name, None, 0) for other in views if other is not view]
    return Overview(tuple(views), tuple(links), (*problems, *_differing_files(views)))


def _of_region(view: View, listed: Sequence[View], middle: float) -> list[Problem]:
    """listed: all regions of the file, if there is one."""
    name, found = view.name, list[Problem]()
    if view.error:
        kind, fix = view.trouble
        if kind == "noregion":
            return [_no_region(view, listed)]
        if kind == "lost":
            return [_lost(view, listed, view.error.partition(". ")[0])]
        return [Problem(kind, name, view.error, fix)]
    assert view.region is not None
    if (view.region.id, view.region.name) != (view.id, view.name):
        text = f"the server says that it is region {view.region.id} ({view.region.name})"
        found.append(Problem("identity", name, text, "Correct url, id or name in the file."))
    if view.is_replica:
        text = "its url leads to a replica, which accepts no writes"
        found.append(
            Problem("replica", name, text, "Let the url lead to the primary, or promote it: REPLICAOF NO ONE")
        )
    if view.region.fenced:
        text = "it refuses clients until its data is restored"
        found.append(Problem("fenced", name, text, f"Run: braid region rejoin {name}"))
    found += clock_problem(view, middle)
    if view.nodes:
        return [*found, *view.node_problems]
    found += server_problems(view)
    if not view.region.library:
        return [*found, _no_library(view, listed), *_broken_files(view)]
    functions = view.region.library if view.functions is None else view.functions
    if not functions:
        text = "its server has no engine functions (FUNCTION FLUSH?), so clients and links fail there"
        found.append(Problem("functions", name, text, init_command(view)))
    elif functions < VERSION:  # newer ones work with this program too
        text = f"its engine functions have version {functions}, this program needs {VERSION}"
        found.append(Problem("version", name, text, init_command(view)))
    changed = next((each.functions_changed for each in view.live if each.functions_changed), "")
    if changed:
        fix = f"Find out who may run FUNCTION LOAD. {init_command(view)} --force"
        found.append(Problem("functions", name, f"its engine functions: {changed}", fix))
    return [*found, *_broken_files(view)]


def init_command(view: View) -> str:
    return f"Run: braid init --url URL --region {view.id} --name {view.name}"


def _broken_files(view: View) -> list[Problem]:
    fix = "Correct the file on that host. The daemon reads it again within two seconds."
    return [
        Problem(
            "file",
            view.name,
            f"its daemon (process {daemon.pid} on {daemon.host}) cannot use its changed file, and will not "
            f"start again with it: {daemon.file_error}",
            fix,
        )
        for daemon in view.live
        if daemon.file_error
    ]


def _differing_files(views: Sequence[View]) -> list[Problem]:
    """What the files of live daemons say of a region must agree: a stream that one side excludes is not
    exchanged."""
    found = list[Problem]()
    files = [(view.name, daemon.file) for view in views for daemon in view.live if daemon.file]
    for name in sorted({name for _, file in files for name in file}):
        by_text = dict[str, list[str]]()
        for where, file in files:
            if name in file:  # one that does not list the region: `unlinked`
                by_text.setdefault(file[name], []).append(where)
        if len(by_text) > 1:
            said = "; ".join(f"in {', '.join(dict.fromkeys(some))}: {text}" for text, some in by_text.items())
            text = f"the braid.toml of the daemons differ about it: {said}"
            fix = "Copy one file to all hosts. The daemons reload it within two seconds."
            found.append(Problem("files", name, text, fix))
    return found


def server_problems(view: View) -> list[Problem]:
    """What is wrong with a server, or a node of a cluster."""
    name, found = view.name, list[Problem]()
    share = f"{view.memory.used / 2**20:,.0f} of {view.memory.most / 2**20:,.0f} MB used"
    if view.is_full:
        fix = "CONFIG SET maxmemory, or trim streams (XTRIM). Until then it accepts no entries."
        found.append(Problem("full", name, f"memory is full: {share}", fix))
    elif view.memory.share >= _NEARLY_FULL:
        fix = "CONFIG SET maxmemory, or trim streams (XTRIM)."
        found.append(Problem("nearly-full", name, f"memory is nearly full: {share}", fix))
    if view.writes_refused == NO_REPLICAS:
        fix = "Bring its replicas back, or: CONFIG SET min-replicas-to-write 0"
        found.append(Problem("noreplicas", name, f"it refuses writes: {view.writes_refused}", fix))
    elif view.writes_refused:
        fix = "Check the server's disk (df -h) and its log."
        found.append(Problem("disk", name, f"it may refuse writes: {view.writes_refused}", fix))
    return found


def clock_problem(view: View, middle: float) -> list[Problem]:
    apart = view.clock_ms - middle
    if abs(apart) - view.clock_error_ms <= _CLOCK_MS:
        return []
    way = "ahead of" if apart > 0 else "behind"
    text = f"its clock is {abs(apart) / 1000:.1f} s {way} the others"
    return [Problem("clock", view.name, text, "Check NTP on this server: chronyc tracking")]


def _no_region(view: View, listed: Sequence[View]) -> Problem:
    """`braid init` is right for a new server, and wrong for one that lost its data: the others know."""
    others = [other for other in listed if other is not view]
    text, fix = view.error, view.trouble[1]
    if any(other.region is not None and view.id in other.region.writers for other in others):
        text = "its server has lost its data: other regions know this region, and the server does not"
        fix = f"Run: braid region rejoin {view.name}"
    elif others and all(other.region is not None for other in others):
        text = "its server is not a region yet"
        fix = f"Run: braid init --url URL --region {view.id} --name {view.name}"
    elif listed and not others:
        text = "its server has no region, and there is no other region to restore one from"
        fix = f"Restore a backup; or begin empty: braid init --url URL --region {view.id} --name {view.name}"
    return Problem("noregion", view.name, text, fix)


def _no_library(view: View, listed: Sequence[View]) -> Problem:
    """`braid init` was interrupted, or the server lost data: other regions know, and so does `braid init`."""
    others = [other.region for other in listed if other is not view]
    if any(region is not None and view.id in region.writers for region in others):
        return _lost(
            view, listed, "this server lost data: other regions know it, and bs:config lacks library"
        )
    text = "`braid init` was interrupted, or this server lost data: bs:config lacks library"
    return Problem("version", view.name, text, f"{init_command(view)}. It refuses if data was lost.")


def _lost(view: View, listed: Sequence[View], text: str) -> Problem:
    fix = f"Stop its daemon, then run: braid region rejoin {view.name}"
    if len(listed) == 1:
        fix = f"Restore a backup; or run braid init with --region {view.id}, which says how to go on without."
    return Problem("lost", view.name, text, fix)


def _is_alone(view: View, views: Sequence[View]) -> bool:
    """Whether it has no peers: then it needs no daemon."""
    return len(views) == 1 and view.region is not None and not view.region.peers


def _linked(view: View) -> list[str]:
    """The peers that live daemons of a region know, by name."""
    return sorted({name for daemon in view.live for name in daemon.links})


def _claims_somewhere(view: View, views: Sequence[View]) -> bool:
    """Whether a daemon of the region is alive that cannot store its status: peers have its claim.

    Only where the engine refuses writes: otherwise a missing status means that the daemon hangs.
    """
    refuses = view.is_full or view.writes_refused
    return bool(refuses) and any(view.id in each.claims for each in views)


def _no_daemon(view: View) -> Problem:
    fix = f"Start or restart it: braid replicate --region {view.name}"
    if not view.daemons:
        return Problem("daemon", view.name, "no replication daemon runs", fix)
    last = view.daemons[0]
    silent = round((view.now_ms - last.at_ms) / 1000)
    text = f"its daemon (process {last.pid} on {last.host}) has not reported for {silent} s"
    return Problem("daemon", view.name, text, fix)


def _unlinked(view: View, views: Sequence[View]) -> list[Problem]:
    """Regions that a live daemon does not replicate to: its file does not list them."""
    fix = "Copy the file to that host. The daemon reloads it."
    return [
        Problem(
            "unlinked",
            f"{view.name} -> {other.name}",
            f"the daemon (process {daemon.pid} on {daemon.host}) does not know {other.name}",
            fix,
        )
        for daemon in view.live
        for other in views
        if other is not view and other.name not in daemon.links
    ]


def _held(view: View) -> list[Problem]:
    held = max((each.held_ms for each in view.live), default=0)
    if held < _HELD_MS:
        return []
    daemon = max(view.live, key=lambda each: each.held_ms)
    text = (
        f"replication waits for durability {daemon.durability} since {held / 1000:.0f} s: {daemon.held_why}"
    )
    go_on = f"To go on without it: braid tune durability none --region {view.name}"
    if "NOPERM" in daemon.held_why:
        fix = "Grant the right to the user of its daemon: ACL SETUSER USER &bs:gate +publish +wait +waitaof"
    elif daemon.durability == "aof":
        fix = f"Check appendonly and the disk of its server. {go_on}"
    else:
        fix = f"Bring its replica back. {go_on}"
    return [Problem("held", view.name, text, fix)]


def _waived(view: View) -> list[Problem]:
    """Peers may get entries that the region could still lose: an operator chose so, and may forget it."""
    waived = max((each.waived_ms for each in view.live), default=0)
    tuned = next((each.tuned for each in view.live if each.tuned), "")
    found = list[Problem]()
    if tuned:
        text = f"durability is {tuned} by braid tune, whatever the file says"
        fix = f"When its replica is back: braid tune durability file --region {view.name}"
        found.append(Problem("tuned", view.name, text, fix))
    if waived:
        text = (
            f"after durability_timeout_s, replication has not waited for replicas for {waived / 1000:.0f} s"
        )
        fix = "Bring its replica back. Links then wait for it again."
        found.append(Problem("waived", view.name, text, fix))
    return found


def _taken_over(view: View) -> list[Problem]:
    """Several daemons of a region share its streams: their counts add up."""
    taken = Counter[str]()
    for each in view.live:
        taken.update(each.taken)
    return [
        Problem(
            "takeover",
            view.name,
            f"it delivers for region {region} in {groups:,} group{'' if groups == 1 else 's'}",
            f"Nothing to do: region {region} delivers again when it is back.",
        )
        for region, groups in sorted(taken.items())
    ]


def _waits(view: View) -> list[Problem]:
    waiting = {region: stream for each in view.live for region, stream in each.waits.items()}
    kept = {stream: why for each in view.live for stream, why in each.retention.items()}
    found = [
        Problem(
            "retention",
            view.name,
            f"retention of {stream} waits for {why}",
            "Let the group catch up, or destroy it: XGROUP DESTROY. A limit to the wait: --hold",
        )
        for stream, why in sorted(kept.items())
    ]
    return found + [
        Problem(
            "waits",
            view.name,
            f"ACKED removes nothing from {stream}: it is not known what groups need in {region}",
            "Bring that region or its link back. If it is gone for good: braid region remove",
        )
        for region, stream in sorted(waiting.items())
    ]


def _link(view: View, peer: str) -> LinkView:
    """Several daemons of a region share its streams: the worst state, the lags together."""
    known = [each.links[peer] for each in view.live if peer in each.links]
    if not known:
        return LinkView(view.name, peer, None, view.now_ms)
    worst = min(known, key=lambda link: (link.state == "up", link.since_ms))
    lags = [link.lag_entries for link in known]
    ages = [link.lag_ms for link in known]
    whole = replace(
        worst,
        lag_entries=None if None in lags else sum(each or 0 for each in lags),
        lag_ms=None if None in ages else max(each or 0 for each in ages),
        entries=sum(link.entries for link in known),
        bytes=sum(link.bytes for link in known),
        refusal=next((link.refusal for link in known if link.refusal), ""),
        holes=sum(link.holes for link in known),
        hole=next((link.hole for link in known if link.hole), ""),
    )
    return LinkView(view.name, peer, whole, view.now_ms)


def _of_link(link: LinkView, max_lag_ms: int, known: set[str]) -> list[Problem]:
    """known: regions with a problem that explains a refusal, or a lag."""
    where, status = f"{link.source} -> {link.target}", link.status
    if status is None:
        return []
    since = f"for {max(0, link.now_ms - status.since_ms) / 1000:.0f} s"
    if status.state == "misconfigured":
        fix = "Correct the file or the server."
        if _is_login_refused(status.why):
            fix = _login_fix(link.target)
        return [Problem("misconfigured", where, f"misconfigured {since}: {status.why}", fix)]
    if status.state == "starting":
        fix = "Wait a few seconds. If it stays so, check the network between the two, and the peer."
        return [Problem("link", where, f"the daemon has been connecting {since}", fix)]
    if status.state != "up":
        fix = "Check the network between the two, and the peer: redis-cli -u URL ping"
        return [Problem("link", where, f"{status.state} {since}: {status.why}", fix)]
    if known & {link.source, link.target}:
        return []
    if status.refusal:
        text = f"the peer refuses changes: {status.refusal}"
        return [Problem("refused", where, text, _refusal_fix(link.target, status.refusal))]
    if status.hole:
        more = f" (and {status.holes - 1} more)" if status.holes > 1 else ""
        fix = (
            "The daemons restore lost entries. If this stays for minutes, read stream.hole in their logs. "
            "Find out why the server lost data."
        )
        return [Problem("hole", where, f"a server lost entries: {status.hole}{more}", fix)]
    if status.lag_ms is not None and status.lag_ms > max_lag_ms:
        text = f"the peer lacks {status.lag_entries:,} entries, the oldest {status.lag_ms / 1000:.0f} s old"
        return [Problem("lag", where, text, "Check bandwidth and CPU of the daemon and the peer.")]
    return []


def _is_login_refused(why: str) -> bool:
    return "WRONGPASS" in why or "NOAUTH" in why


def _login_fix(name: str) -> str:
    return f"Correct the url in the file; or on the server of {name}: ACL SETUSER USER >PASSWORD"


def _refusal_fix(peer: str, refusal: str) -> str:
    """What to type, where an operator can do something."""
    if right := missing_right(refusal):
        return f"On the server of {peer}, for the user of its url: ACL SETUSER USER {right}"
    if "NOPERM" in refusal or "user executing the script" in refusal:
        return f"Run with an administrator's url: braid doctor --region {peer} --user USER"
    if "OOM" in refusal:
        return f"On the server of {peer}: CONFIG SET maxmemory, or trim streams (XTRIM)"
    if "NOREPLICAS" in refusal:
        return f"Bring the replicas of {peer} back, or there: CONFIG SET min-replicas-to-write 0"
    return f"Fix that in {peer}; the daemon retries."


# ----------------------------------------------------------------------------------------------------
# What `braid status --json` prints.


def as_json(found: Overview) -> dict[str, Any]:
    """An overview, for scripts."""
    regions = [
        {
            "id": view.id,
            "name": view.name,
            "error": view.error or None,
            "engine": view.engine,
            "functions": _functions(view),
            "id_mode": view.region.id_mode if view.region else None,
            "peers": list(view.region.peers) if view.region else None,
            "memory": {"used": view.memory.used, "max": view.memory.most},
            "clock_ms": round(view.clock_ms),
            "daemons": [
                {"host": each.host, "pid": each.pid, "version": each.version, "durability": each.durability,
                 "held_ms": each.held_ms, "held_why": each.held_why, "waived_ms": each.waived_ms,
                 "tuned": each.tuned, "reported_ms_ago": view.now_ms - each.at_ms}
                for each in view.daemons
            ],
        }
        | ({"nodes": list(view.nodes)} if view.nodes else {})
        for view in found.views
    ]  # fmt: skip
    links = [
        {"from": link.source, "to": link.target, "state": link.status.state if link.status else "unknown"}
        | ({} if link.status is None else _link_facts(link.status))
        for link in found.links
    ]
    problems = [
        {"kind": each.kind, "where": each.where, "text": each.text, "fix": each.fix}
        | ({"nodes": list(each.nodes)} if each.nodes else {})
        for each in found.problems
    ]
    return {"ok": not problems, "regions": regions, "links": links, "problems": problems}


def _functions(view: View) -> int | None:
    """Their version in the engine; if that is unknown, the version that bs:config notes."""
    if view.functions is None and view.region is not None:
        return view.region.library
    return view.functions


def _link_facts(status: LinkStatus) -> dict[str, Any]:
    names = ("since_ms", "why", "lag_entries", "lag_ms", "entries", "bytes", "refused", "refusal", "clock_ms")
    return {name: getattr(status, name) for name in names}
