"""Which region a server is (`bs:config`, parsed), and the heartbeats of regions."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.errors import ConfigError, LostPartError, NotARegionError, ReplyError
from braidstream.model.fields import FIELD_BYTES, ConfigField
from braidstream.model.ids import LAST_WRITER
from braidstream.model.keys import CONFIG
from braidstream.model.strand import facts

ID_MODES: Final = ("strict", "semi-strict", "liberal")
# What `durability` may be, in braid.toml and by `braid tune`.
DURABILITY: Final = r"^(replicas:[1-9][0-9]?|aof|none)$"
# The value of `fenced` on a server that was no region: it was flushed or is new.
FLUSHED: Final = b"flushed"
_LONGEST: Final = 20  # digits of a number: an ID may have the largest time
# What `braid init` writes, in this order: the first fields by one command.
_WRITTEN: Final = (
    (
        ConfigField.REGION,
        ConfigField.NAME,
        ConfigField.ID_MODE,
        ConfigField.WRITER,
        ConfigField.WRITERS,
        ConfigField.TOPOLOGY,
    ),
    (ConfigField.IDENTITY,),
    (ConfigField.LIBRARY,),
)
# Written by a region in use; the last two only by its daemon, after `run` and `alive`.
_IN_USE: Final = (
    ConfigField.MET,
    ConfigField.LEFT,
    ConfigField.ADOPTED,
    ConfigField.RUN,
    ConfigField.ALIVE,
    ConfigField.DOUBTS,
    ConfigField.GENERATED,
)


def lost_fields(config: Collection[bytes]) -> tuple[bytes, ...]:
    """Fields that were in `bs:config` and are not there any more: the server lost data.

    A later field shows that all before it were written. So an interrupted `braid init` has lost nothing.
    """
    steps = [*_WRITTEN, _IN_USE]
    reached = max((at for at, step in enumerate(steps) if any(each in config for each in step)), default=0)
    needed = [each for step in _WRITTEN[: reached + 1] for each in step] if config else []
    if any(each in config for each in _IN_USE[-4:]):
        needed += [ConfigField.RUN, ConfigField.ALIVE]
    return tuple(each for each in needed if each not in config)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server process behind a connection. commands: the newer commands that it has.

    may_list_commands: whether the user has the right to COMMAND INFO.
    """

    commands: frozenset[bytes] = frozenset()
    may_list_commands: bool = True
    run_id: bytes = b""
    is_primary: bool = False
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """The identity and the settings of a region.

    left: writers of regions that were removed for good. topology: counts changes of the writers.
    met_ms: when the region got its first peer. Clients write a journal since they know of it.
    identity: of the server that was made this region; its replicas and backups share it.
    behind_ms: writers whose clock is behind ours by more than the bound, and by how much.
    doubts: time windows (ms) whose entries may be lost, because another process has served the region since.
    last_generated: (the highest ms of our IDs, the run ID of the server that generated it, whether that was
    ahead of its clock).
    adopted: native streams were adopted, so a plain key may be a fence (lua/native.lua).
    is_cluster: it is a cluster, so every node holds the facts (lua/cluster_facts.py).
    fenced: the region lost its data and refuses clients until it is restored.
    flushed: it is fenced, and all that its server has was written after the loss.
    """

    id: int
    name: str
    writer: int
    id_mode: str = "strict"
    writers: tuple[int, ...] = ()
    library: int = 0
    left: tuple[int, ...] = ()
    topology: int = 0
    met_ms: int = 0
    behind_ms: tuple[tuple[int, int], ...] = ()
    identity: str = ""
    doubts: tuple[tuple[int, int], ...] = ()
    last_generated: tuple[int, bytes, bool] = (0, b"", False)
    fenced: bool = False
    flushed: bool = False
    adopted: bool = False
    is_cluster: bool = False

    @property
    def peers(self) -> tuple[int, ...]:
        """The numbers of the other regions that it knows."""
        return tuple(number for number in self.writers if number != self.writer)

    @property
    def everyone(self) -> tuple[int, ...]:
        """The writers of all regions that it knows, itself and those that were removed for good too."""
        return (*self.writers, *self.left)

    @property
    def journal_writer(self) -> int:
        """The writer whose journal takes deletions; 0 if the region has no peers."""
        return self.writer if len(self.writers) > 1 else 0

    @staticmethod
    def parse(reply: list[Any], *, is_cluster: bool = False) -> "Region":
        """is_cluster: these are the facts of a cluster (lua/cluster_facts.py), never lost in part."""
        config = facts(reply)
        if not is_cluster and (lost := lost_fields(config)):
            raise LostPartError(lost, config.get(ConfigField.NAME, b""))
        if ConfigField.REGION not in config:
            raise NotARegionError()
        if (size := sum(map(len, reply))) > FIELD_BYTES:
            raise ConfigError(f"{CONFIG.decode()} of the server has {size:,} bytes. Who wrote so much to it?")
        try:
            return Region._parse(config, is_cluster=is_cluster)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"{CONFIG.decode()} of the server cannot be read ({type(error).__name__}: {error!s:.100}). "
                "Was it changed by hand? Compare its fields with those of another region."
            ) from None

    @staticmethod
    def _parse(config: dict[bytes, bytes], *, is_cluster: bool) -> "Region":
        writer = _writer(config[ConfigField.WRITER])
        others = map(_writer, config.get(ConfigField.WRITERS, b"").split())
        return Region(
            id=_number(config[ConfigField.REGION]),
            name=config[ConfigField.NAME].decode("utf-8", "replace"),
            writer=writer,
            id_mode=config[ConfigField.ID_MODE].decode("ascii", "replace"),
            writers=tuple(sorted({writer, *others})),
            library=_number(config.get(ConfigField.LIBRARY, b"0")),
            left=tuple(dict.fromkeys(map(_writer, config.get(ConfigField.LEFT, b"").split()))),
            topology=_number(config.get(ConfigField.TOPOLOGY, b"0")),
            met_ms=_number(config.get(ConfigField.MET, b"0")),
            identity=config.get(ConfigField.IDENTITY, b"").decode("ascii", "replace"),
            behind_ms=tuple(
                (_number(field[len(ConfigField.BEHIND) :]), _number(ms))
                for field, ms in config.items()
                if field.startswith(ConfigField.BEHIND)
            ),
            doubts=tuple(_window(each) for each in config.get(ConfigField.DOUBTS, b"").split()),
            last_generated=_last_generated(config.get(ConfigField.GENERATED, b"0  -")),
            fenced=ConfigField.FENCED in config,
            flushed=config.get(ConfigField.FENCED) == FLUSHED,
            adopted=ConfigField.ADOPTED in config,
            is_cluster=is_cluster,
        )

    def may_repeat_ids(self, server: ServerInfo) -> bool:
        """Whether the region's IDs were ahead of the clock and another process serves it now.

        That process may have lost the latest IDs and would generate them again. The daemon must raise the
        home strands first.
        """
        ms, _, ahead = self.last_generated
        return bool(ms) and self._is_served_by_another(server) and (ahead or ms >= server.now_ms)

    def may_repeat_offsets(self, server: ServerInfo) -> bool:
        """Whether another process serves the region now, so that it may have lost the latest entries of logs.

        Peers may have them, and the process would give their offsets again.
        """
        return bool(self.peers) and self._is_served_by_another(server)

    def _is_served_by_another(self, server: ServerInfo) -> bool:
        """Not by the process that our daemon knows."""
        _, by, _ = self.last_generated
        return server.is_primary and bool(by) and server.run_id not in (b"", by)

    def require_open(self) -> "Region":
        """This region; LOADING while it is fenced, so that clients retry later."""
        if self.fenced:
            raise ReplyError(
                f"LOADING region {self.id} ({self.name}) lost its data and is being restored from its "
                "peers. It serves clients again when `braid region rejoin` is done"
            )
        return self


def _number(text: bytes) -> int:
    if len(text) > _LONGEST:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)


def _writer(text: bytes) -> int:
    number = _number(text)
    if not 1 <= number <= LAST_WRITER:
        raise ValueError(f"writer {number} is not between 1 and {LAST_WRITER}")
    return number


def _last_generated(text: bytes) -> tuple[int, bytes, bool]:
    ms, _, rest = text.partition(b" ")
    by, _, ahead = rest.rpartition(b" ")
    return _number(ms), by, ahead == b"+"


def _window(text: bytes) -> tuple[int, int]:
    first, _, last = text.partition(b"-")
    return _number(first), _number(last)


# ----------------------------------------------------------------------------------------------------
#
# Heartbeats of regions, which daemons exchange: `bs:beats` has the latest of each region.
#
# 2   1794800000123          region 2 was alive at this time of its own clock; only whether it moves counts
# 3   1794800000456 off      region 3 was told to stop: its silence means nothing

_OFF = b" off"
_DIGITS = 15  # of milliseconds, until the year 33658


@dataclass(frozen=True, slots=True, order=True)
class Beat:
    """The later of two is the greater."""

    ms: int
    is_off: bool = False

    @property
    def text(self) -> bytes:
        return b"%d%b" % (self.ms, _OFF if self.is_off else b"")


def read_beats(reply: list[Any]) -> dict[int, Beat]:
    """The hash. A field that is not a beat is ignored: a newer version may have written it."""
    found = dict[int, Beat]()
    for region, text in facts(reply).items():
        number = text.removesuffix(_OFF)
        if region.isdigit() and number.isdigit() and max(len(region), len(number)) <= _DIGITS:
            found[int(region)] = Beat(int(number), text != number)
    return found


def newer(beats: dict[int, Beat], known: dict[int, Beat]) -> dict[int, Beat]:
    """The beats that are later than the known ones."""
    return {region: beat for region, beat in beats.items() if region not in known or known[region] < beat}


@dataclass(slots=True)
class _Pulse:
    """moved_s: when the beat last moved. since_s: since when it moves without a pause."""

    beat: Beat
    moved_s: float
    since_s: float


@dataclass(slots=True)
class Pulses:
    """Whether the beats of the regions move. Times are of a monotonic clock, in seconds.

    after_s: a region whose beat has not moved for this time is dead. One that has moved for this time
    without a pause of half of it is steady.
    """

    after_s: float
    _pulses: dict[int, _Pulse] = field(default_factory=dict)

    def note(self, beats: dict[int, Beat], now_s: float) -> None:
        for region, beat in beats.items():
            known = self._pulses.get(region)
            if known is None:
                self._pulses[region] = _Pulse(beat, now_s, now_s)
            elif known.beat < beat:
                if now_s - known.moved_s > self.after_s / 2:
                    known.since_s = now_s
                known.beat, known.moved_s = beat, now_s

    def begin_again(self, now_s: float) -> None:
        """We were away and received no beats: no region counts as dead or steady because of that."""
        for pulse in self._pulses.values():
            pulse.moved_s = pulse.since_s = now_s

    def known(self, regions: Iterable[int]) -> set[int]:
        """Those that beat, or did. A region that was never heard of is neither alive nor dead."""
        return {each for each in regions if each in self._pulses and not self._pulses[each].beat.is_off}

    def alive(self, regions: Iterable[int], now_s: float) -> set[int]:
        found = self.known(regions)
        return {each for each in found if now_s - self._pulses[each].moved_s < self.after_s}

    def steady(self, regions: Iterable[int], now_s: float) -> set[int]:
        alive = self.alive(regions, now_s)
        return {each for each in alive if now_s - self._pulses[each].since_s >= self.after_s}
