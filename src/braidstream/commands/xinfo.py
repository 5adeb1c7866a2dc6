"""XINFO: the strands' answers, merged into one of the engine's shape."""

from typing import Any, Final

from braidstream.commands import message_settings
from braidstream.commands.arguments import Argv, fail, integer, option, shown
from braidstream.commands.groups import group_status
from braidstream.commands.groups.group_status import Info, flat
from braidstream.commands.logs.log_lookup import about_log
from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.merge import merge_pages, reply_entries
from braidstream.model.meta import Registry
from braidstream.model.strand import Entry, Strand, facts
from braidstream.protocol.braid import read_strands_with
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

# How many words each takes, the command's own two among them.
SUBCOMMANDS: Final = {b"STREAM": (3, None), b"GROUPS": (3, 3), b"CONSUMERS": (4, 4), b"HELP": (2, 2)}


def info(view: View, argv: Argv) -> Plan[Any]:
    """XINFO STREAM key [FULL [COUNT n]] | GROUPS key | CONSUMERS key group | HELP. One round trip."""
    which, typed = option(argv[1]), shown(argv[1])
    if which == b"HELP":
        [reply] = yield Batch([tuple(argv)], resend=True)
        return reply
    name = argv[2]
    if which == b"GROUPS":
        return (yield from group_status.groups(view, name))
    if which == b"CONSUMERS":
        return (yield from group_status.consumers(view, name, argv[3]))
    # In a MULTI everything must be in one batch. Elsewhere a second batch is better: few streams need it.
    used = view.recall(name).idempotence is not None
    also = (message_settings.about_command(name),) if used and not view.carriage.may_look_again else ()
    registry, answers, about = yield from read_strands_with(
        view, name, lambda strand: strand.xinfo(*_full(argv)), also
    )
    if not answers:
        raise ReplyError("ERR no such key")
    infos = {strand: facts(reply) for strand, reply in answers}
    own = infos.get(view.home(name)) or next(iter(infos.values()))
    produced = yield from message_settings.facts(name, registry, about, own)
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


def shares(view: View, argv: Argv) -> bool:
    """Whether XINFO needs one batch only: STREAM does; groups and producers need more."""
    if option(argv[1]) == b"STREAM" and len(argv) == 3:
        known = view.recall(argv[2])
        return known.idempotence is None or known.native
    return option(argv[1]) == b"HELP"
