"""The lag of the consumer groups of a region, for /metrics: entries not read, entries not acknowledged.

Streams are looked at one after the other, round after round, so the load on the engine is small and even.
"""

from dataclasses import dataclass
from typing import Final

from braidstream.commands.groups.group_status import groups
from braidstream.errors import ReplyError
from braidstream.model.meta import Registry
from braidstream.model.region_config import Region
from braidstream.model.strand import facts
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

EVERY_S: Final = 15.0
# Of more groups than this the others are not shown: each is a time series of Prometheus.
MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class GroupLag:
    """lag: entries that were not read; pending: those that were read and not acknowledged."""

    stream: str
    group: str
    lag: int
    pending: int


def with_groups(names: list[bytes]) -> Plan[list[bytes]]:
    """Those of the streams that have groups. One round trip."""
    if not names:
        return []
    replies = yield Batch([registry_of(name) for name in names], resend=True)
    registries = (Registry.parse(name, reply) for name, reply in zip(names, replies, strict=True))
    return [
        name for name, registry in zip(names, registries, strict=True) if registry.exists and registry.groups
    ]


def read_lags(region: Region, name: bytes) -> Plan[list[GroupLag]]:
    """The groups of one stream; none if it was deleted meanwhile."""
    try:
        rows = yield from groups(View(region), name)
    except ReplyError:
        return []
    found = []
    for row in map(facts, rows):
        stream, group = (word.decode("utf-8", "backslashreplace") for word in (name, row[b"name"]))
        found.append(GroupLag(stream, group, int(row[b"lag"] or 0), int(row[b"pending"])))
    return found
