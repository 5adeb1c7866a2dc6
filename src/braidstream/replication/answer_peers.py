"""Answers this region's questions about groups of other regions, before ACKED removes something.

plan/ask_peers.py has the question, the answer, and what is read at a peer. The daemon stores nothing: a
question that its engine pushes is answered within the time that the client waits, or the next one is.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.errors import LostError
from braidstream.model import keys
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.registry import Registry
from braidstream.model.strand import Strand
from braidstream.observability.events import Repeated
from braidstream.plan.ask_peers import Needs, answer, read_needs, read_question, say
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.endpoint import Endpoint, reason
from braidstream.replication.region_facts import region_of

# How long to wait for a peer. The client waits longer (WAIT_MS).
WITHIN_S: Final = 1.0
# How many questions are answered at a time.
_AT_ONCE: Final = 16
# How long `braid status` names the region for which a question waited.
SHOWN_S: Final = 60.0


@dataclass(slots=True)
class _Waiting:
    """A region that could not be asked. stream: that of the last question for it. until_s: forget it then."""

    stream: bytes = b""
    why: str = ""
    until_s: float = 0.0
    trouble: Repeated = field(default_factory=Repeated)


async def ask_peers(
    name: bytes, here: Region, peers: Iterable[Peer], ours: list[Any], strands: Iterable[Strand]
) -> Needs:
    """What groups of other regions need of a stream. ours: this region's registry of it."""
    known = {peer.id: peer for peer in peers}
    listed, unknown = [*strands], dict[int, str]()
    acked = dict[tuple[int, bytes], dict[bytes, Id]]()

    async def ask(number: int) -> None:
        try:
            found = await _ask_peer(name, known.get(number), ours, listed)
        except Exception as error:  # also for an unexpected reply
            why = "no answer" if isinstance(error, TimeoutError) else _why(error)
            unknown[number] = f"{known[number].name}: {why}" if number in known else why
        else:
            acked.update({(number, group): upto for group, upto in found.items()})

    await asyncio.gather(*map(ask, here.peers))
    return Needs(unknown, acked)


async def _ask_peer(
    name: bytes, peer: Peer | None, ours: list[Any], strands: list[Strand]
) -> dict[bytes, dict[bytes, Id]]:
    if peer is None:
        raise LostError("", "this daemon's file does not list it", wrote=False)
    if not peer.takes(name):
        return {}
    if peer.link is None:
        raise LostError("", peer.why or "not connected yet", wrote=False)
    async with asyncio.timeout(WITHIN_S):
        return await peer.endpoint.run(read_needs(name, strands, ours))


def _why(error: Exception) -> str:
    return error.why if isinstance(error, LostError) else reason(error)


class PeerGroups:
    """`asked` is called for each push of a question, `run` answers until it is cancelled."""

    def __init__(
        self, source: Endpoint, peers: Callable[[], Iterable[Peer]], is_mine: Callable[[bytes], bool]
    ) -> None:
        self._source, self._peers, self._is_mine = source, peers, is_mine
        self._asked = asyncio.Queue[bytes]()
        self._queued = set[bytes]()
        self._waiting = dict[int, _Waiting]()

    @property
    def waits(self) -> dict[str, str]:
        """For `braid status`: why regions could not be asked, each with the stream of the last question."""
        now_s = asyncio.get_running_loop().time()
        waiting = {number: each for number, each in self._waiting.items() if now_s < each.until_s}
        self._waiting = waiting
        return {
            each.why: each.stream.decode("utf-8", "backslashreplace") for _, each in sorted(waiting.items())
        }

    def asked(self, name: bytes) -> None:
        if self._is_mine(name) and name not in self._queued:
            self._queued.add(name)
            self._asked.put_nowait(name)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        clock, trouble = asyncio.get_running_loop().time, Repeated()
        while True:
            name = await self._asked.get()
            self._queued.discard(name)
            try:
                await self.answer(name)
                trouble.over(clock())
            except Exception as error:  # also for an unexpected reply; the client asks again
                trouble.log("trim.unanswered", clock(), stream=name, why=reason(error))

    async def answer(self, name: bytes) -> None:
        here = await region_of(self._source)
        question, ours = await self._source.run(read_question(name, here.writer))
        if not question:
            return
        needs = await ask_peers(name, here, self._peers(), ours, Registry.parse(name, ours).strands)
        words = answer(question, here.peers, needs)
        await self._source.run(_send(keys.questions(name, here.writer), words))
        self._note(name, needs)

    def _note(self, name: bytes, needs: Needs) -> None:
        now_s = asyncio.get_running_loop().time()
        for number, why in needs.unknown.items():
            waiting = self._waiting.setdefault(number, _Waiting())
            waiting.stream, waiting.why, waiting.until_s = name, why, now_s + SHOWN_S
            waiting.trouble.log("trim.waits", now_s, stream=name, region=number, why=why)
        for number, waiting in [*self._waiting.items()]:
            if number not in needs.unknown and waiting.stream == name:
                del self._waiting[number]


def _send(where: bytes, words: list[bytes]) -> Plan[None]:
    yield Batch([say(where, *words)], resend=True)
