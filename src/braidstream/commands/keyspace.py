"""Commands on keys, where a key may be a stream: DEL, EXISTS, TYPE, TTL, SCAN, KEYS, FLUSHDB and kin.

A name is looked for twice: as a plain key, by the native command, and as a stream. Plain keys are
served as ever, so code that mixes both needs no second client.
"""

from collections.abc import Callable, Iterable
from typing import Any

from braidstream import keys
from braidstream.braid import View, delete_command, exists_command, fresh, registry_of
from braidstream.commands.arguments import Argv, fail, integer
from braidstream.commands.glob import matcher
from braidstream.errors import RefusedError, ReplyError
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Strand

Call = Callable[[bytes, Iterable[Strand]], Command]


def on_streams(
    view: View, names: Iterable[bytes], call: Call, native: Command | None = None
) -> Plan[tuple[Any, dict[bytes, int]]]:
    """A native command, and a function on each name that is a stream: (native reply, {name: reply}).

    One round trip where the strands are known, one more where they are not.
    """
    distinct = list(dict.fromkeys(names))
    first: list[Command] = [] if native is None else [native]
    asked = [(name, view.known.get(name)) for name in distinct]
    commands = [call(name, known) if known else registry_of(name) for name, known in asked]
    replies = yield Batch([*first, *commands], attempt=True)
    plain = replies.pop(0) if native is not None else None
    if isinstance(plain, ReplyError):
        raise plain
    found = dict.fromkeys(distinct, 0)
    for (name, known), reply in zip(asked, replies, strict=True):
        if isinstance(reply, ReplyError) and reply.code != "BSSTALE":
            raise reply
        if known and not isinstance(reply, ReplyError):
            found[name] = reply
        elif known or view.learn(name, reply).cuts:
            if known:
                view.known.pop(name, None)
            found[name] = yield from fresh(view, name, lambda strands, name=name: call(name, strands))  # type: ignore[misc]
    return plain, found


def delete(view: View, argv: Argv) -> Plan[int]:
    """DEL, UNLINK key ...: plain keys natively; a stream is emptied and keeps its last IDs."""
    plain, streams = yield from on_streams(view, argv[1:], delete_command, tuple(argv))
    return int(plain) + sum(streams.values())


def count_existing(view: View, argv: Argv) -> Plan[int]:
    """EXISTS key ...: a name given twice counts twice."""
    plain, streams = yield from on_streams(view, argv[1:], exists_command, tuple(argv))
    return int(plain) + sum(streams[name] for name in argv[1:])


def kind(view: View, argv: Argv) -> Plan[bytes]:
    """TYPE key."""
    plain, streams = yield from on_streams(view, argv[1:], exists_command, tuple(argv))
    return b"stream" if streams[argv[1]] else plain


def time_to_live(view: View, argv: Argv) -> Plan[int]:
    """TTL, PTTL, EXPIRETIME, PEXPIRETIME key: a stream never expires."""
    plain, streams = yield from on_streams(view, argv[1:2], exists_command, tuple(argv))
    return -1 if streams[argv[1]] else plain


def persist(view: View, argv: Argv) -> Plan[int]:
    """PERSIST key: nothing to take from a stream."""
    plain, streams = yield from on_streams(view, argv[1:2], exists_command, tuple(argv))
    return 0 if streams[argv[1]] else plain


def _only_plain(view: View, argv: Argv, name: bytes, why: str, instead: str) -> Plan[Any]:
    plain, streams = yield from on_streams(view, [name], exists_command, tuple(argv))
    if streams[name]:
        raise RefusedError(argv[0].decode("ascii", "replace").upper(), why, instead)
    return plain


def expire(view: View, argv: Argv) -> Plan[Any]:
    """EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT key ...: refused on a stream."""
    why = "an expired strand forgets its last ID and would mint the same IDs again"
    return (yield from _only_plain(view, argv, argv[1], why, "Use XTRIM MINID to drop old entries, or DEL"))


def dump(view: View, argv: Argv) -> Plan[Any]:
    """DUMP key: refused on a stream."""
    why = "a stream is several keys, one for each writer, and RESTORE could not bring them back as one"
    return (yield from _only_plain(view, argv, argv[1], why, "Use COPY within a region, or XRANGE to export"))


def describe(view: View, argv: Argv) -> Plan[Any]:
    """OBJECT ENCODING|IDLETIME|FREQ|REFCOUNT key: of the home strand. OBJECT HELP."""
    if len(argv) != 3:
        [reply] = yield Batch([tuple(argv)], resend=True)
        return reply
    _, streams = yield from on_streams(view, [argv[2]], exists_command)
    name = argv[2]
    if streams[name]:
        strands = view.known.get(name, ())
        home = view.minted(name)
        name = home.key if home in strands else strands[0].key
    [reply] = yield Batch([(*argv[:2], name)], resend=True)
    return reply


def watch(view: View, argv: Argv) -> Plan[Any]:
    """WATCH key ...: the plain keys, the registries, then every strand there is or may be."""
    metas = [keys.meta(name) for name in argv[1:]]
    replies = yield Batch([("WATCH", *argv[1:], *metas), *map(registry_of, argv[1:])])
    strands = list[bytes]()
    for name, reply in zip(argv[1:], replies[1:], strict=True):
        known = view.learn(name, reply).strands
        strands += [strand.key for strand in {*known, view.minted(name), view.chosen(name)}]
    yield Batch([("WATCH", *strands)])
    return b"OK"


def _existing(view: View, names: Iterable[bytes]) -> Plan[list[bytes]]:
    wanted = list(names)
    if not wanted:
        return []
    _, found = yield from on_streams(view, wanted, exists_command)
    return [name for name in wanted if found[name]]


def list_keys(view: View, argv: Argv) -> Plan[list[bytes]]:
    """KEYS pattern: plain keys and streams, by the names users gave them."""
    plain, metas = yield Batch([("KEYS", argv[1]), ("KEYS", b"bs:meta:*")], resend=True)
    matches = matcher(argv[1]).match
    names = [name for key in metas if (name := keys.name_of_meta(key)) is not None and matches(name)]
    streams = yield from _existing(view, names)
    return [key for key in plain if not keys.is_ours(key)] + streams


def scan(view: View, argv: Argv) -> Plan[list[Any]]:
    """SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]: each stream once, where its registry lies."""
    pattern, wanted, count = b"*", None, list[bytes]()
    for option, value in zip(argv[2::2], argv[3::2], strict=False):
        if option.upper() == b"MATCH":
            pattern = value
        elif option.upper() == b"TYPE":
            wanted = value.lower()
        elif option.upper() == b"COUNT":
            count = [option, value]
    if len(argv) % 2 or any(word.upper() not in (b"MATCH", b"TYPE", b"COUNT") for word in argv[2::2]):
        fail("ERR syntax error")
    [(cursor, found)] = yield Batch([("SCAN", argv[1], *count)], resend=True)
    matches = matcher(pattern).match
    names = [name for key in found if (name := keys.name_of_meta(key)) is not None and matches(name)]
    plain = [key for key in found if not keys.is_ours(key) and matches(key)]
    if wanted is not None:
        types = yield Batch([("TYPE", key) for key in plain], resend=True)
        plain = [key for key, type_ in zip(plain, types, strict=True) if type_ == wanted]
    streams = yield from _existing(view, names if wanted in (None, b"stream") else [])
    return [cursor, plain + streams]


def flush(view: View, argv: Argv) -> Plan[bytes]:
    """FLUSHDB, FLUSHALL [ASYNC|SYNC]: every plain key goes, every stream is deleted; who we are stays.

    Not one step: what others write meanwhile may stay. FLUSHALL is this database, and is refused
    while others hold keys.
    """
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"ASYNC", b"SYNC")):
        fail("ERR syntax error")
    if argv[0].upper() == b"FLUSHALL":
        yield from _refuse_other_databases()
    cursor = b"0"
    while True:
        [(cursor, found)] = yield Batch([("SCAN", cursor, "COUNT", 1000)], resend=True)
        plain = [key for key in found if not keys.is_ours(key) or keys.is_copy(key)]
        if plain:
            yield Batch([("UNLINK", key) for key in plain])
        names = [name for key in found if (name := keys.name_of_meta(key)) is not None]
        if names:
            yield from on_streams(view, names, delete_command)
        if integer(cursor) == 0:
            return b"OK"


def _refuse_other_databases() -> Plan[None]:
    info, client = yield Batch([("INFO", "keyspace"), ("CLIENT", "INFO")], resend=True)
    words = dict(word.partition(b"=")[::2] for word in bytes(client).split())
    used = [line.split(b":")[0] for line in bytes(info).splitlines() if line.startswith(b"db")]
    others = [db.decode() for db in used if db != b"db" + words[b"db"]]
    if others:
        raise RefusedError(
            "FLUSHALL",
            f"{', '.join(others)} hold keys too, perhaps another region's",
            "Use FLUSHDB in each database",
        )
