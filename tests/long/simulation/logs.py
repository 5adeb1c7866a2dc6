"""Users of a log among the others: writers, readers, groups, evictions, moves of its home.

They have a die, links and a history of their own, so the other users of a seed do the same with and without
them. Checked while they run and at the end, when every region has everything and rescues are done:

    an offset means one entry, everywhere and for ever     (above a forced move: once that is known)
    every entry that a writer was told of is there once, unless it was evicted or deleted
    offsets are dense: what is missing was evicted or deleted
    every region reads the same
    a group is given every entry in some region, and none twice in one region
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model.registry import LAST_OFFSET, Registry
from braidstream.operations import log_upkeep
from tests.long.simulation.network import Network, Request
from tests.long.simulation.rounds import calm, settle
from tests.long.simulation.seat import Seat
from tests.oracle.history import Did, History

NAME: Final = "ledger"
# In so many runs there are users of a log; in so many of these a home may be declared lost.
RUNS, FORCED = 0.4, 0.4
OFTEN: Final[dict[str, int]] = {
    "write": 40,
    "read": 14,
    "share": 10,
    "take": 10,
    "acknowledge": 10,
    "evict": 3,
    "delete_entry": 3,
    "delete": 1,
    "move": 4,
    "force": 4,
}
# Nothing is due within a run: what is given twice is an error.
TIMES: Final = ("RETRY", 10**9, 10**10)
ALL: Final = 10_000
Row = tuple[int, str]


class LogUsers:
    """told: the offset of each entry when it was written. gone: entries that may be missing, and why.

    given: what each group was given, by region. rescued: entries, with the offsets that they lost; if the new
    one is the same by chance, groups are given it again. sure_below: offsets below mean one entry, also while
    regions do not know of a forced move yet.
    """

    def __init__(self, seed: int, seats: dict[int, Seat]) -> None:
        self.dice, self.seats = Random(f"logs of {seed}"), seats
        self.history = History(len(seats))
        self.network = Network(seats, self.history)
        self.forces = self.dice.random() < FORCED
        left_out = {
            "force": not self.forces,
            "delete": self.dice.random() < 0.7,
        }
        self.weights = [0 if left_out.get(verb) else often for verb, often in OFTEN.items()]
        self.made = 0
        self.told = dict[str, int]()
        self.gone = dict[str, str]()
        self.means = dict[int, str]()
        self.given = dict[tuple[str, int], set[Row]]()
        self.rescued = set[Row]()
        self.held = dict[tuple[str, int], set[int]]()
        self.sure_below = LAST_OFFSET
        self.deleted = False  # then groups are too, and start again

    @staticmethod
    def are_in(seed: int) -> bool:
        return Random(f"logs in {seed}").random() < RUNS

    async def begin(self) -> None:
        """Mostly the log is created before anybody writes: regions that make it apart lose offsets."""
        if self.dice.random() < 0.8:
            self._do(1, "TCFGSET", NAME, "PENDING", 1000)
            await self.settle()
        else:
            self.sure_below = 1

    async def settle(self) -> None:
        """Links run until nothing moves."""
        self.network.open = True
        await settle(self.network, [line for line in self.network.lines if line.number == 0], (NAME,))
        self.network.open = False

    # What they do

    async def turn(self, can_pass: Callable[[Request], bool], luck: float, awake: list[int]) -> None:
        roll = self.dice.random()
        if roll < 0.15 and awake:
            self.act(self.dice.choice(awake))
        elif roll < 0.25:
            line = self.dice.choice(self.network.lines)
            if not line.busy:
                how = self.dice.choices(("sync", "follow", "relay"), (5, 4, 2))[0]
                await self.network.start(line, NAME, how)
        elif roll < 0.27 and self.network.late:
            self.network.arrive(self.dice.choice(self.network.late))
        else:
            await self.network.step(self.dice, can_pass, lambda _: luck)

    def act(self, region: int) -> None:
        verb = self.dice.choices(list(OFTEN), self.weights)[0]
        getattr(self, f"_{verb}")(region)

    def _write(self, region: int) -> None:
        registry = self._registry(region)
        if registry is not None and registry.home is not None and self.dice.random() < 0.8:
            region = registry.home.writer
        bodies = [self._body(region) for _ in range(self.dice.choice((1, 1, 2, 3)))]
        pairs = [word for body in bodies for word in ("t", body)]
        reply = self._do(region, "TWRITE", NAME, "ENTRIES", *pairs)
        if isinstance(reply, list):
            for offset, body in zip(reply, bodies, strict=True):
                self.told[body] = offset
            self._means(region, list(zip(reply, bodies, strict=True)))

    def _body(self, region: int) -> str:
        self.made += 1
        return f"{region}:{self.made}"

    def _read(self, region: int) -> None:
        self._means(region, self._rows(self._do(region, "TREAD", NAME, self.dice.randrange(1, 60), 100)))

    def _share(self, region: int) -> None:
        """A group without RETRY."""
        self._deliver(region, "once", ())

    def _take(self, region: int) -> None:
        rows = self._deliver(region, "safe", TIMES)
        self.held.setdefault(("safe", region), set()).update(offset for offset, _ in rows)

    def _deliver(self, region: int, group: str, how: tuple[Any, ...]) -> list[Row]:
        count = self.dice.choice((1, 3, 10))
        rows = self._rows(self._do(region, "TREAD", NAME, 0, count, "GROUP", group, *how))
        given = self.given.setdefault((group, region), set())
        again = set() if self.deleted else (given & set(rows)) - self.rescued
        assert not again, f"group {group} was given {sorted(again)} again in region {region}"
        given.update(rows)
        return rows

    def _acknowledge(self, region: int) -> None:
        held = sorted(self.held.get(("safe", region), ()))
        if held:
            taken = held[: self.dice.choice((1, 3, len(held)))]
            self._do(region, "TACK", NAME, "safe", *taken)
            self.held["safe", region].difference_update(taken)

    def _evict(self, region: int) -> None:
        upto = self.dice.randrange(1, 40)
        self._do(region, "TEVICT", NAME, upto)
        self._excuse(f"TEVICT {upto}", upto)

    def _delete_entry(self, region: int) -> None:
        offset = self.dice.randrange(1, 60)
        self._do(region, "XDEL", NAME, f"0-{offset}")
        for body, known in self.told.items():
            if known == offset:
                self.gone[body] = "XDEL"

    def _delete(self, region: int) -> None:
        self._do(region, "DEL", NAME)
        self.flushed("DEL")

    def flushed(self, why: str = "FLUSHDB") -> None:
        """The log was deleted, with its groups."""
        self.deleted = True
        self._excuse(why, LAST_OFFSET)

    def _excuse(self, why: str, upto: int) -> None:
        for body, offset in self.told.items():
            if offset <= upto:
                self.gone.setdefault(body, why)

    def _move(self, region: int) -> None:
        registry = self._latest(region, self.seats)
        if registry is not None and log_upkeep.home_of(registry).writer == region:
            self._end_epoch(
                region, registry, self.dice.choice([each for each in self.seats if each != region])
            )

    def _force(self, region: int) -> None:
        """The home is lost, all others answer. What it does alone meanwhile is rescued at the end."""
        known = self._registry(region)
        lost = None if known is None else log_upkeep.home_of(known).writer
        if known is None or lost == region:
            return
        registry = self._latest(region, [each for each in self.seats if each != lost])
        if registry is not None:
            first = self._end_epoch(region, registry, region, force=True)
            self.sure_below = min(self.sure_below, first or LAST_OFFSET)

    def _latest(self, region: int, others: Iterable[int]) -> Registry | None:
        """The registry of a region, if none of the others knows of a later epoch: `braid log move` asks
        all."""
        registry = self._registry(region)
        known = (self._registry(each) for each in others)
        homes = [log_upkeep.home_of(each) for each in known if each is not None]
        return registry if registry is not None and log_upkeep.home_of(registry) == max(homes) else None

    def _end_epoch(self, region: int, registry: Registry, to: int, *, force: bool = False) -> int | None:
        what = f"(the home moves to {to}{' by force' if force else ''})"
        plan = log_upkeep.end_epoch(NAME.encode(), log_upkeep.home_of(registry), to, force=force)
        try:
            first = self.seats[region].run(plan)
        except ReplyError as error:
            if error.code != "BSSTALE":
                raise
            self._say(region, what, error.text)
            return None
        self._say(region, what, str(first))
        return first

    # What they see

    def _registry(self, region: int) -> Registry | None:
        """None if the log has not arrived here."""
        seat = self.seats[region]
        found = seat.log(NAME)
        return found if found.home is not None else None

    def _do(self, region: int, *words: Any) -> Any:
        """Writers are told where the home is, or to come back; every other refusal is an error."""
        shown = " ".join(map(str, words))
        if self.dice.random() < 0.5:
            # A client looks up anew after a second. Time does not pass here.
            self.seats[region].view.forget(NAME.encode())
        try:
            reply = self.seats[region].do(*words)
        except ReplyError as error:
            self._say(region, shown, error.text[:60])
            if error.code not in ("HOME", "SEALED", "NOGROUP"):
                raise
            return error
        self._say(region, shown, _brief(reply))
        return reply

    def _say(self, region: int, what: str, outcome: str) -> None:
        self.history.add(Did(region, what, outcome))

    def _rows(self, reply: Any) -> list[Row]:
        return [(row[0], row[2].decode()) for row in reply or [] if row is not None]

    def _means(self, region: int, rows: list[Row]) -> None:
        for offset, body in rows:
            if offset < self.sure_below:
                known = self.means.setdefault(offset, body)
                assert known == body, f"offset {offset} was {known}, and is {body} in region {region}"

    # The end

    async def finish(self) -> None:
        """The storm is over."""
        await calm(self.network, self.dice)
        await self.settle()
        while self.rescue():
            await self.settle()
        await self.settle()
        self.drain()
        self.check()

    def rescue(self) -> int:
        """What `braid log rescue` does, for every region that was a home."""
        registry, done = self._registry(1), 0
        if registry is None:
            return 0
        home = self.seats[log_upkeep.home_of(registry).writer]
        for number, seat in self.seats.items():
            for strand, end in log_upkeep.lost_tails(NAME.encode(), registry, number):
                while entries := seat.run(log_upkeep.read_tail(strand, end)):
                    done += home.run(log_upkeep.append_tail(NAME.encode(), (strand, end), entries))
                    self.rescued.update((offset, body.decode()) for offset, _, body in entries)
                    seat.run(log_upkeep.delete_tail(strand, entries))
        self._say(0, "(rescue)", str(done))
        return done

    def drain(self) -> None:
        """Every group reads all there is, in every region."""
        for region in self.seats:
            for group, how in (("once", ()), ("safe", TIMES)):
                self.seats[region].view.forget(NAME.encode())
                while self._deliver(region, group, how):
                    pass

    def check(self) -> None:
        views = {region: self._view(region) for region in self.seats}
        (first, last), rows = views[1]
        for region, view in views.items():
            assert view == views[1], f"regions 1 and {region} differ: {views[1]} and {view}"
        bodies = [body for _, body in rows]
        assert len(set(bodies)) == len(bodies), f"an entry is there twice: {rows}"
        lost = sorted(self.told.keys() - set(bodies) - self.gone.keys())
        assert not lost, f"lost: {[(self.told[body], body) for body in lost]}"
        foreign = set(bodies) - self.told.keys()
        assert not foreign, f"nobody was told of {sorted(foreign)}"
        missing = set(range(first, last + 1)) - {offset for offset, _ in rows}
        excused = {self.told[body] for body in self.gone}
        is_sure = not self.forces and self.sure_below > 1
        assert not is_sure or missing <= excused, f"holes at {sorted(missing - excused)}"
        for group in ("once", "safe"):
            given = (self.given.get((group, region), set()) for region in self.seats)
            skipped = set(bodies) - {body for rows in given for _, body in rows}
            assert not skipped, f"group {group} was never given {sorted(skipped)}"

    def _view(self, region: int) -> tuple[tuple[int, int], list[Row]]:
        (first, last), *rows = self._do(region, "TREAD", NAME, 1, ALL, "WITHINFO")
        found = self._rows(rows)
        self._means(region, found)
        return (first, last), found


def _brief(reply: Any) -> str:
    if isinstance(reply, list):
        return f"[{', '.join(map(_brief_row, reply))}]"[:200]
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _brief_row(row: Any) -> str:
    return f"{row[0]}={row[2].decode()}" if isinstance(row, list) and len(row) == 3 else str(row)
