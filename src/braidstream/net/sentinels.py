"""Who the primary is: sentinels are asked, all at once, and the newest configuration wins.

During a failover they differ: the one that leads it knows the new primary first, one that was cut off may
still name the old one. Each configuration has an epoch, so no vote is needed. The answer is kept for a
moment: many connections are made at once after a failover.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

import hiredis

from braidstream.errors import LostError, ReplyError

Place = tuple[str, int]

ANSWER_WITHIN_S: Final = 1.0
KEPT_S: Final = 0.5


@dataclass(frozen=True, order=True, slots=True)
class Opinion:
    """What sentinels say: the primary by the newest configuration, and whether a failover is going on."""

    epoch: int
    primary: Place
    failing_over: bool


@dataclass(slots=True)
class _Memory:
    at: float = float("-inf")
    answer: Opinion | LostError | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels that watch one service."""

    places: tuple[Place, ...]
    service: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    _memory: _Memory = field(default_factory=_Memory, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.service} (sentinels {','.join(f'{host}:{port}' for host, port in self.places)})"

    async def primary(self) -> Place:
        """Where the primary is now. LostError if no sentinel knows."""
        return (await self.query()).primary

    async def query(self) -> Opinion:
        """What all of them say together. LostError if none answers."""
        memory = self._memory
        async with memory.lock:
            if time.monotonic() - memory.at > KEPT_S:
                memory.answer = await self._query_all()
                memory.at = time.monotonic()
        if isinstance(memory.answer, LostError):
            raise LostError(str(self), memory.answer.why, wrote=False)
        assert memory.answer is not None
        return memory.answer

    async def _query_all(self) -> Opinion | LostError:
        said = await asyncio.gather(*map(self._query, self.places), return_exceptions=True)
        if known := [answer for answer in said if isinstance(answer, Opinion)]:
            return replace(max(known), failing_over=any(answer.failing_over for answer in known))
        return LostError(str(self), "; ".join(str(each) or type(each).__name__ for each in said), wrote=False)

    async def _query(self, place: Place) -> Opinion:
        """One sentinel's opinion."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(*place, ssl=self.tls)
            try:
                commands: list[tuple[str, ...]] = [
                    ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service),
                    ("SENTINEL", "MASTER", self.service),
                ]
                if self.password is not None:
                    commands.insert(0, ("AUTH", *((self.user,) if self.user else ()), self.password))
                writer.write(b"".join(map(_pack, commands)))
                *_, address, facts = await _replies(reader, len(commands))
            finally:
                writer.close()
        pairs = dict(zip(facts[::2], facts[1::2], strict=True))
        primary = address[0].decode(), int(address[1])
        return Opinion(int(pairs[b"config-epoch"]), primary, b"failover_in_progress" in pairs[b"flags"])


def _pack(words: tuple[str, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub errs
    return packed


async def _replies(reader: asyncio.StreamReader, count: int) -> list[Any]:
    parser, found = hiredis.Reader(replyError=ReplyError), list[Any]()
    while len(found) < count:
        data = await reader.read(65536)
        if not data:
            raise ConnectionError("a sentinel closed the connection")
        parser.feed(data)
        while len(found) < count and (reply := parser.gets()) is not False:
            if isinstance(reply, ReplyError):
                raise reply
            found.append(reply)
    if found[-2] is None:
        raise ReplyError("ERR the sentinel does not know this service")
    return found
