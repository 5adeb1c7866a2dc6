"""TWRITE, TEVICT, TCFGSET: what changes a log.

TWRITE is one native `XADD strand NOMKSTREAM 0-* t tag e entry`: the engine itself counts the offsets.
Several entries are a MULTI of them, so their offsets follow each other. With IDMP they are one function call,
which also stores the ID of the message (lua/idempotence.lua).
"""

from typing import Final

from braidstream.commands import produce
from braidstream.commands.arguments import Argv, fail, shown
from braidstream.commands.logs.log_arguments import Write, parse_configure, parse_evict, parse_write
from braidstream.commands.logs.log_lookup import Segment, find_log, infos, segments
from braidstream.errors import HomeError, ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import Registry
from braidstream.model.offset_log import ENTRY, TAG, offset_id, offset_of
from braidstream.model.strand import Strand, facts
from braidstream.protocol.append import ensure_command, native_command
from braidstream.protocol.append_plan import append_run
from braidstream.protocol.lookup import is_stale, read_registry, require_region
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.protocol.retries import Retries
from braidstream.protocol.stream_view import View

# An engine evicts so many offsets in about 2.5 ms; other commands run between two such steps.
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
            settings = produce.changed_settings(error)
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
        call = produce.call(
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
    """Once in a while, note how far the log has come, and evict what is too old (lua/log_age.lua)."""
    ticked = view.cache.ticked
    if view.carriage.is_all_or_nothing or (name in ticked and spec.max_age_ms is None):
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
    """Keep at least so many entries: the newest segments first. Whole nodes go, of 100 entries.

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
