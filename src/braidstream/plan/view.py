"""The streams of a region as one command sees them, and how its batches are carried."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from braidstream.errors import RefusedError
from braidstream.model import keys
from braidstream.model.region import Region
from braidstream.model.registry import Registry, Settings
from braidstream.model.strand import Strand
from braidstream.plan.cache import Reading, StreamCache

# ----------------------------------------------------------------------------------------------------
#
# How the batches of a command reach the engine: alone, in a pipeline, in a MULTI, or under WATCH.
#
# Commands do not read its fields. They call its methods.
#
#                 may look again    may block    may use MULTI    creates a missing strand
#     alone       yes               yes          yes              when an append returns nil
#     pipeline    no                yes, last    yes              before the first append, unless cached
#     MULTI       no                no           it is in one     before the first append, always
#     WATCH       yes               yes          no               when an append returns nil
#
# A pipeline looks up every stream that its commands name before it sends them, so none of them looks again.


@dataclass(slots=True)
class Carriage:
    """How one command is carried, or all commands of one pipeline.

    pipelined: several commands share a round trip, so each should finish in its first batch.
    in_multi: that round trip is one MULTI. The registries of its streams are WATCHed.
    watching: the connection WATCHes keys, for the user or for a plan.
    created: strands that earlier commands of this MULTI create, by name.
    plain_keys: names that the pipeline found to be keys of another type.
    """

    pipelined: bool = False
    in_multi: bool = False
    watching: bool = False
    created: dict[bytes, set[Strand]] = field(default_factory=dict)
    plain_keys: set[bytes] = field(default_factory=set)

    @property
    def may_look_again(self) -> bool:
        """Whether a plan may send another batch before it is done."""
        return not self.pipelined

    @property
    def has_looked(self) -> bool:
        """Whether the pipeline has just looked up the streams of all its commands."""
        return self.pipelined

    @property
    def may_block(self) -> bool:
        return not self.in_multi

    @property
    def is_all_or_nothing(self) -> bool:
        """Whether the engine runs all commands of the batch or none, and no further batch may follow."""
        return self.in_multi

    def one_step(self, commands: int) -> bool:
        """Whether to send this many commands in a MULTI. Not under WATCH, which EXEC would end."""
        return commands > 1 and not self.watching

    def create_step(self, attempt: int) -> bool:
        """Whether to create a strand and append to it in a MULTI. A pipeline first tries it without MULTI:
        creating a strand is idempotent."""
        return self.one_step(2) and (attempt > 0 or not self.pipelined)

    def needs_create(self, home: Strand, known: tuple[Strand, ...]) -> bool:
        """Whether to create the strand before an append. A MULTI cannot retry."""
        if self.in_multi:
            return home not in self.created.get(home.name, ())
        return self.pipelined and home not in known

    def mark_created(self, home: Strand) -> None:
        self.created.setdefault(home.name, set()).add(home)

    def is_plain_key(self, name: bytes) -> bool:
        """Whether the pipeline found that a name is a key of another type."""
        return name in self.plain_keys

    def note_plain_keys(self, names: Iterable[bytes]) -> None:
        self.plain_keys = set(names)

    def expect_no_plain_key(self, name: bytes) -> None:
        """No plain key of that name will exist by the time the next command runs."""
        self.plain_keys.discard(name)

    def expect_deleted(self, name: bytes) -> None:
        """Neither a stream nor a plain key of that name will exist by the time the next command runs."""
        self.created.pop(name, None)
        self.expect_no_plain_key(name)

    @property
    def may_unwatch(self) -> bool:
        """Whether a plan may send UNWATCH: the user WATCHes nothing."""
        return not self.watching

    def alone(self) -> "Carriage":
        """For a plan that continues alone, after the round trip that it shared."""
        return replace(self, pipelined=False)

    def under_watch(self) -> "Carriage":
        """For a plan that WATCHes keys itself."""
        return replace(self, watching=True)

    def refuse_watch(self, command: str) -> None:
        """Refuse a plan that WATCHes keys itself: it would end the WATCH of the user."""
        if self.watching:
            why = "it watches keys itself, and would end your WATCH"
            raise RefusedError(f"{command} of a stream under WATCH", why, "Run it before WATCH or after EXEC")

    def refuse_steps(self, command: str) -> None:
        """Refuse a plan that must be one step and has several commands: its EXEC would end the WATCH of the
        user."""
        if self.watching:
            why = "it is one step, whose EXEC would end your WATCH"
            raise RefusedError(f"{command} under WATCH", why, "Run it before WATCH, or inside MULTI")


# ----------------------------------------------------------------------------------------------------
# View


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
        return name in self.cache.unmanaged

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
        self.cache.unmanaged.discard(name)
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
