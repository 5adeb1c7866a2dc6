"""INFO with the number of keys that users see, and another mode. Counting takes a SCAN, so it is cached."""

import re
import time
from collections.abc import Awaitable, Callable
from typing import Final

from braidstream.commands.keyspace import count_expiring, hidden_keys
from braidstream.errors import BraidError
from braidstream.net.resp import bulk
from braidstream.protocol.plan import Batch, Replies, arun

# A count stays valid for this many times its own duration.
_REST: Final = 20
_MODE: Final = re.compile(rb"\b(redis_mode|server_mode):\w+")
_ENABLED: Final = re.compile(rb"\bcluster_enabled:\d")
_HELLO_MODE: Final = re.compile(rb"\$4\r\nmode\r\n\$\d+\r\n\w+\r\n")


class Hidden:
    """Keys that users do not see: ours, except one for each stream."""

    def __init__(self) -> None:
        self._keys, self._expires, self._good_until = 0, 0, 0.0

    async def count(self, send: Callable[[Batch], Awaitable[Replies]]) -> tuple[int, int]:
        """How many keys, and how many of them have a time to live."""
        began = time.monotonic()
        if began >= self._good_until:
            ours, streams = await arun(hidden_keys(), send)
            self._keys = len(ours) - streams
            self._expires = await arun(count_expiring(ours), send)
            self._good_until = time.monotonic() + _REST * (time.monotonic() - began)
        return self._keys, self._expires


async def corrected_info(
    db: int, reply: bytes, count_hidden: Callable[[], Awaitable[tuple[int, int]]]
) -> bytes:
    """INFO's reply with the numbers of keys that a client of the database would see."""
    line = re.compile(rb"db%d:keys=(\d+),expires=(\d+),avg_ttl=(\d+)(.*\r\n)" % db)
    head, text = reply.split(b"\r\n", 1)[0], reply.split(b"\r\n", 1)[-1]
    if head[:1] not in (b"$", b"=") or not (found := line.search(text)):
        return reply
    try:
        keys, expires = await count_hidden()
    except BraidError:
        return reply
    shown = _line(db, found, (int(found[1]) - keys, int(found[2]) - expires))
    body = (text[: found.start()] + shown + text[found.end() :])[:-2]
    return b"%b%d\r\n%b\r\n" % (head[:1], len(body), body)


def info_with_mode(reply: bytes, mode: bytes | None) -> bytes:
    """INFO's reply with another mode: cluster or standalone. None: as the engine says it."""
    head, _, text = reply.partition(b"\r\n")
    if mode is None or head[:1] not in (b"$", b"="):
        return reply
    body = _MODE.sub(rb"\1:" + mode, text[:-2])
    body = _ENABLED.sub(b"cluster_enabled:%d" % (mode == b"cluster"), body)
    return b"%b%d\r\n%b\r\n" % (head[:1], len(body), body)


def hello_with_mode(reply: bytes, mode: bytes | None) -> bytes:
    """The same for HELLO."""
    return reply if mode is None else _HELLO_MODE.sub(bulk(b"mode") + bulk(mode), reply, count=1)


def _line(db: int, found: re.Match[bytes], seen: tuple[int, int]) -> bytes:
    """A line of the keyspace section; empty for a database without keys."""
    keys, expires = seen
    if keys <= 0:
        return b""
    mean_ms = int(found[3]) if expires > 0 else 0
    return b"db%d:keys=%d,expires=%d,avg_ttl=%d%b" % (db, keys, max(expires, 0), mean_ms, found[4])
