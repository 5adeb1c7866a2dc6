"""One client of the gateway: its session, its queue of commands, its connections to the engine.

connection.py fills the queue and writes to the socket; the router and its helpers use this class.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from braidstream.clusters.command_keys import slot_of
from braidstream.engine.address import Address
from braidstream.engine.redis_py import mapped
from braidstream.engine.resp import NULL, NULL_ARRAY, NoArray, Pairs, Status, Words, encode, error_line
from braidstream.engine.sentinels import Place
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.gateway.database import Database
from braidstream.gateway.hub import Hub, admin_command, login_of, shown_client
from braidstream.gateway.lanes import Lane
from braidstream.gateway.own_connections import NodeConnections, OwnConnection
from braidstream.gateway.session import Login, Session, may_be_plain, spec_of
from braidstream.model import keys
from braidstream.model.strand import bulk, pack
from braidstream.plan.gather import CommandSpec
from braidstream.plan.plan import Batch, Replies

# ----------------------------------------------------------------------------------------------------
# The slots of commands with plans, before a cluster. No I/O.

# Commands about all keys: every primary is asked, and the answers are joined.
EVERYWHERE: Final = frozenset((b"SCAN", b"KEYS", b"DBSIZE", b"FLUSHDB", b"FLUSHALL", b"RANDOMKEY"))
# Their answers are numbers, so those of several slots can be added.
SUMMED: Final = frozenset((b"DEL", b"UNLINK", b"EXISTS", b"TOUCH"))
# They use the plain key and the stream of a name in one step.
IN_ONE_STEP: Final = frozenset((b"RENAME", b"RENAMENX", b"COPY", b"WATCH"))


def slots_of(words: Words) -> list[int]:
    """The slots of the streams, and of the plain keys where both are used in one step."""
    spec = spec_of(words)
    names = [] if spec is None or spec.arity_error(words) is not None else spec.names(words)
    found = dict.fromkeys(slot_of(keys.meta(name)) for name in names)
    if words[0].upper() in IN_ONE_STEP:
        found |= dict.fromkeys(map(slot_of, names))
    return list(found)


def is_split(words: Words) -> bool:
    """Whether a command is run for each node, or for each slot."""
    name = words[0].upper()
    return name in EVERYWHERE or (name in SUMMED and len(words) > 2 and len(slots_of(words)) > 1)


def split(words: Words) -> list[Words]:
    """A command whose answers are added, as one for each slot."""
    by_slot = dict[tuple[int, int], Words]()
    for name in words[1:]:
        by_slot.setdefault((slot_of(keys.meta(name)), slot_of(name)), [words[0]]).append(name)
    return list(by_slot.values())


# ----------------------------------------------------------------------------------------------------
# Results of plans as the bytes that the engine would have sent, by either protocol.

# Commands for which the engine sends a null array, which RESP2 distinguishes from a null string.
_NO_ARRAY: Final = frozenset(
    (b"XREAD", b"XREADGROUP", b"XRANGE", b"XREVRANGE", b"XCLAIM", b"XAUTOCLAIM", b"TREAD")
)
_HELP: Final = frozenset((b"XINFO", b"XGROUP", b"OBJECT"))


def reply_of(spec: CommandSpec, words: Words, result: Any, resp: int) -> bytes:
    """The reply to a command whose plan returned `result`; an error is a result as well."""
    if isinstance(result, BraidError):
        return error_line(result)
    name = words[0].upper()
    if type(result) is bytes:
        is_status = name == b"TYPE" or (result == b"OK" and name != b"RANDOMKEY")
        return b"+%b\r\n" % result if is_status else bulk(result)
    if isinstance(result, list):
        result = _shaped(spec, name, words, result, resp)
    null = NULL_ARRAY if name in _NO_ARRAY else NULL
    if name == b"XPENDING" and len(words) == 3 and result[3] is None:
        result = [*result[:3], NoArray]
    return encode(result, resp, null[resp])


def _shaped(spec: CommandSpec, name: bytes, words: Words, result: list[Any], resp: int) -> Any:
    if name in _HELP and words[1].upper() == b"HELP":
        return [Status(line.decode("utf-8", "replace")) for line in result]
    if resp == 2:
        return result
    if spec.shape == "streams":
        return Pairs(result)
    return mapped(result) if spec.shape == "facts" else result


# ----------------------------------------------------------------------------------------------------
# Client

# The most commands of one client that share a round trip, and about how many bytes their replies may have.
MOST_RUN: Final = 128
_RUN_BYTES: Final = 1_000_000


class Client(ABC):
    """See the top of the file.

    lane: the connection that it shares with clients of the same login. own: a connection of its own.
    raw: bytes are relayed unread, after SYNC or PSYNC.
    is_plain: whether appends may use the fast path; updated after each command.
    away: lanes to other regions, by region and login (homes.py).
    spreads: the engine has several nodes: native commands go to those of their keys, and follow redirects.
    nodes: its own connections to the nodes.
    is_known: `is_let_in` was true. counted: bytes that the hub counts for it.
    kept: bytes of the commands in its MULTI.
    run_limit: how many commands share a round trip: fewer after large replies.
    """

    transport: asyncio.Transport

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.session = Session(home=hub.db, db=hub.db)
        self.own: OwnConnection | None = None
        self.queue: deque[Words] = deque()
        self.blocking = False
        self.raw = False
        self.skipping = False
        self.multi: Any = None
        self.is_plain = False
        self.closed = False
        self.counted = self.kept = 0
        self.run_limit = MOST_RUN
        self.away: dict[tuple[Any, Login | None], Lane] = {}
        self.spreads = hub.nodes.slots.only is None
        self.nodes = NodeConnections(hub.nodes.slots, self._open_node, self._unblock)

    def enter(self) -> None:
        """Borrow a lane, once the client is connected: a failed TLS handshake never calls connection_lost."""
        self.connected_at, self.is_admitted, self.is_known = time.monotonic(), False, False
        self._at = (self.session.login, self.session.db)
        self.lane: Lane = self.hub.borrow(*self._at)
        self.database: Database = self.hub.database(self.session.db)

    @property
    @abstractmethod
    def is_leaving(self) -> bool:
        """Whether the gateway accepts no more commands of this client."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no command of the client is queued or running."""

    @abstractmethod
    def own_lost(self) -> None:
        """The client's own connection to the engine is lost."""

    @abstractmethod
    def settled(self) -> None:
        """Called when every append on the fast path is answered."""

    def close(self) -> None:
        """Close the client's connection, after what was written is sent."""
        self.closed = True
        self.transport.close()

    def write(self, data: bytes) -> None:
        """Send a reply to the client, unless replies are muted."""
        if not (self.closed or self.session.muted or self.skipping):
            self.transport.write(data)

    def write_run(self, data: bytes, commands: int) -> None:
        """Send the replies of commands that shared a round trip. After large ones, fewer share the next."""
        self.write(data)
        self.run_limit = MOST_RUN
        if len(data) > _RUN_BYTES:
            self.run_limit = max(1, commands * _RUN_BYTES // len(data))

    def push(self, data: bytes) -> None:
        """Send a message of the engine that is not a reply. CLIENT REPLY OFF mutes replies, not messages."""
        if not self.closed:
            self.transport.write(data)

    def count(self, words: Words) -> None:
        """Before a command runs."""
        self.hub.metrics.count(words)
        if command := admin_command(words):
            self.hub.audit.admin(shown_client(self.transport), self.user, command)

    async def noted(self, words: Words, reply: bytes) -> None:
        """After the engine answered a command that changes the session. A wrong password has to wait."""
        self.session.note_reply(words, reply)
        if (login := login_of(words)) is None:
            return
        if reply.startswith(b"-WRONGPASS"):
            await asyncio.sleep(self.hub.audit.login_failed(shown_client(self.transport), login[0]))
        elif not reply.startswith(b"-"):
            self.hub.audit.logged_in(login)

    def refuses_login(self, words: Words) -> bool:
        """Whether it has answered: too many wrong passwords came from this client's address."""
        login = login_of(words)
        if login is None or not self.hub.audit.is_locked_out(shown_client(self.transport), login):
            return False
        self.write(b"-ERR too many wrong passwords came from your address. Wait a minute, or longer\r\n")
        return True

    @property
    def user(self) -> bytes:
        login = self.session.login
        return b"default" if login is None or login.user is None else login.user

    # Connections

    async def send(self, batch: Batch) -> Replies:
        """Send a batch of a plan, on the lane."""
        await self.enter_lane()
        return await self.lane.send(batch)

    async def send_own(self, batch: Batch) -> Replies:
        """Send a batch of a plan, on the client's own connection."""
        return await self.nodes.send(batch)

    async def enter_lane(self) -> None:
        """Before each use of the lane: whether this client may use it."""
        if not self.is_admitted:
            while not await self.may_use(self.lane):
                if self.closed:
                    raise LostError("the client", "it left", wrote=False)
                self.hub.backends.set_apart(self.lane)
                self._change_lane()
            self.is_admitted = True

    async def may_use(self, lane: Lane) -> bool:
        """Whether the engine would accept this client's commands; certain if the client has logged in."""
        return self.session.login is not None or await lane.admits(self.connected_at)

    async def is_let_in(self) -> bool:
        """Whether the client has logged in, or the engine needs no login."""
        if not self.is_known:
            self.is_known = self.session.login is not None or await self.lane.is_open(self.connected_at)
        return self.is_known

    def moved(self) -> None:
        """Change the lane after the client changed its user or database."""
        at = (self.session.login, self.session.db)
        if at != self._at and not self.closed:
            self._at, self.database = at, self.hub.database(self.session.db)
            self._change_lane()

    def restart(self) -> None:
        """RESET: the state of a client that has just connected."""
        self.close_own()
        self.session.reset()
        self.connected_at, self.is_admitted, self.is_known = time.monotonic(), False, False
        self.moved()

    def _change_lane(self) -> None:
        before, self.lane = self.lane, self.hub.borrow(*self._at)
        self.hub.give_back(before)

    def runs_alone(self, words: Words) -> bool:
        """Whether a command with a plan cannot share a round trip: it is one for each node or slot."""
        return self.spreads and is_split(words)

    async def is_beside_region(self, words: Words) -> bool:
        """Whether a command of the table runs natively, because the database is not a region."""
        here = self.session
        return (may_be_plain(words) or here.db != here.home) and await self.database.is_absent()

    def slots_of(self, words: Words) -> list[int]:
        """The slots of a command with a plan; none before one server, where they do not matter."""
        return slots_of(words) if self.spreads else []

    def lost(self, error: BraidError) -> bytes:
        """The error reply if a node was lost. If that is the only server, the client's state is lost with it:
        the error is raised, which closes the client."""
        if not self.spreads:
            raise error
        return error_line(error)

    async def own_connection(self) -> OwnConnection:
        """The client's own connection; opened and logged in if it has none."""
        if self.own is not None and self.own.lost is None:
            self.hub.backends.used(self)
            if not self.own.is_greeted:
                await self._greet(self.own)
            return self.own
        if (lost := self.lost_with_state) is not None:
            raise LostError(lost.address, lost.why, wrote=False)
        slots = self.hub.nodes.slots
        for place in slots.homes():
            try:
                self.own = await self._connect(slots.address(place), self.own_lost)
                return self.own
            except LostError as error:
                lost = error
                if self.closed:
                    break
                slots.unreachable.add(place)
        raise lost or ReplyError("CLUSTERDOWN no node of the cluster has slots")

    async def ask_own(self, words: Iterable[bytes]) -> bytes:
        """The reply to a command on the client's own connection. Not for commands that write."""
        [reply] = await (await self.own_connection()).collect(pack([tuple(words)]), 1, writes=False)
        return reply

    async def relay_own(self, words: Words) -> bool:
        """Run a command on the client's own connection. The reply passes to the client; False: an error."""
        return await (await self.own_connection()).relay(pack([tuple(words)]), 1)

    async def _open_node(self, place: Place | None) -> OwnConnection:
        try:
            if place is None:
                return await self.own_connection()
            await self.hub.nodes.ready(place)
            return await self._connect(self.hub.nodes.slots.address(place), lambda: None)
        except LostError:
            if self.closed:  # no reason to try again
                raise ReplyError("ERR the client left") from None
            raise

    async def _unblock(self, place: Place, number: int) -> None:
        """End the wait of a connection to a node, with the gateway's rights."""
        batch = Batch([("CLIENT", "UNBLOCK", number)], resend=True, attempt=True)
        with suppress(LostError):  # the wait fails too
            await self.database.lane.at(place).send(batch)

    async def _connect(self, at: Address, on_lost: Callable[[], None]) -> OwnConnection:
        own = await self.hub.backends.own(self, (self.write, self.push), on_lost, self._park, at)
        try:
            await self._greet(own)
        except BaseException:
            own.close()
            raise
        if self.closed:  # the client left meanwhile: nothing else would close the connection
            own.close()
            self.hub.backends.released(self)
            raise LostError("the client", "it left", wrote=False)
        return own

    async def _greet(self, own: OwnConnection) -> None:
        """Restore the session's state on a connection. Before a login the engine refuses that, and every
        command but the login; so it is restored after the login."""
        greeting = self.session.greeting()
        replies = await own.collect(pack(greeting), len(greeting), writes=False) if greeting else []
        refused = next((reply for reply in replies if reply.startswith(b"-")), None)
        needs_login = refused is not None and refused.startswith(b"-NOAUTH") and self.session.login is None
        own.is_greeted = not needs_login
        if refused is not None and not needs_login:
            own.close()
            raise ReplyError(refused[1:-2].decode("utf-8", "replace"))

    def close_own(self) -> None:
        if self.own is not None:
            self.own.close()
        self.own = None
        self.nodes.close()
        self.hub.backends.released(self)

    def give_back_lanes(self) -> None:
        self.hub.give_back(self.lane)
        for (region, _), lane in self.away.items():
            region.give_back(lane)
        self.away = {}

    @property
    def lost_with_state(self) -> LostError | None:
        """The error of the client's own connection, if state was lost with it that cannot be restored."""
        return None if self.own is None or self.session.can_park else self.own.lost

    def _park(self) -> bool:
        if not self.is_idle or not self.session.can_park or not (self.own or self.nodes):
            return False
        if (self.own is not None and not self.own.is_idle) or (self.nodes and not self.nodes.is_idle):
            return False
        self.close_own()
        return True
