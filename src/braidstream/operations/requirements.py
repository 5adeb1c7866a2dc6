"""Faults of servers that lose a region's data: which versions have them, and in which setup.

A server runs what its append-only file says as the user `default`. Older versions check the rights of that
user for each transaction, and drop it without a word if one is missing: redis/redis#14541,
valkey-io/valkey#3983. What functions write is a transaction, so a region loses most of its entries.
"""

from collections.abc import Mapping
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.model.strand import facts
from braidstream.plan.lookup import read_info
from braidstream.plan.plan import Batch, Plan

# The first versions without the fault: of Redis, and of each line of Valkey.
_REDIS_FIXED: Final = (8, 6)
_VALKEY_FIXED: Final[dict[tuple[int, ...], int]] = {(8, 0): 11, (8, 1): 10, (9, 0): 6, (9, 1): 2}
CURE: Final = (
    "ACL SETUSER default on resetpass >LONG-PASSWORD ~* &* +@all, and ACL SAVE or the same line in the "
    "server's file, before the next restart. Or upgrade the server to Redis 8.6, Valkey 8.0.11, 8.1.10, "
    "9.0.6 or 9.1.2"
)


def engine_of(info: Mapping[bytes, bytes]) -> str:
    """The server and its version, like `redis 8.6.3`."""
    if b"valkey_version" in info:
        return f"valkey {info[b'valkey_version'].decode()}"
    return f"redis {info.get(b'redis_version', b'?').decode()}"


def read_default_user() -> Plan[bool | None]:
    """Whether the user `default` may run everything on all keys. None if that cannot be checked."""
    [reply] = yield Batch([("ACL", "GETUSER", "default")], resend=True, attempt=True)
    if reply is None or isinstance(reply, ReplyError):
        return None
    rules = facts(reply)
    return rules.get(b"commands") == b"+@all" and rules.get(b"keys") == b"~*"


def drops_transactions(info: Mapping[bytes, bytes], default_is_whole: bool | None) -> str:
    """Why the server loses transactions at its next restart; empty if it does not, or cannot be checked."""
    if default_is_whole is not False or info.get(b"aof_enabled") != b"1" or not _has_fault(engine_of(info)):
        return ""
    return (
        f"this server ({engine_of(info)}) loads its append-only file with the rights of the user default. "
        "That user may not do everything, so at the next restart the server loses what transactions and "
        "functions wrote."
    )


def refuse_dropped_transactions() -> Plan[None]:
    """Refuse a server that would lose most of a region at its next restart."""
    if why := drops_transactions((yield from read_info()), (yield from read_default_user())):
        raise BraidError(f"{why} Nothing was changed. Type first: {CURE}.")


def _has_fault(engine: str) -> bool:
    name, _, text = engine.partition(" ")
    numbers = tuple(int(part) for part in text.split(".") if part.isdigit())
    if name == "redis":
        return numbers < _REDIS_FIXED
    return numbers[:2] < min(_VALKEY_FIXED) or numbers[2:] < (_VALKEY_FIXED.get(numbers[:2], 0),)
