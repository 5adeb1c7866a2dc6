"""Ask a server which region it is, and what it can do."""

from typing import Any, Final

from braidstream.errors import BraidError, ClusterError, ReplyError
from braidstream.model.command import Command
from braidstream.model.keys import CONFIG
from braidstream.model.region_config import Region
from braidstream.protocol.plan import Batch, Plan

# Newer stream commands that plans use natively where the engine has them: Redis 8.2, 8.8.
NEWER: Final = (b"XDELEX", b"XNACK")
INFO_CLUSTER: Final = ("INFO", "cluster")


def read_region() -> Plan[Region]:
    """Ask the server who it is. One round trip."""
    try:
        [reply] = yield Batch([("HGETALL", CONFIG)], resend=True)
    except ReplyError as error:
        raise _as_cluster(error) from None
    return Region.parse(reply)


def _as_cluster(error: ReplyError) -> BraidError:
    """Only a node of a cluster sends elsewhere."""
    return ClusterError() if error.code in ("MOVED", "ASK", "CLUSTERDOWN") else error


def is_cluster(info: Any) -> bool:
    """Whether a server is a node of a cluster, by what it said to INFO_CLUSTER; not if it may not say so."""
    return isinstance(info, bytes) and b"cluster_enabled:1" in info


def refuse_cluster() -> Plan[None]:
    """A region is one server. One round trip."""
    [info] = yield Batch([INFO_CLUSTER], resend=True, attempt=True)
    if is_cluster(info):
        raise ClusterError


def read_server() -> Plan[tuple[Region, frozenset[bytes]]]:
    """Ask the server who it is, and which of the newer commands it has. One round trip.

    Who may not ask for commands does without them.
    """
    commands: list[Command] = [("HGETALL", CONFIG), ("COMMAND", "INFO", *NEWER)]
    config, table = yield Batch(commands, resend=True, attempt=True)
    if isinstance(config, ReplyError):
        raise _as_cluster(config)
    known = [] if isinstance(table, ReplyError) else table
    return Region.parse(config), frozenset(name for name, row in zip(NEWER, known, strict=False) if row)
