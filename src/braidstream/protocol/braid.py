"""A stream seen from one region: who the region is, and how to ask all strands that the registry lists.

A stream exists while one of its strands is there. A client may remember the strands: every plan that
relies on its memory asks for the registry in the same round trip, and starts over if it was wrong.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from braidstream.errors import BraidError, ClusterError, ConfigError, NotARegionError, ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.idempotence import Settings
from braidstream.model.ids import Id
from braidstream.model.keys import CONFIG
from braidstream.model.meta import REMEMBERED, Registry, bell, given
from braidstream.model.strand import Strand, facts
from braidstream.protocol.plan import Batch, Plan

# Before a writer's number, a field of `bs:config`.
BEHIND: Final = b"behind:"
ID_MODES: Final = ("strict", "semi-strict", "liberal")
STALE_TRIES: Final = 8
# Newer stream commands that plans use natively where the engine has them: Redis 8.2, 8.8.
NEWER: Final = (b"XDELEX", b"XNACK")
INFO_CLUSTER: Final = ("INFO", "cluster")
WRONGTYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"


@dataclass(frozen=True, slots=True)
class Region:
    """Who the server is: what `bs:config` says.

    left: writers of regions that were removed for good. topology: grows with every change of the others.
    identity: of the server that was made this region; its replicas and backups have it too.
    behind_ms: writers whose clock is behind ours by more than the bound, and how far.
    doubts: from when to when (ms) what was written may be lost, because another process serves it since.
    fenced: it is being brought back after a loss, and serves no client until then.
    """

    id: int
    name: str
    writer: int
    id_mode: str = "strict"
    writers: tuple[int, ...] = ()
    library: int = 0
    left: tuple[int, ...] = ()
    topology: int = 0
    behind_ms: tuple[tuple[int, int], ...] = ()
    identity: str = ""
    doubts: tuple[tuple[int, int], ...] = ()
    fenced: bool = False

    @property
    def teller(self) -> int:
        """The writer that deletions are counted for; 0 where there is no peer to tell."""
        return self.writer if len(self.writers) > 1 else 0

    @staticmethod
    def parse(reply: list[Any]) -> "Region":
        config = facts(reply)
        if b"region" not in config:
            raise NotARegionError()
        try:
            return Region._parse(config)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"bs:config of the server cannot be read ({type(error).__name__}: {error}). Somebody changed "
                "it by hand: compare its fields with those of another region."
            ) from None

    @staticmethod
    def _parse(config: dict[bytes, bytes]) -> "Region":
        writer = int(config[b"writer"])
        others = (int(number) for number in config.get(b"writers", b"").split())
        return Region(
            id=int(config[b"region"]),
            name=config[b"name"].decode("utf-8", "replace"),
            writer=writer,
            id_mode=config[b"id-mode"].decode("ascii", "replace"),
            writers=tuple(sorted({writer, *others})),
            library=int(config.get(b"library", b"0")),
            left=tuple(int(number) for number in config.get(b"left", b"").split()),
            topology=int(config.get(b"topology", b"0")),
            identity=config.get(b"identity", b"").decode("ascii", "replace"),
            behind_ms=tuple(
                (int(field[len(BEHIND) :]), int(ms))
                for field, ms in config.items()
                if field.startswith(BEHIND)
            ),
            doubts=tuple(_window(each) for each in config.get(b"doubts", b"").split()),
            fenced=b"fenced" in config,
        )

    def require_open(self) -> "Region":
        """Itself, for whoever serves clients; while it is fenced LOADING: clients try again later."""
        if self.fenced:
            raise ReplyError(
                f"LOADING region {self.id} ({self.name}) lost its data and is being brought back from its "
                "peers. It serves clients again when `braid region rejoin` is done"
            )
        return self


def _window(text: bytes) -> tuple[int, int]:
    first, _, last = text.partition(b"-")
    return int(first), int(last)


def read_region() -> Plan[Region]:
    """Ask the server who it is. One round trip."""
    try:
        [reply] = yield Batch([("HGETALL", CONFIG)], resend=True)
    except ReplyError as error:
        raise _as_cluster(error) from None
    return Region.parse(reply)


def _as_cluster(error: ReplyError) -> BraidError:
    """Only a node of a cluster sends elsewhere."""
    return ClusterError() if error.code in ("MOVED", "ASK", "CLUSTERDOWN") else error


def is_cluster(info: Any) -> bool:
    """Whether a server is a node of a cluster, by what it said to INFO_CLUSTER; not if it may not say so."""
    return isinstance(info, bytes) and b"cluster_enabled:1" in info


def refuse_cluster() -> Plan[None]:
    """A region is one server. One round trip."""
    [info] = yield Batch([INFO_CLUSTER], resend=True, attempt=True)
    if is_cluster(info):
        raise ClusterError


def read_server() -> Plan[tuple[Region, frozenset[bytes]]]:
    """Ask the server who it is, and which of the newer commands it has. One round trip.

    Who may not ask for commands does without them.
    """
    commands: list[Command] = [("HGETALL", CONFIG), ("COMMAND", "INFO", *NEWER)]
    config, table = yield Batch(commands, resend=True, attempt=True)
    if isinstance(config, ReplyError):
        raise _as_cluster(config)
    known = [] if isinstance(table, ReplyError) else table
    return Region.parse(config), frozenset(name for name, row in zip(NEWER, known, strict=False) if row)


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
    born: strands whose birth stands in this MULTI already.
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
    born: set[Strand] = field(default_factory=set)
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
        return Strand(name, "s", self.region.writer)

    def chosen(self, name: bytes) -> Strand:
        """The home strand for chosen IDs: in its present life, or in the one that it would begin."""
        known = self.recall(name)
        for strand in known.cuts:
            if strand.kind == "c" and strand.writer == self.region.writer:
                return strand if strand in known.strands else strand.next_life
        return Strand(name, "c", self.region.writer)

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

    def must_bear(self, home: Strand) -> bool:
        """Whether an append in a pipeline needs the birth of its strand before it. In a MULTI there is no
        second try, so each strand is born there once, whatever we remember."""
        if self.in_multi:
            return home not in self.born
        return self.pipelined and home not in self.recall(home.name).strands

    def bear(self, home: Strand) -> None:
        self.born.add(home)
        self.expect(home)

    def expect(self, strand: Strand) -> None:
        """A strand will be there by the time the next command runs."""
        self._remember(strand.name, self.recall(strand.name).with_strand(strand))

    def expect_deleted(self, name: bytes) -> None:
        """Nothing of that name will be there by the time the next command runs."""
        self.born = {strand for strand in self.born if strand.name != name}
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


def registry_of(name: bytes) -> Command:
    return ("HGETALL", keys.meta(name))


def afresh(view: View, name: bytes) -> Plan[Registry]:
    """The registry as it is now; in a pipeline it was looked up a moment ago, for all commands at once."""
    if view.pipelined and name in view.known:
        return view.recall(name)
    [reply] = yield Batch([registry_of(name)], resend=True)
    return view.learn(name, reply)


def find(view: View, name: bytes) -> Plan[Registry]:
    """The registry of a stream: from memory, or in one round trip.

    That a stream does not exist is remembered only within a pipeline, which has just looked.
    """
    known = view.recall(name)
    return known if known.exists else (yield from afresh(view, name))


def look(view: View, name: bytes) -> Plan[Registry]:
    """The registry, afresh. A stream that does not exist may be another kind of key: WRONGTYPE."""
    registry = yield from afresh(view, name)
    if not registry.exists:
        yield from refuse_other_types(name)
    return registry


def ask(
    view: View, name: bytes, make: Callable[[Strand], Command]
) -> Plan[tuple[Registry, list[tuple[Strand, Any]]]]:
    """One reading command to every strand, as one snapshot. One round trip where the strands are known.

    The registry is asked last: a strand born while we read shows as missing and we read again, so an
    entry never hides behind a later one.
    """
    registry, answers, _ = yield from ask_also(view, name, make, ())
    return registry, answers


def ask_also(
    view: View, name: bytes, make: Callable[[Strand], Command], also: Sequence[Command]
) -> Plan[tuple[Registry, list[tuple[Strand, Any]], list[Any]]]:
    """`ask`, and what `also` got, errors among it."""
    strands = view.recall(name).strands or (view.minted(name),)
    while True:
        commands = [*map(make, strands), registry_of(name), *also, *type_check(view, name)]
        replies = yield Batch(commands, atomic=view.one_step(len(strands)), resend=True, attempt=True)
        asked = dict(zip(strands, replies, strict=False))
        reply, rest = replies[len(strands)], replies[len(strands) + 1 :]
        kind = rest[len(also) :]
        if isinstance(reply, ReplyError):
            raise reply
        registry = view.learn(name, reply)
        if not reply and any(answer for answer in asked.values() if not isinstance(answer, ReplyError)):
            # The registry was lost (evicted, say) while the home strand is there.
            yield Batch([birth_command(view.minted(name))])
        elif all(strand in asked for strand in registry.strands):
            if not registry.exists:
                yield from refuse_other_types(name, *kind)
            answers = [(strand, asked[strand]) for strand in registry.strands if _answered(asked[strand])]
            return registry, answers, rest[: len(also)]
        strands = registry.strands or strands


def refuse_unseen_types(view: View, name: bytes) -> Plan[None]:
    """The functions check for a plain key of the name; not where it lies in another slot. Then we do.

    In a pipeline it was looked up before: an append that will be refused must not be counted on.
    """
    if view.pipelined and name in view.taken:
        raise ReplyError(WRONGTYPE)
    if not view.pipelined and not keys.shares_slot(name):
        yield from refuse_other_types(name)


def _answered(reply: Any) -> bool:
    """A registered strand whose key is gone (evicted, say) has nothing to tell. Other errors are errors."""
    if isinstance(reply, ReplyError) and not reply.text.startswith("ERR no such key"):
        raise reply
    return not isinstance(reply, ReplyError)


def type_check(view: View, name: bytes) -> list[Command]:
    """In a pipeline other commands follow at once, so the type of a missing stream is asked along."""
    return [("TYPE", name)] if view.pipelined and not view.recall(name).exists else []


def refuse_other_types(name: bytes, kind: bytes | None = None) -> Plan[None]:
    """A stream that does not exist: is there another kind of key with its name?"""
    if kind is None:
        [kind] = yield Batch([("TYPE", name)], resend=True)
    if kind != b"none":
        raise ReplyError(WRONGTYPE)


def is_stale(reply: Any) -> bool:
    """Whether a function did nothing, because the registry is not as we knew it."""
    return isinstance(reply, ReplyError) and reply.code == "BSSTALE"


def delete_command(name: bytes, registry: Registry, teller: int, said: bytes = b"") -> Command:
    """Delete a stream that has no other strands and groups than the registry says.

    said: what the user said, DEL or UNLINK; one who may not say that of the plain key deletes nothing.
    """
    where, words = given(name, registry, registry.strands)
    asked = (said, name) if said else ()
    return ("FCALL", "bs_braid_delete", 1 + len(where), keys.meta(name), *where, teller, *words, *asked)


def birth_command(strand: Strand, stamp: bytes = b"") -> Command:
    """Make sure of a strand. If it has groups to join, that takes the stamp of the bell (else BSSTALE)."""
    plain = (strand.name,) if keys.shares_slot(strand.name) else ()
    where = (keys.meta(strand.name), strand.key, *plain, *bell(strand.name, stamp))
    return ("FCALL", "bs_strand_birth", len(where), *where, strand.label, *((stamp,) if stamp else ()))


def delete(view: View, name: bytes) -> Plan[int]:
    """Delete a stream; look again whenever it has another strand than we knew. 1 if it existed."""
    for _ in range(STALE_TRIES):
        registry = yield from find(view, name)
        if not registry.exists:
            return 0
        [reply] = yield Batch([delete_command(name, registry, view.region.teller)], attempt=True)
        view.forget(name)
        if not isinstance(reply, ReplyError):
            return int(reply)
        if reply.code != "BSSTALE":
            raise reply
    raise ReplyError(f"ERR the strands of {name!r} changed {STALE_TRIES} times while we looked. Try again.")


def exists(name: bytes) -> Plan[bool]:
    """Whether the stream exists. One round trip."""
    [reply] = yield Batch([registry_of(name)], resend=True)
    return Registry.parse(name, reply).exists
