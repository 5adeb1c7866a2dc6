"""XINFO STREAM, XCFGSET, XIDMPRECORD: the strands' answers, merged into one of the engine's shape."""

from typing import Any, Final

from braidstream.commands import group_status
from braidstream.commands.arguments import Argv, fail, integer, option, options, shown, strict_id
from braidstream.commands.group_status import Info, flat
from braidstream.commands.twrite import about_log
from braidstream.errors import RefusedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.registry import Registry, Settings
from braidstream.model.strand import Command, Entry, Strand, facts, merge_pages, reply_entries
from braidstream.plan.braid import read_strands_with
from braidstream.plan.lookup import look, refuse_other_types, type_check
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
# XCFGSET, XIDMPRECORD, and the fields of XINFO STREAM for idempotent production.


def configure(view: View, argv: Argv) -> Plan[bytes]:
    """XCFGSET: how long messages are remembered, and how many per producer. A change forgets all of them.

    RAISE: only to greater values, and nothing is forgotten.
    """
    name, has_peers = argv[1], bool(view.region.journal_writer)
    raises = option(argv[-1]) == b"RAISE"
    try:
        duration, maxsize = _settings(argv[:-1] if raises else argv)
    except ReplyError:
        if not (yield from look(view, name)).exists:  # the engine checks the key first
            fail("ERR no such key")
        raise
    known = view.recall(name)
    if known.exists:
        settings = known.settings.current(has_peers=has_peers and not known.is_log)
        view.expect_settings(name, (settings.raised if raises else settings.changed)(duration, maxsize))
    words = tuple(b"" if value is None else value for value in (duration, maxsize))
    where = (keys.meta(name),) if has_peers else (keys.meta(name), view.home(name).key)
    more = ("RAISE",) if raises else ()
    call: Command = ("FCALL", "bs_idempotence_configure", len(where), *where, *words, *more)
    replies = yield Batch([call, *type_check(view, name)], attempt=True)
    reply, *kind = replies
    if view.carriage.may_look_again:
        view.forget(name)
    if isinstance(reply, ReplyError):
        if reply.code != "BSNOKEY":
            raise reply
        yield from refuse_other_types(name, *kind)
        fail("ERR no such key")
    return b"OK"


def record(view: View, argv: Argv) -> Plan[bytes]:
    """XIDMPRECORD: records an existing entry as the message with this ID.

    Only if the engine deduplicates natively: without peers, on engines that have the command.
    """
    name, producer, iid = argv[1:4]
    entry = strict_id(argv[4])
    if not producer:
        fail("ERR producer ID must be non-empty")
    if not iid:
        fail("ERR idempotent ID must be non-empty")
    if not (yield from look(view, name)).exists:
        fail("ERR no such key")
    home = view.home(name)
    native = home.exact(entry)
    if view.region.journal_writer:
        raise _not_recorded()
    if native is None:
        fail("ERR No such message in stream")
    words = (2, keys.meta(name), home.key, producer, iid, ids.text(native))
    [reply] = yield Batch([("FCALL", "bs_idempotence_mark", *words)], attempt=True)
    view.forget(name)
    if isinstance(reply, ReplyError):
        raise _not_recorded(str(reply)) if reply.code == "BSOURS" else reply
    return b"OK"


def _not_recorded(reply: str = "") -> RefusedError:
    why = "with peers, or with messages of earlier settings, the engine alone cannot recognise duplicates"
    if "this engine" in reply:
        why = "this engine does not have the command (Redis 8.6.2 and newer do)"
    return RefusedError("XIDMPRECORD", why, "Use XADD IDMP")


_OPTIONS: Final = {
    b"IDMP-DURATION": (86_400, "IDMP-DURATION must be between 1 and 86400 seconds"),
    b"IDMP-MAXSIZE": (10_000, "IDMP-MAXSIZE must be between 1 and 10000 entries"),
}


def _settings(argv: Argv) -> tuple[int | None, int | None]:
    found = dict[bytes, int]()
    for word, text in options(argv, 2, dict.fromkeys(_OPTIONS, 1)):
        if word in found:
            fail(f"ERR {word.decode()} specified multiple times")
        most, refusal = _OPTIONS[word]
        value = integer(text)
        found[word] = value if 1 <= value <= most else fail(f"ERR {refusal}")
    if not found:
        fail("ERR At least one parameter must be specified")
    return found.get(b"IDMP-DURATION"), found.get(b"IDMP-MAXSIZE")


_FACTS: Final = (
    b"idmp-duration",
    b"idmp-maxsize",
    b"pids-tracked",
    b"iids-tracked",
    b"iids-added",
    b"iids-duplicates",
)
# XINFO STREAM counts the messages of at most this many producers, this many per call.
_COUNTED: Final = 10_000
_COUNTED_AT_ONCE: Final = 500


def about_command(name: bytes) -> Command:
    return ("HGETALL", keys.about(name))


def idempotence_facts(
    view: View, name: bytes, registry: Registry, about: list[Any], native: dict[bytes, Any]
) -> Plan[dict[bytes, Any]]:
    """The fields that XINFO STREAM adds for idempotent production. One or two round trips.

    about: the reply to `about_command`, if the caller has it already.
    iids-unchecked, if there are any: messages of peers that were older than all that are remembered here.
    native: XINFO STREAM of the home strand, or of another if there is none. Its fields are used if the engine
    deduplicates natively, and for streams without messages on engines that always show them.
    """
    settings = registry.idempotence
    if settings is None or (registry.native and not registry.is_log):
        return {fact: native[fact] for fact in _FACTS if fact in native}
    settings = settings.current(has_peers=bool(view.region.journal_writer) and not registry.is_log)
    [reply] = about or (yield Batch([about_command(name)], resend=True))
    if isinstance(reply, ReplyError):
        raise reply
    known = facts(reply)
    listed = [
        field[1:]
        for field, value in known.items()
        if field.startswith(b"=") and value.startswith(b"%d:" % settings.era)
    ]
    producers = messages = 0
    commands = _count_commands(name, settings, listed[:_COUNTED])
    for count in (yield Batch(commands, resend=True)) if commands else ():
        producers, messages = producers + count[0], messages + count[1]
    current = known.get(b"since") == b"%d" % settings.since
    counts = [int(known.get(field, 0)) if current else 0 for field in (b"added", b"duplicates")]
    values = (settings.duration_s, settings.maxsize, producers, messages, *counts)
    unchecked = int(known.get(b"unchecked", 0)) if current else 0
    more = {b"iids-unchecked": unchecked} if unchecked else {}
    return dict(zip(_FACTS, values, strict=True)) | more


def _count_commands(name: bytes, settings: Settings, producers: list[bytes]) -> list[Command]:
    commands = list[Command]()
    for at in range(0, len(producers), _COUNTED_AT_ONCE):
        known = (keys.known_messages(name, settings.era, each) for each in producers[at:][:_COUNTED_AT_ONCE])
        where = [key for pair in known for key in pair]
        commands.append(("FCALL_RO", "bs_idempotence_count", len(where), *where, settings.text))
    return commands


# ----------------------------------------------------------------------------------------------------
# Xinfo

# How many words each takes, the command's own two among them.
SUBCOMMANDS: Final = {b"STREAM": (3, None), b"GROUPS": (3, 3), b"CONSUMERS": (4, 4), b"HELP": (2, 2)}


def info(view: View, argv: Argv) -> Plan[Any]:
    """XINFO STREAM key [FULL [COUNT n]] | GROUPS key | CONSUMERS key group | HELP. One round trip."""
    which, typed = option(argv[1]), shown(argv[1])
    if which == b"HELP":
        [reply] = yield Batch([tuple(argv)], resend=True)
        return reply
    name = argv[2]
    known = view.recall(name)
    used = known.idempotence is not None
    if which != b"STREAM" or len(argv) > 3 or (used and not known.native):
        view.will_continue()
    if which == b"GROUPS":
        return (yield from group_status.groups(view, name))
    if which == b"CONSUMERS":
        return (yield from group_status.consumers(view, name, argv[3]))
    # In a MULTI everything must be in one batch. Elsewhere a second batch is better: few streams need it.
    also = (about_command(name),) if used and not view.carriage.may_look_again else ()
    registry, answers, about = yield from read_strands_with(
        view, name, lambda strand: strand.xinfo(*_full(argv)), also
    )
    if not answers:
        raise ReplyError("ERR no such key")
    infos = {strand: facts(reply) for strand, reply in answers}
    own = infos.get(view.home(name)) or next(iter(infos.values()))
    produced = yield from idempotence_facts(view, name, registry, about, own)
    if len(argv) == 3:
        log = about_log(name, registry, answers) if registry.is_log else {}
        return flat({**_common(registry, infos), **produced, **log, **_ends(registry, infos)})
    count = _full_count(argv, typed)
    merged = merge_pages((strand.entries(each[b"entries"]) for strand, each in infos.items()), count or None)
    groups = yield from group_status.full(registry, infos, count)
    return flat(
        {**_common(registry, infos), **produced, b"entries": reply_entries(merged), b"groups": groups}
    )


def _full(argv: Argv) -> tuple[bytes | str | int, ...]:
    """The options for the strands; none if the words are wrong, because the key is checked first."""
    if argv[1].upper() != b"STREAM" or len(argv) == 3:
        return ()
    try:
        return ("FULL", "COUNT", _full_count(argv, ""))
    except ReplyError:
        return ()


def _full_count(argv: Argv, typed: str) -> int:
    full = len(argv) in (4, 6) and argv[3].upper() == b"FULL"
    if not full or (len(argv) == 6 and argv[4].upper() != b"COUNT"):
        fail(f"ERR unknown subcommand or wrong number of arguments for '{typed}'. Try XINFO HELP.")
    count = integer(argv[5]) if len(argv) == 6 else 10
    return 10 if count < 0 else count


def _common(registry: Registry, infos: dict[Strand, Info]) -> Info:
    """Sums, and the highest IDs. The trees are counted as if the strands shared one root."""
    last = max(registry.end(strand, ids.native(each[b"last-generated-id"])) for strand, each in infos.items())
    deleted = max(strand.deleted(ids.native(each[b"max-deleted-entry-id"])) for strand, each in infos.items())
    firsts = [
        strand.user(ids.native(each[b"recorded-first-entry-id"]))
        for strand, each in infos.items()
        if each[b"length"]
    ]
    return {
        b"length": sum(each[b"length"] for each in infos.values()),
        b"radix-tree-keys": sum(each[b"radix-tree-keys"] for each in infos.values()),
        b"radix-tree-nodes": 1 + sum(each[b"radix-tree-nodes"] - 1 for each in infos.values()),
        b"last-generated-id": ids.text(last),
        b"max-deleted-entry-id": ids.text(deleted),
        b"entries-added": sum(each[b"entries-added"] for each in infos.values()),
        b"recorded-first-entry-id": ids.text(min(firsts, default=ids.ZERO)),
    }


def _ends(registry: Registry, infos: dict[Strand, Info]) -> Info:
    def merged(end: bytes, *, reverse: bool) -> list[Entry]:
        pages = (strand.entries([each[end]]) for strand, each in infos.items() if each[end])
        return merge_pages(pages, 1, reverse=reverse)

    first, last = merged(b"first-entry", reverse=False), merged(b"last-entry", reverse=True)
    return {
        b"groups": len(registry.groups),
        b"first-entry": reply_entries(first)[0] if first else None,
        b"last-entry": reply_entries(last)[0] if last else None,
    }
