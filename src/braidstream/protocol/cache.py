"""What a client or a gateway remembers of a region and its streams.

Everything here can be read again from the engine. One lifecycle for all of it:

    learn_region    the region was read. Another writer: everything is forgotten. Other peers: the homes are.
    remember        one stream was read, or a command expects what it will be
    forget          one stream is not as we remember it
    forget_all      the connection may lead to another engine or database

None of them disturbs a plan in flight: it sees the cache through a `View`, which keeps every registry that
the plan has relied on. To forget is to put new tables in place of the old ones, never to empty those: what
another thread holds stays complete. tests/client/test_cache.py shows it.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model.command import Command
from braidstream.model.idempotence import Settings
from braidstream.model.ids import Id
from braidstream.model.meta import REMEMBERED, Registry
from braidstream.model.region_config import Region, ServerInfo
from braidstream.model.strand import Strand
from braidstream.protocol.append import Home

# How old the knowledge of the region may be. `braid tune` reaches running clients within it.
REGION_FRESH_S: Final = 1.0
# So long clients wait for the daemon of a region whose server may mint IDs again.
HELD_S: Final = 15.0
_NOTHING: Final = Registry()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a client remembers of a group, valid until the bell of the stream rings.

    at: where the group was; it may be further by now, never behind.
    busy: the strands that had entries for it.
    alone: no other consumer had read when we last looked.
    ahead: of some strands, the next entries after that place; by now some may be deleted or delivered.
    """

    bell: bytes
    at: dict[Strand, Id]
    busy: tuple[Strand, ...]
    alone: bool = True
    ahead: dict[Strand, tuple[Id, ...]] = field(default_factory=dict)


class StreamCache:
    """One client's, gateway database's or pipeline's memory.

    registries: of streams, by name.
    homes: where plain appends go, by the name as the user writes it (text or bytes).
    calls, settings: of idempotent producers, the call up to the message, and settings other than the default.
    native: streams whose messages the engine itself knows; empty while the region has peers.
    readings: positions of groups, by stream and group.
    """

    registries: OrderedDict[bytes, Registry]
    homes: dict[str | bytes, Home]
    calls: dict[tuple[Any, Any], Command]
    settings: dict[bytes, Settings]
    native: set[bytes]
    readings: dict[tuple[bytes, bytes], Reading]

    def __init__(self, *, limit: int | None = REMEMBERED) -> None:
        self.region: Region | None = None
        self.commands: frozenset[bytes] = frozenset()
        self._read_at_s = float("-inf")
        self._held_at_s: float | None = None
        self._limit = limit
        self.forget_all()

    # The region

    def check_server(self, region: Region, server: ServerInfo, now_s: float) -> None:
        """The process behind a new connection. LOADING while it may mint IDs again: its daemon raises
        its home strands first. Not for ever, in case that no daemon runs."""
        self.commands = server.commands
        if not region.may_repeat_ids(server):
            self._held_at_s = None
            return
        self._held_at_s = now_s if self._held_at_s is None else self._held_at_s
        if now_s - self._held_at_s < HELD_S:
            raise ReplyError(
                f"LOADING region {region.id} ({region.name}) is served by another process, and its IDs were "
                "ahead of the clock. Its daemon asks the peers which IDs they have"
            )

    def learn_region(self, region: Region, now_s: float) -> None:
        known, self.region, self._read_at_s = self.region, region, now_s
        if known is None:
            return
        if known.writer != region.writer:
            self.forget_all()
        elif (known.journal_writer, known.topology) != (region.journal_writer, region.topology):
            self.forget_homes()

    def is_fresh(self, now_s: float) -> bool:
        return now_s - self._read_at_s <= REGION_FRESH_S

    def expire_region(self) -> None:
        """Read the region again before the next command."""
        self._read_at_s = float("-inf")

    # Streams

    def registry(self, name: bytes) -> Registry:
        return self.registries.get(name, _NOTHING)

    def remember(self, name: bytes, registry: Registry) -> None:
        registries = self.registries
        registries.pop(name, None)
        registries[name] = registry
        if self._limit is not None and len(registries) > self._limit:
            registries.popitem(last=False)

    def forget(self, name: bytes) -> None:
        self.registries.pop(name, None)

    def remember_home(self, name: str | bytes, strand: Strand) -> None:
        """An append has succeeded: the strand is there."""
        if len(self.homes) >= REMEMBERED or len(self.calls) >= REMEMBERED:
            self.forget_homes()
        self.homes[name] = Home(strand)

    def remember_reading(self, name: bytes, group: bytes, reading: Reading) -> None:
        if len(self.readings) >= REMEMBERED:
            self.readings = {}
        self.readings[name, group] = reading

    def forget_reading(self, name: bytes, group: bytes) -> None:
        self.readings.pop((name, group), None)

    # All of it

    def forget_homes(self) -> None:
        self.homes, self.calls, self.settings, self.native = {}, {}, {}, set()

    def forget_all(self) -> None:
        self.registries, self.readings = OrderedDict(), {}
        self.forget_homes()

    # Copies

    def for_pipeline(self) -> "StreamCache":
        """The cache of one pipeline: it looks every stream up again, and what it expects is its own."""
        own = StreamCache(limit=None)
        own.region, own.commands, own.readings = self.region, self.commands, self.readings
        return own

    def copy(self) -> "StreamCache":
        """The same registries; from now on each changes alone."""
        own = self.for_pipeline()
        own.registries = OrderedDict(self.registries)
        return own
