"""Refuses native commands that would destroy a region's storage or functions, or fill the storage.

Functions read what is stored, word by word, and Redis takes seconds for words that were made to have one hash
(engine/collisions.py). A gateway refuses such words in a command, but they can come in many commands, or in
one long value. So clients of a gateway store by stream commands alone.
"""

from typing import Final

from braidstream.commands.arguments import is_storage, shown, storage_error
from braidstream.engine.resp import Words, split_words
from braidstream.errors import RefusedError
from braidstream.gateway.client import Client

_OURS: Final = b"braidstream"
_DELETING: Final = frozenset((b"FLUSH", b"DELETE", b"RESTORE"))
# Native commands that do not add to a key.
_ADDING_NOTHING: Final = frozenset(
    (b"HGET", b"HGETALL", b"HMGET", b"HLEN", b"HKEYS", b"HVALS", b"HEXISTS", b"HSTRLEN", b"HSCAN", b"HDEL")
    + (b"LLEN", b"LRANGE", b"LINDEX", b"ZCARD", b"ZRANGE", b"ZSCORE", b"GET", b"STRLEN")
)
# They may add to a key that is not their first; where such keys are.
_STORING: Final = {
    **dict.fromkeys((b"LMOVE", b"BLMOVE", b"RPOPLPUSH", b"BRPOPLPUSH", b"SMOVE", b"BITOP"), slice(2, 3)),
    **dict.fromkeys((b"SORT", b"GEORADIUS", b"GEORADIUSBYMEMBER"), slice(2, None)),
    **dict.fromkeys((b"MSET", b"MSETNX"), slice(3, None, 2)),
    b"MSETEX": slice(2, None, 2),
}
_CALLS: Final = frozenset((b"FCALL", b"FCALL_RO"))


def deletes_functions(words: Words) -> bool:
    """Whether a FUNCTION command may delete the functions of braidstream."""
    return len(words) > 1 and words[1].upper() in _DELETING


def functions_refusal(client: Client, words: Words) -> RefusedError | None:
    """The error if a FUNCTION command would change the functions of braidstream, which run with the rights of
    every caller. None for the user of --functions-admin."""
    if words[0].upper() != b"FUNCTION" or not _changes_ours(words):
        return None
    admin = client.hub.settings.functions_admin
    if admin and client.user == admin.encode():
        return None
    what = f"FUNCTION {words[1].decode('ascii', 'replace').upper()}"
    why = "it may change the functions of braidstream, which every user of the region runs"
    instead = "Name other libraries, run it at the server itself, or start the gateway with --functions-admin"
    return RefusedError(what, why, instead)


def _changes_ours(words: Words) -> bool:
    about = words[1].upper() if len(words) > 1 else b""
    if about == b"DELETE":
        return any(word.lower().startswith(_OURS) for word in words[2:])
    if about == b"LOAD":
        return any(_is_ours(word) for word in words[2:])
    restores = about == b"RESTORE" and any(word.upper() in (b"FLUSH", b"REPLACE") for word in words[2:])
    return about == b"FLUSH" or restores


def _is_ours(code: bytes) -> bool:
    """Whether the first line of a library is `#!lua name=braidstream...`, as the engine reads it."""
    facts = split_words(code.partition(b"\n")[0]) or []
    return any(fact.lower().startswith(b"name=" + _OURS) for fact in facts)


def fills_storage(words: Words) -> bool:
    """Whether a native command may add to a key of our own, or calls a function of ours."""
    name, first = words[0].upper(), words[1] if len(words) > 1 else b""
    head = first[:3]
    if head == b"bs:" and is_storage(first):
        return name not in _ADDING_NOTHING
    if name in _CALLS:  # names of functions have no case
        return head.lower() == b"bs_"
    where = _STORING.get(name)
    return where is not None and any(map(is_storage, words[where]))


def storage_refusal(words: Words) -> RefusedError | None:
    """The error for a native command that `fills_storage`."""
    if not fills_storage(words):
        return None
    if words[0].upper() in _CALLS:
        why = "it is a function of braidstream, which clients of a gateway do not need"
        return RefusedError(f"FCALL {shown(words[1])}", why, "Use the stream commands")
    return storage_error(words[0], next(word for word in words[1:] if is_storage(word)))


async def swap_refusal(client: Client, words: Words) -> RefusedError | None:
    """The error if one of the two databases is a region; else None."""
    for db in {client.session.home, client.session.db}:
        if b"%d" % db in words[1:] and not await client.hub.database(db).is_absent():
            why = f"database {db} is a region, and its clients would write into the other database"
            return RefusedError("SWAPDB", why, "Swap databases that are not regions")
    return None


async def multi_refusal(client: Client, words: Words) -> RefusedError | None:
    """The error for a command that would destroy the region in a MULTI; outside, the gateway handles it."""
    name = words[0].upper()
    if (refused := storage_refusal(words)) is not None:
        return refused
    if name == b"SWAPDB":
        return await swap_refusal(client, words)
    if name == b"FLUSHALL":
        why = "the engine would flush the region's own storage too"
        return RefusedError("FLUSHALL inside MULTI", why, "Run it before or after, or use FLUSHDB")
    if name == b"FUNCTION" and deletes_functions(words):
        what = f"FUNCTION {words[1].decode('ascii', 'replace').upper()} inside MULTI"
        return RefusedError(what, "it may delete the functions of braidstream", "Run it before or after")
    return functions_refusal(client, words)
