"""The status of a replication daemon's links, which it stores in its region's engine for `braid status`.

    HSET bs:status <daemon> {"at_ms": ..., "links": {"eu-west": {"state": "up", ...}}}     every second

So `braid status` needs no connection to a daemon, and a stale status shows a daemon that hangs or crashed.
`at_ms` is by the engine's own clock, so the age has no skew.
"""

import contextlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from braidstream.errors import ReplyError
from braidstream.model.keys import STATUS
from braidstream.model.strand import facts
from braidstream.protocol.identify import ms_of
from braidstream.protocol.plan import Batch, Plan

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
    """The fields that this version knows. TypeError if one lacks, or a value has another type than here."""
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
    """One round trip. An engine that takes no writes (full, say), or is lost, keeps the old one."""
    commands = [("HSET", STATUS, daemon, status.text), ("EXPIRE", STATUS, EXPIRE_S)]
    with contextlib.suppress(ReplyError):
        yield Batch(commands, attempt=True, optional=True)


def forget_status(*daemons: bytes) -> Plan[None]:
    yield Batch([("HDEL", STATUS, *daemons)], attempt=True)


def read_statuses() -> Plan[tuple[int, list[DaemonStatus]]]:
    """The engine's clock (ms), and what the region's daemons stored, the latest first. One round trip."""
    now, stored = yield Batch([("TIME",), ("HGETALL", STATUS)], resend=True, attempt=True)
    if isinstance(now, ReplyError):
        raise now
    found = [] if isinstance(stored, ReplyError) else map(DaemonStatus.parse, facts(stored).values())
    known = sorted((each for each in found if each is not None), key=lambda each: -each.at_ms)
    return ms_of(now), known
