"""One client: takes its commands in order, answers them in order.

    data --> parser --> plain appends, all in one write to the lane, answered from the callback    (express)
                   `--> queue --> worker: runs of commands for the lane, or the client's own connection

Appends are most of the traffic of most streams, so they cost no task and no plan: the strand's key takes the
place of the name, the ID is translated on the way back. Everything else waits its turn in the queue.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from braidstream.drivers.session import REGION_FRESH_S
from braidstream.drivers.wire import Connection, pack, pack_one
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.gateway import dispatch
from braidstream.gateway.backend import Lane, Own
from braidstream.gateway.known import Known
from braidstream.gateway.resp import Parser, Words, error_line, minted_reply, uniform_appends
from braidstream.gateway.session import Session, may_be_plain
from braidstream.plan import Replies

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
        self._parser = Parser(gateway.limits)
        self._plain = True  # whether appends may take the short way: `session.is_plain` after each command
        self._worker: asyncio.Task[None] | None = None
        self._express: deque[list[bytes]] = deque()  # a slot for each run under way: its reply, once known
        self._quiet: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._bytes = 0
        self._leaving = False
        self._closed = False

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
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
        if is_free and len(data) > _SEVERAL and self._parser.is_clean and self._express_alike(data):
            return
        commands = self._parser.feed(data)
        if commands and is_free:
            done = self._express_run(commands)
            if done == len(commands) and self._parser.error is None:
                return
            del commands[:done]
        self.queue.extend(commands)
        self._bytes += len(data)
        if len(self.queue) > _QUEUED or (self.queue and self._bytes > _QUEUED_BYTES):
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
        self.gateway.give_back(*self._at)
        if self._worker is not None and self.blocking:
            self._worker.cancel()  # anything else is done to its end, as the engine would
        self.disown()
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
        if self.blocking or self._is_idle:
            self.close()

    def close(self) -> None:
        """What was written still goes out."""
        self._closed = True
        self.transport.close()

    @property
    def is_leaving(self) -> bool:
        return self._leaving

    @property
    def _is_idle(self) -> bool:
        return self._worker is None and not self.queue and not self._express

    # Writing

    def write(self, data: bytes) -> None:
        """Reply."""
        if not (self._closed or self.session.muted or self.skipping):
            self.transport.write(data)

    def push(self, data: bytes) -> None:
        """What the engine sends unasked. CLIENT REPLY OFF mutes replies, not messages."""
        if not self._closed:
            self.transport.write(data)

    # Appends on the short way

    def _open_lane(self) -> Connection | None:
        """The lane, if appends can take the short way now."""
        conn = self.lane.conn
        if not self._plain or conn is None or conn.lost is not None or conn.is_full:
            return None
        return conn if time.monotonic() - self.known.read_at <= REGION_FRESH_S else None

    def _express_alike(self, data: bytes) -> bool:
        """Send bytes that are nothing but appends alike: in each the strand's key takes the name's place."""
        conn = self._open_lane()
        if conn is None or (alike := uniform_appends(data)) is None:
            return False
        start, name, words, count = alike
        way = self.known.ways.get(name)
        if way is None:
            return False
        self.known.used = True
        begin = b"*%d\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$10\r\nNOMKSTREAM\r\n" % (words + 1, len(way[0]), way[0])
        slot: list[bytes] = []
        self._express.append(slot)
        out = way[1] + data.replace(start, begin)
        conn.post(out, 1 + count, partial(self._appended, slot, data, count, 1))
        return True

    def _express_run(self, commands: Iterable[Words]) -> int:
        """Send the plain appends at the head; how many they were."""
        known, conn = self.known, self._open_lane()
        if conn is None:
            return 0
        ways = known.ways
        run: list[Words] = []
        out: list[bytes] = []
        for words in commands:
            if len(words) < 5 or words[2] != b"*" or not len(words) & 1 or words[0].upper() != b"XADD":
                break
            way = ways.get(words[1])
            if way is None:
                break
            out.append(pack_one((b"XADD", way[0], b"NOMKSTREAM", *words[2:])))
            run.append(words)
        if not run:
            return 0
        known.used = True
        births = 0
        if len(run) > 1 or self._express:
            # Nothing can be said again without getting out of order: each strand is made sure of once.
            names = {words[1] for words in run}
            births = len(names)
            out[:0] = [ways[name][1] for name in names]
        slot: list[bytes] = []
        self._express.append(slot)
        conn.post(
            out[0] if len(out) == 1 else b"".join(out),
            births + len(run),
            partial(self._appended, slot, run, len(run), births),
        )
        return len(run)

    def _appended(
        self,
        slot: list[bytes],
        run: list[Words] | bytes,
        count: int,
        births: int,
        replies: Replies | LostError,
    ) -> None:
        try:
            self._answer(slot, run, count, births, replies)
        except Exception as error:  # the lane is others' too: it must not end with this client
            self.gateway.crashed(error)
            self.close()

    def _answer(
        self,
        slot: list[bytes],
        run: list[Words] | bytes,
        count: int,
        births: int,
        replies: Replies | LostError,
    ) -> None:
        if isinstance(replies, LostError):
            self._fill(slot, [error_line(replies)] * count)
            return
        region = self.known.region
        assert region is not None
        writer = region.writer
        out: list[bytes] = []
        gone: list[int] = []
        for reply in replies[births:] if births else replies:
            if type(reply) is bytes:
                out.append(minted_reply(reply, writer))
                continue
            if reply is None:
                gone.append(len(out))
            out.append(error_line(reply) if isinstance(reply, ReplyError) else b"")
        if gone:
            self.known.forget()
            words = Parser(self.gateway.limits).feed(run) if isinstance(run, bytes) else run
            self.gateway.run(self._make_good(slot, words, out, gone))
        else:
            self._fill(slot, out)

    async def _make_good(
        self, slot: list[bytes], run: list[Words], out: list[bytes], gone: list[int]
    ) -> None:
        """The strand was gone after all: the plan of XADD makes it again."""
        for at in gone:
            out[at] = await dispatch.reply_to(self, run[at])
        self._fill(slot, out)

    def _fill(self, slot: list[bytes], out: list[bytes]) -> None:
        """A run is answered. Replies go out in the order of the runs."""
        slot.append(out[0] if len(out) == 1 else b"".join(out))
        slots = self._express
        while slots and slots[0]:
            self.write(slots.popleft()[0])
        if not slots:
            self._settle()

    def _settle(self) -> None:
        quiet, self._quiet = self._quiet, None
        if quiet is not None:
            if not quiet.done():
                quiet.set_result(None)
        elif self._leaving and self._is_idle:
            self.close()

    async def _until_quiet(self) -> None:
        """Until every append on the short way is answered."""
        if self._express:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    # Everything else

    async def _work(self) -> None:
        try:
            while self.queue and not self._closed:
                await self._step()
            await self._until_quiet()
            if self._parser.error is not None and not self._closed:
                self.write(error_line(ReplyError(self._parser.error)))
                self.close()
        except BraidError as error:  # the client's own connection is lost, and its state with it
            self.write(error_line(error))
            self.close()
        except Exception as error:
            self.gateway.crashed(error)
            self.write(b"-ERR the gateway failed on this command and closed the connection. See its log.\r\n")
            self.close()
        finally:
            self._worker = None
            if self._leaving and not self._closed and self._is_idle:
                self.close()

    async def _step(self) -> None:
        if self._writable is not None:
            await self._writable
        if not self.multi and (done := self._express_run(self.queue)):
            for _ in range(done):
                self.queue.popleft()
        else:
            await self._until_quiet()
            self.skipping, self.session.skips = self.session.skips, False
            await dispatch.run_next(self)
            self.skipping, self._plain = False, self.session.is_plain
        if not self.queue:
            self._bytes = 0
        if self._reading_paused and len(self.queue) < _QUEUED // 2:
            self._reading_paused, self._bytes = False, 0
            if not self._closed:
                self.transport.resume_reading()

    # Connections

    def moved(self) -> None:
        """The client is another user, or before another database."""
        at = (self.session.login, self.session.db)
        if at != self._at:
            self.lane = self.gateway.borrow(*at)
            self.gateway.give_back(*self._at)
            self._at, self.known = at, self.gateway.known(self.session.db)

    async def is_beside_region(self, words: Words) -> bool:
        """Whether a command of the table is the engine's own here: the database is no region."""
        here = self.session
        return (may_be_plain(words) or here.db != here.home) and await self.known.is_absent()

    async def own_connection(self) -> Own:
        """The connection of this client's own; made if it has none, and told who the client is."""
        if self.own is not None and self.own.lost is None:
            self.gateway.backends.used(self)
            return self.own
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

    def _own_lost(self) -> None:
        """The engine is gone, and what the connection stood for with it: so is ours, as it would be there."""
        if self.own is not None and not self.blocking and self._worker is None and not self._closed:
            self.close()

    def _park(self) -> bool:
        if self.own is None or not self._is_idle or not self.own.is_idle or not self.session.can_park:
            return False
        self.disown()
        return True
