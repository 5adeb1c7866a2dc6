"""Finds the primary: queries all sentinels at once, and the newest configuration wins.

During a failover sentinels differ: the leader knows the new primary first, and a partitioned one may still
name the old one. Each configuration has an epoch, so no vote is needed. The result is cached briefly, because
many clients reconnect at once after a failover.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

import hiredis

from braidstream.errors import LostError, ReplyError

Place = tuple[str, int]

TIMEOUT_S: Final = 1.0
CACHE_S: Final = 0.5


@dataclass(frozen=True, order=True, slots=True)
class Report:
    """What sentinels report: the primary of a configuration, and whether a failover is in progress."""

    epoch: int
    primary: Place
    failing_over: bool


@dataclass(slots=True)
class _Cached:
    at: float = float("-inf")
    report: Report | LostError | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels that watch one service."""

    places: tuple[Place, ...]
    service: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    _cached: _Cached = field(default_factory=_Cached, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.service} (sentinels {','.join(f'{host}:{port}' for host, port in self.places)})"

    async def primary(self) -> Place:
        """The primary's address. Raises LostError if no sentinel knows it."""
        return (await self.query()).primary

    async def query(self) -> Report:
        """The newest report of all sentinels. Raises LostError if none answers."""
        cached = self._cached
        async with cached.lock:
            if time.monotonic() - cached.at > CACHE_S:
                cached.report = await self._query_all()
                cached.at = time.monotonic()
        if isinstance(cached.report, LostError):
            raise LostError(str(self), cached.report.why, wrote=False)
        assert cached.report is not None
        return cached.report

    def expire(self) -> None:
        """The cached report is out of date: a sentinel has reported a failover."""
        self._cached.at = float("-inf")

    async def _query_all(self) -> Report | LostError:
        results = await asyncio.gather(*map(self._query, self.places), return_exceptions=True)
        if reports := [each for each in results if isinstance(each, Report)]:
            return replace(max(reports), failing_over=any(each.failing_over for each in reports))
        why = "; ".join(str(each) or type(each).__name__ for each in results)
        return LostError(str(self), why, wrote=False)

    async def _query(self, place: Place) -> Report:
        address, facts = await self._send(
            place,
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service),
            ("SENTINEL", "MASTER", self.service),
        )
        if address is None:
            raise ReplyError("ERR the sentinel does not know this service")
        pairs = dict(zip(facts[::2], facts[1::2], strict=True))
        primary = address[0].decode(), int(address[1])
        return Report(int(pairs[b"config-epoch"]), primary, b"failover_in_progress" in pairs[b"flags"])

    async def fail_over(self) -> None:
        """Make the sentinels promote a replica, as SENTINEL FAILOVER does. They have begun when it returns.

        Raises ReplyError if they refuse, LostError if none answers.
        """
        try:
            await self._ask_one("FAILOVER")
        except ReplyError as error:
            if error.code != "INPROG":
                raise

    async def priorities(self) -> list[int]:
        """The replica-priority of each replica. The sentinels promote none that has 0."""
        replicas = await self._ask_one("REPLICAS")
        pairs = (dict(zip(each[::2], each[1::2], strict=True)) for each in replicas)
        return [int(each[b"slave-priority"]) for each in pairs]

    async def _ask_one(self, verb: str) -> Any:
        """The reply of the first sentinel that answers."""
        whys = list[str]()
        for place in self.places:
            try:
                [reply] = await self._send(place, ("SENTINEL", verb, self.service))
                return reply
            except (OSError, TimeoutError) as error:
                whys.append(str(error) or type(error).__name__)
        raise LostError(str(self), "; ".join(whys), wrote=False)

    async def _send(self, place: Place, *commands: tuple[str, ...]) -> list[Any]:
        first = login(self)
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*place, ssl=self.tls)
            try:
                writer.write(b"".join(map(pack_words, [*first, *commands])))
                replies = await _replies(reader, len(first) + len(commands))
            finally:
                writer.close()
        return replies[len(first) :]


def login(sentinels: Sentinels) -> list[tuple[str, ...]]:
    """The first commands of a connection to a sentinel."""
    if sentinels.password is None:
        return []
    return [("AUTH", *((sentinels.user,) if sentinels.user else ()), sentinels.password)]


def pack_words(words: tuple[str, ...]) -> bytes:
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
    return found
