"""What users do in their regions, by the dice."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.ids import text
from braidstream.plan.plan import Batch
from tests.long.simulation.clock import START_MS
from tests.long.simulation.producers import Producers
from tests.long.simulation.witness import NAMES, Witness
from tests.oracle.history import Did, Forgot, user_id

HOUR_MS: Final = 3_600_000
# Two regions' clocks are twice this apart at most, and users' XSETID goes a second beyond.
BOUNDED_MS: Final = 25_000
GROUPS: Final = ("g", "g", "h")
CONSUMERS: Final = ("ann", "bob")

# How often the scope of a group changes, or a strand is taken or given.
SCOPED: Final = 0.15
# How often a deadline is set or carried out.
DUE: Final = 0.25
# How often each is done.
OFTEN: Final[dict[str, int]] = {
    "add": 32,
    "add_chosen": 10,
    "add_trimming": 5,
    "delete_entries": 9,
    "delete_asking": 3,
    "trim": 4,
    "delete": 2,
    "rename": 1,
    "copy": 1,
    "flush": 1,
    "make_group": 6,
    "destroy_group": 2,
    "move_group": 2,
    "read_group": 14,
    "acknowledge": 12,
    "acknowledge_and_delete": 2,
    "set_id": 2,
    "send": 16,
    "send_trimming": 1,
    "configure": 1,
    "shorten_journal": 2,
}
# A run has a temper: what is done this many times as often as usual.
TEMPERS: Final[tuple[dict[str, float], ...]] = (
    {},
    # Consumers at work: groups live long.
    {"delete": 0, "rename": 0, "copy": 0, "flush": 0, "destroy_group": 0, "read_group": 2, "acknowledge": 2},
    # Groups come and go.
    {"delete": 2, "rename": 0, "copy": 0, "make_group": 3, "destroy_group": 4, "acknowledge": 2},
    # Entries come and go, one by one and all at once.
    {"delete_entries": 4, "trim": 2, "delete": 2, "shorten_journal": 5, "read_group": 0.2},
    # Producers change regions, and what they sent stays.
    {"send": 4, "delete": 0, "rename": 0, "copy": 0, "flush": 0, "configure": 0.2, "shorten_journal": 0},
)


class Users:
    """Everybody, in all regions. Clocks are theirs: milliseconds are chosen, so that a seed is a run."""

    def __init__(self, dice: Random, witness: Witness) -> None:
        self.dice, self.witness, self.do = dice, witness, witness.do
        self.now_ms, self.values = START_MS, 0
        self.scopes: Random | None = None
        self.deadlines: Random | None = None
        self.producers = Producers(dice, witness)
        # How far clocks are behind or ahead: within the bound of each other, or beyond it.
        self.spread_ms = dice.choice((BOUNDED_MS, HOUR_MS))
        self.skew_ms = {number: self._skew() for number in witness.seats}
        temper = dict(dice.choice(TEMPERS))
        # Some clocks step now and then. Where they do, messages are forgotten too early.
        self.step = 0.0 if "send" in temper else dice.choice((0.0, 0.01))
        if self.step:
            temper |= {"send": 0, "send_trimming": 0}
        self.weights = [often * temper.get(verb, 1) for verb, often in OFTEN.items()]
        witness.bounded = self.spread_ms == BOUNDED_MS and not self.step
        self._tell_time()

    def _skew(self) -> int:
        return self.dice.choice((-self.spread_ms, 0, 0, self.spread_ms))

    def act(self, region: int) -> None:
        """One operation by a user of a region."""
        self.now_ms += self.dice.choice((0, 0, 1, 2, 50))
        if self.dice.random() < self.step:
            self.skew_ms[region] = self._skew()
        self._tell_time()
        if self.scopes is not None and self.scopes.random() < SCOPED:
            self._change_scope(self.scopes, region)
        if self.deadlines is not None and self.deadlines.random() < DUE:
            self._change_deadline(self.deadlines, region)
        verb = self.dice.choices(list(OFTEN), self.weights)[0]
        method: Callable[[int, str], None] = getattr(self, f"_{verb}")
        # Most of the time on one stream, so that operations meet.
        method(region, self.dice.choices(NAMES, (8, 3, 1))[0])

    def _tell_time(self) -> None:
        for number, seat in self.witness.seats.items():
            seat.clock_ms = self.now_ms + self.skew_ms[number]

    def _value(self) -> str:
        self.values += 1
        return f"e{self.values}"

    def _clock_ms(self, region: int) -> int:
        return self.witness.seats[region].clock_ms

    def _mode(self, region: int) -> str:
        return self.witness.seats[region].region.id_mode

    def _some_id(self, region: int, name: str) -> str:
        """The ID of an entry that was last seen here, or of none. The latest are those that others lack."""
        seen = sorted(self.witness.seen.get((region, name), {}), key=user_id)
        some = seen[-4:] if self.dice.random() < 0.5 else seen
        entry = user_id(self.dice.choice(some)) if some else (self._clock_ms(region), 0)
        return text(entry).decode()

    def _cap(self, region: int, name: str) -> tuple[Any, ...]:
        if self.dice.random() < 0.5:
            return ("MAXLEN", self.dice.choice((1, 3, 8, 20)))
        return ("MINID", self._some_id(region, name))

    def _add(self, region: int, name: str, *trim: Any) -> None:
        """Mostly with *, or as it does: the clock's millisecond, or the last one if that is later."""
        if self.dice.random() < 0.7:
            self.do(region, "XADD", name, *trim, "*", "f", self._value())
            return
        seen = self.witness.seen.get((region, name), {})
        ms = max([self._clock_ms(region), *(id_[0] for strand, id_ in seen if strand == f"s{region}:0")])
        entry = f"{ms}-*" if self._mode(region) == "liberal" else ms
        self.do(region, "XADD", name, *trim, entry, "f", self._value())

    def _add_chosen(self, region: int, name: str) -> None:
        if self._mode(region) == "strict":
            self._add(region, name)
            return
        ms = self._clock_ms(region) - self.dice.choice((0, 0, 5, 1000))
        self.do(region, "XADD", name, f"{ms}-{self.dice.randrange(4)}", "f", self._value())

    def _add_trimming(self, region: int, name: str) -> None:
        self._add(region, name, *self._cap(region, name))

    def _delete_entries(self, region: int, name: str) -> None:
        self.witness.look(region, name)
        wanted = [self._some_id(region, name) for _ in range(self.dice.choice((1, 1, 2, 4)))]
        self.do(region, "XDEL", name, *wanted)

    def _delete_asking(self, region: int, name: str) -> None:
        self.witness.look(region, name)
        policy = self.dice.choice(("KEEPREF", "DELREF", "ACKED"))
        self.do(region, "XDELEX", name, policy, "IDS", 1, self._some_id(region, name))

    def _trim(self, region: int, name: str) -> None:
        self.witness.look(region, name)
        self.do(region, "XTRIM", name, *self._cap(region, name))

    def _delete(self, region: int, name: str) -> None:
        self.do(region, "DEL", name)

    def _other(self, name: str) -> str:
        return self.dice.choice([other for other in NAMES if other != name])

    def _rename(self, region: int, name: str) -> None:
        self.do(region, "RENAME", name, self._other(name))

    def _copy(self, region: int, name: str) -> None:
        self.do(region, "COPY", name, self._other(name), "REPLACE")

    def _flush(self, region: int, name: str) -> None:
        if self.dice.random() < 0.3:
            self.do(region, "FLUSHDB")

    def _make_group(self, region: int, name: str) -> None:
        start = self.dice.choices(("0", "$", self._some_id(region, name)), (6, 2, 1))[0]
        self.do(region, "XGROUP", "CREATE", name, self.dice.choice(GROUPS), start)

    def _change_scope(self, dice: Random, region: int) -> None:
        """Dice of their own: the rest of the run stays as it is without scopes."""
        name, group = dice.choices(NAMES, (8, 3, 1))[0], dice.choice(GROUPS)
        number, to = dice.choices(list(self.witness.seats), k=2)
        words = dice.choices(
            (
                ("SCOPE", name, group, "ONCE"),
                ("TAKE", name, group, "REGION", number),
                ("GIVE", name, group, "REGION", number, "TO", "REGION", to, "TIMEOUT", 1),
                ("SCOPE", name, group, "EVERYWHERE"),
            ),
            (5, 3, 3, 1),
        )[0]
        self.do(region, "XGROUP", *words)

    def _change_deadline(self, dice: Random, region: int) -> None:
        """A daemon looks at all streams every second."""
        name, verb = (
            dice.choices(NAMES, (8, 3, 1))[0],
            dice.choices(("set", "persist", "carry out"), (4, 1, 8))[0],
        )
        if verb == "set":
            at = self._clock_ms(region) + dice.choice((1, 20, 100, 500))
            self.do(region, "PEXPIREAT", name, at, *dice.choice(((), (), ("GT",), ("NX",), ("LT",))))
        elif verb == "persist":
            self.do(region, "PERSIST", name)
        else:
            self.witness.carry_out(region, name)

    def _move_group(self, region: int, name: str) -> None:
        where = self._some_id(region, name)
        start = self.dice.choice(("0", "$", where, where))
        self.do(region, "XGROUP", "SETID", name, self.dice.choice(GROUPS), start)

    def _destroy_group(self, region: int, name: str) -> None:
        self.do(region, "XGROUP", "DESTROY", name, self.dice.choice(GROUPS))

    def _read_group(self, region: int, name: str) -> None:
        group, who = self.dice.choice(GROUPS), self.dice.choice(CONSUMERS)
        count = ("COUNT", self.dice.choice((1, 3, 10)))
        reply = self.do(region, "XREADGROUP", "GROUP", group, who, *count, "STREAMS", name, ">")
        if isinstance(reply, ReplyError) and self.dice.random() < 0.2:
            self.do(region, "XGROUP", "CREATE", name, group, "0")  # as consumers do that start

    def _acknowledge(self, region: int, name: str, *how: str) -> None:
        group = self.dice.choice(GROUPS)
        held = sorted(self.witness.held.get((region, name, group), ()))
        if not held:
            return
        # The oldest first, as consumers do; and some at random.
        count = self.dice.choice((1, 2, len(held)))
        taken = held[:count] if self.dice.random() < 0.7 else self.dice.sample(held, min(count, len(held)))
        words = [text(entry).decode() for entry in taken]
        if how:
            self.do(region, "XACKDEL", name, group, *how, "IDS", len(words), *words)
        else:
            self.do(region, "XACK", name, group, *words)

    def _acknowledge_and_delete(self, region: int, name: str) -> None:
        self._acknowledge(region, name, self.dice.choice(("KEEPREF", "ACKED")))

    def _set_id(self, region: int, name: str) -> None:
        ms = self._clock_ms(region) + self.dice.choice((0, 10, 1000))
        self.do(region, "XSETID", name, f"{ms}-{self.dice.randrange(3)}")

    def _shorten_journal(self, region: int, name: str) -> None:
        """What its bound does to a journal of 10,000 deletions: peers that are behind must compare."""
        journal, kept = keys.journal(name.encode(), region), self.dice.choice((0, 1, 3))
        self.witness.seats[region].send(Batch([("XTRIM", journal, "MAXLEN", kept)]))
        self.witness.history.add(Did(region, f"(the journal of {name} keeps {kept})"))
        self.witness.history.add(Forgot(region, name))

    def _send(self, region: int, name: str) -> None:
        self.producers.send(region, name)

    def _send_trimming(self, region: int, name: str) -> None:
        self.producers.send(region, name, *self._cap(region, name))

    def _configure(self, region: int, name: str) -> None:
        """More is kept than a run sends, so nothing is forgotten but by the change."""
        which = self.dice.choice((("IDMP-DURATION", 100), ("IDMP-DURATION", 200), ("IDMP-MAXSIZE", 300)))
        self.do(region, "XCFGSET", name, *which)
