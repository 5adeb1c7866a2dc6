"""What clients do in all regions, in a few commands, and which entries these commands removed."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from braidstream.commands.table import TABLE
from braidstream.errors import ReplyError
from braidstream.model.ids import Id, native
from tests.long.simulation.seat import Seat

GROUPS: Final = ("jobs", "audit")
Bodies = dict[str, Id]  # what a stream has: the body of each entry is unique, and its ID


@dataclass(frozen=True, slots=True)
class Removal:
    """By a command in a region. upto: the last ID that a trim has removed; 0-0 for XDEL."""

    region: int
    entries: frozenset[tuple[str, str]]
    upto: Id

    def covers(self, name: str, at: Id) -> bool:
        """Whether a trim would have removed an entry if it had been there."""
        return at <= self.upto and any(stream == name for stream, _ in self.entries)


@dataclass
class Ledger:
    """What clients were told. An entry is named by its body. Only a command removes entries.

    removals: what commands removed, in order.
    dropped: streams that were deleted, with their groups.
    messages: the bodies that one message of an idempotent producer was accepted with.
    given: the IDs that consumers of a region got. acked: in any region.
    """

    history: list[str] = field(default_factory=list)
    written: dict[tuple[str, str], Id] = field(default_factory=dict)
    removals: list["Removal"] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    messages: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    given: dict[tuple[int, str, str], set[Id]] = field(default_factory=lambda: defaultdict(set))
    acked: dict[tuple[str, str], set[Id]] = field(default_factory=lambda: defaultdict(set))

    def tell(self, what: str) -> None:
        self.history.append(what)


def look(seat: Seat, name: str) -> Bodies:
    """What a reader sees, by a client of its own. An entry that is there twice is seen under two names."""
    try:
        page = seat.run(TABLE[b"XRANGE"].plan(seat.eyes, [b"XRANGE", name.encode(), b"-", b"+"]))
    except ReplyError as error:
        return {f"({error.text})": (0, 0)}
    found = Bodies()
    for entry, fields in page:
        body = fields[1].decode()
        found[f"{body} again" if body in found else body] = native(entry)
    return found


class Users:
    """The dice say who does what. tolerant: a refusal is an answer, since the region has lost something."""

    def __init__(self, dice: Random, seats: dict[int, Seat], names: Sequence[str], ledger: Ledger) -> None:
        self.dice, self.seats, self.names, self.ledger = dice, seats, names, ledger
        self.tolerant = False
        self.chooses_ids = any(seat.region.id_mode != "strict" for seat in seats.values())
        self._bodies = 0
        # Entries that no reader sees, because the registry has lost their strand; a trim may remove them.
        self._hidden: dict[tuple[int, str], set[tuple[str, str]]] = defaultdict(set)
        self._held: dict[tuple[int, str, str], list[bytes]] = defaultdict(list)
        self._kinds: dict[Callable[[int, str], None], int] = {
            self._add: 12,
            self._add_and_trim: dice.choice((0, 1, 4)),
            self._choose: 4 if self.chooses_ids else 0,
            self._send: dice.choice((0, 0, 3)),
            self._delete: dice.choice((1, 3)),
            self._trim: dice.choice((0, 1, 2)),
            self._create: 1,
            self._read: 4,
            self._ack: 3,
            self._drop: dice.choice((0, 0, 1)),
        }

    def act(self, region: int) -> None:
        [kind] = self.dice.choices(list(self._kinds), list(self._kinds.values()))
        kind(region, self.dice.choice(self.names))

    def forget(self, region: int) -> None:
        """Its consumers lost their connections, and what they held."""
        for where in [where for where in self._held if where[0] == region]:
            del self._held[where]

    def _body(self) -> str:
        self._bodies += 1
        return f"v{self._bodies}"

    def _add(self, region: int, name: str) -> None:
        self._append(region, name, "*")

    def _choose(self, region: int, name: str) -> None:
        seat = self.seats[region]
        if seat.region.id_mode != "strict":
            self._append(region, name, f"{seat.clock_ms + self.dice.randrange(3)}-{region}")

    def _add_and_trim(self, region: int, name: str) -> None:
        self._append(region, name, *self._strategy(region, name), "*")

    def _send(self, region: int, name: str) -> None:
        message = f"m{self.dice.randrange(12)}"
        self._append(region, name, "IDMP", "till", message, "*", message=message)

    def _append(self, region: int, name: str, *words: str, message: str = "") -> None:
        body = self._body()
        reply = self._change(region, "XADD", name, *words, "f", body)
        if isinstance(reply, bytes):
            is_new = native(reply) not in {
                at for (stream, _), at in self.ledger.written.items() if stream == name
            }
            if is_new:
                self.ledger.written[name, body] = native(reply)
                if body not in look(self.seats[region], name):
                    self._hidden[region, name].add((name, body))
            if message and is_new:
                self.ledger.messages[name, message].add(body)

    def _strategy(self, region: int, name: str) -> list[str]:
        there = sorted(look(self.seats[region], name).values())
        how = self.dice.choice(("=", "=", "~"))
        if there and self.dice.random() < 0.4:
            ms, seq = self.dice.choice(there[: 1 + len(there) // 2])
            return ["MINID", how, f"{ms}-{seq}"]
        return ["MAXLEN", how, str(self.dice.randint(2, max(3, len(there))))]

    def _trim(self, region: int, name: str) -> None:
        self._change(region, "XTRIM", name, *self._strategy(region, name))

    def _delete(self, region: int, name: str) -> None:
        there = sorted(look(self.seats[region], name).values())
        chosen = self.dice.sample(there, min(len(there), self.dice.randint(1, 3)))
        if chosen:
            self._change(region, "XDEL", name, *(f"{ms}-{seq}" for ms, seq in chosen))

    def _drop(self, region: int, name: str) -> None:
        """The stream with its groups. Also entries of it that the region has lost."""
        self._change(region, "DEL", name)
        self.ledger.dropped.add(name)
        upto = max(self.ledger.written.values(), default=(0, 0))
        self.ledger.removals.append(Removal(region, frozenset([(name, "")]), upto))

    def _create(self, region: int, name: str) -> None:
        self.do(region, "XGROUP", "CREATE", name, self.dice.choice(GROUPS), "0", "MKSTREAM")

    def _read(self, region: int, name: str) -> None:
        group = self.dice.choice(GROUPS)
        self.read(region, name, group, self.dice.randint(1, 8))

    def read(self, region: int, name: str, group: str, count: int) -> list[bytes] | ReplyError:
        """The IDs of new entries."""
        words = ("XREADGROUP", "GROUP", group, "ann", "COUNT", count, "STREAMS", name, ">")
        reply = self.do(region, *words)
        if isinstance(reply, ReplyError):
            return reply
        got = [entry for _, page in reply or () for entry, _ in page]
        self._held[region, name, group] += got
        self.ledger.given[region, name, group].update(map(native, got))
        return got

    def catch_up(self, region: int) -> None:
        """Consumers of all groups read what there is, and acknowledge it: also what follows a hole."""
        for name in self.names:
            for group in GROUPS:
                reply = self.read(region, name, group, 100)
                if not isinstance(reply, ReplyError):
                    self._ack_all(region, name, group)

    def _ack_all(self, region: int, name: str, group: str) -> None:
        held = self._held.pop((region, name, group), [])
        for entry in held:
            if self.do(region, "XACK", name, group, entry.decode()) == 1:
                self.ledger.acked[name, group].add(native(entry))

    def _ack(self, region: int, name: str) -> None:
        group = self.dice.choice(GROUPS)
        held = self._held[region, name, group]
        chosen = held[:] if self.dice.random() < 0.5 else self.dice.sample(held, len(held) // 2)
        for entry in chosen:
            if self.do(region, "XACK", name, group, entry.decode()) == 1:
                self.ledger.acked[name, group].add(native(entry))
            held.remove(entry)

    def _change(self, region: int, verb: str, name: str, *words: Any) -> Any:
        """A command that may remove entries."""
        before = look(self.seats[region], name)
        reply = self.do(region, verb, name, *words)
        gone = before.items() - look(self.seats[region], name).items()
        if verb == "XTRIM" or {"MAXLEN", "MINID"} & {*words}:
            hidden = frozenset(entry for entry in self._hidden[region, name] if entry[1] not in before)
            self.ledger.removals.append(Removal(region, hidden, upto=(0, 1)))
        if gone:
            self.ledger.tell(f"          gone: {' '.join(sorted(body for body, _ in gone))}")
            upto = (0, 0) if verb == "XDEL" else max(at for _, at in gone)
            self.ledger.removals.append(Removal(region, frozenset((name, body) for body, _ in gone), upto))
        return reply

    def do(self, region: int, *words: Any) -> Any:
        shown = f"{region}: {' '.join(map(str, words))}"
        try:
            reply = self.seats[region].do(*words)
        except ReplyError as error:
            self.ledger.tell(f"{shown} -> {error.text[:90]}")
            if not (self.tolerant or error.code in ("NOGROUP", "BUSYGROUP") or "smaller than" in error.text):
                raise
            return error
        self.ledger.tell(f"{shown} -> {_brief(reply)}")
        return reply


def _brief(reply: Any) -> str:
    if isinstance(reply, list) and reply and isinstance(reply[0], list) and len(reply[0]) == 2:
        return " ".join(fields[1].decode() for _, page in reply for _, fields in page)
    if isinstance(reply, list):
        return f"{len(reply)} rows"
    return reply.decode() if isinstance(reply, bytes) else str(reply)
