"""TWRITE, TEVICT, TCFGSET: what changes a log, which has dense offsets (RCP 11).

TWRITE is one native `XADD strand NOMKSTREAM 0-* t tag e entry`: the engine itself counts the offsets.
Several entries are a MULTI of them, so their offsets follow each other. With IDMP they are one function call,
which also stores the ID of the message (lua/idempotence.lua).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from braidstream.commands import xadd_idempotent
from braidstream.commands.arguments import (
    SYNTAX,
    Argv,
    Message,
    fail,
    integer,
    option,
    parse_message,
    shown,
    wrong_arity,
)
from braidstream.errors import HomeError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.keys import LOG
from braidstream.model.registry import (
    ENTRY,
    LAST_OFFSET,
    MOST_PENDING,
    SEALED,
    TAG,
    Registry,
    ends_of,
    offset_id,
    offset_of,
)
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.append import ensure_command, native_command
from braidstream.plan.create import append_run
from braidstream.plan.lookup import (
    WRONGTYPE,
    find_registry,
    is_stale,
    offsets_held,
    read_registry,
    refuse_other_types,
    require_region,
)
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import Retries
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
# The words of the log commands, parsed. Options are case-blind, in any order after the positional words.

# How many entries one TWRITE takes.
MOST_ENTRIES: Final = 10_000
_LONG_FORM: Final = (b"ENTRIES", b"BACKLOG", b"MAXAGE", b"IDMP")


def _number(word: bytes, what: str, least: int = 0, most: int = LAST_OFFSET) -> int:
    refusal = f"ERR {what} is not an integer or out of range"
    value = integer(word, refusal)
    return value if least <= value <= most else fail(refusal)


@dataclass(frozen=True, slots=True)
class Write:
    """TWRITE. backlog: how many entries stay at least; None: as the log is set.

    max_age_ms: older entries are evicted; None: as the log is set.
    many: the long form, which answers a list of offsets.
    message: written once, however often it is sent.
    """

    entries: list[tuple[bytes, bytes]]
    backlog: int | None = None
    max_age_ms: int | None = None
    many: bool = False
    message: Message | None = None


def parse_write(argv: Argv) -> Write:
    """TWRITE key [IDMP producer iid] tag entry
    TWRITE key [IDMP producer iid] [BACKLOG count] [MAXAGE ms] ENTRIES tag entry [tag entry ...]

    Four words, or seven with IDMP, are the short form, even if the tag is `ENTRIES`.
    """
    at, limits, message = 2, dict[bytes, int](), None
    if len(argv) == 4:
        return Write([(argv[2], argv[3])])
    if option(argv[2]) not in _LONG_FORM:
        raise wrong_arity("twrite")
    if len(argv) == 7 and option(argv[2]) == b"IDMP":
        return Write([(argv[5], argv[6])], message=parse_message(argv, 2, b"IDMP"))
    while at < len(argv) and (word := option(argv[at])) != b"ENTRIES":
        if word == b"IDMP" and at + 2 < len(argv):
            if message is not None:
                fail("ERR syntax error, IDMP specified multiple times")
            message, at = parse_message(argv, at, word), at + 3
            continue
        if word not in (b"BACKLOG", b"MAXAGE") or at + 1 == len(argv):
            fail(SYNTAX)
        limits[word], at = _number(argv[at + 1], word.decode().lower()), at + 2
    words = argv[at + 1 :]
    if not words or len(words) % 2:
        raise wrong_arity("twrite")
    if len(words) > 2 * MOST_ENTRIES:
        fail(f"ERR too many entries (at most {MOST_ENTRIES})")
    entries = list(zip(words[::2], words[1::2], strict=True))
    return Write(entries, limits.get(b"BACKLOG"), limits.get(b"MAXAGE"), many=True, message=message)


@dataclass(frozen=True, slots=True)
class Read:
    """TREAD. skip: leave out missing entries and go on to the next ones.

    group: read what the group has not delivered yet; from_last: a new group starts after the last entry.
    retry_ms, expire_ms: entries must be acknowledged; 0 without RETRY.
    """

    offset: int
    count: int
    block_ms: int | None = None
    with_info: bool = False
    skip: bool = False
    group: bytes | None = None
    from_last: bool = False
    retry_ms: int = 0
    expire_ms: int = 0

    @property
    def policy(self) -> bytes:
        """The name of the native consumer."""
        return b"%d:%d" % (self.retry_ms, self.expire_ms)


def parse_read(argv: Argv) -> Read:
    """TREAD key offset count
    [BLOCK ms] [GROUP name [FIRST|LAST]] [RETRY retry-ms expire-ms] [WITHINFO] [SKIP]
    """
    offset, count = max(_number(argv[2], "offset"), 1), _number(argv[3], "count")
    block_ms, flags, at = None, set[bytes](), 4
    group, from_last, times = None, False, (0, 0)
    while at < len(argv):
        word = option(argv[at])
        if word == b"BLOCK" and at + 1 < len(argv):
            block_ms = integer(argv[at + 1], "ERR timeout is not an integer or out of range")
            if block_ms < 0:
                fail("ERR timeout is negative")
            at += 1
        elif word == b"GROUP" and at + 1 < len(argv):
            group, at = argv[at + 1], at + 1
            if at + 1 < len(argv) and option(argv[at + 1]) in (b"FIRST", b"LAST"):
                from_last, at = option(argv[at + 1]) == b"LAST", at + 1
        elif word == b"RETRY" and at + 2 < len(argv):
            times, at = (_time(argv[at + 1]), _time(argv[at + 2])), at + 2
        elif word in (b"WITHINFO", b"SKIP"):
            flags.add(word)
        else:
            fail(SYNTAX)
        at += 1
    if times != (0, 0) and group is None:
        fail("ERR RETRY needs GROUP")
    return Read(
        offset, count, block_ms, b"WITHINFO" in flags, b"SKIP" in flags, group, from_last, times[0], times[1]
    )


def _time(word: bytes) -> int:
    refusal = "ERR retry-ms and expire-ms must be positive"
    value = integer(word, refusal)
    return value if 0 < value <= LAST_OFFSET else fail(refusal)


def parse_ack(argv: Argv) -> tuple[list[int], list[tuple[int, int]]]:
    """TACK key group offset|from-to [...]: the offsets, and the ranges."""
    offsets, ranges = list[int](), list[tuple[int, int]]()
    for word in argv[3:]:
        first, dash, last = word.partition(b"-")
        if not dash:
            offsets.append(_number(word, "offset"))
            continue
        low, high = _number(first, "offset"), _number(last, "offset")
        if low > high:
            fail(f"ERR invalid range '{shown(word)}'")
        ranges.append((low, high))
    return offsets, ranges


@dataclass(frozen=True, slots=True)
class Evict:
    """TEVICT: everything up to an offset, or all but the last entries, or what is so old."""

    upto: int | None = None
    keep: int | None = None
    older_ms: int | None = None


def parse_evict(argv: Argv) -> Evict:
    """TEVICT key offset | -count | OLDER ms"""
    if len(argv) == 4:
        if option(argv[2]) != b"OLDER":
            fail(SYNTAX)
        return Evict(older_ms=_number(argv[3], "age"))
    if option(argv[2]) == b"OLDER":
        fail(SYNTAX)
    if argv[2].startswith(b"-"):
        return Evict(keep=_number(argv[2][1:], "count"))
    return Evict(upto=_number(argv[2], "offset"))


@dataclass(frozen=True, slots=True)
class Configure:
    """TCFGSET. None: as it is."""

    pending: int | None = None
    backlog: int | None = None
    max_age_ms: int | None = None


def parse_configure(argv: Argv) -> Configure:
    """TCFGSET key [PENDING count] [BACKLOG count] [MAXAGE ms]"""
    pending = backlog = max_age_ms = None
    if len(argv) % 2:
        raise wrong_arity("tcfgset")
    for word, value in zip(argv[2::2], argv[3::2], strict=True):
        if option(word) == b"PENDING":
            pending = _number(value, "pending", 1, MOST_PENDING)
        elif option(word) == b"BACKLOG":
            backlog = _number(value, "backlog")
        elif option(word) == b"MAXAGE":
            max_age_ms = _number(value, "maxage")
        else:
            fail(SYNTAX)
    return Configure(pending, backlog, max_age_ms)


# ----------------------------------------------------------------------------------------------------
#
# A log, looked up: its registry, the part of its strands that counts, and its first and last offset here.
#
# An epoch ends where the next one begins. What a strand has beyond that was written by a region that was no
# longer the home, and is not part of the log:
#
#     t0.1    1 2 3 4 5 6 | 7 8           region 1 went on after it was declared lost
#     t1.2              7 8 9 10          epoch 1 begins at 7


def find_log(view: View, name: bytes) -> Plan[Registry]:
    """The registry of a log, which may not exist. WRONGTYPE if the name is a stream or a plain key."""
    registry = yield from find_registry(view, name)
    if registry.exists and not registry.is_log and view.carriage.may_look_again:
        # We are about to refuse a stream: it may be a log by now.
        view.forget(name)
        registry = yield from read_registry(view, name)
    yield from refuse_others(view, name, registry)
    return registry


def refuse_others(view: View, name: bytes, registry: Registry) -> Plan[None]:
    if registry.is_log:
        return
    if registry.exists:
        fail(WRONGTYPE)
    if not view.carriage.has_looked:
        yield from refuse_other_types(name)
    elif name in view.plain_keys:
        fail(WRONGTYPE)


@dataclass(frozen=True, slots=True)
class Segment:
    """The offsets of a log that one strand has, both inclusive."""

    strand: Strand
    first: int
    last: int

    @property
    def is_open(self) -> bool:
        """Whether entries are still written to it."""
        return self.last == LAST_OFFSET

    def within(self, first: int, last: int) -> "Segment | None":
        """The part between two offsets."""
        low, high = max(self.first, first), min(self.last, last)
        return Segment(self.strand, low, high) if low <= high else None

    def xrange(self, *limit: str | int) -> Command:
        return ("XRANGE", self.strand.key, offset_id(self.first), offset_id(self.last), *limit)

    def xrevrange(self, *limit: str | int) -> Command:
        return ("XREVRANGE", self.strand.key, offset_id(self.last), offset_id(self.first), *limit)


def segments(name: bytes, registry: Registry) -> list[Segment]:
    """The segments of a log, oldest first. The last one has no end."""
    found = zip(registry.epochs, ends_of(registry.epochs), strict=True)
    return [
        Segment(Strand(name, LOG, epoch.writer, epoch.number), epoch.first, last)
        for epoch, last in found
        if epoch.first <= last
    ]


@dataclass(frozen=True, slots=True)
class Extent:
    """The first and the last offset that this region has. An empty log: last + 1 and last.

    ends_in: the segment that the log ends in here; None if there is no log.
    """

    first: int
    last: int
    ends_in: Segment | None = None

    @property
    def limit(self) -> int:
        """Entries beyond have arrived before earlier ones."""
        return LAST_OFFSET if self.ends_in is None else self.ends_in.last


def extent_of(registry: Registry, parts: list[Segment], infos: list[Any]) -> Extent:
    """infos: the replies of XINFO STREAM for each segment, errors as values.

    The log ends where a segment is not complete: what follows it has arrived before the rest of it.
    """
    first, last, ends_in = 0, 0, None
    for part, reply in zip(parts, infos, strict=True):
        head, end = _ends_of(registry, part, reply)
        ends_in = part
        if head is not None and not first:
            first = head
        if end is not None:
            last = max(last, end)
        if end is None or end < part.last:
            break
    return Extent(first or last + 1, last, ends_in)


def _ends_of(registry: Registry, part: Segment, reply: Any) -> tuple[int | None, int | None]:
    """The first entry of a segment here, and its last offset so far; None if it has not arrived."""
    if isinstance(reply, ReplyError):
        if not reply.text.startswith("ERR no such key"):
            raise reply
        cut = registry.cuts.get(part.strand)
        return None, None if cut is None else _last_of(cut, part)
    info = facts(reply)
    head = info[b"first-entry"]
    first = offset_of(head[0]) if head else None
    if first is not None and not part.first <= first <= part.last:
        first = None
    return first, _last_of(ids.native(info[b"last-generated-id"]), part)


def _last_of(last: ids.Id, part: Segment) -> int:
    return part.last if last >= SEALED else min(max(last[1], part.first - 1), part.last)


def about_log(name: bytes, registry: Registry, answers: list[tuple[Strand, Any]]) -> dict[bytes, Any]:
    """What XINFO STREAM says of a log in addition to the facts of a stream."""
    parts, known = segments(name, registry), dict(answers)
    missing = ReplyError("ERR no such key")
    extent = extent_of(registry, parts, [known.get(part.strand, missing) for part in parts])
    home = registry.home
    assert home is not None
    return {
        b"home": home.writer,
        b"epoch": home.number,
        b"first-offset": extent.first,
        b"last-offset": extent.last,
        b"pending-max": registry.log.pending,
        b"backlog": registry.log.backlog,
        b"max-age": registry.log.max_age_ms,
    }


def infos(parts: list[Segment]) -> Iterator[Command]:
    return (part.strand.xinfo() for part in parts)


# ----------------------------------------------------------------------------------------------------
# Logs

# An engine evicts this many offsets in about 2.5 ms; other commands run between two such steps.
STEP: Final = 100_000
_REFUSED: Final = "equal or smaller than the target stream top item"


def write(view: View, argv: Argv) -> Plan[int | list[int]]:
    """TWRITE: one round trip if the log is cached. The first write to a log takes two more."""
    name, spec = argv[1], parse_write(argv)
    if len(spec.entries) > 1 and spec.message is None:
        view.carriage.refuse_steps("TWRITE of several entries")
    retries = Retries(f"the home of log {name.decode(errors='replace')!r} kept moving")
    while True:
        retries.count()
        registry = yield from find_log(view, name)
        if view.log_home(name).writer != view.region.writer and view.carriage.may_look_again:
            # We are about to refuse: do so by what is true now, not a second ago.
            view.forget(name)
            registry = yield from read_registry(view, name)
        home = _home_here(view, name)
        if view.cache.holds_offsets:
            raise offsets_held(view.region)
        try:
            tick = _tick(view, name, spec, registry)
            commands = _commands(view, home, spec, registry)
            may_wait = spec.message is not None and len(registry.epochs) > 1
            natives = yield from append_run(view, home, commands, tick, create_later=may_wait)
            if tick and spec.many and view.carriage.may_look_again:
                # The entries are written, whatever comes of it, also if the connection is lost.
                yield Batch(tick, attempt=True, optional=True)
        except ReplyError as error:
            if error.code == "BSBEHIND":
                what = "messages of its former home have not arrived yet"
                fail(f"SEALED log '{shown(name)}' has just moved here, and {what}: try again")
            if not is_stale(error) and _REFUSED not in error.text:
                raise
            settings = xadd_idempotent.changed_settings(error)
            if settings is not None and view.carriage.may_look_again:
                view.expect_settings(name, settings)
                continue
            if settings is not None:
                fail(f"ERR the IDMP settings of log '{shown(name)}' have just changed, try again")
            if view.carriage.may_look_again:
                view.forget(name)
                yield from read_registry(view, name)
            if not view.carriage.may_look_again or (view.log_home(name) == home and not is_stale(error)):
                fail(f"SEALED log '{shown(name)}' is moving to another region, try again")
            continue
        if spec.message is None:
            offsets = [offset_of(native) for native in natives]
        else:
            first = offset_of(natives[0].partition(b":")[0])
            offsets = [*range(first, first + len(spec.entries))]
        return offsets if spec.many else offsets[0]


def _home_here(view: View, name: bytes) -> Strand:
    """The strand that is written in this region; an error if the home is another one."""
    home = view.log_home(name)
    if home.writer != view.region.writer:
        raise HomeError(shown(name), home.writer)
    return home


def _commands(view: View, home: Strand, spec: Write, registry: Registry) -> list[Command]:
    """The cap goes with the last entry only."""
    backlog = registry.log.backlog if spec.backlog is None else spec.backlog
    if spec.message is not None:
        call = xadd_idempotent.call(
            home,
            registry.settings,
            spec.message.producer,
            view.region.journal_writer,
            function="bs_log_message",
            former=registry.former_homes(view.region),
        )
        words = (word for entry in spec.entries for word in entry)
        return [(*call, spec.message.iid or b"", backlog, *words)]
    last = len(spec.entries) - 1
    cap: Command = ("MAXLEN", "~", backlog) if backlog else ()
    return [
        native_command(home.key, (*(cap if at == last else ()), b"0-*", TAG, tag, ENTRY, entry))
        for at, (tag, entry) in enumerate(spec.entries)
    ]


def _tick(view: View, name: bytes, spec: Write, registry: Registry) -> list[Command]:
    """Once in a while, note how far the log has come, and evict what is too old (lua/log.lua)."""
    ticked = view.cache.ticked
    if view.carriage.is_multi or (name in ticked and spec.max_age_ms is None):
        return []
    parts = [part for part in segments(name, registry) if part.strand in registry.strands]
    if not parts:
        return []  # its first entry
    ticked.add(name)
    age = registry.log.max_age_ms if spec.max_age_ms is None else spec.max_age_ms
    where = (keys.tick(name), *(part.strand.key for part in parts))
    return [("FCALL", "bs_log_tick", len(where), *where, age, *(part.last for part in parts))]


def evict(view: View, argv: Argv) -> Plan[int]:
    """TEVICT: a round trip for each 100,000 offsets. It evicts in this region, and links in the others."""
    name, spec = argv[1], parse_evict(argv)
    if spec.older_ms is not None and view.carriage.may_look_again:
        view.forget(name)  # the home may have moved away and back: the ticks of an earlier epoch do not count
    registry = yield from find_log(view, name)
    parts = [part for part in segments(name, registry) if part.strand in registry.strands]
    if not parts:
        return 0
    if spec.older_ms is not None:
        home = _home_here(view, name)  # the home knows the time
        where = keys.tick(name), home.key
        older = yield from send_one(("FCALL_RO", "bs_log_older", len(where), *where, spec.older_ms))
        return (yield from _evict_upto(parts, older)) if older else 0
    if spec.upto is not None:
        return (yield from _evict_upto(parts, spec.upto))
    assert spec.keep is not None
    return (yield from _evict_but(parts, spec.keep))


def _evict_upto(parts: list[Segment], upto: int) -> Plan[int]:
    """What a former home wrote after its epoch had ended stays, until it is rescued."""
    replies = yield Batch([*infos(parts)], resend=True, attempt=True)
    gone = 0
    for part, reply in zip(parts, replies, strict=True):
        head = None if isinstance(reply, ReplyError) else facts(reply)[b"first-entry"]
        tail = None if isinstance(reply, ReplyError) else facts(reply)[b"last-entry"]
        if head is None or tail is None:
            continue
        first, last = offset_of(head[0]), min(upto, part.last, offset_of(tail[0]))
        while first <= last:
            end = min(first + STEP, last)
            removed, left = yield Batch(
                [
                    ("XTRIM", part.strand.key, "MINID", "=", offset_id(end + 1)),
                    ("XRANGE", part.strand.key, "-", "+", "COUNT", 1),
                ]
            )
            gone += removed
            if not left:
                break
            first = offset_of(left[0][0])  # offsets may jump: the strand was lost once
    return gone


def _evict_but(parts: list[Segment], keep: int) -> Plan[int]:
    """Keep at least this many entries: the newest segments first. Whole nodes go, of 100 entries.

    The engine does not count entries up to the end of an epoch. So a strand that has some beyond stays.
    """
    replies = yield Batch([*infos(parts)], resend=True, attempt=True)
    gone = 0
    for part, reply in zip(reversed(parts), reversed(replies), strict=True):
        if not keep and not part.is_open:
            gone += yield from _evict_upto([part], part.last)
            continue
        info = {} if isinstance(reply, ReplyError) else facts(reply)
        tail = info.get(b"last-entry")
        if tail is None or offset_of(tail[0]) > part.last:
            continue
        length = info[b"length"]
        left = min(keep, length)
        keep -= left
        while left < length:
            [removed] = yield Batch([("XTRIM", part.strand.key, "MAXLEN", "~", left, "LIMIT", STEP)])
            gone += removed
            if not removed:
                break
    return gone


def configure(view: View, argv: Argv) -> Plan[bytes]:
    """TCFGSET: one round trip if the log is cached. Creates the log if it does not exist."""
    name, spec = argv[1], parse_configure(argv)
    retries = Retries(f"other clients kept deleting {name.decode(errors='replace')!r}")
    while True:
        retries.count()
        registry = yield from find_log(view, name)
        words = [
            b"" if value is None else b"%d" % value for value in (spec.pending, spec.backlog, spec.max_age_ms)
        ]
        change: Command = ("FCALL", "bs_log_configure", 1, keys.meta(name), view.region.writer, *words)
        commands = [change]
        if not registry.is_log:
            home = _home_here(view, name)
            known = view.has_seen(home)
            if not known and view.carriage.may_look_again:
                yield from require_region(view)
            commands.insert(0, ensure_command(home, registry.bell, known=known))
            view.expect_log(home)
        replies = yield Batch(commands, attempt=True)
        if view.carriage.may_look_again:
            view.forget(name)
        errors = [reply for reply in replies if isinstance(reply, ReplyError)]
        if not errors:
            return b"OK"
        if not (is_stale(errors[0]) and view.carriage.may_look_again):
            raise errors[0]
