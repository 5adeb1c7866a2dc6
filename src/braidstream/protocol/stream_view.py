"""The streams of a region as one command sees them: cached, or predicted within a pipeline."""

from dataclasses import dataclass, field, replace
from typing import Any

from braidstream.model import keys
from braidstream.model.idempotence import Settings
from braidstream.model.meta import Registry
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand
from braidstream.protocol.cache import Reading, StreamCache
from braidstream.protocol.carry import Carriage


@dataclass(slots=True)
class View:
    """The region, and its streams as far as they are cached.

    cache: the client's cache; other commands change it concurrently.
    seen: the registries that this command relies on, until it reads or forgets them itself.
    carriage: how its batches reach the engine.
    producer: the name of an idempotent producer, whose appends may be sent again.
    """

    region: Region
    cache: StreamCache = field(default_factory=StreamCache)
    carriage: Carriage = field(default_factory=Carriage)
    producer: bytes = b""
    seen: dict[bytes, Registry] = field(default_factory=dict)

    @staticmethod
    def of(cache: StreamCache, carriage: Carriage | None = None, producer: bytes = b"") -> "View":
        """For one command, or for all commands of one pipeline."""
        assert cache.region is not None
        how = carriage or Carriage()
        return View(cache.region, cache.for_pipeline() if how.has_looked else cache, how, producer)

    def apart(self) -> "View":
        """For one command of a pipeline: later commands must not change its registries."""
        return replace(self, cache=self.cache.copy(), seen={}) if self.carriage.has_looked else self

    def alone(self) -> "View":
        """For a plan that continues alone, after the round trip that it shared."""
        return replace(self, carriage=self.carriage.alone())

    def under_watch(self) -> "View":
        """For a plan that WATCHes keys itself."""
        return replace(self, carriage=self.carriage.under_watch())

    @property
    def commands(self) -> frozenset[bytes]:
        """The newer commands that the engine has."""
        return self.cache.commands

    def home(self, name: bytes) -> Strand:
        """The home strand of a stream."""
        return Strand(name, keys.GENERATED, self.region.writer)

    def chosen(self, name: bytes) -> Strand:
        """The home strand for chosen IDs: in its current life, or in the next one if it was deleted."""
        known = self.recall(name)
        for strand in known.cuts:
            if strand.has_chosen_ids and strand.writer == self.region.writer:
                return strand if strand in known.strands else strand.next_life
        return Strand(name, keys.CHOSEN, self.region.writer)

    def log_home(self, name: bytes) -> Strand:
        """The strand that a log is written to. It may be another region's."""
        home = self.recall(name).home
        if home is None:
            return Strand(name, keys.LOG, self.region.writer)
        return Strand(name, keys.LOG, home.writer, home.number)

    # Cached state

    def recall(self, name: bytes) -> Registry:
        """The cached registry of a stream; an empty one if it is not cached."""
        found = self.seen.get(name)
        if found is None:
            found = self.cache.registry(name)
            if found.exists:
                self.seen[name] = found
        return found

    def owned(self, name: bytes, group: bytes) -> tuple[Strand, ...]:
        """The strands whose pending entries a group has in this region, by the cache."""
        return self.recall(name).owned(group, self.region)

    def delivered(self, name: bytes, group: bytes) -> tuple[Strand, ...]:
        """The strands whose new entries a group delivers in this region, by the cache."""
        return self.recall(name).delivered(group, self.region)

    def remembers(self, name: bytes) -> bool:
        """Whether the stream was looked up. It may not exist."""
        return name in self.cache.registries

    def has_seen(self, strand: Strand) -> bool:
        """Whether this server had the strand when we looked, or when we appended to it."""
        home = self.cache.homes.get(strand.name)
        return strand in self.recall(strand.name).cuts or (home is not None and home.strand == strand)

    def learn(self, name: bytes, reply: list[Any]) -> Registry:
        registry = self.recall(name).parsed_again(name, reply)
        self._remember(name, registry)
        return registry

    def forget(self, name: bytes) -> None:
        self.seen.pop(name, None)
        self.cache.forget(name)

    def forget_strand(self, strand: Strand) -> None:
        """The server does not know the strand any more."""
        self.forget(strand.name)
        self.cache.homes.pop(strand.name, None)

    def _remember(self, name: bytes, registry: Registry) -> None:
        self.seen[name] = registry
        self.cache.remember(name, registry)

    def reading(self, name: bytes, group: bytes) -> Reading | None:
        """The cached state of a group, if the bell has not changed."""
        known = self.cache.readings.get((name, group))
        return known if known is not None and known.bell == self.recall(name).bell else None

    def remember_reading(self, name: bytes, group: bytes, reading: Reading) -> None:
        self.cache.remember_reading(name, group, reading)

    def forget_reading(self, name: bytes, group: bytes) -> None:
        self.cache.forget_reading(name, group)

    def is_native(self, name: bytes) -> bool:
        """Whether a name is a native stream of the engine, by the cache."""
        return name in self.cache.natives

    def note_native(self, name: bytes, is_native: bool) -> None:
        self.cache.note_native(name, is_native)

    def native_strand(self, name: bytes) -> Strand:
        """A native stream, read as the only strand of its name."""
        return Strand(name, keys.PLAIN, 0)

    def expect_passed(self, strand: Strand, group: bytes) -> None:
        """No entries that other regions have acknowledged are ahead of the group in a strand."""
        known = self.recall(strand.name)
        left = known.passes.get(group, frozenset()) - {strand.registration}
        self._remember(strand.name, replace(known, passes={**known.passes, group: left}))

    # Predicted state

    def needs_create(self, home: Strand) -> bool:
        """Whether to create a strand before an append."""
        return self.carriage.needs_create(home, self.recall(home.name).strands)

    def mark_created(self, home: Strand) -> None:
        self.carriage.mark_created(home)
        self.expect(home)

    def expect(self, strand: Strand) -> None:
        """A strand will exist when the next command runs."""
        self._remember(strand.name, self.recall(strand.name).with_strand(strand))

    def expect_log(self, home: Strand) -> None:
        """A log with this home strand will exist when the next command runs."""
        self.carriage.mark_created(home)
        self._remember(home.name, self.recall(home.name).with_log(home))

    def expect_deleted(self, name: bytes) -> None:
        """Nothing of that name will exist when the next command runs."""
        self.carriage.expect_deleted(name)
        self.cache.natives.discard(name)
        known = self.recall(name)
        if known.exists:
            settings = known.idempotence and known.idempotence.deleted()
            self._remember(name, Registry(known.cuts, idempotence=settings, epochs=known.epochs))

    def expect_settings(self, name: bytes, settings: Settings) -> None:
        """The stream will have these settings of idempotence."""
        known = self.recall(name)
        native = known.native and known.settings == settings
        self._remember(name, replace(known, idempotence=settings, native=native))

    def expect_native(self, name: bytes) -> None:
        """The engine itself deduplicates the messages."""
        self._remember(name, replace(self.recall(name), native=True))
