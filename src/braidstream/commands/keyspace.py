"""Commands on keys, where a key may be a stream: DEL, EXISTS, TYPE, SCAN, KEYS, FLUSHDB, WATCH, OBJECT.

Each name is looked up as a plain key, by the native command, and as a stream. Plain keys work as in
the engine, so code that uses both needs no second client.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from braidstream.commands.arguments import Argv, fail, integer, is_storage, option, storage_error
from braidstream.errors import RefusedError, ReplyError
from braidstream.model import keys
from braidstream.model.glob import matcher
from braidstream.model.registry import Registry, parse_each
from braidstream.model.strand import Command
from braidstream.plan import braid
from braidstream.plan.braid import delete_command
from braidstream.plan.cache import StreamCache
from braidstream.plan.lookup import (
    FENCE_TYPE,
    WRONGTYPE,
    checked_now,
    read_registry,
    registry_now,
    registry_of,
)
from braidstream.plan.plan import Batch, Plan, ending_watch
from braidstream.plan.view import View

# Commands that replace a key of any type.
OVERWRITING: Final = frozenset((b"SET", b"SETEX", b"PSETEX"))
# An invalid option, to check the user's right to FLUSHDB: the engine checks rights first, then refuses it.
_PROBE: Final = b"PERMISSION-PROBE"
# RANDOMKEY: how many round trips, and how many keys in each.
_PICKS, _PICKED = 3, 20
# Keys per round trip.
_PAGE: Final = 1_000
# The first page of a SCAN of the whole database is small, and so is one after a page of more bytes than this:
# a key's name can have 512 MB.
_FIRST_PAGE: Final = 10
_PAGE_BYTES: Final = 1_000_000
# How many streams and how many fences.
Counts = tuple[int, int]
OBJECT: Final = {b"HELP": (2, 2), **dict.fromkeys((b"ENCODING", b"FREQ", b"IDLETIME", b"REFCOUNT"), (3, 3))}


def delete(view: View, argv: Argv) -> Plan[int]:
    """DEL, UNLINK: for a stream, the registry keeps the last IDs.

    One name takes one round trip if the strands are cached; otherwise two. A user who may not delete
    the plain keys deletes no stream.
    """
    if len(argv) > 2 and not view.carriage.is_multi:
        # For one name the function checks the user's rights, and a MULTI is refused as a whole.
        view.will_continue()
        plain, (streams, fences) = yield from _delete(view, argv[1:], [tuple(argv)])
        return max(int(plain[0]) - fences, 0) + streams
    cached = [(name, view.recall(name)) for name in dict.fromkeys(argv[1:])]
    commands = [
        delete_command(name, known, view.region.journal_writer, argv[0])
        if known.exists
        else registry_of(name)
        for name, known in cached
    ]
    for name, _ in cached:
        view.expect_deleted(name)
    replies = yield Batch([tuple(argv), *commands], attempt=True)
    if isinstance(replies[0], ReplyError):
        for name, _ in cached:
            view.forget(name)
        raise replies[0]
    streams, fences = yield from _deleted(view, cached, replies[1:])
    return max(int(replies[0]) - fences, 0) + streams


def _delete(view: View, names: Iterable[bytes], native: list[Command]) -> Plan[tuple[list[Any], Counts]]:
    """Native commands, then the deletion of every name that is a stream: (replies, how many were)."""
    distinct = list(dict.fromkeys(names))
    replies = yield Batch([*native, *map(registry_of, distinct)])
    plain, registries = replies[: len(native)], replies[len(native) :]
    found = [(name, view.learn(name, reply)) for name, reply in zip(distinct, registries, strict=True)]
    existing = [(name, registry) for name, registry in found if registry.exists or registry.fenced]
    commands = [delete_command(name, registry, view.region.journal_writer) for name, registry in existing]
    for name in distinct:
        view.expect_deleted(name)
    answers = (yield Batch(commands, attempt=True)) if commands else []
    return plain, (yield from _deleted(view, existing, answers))


def _deleted(view: View, cached: list[tuple[bytes, Registry]], answers: list[Any]) -> Plan[Counts]:
    """How many streams were deleted, and how many fences. If a registry was missing or stale in the cache,
    delete again."""
    streams = fences = 0
    for (name, known), reply in zip(cached, answers, strict=True):
        if isinstance(reply, int):
            streams += reply
            fences += known.fenced
            continue
        if isinstance(reply, ReplyError):
            view.forget(name)
            if reply.code != "BSSTALE":
                raise reply
            registry = yield from read_registry(view.alone(), name)
        else:
            registry = view.learn(name, reply)
        fences += registry.fenced
        if registry.exists or registry.fenced:
            streams += yield from braid.delete(view, name)
    return streams, fences


Found = tuple[Any, dict[bytes, Registry]]


def _look(view: View, names: Iterable[bytes], native: Command | None = None) -> Plan[Found]:
    """A native command, and the registry of each name. One round trip; two if one of them has a deadline."""
    distinct = list(dict.fromkeys(names))
    first: list[Command] = [] if native is None else [native]
    reads = [registry_now(view, name) for name in distinct]
    replies = yield Batch([*first, *reads], resend=True)
    plain = replies.pop(0) if native is not None else None
    return plain, (yield from checked_now(reads, parse_each(distinct, replies)))


def _readable(found: dict[bytes, Registry]) -> dict[bytes, Registry]:
    """The same; DamagedError if one of them is damaged, for commands that name it."""
    for registry in found.values():
        if registry.damaged is not None:
            raise registry.damaged
    return found


def count_existing(view: View, argv: Argv) -> Plan[int]:
    """EXISTS: a name that is repeated counts twice."""
    names = list(dict.fromkeys(argv[1:]))
    counts: list[Command] = [(argv[0], name) for name in names]
    reads = [registry_now(view, name) for name in names]
    replies = yield Batch([*counts, *reads], resend=True)
    plain = dict(zip(names, replies, strict=False))
    found = yield from checked_now(reads, _readable(parse_each(names, replies[len(names) :])))
    return sum(found[name].exists or (bool(plain[name]) and not found[name].fenced) for name in argv[1:])


def touch(view: View, argv: Argv) -> Plan[int]:
    """TOUCH: streams are counted only, because they are never evicted for being idle."""
    return (yield from count_existing(view, argv))


def kind(view: View, argv: Argv) -> Plan[bytes]:
    """TYPE key."""
    plain, found = yield from _look(view, argv[1:], tuple(argv))
    if _readable(found)[argv[1]].exists:
        return b"stream"
    return b"none" if plain == FENCE_TYPE and found[argv[1]].fenced else plain


def may_not_set(cache: StreamCache, name: bytes) -> bool:
    """Whether SET of a name needs `overwrite`: it is a stream or a log that we know, or a key of our own."""
    return is_storage(name) or cache.holds_stream(name)


def overwrite(view: View, argv: Argv) -> Plan[Any]:
    """SET, SETEX, PSETEX of a name that is a stream: the stream is deleted. Not one step."""
    if is_storage(argv[1]):
        raise storage_error(argv[0], argv[1])
    only_new = argv[0].upper() == b"SET" and b"NX" in map(option, argv[3:])
    registry = _readable((yield from _look(view, argv[1:2]))[1])[argv[1]]
    native, is_stream = _instead_of_stream(argv, registry.due), registry.exists
    if not is_stream:
        native = tuple(argv)
    elif returns_old_value(argv):
        fail(WRONGTYPE)
    elif only_new:
        return None
    [reply] = yield Batch([native])
    if is_stream and reply is not None:
        yield from braid.delete(view, argv[1])
    return reply


def _instead_of_stream(argv: Argv, due: int) -> Command:
    """The command for a plain key that does not exist yet: it replaces a stream with this deadline."""
    if argv[0].upper() != b"SET":
        return tuple(argv)
    words = list[bytes](argv[:3])
    for word in argv[3:]:
        if option(word) == b"KEEPTTL":
            words += (b"PXAT", b"%d" % due) if due else ()
        elif option(word) != b"XX":
            words.append(word)
    return tuple(words)


def returns_old_value(argv: Argv) -> bool:
    """Whether an overwriting command returns the old value: SET ... GET."""
    return argv[0].upper() == b"SET" and b"GET" in map(option, argv[3:])


def describe(view: View, argv: Argv) -> Plan[Any]:
    """OBJECT: about the plain key, or about one strand of a stream."""
    if len(argv) != 3:
        [reply] = yield Batch([tuple(argv)], resend=True)
        return reply
    strands = view.recall(argv[2]).strands or (view.home(argv[2]),)
    commands = [(*argv[:2], key) for key in (argv[2], *(strand.key for strand in strands))]
    replies = yield Batch([*commands, registry_of(argv[2])], resend=True)
    registry = view.learn(argv[2], replies.pop())
    if registry.is_log and registry.exists and option(argv[1]) == b"ENCODING":
        return b"log"
    if registry.fenced:
        replies[0] = None
    if replies[0] is None and any(strand not in strands for strand in registry.strands):
        replies = yield Batch([(*argv[:2], strand.key) for strand in registry.strands], resend=True)
    return next((reply for reply in replies if reply is not None), None)


def watch(view: View, argv: Argv) -> Plan[Any]:
    """WATCH: the plain keys, the registries, and all strands that exist or may be created."""
    plan = _watch(view, argv)
    return (yield from ending_watch(plan) if view.carriage.may_end_watch else plan)


def _watch(view: View, argv: Argv) -> Plan[Any]:
    names = argv[1:]
    replies = yield Batch([tuple(argv), ("WATCH", *map(keys.meta, names)), *map(registry_of, names)])
    strands = dict[bytes, None]()
    for name, reply in zip(names, replies[2:], strict=True):
        for strand in (*view.learn(name, reply).strands, view.home(name), view.chosen(name)):
            strands[strand.key] = None
    yield Batch([("WATCH", *strands)])
    return b"OK"


def _existing(view: View, names: Iterable[bytes]) -> Plan[list[bytes]]:
    wanted = list(names)
    if not wanted:
        return []
    _, found = yield from _look(view, wanted)
    return [name for name in wanted if found[name].is_listed]


def list_keys(view: View, argv: Argv) -> Plan[list[bytes]]:
    """KEYS: plain keys and streams, under their own names."""
    plain, metas = yield Batch([("KEYS", argv[1]), ("KEYS", keys.META + b"*")], resend=True)
    matches = matcher(argv[1])
    names = [name for key in metas if (name := keys.name_of_meta(key)) is not None and matches(name)]
    found = (yield from _look(view, names))[1] if names else {}
    hidden = {name for name, registry in found.items() if registry.is_listed or registry.fenced}
    streams = [name for name, registry in found.items() if registry.is_listed]
    return [key for key in plain if key not in hidden and not keys.is_ours(key)] + streams


def pick_key(view: View, argv: Argv) -> Plan[bytes | None]:
    """RANDOMKEY: a plain key or a stream. Falls back to SCAN after some tries."""
    for _ in range(_PICKS):
        found = yield Batch([("RANDOMKEY",)] * _PICKED, resend=True)
        for key in found:
            if key is None or not keys.is_ours(key):
                return None if key is None else bytes(key)
            name = keys.name_of_meta(key)
            if name is not None and (yield from _existing(view, [name])):
                return name
    cursor, count = b"0", _FIRST_PAGE
    while True:
        cursor, found = yield from scan(view, [b"SCAN", cursor, b"COUNT", b"%d" % count])
        if found or integer(cursor) == 0:
            return bytes(found[0]) if found else None
        count = min(2 * count, _PAGE)


def _next_count(count: int, found: list[bytes]) -> int:
    """COUNT of the next page, after one with these keys."""
    return _FIRST_PAGE if sum(map(len, found)) > _PAGE_BYTES else min(2 * count, _PAGE)


@dataclass(frozen=True, slots=True)
class HiddenKeys:
    """How many keys users do not see, how many streams they make up, and how many of them expire."""

    keys: int
    streams: int
    expiring: int


def count_hidden(*, expiring: bool = False) -> Plan[HiddenKeys]:
    """A SCAN of the whole database, which keeps a hash of each name only. expiring: count those too."""
    cursor, count, seen, streams, expire = b"0", _FIRST_PAGE, set[int](), set[bytes](), 0
    while True:
        match = keys.PREFIX + b"*"
        [(cursor, found)] = yield Batch([("SCAN", cursor, "MATCH", match, "COUNT", count)], resend=True)
        count = _next_count(count, found)
        ours = {key for key in found if keys.is_ours(key) and hash(key) not in seen}
        names = [name for key in ours if (name := keys.name_of_meta(key)) is not None]
        reads = list(map(registry_of, names))
        replies = (yield Batch(reads, resend=True)) if names else []
        registries = yield from checked_now(reads, parse_each(names, replies))
        streams.update(name for name, registry in registries.items() if registry.is_listed)
        ours.update(name for name, registry in registries.items() if registry.fenced)
        seen.update(map(hash, ours))
        if expiring and ours:
            left = yield Batch([("PTTL", key) for key in ours], resend=True)
            expire += sum(ms >= 0 for ms in left)
        if integer(cursor) == 0:
            return HiddenKeys(len(seen), len(streams), expire)


def count_keys(view: View, argv: Argv) -> Plan[int]:
    """DBSIZE: plain keys and streams. Scans the database, to exclude braidstream's own keys."""
    hidden = yield from count_hidden()
    [size] = yield Batch([("DBSIZE",)], resend=True)
    return int(size) - hidden.keys + hidden.streams


def scan(view: View, argv: Argv) -> Plan[list[Any]]:
    """SCAN: returns each stream once, under its own name.

    COUNT is a hint. A gateway serves no other client while it looks at the keys: it asks for _PAGE at most.
    """
    argv = [*argv]
    for at in range(3, len(argv), 2):
        if option(argv[at - 1]) == b"COUNT":
            argv[at] = _fewer(argv[at])
    options = dict(zip(map(option, argv[2::2]), argv[3::2], strict=False))
    count: Command = ("COUNT", options[b"COUNT"]) if b"COUNT" in options else ()
    # The first SCAN only checks the arguments; its keys are ignored.
    few: Command = ("COUNT", 1) if len(argv) % 2 == 0 else ()
    commands: list[Command] = [("SCAN", *argv[1:], *few), ("SCAN", argv[1], *count)]
    checked, found = yield Batch(commands, resend=True, attempt=True)
    for reply in (checked, found):
        if isinstance(reply, ReplyError):
            raise reply
    cursor, listed = found
    matches, wanted = matcher(options.get(b"MATCH", b"*")), options.get(b"TYPE")
    names = [name for key in listed if (name := keys.name_of_meta(key)) is not None and matches(name)]
    plain = [key for key in listed if not keys.is_ours(key) and matches(key)]
    if view.region.adopted and plain:
        registries = (yield from _look(view, plain))[1]
        plain = [key for key in plain if not registries[key].fenced]
    if wanted is not None:
        types = yield Batch([("TYPE", key) for key in plain], resend=True)
        plain = [key for key, type_ in zip(plain, types, strict=True) if type_.lower() == wanted.lower()]
    streams = yield from _existing(view, names if wanted is None or wanted.lower() == b"stream" else [])
    return [cursor, plain + streams]


def _fewer(count: bytes) -> bytes:
    """Not more than _PAGE. What is no number is left to the engine, which refuses it."""
    is_more = count[:1] != b"0" and count.isdigit() and (len(count) > len(str(_PAGE)) or int(count) > _PAGE)
    return b"%d" % _PAGE if is_more and len(count) < 20 else count


def flush(view: View, argv: Argv) -> Plan[bytes]:
    """FLUSHDB, FLUSHALL: deletes plain keys and streams, keeps the region's identity.

    Not atomic: keys that other clients write meanwhile may stay. FLUSHALL is refused while another
    database is a region that holds keys. A damaged stream stays, and is the error after all others are gone.
    """
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"ASYNC", b"SYNC")):
        fail("ERR syntax error")
    [checked] = yield Batch([(argv[0], _PROBE)], resend=True, attempt=True)
    if isinstance(checked, ReplyError) and checked.code == "NOPERM":
        raise checked
    if argv[0].upper() == b"FLUSHALL":
        yield from _flush_other_databases()
    cursor, damaged = b"0", None
    while True:
        [(cursor, found)] = yield Batch([("SCAN", cursor, "COUNT", 1000)], resend=True)
        plain = [key for key in found if not keys.is_ours(key) or keys.is_left_over(key)]
        names = [name for key in found if (name := keys.name_of_meta(key)) is not None]
        registries = (yield from _look(view, names))[1] if names else {}
        damaged = next((each.damaged for each in registries.values() if each.damaged is not None), damaged)
        names = [name for name in names if registries[name].damaged is None]
        yield from _delete(view, names, [("UNLINK", key) for key in plain])
        if integer(cursor) == 0:
            if damaged is not None:
                raise damaged
            return b"OK"


def _flush_other_databases() -> Plan[None]:
    info, client = yield Batch([("INFO", "keyspace"), ("CLIENT", "INFO")], resend=True)
    words = dict(word.partition(b"=")[::2] for word in bytes(client).split())
    used = [line.split(b":")[0] for line in bytes(info).splitlines() if line.startswith(b"db")]
    others = [db[2:] for db in used if db != b"db" + words[b"db"]]
    if not others:
        return
    [reply] = yield Batch([("FCALL", "bs_database_flush", 1, keys.CONFIG, *others)], attempt=True)
    if isinstance(reply, ReplyError):
        if reply.code != "BSREGION":
            raise reply
        why = f"db{reply.text.split()[-1]} is another region and holds keys"
        raise RefusedError("FLUSHALL", why, "Use FLUSHDB in each database")
