"""A client's own connections to the nodes of a cluster, for what a shared lane cannot carry.

    one for each node       native commands, WATCH and MULTI
    more of them            a read that waits in several slots of one node
    the client's `own`      commands without keys, subscriptions, the state of the client

A WATCH belongs to one connection. If the MULTI would run elsewhere, because the slot has moved or the
connection was lost, the answer is that of a changed key: nothing is run.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from braidstream.clusters.command_keys import NativeKeys, keys_of, slot_of, word_of
from braidstream.clusters.raw_sender import REDIRECTS, Delivery, no_keys
from braidstream.clusters.redirects import Leg, Patience
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import elements, error_line
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.gateway.lanes import Nodes
from braidstream.gateway.own_connection import OwnConnection, parse
from braidstream.model.strand import Command, pack
from braidstream.plan.plan import Batch, Exchange, Replies, unpack

# How often the waits of other slots are ended, and for how long, after one has its reply.
_END_AGAIN_S: Final = 0.1
_END_WITHIN_S: Final = 5.0
_UNWATCH: Final = ("UNWATCH",)

Open = Callable[[Place | None], Awaitable[OwnConnection]]
Unblock = Callable[[Place, int], Awaitable[None]]


class NodeConnections:
    """See the top of the file.

    open_to: a new connection with the client's state; None: the client's own one.
    unblock: ends the wait of a connection to a node, by its number there.
    watch_slot: the slot of the keys that the client WATCHes.
    """

    def __init__(self, nodes: Nodes, open_to: Open, unblock: Unblock) -> None:
        self._nodes, self._open, self._unblock = nodes, open_to, unblock
        self._held = dict[tuple[Place, int], OwnConnection]()
        self._numbers = dict[OwnConnection, int]()
        self._watched = list[OwnConnection]()
        self._patience = Patience()
        self.watch_slot: int | None = None

    @property
    def is_idle(self) -> bool:
        return all(own.is_idle for own in self._held.values())

    def __bool__(self) -> bool:
        return bool(self._held)

    def close(self) -> None:
        for own in self._held.values():
            own.close()
        self._held, self._numbers, self._watched, self.watch_slot = {}, {}, [], None

    async def follow(self, command: Command) -> None:
        """A command has changed the state of the client, such as its login. Connections are opened again,
        unless one of them WATCHes: then all of them get the command."""
        if not self._watched:
            self.close()
            return
        for own in self._held.values():
            with suppress(LostError):
                [reply] = await own.collect(pack([command]), 1, writes=False)
                if reply.startswith(b"-"):
                    own.close()

    async def at(self, place: Place | None, number: int = 0) -> OwnConnection:
        """A connection to a node; opened if there is none. Several may be open to one node."""
        if place is None:
            return await self._open(None)
        own = self._held.get((place, number))
        if own is None or own.lost is not None:
            if own is not None:
                self._numbers.pop(own, None)
            await self._nodes.ready(place)
            own = self._held[place, number] = await self._open(place)
        return own

    # Batches

    async def send(self, batch: Batch) -> Replies:
        """Send a batch of a plan. The replies of an Exchange stay raw."""
        if self._nodes.slots.only is not None:
            return await (await self.at(None)).send(batch)
        if list(batch.commands) == [_UNWATCH]:
            await self.unwatch()
            return [b"OK"]
        if batch.atomic and self._watched and not self._watches_where_it_runs(batch, no_keys):
            await self.unwatch()
            return None  # type: ignore[return-value]  # only plans that WATCH get it
        return await self._deliver(batch, no_keys)

    async def run_multi(self, batch: Batch, keys: NativeKeys) -> Replies:
        """A MULTI with native commands of the client."""
        if self._watched and not self._watches_where_it_runs(batch, keys):
            await self.unwatch()
            return None  # type: ignore[return-value]
        return await self._deliver(batch, keys)

    async def _deliver(self, batch: Batch, keys: NativeKeys) -> Replies:
        carrier, slots = _Carrier(self, raw=isinstance(batch, Exchange)), self._nodes.slots
        # A MULTI without keys must run where the WATCH is.
        home = self._watched[0].place if batch.atomic and self._watched else None
        try:
            delivery = Delivery(slots, carrier, keys=keys, home=home)
            watching = bool(self._watched)
            found = await delivery.send(batch, watching=watching, patience=self._patience)
        except BaseException:
            self._patience.start_over()
            raise
        finally:
            if batch.atomic:
                self._watched, self.watch_slot = [], None  # EXEC ends it, also if it is refused
        if _UNWATCH in batch.commands:
            await self.unwatch()  # on whichever connection it is
        if found is None:
            return None  # type: ignore[return-value]
        self._patience.start_over()
        if not isinstance(batch, Exchange):
            return unpack(batch, found, resp2)
        if not batch.atomic:
            return found
        *queued, last = found
        if isinstance(last, ReplyError):
            raise next((each for each in queued if isinstance(each, ReplyError)), last)
        return last  # type: ignore[no-any-return]

    async def run_native(self, commands: Sequence[Command], keys: NativeKeys, *, reads: bool) -> list[bytes]:
        """Native commands of the client, and the raw reply to each. reads: none of them writes."""
        carrier = _Carrier(self, raw=True)
        delivery = Delivery(self._nodes.slots, carrier, keys=keys, keeps_losses=True)
        found = await delivery.send(Exchange(commands, resend=reads), watching=bool(self._watched))
        assert found is not None
        return [error_line(each) if isinstance(each, BraidError) else bytes(each) for each in found]

    # WATCH

    @property
    def watches(self) -> bool:
        return bool(self._watched)

    def note_watch(self, own: OwnConnection) -> None:
        if own not in self._watched:
            self._watched.append(own)

    def _watches_where_it_runs(self, batch: Batch, keys: NativeKeys) -> bool:
        found = (key for each in batch.commands for key in keys_of(each, keys))
        slot = next((slot_of(key) for key in found), self.watch_slot)
        place = self._watched[0].place if slot is None else self._nodes.slots.owner(slot)
        own = None if place is None else self._held.get((place, 0))
        return own is not None and own.lost is None and self._watched == [own]

    async def unwatch(self) -> None:
        """End every WATCH of the client."""
        watched, self._watched, self.watch_slot = self._watched, [], None
        for own in watched:
            with suppress(LostError):
                await own.collect(pack([_UNWATCH]), 1, writes=False)

    # Waits in several slots

    async def race(self, places: list[Place], legs: list[Leg], writes: bool) -> list[list[Any]]:
        """The raw replies, or a LostError for each connection that was lost."""
        owns, count = list[OwnConnection](), Counter[Place]()
        for place in places:
            count[place] += 1
            owns.append(await self.at(place, count[place]))
        for own in owns:
            if own not in self._numbers:
                self._numbers[own] = await _number_of(own)
        waits = [
            asyncio.create_task(own.collect(pack(leg.commands), len(leg.commands), writes=writes))
            for own, leg in zip(owns, legs, strict=True)
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await self._end(places, owns, waits)
            return [await _answer(wait, len(leg.commands)) for wait, leg in zip(waits, legs, strict=True)]
        finally:
            for own, wait in zip(owns, waits, strict=True):
                if not wait.done():
                    own.abort()
                    wait.cancel()

    async def _end(
        self, places: list[Place], owns: list[OwnConnection], waits: list[asyncio.Task[list[bytes]]]
    ) -> None:
        """End the other waits. Again and again: a wait may reach its node after the command that ends it."""
        ends_s = time.monotonic() + _END_WITHIN_S
        while not all(wait.done() for wait in waits) and time.monotonic() < ends_s:
            for place, own, wait in zip(places, owns, waits, strict=True):
                if not wait.done():
                    await self._unblock(place, self._numbers[own])
            await asyncio.wait([wait for wait in waits if not wait.done()] or waits, timeout=_END_AGAIN_S)
        for own, wait in zip(owns, waits, strict=True):
            if not wait.done():
                own.abort()


async def _answer(wait: "asyncio.Task[list[bytes]]", count: int) -> list[Any]:
    try:
        return list(await wait)
    except LostError as lost:
        return [lost] * count


async def _number_of(own: OwnConnection) -> int:
    """The number of a connection. Every user may say HELLO; not every one CLIENT ID."""
    [reply] = await own.collect(pack([(b"HELLO",)]), 1, writes=False)
    facts = resp2(("HELLO",), parse(reply))
    if isinstance(facts, ReplyError):
        raise facts
    return int(dict(zip(facts[::2], facts[1::2], strict=True))[b"id"])


class _Carrier:
    """Exchanges of one batch. raw: replies stay bytes, except redirects and what belongs to a MULTI."""

    def __init__(self, held: NodeConnections, *, raw: bool) -> None:
        self._held, self._raw = held, raw

    async def exchange(self, place: Place | None, legs: list[Leg], writes: bool) -> list[list[Any]]:
        own = await self._held.at(place)
        commands = [command for leg in legs for command in leg.wire()]
        read = await own.collect(pack(commands), len(commands), writes=writes)
        for command, reply in zip(commands, read, strict=True):
            if word_of(command[0]) == "WATCH" and reply == b"+OK\r\n":
                self._held.note_watch(own)
        answers = list[list[Any]]()
        for leg in legs:
            mine, read = read[: len(leg.wire())], read[len(leg.wire()) :]
            answers.append(self._parsed(leg, mine))
        return answers

    async def race(self, places: list[Place], legs: list[Leg], writes: bool) -> list[list[Any]]:
        found = await self._held.race(places, legs, writes)
        return [
            [each if isinstance(each, LostError) else self._value(each) for each in some] for some in found
        ]

    def _parsed(self, leg: Leg, replies: list[bytes]) -> list[Any]:
        if not (self._raw and leg.is_multi):
            return list(map(self._value, replies))
        first = len(replies) - len(leg.inner) - 1
        begun, queued, last = replies[:first], replies[first:-1], replies[-1]
        done = parse(last)
        # If MULTI was refused, the commands have run, and these are their replies.
        value = self._value if begun[-1].startswith(b"-") else parse
        return [*map(parse, begun), *map(value, queued), elements(last) if isinstance(done, list) else done]

    def _value(self, reply: bytes) -> Any:
        is_raw = self._raw and not (reply[:1] == b"-" and _code(reply) in REDIRECTS)
        return reply if is_raw else parse(reply)


def _code(error: bytes) -> str:
    return error[1:20].split(b" ", 1)[0].decode("ascii", "replace")
