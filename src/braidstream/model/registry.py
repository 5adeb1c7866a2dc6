"""The registry of a stream, parsed: strands, lives, groups and their scope, logs, idempotent production.

Only the engine functions write it. The hash `bs:meta:<tag>`:

    s1 -> 0:+:0-0        strand s of writer 1, first life, exists
    s2 -> 0:-:7-3        strand s of writer 2, deleted when its last ID was 7-3
    c1 -> 2:+:0-0        strand c of writer 1, third life, exists
    t0.1 -> 0:+:0-0      strand of a log, epoch 0, written by region 1; `home` and `log` (model/registry.py)
    g:jobs, h:jobs       a group, and where it starts on later strands (h: since XGROUP SETID)
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from braidstream.errors import HOSTILE, DamagedError
from braidstream.model import ids, keys
from braidstream.model.fields import FIELD_BYTES, LISTS_BYTES, REGISTRY_BYTES, MetaField
from braidstream.model.hashes import share_buckets
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.strand import Command, Strand, strand_of_label

# ----------------------------------------------------------------------------------------------------
#
# The scope of a group: which regions deliver which strands (lua/scope.lua writes it).
#
# e:jobs   2.1 once                 version 2, set in region 1
# w:jobs   1:3.2:0:0 2:4.2:3:0      region 2 owns the strands of region 1 (epoch 3), and gives its own to 3
# w:jobs   1:5.2:0:1                region 2 took the strands of region 1 automatically

ONCE: Final = b"once"
EVERYWHERE: Final = b"everywhere"
_CLAIM: Final = re.compile(rb"([0-9]{1,4}):([0-9]{1,20})\.([0-9]{1,4}):([0-9]{1,4}):([0-9]{1,20})\Z")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who delivers the strands of a region. to: the next owner; the owner delivers nothing new then."""

    epoch: int
    owner: int
    to: int = 0
    until_ms: int = 0

    @property
    def is_automatic(self) -> bool:
        """Taken by a daemon (replication/takeover.py), which gives it back."""
        return self.to == 0 and self.until_ms == 1


@dataclass(frozen=True, slots=True)
class Scope:
    """A group of scope `once`. owners: the claims, by region; without one a region owns its strands."""

    owners: dict[int, Claim] = field(default_factory=dict)

    def owner(self, writer: int, region: Region) -> int:
        """The region that delivers a writer's strands. If it left for good: the smallest remaining one."""
        claim = self.owners.get(writer)
        owner = writer if claim is None else claim.owner
        return min(region.writers) if owner in region.left else owner

    def owned(self, region: Region) -> list[int]:
        """The writers whose strands this region delivers."""
        writers = {*region.everyone, *self.owners}
        return sorted(writer for writer in writers if self.owner(writer, region) == region.writer)

    def is_owned(self, writer: int, region: Region) -> bool:
        return self.owner(writer, region) == region.writer

    def is_delivered(self, writer: int, region: Region) -> bool:
        """Whether new entries of a writer are delivered here: not while they are handed over."""
        claim = self.owners.get(writer)
        return self.is_owned(writer, region) and (claim is None or claim.to in (0, *region.left))


@lru_cache(maxsize=1_000)
def owners_of(value: bytes) -> dict[int, Claim]:
    claims = (_CLAIM.match(word) for word in value.split())
    found = (tuple(map(int, claim.groups())) for claim in claims if claim)
    return {region: Claim(epoch, owner, to, until) for region, epoch, owner, to, until in found}


def is_once(value: bytes) -> bool:
    return value.endswith(b" " + ONCE)


# ----------------------------------------------------------------------------------------------------
#
# Settings of idempotent production, and the message ID that IDMPAUTO computes from the content.
#
# Each change of a setting, and each deletion of the stream, begins a new *era*; messages of earlier eras
# are forgotten. RAISE only lengthens, in the same era. `since` is the era in which the stream was last
# created; its counters start there.

DAY_S: Final = 86_400
_TEXT = re.compile(rb"\A([0-9]+):([0-9]+):([0-9]+):([0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class Settings:
    """The registry field `idmp`: `<era>:<duration s>:<maxsize>:<since>`."""

    era: int = 0
    duration_s: int = 100
    maxsize: int = 100
    since: int = 0

    @staticmethod
    def parse(text: bytes) -> "Settings | None":
        found = _TEXT.match(text)
        return None if found is None else Settings(*map(int, found.groups()))

    @property
    def text(self) -> bytes:
        return b"%d:%d:%d:%d" % (self.era, self.duration_s, self.maxsize, self.since)

    def current(self, *, has_peers: bool) -> "Settings":
        """In a region with peers a stream remembers messages for a day, if nobody chose a duration."""
        is_default = self == Settings(era=self.era, since=self.era)
        return replace(self, duration_s=DAY_S) if has_peers and is_default else self

    def deleted(self) -> "Settings":
        """The settings after the stream is deleted."""
        return Settings(era=self.era + 1, since=self.era + 1)

    def changed(self, duration_s: int | None, maxsize: int | None) -> "Settings":
        """The settings after XCFGSET. Equal values do not begin a new era."""
        new = replace(
            self,
            duration_s=self.duration_s if duration_s is None else duration_s,
            maxsize=self.maxsize if maxsize is None else maxsize,
        )
        return self if new == self else replace(new, era=self.era + 1)

    def raised(self, duration_s: int | None, maxsize: int | None) -> "Settings":
        """The settings after XCFGSET with RAISE."""
        duration_s, maxsize = max(self.duration_s, duration_s or 0), max(self.maxsize, maxsize or 0)
        return replace(self, duration_s=duration_s, maxsize=maxsize)


def iid_of(fields: Sequence[bytes]) -> bytes:
    """The ID that IDMPAUTO gives to a message: 16 bytes that depend on its pairs and not on their order.

    BLAKE2b over the sorted pairs, each preceded by the lengths of its field and value. Sorting is safer than
    adding up the hashes of pairs, which allows forged collisions. The lengths distinguish `ab` `c` from
    `a` `bc`. BLAKE2b is collision-resistant, part of Python's library, and takes about a microsecond.
    The hash is stored: a client with another hash would not recognise these messages.
    """
    pairs = zip(fields[::2], fields[1::2], strict=True)
    parts = sorted(b"%d:%d:%b%b" % (len(field), len(value), field, value) for field, value in pairs)
    return blake2b(b"".join(parts), digest_size=16).digest()


# ----------------------------------------------------------------------------------------------------
#
# A log (RCP 11): a stream whose entries have dense offsets 1, 2, 3, ... given out in one region, its home.
#
# A log has one strand for each *epoch*, the time between two moves of its home. IDs are `0-<offset>`, the
# same in every region. The registry names the epochs and the settings:
#
#     home   0.1:1 1.2:1018:1        epoch 0: region 1 writes, from offset 1; epoch 1: region 2, from 1018,
#                                    after the epoch of region 1
#     log    3.1:1000:0:0            version 3 of the settings, set in region 1: pending, backlog, max age
#
# An epoch ends where the next one begins. Two regions that do not hear each other may both begin the next
# one. The last epoch is then the home, and only the epochs that it follows are part of the log; what others
# have is appended again (`braid log rescue`). A strand whose last ID is `1-0` is sealed: the engine itself
# refuses every further `0-*`.

# Offsets are exact in Lua, JSON and Spark.
LAST_OFFSET: Final = 2**53
# The last ID of a strand that takes no more entries.
SEALED: Final[Id] = (1, 0)
# The names of the two fields of an entry.
TAG: Final = b"t"
ENTRY: Final = b"e"

DEFAULT_PENDING: Final = 1_000
MOST_PENDING: Final = 100_000

_EPOCH = re.compile(rb"([0-9]{1,9})\.([1-9][0-9]{0,3}):([1-9][0-9]{0,15})(?::([1-9][0-9]{0,3}))?\Z")
_SETTINGS = re.compile(rb"([0-9]+)\.([0-9]+):([0-9]+):([0-9]+):([0-9]+)\Z")


def offset_id(offset: int) -> bytes:
    """The ID of an offset."""
    return b"0-%d" % offset


def offset_of(native: bytes) -> int:
    """The offset of an ID."""
    return int(native[2:])


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """The offsets from `first` on were given out by region `writer`.

    after: the writer of the epoch before. 0: there is none.
    """

    number: int
    writer: int
    first: int = 1
    after: int = 0

    def follows(self, other: "Epoch") -> bool:
        return other.number == self.number - 1 and other.writer == self.after


def epochs_of(value: bytes) -> tuple[Epoch, ...]:
    """The epochs of a log, oldest first. The last one is where the home is."""
    found = (_EPOCH.match(word) for word in value.split())
    return tuple(sorted(Epoch(*map(int, epoch.groups(b"0"))) for epoch in found if epoch))


def ends_of(epochs: Sequence[Epoch]) -> list[int]:
    """The last offset of each epoch that counts: before the next one begins. 0: it is not part of the log."""
    ends, end, later = list[int](), LAST_OFFSET, None
    for epoch in reversed(epochs):
        if later is None or later.follows(epoch):
            ends.append(end)
            end, later = min(end, epoch.first - 1), epoch
        else:
            ends.append(0)
    return ends[::-1]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a log. 0 means no limit, for `backlog` and `max_age_ms`.

    pending: how many entries a group may have delivered and not acknowledged.
    backlog: how many entries stay at least; older ones are evicted by TWRITE.
    max_age_ms: entries that are older are evicted.
    """

    pending: int = DEFAULT_PENDING
    backlog: int = 0
    max_age_ms: int = 0

    @staticmethod
    def parse(value: bytes) -> "LogSettings":
        found = _SETTINGS.match(value)
        return LogSettings(*map(int, found.groups()[2:])) if found else LogSettings()


# ----------------------------------------------------------------------------------------------------
# Registry

# The most streams that a client remembers.
CACHE_LIMIT: Final = 10_000

_DEFAULTS: Final = Settings()
_LOG_DEFAULTS: Final = LogSettings()
_KINDS: Final = (keys.GENERATED.encode(), keys.CHOSEN.encode(), keys.LOG.encode())
# Longer replies are not kept with their registry: they would take more memory than they save time.
_KEPT_BYTES: Final = 2_000
# Registries with more fields may have words that keep the engine's Lua busy: about so many are looked at.
_FEW_FIELDS: Final = 256
_SAMPLE: Final = 64
_SAMPLED_BYTES: Final = 1_000
_USER_COUNTED: Final = b" told"
_LABEL = re.compile(rb"\A(?:[sc][0-9]{1,4}|t[0-9]{1,20}\.[0-9]{1,4})\Z")
_STATE = re.compile(rb"\A([0-9]{1,20}):([+-]):([0-9]{1,20}-[0-9]{1,20})\Z")
# Counts of deletions by writer, and those that each creator of a group had seen.
_COUNTS = rb"(?:[0-9]{1,4}\.[0-9]{1,16}(?:,[0-9]{1,4}\.[0-9]{1,16})*+)?+"
_VECTOR = re.compile(_COUNTS + rb"\Z")
_SEEN = re.compile(rb"(?:%b/%b(?: |\Z))*+\Z" % (_COUNTS, _COUNTS))
# `<strand> <value>` ... with a position or ranges
_BY_STRAND = re.compile(rb"(?:[^ ]++ [^ ]++(?: |\Z))*+\Z")
_LISTS: Final = (MetaField.GROUP_RANGES, MetaField.GROUP_PASSED)
# Fields that only functions read, and links pass on.
_FORMS: Final = {
    MetaField.DELETIONS: _VECTOR,
    MetaField.GROUP_DELETIONS: _VECTOR,
    MetaField.GROUP_SEEN: _SEEN,
    MetaField.GROUP_ACKED: _BY_STRAND,
    MetaField.GROUP_RANGES: _BY_STRAND,
    MetaField.GROUP_RETURNED: _BY_STRAND,
}


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry of one stream: the cut of every strand, the strands that exist, where each group starts.

    user_counted: groups whose entries-read count a user set (ENTRIESREAD), so the lag cannot rely on it.
    bell: a stamp that changes whenever a group is created, moved or destroyed, or gets another strand.
    idempotence: its settings; None if the stream never used it.
    native: the engine itself deduplicates messages in this era, as long as the region has no peers.
    epochs: of a log, also of one that was deleted; log: its settings.
    fenced: the plain key of the name is the fence of an adopted stream (lua/native.lua).
    due: when it expires, 0 for never. After that its keys are missing (lua/deadline.lua).
    until: the same in a region with peers: its daemon deletes what is older then; 0 for never.
    scopes: groups of scope `once`; all others deliver every strand.
    passes: by group, strands with entries ahead that other regions have acknowledged (lua/ranges.lua).
    ahead_ms: by label, how far a strand's last entry was ahead of our clock on arrival, if beyond the bound.
    mends: by label, the life of a strand and the range that was restored in it after a loss; and how often
    entries were restored.
    lost: by label, up to where a strand was really deleted. Its key was lost, and its cut is where it began
    again.
    trims: by label, the life of a strand, and up to where it was trimmed entry by entry.
    damaged: why it cannot be read (`parse_each`); everything else is empty then.
    reply: what it was parsed from, if that is short.
    """

    cuts: dict[Strand, Id] = field(default_factory=dict)
    strands: tuple[Strand, ...] = ()
    groups: dict[bytes, Id] = field(default_factory=dict)
    user_counted: frozenset[bytes] = frozenset()
    bell: bytes = b""
    idempotence: Settings | None = None
    native: bool = False
    ahead_ms: dict[bytes, int] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()
    log: LogSettings = _LOG_DEFAULTS
    fenced: bool = False
    due: int = 0
    until: int = 0
    scopes: dict[bytes, Scope] = field(default_factory=dict)
    passes: dict[bytes, frozenset[bytes]] = field(default_factory=dict)
    mends: dict[bytes, bytes] = field(default_factory=dict)
    lost: dict[bytes, Id] = field(default_factory=dict)
    trims: dict[bytes, bytes] = field(default_factory=dict)
    damaged: DamagedError | None = None
    # Not an argument, so that `replace` drops it: a changed registry is not what the reply says.
    reply: list[Any] = field(default_factory=list, init=False, compare=False, repr=False)

    def parsed_again(self, name: bytes, reply: list[Any]) -> "Registry":
        """The registry by a newer reply: this one, if nothing has changed."""
        return self if reply and reply == self.reply else Registry.parse(name, reply)

    @staticmethod
    def parse(name: bytes, reply: list[Any]) -> "Registry":
        """DamagedError if a field cannot be read, or is beyond the limits."""
        pairs = list(zip(reply[::2], reply[1::2], strict=True))
        size = sum(map(len, reply))
        if size > FIELD_BYTES:
            _check_sizes(name, pairs, size)
        if len(pairs) > _FEW_FIELDS:
            _check_hashes(name, reply)
        try:
            return Registry._parse(name, pairs, reply if size <= _KEPT_BYTES else [])
        except (ValueError, IndexError):
            raise DamagedError(name, keys.meta(name), _damaged_field(name, pairs)) from None

    @staticmethod
    def _parse(name: bytes, pairs: list[tuple[bytes, bytes]], kept: list[Any]) -> "Registry":
        single, by_prefix = dict[bytes, bytes](), defaultdict[bytes, dict[bytes, bytes]](dict)
        known = list[tuple[Strand, Id, bool]]()
        for label, value in pairs:
            prefix = label[:2]
            if (form := _FORMS.get(prefix)) is not None and not form.match(value):
                raise ValueError(label)
            if prefix.endswith(b":"):
                by_prefix[prefix][label[2:]] = value
            elif not label.startswith(_KINDS):
                single[label] = value
            elif _LABEL.match(label):
                known.append(_registered(name, label, value))
        starts = [*by_prefix[MetaField.GROUP].items(), *by_prefix[MetaField.GROUP_MOVED].items()]
        owners, mends = by_prefix[MetaField.GROUP_OWNERS], by_prefix[MetaField.MENDED]
        restores = by_prefix[MetaField.RESTORES]
        idempotence = Settings.parse(single.get(MetaField.IDEMPOTENCE, b""))
        homes, log, due = (single.get(MetaField.HOMES), single.get(MetaField.LOG), single.get(MetaField.DUE))
        version, until = single.get(MetaField.UNTIL, b"0 0").split()
        ended, step = single.get(MetaField.ENDED, b"0 0").split()
        registry = Registry(
            cuts={strand: cut for strand, cut, _ in known},
            strands=_ordered(strand for strand, _, is_there in known if is_there),
            groups=dict(
                sorted({group: ids.native(value.split(b" ", 1)[0]) for group, value in starts}.items())
            ),
            user_counted=frozenset(group for group, value in starts if value.endswith(_USER_COUNTED)),
            bell=single.get(MetaField.BELL, b""),
            idempotence=idempotence,
            native=idempotence is not None and single.get(MetaField.NATIVE) == b"%d" % idempotence.era,
            ahead_ms={label: int(value) for label, value in by_prefix[MetaField.AHEAD_MS].items()},
            epochs=epochs_of(homes) if homes else (),
            log=LogSettings.parse(log) if log else _LOG_DEFAULTS,
            fenced=MetaField.FENCE in single,
            due=int(due.split()[0]) if due else 0,
            until=0 if ended == version and step != b"0" else int(until),
            scopes={
                group: Scope(owners_of(owners.get(group, b"")))
                for group, value in by_prefix[MetaField.GROUP_SCOPE].items()
                if is_once(value)
            },
            passes={
                group: frozenset(value.split()[::2])
                for group, value in by_prefix[MetaField.GROUP_PASSED].items()
                if value
            },
            mends={label: join_mend(mends.get(label), restores.get(label)) for label in {*mends, *restores}},
            lost={label: ids.native(value) for label, value in by_prefix[MetaField.LOST].items()},
            trims=by_prefix[MetaField.TRIMMED],
        )
        object.__setattr__(registry, "reply", kept)
        return registry

    @property
    def exists(self) -> bool:
        return bool(self.strands)

    @property
    def is_listed(self) -> bool:
        """Whether lists of streams show it. A damaged one is a stream, too."""
        return self.exists or self.damaged is not None

    @property
    def is_log(self) -> bool:
        """Whether it is a log: one that exists, or one whose entries have not arrived here yet."""
        home = self.home
        if home is None:
            return False
        known = {(strand.life, strand.writer) for strand in self.cuts if strand.is_of_log}
        is_expected = (home.number, home.writer) not in known
        return is_expected or any(strand.is_of_log for strand in self.strands)

    @property
    def home(self) -> Epoch | None:
        """The epoch that a log is in; None if it never was one."""
        return self.epochs[-1] if self.epochs else None

    def former_homes(self, region: Region) -> list[int]:
        """The other regions that were the home of a log and are peers."""
        writers = {epoch.writer for epoch in self.epochs}
        return sorted(writers.intersection(region.writers) - {region.writer})

    @property
    def settings(self) -> Settings:
        return self.idempotence or _DEFAULTS

    def owned(self, group: bytes, region: Region) -> tuple[Strand, ...]:
        """The strands whose pending entries a group has in this region."""
        scope = self.scopes.get(group)
        if scope is None:
            return self.strands
        return tuple(strand for strand in self.strands if scope.is_owned(strand.writer, region))

    def delivered(self, group: bytes, region: Region) -> tuple[Strand, ...]:
        """The strands whose new entries a group delivers in this region."""
        scope = self.scopes.get(group)
        if scope is None:
            return self.strands
        return tuple(strand for strand in self.strands if scope.is_delivered(strand.writer, region))

    def end(self, strand: Strand, last: Id) -> Id:
        """The last user ID of a strand; 0-0 if it has had no entry since its cut.

        A strand of a log ends with its epoch: a sealed one has a higher last ID, and a former home wrote on.
        """
        if self.cuts.get(strand) == last:
            return ids.ZERO
        if strand.is_of_log:
            return min(last, (0, self._last_offset(strand)))
        return strand.user(last)

    def _last_offset(self, strand: Strand) -> int:
        for epoch, last in zip(self.epochs, ends_of(self.epochs), strict=True):
            if (epoch.number, epoch.writer) == (strand.life, strand.writer):
                return last
        return LAST_OFFSET

    def with_log(self, home: Strand) -> "Registry":
        """This registry with the home strand of a log."""
        epochs = self.epochs or (Epoch(home.life, home.writer),)
        return replace(self.with_strand(home), epochs=epochs)

    def with_strand(self, strand: Strand) -> "Registry":
        """This registry with a strand (in this life) that exists."""
        if strand in self.strands:
            return self
        cuts = {each: cut for each, cut in self.cuts.items() if each.label != strand.label}
        others = [each for each in self.strands if each.label != strand.label]
        cuts[strand] = self.cuts.get(strand, ids.ZERO)
        return replace(self, cuts=cuts, strands=_ordered([*others, strand]))


def parse_each(names: Iterable[bytes], replies: Iterable[list[Any]]) -> dict[bytes, Registry]:
    """The registries of many streams. One that is damaged is a value like the others: it ends no loop."""
    return {name: _parse_or_damaged(name, reply) for name, reply in zip(names, replies, strict=True)}


def _parse_or_damaged(name: bytes, reply: list[Any]) -> Registry:
    try:
        return Registry.parse(name, reply)
    except DamagedError as error:
        return Registry(damaged=error)


def _check_sizes(name: bytes, pairs: list[tuple[bytes, bytes]], size: int) -> None:
    """DamagedError if a field is too long, or all of them together; then the longest one is named."""
    for label, value in pairs:
        longest = LISTS_BYTES if label.startswith(_LISTS) else FIELD_BYTES
        if len(label) > FIELD_BYTES or len(value) > longest:
            raise DamagedError(name, keys.meta(name), label)
    if size > REGISTRY_BYTES:
        raise DamagedError(name, keys.meta(name), max(pairs, key=lambda pair: sum(map(len, pair)))[0])


def _check_hashes(name: bytes, reply: list[bytes]) -> None:
    """DamagedError if the engine's Lua would be busy with the words of this registry, or with what functions
    get besides: the names of its groups, and the keys of their turns."""
    fields, values = _sample(reply[::2]), _sample(reply[1::2])
    groups = _sample([field[2:] for field in reply[::2] if field.startswith(MetaField.GROUP)])
    for sample in (fields, values, groups, [keys.turn(name, group) for group in groups]):
        if share_buckets({*sample}):
            raise DamagedError(name, keys.meta(name), fields[0], HOSTILE)


def _sample(words: list[bytes]) -> list[bytes]:
    """Some of the short ones. In a reply their order is random: the engine has a hash table of so many."""
    return [word for word in words[:: 1 + len(words) // _SAMPLE] if len(word) <= _SAMPLED_BYTES]


def _damaged_field(name: bytes, pairs: list[tuple[bytes, bytes]]) -> bytes:
    """The first field that cannot be read alone."""
    for pair in pairs:
        try:
            Registry._parse(name, [pair], [])
        except (ValueError, IndexError):
            return pair[0]
    return b""


def join_mend(where: bytes | None, count: bytes | None) -> bytes:
    """`m:` and `y:` of a strand as one value. It changes whenever entries are restored."""
    return b" ".join(each for each in (where, count) if each)


def mended_range(noted: bytes, life: int) -> tuple[Id, Id] | None:
    """The range of `m:`: the life of a strand, and the first and last ID that were restored in it."""
    words = noted.split()
    if len(words) < 3 or int(words[0]) != life:
        return None
    return ids.native(words[1]), ids.native(words[2])


def trimmed_upto(noted: bytes, life: int) -> Id:
    """Of `d:`: up to where a strand was trimmed entry by entry; 0-0 if it was not, in this life."""
    of_life, _, upto = noted.partition(b" ")
    return ids.native(upto) if upto and int(of_life) == life else ids.ZERO


def bell(name: bytes, stamp: bytes) -> tuple[bytes, ...]:
    """The key of the bell with this stamp, the last key of a function call; no key without a stamp."""
    return (keys.bell(name, stamp),) if stamp else ()


def named_keys(
    name: bytes, registry: Registry, strands: Iterable[Strand] = ()
) -> tuple[tuple[bytes, ...], Command]:
    """The keys of strands, of all groups' turns and of the bell; and their names, as functions read them."""
    named = {strand.registration: strand.key for strand in strands}
    named.update({MetaField.GROUP + group: keys.turn(name, group) for group in registry.groups})
    return (*named.values(), *bell(name, registry.bell)), (len(named), *named, registry.bell)


def moved_keys(name: bytes, registry: Registry) -> tuple[tuple[bytes, ...], Command]:
    """The same of all strands, and of the fence, which a single deletion removes with the stream."""
    where, (count, *rest) = named_keys(name, registry, registry.strands)
    if not (registry.fenced and keys.shares_slot(name)):
        return where, (count, *rest)
    return (name, *where), (int(count) + 1, MetaField.FENCE, *rest)


def group_start(start: Id, *, user_counted: bool = False) -> bytes:
    """Where a group starts on later strands, translated so that Lua needs no arithmetic."""
    bound = ids.writer_of(start)
    low, high = ids.floor_of(start, bound), ids.floor_of(start, bound + 1)
    words = b"%b %b %b %d" % (ids.text(start), ids.text(low), ids.text(high), bound)
    return words + _USER_COUNTED if user_counted else words


def acked(value: bytes) -> dict[bytes, bytes]:
    """Up to where a group has acknowledged each strand, by registration."""
    words = value.split()
    return dict(zip(words[::2], words[1::2], strict=False))


@lru_cache(maxsize=CACHE_LIMIT)
def _registered(name: bytes, label: bytes, value: bytes) -> tuple[Strand, Id, bool]:
    """A strand's field in the registry: (strand, cut, whether it exists). It changes rarely."""
    state_of = _STATE.match(value)
    if state_of is None:
        raise ValueError(label)
    life, state, cut = state_of.groups()
    return strand_of_label(name, label, int(life)), ids.native(cut), state == b"+"


def _ordered(strands: Iterable[Strand]) -> tuple[Strand, ...]:
    return tuple(sorted(strands, key=lambda strand: (strand.writer, strand.kind, strand.life)))
