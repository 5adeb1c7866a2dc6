"""Looks up a region, a stream (its registry, or a plain key of its name), and the home of a log."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from braidstream.errors import BraidError, ClusterError, HomeError, NotARegionError, ReplyError
from braidstream.model import keys
from braidstream.model.keys import CONFIG
from braidstream.model.region import Region, ServerInfo
from braidstream.model.registry import Registry
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
# Reads which region a server is, and which newer commands it has.

# Newer stream commands that plans use natively where the engine has them: Redis 8.2, 8.8.
NEWER: Final = (b"XDELEX", b"XNACK")
# Which region a node of a cluster belongs to (lua/cluster_facts.py).
NODE_FACTS: Final = ("FCALL_RO", "bs_region", 0)
ASK_NODE: Final[list[Command]] = [NODE_FACTS, ("FCALL_RO", "bs_version", 0)]


def read_region() -> Plan[Region]:
    """Which region the server is. One round trip. ClusterError on a node of a cluster."""
    try:
        [reply] = yield Batch([("HGETALL", CONFIG)], resend=True)
    except ReplyError as error:
        raise _as_cluster(error) from None
    if not reply:
        yield from refuse_cluster()
    return Region.parse(reply)


def read_node() -> Plan[tuple[Region, ServerInfo]]:
    """Which region a node of a cluster belongs to, and which newer commands it has. One round trip.

    The version of the functions is what the node has, not what was noted.
    """
    commands: list[Command] = [*ASK_NODE, *_ABOUT_SERVER]
    found, version, table, info = yield Batch(commands, resend=True, attempt=True)
    return node_region(found, version), _server_info(table, info)


def node_region(found: Any, version: Any) -> Region:
    """Which region a node of a cluster belongs to, by its replies to ASK_NODE."""
    for reply in (found, version):
        if isinstance(reply, ReplyError):
            raise NotARegionError if "not found" in reply.text.lower() else reply
    return replace(Region.parse(found, is_cluster=True), library=int(version))


def read_any_region() -> Plan[Region]:
    """Which region a server or a cluster is: for plans that clients of both run. Two round trips."""
    if not (yield from ask_is_cluster()):
        return (yield from read_region())
    return node_region(*(yield Batch(ASK_NODE, resend=True, attempt=True)))


def read_again(known: Region) -> Plan[Region]:
    """The same region, as it is now. One round trip."""
    if not known.is_cluster:
        return (yield from read_region())
    region, _ = yield from read_node()
    return region


def _as_cluster(error: ReplyError) -> BraidError:
    """ClusterError if the reply shows that the server is a node of a cluster."""
    return ClusterError() if error.code in ("MOVED", "ASK", "CLUSTERDOWN") else error


def is_cluster(info: Any) -> bool:
    """Whether a reply to INFO is that of a node of a cluster. False if the user lacks the right."""
    return isinstance(info, bytes) and b"cluster_enabled:1" in info


def ask_is_cluster() -> Plan[bool]:
    """Whether a server says that it is a node of a cluster. False if the user may not ask. One round trip."""
    [info] = yield Batch([("INFO", "cluster")], resend=True, attempt=True)
    return is_cluster(info)


def refuse_cluster() -> Plan[None]:
    """Raise ClusterError on a node of a cluster, for everything but the cluster clients. One round trip."""
    if (yield from ask_is_cluster()):
        raise ClusterError


def info_facts(info: Any) -> dict[bytes, bytes]:
    """The facts of a reply to INFO; none if the user lacks the right."""
    lines = [] if isinstance(info, ReplyError) else bytes(info).splitlines()
    return {name: value for name, _, value in (line.partition(b":") for line in lines)}


def read_info(*sections: str) -> Plan[dict[bytes, bytes]]:
    """What the server says of itself. ReplyError if the user lacks the right. One round trip."""
    [info] = yield Batch([("INFO", *sections)], resend=True)
    return info_facts(info)


def scan_page(
    cursor: int, match: bytes, *, kind: str = "", count: int = 1_000
) -> Plan[tuple[int, list[bytes]]]:
    """A page of a server's keys that match a glob, and the next cursor; 0 is the end.

    kind: their type. count: about how many keys the engine looks at.
    """
    words: Command = ("SCAN", cursor, "MATCH", match, "COUNT", count)
    [(following, found)] = yield Batch([(*words, "TYPE", kind) if kind else words], resend=True)
    return int(following), found


def read_ms() -> Plan[int]:
    """The server's clock (ms)."""
    [now] = yield Batch([("TIME",)], resend=True)
    return ms_of(now)


def ms_of(time: Any) -> int:
    """The reply to TIME, in milliseconds."""
    return int(time[0]) * 1000 + int(time[1]) // 1000


def read_server(*, with_commands: bool = True) -> Plan[tuple[Region, ServerInfo]]:
    """Which region the server is, and which newer commands it has. One round trip. Refuses a cluster node.

    A user without the right to COMMAND INFO does without the newer commands: after the first denial call it
    without them. One without the right to INFO does not notice that another process serves the region
    (Region.may_repeat_ids).
    """
    table_of, info_of = _ABOUT_SERVER
    commands: list[Command] = [("HGETALL", CONFIG), info_of, *([table_of] if with_commands else ())]
    config, info, *tables = yield Batch(commands, resend=True, attempt=True)
    table = tables[0] if tables else ReplyError("NOPERM")
    if isinstance(config, ReplyError):
        raise _as_cluster(config)
    if is_cluster(info):
        raise ClusterError
    return Region.parse(config), _server_info(table, info)


_ABOUT_SERVER: Final[list[Command]] = [
    ("COMMAND", "INFO", *NEWER),
    ("INFO", "server", "replication", "cluster"),
]


# What `held_offsets` needs to know.
ABOUT_OFFSETS: Final[list[Command]] = [("HGETALL", CONFIG), _ABOUT_SERVER[1]]


def held_offsets(config: Any, info: Any) -> ReplyError | None:
    """Why logs must not be written on this server yet, from the replies to ABOUT_OFFSETS; None if they may.

    Clients know it from their cache (StreamCache.holds_offsets). A cluster does not record its processes.
    """
    if isinstance(config, Exception) or isinstance(info, Exception) or is_cluster(info):
        return None
    region = Region.parse(config)
    return offsets_held(region) if region.may_repeat_offsets(_server_info(None, info)) else None


def refuse_held_offsets() -> Plan[None]:
    """Before a plan that gives offsets without a cache."""
    config, info = yield Batch(ABOUT_OFFSETS, resend=True, attempt=True)
    if (error := held_offsets(config, info)) is not None:
        raise error


def offsets_held(region: Region) -> ReplyError:
    return ReplyError(
        f"LOADING region {region.id} ({region.name}) is served by another process, which may have lost the "
        "last entries of logs. Its daemon reads from the peers which offsets they have"
    )


def _server_info(table: Any, info: Any) -> ServerInfo:
    known = table if isinstance(table, list) else []
    facts = info_facts(info)
    return ServerInfo(
        frozenset(name for name, row in zip(NEWER, known, strict=False) if row),
        may_list_commands=not isinstance(table, ReplyError),
        run_id=facts.get(b"run_id", b""),
        is_primary=facts.get(b"role") == b"master",
        now_ms=int(facts.get(b"server_time_usec", b"0")) // 1000,
    )


# ----------------------------------------------------------------------------------------------------
# Lookup

WRONGTYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"

# The type of the key that stands at the name of an adopted stream (lua/native.lua).
FENCE_TYPE: Final = b"hash"


def registry_of(name: bytes) -> Command:
    return ("HGETALL", keys.meta(name))


def registry_now(view: View, name: bytes) -> Command:
    """Read the registry as it is now. If the stream is known to expire, a function checks its deadline."""
    return _checked(name) if view.recall(name).due else registry_of(name)


def _checked(name: bytes) -> Command:
    return ("FCALL_RO", "bs_braid_registry", 1, keys.meta(name))


def settled(view: View, names: Iterable[bytes]) -> Plan[None]:
    """Read registries again, with a check of the deadline, if they were just read without one."""
    due = [name for name in dict.fromkeys(names) if view.recall(name).due]
    if due:
        replies = yield Batch([_checked(name) for name in due], resend=True)
        for name, reply in zip(due, replies, strict=True):
            view.learn(name, reply)


def checked_now(reads: Sequence[Command], found: dict[bytes, Registry]) -> Plan[dict[bytes, Registry]]:
    """Registries, after a check of deadlines that their reads did not check."""
    known = zip(reads, found.items(), strict=True)
    due = [name for read, (name, registry) in known if registry.due and read == registry_of(name)]
    if not due:
        return found
    replies = yield Batch([_checked(name) for name in due], resend=True)
    return found | {name: Registry.parse(name, reply) for name, reply in zip(due, replies, strict=True)}


def read_registry(view: View, name: bytes) -> Plan[Registry]:
    """The registry, read now. In a pipeline: from its lookup, a moment ago."""
    if view.carriage.has_looked and name in view.cache.registries:
        return view.recall(name)
    command = registry_now(view, name)
    [reply] = yield Batch([command], resend=True)
    view.learn(name, reply)
    if command == registry_of(name):
        yield from settled(view, [name])
    return view.recall(name)


def find_registry(view: View, name: bytes) -> Plan[Registry]:
    """The registry of a stream: cached, or read in one round trip.

    Only a pipeline, which has just looked, caches that a stream does not exist.
    """
    known = view.recall(name)
    return known if known.exists else (yield from read_registry(view, name))


def look(view: View, name: bytes) -> Plan[Registry]:
    """The registry, read now. WRONGTYPE if the name is a key of another type.

    In a pipeline a later command may delete that key before its type is read here.
    """
    is_plain = view.carriage.has_looked and name in view.plain_keys
    registry = yield from read_registry(view, name)
    if not registry.exists:
        if is_plain:
            raise ReplyError(WRONGTYPE)
        yield from refuse_other_types(name)
    return registry


def require_region(view: View) -> Plan[None]:
    """NotARegionError if the server is not the region any more that it was when the region was read.

    Called before a strand is created that we have not seen. A server that was emptied has forgotten its IDs:
    new ones may be below what groups in other regions have read. A cluster keeps its facts then.
    """
    if view.region.is_cluster:
        return
    region = (yield from read_region()).require_open()
    if region.writer != view.region.writer:
        raise NotARegionError


def current(name: bytes) -> Plan[Registry]:
    """The registry, read now, for callers without a view. One round trip; two if the stream expires."""
    [reply] = yield Batch([registry_of(name)], resend=True)
    found = yield from checked_now([registry_of(name)], {name: Registry.parse(name, reply)})
    return found[name]


def exists(name: bytes) -> Plan[bool]:
    """Whether the stream exists."""
    return (yield from current(name)).exists


def refuse_unseen_types(view: View, name: bytes) -> Plan[None]:
    """WRONGTYPE if a plain key has the name, where the functions cannot check it: in another slot.

    In a pipeline the lookup has checked it: later commands must not expect an append that will be refused.
    """
    if view.carriage.has_looked:
        if name in view.plain_keys:
            raise ReplyError(WRONGTYPE)
    elif not keys.shares_slot(name):
        yield from refuse_other_types(name)


def type_check(view: View, name: bytes) -> list[Command]:
    """TYPE of a missing stream, sent along in a pipeline: later commands may change the type."""
    return [("TYPE", name)] if view.carriage.has_looked and not view.recall(name).exists else []


def refuse_other_types(name: bytes, kind: bytes | None = None) -> Plan[None]:
    """WRONGTYPE if a name that is not a stream is a key of another type."""
    if kind is None:
        [kind] = yield Batch([("TYPE", name)], resend=True)
    if kind == FENCE_TYPE and (yield from _is_fence(name)):
        return
    if kind != b"none":
        raise ReplyError(WRONGTYPE)


def _is_fence(name: bytes) -> Plan[bool]:
    """Whether a plain key is the fence of an adopted stream. It may outlive the stream."""
    return (yield from current(name)).fenced


def read_kinds(view: View, names: Iterable[bytes]) -> Plan[dict[bytes, bytes]]:
    """The types of the plain keys; learns the registries. One round trip.

    The type first: an adoption between the two leaves a registry.
    """
    distinct = list(dict.fromkeys(names))
    types: list[Command] = [("TYPE", name) for name in distinct]
    replies = yield Batch([*types, *map(registry_of, distinct)], resend=True)
    for name, reply in zip(distinct, replies[len(distinct) :], strict=True):
        view.learn(name, reply)
    yield from settled(view, distinct)
    return dict(zip(distinct, replies, strict=False))


def find_natives(view: View, names: Iterable[bytes]) -> Plan[None]:
    """Look which names are native streams, and which are managed streams. One round trip."""
    for name, kind in (yield from read_kinds(view, names)).items():
        view.cache.note_native(name, kind == b"stream" and not view.recall(name).exists)


def is_stale(reply: Any) -> bool:
    """Whether a function refused because our cached registry is stale. It changed nothing."""
    return isinstance(reply, ReplyError) and reply.code == "BSSTALE"


# ----------------------------------------------------------------------------------------------------
#
# Follows a log to its home. Those who carry commands (clients, gateway) run a refused write there.
#
#     TWRITE in region 3:   HOME 1     run it in region 1
#            in region 1:   HOME 2     the home has moved: run it in region 2
#            in region 2:   HOME 1     region 2 does not know yet: wait, and go round again
#
# An error of this kind means that nothing was written, so no entry is written twice.

# How long a write follows a home that moves.
FOLLOW_S: Final = 5.0
_PAUSE_S: Final = 0.01


def is_elsewhere(error: object) -> bool:
    """Whether a write was refused because the home of its log is elsewhere, or about to be."""
    return isinstance(error, HomeError) or (isinstance(error, Exception) and str(error).startswith("SEALED "))


class HomeSearch:
    """The way of one write. It has no clock: times are arguments."""

    def __init__(self, here: int, now_s: float) -> None:
        self._at, self._seen, self._ends_s = here, {here}, now_s + FOLLOW_S

    def follow(self, error: Exception, now_s: float) -> tuple[int, float]:
        """The region to write in, and how long to wait before. Raises the error if it takes too long."""
        if now_s > self._ends_s:
            raise error
        self._at = error.region if isinstance(error, HomeError) else self._at
        goes_round = self._at in self._seen
        self._seen = {self._at} if goes_round else self._seen | {self._at}
        return self._at, _PAUSE_S if goes_round else 0.0
