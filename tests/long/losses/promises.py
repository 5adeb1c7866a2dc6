"""What must hold after a loss. The list is in __init__.py."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from braidstream.errors import ReplyError
from braidstream.model.ids import native
from braidstream.model.strand import facts
from tests.long.losses.users import Bodies, Ledger, Removal, Users, look
from tests.long.simulation.seat import Seat

Entry = tuple[str, str]  # stream and body


@dataclass
class Promises:
    """Follows a run. Before the loss it only notes what each region has had.

    broken: what was found, by promise. ever: what each region has had.
    """

    seats: dict[int, Seat]
    names: Sequence[str]
    ledger: Ledger
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    ever: dict[int, set[Entry]] = field(default_factory=lambda: defaultdict(set))
    damaged: int = 0
    # Of the moment of the loss.
    _now: dict[int, set[Entry]] = field(default_factory=dict)
    _kept: set[Entry] = field(default_factory=set)
    _deleted: set[Entry] = field(default_factory=set)
    _groups: set[tuple[str, str]] = field(default_factory=set)
    _old: set[Entry] = field(default_factory=set)
    _removals: int = 0
    _settled: int | None = None

    def watch(self) -> None:
        for region in self.seats:
            self.ever[region] |= self._all(region)

    def lose(self, region: int) -> None:
        """Just before the loss."""
        self.watch()
        self.damaged = region
        self._now = {each: self._all(each) for each in self.healthy}
        known = set[Entry]().union(*(self.ever[each] - self._now[each] for each in self.healthy))
        for removal in self.ledger.removals:
            self._deleted |= removal.entries if removal.region != region else removal.entries & known
        self._groups = {found for each in self.healthy for found in self._groups_of(each)}
        self._old, self._removals = set(self.ledger.written), len(self.ledger.removals)

    def lost(self) -> None:
        """Just after the loss."""
        self._kept = self._all(self.damaged).union(*self._now.values())

    def settled(self) -> None:
        """All links have looked at what the damaged region has: from now on its trims count."""
        self._settled = len(self.ledger.removals)

    @property
    def healthy(self) -> list[int]:
        return [region for region in self.seats if region != self.damaged]

    def stepped(self, shown: str) -> None:
        """After a step of a link: what is gone now from a healthy region, a command has removed."""
        for region in self.healthy if self.damaged else ():
            now, before = self._all(region), self._now[region]
            for entry in sorted(before - now):
                if not self._may_miss(entry):
                    self._note("deleted", f"{_shown(entry)} in region {region} by {shown}")
            for entry in sorted((now - before) & self.ever[region] & self._must_not()):
                self._note("came back", f"{_shown(entry)} in region {region} by {shown}")
            self._now[region] = now
            self.ever[region] |= now

    def acted(self, region: int) -> None:
        """After a command: what is gone was removed by it."""
        if region in self._now:
            self._now[region] = self._all(region)
            self.ever[region] |= self._now[region]

    def check(self, *, moved: bool, refused: Iterable[str]) -> None:
        """moved: the last sweep changed something."""
        for what in refused:
            self._note("refused", what)
        if moved:
            self._note("differ", "the third sweep changed something")
        new = set(self.ledger.written) - self._old
        must, must_not = {entry for entry in self._kept | new if not self._may_miss(entry)}, self._must_not()
        for region in self.seats:
            state = self._all(region)
            for entry in sorted(must - state):
                self._note("missing", f"{_shown(entry)} in region {region}")
            for entry in sorted(state & must_not):
                self._note("came back", f"{_shown(entry)} is in region {region} in the end")
        for name in self.names:
            views = {region: look(seat, name) for region, seat in self.seats.items()}
            if any(view != views[1] for view in views.values()):
                self._note("differ", f"{name}: {_differences(views)}")

    def check_groups(self, users: Users) -> None:
        """Reads everything that is left, so it comes last."""
        for region in self.seats:
            groups = self._groups_of(region)
            for name, group in sorted(self._groups - groups):
                if name in self.ledger.dropped:
                    continue
                self._note("no group", f"{group} of {name} in region {region}")
            for name, group in sorted(groups):
                self._check_group(users, region, name, group)

    def _check_group(self, users: Users, region: int, name: str, group: str) -> None:
        while (reply := users.read(region, name, group, 100)) and not isinstance(reply, ReplyError):
            pass
        rows = users.do(region, "XPENDING", name, group, "-", "+", 10_000)
        for answer in (reply, rows):
            if isinstance(answer, ReplyError):
                self._note("refused", f"region {region}, group {group} of {name}: {answer.text}")
                return
        known = self.ledger.given[region, name, group] | self.ledger.acked[name, group]
        known |= {native(row[0]) for row in rows}
        for body, at in look(self.seats[region], name).items():
            if at not in known:
                self._note("skipped", f"{_shown((name, body))} for {group} in region {region}")

    def _may_miss(self, entry: Entry) -> bool:
        """Whether a command has removed it, or it is a message that was accepted twice."""
        name, body = entry
        if entry not in self.ledger.written:
            return True
        if any(entry in removal.entries for removal in self.ledger.removals):
            return True
        if any(body in bodies and len(bodies) > 1 for bodies in self.ledger.messages.values()):
            return True
        at = self.ledger.written[entry]
        return entry in self.ever[self.damaged] and any(
            removal.covers(name, at) for removal in self._since_loss if removal.region == self.damaged
        )

    def _must_not(self) -> set[Entry]:
        """Trims in the damaged region before the links have looked there may be undone: no record shows
        whether it has trimmed or lost an entry."""
        found, settled = set(self._deleted), self._settled
        for at, removal in enumerate(self._since_loss, start=self._removals):
            is_certain = removal.region != self.damaged or removal.upto == (0, 0)
            if is_certain or (settled is not None and at >= settled):
                found |= removal.entries
        return found

    @property
    def _since_loss(self) -> list[Removal]:
        return self.ledger.removals[self._removals :]

    def _all(self, region: int) -> set[Entry]:
        return {(name, body) for name in self.names for body in look(self.seats[region], name)}

    def _groups_of(self, region: int) -> set[tuple[str, str]]:
        found = set[tuple[str, str]]()
        for name in self.names:
            try:
                rows = self.seats[region].do("XINFO", "GROUPS", name)
            except ReplyError:  # no such key
                continue
            found |= {(name, facts(row)[b"name"].decode()) for row in rows}
        return found

    def _note(self, promise: str, what: str) -> None:
        if what not in self.broken[promise]:
            self.broken[promise].append(what)
            self.ledger.tell(f"          !!! {promise}: {what}")


def _shown(entry: Entry) -> str:
    return f"{entry[1]} of {entry[0]}"


def _differences(views: dict[int, Bodies]) -> str:
    """The entries that not all regions have under one ID, and where they are."""
    everywhere = set.intersection(*(set(view.items()) for view in views.values()))
    words = [
        f"only {','.join(str(region) for region, view in views.items() if (body, at) in view.items())} "
        f"has {body} at {at[0]}-{at[1]}"
        for body, at in sorted({each for view in views.values() for each in view.items()} - everywhere)
    ]
    return "; ".join(words[:8])
