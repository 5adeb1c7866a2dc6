"""One client's socket: runs its commands in order, answers in order.

data --> parser --> plain appends, all in one write to the lane: append.py
               `--> queue --> worker: runs of commands for the lane, or the client's own connection
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final, cast

from braidstream.engine.resp import Parser, error_line
from braidstream.errors import BraidError, ReplyError
from braidstream.gateway import router, topics
from braidstream.gateway.append import FastAppends
from braidstream.gateway.client import Client
from braidstream.gateway.hub import Hub
from braidstream.gateway.session import login_by_certificate

# The gateway stops reading from a client that has so much queued.
_QUEUED: Final = 10_000
_QUEUED_BYTES: Final = 4_000_000
# Unread replies beyond this make it wait. Up to this they are not counted (Hub.count_memory).
_WRITE_HIGH: Final = 64 * 1024
# How long the last command of a client that has left may take.
_LEFT_S: Final = 60.0


class ClientConnection(Client, asyncio.Protocol):
    """See the top of the file."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._appends = FastAppends(self, partial(router.reply_to, self))
        self._parser = Parser(hub.limits, limited=True)
        self._worker: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._taken_in = 0  # commands so far
        self._chunks: deque[tuple[int, int]] = deque()  # received: up to which command, how many bytes
        self._bytes = 0  # of all chunks
        self._leaving = False
        self._is_lost = self._is_released = False

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
        certificate = self.transport.get_extra_info("peercert")
        self.session.login = login_by_certificate(certificate, self.hub.settings.users)
        self._parser.limited = self.session.login is None
        self.enter()
        if not self.hub.admit(self):
            self.transport.write(b"-ERR max number of clients reached\r\n")
            self.transport.close()
            self._leaving = True

    def data_received(self, data: bytes) -> None:
        if self.raw:
            if self.own is not None:
                self.own.send_only(data)
            return
        if self._leaving:
            return
        is_free = self._worker is None and not self.queue and self._writable is None
        if is_free and self._chunks:
            self._chunks.clear()  # parts of one command: the parser has its own limits
            self._bytes = 0
        if is_free and self._parser.is_clean and self._appends.send_spliced(data):
            return
        commands = self._parser.feed(data)
        if commands and is_free:
            done = self._appends.run(commands)
            if done == len(commands) and self._parser.error is None:
                return
            del commands[:done]
        self.queue.extend(commands)
        self._taken_in += len(commands)
        self._chunks.append((self._taken_in + (not self._parser.is_clean), len(data)))
        self._bytes += len(data)
        held = self._parser.held is not None
        if held or (self.queue and (len(self.queue) > _QUEUED or self._bytes > _QUEUED_BYTES)):
            self._reading_paused = True
            self.transport.pause_reading()
        self._count_memory()
        if (self.queue or self._parser.error or held) and self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def eof_received(self) -> bool:
        self.retire()
        return not self.closed

    def connection_lost(self, exc: Exception | None) -> None:
        self._leaving = self.closed = True
        self.hub.left(self)
        self._is_lost = True
        if self._worker is not None and self.blocking:
            self._worker.cancel()
        if self._worker is None or self.blocking:
            self._release()
        else:  # other commands run to their end, as in the engine: half a COPY would leave its copy behind
            asyncio.get_running_loop().call_later(_LEFT_S, self._give_up)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()
        self._count_memory()
        if self.own is not None:
            self.own.pause()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)
        if self.own is not None:
            self.own.resume()

    def _count_memory(self) -> None:
        if not self.closed:
            size = max(self._bytes, self._parser.waiting) + self.transport.get_write_buffer_size()
            size += self.kept + self.session.subscriptions.size
            self.hub.count_memory(self, size)

    # Leaving

    def evict(self) -> None:
        """Disconnect at once, and drop what waits."""
        self.closed = True
        self.queue.clear()
        self._parser = Parser(self.hub.limits)
        self.transport.abort()

    def restart(self) -> None:
        super().restart()
        self._parser.limited = True

    def retire(self) -> None:
        """Accept no more commands, answer the running ones, and close. Blocked commands end now."""
        self._leaving = True
        if self.blocking or self.is_idle:
            self.close()

    def _give_up(self) -> None:
        """The client is gone, and the engine does not answer its last command."""
        if self._worker is not None:
            self._worker.cancel()
        self._release()

    def _release(self) -> None:
        """Close or give back the connections to the engine: the client is gone, its last command done."""
        if not self._is_released:
            self._is_released = True
            self.close_own()
            self.give_back_lanes()

    @property
    def is_leaving(self) -> bool:
        return self._leaving

    @property
    def is_idle(self) -> bool:
        return self._worker is None and not self.queue and self._appends.is_quiet

    def own_lost(self) -> None:
        """Close, as the engine would: the state of the client's own connection is lost."""
        if self.spreads and self.session.can_park:
            return  # another node takes over: the next command opens another connection
        if self.own is not None and not self.blocking and self._worker is None and not self.closed:
            self.close()

    def settled(self) -> None:
        if self._leaving and self.is_idle:
            self.close()

    # Everything else

    async def _work(self) -> None:
        try:
            while not self.closed and (self.queue or not self._appends.is_quiet or self._parser.held):
                # More commands may arrive while the last appends are answered.
                if self.queue:
                    await self._step()
                elif not self._appends.is_quiet:
                    await self._appends.until_quiet()
                else:
                    await self._let_in()
            if self.closed:
                return
            if self._parser.error is not None:
                self.write(error_line(ReplyError(self._parser.error)))
            if self._parser.error is not None or self.lost_with_state is not None:
                self.close()
        except BraidError as error:  # the client's own connection is lost, and its state with it
            if self.own is None or not self.own.broke_off:  # after half a reply an error would be its rest
                self.write(error_line(error))
            self.close()
        except Exception as error:
            self.hub.crashed(error)
            self.write(b"-ERR the gateway failed on this command and closed the connection. See its log.\r\n")
            self.close()
        finally:
            self._worker = None
            if self._is_lost:
                self._release()
            if self._leaving and not self.closed and self.is_idle:
                self.close()

    async def _step(self) -> None:
        if self._writable is not None:
            await self._writable
        while self.hub.held is not None:
            await asyncio.shield(self.hub.held)
        if self._appends.must_wait:
            await self._appends.until_quiet()
        if topics.names_key(self.queue[0]):
            await topics.place(self)
        if not self.multi and (done := self._appends.run(self.queue)):
            for _ in range(done):
                self.queue.popleft()
        else:
            await self._appends.until_quiet()
            if self.closed:
                return
            self.skipping, self.session.skips = self.session.skips, False
            await router.run_next(self)
            self.skipping, self.is_plain = False, self.is_admitted and self.session.is_plain
        self._read_on()

    async def _let_in(self) -> None:
        """The next command is large. Commands before it are answered, so a login among them counts."""
        if await self.is_let_in():
            commands = self._parser.let_in()
            self.queue.extend(commands)
            self._taken_in += len(commands)
            self._read_on()
        else:
            self._parser.refuse()

    def _read_on(self) -> None:
        """Resume reading from the client once half of the queue is done."""
        done = self._taken_in - len(self.queue)
        while self._chunks and self._chunks[0][0] <= done:
            self._bytes -= self._chunks.popleft()[1]
        few = len(self.queue) < _QUEUED // 2 and self._bytes < _QUEUED_BYTES // 2
        if self._reading_paused and (few or not self.queue):
            self._reading_paused = False
            if not self.closed:
                self.transport.resume_reading()
        self._count_memory()
