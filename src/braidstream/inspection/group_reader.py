"""Consumer groups of a stream as operators see them: behind `braid groups` and the console."""

from dataclasses import dataclass
from typing import Any

from braidstream.clients.shared import Conversation
from braidstream.consumers.spoken import ViewOf, command
from braidstream.model import ids
from braidstream.model.strand import facts
from braidstream.protocol.plan import Plan


@dataclass(frozen=True, slots=True)
class GroupRow:
    """lag: entries not delivered yet. oldest_ms: the age of the oldest pending entry, if it is known.
    owned: the regions whose entries it delivers here, in scope ONCE; None if it delivers all."""

    stream: bytes
    group: bytes
    lag: int
    pending: int
    oldest_ms: int | None
    consumers: int
    owned: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """idle_ms: since it last asked for entries."""

    name: bytes
    pending: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class PendingRow:
    """idle_ms: since it was last delivered. consumer: empty if it has no owner."""

    id: str
    consumer: bytes
    idle_ms: int
    deliveries: int


def read_groups(name: bytes, now_ms: int, *, is_log: bool) -> Conversation[list[GroupRow]]:
    """All groups of a stream. More round trips if entries must be counted for a lag."""

    def plan(view_of: ViewOf) -> Plan[list[GroupRow]]:
        found = list[GroupRow]()
        for reply in (yield from command(view_of, "XINFO", "GROUPS", name)):
            info = facts(reply)
            group, oldest = bytes(info[b"name"]), None
            if info[b"pending"] and not is_log:
                _, first, *_ = yield from command(view_of, "XPENDING", name, group)
                oldest = None if not first else now_ms - ids.native(first)[0]
            counts: dict[bytes, Any] = info
            owned = tuple(map(int, counts[b"owned"])) if b"owned" in counts else None
            found.append(
                GroupRow(name, group, counts[b"lag"], counts[b"pending"], oldest, counts[b"consumers"], owned)
            )
        return found

    return plan


def read_consumers(
    name: bytes, group: bytes, most: int
) -> Conversation[tuple[list[ConsumerRow], list[PendingRow]]]:
    """The consumers of a group, those with the most pending entries first, and its oldest pending entries."""

    def plan(view_of: ViewOf) -> Plan[tuple[list[ConsumerRow], list[PendingRow]]]:
        consumers = yield from command(view_of, "XINFO", "CONSUMERS", name, group)
        pending = yield from command(view_of, "XPENDING", name, group, "-", "+", most)
        rows = [ConsumerRow(info[b"name"], info[b"pending"], info[b"idle"]) for info in map(facts, consumers)]
        rows.sort(key=lambda row: (-row.pending, row.name))
        return rows, [
            PendingRow(bytes(entry).decode(), who, idle, count) for entry, who, idle, count in pending
        ]

    return plan
