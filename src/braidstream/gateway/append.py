"""The fast path: plain appends, all in one write to the lane of each node, answered from the callback.

Most commands are appends, so they use no task and no plan: the gateway replaces the name by the strand's
key, and translates the ID in the reply.

    XADD name * ...   -->  [create the strand]  XADD key NOMKSTREAM * ...   -->  its ID, or nil: no strand

A single append is sent without the creation. If the strand is missing, the plan of XADD repeats the append.
To keep the client's order, no other run starts until the single append is answered.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from braidstream.engine.connection import Connection, Flight
from braidstream.engine.resp import Parser, Words, error_line
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.gateway.client import Client
from braidstream.gateway.hub import perf_counter
from braidstream.gateway.lanes import Lane
from braidstream.plan.append import Homes, packed_reply, packed_run, splice
from braidstream.plan.plan import Replies


class FastAppends:
    """The appends of one client that are in flight."""

    def __init__(self, client: Client, run_plan: Callable[[Words], Awaitable[bytes]]) -> None:
        """run_plan: runs XADD by its plan, for an append whose strand is missing."""
        self._client = client
        self._run_plan = run_plan
        self._slots: deque[list[bytes]] = deque()  # one for each run: its replies, once they arrived
        self._quiet: asyncio.Future[None] | None = None
        self.must_wait = False  # an append is in flight that may have to be repeated
        # The single append that is in flight, and when it was sent.
        self._one, self._one_began = b"", 0.0
        self._one_flight = Flight(1, self._one_answered, True, 0.0, 0.0)
        self._version = -1  # of the map of slots, when the oldest append in flight was sent
        self._answered: asyncio.Event | None = None  # a run was answered; None: no run waits for that

    @property
    def is_quiet(self) -> bool:
        return not self._slots

    async def until_quiet(self) -> None:
        """Wait until every append in flight is answered."""
        if self._slots:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def send_spliced(self, data: bytes) -> bool:
        """If the bytes are only similar appends, send them with the strand's key in place of the name."""
        lane = self._lane()
        if lane is None or (spliced := splice(data, self._client.database.cache.homes)) is None:
            return False
        key, out, count = spliced
        conn = lane.connection_for(key)
        if conn is None or (count == 1 and (self._slots or self._client.hub.traces.enabled)):
            return False  # the span of a single append has the producer's trace, which is in its fields
        slot, began = self._begin(), self._time()
        if count > 1:
            conn.post(out, 1 + count, partial(self._appended, began, slot, data, count, 1))
            return True
        self.must_wait = True
        self._one, self._one_began = data, began
        conn.post_again(out, self._one_flight)
        return True

    def _one_answered(self, replies: Replies | LostError) -> None:
        """Nearly always an ID that goes to the client at once."""
        client, region = self._client, self._client.database.cache.region
        is_usual = self._quiet is None and not self._one_began
        if not is_usual or region is None or isinstance(replies, LostError) or type(replies[0]) is not bytes:
            self._appended(self._one_began, self._slots[0], self._one, 1, 0, replies)
            return
        self._slots.clear()
        self.must_wait = False
        try:
            client.hub.metrics.appended += 1
            client.write(packed_reply(replies[0], region.writer))
            client.settled()
        except Exception as error:  # other clients share the lane
            client.hub.crashed(error)
            client.close()

    def run(self, commands: Iterable[Words]) -> int:
        """Send the plain appends at the head of the queue, each to its node; returns their number."""
        lane = self._lane()
        if lane is None:
            return 0
        homes = self._client.database.cache.homes
        run, out = packed_run(commands, homes)
        if len(run) == 1 and not self._slots:
            conn = lane.connection_for(homes[run[0][1]].key)
            if conn is None:
                return 0
            self.must_wait = True
            conn.post(out[0], 1, partial(self._appended, self._time(), self._begin(), run, 1, 0))
            return 1
        parts = _by_node(lane, run, homes)
        if not run:
            return 0
        del out[len(run) :]
        done = partial(self._appended, self._time(), self._begin(), run, len(run))
        spread = _Spread(len(run), len(parts), partial(done, 0)) if len(parts) > 1 else None
        for conn, some in parts.items():
            mine, data = (
                (run, out) if spread is None else ([run[at] for at in some], [out[at] for at in some])
            )
            # Repeating one of several appends would change their order: create the strands first.
            names = {words[1] for words in mine}
            data[:0] = [homes[name].ensure for name in names]
            taken = partial(done, len(names)) if spread is None else partial(spread.take, some, len(names))
            conn.post(b"".join(data), len(data), taken)
        return len(run)

    def _begin(self) -> list[bytes]:
        """A new run. Returns the list that gets its replies."""
        self._client.database.used = True
        slot: list[bytes] = []
        self._slots.append(slot)
        return slot

    def _time(self) -> float:
        """When a run is sent; 0.0 for most single appends, because reading the clock twice costs 3 %."""
        metrics = self._client.hub.metrics
        is_timed = metrics.appended >= metrics.time_from or self._client.hub.traces.enabled
        return perf_counter() if is_timed else 0.0

    def _lane(self) -> Lane | None:
        """The lane, if appends can use the fast path now."""
        client = self._client
        if self.must_wait or not client.is_plain or client.hub.held is not None:
            return None
        if not client.database.is_fresh:
            return None
        lane = client.lane
        version = lane.slots.version
        if not self._slots:
            self._version = version
        # If a slot has moved, an append must not overtake those that its old node may refuse.
        return lane if self._version == version else None

    def _appended(self, *run: Any) -> None:
        """`_answer`, but an exception closes this client only: other clients share the lane."""
        try:
            self._answer(*run)
        except Exception as error:
            self._client.hub.crashed(error)
            self._client.close()

    def _answer(
        self,
        began: float,
        slot: list[bytes],
        run: list[Words] | bytes,
        count: int,
        ensured: int,
        replies: Replies | LostError,
    ) -> None:
        client, metrics = self._client, self._client.hub.metrics
        metrics.appended += count
        if began:
            metrics.time_appends(began)
            if client.hub.traces.enabled:
                client.hub.traces.commands(run, count, began)
        if isinstance(replies, LostError):
            metrics.failed(replies)
            self._fill(slot, [error_line(replies)] * count)
            return
        region = client.database.cache.region
        assert region is not None
        writer = region.writer
        out: list[bytes] = []
        missing: list[int] = []
        for reply in replies[ensured:] if ensured else replies:
            if type(reply) is bytes:
                out.append(packed_reply(reply, writer))
                continue
            if self._must_repeat(reply):
                missing.append(len(out))
            elif isinstance(reply, BraidError):
                metrics.failed(reply)
            out.append(error_line(reply) if isinstance(reply, BraidError) else b"")
        if missing:
            if b"" in out:
                client.database.forget()
            self.must_wait = True
            words = Parser(client.hub.limits).feed(run) if isinstance(run, bytes) else run
            client.hub.run(self._repeat(slot, words, out, missing))
        else:
            self._fill(slot, out)

    def _must_repeat(self, reply: Any) -> bool:
        """Whether the plan of XADD repeats an append that wrote nothing: its strand is missing, or its slot
        is elsewhere. While a cluster is down, only if no later append of the client can have run."""
        if isinstance(reply, LostError):
            return not reply.wrote
        if isinstance(reply, ReplyError):
            return reply.is_redirect and (reply.code != "CLUSTERDOWN" or len(self._slots) == 1)
        return reply is None

    async def _repeat(
        self, slot: list[bytes], run: list[Words], out: list[bytes], missing: list[int]
    ) -> None:
        """Repeat appends that wrote nothing, after all earlier runs of the client are answered: a slower node
        may refuse those too."""
        ran = max((at for at in range(len(out)) if at not in missing), default=-1)
        while self._slots[0] is not slot:
            self._answered = self._answered or asyncio.Event()
            await self._answered.wait()
        for at in missing:
            if at < ran and out[at].startswith(b"-CLUSTERDOWN"):
                continue
            try:
                out[at] = await self._run_plan(run[at])
            except BraidError as error:
                out[at] = error_line(error)
        self._fill(slot, out)

    def _fill(self, slot: list[bytes], out: list[bytes]) -> None:
        """Store the replies of a run, and write those of all finished runs in order."""
        slot.append(out[0] if len(out) == 1 else b"".join(out))
        slots = self._slots
        while slots and slots[0]:
            self._client.write(slots.popleft()[0])
        if self._answered is not None:
            self._answered.set()
            self._answered = None
        if not slots:
            self.must_wait = False
            quiet, self._quiet = self._quiet, None
            if quiet is None:
                self._client.settled()
            elif not quiet.done():
                quiet.set_result(None)


def _by_node(lane: Lane, run: list[Words], homes: Homes) -> dict[Connection, Sequence[int]]:
    """Which appends go to which node. It cuts the run before one whose node has no open connection."""
    if not run:
        return {}
    if lane.only is not None:
        conn = lane.connection_for(homes[run[0][1]].key)
        if conn is not None:
            return {conn: range(len(run))}
        run.clear()
        return {}
    parts = dict[Connection, list[int]]()
    for at, words in enumerate(run):
        conn = lane.connection_for(homes[words[1]].key)
        if conn is None:
            del run[at:]
            break
        parts.setdefault(conn, []).append(at)
    return {**parts}


class _Spread:
    """The replies to a run of appends that went to several nodes."""

    def __init__(self, count: int, parts: int, done: Any) -> None:
        self._replies: Replies = [None] * count
        self._parts, self._done = parts, done

    def take(self, some: Sequence[int], ensured: int, replies: Replies | LostError) -> None:
        for number, at in enumerate(some, ensured):
            self._replies[at] = replies if isinstance(replies, LostError) else replies[number]
        self._parts -= 1
        if not self._parts:
            self._done(self._replies)
