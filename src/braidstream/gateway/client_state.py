"""What a client is to the gateway: its session, what it waits for, its connections to the engine.

client_connection.py fills the queue and writes to the socket; the router and its neighbours work on this.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from braidstream.errors import LostError, ReplyError
from braidstream.gateway.backends import Lane
from braidstream.gateway.database import Database
from braidstream.gateway.hub import Hub
from braidstream.gateway.own_connection import Own
from braidstream.gateway.session import Session, may_be_plain
from braidstream.net.resp import Words
from braidstream.net.wire import pack
from braidstream.protocol.plan import Batch, Replies


class Client(ABC):
    """See the top of the file.

    lane: the connection that it shares with clients of the same login. own: a connection of its own.
    is_plain: whether appends may take the short way; updated after each command.
    """

    transport: asyncio.Transport

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.session = Session(home=hub.db, db=hub.db)
        self.own: Own | None = None
        self.second: Own | None = None
        self.queue: deque[Words] = deque()
        self.blocking = False
        self.blind = False
        self.skipping = False
        self.multi: Any = None
        self.is_plain = False
        self.closed = False

    def enter(self) -> None:
        """The client is connected. Not before: a TLS handshake that fails ends without connection_lost."""
        self.came, self.entered = time.monotonic(), False
        self._at = (self.session.login, self.session.db)
        self.lane: Lane = self.hub.borrow(*self._at)
        self.database: Database = self.hub.database(self.session.db)

    @property
    @abstractmethod
    def is_leaving(self) -> bool:
        """Whether the client takes no more commands."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether nothing waits to be done or answered."""

    @abstractmethod
    def own_lost(self) -> None:
        """The client's own connection to the engine is lost."""

    @abstractmethod
    def settled(self) -> None:
        """Every append on the short way is answered."""

    def close(self) -> None:
        """Close the client's connection. What was written still goes out."""
        self.closed = True
        self.transport.close()

    def write(self, data: bytes) -> None:
        """Reply."""
        if not (self.closed or self.session.muted or self.skipping):
            self.transport.write(data)

    def push(self, data: bytes) -> None:
        """A message of the engine that is not a reply. CLIENT REPLY OFF mutes replies, not messages."""
        if not self.closed:
            self.transport.write(data)

    # Connections

    async def send(self, batch: Batch) -> Replies:
        """A batch of a plan, on the lane."""
        if not self.entered:
            while not await self.may_use(self.lane):
                if self.closed:
                    raise LostError("the client", "it left", wrote=False)
                self.hub.backends.set_apart(self.lane)
                self._change_lane()
            self.entered = True
        return await self.lane.send(batch)

    async def may_use(self, lane: Lane) -> bool:
        """Whether the engine lets this client do what the lane may. Who has logged in has shown it."""
        return self.session.login is not None or await lane.lets_in(self.came)

    def moved(self) -> None:
        """The client is another user, or before another database."""
        at = (self.session.login, self.session.db)
        if at != self._at and not self.closed:
            self._at, self.database = at, self.hub.database(self.session.db)
            self._change_lane()

    def restart(self) -> None:
        """RESET: as a client that has just come."""
        self.disown()
        self.session.reset()
        self.came, self.entered = time.monotonic(), False
        self.moved()

    def _change_lane(self) -> None:
        before, self.lane = self.lane, self.hub.borrow(*self._at)
        self.hub.give_back(before)

    async def is_beside_region(self, words: Words) -> bool:
        """Whether a command of the table is the engine's own here: the database is no region."""
        here = self.session
        return (may_be_plain(words) or here.db != here.home) and await self.database.is_absent()

    async def own_connection(self) -> Own:
        """The connection of this client's own; made if it has none, and told who the client is."""
        if self.own is not None and self.own.lost is None:
            self.hub.backends.used(self)
            return self.own
        if (lost := self.lost_with_state) is not None:
            raise LostError(lost.address, lost.why, wrote=False)
        self.own = await self.another_connection()
        return self.own

    async def another_connection(self) -> Own:
        own = await self.hub.backends.own(self, (self.write, self.push), self.own_lost, self._park)
        says = self.session.greeting()
        replies = await own.collect(pack(says), len(says), writes=False) if says else []
        refused = next((reply for reply in replies if reply.startswith(b"-")), None)
        if refused is not None:
            own.close()
            raise ReplyError(refused[1:-2].decode("utf-8", "replace"))
        if self.closed:  # it left meanwhile, and nobody would close it
            own.close()
            self.hub.backends.disowned(self)
            raise LostError("the client", "it left", wrote=False)
        return own

    def disown(self) -> None:
        for own in (self.own, self.second):
            if own is not None:
                own.close()
        self.own = self.second = None
        self.hub.backends.disowned(self)

    @property
    def lost_with_state(self) -> LostError | None:
        """How the client's own connection was lost, if with what cannot be told again: a WATCH, say."""
        return None if self.own is None or self.session.can_park else self.own.lost

    def _park(self) -> bool:
        if self.own is None or not self.is_idle or not self.own.is_idle or not self.session.can_park:
            return False
        self.disown()
        return True
