"""RENAME, RENAMENX, COPY: a stream's entries, woven, become the chosen strand of another name.

    orders    s1  1-1     4-1                        old    c1  1-1  2-2  3-0  4-1
              s2      2-2           -- RENAME -->                (IDs as users know them)
              c1          3-0

The copy is made aside, page by page, under a key of its own, and adopted in one MULTI that also
deletes what the new name was (and, for RENAME, the old stream). The source is WATCHed meanwhile: if
it changes, the copy starts again. Groups do not come along, and of entries that share one ID only
one does, as the specification says.
"""

import dataclasses
from typing import Final

from braidstream import ids, keys
from braidstream.braid import View, delete, delete_command, exists, registry_of
from braidstream.commands.arguments import Argv, fail, integer, option, shown
from braidstream.commands.inspect import info
from braidstream.commands.read import read_range
from braidstream.errors import RefusedError, ReplyError
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan

PAGE: Final = 500
ASIDE_MS: Final = 24 * 3600 * 1000
_TRIES: Final = 5


def rename(view: View, argv: Argv) -> Plan[bytes]:
    """RENAME key newkey. O(n): every entry is copied once."""
    yield from _rename(view, argv)
    return b"OK"


def rename_if_new(view: View, argv: Argv) -> Plan[int]:
    """RENAMENX key newkey: 0 if newkey exists."""
    source, target = argv[1], argv[2]
    if not (yield from _taken(source)):
        raise ReplyError("ERR no such key")
    if (yield from _taken(target)):
        return 0
    yield from _rename(view, argv)
    return 1


def _rename(view: View, argv: Argv) -> Plan[None]:
    source, target = argv[1], argv[2]
    if not (yield from exists(source)):
        yield Batch([("RENAME", source, target)])
        yield from delete(view, target)
    elif source != target:
        yield from _copy(view, source, target, move=True)


def copy(view: View, argv: Argv) -> Plan[int]:
    """COPY source destination [DB n] [REPLACE]: 0 if the destination exists and REPLACE is not given."""
    source, target, replace = argv[1], argv[2], False
    at, database = 3, None
    while at < len(argv):
        if option(argv[at]) == b"REPLACE":
            replace = True
        elif option(argv[at]) == b"DB" and at + 1 < len(argv):
            database, at = integer(argv[at + 1]), at + 1
        else:
            fail("ERR syntax error")
        at += 1
    elsewhere = database is not None and database != (yield from _database())
    is_stream = yield from exists(source)
    if elsewhere and not is_stream:
        [reply] = yield Batch([tuple(argv)])
        return int(reply)
    if elsewhere:
        raise RefusedError("COPY", "another database is another region", "Leave DB out")
    if source == target:
        fail("ERR source and destination objects are the same")
    if not is_stream and not (yield from exists(target)):
        [reply] = yield Batch([tuple(argv)])
        return int(reply)
    if not replace and (yield from _taken(target)):
        return 0
    if is_stream:
        yield from _copy(view, source, target, move=False)
        return 1
    [copied] = yield Batch([("COPY", source, target, "REPLACE")])
    if copied:
        yield from delete(view, target)
    return int(copied)


def _database() -> Plan[int]:
    [client] = yield Batch([("CLIENT", "INFO")], resend=True)
    return int(dict(word.partition(b"=")[::2] for word in bytes(client).split())[b"db"])


def _taken(name: bytes) -> Plan[bool]:
    [plain] = yield Batch([("EXISTS", name)], resend=True)
    return bool(plain) or (yield from exists(name))


def _copy(view: View, source: bytes, target: bytes, *, move: bool) -> Plan[None]:
    view = dataclasses.replace(view, watching=True)
    token = yield from _token()
    aside = keys.copy(target, token)
    for _ in range(_TRIES):
        metas = ("WATCH", keys.meta(source), keys.meta(target))
        [_, reply] = yield Batch([metas, registry_of(source)])
        strands = view.learn(source, reply).strands
        yield Batch([("WATCH", *(strand.key for strand in strands)), ("UNLINK", aside)])
        try:
            yield from _fill(view, source, aside)
            done = yield Batch((yield from _adoption(view, source, target, aside, move)), atomic=True)
        except ReplyError:
            yield Batch([("UNWATCH",), ("UNLINK", aside)])
            raise
        view.forget(target)
        view.forget(source)
        if done is not None:
            return
    yield Batch([("UNLINK", aside)])
    raise ReplyError(
        f"ERR {shown(source)!r} was written {_TRIES} times while it was copied. "
        "Stop the writers for a moment and try again."
    )


def _token() -> Plan[bytes]:
    """A name nobody else uses for a copy now: this connection, this moment."""
    time, client = yield Batch([("TIME",), ("CLIENT", "ID")], resend=True)
    return b"%d.%b.%b" % (client, time[0], time[1])


def _fill(view: View, source: bytes, aside: bytes) -> Plan[None]:
    """Copy the entries, then the counters, as the user sees both."""
    about = yield from info(view, [b"XINFO", b"STREAM", source])
    facts = dict(zip(about[::2], about[1::2], strict=True))
    # Should we never come to adopt it, it goes by itself.
    expiry: Command = ("PEXPIRE", aside, ASIDE_MS)
    yield Batch(
        [("XGROUP", "CREATE", aside, "bs", "0", "MKSTREAM"), ("XGROUP", "DESTROY", aside, "bs"), expiry]
    )
    start, last, length = b"-", ids.ZERO, 0
    while True:
        page = yield from read_range(view, [b"XRANGE", source, start, b"+", b"COUNT", b"%d" % PAGE])
        if not page:
            break
        commands: list[Command] = []
        for entry, fields in page:
            if ids.native(entry) != last:  # of entries with one ID, the first
                commands.append(("XADD", aside, entry, *fields))
            last = ids.native(entry)
        yield Batch(commands)
        length += len(commands)
        if last == ids.LAST:
            break
        start = b"(" + ids.text(last)
    # Facts and pages were read at different moments. If that matters, the WATCH ends this attempt.
    end = max(last, ids.native(facts[b"last-generated-id"]))
    deleted = min(end, ids.native(facts[b"max-deleted-entry-id"]))
    added = max(length, facts[b"entries-added"])
    yield Batch([("XSETID", aside, ids.text(end), "ENTRIESADDED", added, "MAXDELETEDID", ids.text(deleted))])


def _adoption(view: View, source: bytes, target: bytes, aside: bytes, move: bool) -> Plan[list[Command]]:
    """The commands that make the copy the stream, and unmake what was."""
    replies = yield Batch([registry_of(target), registry_of(source), ("XINFO", "STREAM", aside)], resend=True)
    there, here = view.learn(target, replies[0]), view.learn(source, replies[1])
    last: Id = ids.native(replies[2][replies[2].index(b"last-generated-id") + 1])
    minted, chosen = view.minted(target), view.chosen(target)
    if there.exists and chosen in there.strands:
        chosen = chosen.next_life  # the deletion before ends its present life
    commands: list[Command] = []
    if keys.shares_slot(target):
        commands.append(("DEL", target))
    else:
        yield Batch([("DEL", target)])  # it lies in another slot: no MULTI can hold both
    if there.exists:
        commands.append(delete_command(target, there.strands))
    commands.append(
        (
            "FCALL",
            "bs_braid_adopt",
            4,
            keys.meta(target),
            minted.key,
            aside,
            chosen.key,
            minted.label,
            chosen.label,
            chosen.life,
            ids.text(minted.rest(last)),
        )
    )
    if move:
        commands.append(delete_command(source, here.strands))
    return commands
