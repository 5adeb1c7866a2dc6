"""The cache that a client or a gateway keeps of a region and its streams.

Everything here can be read again from the engine. All of it has one lifecycle:

    learn_region    the region was read. Another writer: drop everything. Other peers: drop the homes.
    remember        one stream was read, or a command predicts its next state
    forget          the cached state of one stream is stale
    forget_all      the connection may lead to another engine or database

None of these disturbs a plan in flight: it uses the cache through a `View`, which keeps every registry that
the plan has relied on. Tables are replaced, never emptied, so that other threads keep complete ones.
tests/client/test_cache.py shows it.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model.ids import Id
from braidstream.model.region import Region, ServerInfo
from braidstream.model.registry import CACHE_LIMIT, Registry, Settings
from braidstream.model.strand import Command, Strand
from braidstream.plan.append import Home

# The cached region expires after this time. `braid tune` reaches running clients within it.
REGION_FRESH_S: Final = 1.0
# How long clients wait for the daemon, if the server may generate IDs a second time.
HELD_S: Final = 15.0
_NOTHING: Final = Registry()


@dataclass(frozen=True, slots=True)
class Reading:
    """The cached state of a group, valid until the bell of the stream changes.

    at: the position of the group; by now it may be further ahead, never behind.
    busy: the strands that had entries for it.
    alone: no other consumer had read when we last looked.
    ahead: for some strands, the next entries after `at`; by now some may be deleted or delivered.
    """

    bell: bytes
    at: dict[Strand, Id]
    busy: tuple[Strand, ...]
    alone: bool = True
    ahead: dict[Strand, tuple[Id, ...]] = field(default_factory=dict)


class StreamCache:
    """The cache of one client, of one database of a gateway, or of one pipeline.

    registries: by stream name.
    crowded: groups of logs, by name and group, whose pending list was found full or in need of a look.
    ticked: logs whose age was noted since the region was read.
    names_of_logs: names that were logs; a hint, which outlives their registries.
    logs: names of logs among them. They are read again with the region: the home of a log may move.
    homes: the strands for plain appends, by name as the user writes it (text or bytes).
    calls, settings: for idempotent producers: the call up to the message, and non-default settings.
    engine_deduped: streams whose messages the engine itself deduplicates; empty while the region has peers.
    readings: the state of groups, by stream and group.
    holds_offsets: logs must not be written yet: see `check_server`.
    unmanaged: names of native streams of the engine. A hint: code that relies on it must notice if it is
        stale.
    """

    registries: OrderedDict[bytes, Registry]
    logs: set[bytes]
    names_of_logs: set[bytes]
    ticked: set[bytes]
    homes: dict[str | bytes, Home]
    calls: dict[tuple[Any, Any], Command]
    settings: dict[bytes, Settings]
    engine_deduped: set[bytes]
    readings: dict[tuple[bytes, bytes], Reading]
    crowded: set[tuple[bytes, bytes]]
    unmanaged: set[bytes]

    def __init__(self, *, limit: int | None = CACHE_LIMIT) -> None:
        self.region: Region | None = None
        self.commands: frozenset[bytes] = frozenset()
        self._read_at_s = float("-inf")
        self._held_at_s: float | None = None
        self._server = ServerInfo()
        self.holds_offsets = False
        self._limit = limit
        self._parent: StreamCache | None = None
        self.forget_all()

    # The region

    def check_server(self, region: Region, server: ServerInfo, now_s: float) -> None:
        """Check the process behind a new connection. While it may generate IDs a second time, raise LOADING
        until the daemon has raised its home strands; for HELD_S at most, in case no daemon runs. While it may
        give offsets of logs a second time, only writes to logs wait (`holds_offsets`)."""
        self.commands = server.commands
        if server.is_primary:
            self._server = server
        if self._is_held(region, now_s) and region.may_repeat_ids(server):
            raise ReplyError(
                f"LOADING region {region.id} ({region.name}) is served by another process, and its IDs were "
                "ahead of the clock. Its daemon reads from the peers which IDs they have"
            )

    def _is_held(self, region: Region, now_s: float) -> bool:
        server = self._server
        if not region.may_repeat_offsets(server) and not region.may_repeat_ids(server):
            self._held_at_s = None
            return False
        self._held_at_s = now_s if self._held_at_s is None else self._held_at_s
        return now_s - self._held_at_s < HELD_S

    def learn_region(self, region: Region, now_s: float) -> None:
        known, self.region, self._read_at_s = self.region, region, now_s
        self.holds_offsets = self._is_held(region, now_s) and region.may_repeat_offsets(self._server)
        self._forget_logs()
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
        if registry.epochs:
            self.logs.add(name)
            if len(self.names_of_logs) < CACHE_LIMIT:
                self.names_of_logs.add(name)
        if self._limit is not None and len(registries) > self._limit:
            registries.popitem(last=False)

    def forget(self, name: bytes) -> None:
        self.registries.pop(name, None)

    def _forget_logs(self) -> None:
        for name in list(self.logs):
            self.forget(name)
        self.logs, self.crowded, self.ticked = set(), set(), set()

    def holds_stream(self, name: bytes) -> bool:
        """Whether a name is a stream or a log, as far as we know."""
        return name in self.homes or name in self.names_of_logs or self.registry(name).exists

    def remember_home(self, name: str | bytes, strand: Strand) -> None:
        """An append has succeeded, so the strand exists."""
        if len(self.homes) >= CACHE_LIMIT or len(self.calls) >= CACHE_LIMIT:
            self.forget_homes()
        self.homes[name] = Home(strand)

    def remember_reading(self, name: bytes, group: bytes, reading: Reading) -> None:
        if len(self.readings) >= CACHE_LIMIT:
            self.readings = {}
        self.readings[name, group] = reading

    def forget_reading(self, name: bytes, group: bytes) -> None:
        self.readings.pop((name, group), None)

    def note_native(self, name: bytes, is_native: bool) -> None:
        """Cache whether a name is a native stream; a pipeline's cache also updates the client's."""
        if not is_native:
            self.unmanaged.discard(name)
        elif len(self.unmanaged) < CACHE_LIMIT:
            self.unmanaged.add(name)
        if self._parent is not None:
            self._parent.note_native(name, is_native)

    # All of it

    def forget_homes(self) -> None:
        self.homes, self.calls, self.settings, self.engine_deduped = {}, {}, {}, set()

    def forget_all(self) -> None:
        self.registries, self.logs, self.crowded = OrderedDict(), set(), set()
        self.names_of_logs, self.ticked = set(), set()
        self.readings, self.unmanaged = {}, set()
        self.forget_homes()

    # Copies

    def for_pipeline(self) -> "StreamCache":
        """An empty cache for one pipeline: it looks up every stream, and its predictions are private."""
        own = StreamCache(limit=None)
        own.region, own.commands, own.readings = self.region, self.commands, self.readings
        own.homes, own.unmanaged, own._parent = self.homes, set(self.unmanaged), self
        own.ticked, own.names_of_logs = self.ticked, self.names_of_logs
        own.holds_offsets = self.holds_offsets
        return own

    def copy(self) -> "StreamCache":
        """A copy with the same registries."""
        own = self.for_pipeline()
        own.registries = OrderedDict(self.registries)
        return own
