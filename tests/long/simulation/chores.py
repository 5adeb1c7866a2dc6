"""Entries for later and retention, in some of the runs (BRAID_CHORES=1 make simulate).

Users write entries for later to two streams and cancel some; each region's job (replication/later_job.py)
reads and promotes them, is killed between two requests, forgets everything, and believes now and then that
another region is dead. Policies remove what they may; a region that cannot be reached is not asked.

They have a die of their own. What happens stands in the history, so all its anomalies are looked for, and:

    needed     removed by a policy with `acked`, though a living group had not acknowledged it
    early      promoted before its time, by the clock of the region that promotes
    half       promoted and still waiting
    unfired    not cancelled, and not promoted in the end
    cancelled  promoted by the region that had cancelled it
"""

import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from braidstream.errors import LostError
from braidstream.model import ids
from braidstream.model.later import due_of
from braidstream.model.region import Region
from braidstream.model.retention_policy import Policy
from braidstream.operations import later_promotion
from braidstream.operations.retention_trim import find_due, trim_step
from braidstream.plan.ask_peers import Needs, read_needs
from braidstream.plan.braid import read_strands
from braidstream.plan.plan import Batch, Plan, Replies, arun
from braidstream.replication.later_job import Later
from tests.long.simulation.network import Network
from tests.long.simulation.seat import Seat
from tests.long.simulation.witness import NAMES, Witness
from tests.oracle.convergence import living
from tests.oracle.history import Added, Did, Entry, Promoted, Removed, Saw, Sent, user_id

T = TypeVar("T")

# The streams that entries wait for, and where they wait.
COMPANIONS: Final = {"{a}.later": "a", "{b}.later": "b"}
# How often somebody does something, and a link brings what waits.
ACTS, LINKS = 0.06, 0.06
OFTEN: Final[dict[str, int]] = {
    "write": 20,
    "cancel": 6,
    "look": 10,
    "act": 20,
    "forget": 2,
    "retain": 14,
}
DELAYS_MS: Final = (0, 1, 20, 100, 500)
# So often the job is killed while it acts, and takes over from another region.
KILLED, TAKES_OVER = 0.15, 0.2
# Clocks are ahead or behind by so much; and what is later than any of them, and any delay.
SKEW_MS, LATER_MS = 25_000, 60_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """due_ms: by the time in its ID."""

    target: str
    due_ms: int
    value: str

    def message(self, entry: Entry) -> str:
        """The words of XADD for what is appended. `~` stands for a space."""
        name = b"%b %b" % (entry[0].encode(), ids.text(entry[1]))
        lane = zlib.crc32(name) % later_promotion._LANES
        return f"IDMP later/{lane} {name.decode().replace(' ', '~')} * f {self.value}"


class Place:
    """What a job takes for its region. left: batches until it is killed."""

    is_cluster = False

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.left: int | None = None

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._send)

    async def _send(self, batch: Batch) -> Replies:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise LostError("region", "the job was killed", wrote=True)
        replies = self.seat.send(batch)
        seconds, ms = divmod(self.seat.clock_ms, 1000)
        time = [b"%d" % seconds, b"%d" % (1000 * ms)]
        return [
            time if command == ("TIME",) else reply
            for command, reply in zip(batch.commands, replies, strict=True)
        ]

    def spares(self, error: BaseException) -> bool:
        return False


class AllNames:
    """Every look tells of all companions, as a sweep does."""

    def serve(self, fields: tuple[bytes, ...], read: Callable[[dict[bytes, Any]], Awaitable[None]]) -> Any:
        async def look() -> None:
            await read({name.encode(): () for name in COMPANIONS})

        return look


class Belief:
    """Which regions this one believes to be dead, rightly or not."""

    def __init__(self) -> None:
        self.dead = frozenset[int]()

    def dead_for(self, here: Region, name: bytes) -> frozenset[int]:
        return self.dead

    def is_first(self, here: Region, name: bytes) -> bool:
        return False


class Job:
    """A daemon's job, as it runs from one start to the next."""

    def __init__(self, seat: Seat) -> None:
        self.place, self.belief = Place(seat), Belief()
        stand_ins: Any = (self.place, AllNames(), lambda: (), lambda name: True, self.belief)
        self.later = Later(*stand_ins)


class Chores:
    """wrong: what was found while it ran. known: every waiting entry that was ever written."""

    def __init__(self, seed: int, witness: Witness, network: Network) -> None:
        self.dice, self.witness, self.network = Random(f"chores {seed}"), witness, network
        self.seats, self.history = witness.seats, witness.history
        self.jobs = {number: Job(seat) for number, seat in self.seats.items()}
        self.known = dict[tuple[str, Entry], Waiting]()
        self.wrong = dict[str, list[str]]()
        self.made = 0
        self.skew_ms = {number: self.dice.choice((-SKEW_MS, 0, 0, SKEW_MS)) for number in self.seats}
        witness.names = (*NAMES, *COMPANIONS)

    async def turn(self, awake: list[int], out_of_reach: Callable[[int], set[int]]) -> None:
        roll = self.dice.random()
        if roll < ACTS and awake:
            region = self.dice.choice(awake)
            verb = self.dice.choices(list(OFTEN), list(OFTEN.values()))[0]
            companion = self.dice.choice(list(COMPANIONS))
            if verb in ("write", "cancel"):
                getattr(self, f"_{verb}")(region, companion)
            elif verb == "retain":
                self._retain(region, self.dice.choices(NAMES, (8, 3, 1))[0], out_of_reach(region))
            else:
                await self._run_job(region, verb)
        elif roll < ACTS + LINKS:
            line = self.dice.choice(self.network.lines)
            if not line.busy:
                how = self.dice.choices(("sync", "follow", "relay"), (5, 4, 2))[0]
                await self.network.start(line, self.dice.choice(list(COMPANIONS)), how)

    def forget(self, region: int) -> None:
        """The region lost what happened there last: daemons connect again, and read everything."""
        self.jobs[region] = Job(self.seats[region])

    # Users

    def _write(self, region: int, companion: str) -> None:
        self.made += 1
        delay = self.dice.choice(DELAYS_MS)
        self.witness.do(region, "XADD", companion, "*", "later.delay", delay, "f", f"w{self.made}")
        self._waiting(region, companion)

    def _cancel(self, region: int, companion: str) -> None:
        if seen := sorted(self._waiting(region, companion)):
            entry = user_id(self.dice.choice(seen))
            self.witness.do(region, "XDEL", companion, ids.text(entry).decode())

    def _waiting(self, region: int, companion: str) -> dict[Entry, Waiting]:
        """What waits in a region. All of it is remembered."""
        seat, found = self.seats[region], dict[Entry, Waiting]()
        plan = read_strands(seat.eyes, companion.encode(), lambda strand: strand.xrange(ids.ZERO, ids.LAST))
        _, pages = seat.run(plan)
        for strand, page in pages:
            for native, words in page:
                entry = strand.registration.decode(), ids.native(native)
                due_ms, _ = due_of(entry[1][0], words)
                found[entry] = Waiting(COMPANIONS[companion], due_ms, words[-1].decode())
        self.known |= {(companion, entry): each for entry, each in found.items()}
        return found

    # The job

    async def _run_job(self, region: int, verb: str) -> None:
        if verb == "forget":
            self.forget(region)
            return
        job = self.jobs[region]
        others = [number for number in self.seats if number != region]
        takes = self.dice.random() < TAKES_OVER
        job.belief.dead = frozenset(self.dice.sample(others, 1) if takes else ())
        job.place.left = self.dice.randrange(6) if self.dice.random() < KILLED else None
        await self._noted(region, job.later.look if verb == "look" else job.later.act)
        job.place.left = None

    async def _noted(self, region: int, work: Callable[[], Awaitable[None]]) -> None:
        """Do it, and note what it has done."""
        before = {name: self._waiting(region, name) for name in COMPANIONS}
        there = {}
        for name in (*COMPANIONS, *COMPANIONS.values()):
            self.witness.look(region, name)
            there[name] = self.witness.seen[region, name]
        try:
            await work()
        except LostError:
            self.forget(region)
        for companion, target in COMPANIONS.items():
            self._note(region, companion, before[companion], there[target])

    def _note(
        self, region: int, companion: str, before: dict[Entry, Waiting], there: dict[Entry, bytes]
    ) -> None:
        target, seat = COMPANIONS[companion], self.seats[region]
        after, now = self._waiting(region, companion), seat.look(target)[1]
        gone = {entry: each for entry, each in before.items() if entry not in after}
        new = {now[entry].decode(): entry for entry in now.keys() - there.keys()}
        for entry, each in gone.items():
            shown = f"{each.value} of {target}"
            self.history.add(Did(region, f"(promotes {shown}, due at {each.due_ms})"))
            if seat.clock_ms < each.due_ms:
                self._say(
                    "early", f"region {region} promotes {shown} at {seat.clock_ms}, due at {each.due_ms}"
                )
            self.history.add(Promoted(region, companion, frozenset([entry])))
            if (found := new.pop(each.value, None)) is not None:
                self.history.add(Added(region, target, frozenset([found])))
                era = seat.settings(target).era
                self.history.add(Sent(region, target, each.message(entry), era, found))
                self.witness.accepted.add((target, found))
        for value in new:
            self._say("half", f"region {region} has appended {value} to {target}, and it still waits")
        for name in (companion, target):
            self.witness.look(region, name)

    def _say(self, what: str, text: str) -> None:
        self.wrong.setdefault(what, []).append(text)

    # Retention

    def _retain(self, region: int, name: str, unknown: set[int]) -> None:
        kind = self.dice.choice(("age", "age acked", "age acked", "acked", "acked", "hold"))
        clocks = [seat.clock_ms for number, seat in self.seats.items() if number not in unknown]
        now_ms = min(clocks) + 1000 - self.dice.choice((0, 0, 1, 20, 200))
        policy = Policy(
            name.encode(),
            (1, 0),
            max_age_s=None if kind == "acked" else 1,
            acked=kind != "age",
            hold_s=2 if kind == "hold" else None,
        )
        self.witness.look(region, name)
        before, lives = self.witness.seen[region, name], living(self.history, name)
        removed, why = self._carry_out(region, policy, now_ms, unknown)
        self.history.add(Did(region, f"(retention of {name} by {kind})", f"{removed} {why}"))
        if not removed:
            return
        after = self.seats[region].look(name)[1]
        gone = frozenset(before.keys() - after.keys())
        self.history.add(Removed(region, name, gone))
        self.history.add(Saw(region, name, frozenset(after)))
        self.witness.seen[region, name] = after
        for group, life in lives.items() if policy.acked else ():
            needed = [each for each in sorted(gone) if not life.is_done(user_id(each))]
            needed = [each for each in needed if each[1][0] >= policy.hold_ms(now_ms)]
            if needed:
                self._say("needed", f"region {region}, {kind}: group {group} of {name} needs {needed}")

    def _carry_out(self, region: int, policy: Policy, now_ms: int, unknown: set[int]) -> tuple[int, str]:
        seat, removed, why = self.seats[region], 0, ""
        found, _ = seat.run(find_due({policy.streams: policy}, now_ms))
        for due in found:
            strands, acked = due.registry.strands, {}
            for peer in self.seats.keys() - {region} - unknown:
                needs = self.seats[peer].run(read_needs(due.name, strands, due.reply))
                acked |= {(peer, group): upto for group, upto in needs.items()}
            needs = Needs(dict.fromkeys(unknown, "apart"), acked)
            while (step := seat.run(trim_step(due, needs, now_ms))).removed:
                removed += step.removed
            why = step.waits
        return removed, why

    # The end

    async def finish(self) -> None:
        """All is due, and every region promotes what it wrote. Links must run after it."""
        for seat in self.seats.values():
            seat.clock_ms += LATER_MS
        for region in self.seats:
            self.forget(region)
            await self._noted(region, self.jobs[region].later.look)
            await self._noted(region, self.jobs[region].later.act)

    def find_wrong(self) -> dict[str, list[str]]:
        sent = {(event.name, event.message) for event in self.history.of(Sent)}
        written = [(event.name, entry) for event in self.history.of(Added) for entry in event.entries]
        by_users = dict[tuple[str, Entry], set[int]]()
        for event in self.history.of(Removed):
            for entry in event.entries:
                regions = by_users.setdefault((event.name, entry), set())
                if not isinstance(event, Promoted):
                    regions.add(event.region)
                elif event.region in regions:
                    self._say("cancelled", f"region {event.region} promotes {entry} of {event.name}")
        for name, entry in self._companions(written):
            each = self.known[name, entry]
            if not by_users.get((name, entry)) and (each.target, each.message(entry)) not in sent:
                self._say("unfired", f"{each.value} of {each.target}, which region {entry[0]} has written")
        return self.wrong

    @staticmethod
    def _companions(written: Iterable[tuple[str, Entry]]) -> list[tuple[str, Entry]]:
        return [(name, entry) for name, entry in written if name in COMPANIONS]
