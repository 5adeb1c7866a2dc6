"""Refuses native commands that would destroy a region's storage or functions."""

from typing import Final

from braidstream.commands.arguments import is_storage, storage_error
from braidstream.commands.keyspace import OVERWRITING
from braidstream.errors import RefusedError
from braidstream.gateway.client_state import Client
from braidstream.net.resp import Words

_DELETING: Final = frozenset((b"FLUSH", b"DELETE", b"RESTORE"))


def deletes_functions(words: Words) -> bool:
    """Whether a FUNCTION command may delete the functions of braidstream."""
    return len(words) > 1 and words[1].upper() in _DELETING


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
    if name in OVERWRITING and len(words) > 2 and is_storage(words[1]):
        return storage_error(name, words[1])
    if name == b"SWAPDB":
        return await swap_refusal(client, words)
    if name == b"FLUSHALL":
        why = "the engine would flush the region's own storage too"
        return RefusedError("FLUSHALL inside MULTI", why, "Run it before or after, or use FLUSHDB")
    if name == b"FUNCTION" and deletes_functions(words):
        what = f"FUNCTION {words[1].decode('ascii', 'replace').upper()} inside MULTI"
        return RefusedError(what, "it may delete the functions of braidstream", "Run it before or after")
    return None
