"""How the batches of a command reach the engine: alone, in a pipeline, in a MULTI, or under WATCH.

Commands do not read its fields. They call its methods.

                may look again    may block    may use MULTI    creates a missing strand
    alone       yes               yes          yes              when an append returns nil
    pipeline    no                yes, last    yes              before the first append, unless cached
    MULTI       no                no           it is in one     before the first append, always
    WATCH       yes               yes          no               when an append returns nil

A pipeline looks up every stream that its commands name before it sends them, so none of them looks again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from braidstream.errors import RefusedError
from braidstream.model.strand import Strand


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
