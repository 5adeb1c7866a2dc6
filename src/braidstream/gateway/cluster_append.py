"""The fast path before a cluster: each append goes to the node of its strand, and redirects are followed.

A node that answers MOVED or ASK has not run the append, so its plan repeats it, in order: after all earlier
runs of the client are answered, because a slower node may refuse those too. While the cluster is down, an
append is repeated only if no later one of the client can have run.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from braidstream.errors import LostError, ReplyError
from braidstream.gateway.cluster_lane import ClusterLane
from braidstream.gateway.fast_append import FastAppends
from braidstream.net.resp import Words
from braidstream.net.wire import Connection
from braidstream.protocol.append import packed_run, splice
from braidstream.protocol.plan import Replies

_REDIRECTS: Final = frozenset(("MOVED", "ASK", "TRYAGAIN"))


class ClusterAppends(FastAppends):
    """See the top of the file."""

    _version = -1  # of the map of slots, when the oldest append in flight was sent
    _answered: asyncio.Event | None = None  # a run was answered; None: no run waits for that

    def send_spliced(self, data: bytes) -> bool:
        lane, homes = self._lane(), self._client.database.cache.homes
        if lane is None or (spliced := splice(data, homes)) is None:
            return False
        name = data.split(b"\r\n", 5)[4]
        conn = lane.connection_for(homes[name].key)
        if conn is None:
            return False
        self._client.database.used = True
        out, count = spliced
        slot: list[bytes] = []
        self._slots.append(slot)
        conn.post(out, 1 + count, partial(self._appended, self._time(), slot, data, count, 1))
        return True

    def run(self, commands: Iterable[Words]) -> int:
        """Send the plain appends at the head of the queue, each to its node; returns their number."""
        lane, homes = self._lane(), self._client.database.cache.homes
        if lane is None:
            return 0
        run, out = packed_run(commands, homes)
        parts = dict[Connection, list[int]]()
        for at, words in enumerate(run):
            conn = lane.connection_for(homes[words[1]].key)
            if conn is None:
                del run[at:]
                break
            parts.setdefault(conn, []).append(at)
        if not run:
            return 0
        self._client.database.used = True
        # Repeating one of several appends would change their order: create the strands first.
        ensures = len(run) > 1 or bool(self._slots)
        self.must_wait = not ensures
        slot: list[bytes] = []
        self._slots.append(slot)
        done = partial(self._appended, self._time(), slot, run, len(run))
        spread = _Spread(len(run), len(parts), partial(done, 0)) if len(parts) > 1 else None
        for conn, some in parts.items():
            names = {run[at][1] for at in some} if ensures else ()
            data = [*(homes[name].ensure for name in names), *(out[at] for at in some)]
            taken = partial(done, len(names)) if spread is None else partial(spread.take, some, len(names))
            conn.post(data[0] if len(data) == 1 else b"".join(data), len(data), taken)
        return len(run)

    def _lane(self) -> ClusterLane | None:
        """The lane, if appends can use the fast path now."""
        client, lane = self._client, self._client.lane
        if self.must_wait or not client.is_plain or not client.database.is_fresh:
            return None
        assert isinstance(lane, ClusterLane)
        if not self._slots:
            self._version = lane.version
        # If a slot has moved, an append must not overtake those that its old node may refuse.
        return lane if self._version == lane.version else None

    def _must_repeat(self, reply: Any) -> bool:
        if isinstance(reply, LostError):
            return not reply.wrote
        if isinstance(reply, ReplyError):
            return reply.code in _REDIRECTS or (reply.code == "CLUSTERDOWN" and len(self._slots) == 1)
        return reply is None

    async def _repeat(
        self, slot: list[bytes], run: list[Words], out: list[bytes], missing: list[int]
    ) -> None:
        ran = max((at for at in range(len(out)) if at not in missing), default=-1)
        again = [at for at in missing if at > ran or not out[at].startswith(b"-CLUSTERDOWN")]
        while self._slots[0] is not slot:
            self._answered = self._answered or asyncio.Event()
            await self._answered.wait()
        await super()._repeat(slot, run, out, again)

    def _fill(self, slot: list[bytes], out: list[bytes]) -> None:
        super()._fill(slot, out)
        if self._answered is not None:
            self._answered.set()
            self._answered = None


class _Spread:
    """The replies to a run of appends that went to several nodes."""

    def __init__(self, count: int, parts: int, done: Any) -> None:
        self._replies: Replies = [None] * count
        self._parts, self._done = parts, done

    def take(self, some: list[int], ensured: int, replies: Replies | LostError) -> None:
        for number, at in enumerate(some, ensured):
            self._replies[at] = replies if isinstance(replies, LostError) else replies[number]
        self._parts -= 1
        if not self._parts:
            self._done(self._replies)
