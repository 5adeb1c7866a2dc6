"""One client: takes its commands in order, answers them in order.

data --> parser --> plain appends, all in one write to the lane: express.py
               `--> queue --> worker: runs of commands for the lane, or the client's own connection
"""

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.gateway import router
from braidstream.gateway.backends import Lane, Own
from braidstream.gateway.fast_append import Express
from braidstream.gateway.region_cache import Known
from braidstream.gateway.session import Session, may_be_plain
from braidstream.net.resp import Parser, Words, error_line
from braidstream.net.wire import pack
from braidstream.protocol.plan import Batch, Replies

if TYPE_CHECKING:
    from braidstream.gateway.server import Gateway

# When so much waits to be done, no more is read from the client.
_QUEUED: Final = 10_000
_QUEUED_BYTES: Final = 4_000_000
_WRITE_HIGH: Final = 1_000_000
# Bytes of which a part may be the second command.
_SEVERAL: Final = 100


class Client(asyncio.Protocol):
    """See the top of the file."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.session = Session(home=gateway.db, db=gateway.db)
        self.own: Own | None = None
        self.second: Own | None = None
        self.queue: deque[Words] = deque()
        self.blocking = False
        self.blind = False
        self.skipping = False
        self.multi: Any = None
        self.is_plain = False  # whether appends may take the short way; looked at after each command
        self._express = Express(self)
        self._parser = Parser(gateway.limits)
        self._worker: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._taken_in = 0  # commands so far
        self._chunks: deque[tuple[int, int]] = deque()  # what waits: up to which command, how many bytes
        self._bytes = 0  # of all chunks
        self._leaving = False
        self._closed = False

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._came, self._entered = time.monotonic(), False
        self._at = (self.session.login, self.session.db)
        self.lane: Lane = self.gateway.borrow(*self._at)
        self.known: Known = self.gateway.known(self.session.db)
        if not self.gateway.admit(self):
            self.transport.write(b"-ERR max number of clients reached\r\n")
            self.transport.close()
            self._leaving = True

    def data_received(self, data: bytes) -> None:
        if self.blind:
            if self.own is not None:
                self.own.tell(data)
            return
        if self._leaving:
            return
        is_free = self._worker is None and not self.queue and self._writable is None
        if is_free and self._chunks:
            self._chunks.clear()  # parts of one command: the parser has its own limits
            self._bytes = 0
        if is_free and len(data) > _SEVERAL and self._parser.is_clean and self._express.alike(data):
            return
        commands = self._parser.feed(data)
        if commands and is_free:
            done = self._express.run(commands)
            if done == len(commands) and self._parser.error is None:
                return
            del commands[:done]
        self.queue.extend(commands)
        self._taken_in += len(commands)
        self._chunks.append((self._taken_in + (not self._parser.is_clean), len(data)))
        self._bytes += len(data)
        if self.queue and (len(self.queue) > _QUEUED or self._bytes > _QUEUED_BYTES):
            self._reading_paused = True
            self.transport.pause_reading()
        if (self.queue or self._parser.error) and self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def eof_received(self) -> bool:
        self.retire()
        return not self._closed

    def connection_lost(self, exc: Exception | None) -> None:
        self._leaving = self._closed = True
        self.gateway.left(self)
        if self._worker is not None and self.blocking:
            self._worker.cancel()  # anything else is done to its end, as the engine would
        self.disown()
        self.gateway.give_back(self.lane)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()
        if self.own is not None:
            self.own.pause()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)
        if self.own is not None:
            self.own.resume()

    # Leaving

    def retire(self) -> None:
        """Take no more, answer what was taken, and go. What waits for others ends now."""
        self._leaving = True
        if self.blocking or self.is_idle:
            self.close()

    def close(self) -> None:
        """What was written still goes out."""
        self._closed = True
        self.transport.close()

    @property
    def is_leaving(self) -> bool:
        return self._leaving

    @property
    def is_idle(self) -> bool:
        return self._worker is None and not self.queue and self._express.is_quiet

    def settled(self) -> None:
        """The appends on the short way are answered, and nobody waited for that."""
        if self._leaving and self.is_idle:
            self.close()

    # Writing

    def write(self, data: bytes) -> None:
        """Reply."""
        if not (self._closed or self.session.muted or self.skipping):
            self.transport.write(data)

    def push(self, data: bytes) -> None:
        """What the engine sends unasked. CLIENT REPLY OFF mutes replies, not messages."""
        if not self._closed:
            self.transport.write(data)

    # Everything else

    async def _work(self) -> None:
        try:
            while not self._closed and (self.queue or not self._express.is_quiet):
                # More may come while the last appends are answered.
                await (self._step() if self.queue else self._express.until_quiet())
            if self._closed:
                return
            if self._parser.error is not None:
                self.write(error_line(ReplyError(self._parser.error)))
            if self._parser.error is not None or self._bereft is not None:
                self.close()
        except BraidError as error:  # the client's own connection is lost, and its state with it
            if self.own is None or not self.own.broke_off:  # half a reply would take the error for its rest
                self.write(error_line(error))
            self.close()
        except Exception as error:
            self.gateway.crashed(error)
            self.write(b"-ERR the gateway failed on this command and closed the connection. See its log.\r\n")
            self.close()
        finally:
            self._worker = None
            if self._leaving and not self._closed and self.is_idle:
                self.close()

    async def _step(self) -> None:
        if self._writable is not None:
            await self._writable
        if self._express.is_shut:
            await self._express.until_quiet()
        if not self.multi and (done := self._express.run(self.queue)):
            for _ in range(done):
                self.queue.popleft()
        else:
            await self._express.until_quiet()
            if self._closed:
                return
            self.skipping, self.session.skips = self.session.skips, False
            await router.run_next(self)
            self.skipping, self.is_plain = False, self._entered and self.session.is_plain
        self._read_on()

    def _read_on(self) -> None:
        """Read again from the client once half of what waited is done."""
        done = self._taken_in - len(self.queue)
        while self._chunks and self._chunks[0][0] <= done:
            self._bytes -= self._chunks.popleft()[1]
        few = len(self.queue) < _QUEUED // 2 and self._bytes < _QUEUED_BYTES // 2
        if self._reading_paused and (few or not self.queue):
            self._reading_paused = False
            if not self._closed:
                self.transport.resume_reading()

    # Connections

    async def send(self, batch: Batch) -> Replies:
        """A batch of a plan, on the lane."""
        if not self._entered:
            while not await self.may_use(self.lane):
                if self._closed:
                    raise LostError("the client", "it left", wrote=False)
                self.gateway.backends.set_apart(self.lane)
                self._change_lane()
            self._entered = True
        return await self.lane.send(batch)

    async def may_use(self, lane: Lane) -> bool:
        """Whether the engine lets this client do what the lane may. Who has logged in has shown it."""
        return self.session.login is not None or await lane.lets_in(self._came)

    def moved(self) -> None:
        """The client is another user, or before another database."""
        at = (self.session.login, self.session.db)
        if at != self._at and not self._closed:
            self._at, self.known = at, self.gateway.known(self.session.db)
            self._change_lane()

    def restart(self) -> None:
        """RESET: as a client that has just come."""
        self.disown()
        self.session.reset()
        self._came, self._entered = time.monotonic(), False
        self.moved()

    def _change_lane(self) -> None:
        before, self.lane = self.lane, self.gateway.borrow(*self._at)
        self.gateway.give_back(before)

    async def is_beside_region(self, words: Words) -> bool:
        """Whether a command of the table is the engine's own here: the database is no region."""
        here = self.session
        return (may_be_plain(words) or here.db != here.home) and await self.known.is_absent()

    async def own_connection(self) -> Own:
        """The connection of this client's own; made if it has none, and told who the client is."""
        if self.own is not None and self.own.lost is None:
            self.gateway.backends.used(self)
            return self.own
        if (lost := self._bereft) is not None:
            raise LostError(lost.address, lost.why, wrote=False)
        self.own = await self.another_connection()
        return self.own

    async def another_connection(self) -> Own:
        own = await self.gateway.backends.own(self, (self.write, self.push), self._own_lost, self._park)
        says = self.session.greeting()
        replies = await own.collect(pack(says), len(says), writes=False) if says else []
        refused = next((reply for reply in replies if reply.startswith(b"-")), None)
        if refused is not None:
            own.close()
            raise ReplyError(refused[1:-2].decode("utf-8", "replace"))
        if self._closed:  # it left meanwhile, and nobody would close it
            own.close()
            self.gateway.backends.disowned(self)
            raise LostError("the client", "it left", wrote=False)
        return own

    def disown(self) -> None:
        for own in (self.own, self.second):
            if own is not None:
                own.close()
        self.own = self.second = None
        self.gateway.backends.disowned(self)

    @property
    def _bereft(self) -> LostError | None:
        """How the client's own connection was lost, if with what cannot be told again: a WATCH, say."""
        return None if self.own is None or self.session.can_park else self.own.lost

    def _own_lost(self) -> None:
        """The engine is gone, and what the connection stood for with it: so is ours, as it would be there."""
        if self.own is not None and not self.blocking and self._worker is None and not self._closed:
            self.close()

    def _park(self) -> bool:
        if self.own is None or not self.is_idle or not self.own.is_idle or not self.session.can_park:
            return False
        self.disown()
        return True
