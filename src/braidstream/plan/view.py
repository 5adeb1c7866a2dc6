"""The streams of a region as one command sees them, and how its batches are carried."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from braidstream.errors import RefusedError
from braidstream.model import keys
from braidstream.model.region import Region
from braidstream.model.registry import Registry, Settings
from braidstream.model.strand import Strand
from braidstream.plan.cache import Reading, StreamCache

# ----------------------------------------------------------------------------------------------------
# How the batches of a command reach the engine. Commands ask what it allows, and not which it is.


class Carriage(Enum):
    """may_look_again: a plan may send another batch before it is done. Else the pipeline has just looked up
        the streams of all its commands.
    may_block: BLOCK waits. A pipeline ends its round trip with a command that waits.
    may_end_watch: a plan may send EXEC or UNWATCH. Else the user WATCHes keys.
    is_multi: the engine runs all commands of the pipeline or none. It WATCHes the registries of its streams.

    A missing strand is created after an append returns nil; in a pipeline before the first append, unless it
    is cached; in a MULTI always before.
    """

    ALONE = True, True, True, False
    PIPELINE = False, True, True, False
    MULTI = False, False, True, True
    WATCH = True, True, False, False

    def __init__(self, may_look_again: bool, may_block: bool, may_end_watch: bool, is_multi: bool) -> None:
        self.may_look_again, self.may_block = may_look_again, may_block
        self.may_end_watch, self.is_multi = may_end_watch, is_multi
        self.has_looked = not may_look_again

    @staticmethod
    def of_one(*, watching: bool) -> "Carriage":
        """For a command that the user does not pipeline. watching: the user WATCHes keys."""
        return Carriage.WATCH if watching else Carriage.ALONE

    def one_step(self, commands: int) -> bool:
        """Whether to send this many commands in a MULTI."""
        return commands > 1 and self.may_end_watch

    def create_step(self, attempt: int) -> bool:
        """Whether to create a strand and append to it in a MULTI. A pipeline first tries it without MULTI:
        creating a strand is idempotent."""
        return self.may_end_watch and (attempt > 0 or self.may_look_again)

    def refuse_watch(self, command: str) -> None:
        """Refuse a plan that WATCHes keys itself: it would end the WATCH of the user."""
        if self is Carriage.WATCH:
            why = "it watches keys itself, and would end your WATCH"
            raise RefusedError(f"{command} of a stream under WATCH", why, "Run it before WATCH or after EXEC")

    def refuse_steps(self, command: str) -> None:
        """Refuse a plan that must be one step and has several commands: its EXEC would end the WATCH of the
        user."""
        if self is Carriage.WATCH:
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
    created: strands that earlier commands of this MULTI create, by name.
    plain_keys: names that the pipeline found to be keys of another type.
    continues: see `will_continue`.
    """

    region: Region
    cache: StreamCache = field(default_factory=StreamCache)
    carriage: Carriage = Carriage.ALONE
    producer: bytes = b""
    seen: dict[bytes, Registry] = field(default_factory=dict)
    created: dict[bytes, set[Strand]] = field(default_factory=dict)
    plain_keys: set[bytes] = field(default_factory=set)
    continues: bool = False

    @staticmethod
    def of(cache: StreamCache, carriage: Carriage = Carriage.ALONE, producer: bytes = b"") -> "View":
        """For one command, or for all commands of one pipeline."""
        assert cache.region is not None
        return View(cache.region, cache.for_pipeline() if carriage.has_looked else cache, carriage, producer)

    def apart(self) -> "View":
        """For one command of a pipeline: later commands must not change its registries."""
        return replace(self, cache=self.cache.copy(), seen={}) if self.carriage.has_looked else self

    def scratch(self) -> "View":
        """For a plan that is only looked at: what it expects must not count."""
        return replace(self, cache=self.cache.copy(), seen={}, created={}, plain_keys={*self.plain_keys})

    def alone(self) -> "View":
        """For a plan that continues alone, after the round trip that it shared."""
        return replace(self, carriage=Carriage.ALONE) if self.carriage.has_looked else self

    def under_watch(self) -> "View":
        """For a plan that WATCHes keys itself."""
        return replace(self, carriage=Carriage.WATCH)

    def will_continue(self, *, after_exec: bool = False) -> None:
        """Called by a plan that knows before its first batch that others follow it. Later commands of a
        pipeline wait for them; a MULTI refuses the command, unless they may follow its EXEC."""
        self.continues = self.continues or not (after_exec and self.carriage.is_multi)

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

    def is_native(self, name: bytes) -> bool:
        """Whether a name is a native stream of the engine, by the cache."""
        return name in self.cache.unmanaged

    def expect_passed(self, strand: Strand, group: bytes) -> None:
        """No entries that other regions have acknowledged are ahead of the group in a strand."""
        known = self.recall(strand.name)
        left = known.passes.get(group, frozenset()) - {strand.registration}
        self._remember(strand.name, replace(known, passes={**known.passes, group: left}))

    # Predicted state

    def needs_create(self, home: Strand) -> bool:
        """Whether to create a strand before an append. A MULTI cannot retry."""
        if self.carriage.is_multi:
            return home not in self.created.get(home.name, ())
        return self.carriage.has_looked and home not in self.recall(home.name).strands

    def _mark_created(self, home: Strand) -> None:
        self.created.setdefault(home.name, set()).add(home)

    def expect_home(self, home: Strand) -> None:
        """A home strand will exist when the next command runs."""
        self._mark_created(home)
        self.expect(home)

    def expect(self, strand: Strand) -> None:
        """A strand will exist when the next command runs."""
        self._remember(strand.name, self.recall(strand.name).with_strand(strand))

    def expect_log(self, home: Strand) -> None:
        """A log with this home strand will exist when the next command runs."""
        self._mark_created(home)
        self._remember(home.name, self.recall(home.name).with_log(home))

    def expect_no_key(self, name: bytes) -> None:
        """Nothing of that name may exist when the next command runs: a MULTI creates the strand again."""
        self.created.pop(name, None)
        self.plain_keys.discard(name)

    def expect_deleted(self, name: bytes) -> None:
        """Nothing of that name will exist when the next command runs."""
        self.expect_no_key(name)
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
