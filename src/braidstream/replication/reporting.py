"""A daemon's status, which it stores in its engine, and its metrics."""

import os
import socket
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Final

from braidstream.admin.daemon_status import DaemonStatus, LinkStatus, store_status
from braidstream.net.compressed import Traffic
from braidstream.observability.events import event_families
from braidstream.observability.metrics import Family, process_families
from braidstream.protocol.identify import read_ms
from braidstream.protocol.plan import Plan
from braidstream.replication.gate import Gate
from braidstream.replication.group_lags import GroupLag, Strays
from braidstream.replication.peer import Peer

_STARTED_MS: Final = int(time.time() * 1000)
_VERSION: Final = version("braidstream")


def report(daemon: bytes, gate: Gate, peers: Iterable[Peer], taken: dict[int, int]) -> Plan[DaemonStatus]:
    """Store the status in the own engine, and return it. Two round trips."""
    at_ms = yield from read_ms()
    status = DaemonStatus(
        at_ms=at_ms,
        started_ms=_STARTED_MS,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=_VERSION,
        durability=str(gate.durability or ""),
        held_ms=round(gate.held_s * 1000),
        links={peer.name: peer.status(at_ms) for peer in peers},
        taken={str(region): groups for region, groups in taken.items()},
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
    taken = Family.gauge(
        "braid_taken_over_groups",
        "Groups in which this region delivers for another one, because its heartbeat stopped.",
        {(region,): groups for region, groups in status.taken.items()},
        ("taken_from",),
    )
    return [*found, held, taken, *_link_families(status.links)]


def group_families(lags: Iterable[GroupLag], strays: Strays | None) -> list[Family]:
    """For /metrics: the consumer groups, and strays; None before they were first counted."""
    unread, pending = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    for each in lags:
        unread[each.stream, each.group] = each.lag
        pending[each.stream, each.group] = each.pending
    labels = ("stream", "group")
    text = "Entries that the group has read and not acknowledged, on this region's server."
    return [
        Family.gauge("braid_group_lag_entries", "Entries that the group has not read.", unread, labels),
        Family.gauge("braid_group_pending_entries", text, pending, labels),
        *_stray_families(strays),
    ]


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


def _stray_families(strays: Strays | None) -> list[Family]:
    if strays is None:
        return []
    streams = "Native streams beside streams of braidstream: a client writes at the server, not through it."
    return [
        Family.gauge("braid_stray_streams", streams, {(): strays.streams}),
        Family.gauge("braid_stray_entries", "Their entries, which no reader sees.", {(): strays.entries}),
    ]


def _link_families(links: dict[str, LinkStatus]) -> list[Family]:
    label = ("peer",)

    def values(field: str, factor: float = 1) -> dict[tuple[str, ...], float]:
        """Unknown values are left out."""
        known = {name: getattr(link, field) for name, link in links.items()}
        return {(name,): value * factor for name, value in known.items() if value is not None}

    up, states = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    for name, link in links.items():
        up[name,] = float(link.state == "up")
        states[name, link.state] = 1.0
    return [
        Family.gauge("braid_link_up", "1 if the peer is connected.", up, label),
        Family.gauge("braid_link_state", "The link's state as a label.", states, ("peer", "state")),
        Family.gauge(
            "braid_link_state_since_seconds",
            "Since when the link has this state (Unix time).",
            values("since_ms", 0.001),
            label,
        ),
        Family.gauge(
            "braid_link_lag_entries",
            "Entries of this region that the peer lacks.",
            values("lag_entries"),
            label,
        ),
        Family.gauge(
            "braid_link_lag_seconds",
            "Age of the oldest entry of this region that the peer lacks; 0 if it lacks none.",
            values("lag_ms", 0.001),
            label,
        ),
        Family.counter("braid_link_entries_total", "Entries sent to the peer.", values("entries"), label),
        Family.counter("braid_link_bytes_total", "Bytes of entries sent.", values("bytes"), label),
        Family.counter(
            "braid_link_refused_total",
            "Changes that the peer refused (memory full, rights, ...).",
            values("refused"),
            label,
        ),
        Family.gauge(
            "braid_link_clock_offset_seconds",
            "How far the peer's clock is ahead of this region's, measured every minute.",
            values("clock_ms", 0.001),
            label,
        ),
    ]
