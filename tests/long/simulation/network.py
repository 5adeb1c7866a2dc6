"""Links between seats, stopped before every request. The caller decides what happens to it.

    link ----> request ----> deliver      done at the region, the answer goes back
                       |---> lose         the link hears that its connection is gone; nothing was done
                       |---> cut          done, and then the connection is gone
                       |---> delay        the connection is gone, and the request arrives some time later
                       `---> repeat       done and answered; it arrives once more some time later

A link that lost a connection goes on with the memory it has, or is replaced by a new one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from braidstream.errors import BraidError, LostError
from braidstream.plan.plan import Batch, Plan, Replies, arun, first_error
from braidstream.replication.link.flow import Progress
from braidstream.replication.link.link import Link
from braidstream.replication.link.pages import Pages, Source, find_splice
from braidstream.replication.link.stream_state import parse_state
from tests.long.simulation.replicas import Replicas
from tests.long.simulation.seat import Seat
from tests.oracle.history import Did, History, Noted, Told

T = TypeVar("T")

Pair = tuple[int, int]

# So often the loop goes round before we look: an answer passes through a few tasks on its way.
TURNS: Final = 4


@dataclass(eq=False)
class Request:
    """A batch on its way from a link to a region."""

    line: "Line"
    name: str
    region: int
    batch: Batch
    answer: "asyncio.Future[Replies]"

    @property
    def writes(self) -> bool:
        """Whether it may change the target. What may be sent again is a read."""
        return self.region == self.line.pair[1] and not self.batch.resend


@dataclass(eq=False)
class Line:
    """One link at work, or at rest."""

    pair: Pair
    number: int
    link: Link = field(init=False)
    tasks: "list[asyncio.Task[Any]]" = field(default_factory=list)
    name: str = ""
    notes: dict[int, tuple[str, dict[bytes, bytes]]] = field(default_factory=dict)
    dead: bool = False
    parked: list[Request] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.pair[0]}>{self.pair[1]}" + ("'" if self.number else "")

    @property
    def busy(self) -> bool:
        return bool(self.tasks or self.parked)

    @property
    def heads(self) -> list[Request]:
        """The next request to each region: on one connection nothing overtakes."""
        first = dict[int, Request]()
        for request in self.parked:
            first.setdefault(request.region, request)
        return list(first.values())


class End:
    """What a link takes for a region."""

    def __init__(self, network: "Network", line: Line, region: int) -> None:
        self.network, self.line, self.region = network, line, region

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._send)

    async def _send(self, batch: Batch) -> Replies:
        return await self.network.park(self.line, self.region, batch)


class Network:
    """All lines. `open` lets every request pass at once. `sent`: all that was sent to targets, in order."""

    def __init__(self, seats: dict[int, Seat], history: History) -> None:
        self.seats, self.history = seats, history
        self.open, self.notes = False, 0
        self.replicas: Replicas | None = None
        self.late: list[Request] = []
        self.sent: list[Request] = []
        regions = list(seats)
        pairs = [(source, target) for source in regions for target in regions if source != target]
        self.lines = [Line(pair, number) for pair in pairs for number in (0, 1)]
        for line in self.lines:
            self.renew(line)

    def renew(self, line: Line) -> None:
        """A new process: a link without a memory."""
        source, target = line.pair
        ends = End(self, line, source), End(self, line, target)
        here, there = self.seats[source].region, self.seats[target].region
        pages = Pages(Source(ends[0], splice=find_splice()))
        line.link = Link(*ends, here=here, there=there, pages=pages)

    async def start(self, line: Line, name: str, how: str) -> None:
        wanted, line.name, line.dead = name.encode(), name, False
        follows = how == "follow"
        work = _follow(line.link, wanted) if follows else line.link.sync(wanted, relay=how == "relay")
        line.tasks.append(asyncio.ensure_future(work))
        self.tell(f"{line} {how} {name}")
        await self.settle(line)

    async def settle(self, line: Line) -> None:
        """Let a link run until it waits for an answer, or is done; what it sent may still be under way."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        while not line.parked and not all(task.done() for task in line.tasks):
            await asyncio.sleep(0)
        done = [task for task in line.tasks if task.done()]
        line.tasks = [task for task in line.tasks if not task.done()]
        for error in (task.exception() for task in done):
            if error is not None and not isinstance(error, LostError):
                self.tell(f"{line} failed", str(error))
                raise error

    async def park(self, line: Line, region: int, batch: Batch) -> Replies:
        answer: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        request = Request(line, line.name, region, batch, answer)
        if line.dead:
            raise LostError(f"region {region}", "the simulation cut it", wrote=False)
        if self.open:
            replies = self.execute(request)
            self.note(request, replies)
            return replies
        line.parked.append(request)
        return await answer

    def execute(self, request: Request) -> Replies:
        """Done at the region, in one go."""
        replies = self.seats[request.region].send(request.batch)
        if request.writes:
            self.sent.append(request)
        if _function(request) == "bs_braid_merge" and first_error(request.batch, replies) is None:
            self.history.add(Told(request.region, request.name, _note_of(request)))
        return replies

    def note(self, request: Request, replies: Replies) -> None:
        """The link hears what its source knows."""
        line = request.line
        if _function(request) in ("bs_braid_state", "bs_braid_look"):
            self.notes += 1
            line.notes[self.notes] = request.name, parse_state(b"", (), (), [replies[0][0], [], 0]).shared
            self.history.add(Noted(request.region, request.name, self.notes))
        if self.replicas is not None and request.region == line.pair[0]:
            self.replicas.read(request.region)

    async def step(
        self, dice: Random, can_pass: Callable[[Request], bool], luck_of: Callable[[Request], float]
    ) -> None:
        """A request that waits goes on, or does not."""
        heads = (request for line in self.lines if line.parked for request in line.heads)
        waiting = [request for request in heads if can_pass(request)]
        if not waiting:
            return
        request = dice.choice(waiting)
        roll, luck = dice.random(), luck_of(request)
        if roll < luck:
            await self.cut(request, dice.choice(("lose", "cut", "delay", "delay")))
            if dice.random() < 0.5:
                self.renew(request.line)
        else:
            await self.deliver(request, repeat=roll < 2 * luck)

    async def deliver(self, request: Request, *, repeat: bool = False) -> None:
        line = request.line
        line.parked.remove(request)
        replies = self.execute(request)
        if request.writes:
            self.tell(f"{line} {_shown(request)}", _outcome(request, replies))
        if repeat:
            self.late.append(request)
        self.note(request, replies)
        request.answer.set_result(replies)
        await self.settle(line)

    async def cut(self, request: Request, how: str) -> None:
        """The connections of a link are gone: its next request was lost, done, or comes late."""
        line = request.line
        rest = [other for other in line.parked if other is not request]
        self.tell(f"{line} {how} {_shown(request)}" + (f" and {len(rest)} more" if rest else ""))
        if how == "cut":
            self.execute(request)
        elif how == "delay":
            self.late += [request, *rest]
        line.dead = True
        for each in line.parked:
            each.answer.set_exception(LostError("region", "the simulation cut it", wrote=True))
        line.parked = []
        await self.settle(line)

    async def promote(self, region: int) -> None:
        """A region's replica takes over: every connection to the old primary is gone."""
        assert self.replicas is not None
        touching = [line for line in self.lines if region in line.pair]
        for line in touching:
            while line.busy:
                await self.cut(line.parked[0], "lose")
        self.late = [request for request in self.late if request.region != region]
        self.tell(f"(the replica of region {region} is promoted)")
        self.replicas.promote(region)
        for line in touching:
            self.renew(line)

    def arrive(self, request: Request) -> None:
        """A request whose sender no longer waits."""
        self.late.remove(request)
        try:
            outcome = _outcome(request, self.execute(request))
        except BraidError as error:
            outcome = str(error)
        self.tell(f"late from {request.line}: {_shown(request)}", outcome)

    def tell(self, what: str, outcome: str = "") -> None:
        self.history.add(Did(0, what, outcome))


async def _follow(link: Link, name: bytes) -> Progress:
    """In a bundle, and else alone, as a daemon does."""
    return (await link.follow_some([name])).get(name) or await link.follow(name)


def _function(request: Request) -> object:
    command = request.batch.commands[0]
    return command[1] if command[0] == "FCALL" else None


def _note_of(request: Request) -> int:
    """Which note a merge has: the words are those of the registry that was read."""
    words = request.batch.commands[0]
    first = words[2] + 3 + 1 + 3 * int(words[words[2] + 3])  # type: ignore[operator, index, arg-type]
    first += 1 + int(words[first]) + 1  # the turns of groups, and the stamp of the bell
    told = request.name, dict(zip(words[first::2], words[first + 1 :: 2], strict=True))
    return next(note for note, known in reversed(request.line.notes.items()) if known == told)


def _shown(request: Request) -> str:
    """A request in few words: `merge at 2`."""
    words = []
    for command in request.batch.commands[:2]:
        verb = command[1] if str(command[0]).startswith("FCALL") else command[0]
        words.append(str(verb).removeprefix("bs_"))
    return f"{'+'.join(words)} at {request.region}"


def _outcome(request: Request, replies: Replies) -> str:
    error = first_error(request.batch, replies)
    if error is not None:
        return error.text
    return str(replies[0]) if isinstance(replies[0], int) else ""
