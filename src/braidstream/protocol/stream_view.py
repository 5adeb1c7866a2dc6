"""The streams of a region as one command sees them: what its client remembers of them, and expects."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any, Final

from braidstream.model import keys
from braidstream.model.idempotence import Settings
from braidstream.model.ids import Id
from braidstream.model.meta import REMEMBERED, Registry
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand


@dataclass(frozen=True, slots=True)
class Reading:
    """What a client remembers of a group. It is worth something until the bell rings.

    at: where the group was; it may be further by now, never behind.
    busy: the strands that had something for it.
    alone: nobody else had read when we last looked.
    ahead: of some strands, the next entries after that place; by now some may be deleted or given.
    """

    bell: bytes
    at: dict[Strand, Id]
    busy: tuple[Strand, ...]
    alone: bool = True
    ahead: dict[Strand, tuple[Id, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class View:
    """The streams as one command sees them: its region, and the strands its client remembers.

    known: the client's cache; other commands of the client learn and forget meanwhile.
    seen: what this command relies on. It stays until the command itself looks again or forgets.
    pipelined: plans are gathered into one round trip, so each should be done in its first batch.
    in_multi: the batch stands inside a MULTI: it cannot block, and what it relies on is WATCHed.
    watching: the connection WATCHes keys.
    created: strands that this MULTI creates already.
    taken: names of a pipeline that are plain keys.
    readings: where groups of streams were, by name and group.
    producer: the client is an idempotent producer of this name: what it appends may be sent again.
    commands: which of the newer commands the engine has.
    """

    region: Region
    known: "OrderedDict[bytes, Registry]" = field(default_factory=OrderedDict)
    pipelined: bool = False
    in_multi: bool = False
    watching: bool = False
    created: set[Strand] = field(default_factory=set)
    taken: frozenset[bytes] = frozenset()
    readings: dict[tuple[bytes, bytes], Reading] = field(default_factory=dict)
    producer: bytes = b""
    seen: dict[bytes, Registry] = field(default_factory=dict)
    commands: frozenset[bytes] = frozenset()

    def one_step(self, commands: int) -> bool:
        """Whether a batch needs a MULTI. Not under a WATCH: EXEC would end it, and it guards the whole."""
        return commands > 1 and not self.watching

    def minted(self, name: bytes) -> Strand:
        """The home strand of a stream."""
        return Strand(name, keys.MINTED, self.region.writer)

    def chosen(self, name: bytes) -> Strand:
        """The home strand for chosen IDs: in its present life, or in the one that it would begin."""
        known = self.recall(name)
        for strand in known.cuts:
            if strand.is_chosen and strand.writer == self.region.writer:
                return strand if strand in known.strands else strand.next_life
        return Strand(name, keys.CHOSEN, self.region.writer)

    def recall(self, name: bytes) -> Registry:
        """What we remember of a stream, be it nothing."""
        if self.pipelined:  # its cache is its own
            return self.known.get(name, _NOTHING)
        found = self.seen.get(name)
        if found is None:
            found = self.known.get(name, _NOTHING)
            if found.exists:
                self.seen[name] = found
        return found

    def learn(self, name: bytes, reply: list[Any]) -> Registry:
        registry = Registry.parse(name, reply)
        self._remember(name, registry)
        return registry

    def reading(self, name: bytes, group: bytes) -> Reading | None:
        """What we remember of a group, as far as we know rightly."""
        known = self.readings.get((name, group))
        return known if known is not None and known.bell == self.recall(name).bell else None

    def note(self, name: bytes, group: bytes, reading: Reading) -> None:
        if len(self.readings) >= REMEMBERED:
            self.readings.clear()
        self.readings[name, group] = reading

    def forget(self, name: bytes) -> None:
        self.seen.pop(name, None)
        self.known.pop(name, None)

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

    def _remember(self, name: bytes, registry: Registry) -> None:
        self.seen[name] = self.known[name] = registry
        self.known.move_to_end(name)
        if len(self.known) > REMEMBERED and not self.pipelined:
            self.known.popitem(last=False)


_NOTHING: Final = Registry()
