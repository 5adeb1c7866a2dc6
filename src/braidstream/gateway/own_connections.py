"""A client's own connections to the engine, for everything that a shared lane cannot carry.

    the client's `own`      commands without keys, subscriptions, the state of the client; of one server all
    one for each node       native commands, WATCH and MULTI
    more of them            a read that waits in several slots of one node; commands checked for a MULTI

A WATCH belongs to one connection. If the MULTI would run elsewhere, because the slot has moved or the
connection was lost, the answer is that of a changed key: nothing is run.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import hiredis

from braidstream.clusters.command_keys import NativeKeys, keys_of, slot_of, word_of
from braidstream.clusters.raw_sender import Delivery, no_keys
from braidstream.clusters.redirects import Leg, Patience
from braidstream.clusters.slots import SlotMap
from braidstream.engine.address import Address
from braidstream.engine.connection import RESET
from braidstream.engine.redis_py import resp2
from braidstream.engine.resp import Scanner, elements, error_line
from braidstream.engine.sentinels import Place
from braidstream.errors import REDIRECTS, BraidError, LostError, ReplyError
from braidstream.model.strand import Command, pack
from braidstream.plan import plan
from braidstream.plan.plan import Batch, Exchange, Replies, unpack

_PUSH: Final = ord(">")
_ERROR: Final = ord("-")
Sinks = tuple[Callable[[bytes], None], Callable[[bytes], None]]


class OwnConnection(asyncio.Protocol):
    """A connection of one client. One exchange at a time.

    Relayed replies go to `sinks[0]`; pushed messages to `sinks[1]`.
    is_greeted: it has the state of the client's session: its database, its protocol.
    most_bytes: it is closed if replies that are not relayed have more.
    """

    def __init__(
        self, at: Address, sinks: Sinks, on_lost: Callable[[], None], most_bytes: int | None = None
    ) -> None:
        self.on_denied: Callable[[], None] = lambda: None
        self._most_bytes, self._kept = most_bytes, 0
        self.lost: LostError | None = None
        self.place, self.is_greeted = at.place, False
        self._name, self._on_lost = str(at), on_lost
        self._sink, self._push = sinks
        self._scanner = Scanner()
        self._answer: asyncio.Future[None] | None = None
        self._need, self._streams, self._raw, self._turns_raw = 0, False, False, False
        self._refused, self._answered, self._pings = False, False, False
        self._until: bytes | None = None
        self._pieces: list[bytes] = []
        self._torn: list[bytes] = []
        self._writes = False

    # What a client's worker calls

    async def relay(self, data: bytes, need: int) -> bool:
        """Send packed commands, and relay everything up to the last of `need` replies.

        Returns whether that one was no error.
        """
        self._streams = True
        await self._exchange(data, need, writes=True)
        return not self._refused

    async def collect(self, data: bytes, need: int, *, writes: bool = True) -> list[bytes]:
        """Send packed commands, and return their raw replies."""
        await self._exchange(data, need, writes=writes)
        pieces, self._pieces = self._pieces, []
        return pieces

    async def listen(self, data: bytes) -> bool:
        """Send a packed command with any number of messages as its reply. Returns whether none was an error.

        A PING with a random word follows: everything before the reply to that is relayed.
        """
        token = secrets.token_hex(8).encode()
        self._until, self._refused, self._answered = token + b"\r\n", False, False
        self._pings = data[4:12].upper() == b"$4\r\nPING"
        try:
            await self._exchange(data + pack([(b"PING", token)]), 1, writes=False)
        finally:
            self._until = None
        return not self._refused

    async def reset(self) -> None:
        """End a login by the gateway's certificate. Raises LostError if the engine refuses that."""
        [reply] = await self.collect(pack([RESET]), 1, writes=False)
        if reply != b"+RESET\r\n":
            self.close()
            why = f"it answers RESET with {reply[:200].decode('utf-8', 'replace').strip()}"
            raise LostError(self._name, why, wrote=False)

    def send_only(self, data: bytes) -> None:
        """Send, and expect no reply."""
        if self.lost is None:
            self._transport.write(data)

    async def relay_raw(self, data: bytes) -> bool:
        """Relay all bytes unread from now on; unless the engine replies with an error, which is relayed."""
        self._turns_raw = True
        await self._exchange(data, 1, writes=False)
        return self._raw

    async def send(self, batch: Batch) -> Replies:
        """Send a batch of a plan. The replies of an Exchange stay raw."""
        commands = plan.wire(batch)
        raw = await self.collect(pack(commands), len(commands), writes=not batch.resend)
        if isinstance(batch, Exchange) and batch.atomic:
            *queued, last = raw
            if last.startswith(b"-"):
                refused = next((each for each in queued if each.startswith(b"-")), last)
                raise ReplyError(refused[1:-2].decode("utf-8", "replace"))
            return None if parse(last) is None else elements(last)  # type: ignore[return-value]
        return plan.unpack(batch, [parse(each) for each in raw], resp2)

    def close(self) -> None:
        """Close, after what was written is sent."""
        if self.lost is None:
            self._on_lost = lambda: None
            self._transport.close()
            self._fail("we closed it")

    def abort(self) -> None:
        """Close at once, without TLS's shutdown handshake."""
        self._transport.abort()

    def pause(self) -> None:
        with suppress(RuntimeError):
            self._transport.pause_reading()

    def resume(self) -> None:
        with suppress(RuntimeError):
            self._transport.resume_reading()

    @property
    def is_idle(self) -> bool:
        return self._answer is None and self._scanner.at_end

    @property
    def broke_off(self) -> bool:
        """Whether it was lost in the middle of a relayed reply."""
        return self.lost is not None and self._streams and not self._scanner.at_end

    async def _exchange(self, data: bytes, need: int, *, writes: bool) -> None:
        if self.lost is not None:
            raise LostError(self._name, self.lost.why, wrote=False)
        assert self._answer is None, "one exchange at a time"
        self._need, self._writes, self._kept = need, writes, 0
        self._transport.write(data)
        if not need:
            self._streams = False
            return
        self._answer = asyncio.get_running_loop().create_future()
        try:
            await self._answer
        finally:
            self._answer = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._turns_raw:
            self._turns_raw, self._raw = False, data[:1] in (b"+", b"$", b"\n")
            self._streams = not self._raw
            self._count(self._raw)
        if self._raw:
            self._sink(data)
            return
        try:
            ends = self._scanner.feed(data)
        except ValueError:
            self._fail("it sent an invalid reply")
            self._transport.abort()
            return
        if self._streams:
            self._pass_on(data, ends)
        else:
            self._take(data, ends)

    def _pass_on(self, data: bytes, ends: list[tuple[int, int]]) -> None:
        """Relay everything, up to the last reply that is expected."""
        if self._torn:
            self._sink(b"".join(self._torn))
            self._torn = []
        begin = 0
        for at, (end, kind) in enumerate(ends):
            if kind == _ERROR and data.startswith(b"-NOPERM", begin):
                self.on_denied()
            begin = end
            self._count(kind != _PUSH)
            if self._streams:
                continue
            self._refused = kind == _ERROR
            if end < len(data):
                self._sink(data[:end])
                self._take(data[end:], [(later - end, kind) for later, kind in ends[at + 1 :]])
                return
        self._sink(data)

    def _take(self, data: bytes, ends: list[tuple[int, int]]) -> None:
        """Collect reply by reply."""
        begin = 0
        for end, kind in ends:
            piece = data[begin:end]
            if self._torn:
                piece, self._torn = b"".join((*self._torn, piece)), []
            begin = end
            if kind == _ERROR and piece.startswith(b"-NOPERM"):
                self.on_denied()
            if kind == _PUSH:
                self._answered = self._answered or _confirms(piece)
                self._push(piece)
            elif self._until is not None:
                if self._is_answer_to_ping(piece, self._until):
                    self._count(True)
                else:
                    is_error = piece[:1] == b"-"
                    self._refused = self._refused or is_error
                    self._answered = self._answered or is_error or _confirms(piece)
                    (self._sink if is_error else self._push)(piece)
            elif self._answer is None or self._answer.done():
                self._push(piece)  # a message, a line of MONITOR, or an error before the engine closes
            else:
                self._pieces.append(piece)
                self._count(True)
        if begin < len(data):
            self._torn.append(data[begin:])
        self._kept = self._kept + len(data) if self._pieces or self._torn else 0
        if self._most_bytes is not None and self._kept > self._most_bytes:
            self._fail(f"its reply has more than {self._most_bytes:,} bytes")
            self._transport.abort()

    def _is_answer_to_ping(self, piece: bytes, token: bytes) -> bool:
        """Whether a piece is the reply to our PING. It may be an error: no login, no right."""
        if piece.startswith(b"-NOPERM") and b"run the 'ping' command" in piece:
            return self._answered or not self._pings
        if piece[:1] == b"-":
            return self._answered
        return piece.endswith(token) and piece[:1] in (b"$", b"*")

    def _count(self, counts: bool) -> None:
        if counts and self._need:
            self._need -= 1
            if not self._need:
                self._streams = False
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(None)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "it closed the connection")

    def _fail(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = LostError(self._name, why, wrote=self._writes)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self.lost)
        self._on_lost()


def _confirms(piece: bytes) -> bool:
    """Whether a piece answers SUBSCRIBE and its kin, PING or REPLCONF; a message of a channel does not."""
    word = piece[:40].split(b"\r\n")[2:3]
    return piece[:1] == b"+" or (bool(word) and word[0].endswith((b"subscribe", b"pong")))


def parse(reply: bytes) -> Any:
    """One reply, parsed as plans expect it."""
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(reply)
    return reader.gets()


# ----------------------------------------------------------------------------------------------------
# Those of one client to all nodes

# Number of the connection on which commands of a MULTI are checked: see NodeConnections.at.
CHECKER: Final = -1
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

    __slots__ = ("_held", "_numbers", "_open", "_patience", "_slots", "_unblock", "_watched", "watch_slot")

    def __init__(self, slots: SlotMap, open_to: Open, unblock: Unblock) -> None:
        self._slots, self._open, self._unblock = slots, open_to, unblock
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
        if place is None or (place == self._slots.only and not number):
            return await self._open(None)
        own = self._held.get((place, number))
        if own is None or own.lost is not None:
            if own is not None:
                self._numbers.pop(own, None)
            own = self._held[place, number] = await self._open(place)
        return own

    # Batches

    async def send(self, batch: Batch, keys: NativeKeys = no_keys) -> Replies:
        """Send a batch of a plan. The replies of an Exchange stay raw. keys: of native commands in it."""
        if self._slots.only is not None:
            return await (await self.at(None)).send(batch)
        if list(batch.commands) == [_UNWATCH]:
            await self.unwatch()
            return [b"OK"]
        if batch.atomic and self._watched and not self._watches_where_it_runs(batch, keys):
            await self.unwatch()
            return None  # type: ignore[return-value]  # only plans that WATCH get it
        return await self._deliver(batch, keys)

    async def _deliver(self, batch: Batch, keys: NativeKeys) -> Replies:
        carrier = _Carrier(self, raw=isinstance(batch, Exchange))
        # A MULTI without keys must run where the WATCH is.
        home = self._watched[0].place if batch.atomic and self._watched else None
        try:
            delivery = Delivery(self._slots, carrier, keys=keys, home=home)
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
        delivery = Delivery(self._slots, carrier, keys=keys, keeps_losses=True)
        found = await delivery.send(Exchange(commands, resend=reads), watching=bool(self._watched))
        assert found is not None
        return [error_line(each) if isinstance(each, BraidError) else bytes(each) for each in found]

    # WATCH

    @property
    def watches(self) -> bool:
        """Whether the connection that has the client's WATCH is still there."""
        return self._slots.only is not None or bool(self._watched)

    def note_watch(self, own: OwnConnection) -> None:
        if own not in self._watched:
            self._watched.append(own)

    def _watches_where_it_runs(self, batch: Batch, keys: NativeKeys) -> bool:
        found = (key for each in batch.commands for key in keys_of(each, keys))
        slot = next((slot_of(key) for key in found), self.watch_slot)
        place = self._watched[0].place if slot is None else self._slots.owner(slot)
        own = None if place is None else self._held.get((place, 0))
        return own is not None and own.lost is None and self._watched == [own]

    async def unwatch(self) -> None:
        """End every WATCH of the client."""
        watched = self._watched if self._slots.only is None else [await self.at(None)]
        self._watched, self.watch_slot = [], None
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
