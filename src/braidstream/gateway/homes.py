"""Writes to logs whose home is another region: the gateway runs them there, as the client's user.

    client -- TWRITE --> gateway of region 3 -- HOME 1 --> server of region 1 --> the offset

A refused write has written nothing, so it may run elsewhere. A write whose reply is lost is not sent again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from braidstream.clients.shared_multi_region import link_lag
from braidstream.config import RegionConfig
from braidstream.engine.address import Address, parse_address
from braidstream.engine.redis_py import resp2
from braidstream.errors import BraidError, ConfigError, HomeError, LostError, ReplyError
from braidstream.gateway.client import Client
from braidstream.gateway.database import Database
from braidstream.gateway.lanes import Backends, Lane, one_server
from braidstream.gateway.session import Login
from braidstream.observability.metrics import Family
from braidstream.plan import gather
from braidstream.plan.gather import Queued
from braidstream.plan.lookup import HomeSearch, is_elsewhere
from braidstream.plan.plan import Batch, Replies, arun
from braidstream.plan.view import Carriage

_REFRESH_S: Final = 0.4
# A region that sends nothing for this time is cut off.
_ANSWERS_WITHIN_S: Final = 10.0

Send = Callable[[Batch], Awaitable[Replies]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where writes run: a region's cache, and the client's connection to it."""

    database: Database
    send: Send


class OtherRegion:
    """Another region, as the gateway reaches it. It reads which region it is with the rights of the file."""

    def __init__(self, region: RegionConfig) -> None:
        self.number, self.name = region.id, region.name
        self._address: Address = parse_address(region.url)
        nodes = one_server(self._address)
        self.database = Database(self._address, nodes)
        self._backends = Backends(self._address, nodes, 0)

    async def refresh(self) -> None:
        """Read the region if the cache is stale. Raises if it does not answer, or is another region."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                await self.database.refresh_if_due()
        except TimeoutError:
            self.database.lane.abandon()
            raise LostError(str(self._address), "it does not answer", wrote=False) from None
        region = self.database.cache.region
        if region is None or region.id != self.number:
            raise ConfigError(f"the server of region {self.name!r} in the file is another region.")

    async def keep_fresh(self) -> None:
        """Refresh the cache of a region in use, so that no write waits for it."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            try:
                async with asyncio.timeout(_ANSWERS_WITHIN_S):
                    await self._follow_primary()
                    await self.database.keep_fresh()
            except TimeoutError:
                self.database.lane.abandon()

    async def _follow_primary(self) -> None:
        if self._address.sentinels is not None and self.database.lane.is_connected:
            with suppress(LostError):  # no sentinel answers: keep the connections
                place = await self._address.sentinels.primary()
                self._backends.leave_others(place)
                self.database.lane.leave_others(place)

    async def lag_of(self, name: str) -> float | None:
        """For how many seconds this region has had entries that another one lacks; None if unknown."""
        with suppress(BraidError, TimeoutError):
            await self.refresh()
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                return await arun(link_lag(name), self.database.lane.send)
        return None

    def borrow(self, login: Login | None) -> Lane:
        return self._backends.borrow(login, self._address.db, self.database.forget)

    def give_back(self, lane: Lane) -> None:
        self._backends.give_back(lane)

    def close(self) -> None:
        self._backends.close()
        self.database.lane.close()


async def _send(lane: Lane, batch: Batch) -> Replies:
    assert lane.only is not None
    conn = await lane.only.ready()
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            return await conn.send(batch)
    except TimeoutError:
        why = f"it said nothing for {_ANSWERS_WITHIN_S:g} s"
        lane.abandon(why)
        raise LostError(conn.name, why, wrote=not batch.resend) from None


class Homes:
    """All other regions of the file."""

    def __init__(self, here: int, others: Mapping[int, OtherRegion]) -> None:
        self.here, self.others = here, others
        self.forwarded: dict[tuple[str, ...], int] = {(each.name,): 0 for each in others.values()}

    async def forward(self, client: Client, queued: list[Queued]) -> None:
        """Run the writes that were refused at the homes of their logs, in order. Each gets its result."""
        if client.session.db != client.hub.db:
            return  # the file is about one database only
        by_log = dict[bytes, list[Queued]]()
        for item in queued:
            if is_elsewhere(item.result):
                by_log.setdefault(item.argv[1], []).append(item)
        for items in by_log.values():
            await self._follow(client, items)

    async def _follow(self, client: Client, items: list[Queued]) -> None:
        search = HomeSearch(self.here, time.monotonic())
        while left := [item for item in items if is_elsewhere(item.result)]:
            try:
                number, wait_s = search.follow(left[0].result, time.monotonic())
                await asyncio.sleep(wait_s)
                place = await self._place(client, number)
                if place is None:
                    return  # no such region in the file: the error says where the home is
                await _run(place, left)
            except LostError as lost:
                for item in left:
                    item.result = lost if lost.wrote else self._unreachable(item, number, lost)
                return
            except BraidError as error:
                for item in left:
                    item.result = error
                return
            if number in self.others:
                done = sum(not isinstance(item.result, BraidError) for item in left)
                self.forwarded[self.others[number].name,] += done

    def _unreachable(self, item: Queued, number: int, lost: LostError) -> HomeError:
        name = self.others[number].name if number in self.others else "this one"
        why = f" ({name}), which cannot be reached: {lost.why}. Nothing was written"
        return HomeError(item.argv[1].decode(errors="replace"), number, why)

    async def _place(self, client: Client, number: int) -> Place | None:
        if number == self.here:
            await client.database.refresh_if_due()
            return Place(client.database, client.send)
        region = self.others.get(number)
        if region is None:
            return None
        await region.refresh()
        login = client.session.login
        lane = client.away.get((region, login))
        if lane is None:
            lane = client.away[region, login] = region.borrow(login)
        if login is None and not await lane.admits(client.connected_at):
            raise ReplyError("NOAUTH Authentication required.")
        return Place(region.database, lambda batch: _send(lane, batch))

    def families(self) -> list[Family]:
        """For /metrics."""
        text = "Writes to logs that were forwarded to their home, by region."
        return [Family.counter("braid_gateway_forwarded_total", text, self.forwarded, ("home",))]

    def close(self) -> None:
        for region in self.others.values():
            region.close()


async def _run(place: Place, items: list[Queued]) -> None:
    """Run writes in a region: one by its plan, several as a pipeline. Lost connections are raised."""
    if len(items) == 1:
        [item] = items
        assert item.spec is not None
        try:
            plan = item.spec.plan(place.database.view(), item.argv)
            item.result = await arun(plan, place.send)
        except ReplyError as error:
            item.result = error
        return
    again = [Queued(item.args, item.spec, item.argv) for item in items]
    view = place.database.view(Carriage.PIPELINE)
    await arun(gather.pipeline(view, again, resp2), place.send)
    for item, done in zip(items, again, strict=True):
        item.result = done.result
