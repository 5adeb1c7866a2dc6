"""INFO with the keys that users see. Counting takes a SCAN, so a large database is not counted every time."""

import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from braidstream.commands.keyspace import count_hidden
from braidstream.errors import BraidError
from braidstream.plan import Batch, Replies, arun

if TYPE_CHECKING:
    from braidstream.gateway.client import Client

# A count is good for so many times as long as it took.
_REST: Final = 20


class Hidden:
    """How many keys of a database are ours and not users' streams."""

    def __init__(self) -> None:
        self._count, self._good_until = 0, 0.0

    async def count(self, send: Callable[[Batch], Awaitable[Replies]]) -> int:
        began = time.monotonic()
        if began >= self._good_until:
            self._count = await arun(count_hidden(), send)
            self._good_until = time.monotonic() + _REST * (time.monotonic() - began)
        return self._count


async def corrected_info(client: "Client", reply: bytes) -> bytes:
    """INFO's reply with the number of keys that the client would see."""
    line = re.compile(rb"db%d:keys=(\d+),.*\r\n" % client.session.db)
    head, text = reply.split(b"\r\n", 1)[0], reply.split(b"\r\n", 1)[-1]
    if head[:1] not in (b"$", b"=") or not (found := line.search(text)):
        return reply
    try:
        await client.known.refresh_if_due()
        seen = int(found[1]) - await client.known.hidden.count(client.known.lane.send)
    except BraidError:
        return reply
    shown = found[0].replace(b"keys=%b" % found[1], b"keys=%d" % seen) if seen > 0 else b""
    body = (text[: found.start()] + shown + text[found.end() :])[:-2]
    return b"%b%d\r\n%b\r\n" % (head[:1], len(body), body)
