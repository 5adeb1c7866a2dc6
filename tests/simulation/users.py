"""What users do in their regions, by the dice, and what they saw before and after."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from braidstream import keys
from braidstream.errors import ReplyError
from braidstream.ids import Id, native, text
from braidstream.plan import Batch
from tests.simulation.seat import Seat
from tests.support.history import (
    Acked,
    Added,
    Destroyed,
    Did,
    Entry,
    History,
    Made,
    Moved,
    Removed,
    Saw,
    user_id,
)

HOUR_MS: Final = 3_600_000
START_MS: Final = 100 * HOUR_MS
NAMES: Final = ("a", "b", "c")
GROUPS: Final = ("g", "g", "h")
CONSUMERS: Final = ("ann", "bob")

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
)


class Users:
    """Everybody, in all regions. Clocks are theirs: milliseconds are chosen, so that a seed is a run."""

    def __init__(self, dice: Random, seats: dict[int, Seat], history: History) -> None:
        self.dice, self.seats, self.history = dice, seats, history
        self.now_ms, self.values = START_MS, 0
        # An hour behind, an hour ahead, or right; and some clocks step now and then.
        self.skew_ms = {number: dice.choice((-HOUR_MS, 0, 0, HOUR_MS)) for number in seats}
        temper = dice.choice(TEMPERS)
        self.weights = [often * temper.get(verb, 1) for verb, often in OFTEN.items()]
        self.seen: dict[tuple[int, str], dict[Entry, bytes]] = {}
        self.held: dict[tuple[int, str, str], set[Id]] = {}

    def act(self, region: int) -> None:
        """One operation by somebody in a region."""
        self.now_ms += self.dice.choice((0, 0, 1, 2, 50))
        if self.dice.random() < 0.01:
            self.skew_ms[region] = self.dice.choice((-HOUR_MS, 0, HOUR_MS))
        verb = self.dice.choices(list(OFTEN), self.weights)[0]
        method: Callable[[Seat, str], None] = getattr(self, f"_{verb}")
        # Most of the time on one stream, so that operations meet.
        method(self.seats[region], self.dice.choices(NAMES, (8, 3, 1))[0])

    def look(self, region: int, name: str) -> bool:
        """Note what a reader sees; whether the stream exists."""
        exists, self.seen[region, name] = self.seats[region].look(name)
        self.history.add(Saw(region, name, frozenset(self.seen[region, name])))
        return exists

    def _try(self, seat: Seat, *words: Any) -> Any:
        """A command; a refusal is an answer too, and changes nothing."""
        shown = " ".join(str(word) for word in words)
        try:
            reply = seat.do(*words)
        except ReplyError as error:
            self.history.add(Did(seat.number, shown, error.text[:40]))
            return error
        self.history.add(Did(seat.number, shown, _brief(reply)))
        return reply

    def _change(self, seat: Seat, names: tuple[str, ...], *words: Any) -> tuple[Any, dict[str, bool]]:
        """A command that may add and remove: the reply, and which streams existed before."""
        existed = {name: self.look(seat.number, name) for name in names}
        before = {name: self.seen[seat.number, name] for name in names}
        reply = self._try(seat, *words)
        for name in names:
            _, after = seat.look(name)
            self.seen[seat.number, name] = after
            new, gone = after.keys() - before[name].keys(), before[name].keys() - after.keys()
            if new:
                self.history.add(Added(seat.number, name, frozenset(new)))
            if gone:
                self.history.add(Removed(seat.number, name, frozenset(gone)))
            self.history.add(Saw(seat.number, name, frozenset(after)))
        return reply, existed

    def _value(self) -> str:
        self.values += 1
        return f"e{self.values}"

    def _clock_ms(self, seat: Seat) -> int:
        return self.now_ms + self.skew_ms[seat.number]

    def _add(self, seat: Seat, name: str, *trim: Any) -> None:
        """As XADD with * does: the clock's millisecond, or the last one if that is later."""
        own = [
            entry[1][0] for entry in self.seen.get((seat.number, name), {}) if entry[0] == f"s{seat.number}:0"
        ]
        ms, liberal = max([self._clock_ms(seat), *own]), seat.region.id_mode == "liberal"
        words = ("XADD", name, *trim, f"{ms}-*" if liberal else ms, "f", self._value())
        if trim or liberal:
            self._change(seat, (name,), *words)
            return
        reply = self._try(seat, *words)
        if isinstance(reply, bytes):
            ms, seq = native(reply)
            entry = (f"s{seat.number}:0", (ms, seq >> 10))
            self.history.add(Added(seat.number, name, frozenset([entry])))
            self.seen.setdefault((seat.number, name), {})[entry] = b""

    def _add_chosen(self, seat: Seat, name: str) -> None:
        if seat.region.id_mode == "strict":
            self._add(seat, name)
            return
        ms = self._clock_ms(seat) - self.dice.choice((0, 0, 5, 1000))
        self._change(seat, (name,), "XADD", name, f"{ms}-{self.dice.randrange(4)}", "f", self._value())

    def _add_trimming(self, seat: Seat, name: str) -> None:
        self._add(seat, name, *self._cap(seat, name))

    def _cap(self, seat: Seat, name: str) -> tuple[Any, ...]:
        if self.dice.random() < 0.5:
            return ("MAXLEN", self.dice.choice((1, 3, 8, 20)))
        return ("MINID", self._some_id(seat, name))

    def _some_id(self, seat: Seat, name: str) -> str:
        """The ID of an entry that was last seen here, or of none."""
        seen = sorted(self.seen.get((seat.number, name), {}), key=user_id)
        entry = user_id(self.dice.choice(seen)) if seen else (self._clock_ms(seat), 0)
        return text(entry).decode()

    def _delete_entries(self, seat: Seat, name: str) -> None:
        self.look(seat.number, name)
        wanted = [self._some_id(seat, name) for _ in range(self.dice.choice((1, 1, 2, 4)))]
        self._change(seat, (name,), "XDEL", name, *wanted)

    def _delete_asking(self, seat: Seat, name: str) -> None:
        self.look(seat.number, name)
        policy = self.dice.choice(("KEEPREF", "DELREF", "ACKED"))
        self._change(seat, (name,), "XDELEX", name, policy, "IDS", 1, self._some_id(seat, name))

    def _trim(self, seat: Seat, name: str) -> None:
        self.look(seat.number, name)
        self._change(seat, (name,), "XTRIM", name, *self._cap(seat, name))

    def _delete(self, seat: Seat, name: str) -> None:
        reply, _ = self._change(seat, (name,), "DEL", name)
        if reply == 1:
            self._destroyed(seat, name)

    def _destroyed(self, seat: Seat, name: str, group: str | None = None) -> None:
        self.history.add(Destroyed(seat.number, name, group))
        for where in list(self.held):
            if where[:2] == (seat.number, name) and group in (None, where[2]):
                del self.held[where]

    def _rename(self, seat: Seat, name: str) -> None:
        target = self.dice.choice([other for other in NAMES if other != name])
        reply, existed = self._change(seat, (name, target), "RENAME", name, target)
        if reply == b"OK":
            for each in (name, target):
                if existed[each]:
                    self._destroyed(seat, each)

    def _copy(self, seat: Seat, name: str) -> None:
        target = self.dice.choice([other for other in NAMES if other != name])
        reply, existed = self._change(seat, (name, target), "COPY", name, target, "REPLACE")
        if reply == 1 and existed[target]:
            self._destroyed(seat, target)

    def _flush(self, seat: Seat, name: str) -> None:
        if self.dice.random() < 0.3:
            _, existed = self._change(seat, NAMES, "FLUSHDB")
            for each in NAMES:
                if existed[each]:
                    self._destroyed(seat, each)

    def _make_group(self, seat: Seat, name: str) -> None:
        group, start = self.dice.choice(GROUPS), self.dice.choices(("0", "$", "id"), (6, 2, 1))[0]
        self._place(seat, name, (group, start), Made)

    def _move_group(self, seat: Seat, name: str) -> None:
        group, start = self.dice.choice(GROUPS), self.dice.choice(("0", "$", "id", "id"))
        self._place(seat, name, (group, start), Moved)

    def _place(self, seat: Seat, name: str, where: tuple[str, str], event: type[Made]) -> None:
        group, start = where
        self.look(seat.number, name)
        start = self._some_id(seat, name) if start == "id" else start
        verb = "SETID" if event is Moved else "CREATE"
        if self._try(seat, "XGROUP", verb, name, group, start) != b"OK":
            return
        passed = frozenset(self.seen[seat.number, name]) if start == "$" else frozenset[Entry]()
        upto = native(start.encode()) if "-" in start else (0, 0)
        self.history.add(event(seat.number, name, group, upto, passed))

    def _destroy_group(self, seat: Seat, name: str) -> None:
        group = self.dice.choice(GROUPS)
        if self._try(seat, "XGROUP", "DESTROY", name, group) == 1:
            self._destroyed(seat, name, group)

    def _read_group(self, seat: Seat, name: str) -> None:
        group, count = self.dice.choice(GROUPS), self.dice.choice((1, 3, 10))
        who = self.dice.choice(CONSUMERS)
        reply = self._try(seat, "XREADGROUP", "GROUP", group, who, "COUNT", count, "STREAMS", name, ">")
        if isinstance(reply, list):
            ids = {native(entry) for _, page in reply for entry, _ in page}
            self.held.setdefault((seat.number, name, group), set()).update(ids)
        elif isinstance(reply, ReplyError) and self.dice.random() < 0.2:
            self._place(seat, name, (group, "0"), Made)  # as consumers do that start

    def _acknowledge(self, seat: Seat, name: str, verb: str = "XACK") -> None:
        group = self.dice.choice(GROUPS)
        held = sorted(self.held.get((seat.number, name, group), ()))
        if not held:
            return
        # The oldest first, as consumers do; and some at random.
        count = self.dice.choice((1, 2, len(held)))
        taken = held[:count] if self.dice.random() < 0.7 else self.dice.sample(held, min(count, len(held)))
        if verb == "XACKDEL":
            words = (verb, name, group, self.dice.choice(("KEEPREF", "ACKED")), "IDS", len(taken))
            reply, _ = self._change(seat, (name,), *words, *map(_text, taken))
            replies = [answer != -1 for answer in reply]
        else:  # one by one, so that each says whether it was pending
            replies = [self._try(seat, verb, name, group, _text(entry)) for entry in taken]
        self.held[seat.number, name, group] -= set(taken)
        acked = frozenset(entry for entry, reply in zip(taken, replies, strict=True) if reply)
        if acked:
            self.history.add(Acked(seat.number, name, group, acked))

    def _acknowledge_and_delete(self, seat: Seat, name: str) -> None:
        self._acknowledge(seat, name, "XACKDEL")

    def _set_id(self, seat: Seat, name: str) -> None:
        ms = self._clock_ms(seat) + self.dice.choice((0, 10, 1000))
        self._try(seat, "XSETID", name, f"{ms}-{self.dice.randrange(3)}")

    def _shorten_journal(self, seat: Seat, name: str) -> None:
        """What its bound does to a journal of 10,000 deletions: peers that are behind must compare."""
        journal = keys.journal(name.encode(), seat.number)
        kept = self.dice.choice((0, 1, 3))
        seat.send(Batch([("XTRIM", journal, "MAXLEN", kept)]))
        self.history.add(Did(seat.number, f"(the journal of {name} keeps {kept})"))


def _text(entry: Id) -> str:
    return text(entry).decode()


def _brief(reply: Any) -> str:
    if isinstance(reply, list) and reply and isinstance(reply[0], list):
        return "[" + ", ".join(entry.decode() for _, page in reply for entry, _ in page) + "]"
    return reply.decode() if isinstance(reply, bytes) else str(reply)
