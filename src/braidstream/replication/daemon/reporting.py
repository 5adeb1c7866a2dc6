"""A daemon's status, which it stores in its engine, and its metrics; the lag of groups."""

import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from braidstream.commands.group_status import groups
from braidstream.engine.tunnel import Traffic
from braidstream.errors import BraidError, DamagedError, ReplyError
from braidstream.lua import FUNCTIONS_VERSION, version_of
from braidstream.model import keys
from braidstream.model.fields import ConfigField
from braidstream.model.keys import CONFIG
from braidstream.model.region import Region, lost_fields
from braidstream.model.registry import parse_each
from braidstream.model.strand import Command, facts
from braidstream.model.topic import parse_stream
from braidstream.observability.events import AGAIN_S, emit, event_families
from braidstream.observability.metrics import Family, Values, process_families
from braidstream.operations.membership import read_durability
from braidstream.operations.rights import COUNT_STRAYS, missing_right
from braidstream.operations.status import DaemonStatus, LinkStatus, store_status
from braidstream.plan.lookup import checked_now, info_facts, read_ms, registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.detect.feed import all_streams
from braidstream.replication.endpoint import Endpoint, PlanRunner
from braidstream.replication.gate import Gate
from braidstream.replication.region_facts import region_of

# ----------------------------------------------------------------------------------------------------
#
# For /metrics: the lag of a region's consumer groups, and native streams under managed names (strays).
#
# Streams are looked at one after the other, round after round, so the load on the engine is small and even.
# What the daemon's user may not read is unknown: there is no metric then, and an event names the right.

EVERY_S: Final = 15.0
# Of more groups than this the others are not shown: each is a time series of Prometheus.
MOST: Final = 1_000
# Of one stream, as long as there are others: whoever may write a stream must not hide the groups of the rest.
MOST_OF_ONE: Final = 100
# How many damaged streams are named in the log, in how much time.
NAMED: Final = 20
NAMED_WITHIN_S: Final = 3_600.0
# The metrics that a right is needed for.
GROUPS: Final = "braid_group_lag_entries,braid_group_pending_entries"
STRAYS: Final = "braid_stray_entries,braid_stray_streams"


@dataclass(frozen=True, slots=True)
class GroupLag:
    """lag: entries that were not read; pending: those that were read and not acknowledged."""

    stream: str
    group: str
    lag: int
    pending: int


@dataclass(frozen=True, slots=True)
class Strays:
    """Native streams under the names of managed streams: a client wrote them directly at the engine."""

    streams: int = 0
    entries: int = 0


@dataclass(slots=True)
class GroupMetrics:
    """What one round found. strays: None if unknown. damaged: streams whose registry cannot be read. denied:
    rights that the user lacks, and the metrics that are absent without them. streams: those with `lags`."""

    lags: list[GroupLag] = field(default_factory=list)
    streams: list[bytes] = field(default_factory=list)
    damaged: list[DamagedError] = field(default_factory=list)
    strays: Strays | None = None
    denied: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class DamageLog:
    """Logs damaged streams: each once an hour, NAMED of them at most, and once a minute the number of others.
    Whoever may write a stream can damage it again and again, and may write many."""

    _known: frozenset[tuple[bytes, bytes]] = frozenset()
    _named_s: dict[bytes, float] = field(default_factory=dict)  # when a stream was named
    _others: int = 0
    _counted_s: float = float("-inf")

    def log(self, damaged: Iterable[DamagedError], now_s: float) -> None:
        """damaged: what the latest round found."""
        fields = {(each.stream, each.field): each for each in damaged}
        self._named_s = {name: at for name, at in self._named_s.items() if now_s - at < NAMED_WITHIN_S}
        for key, each in fields.items():
            if key in self._known:
                continue
            if each.stream in self._named_s or len(self._named_s) >= NAMED:
                self._others += 1
                continue
            self._named_s[each.stream] = now_s
            emit("stream.damaged", stream=each.stream, field=each.field)
        self._known = frozenset(fields)
        if self._others and now_s - self._counted_s >= AGAIN_S:
            emit("stream.damaged", more=self._others)
            self._others, self._counted_s = 0, now_s


async def measure(
    source: Endpoint, is_mine: Callable[[bytes], bool], shown: Sequence[bytes] = ()
) -> GroupMetrics:
    """One round over the streams that are ours to look at, except those of a cluster's lost node.

    shown: the streams of the last round. They come first: who creates many streams hides no others.
    """
    region, found = await region_of(source), GroupMetrics(strays=Strays())
    further, topics = list[GroupLag](), dict[tuple[bytes, str], GroupLag]()
    try:
        async for names in _streams(source, shown):
            mine = [*filter(is_mine, names)]
            await _look_for_strays(source, mine, found)
            room = mine if len(found.lags) < MOST and GROUPS not in found.denied.values() else []
            grouped, damaged = await source.run(with_groups(room))
            found.damaged += damaged
            for name in grouped:
                lags = await _lags_of(source, region, name, found.denied)
                if (partition := parse_stream(name)) is not None:
                    _add_to_topic(topics, partition[0], lags)
                    continue
                if lags and len(found.lags) < MOST:
                    found.streams.append(name)
                found.lags += lags[:MOST_OF_ONE]
                further += lags[MOST_OF_ONE : MOST_OF_ONE + MOST - len(further)]
    except BraidError as error:
        if not source.spares(error):
            raise
    found.lags = [*topics.values(), *found.lags, *further][:MOST]
    return found


def _add_to_topic(topics: dict[tuple[bytes, str], GroupLag], topic: bytes, lags: list[GroupLag]) -> None:
    """One series for all partitions that this daemon looks at: there may be 10,000."""
    name = topic.decode("utf-8", "backslashreplace")
    for each in lags:
        key = topic, each.group
        if key in topics or len(topics) < MOST:
            known = topics.get(key, GroupLag(name, each.group, 0, 0))
            topics[key] = GroupLag(name, each.group, known.lag + each.lag, known.pending + each.pending)


async def _streams(source: Endpoint, first: Sequence[bytes]) -> AsyncIterator[list[bytes]]:
    """Every stream of a region, in pages: some of them before the others."""
    if first:
        yield [*first]
    known = frozenset(first)
    async for names in all_streams(source):
        yield [name for name in names if name not in known]


async def _look_for_strays(source: PlanRunner, names: list[bytes], found: GroupMetrics) -> None:
    here = await source.run(count_strays(names))
    if here is None:
        found.denied[COUNT_STRAYS] = STRAYS
        found.strays = None
    elif found.strays is not None:
        found.strays = Strays(found.strays.streams + here.streams, found.strays.entries + here.entries)


async def _lags_of(source: PlanRunner, region: Region, name: bytes, denied: dict[str, str]) -> list[GroupLag]:
    """The groups of one stream; none if it was deleted meanwhile, or may not be read."""
    try:
        return await source.run(read_lags(region, name))
    except ReplyError as error:
        if error.code == "NOPERM":
            denied[missing_right(error.text) or error.text] = GROUPS
        return []


def count_strays(names: list[bytes]) -> Plan[Strays | None]:
    """One round trip. A fence and another type count as none. None if this user may not read the names."""
    if not names:
        return Strays()
    commands: list[Command] = [("XLEN", key) for name in names for key in (name, keys.stray(name))]
    replies = yield Batch(commands, resend=True, attempt=True)
    if any(isinstance(reply, ReplyError) and reply.code == "NOPERM" for reply in replies):
        return None
    lengths = [0 if isinstance(reply, ReplyError) else int(reply) for reply in replies]
    found = [stray + aside for stray, aside in zip(lengths[::2], lengths[1::2], strict=True)]
    return Strays(sum(entries > 0 for entries in found), sum(found))


def with_groups(names: list[bytes]) -> Plan[tuple[list[bytes], list[DamagedError]]]:
    """Those of the streams that have groups, and why others cannot be read. One round trip."""
    if not names:
        return [], []
    reads = [registry_of(name) for name in names]
    replies = yield Batch(reads, resend=True, attempt=True)
    known = [[] if isinstance(reply, ReplyError) else reply for reply in replies]  # for example, another type
    found = yield from checked_now(reads, parse_each(names, known))
    damaged = [registry.damaged for registry in found.values() if registry.damaged is not None]
    return [name for name, registry in found.items() if registry.exists and registry.groups], damaged


def read_lags(region: Region, name: bytes) -> Plan[list[GroupLag]]:
    """The groups of one stream. ReplyError if it was deleted meanwhile."""
    rows = yield from groups(View(region), name)
    found = []
    for row in map(facts, rows):
        stream, group = (word.decode("utf-8", "backslashreplace") for word in (name, row[b"name"]))
        found.append(GroupLag(stream, group, int(row[b"lag"] or 0), int(row[b"pending"])))
    return found


# ----------------------------------------------------------------------------------------------------
# Reporting

_STARTED_MS: Final = int(time.time() * 1000)
_VERSION: Final = version("braidstream")


@dataclass(frozen=True, slots=True)
class FileState:
    """What the daemon's file says of each region, and why its last change cannot be used; empty if it can."""

    regions: dict[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The own engine. functions: their version, 0 if it has none; None if unknown. lost: what bs:config
    lacks, empty if nothing. used, most: memory in bytes."""

    functions: int | None = None
    lost: str = ""
    used: int | None = None
    most: int | None = None

    @property
    def why_broken(self) -> str:
        if self.lost:
            return f"the region's server has lost data: {self.lost}"
        return "the region's server has no engine functions" if self.functions == 0 else ""


def read_engine() -> Plan[EngineState]:
    """One round trip. For one server: each node of a cluster has its own."""
    commands: list[Command] = [FUNCTIONS_VERSION, ("HGETALL", CONFIG), ("INFO", "memory")]
    version, config, info = yield Batch(commands, resend=True, attempt=True)
    found = info_facts(info)
    sizes = [int(found[name]) if name in found else None for name in (b"used_memory", b"maxmemory")]
    return EngineState(version_of(version), "" if isinstance(config, ReplyError) else _lost(config), *sizes)


def _lost(config: list[bytes]) -> str:
    fields = facts(config)
    missing = lost_fields(fields) or [each for each in (ConfigField.LIBRARY,) if each not in fields]
    lacks = ", ".join(field.decode() for field in missing)
    if not fields:
        return "it has no bs:config"
    return f"bs:config lacks {lacks}" if lacks else ""


def report(
    daemon: bytes,
    gate: Gate,
    peers: Iterable[Peer],
    file: FileState,
    changed: str,
    taken: dict[int, int],
    waits: dict[str, str],
    retention: dict[str, str],
) -> Plan[DaemonStatus]:
    """Store the status in the own engine, and return it. Three round trips. changed: of the functions."""
    at_ms = yield from read_ms()
    tuned = yield from read_durability()
    status = DaemonStatus(
        at_ms=at_ms,
        started_ms=_STARTED_MS,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=_VERSION,
        durability=str(gate.durability or ""),
        held_ms=round(gate.held_s * 1000),
        held_why=gate.held_why,
        waived_ms=round(gate.waived_s * 1000),
        tuned=tuned,
        links={peer.name: peer.status(at_ms) for peer in peers},
        taken={str(region): groups for region, groups in taken.items()},
        file=file.regions,
        file_error=file.error,
        functions_changed=changed,
        waits=waits,
        retention=retention,
    )
    yield from store_status(daemon, status)
    return status


def families(status: DaemonStatus | None, engine_up: bool) -> list[Family]:
    """For /metrics. status: the last one; None before the engine was first reached."""
    found = [
        *process_families("daemon"),
        *event_families(),
        Family.gauge("braid_engine_up", "1 if the region's engine is connected.", {(): int(engine_up)}),
    ]
    if status is None:
        return found
    held = Family.gauge(
        "braid_links_held_seconds",
        "How long replication has waited for `durability`; 0 if it does not wait.",
        {(): status.held_ms / 1000},
    )
    waived = Family.gauge(
        "braid_durability_waived",
        "1 if replication does not wait for `durability` of the file: `durability_timeout_s` is over, or "
        "`braid tune durability` set another one.",
        {(): int(status.waived_ms > 0 or bool(status.tuned))},
    )
    taken = Family.gauge(
        "braid_taken_over_groups",
        "Groups in which this region delivers for another one, because its heartbeat stopped.",
        {(region,): groups for region, groups in status.taken.items()},
        ("taken_from",),
    )
    return [*found, held, waived, taken, *_link_families(status.links)]


def own_families(engine: EngineState, file: FileState) -> list[Family]:
    """For /metrics: the own server, and the daemon's file. What is unknown is left out."""
    file_text = "1 if the daemon can use its file; 0 if the changed file is invalid, and the old one in use."
    values = {
        "braid_functions_version": (
            engine.functions,
            "Version of the engine functions; 0 if there are none.",
        ),
        "braid_engine_memory_bytes": (engine.used, "Memory that the region's server uses."),
        "braid_engine_memory_max_bytes": (engine.most, "Its `maxmemory`; 0 without a limit."),
        "braid_config_ok": (int(not file.error), file_text),
    }
    return [
        Family.gauge(name, text, {(): value}) for name, (value, text) in values.items() if value is not None
    ]


def group_families(found: GroupMetrics) -> list[Family]:
    """For /metrics: the consumer groups, damaged streams, and strays; None before they were first counted."""
    unread: Values = {(each.stream, each.group): each.lag for each in found.lags}
    pending: Values = {(each.stream, each.group): each.pending for each in found.lags}
    labels = ("stream", "group")
    text = "Entries that the group has read and not acknowledged, on this region's server."
    damage = "Streams whose registry cannot be read. They are not replicated, and have no other metrics."
    stray = "Native streams under the names of managed streams: a client writes directly at the server."
    families = [
        Family.gauge("braid_group_lag_entries", "Entries that the group has not read.", unread, labels),
        Family.gauge("braid_group_pending_entries", text, pending, labels),
    ]
    if (strays := found.strays) is not None:
        families += [
            Family.gauge("braid_damaged_streams", damage, {(): len(found.damaged)}),
            Family.gauge("braid_stray_streams", stray, {(): strays.streams}),
            Family.gauge("braid_stray_entries", "Their entries, which no reader sees.", {(): strays.entries}),
        ]
    return families


def rescue_families(entries: int) -> list[Family]:
    """For /metrics: what this region wrote to logs when it was no longer their home."""
    text = "Entries of logs that this region wrote after their home was forced away, appended at the home."
    return [Family.counter("braid_log_rescued_total", text, {(): entries})]


def link_traffic(peers: Iterable[Peer]) -> list[Family]:
    """For /metrics: the bytes of links that are compressed."""
    found = dict[tuple[str, ...], Traffic]()
    for peer in peers:
        if (via := peer.endpoint.address.via) is not None:
            found[peer.name,] = via.traffic
    return traffic_families("braid_link", found, ("peer",))


def traffic_families(
    name: str, found: Mapping[tuple[str, ...], Traffic], labels: tuple[str, ...]
) -> list[Family]:
    raw, wire = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    for values, each in found.items():
        raw[*values, "sent"], raw[*values, "received"] = each.raw_sent, each.raw_received
        wire[*values, "sent"], wire[*values, "received"] = each.wire_sent, each.wire_received
    labels = (*labels, "direction")
    text = "Bytes of compressed connections, before compression."
    return [
        Family.counter(f"{name}_raw_bytes_total", text, raw, labels),
        Family.counter(f"{name}_wire_bytes_total", "The same bytes on the wire, compressed.", wire, labels),
    ]


def _link_families(links: dict[str, LinkStatus]) -> list[Family]:
    def family(
        name: str, field: str, text: str, factor: float = 1, make: Callable[..., Family] = Family.gauge
    ) -> Family:
        """Unknown values are left out."""
        known = {peer: getattr(link, field) for peer, link in links.items()}
        values: Values = {(peer,): value * factor for peer, value in known.items() if value is not None}
        return make(name, text, values, ("peer",))

    up: Values = {(name,): float(link.state == "up") for name, link in links.items()}
    states: Values = {(name, link.state): 1.0 for name, link in links.items()}
    since = "Since when the link has this state (Unix time)."
    age = "Age of the oldest entry of this region that the peer lacks; 0 if it lacks none."
    refused = "Changes that the peer refused (memory full, rights, ...)."
    holes = "Strands of which this region or the peer has lost entries, until they are restored."
    ahead = "How far the peer's clock is ahead of this region's, measured every minute."
    return [
        Family.gauge("braid_link_up", "1 if the peer is connected.", up, ("peer",)),
        Family.gauge("braid_link_state", "The link's state as a label.", states, ("peer", "state")),
        family("braid_link_state_since_seconds", "since_ms", since, 0.001),
        family("braid_link_lag_entries", "lag_entries", "Entries of this region that the peer lacks."),
        family("braid_link_lag_seconds", "lag_ms", age, 0.001),
        family("braid_link_entries_total", "entries", "Entries sent to the peer.", make=Family.counter),
        family("braid_link_bytes_total", "bytes", "Bytes of entries sent.", make=Family.counter),
        family("braid_link_refused_total", "refused", refused, make=Family.counter),
        family("braid_link_holes", "holes", holes),
        family("braid_link_clock_offset_seconds", "clock_ms", ahead, 0.001),
    ]
