"""The streams of a region as one command sees them: what its client remembers of them, and expects."""

from dataclasses import dataclass, field, replace
from typing import Any

from braidstream.model.idempotence import Settings
from braidstream.model.meta import Registry
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand
from braidstream.protocol.cache import Reading, StreamCache


@dataclass(slots=True)
class View:
    """The region, and its streams as far as they are known.

    cache: what the client remembers; its other commands learn and forget meanwhile.
    seen: the registries that this command relies on, until it looks again or forgets them itself.
    pipelined: plans are gathered into one round trip, so each should be done in its first batch.
    in_multi: the batch stands inside a MULTI: it cannot block, and what it relies on is WATCHed.
    watching: the connection WATCHes keys.
    created: strands that this MULTI creates already.
    taken: names of a pipeline that are plain keys.
    producer: the client is an idempotent producer of this name: what it appends may be sent again.
    """

    region: Region
    cache: StreamCache = field(default_factory=StreamCache)
    pipelined: bool = False
    in_multi: bool = False
    watching: bool = False
    created: set[Strand] = field(default_factory=set)
    taken: frozenset[bytes] = frozenset()
    producer: bytes = b""
    seen: dict[bytes, Registry] = field(default_factory=dict)

    @staticmethod
    def of(
        cache: StreamCache,
        *,
        pipelined: bool = False,
        in_multi: bool = False,
        watching: bool = False,
        producer: bytes = b"",
    ) -> "View":
        """For one command, or for all commands of one pipeline."""
        assert cache.region is not None
        own = cache.for_pipeline() if pipelined else cache
        return View(cache.region, own, pipelined, in_multi, watching, producer=producer)

    def apart(self) -> "View":
        """The same for one command of a pipeline: what the others learn meanwhile is not of its moment."""
        return replace(self, cache=self.cache.copy(), seen={}) if self.pipelined else self

    @property
    def commands(self) -> frozenset[bytes]:
        """Which of the newer commands the engine has."""
        return self.cache.commands

    def one_step(self, commands: int) -> bool:
        """Whether a batch needs a MULTI. Not under a WATCH: EXEC would end it, and it guards the whole."""
        return commands > 1 and not self.watching

    def minted(self, name: bytes) -> Strand:
        """The home strand of a stream."""
        return Strand(name, "s", self.region.writer)

    def chosen(self, name: bytes) -> Strand:
        """The home strand for chosen IDs: in its present life, or in the one that it would begin."""
        known = self.recall(name)
        for strand in known.cuts:
            if strand.kind == "c" and strand.writer == self.region.writer:
                return strand if strand in known.strands else strand.next_life
        return Strand(name, "c", self.region.writer)

    # What is known

    def recall(self, name: bytes) -> Registry:
        """What we remember of a stream, be it nothing."""
        found = self.seen.get(name)
        if found is None:
            found = self.cache.registry(name)
            if found.exists:
                self.seen[name] = found
        return found

    def remembers(self, name: bytes) -> bool:
        """Whether the stream was looked up, though it may not exist."""
        return name in self.cache.registries

    def learn(self, name: bytes, reply: list[Any]) -> Registry:
        registry = Registry.parse(name, reply)
        self._remember(name, registry)
        return registry

    def forget(self, name: bytes) -> None:
        self.seen.pop(name, None)
        self.cache.forget(name)

    def _remember(self, name: bytes, registry: Registry) -> None:
        self.seen[name] = registry
        self.cache.remember(name, registry)

    def reading(self, name: bytes, group: bytes) -> Reading | None:
        """What we remember of a group, if no bell rang since."""
        known = self.cache.readings.get((name, group))
        return known if known is not None and known.bell == self.recall(name).bell else None

    def note(self, name: bytes, group: bytes, reading: Reading) -> None:
        self.cache.remember_reading(name, group, reading)

    def forget_reading(self, name: bytes, group: bytes) -> None:
        self.cache.forget_reading(name, group)

    # What will be

    def needs_create(self, home: Strand) -> bool:
        """Whether an append in a pipeline must create its strand first. In a MULTI there is no second try,
        so it creates each strand once, whatever we remember."""
        if self.in_multi:
            return home not in self.created
        return self.pipelined and home not in self.recall(home.name).strands

    def mark_created(self, home: Strand) -> None:
        self.created.add(home)
        self.expect(home)

    def expect(self, strand: Strand) -> None:
        """A strand will be there by the time the next command runs."""
        self._remember(strand.name, self.recall(strand.name).with_strand(strand))

    def expect_deleted(self, name: bytes) -> None:
        """Nothing of that name will be there by the time the next command runs."""
        self.created = {strand for strand in self.created if strand.name != name}
        self.taken -= {name}
        known = self.recall(name)
        if known.exists:
            settings = known.idempotence and known.idempotence.deleted()
            self._remember(name, Registry(known.cuts, idempotence=settings))

    def expect_settings(self, name: bytes, settings: Settings) -> None:
        """The settings of idempotence will be these."""
        known = self.recall(name)
        native = known.native and known.settings == settings
        self._remember(name, replace(known, idempotence=settings, native=native))

    def expect_native(self, name: bytes) -> None:
        """The engine itself knows the messages."""
        self._remember(name, replace(self.recall(name), native=True))
