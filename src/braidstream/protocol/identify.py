"""Reads which region a server is, and which newer commands it has."""

from dataclasses import replace
from typing import Any, Final

from braidstream.errors import BraidError, ClusterError, NotARegionError, ReplyError
from braidstream.model.command import Command
from braidstream.model.keys import CONFIG
from braidstream.model.region_config import Region, ServerInfo
from braidstream.protocol.plan import Batch, Plan

# Newer stream commands that plans use natively where the engine has them: Redis 8.2, 8.8.
NEWER: Final = (b"XDELEX", b"XNACK")
INFO_CLUSTER: Final = ("INFO", "cluster")
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

    The version of the functions is what the node has, not what somebody noted.
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
    [info] = yield Batch([INFO_CLUSTER], resend=True, attempt=True)
    if not is_cluster(info):
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
    """Whether a reply to INFO_CLUSTER is that of a node of a cluster. False if the user lacks the right."""
    return isinstance(info, bytes) and b"cluster_enabled:1" in info


def refuse_cluster() -> Plan[None]:
    """Raise ClusterError on a node of a cluster, for everything but the cluster clients. One round trip."""
    [info] = yield Batch([INFO_CLUSTER], resend=True, attempt=True)
    if is_cluster(info):
        raise ClusterError


def info_facts(info: bytes) -> dict[bytes, bytes]:
    return {name: value for name, _, value in (line.partition(b":") for line in bytes(info).splitlines())}


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


def _server_info(table: Any, info: Any) -> ServerInfo:
    known = [] if isinstance(table, ReplyError) else table
    facts = {} if isinstance(info, ReplyError) else info_facts(info)
    return ServerInfo(
        frozenset(name for name, row in zip(NEWER, known, strict=False) if row),
        may_list_commands=not isinstance(table, ReplyError),
        run_id=facts.get(b"run_id", b""),
        is_primary=facts.get(b"role") == b"master",
        now_ms=int(facts.get(b"server_time_usec", b"0")) // 1000,
    )
