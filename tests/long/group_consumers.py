"""What consumers of a group do, each act compared with the naive model: rules for a machine."""

import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import braidstream
from braidstream.model import ids
from braidstream.model.ids import Id
from tests.oracle.group_checks import LONG_MS, Seen
from tests.oracle.stream import NOBODY, Key, Place

AGES_MS = 10**9  # how long ago "old" is
SINCE_2000_MS = 800_000_000_000

one_of_them = st.integers(0, 5)  # a group, by its place among those there are
consumers = st.sampled_from([b"ann", b"ann", b"bob", b"eve"])
counts = st.sampled_from([None, 1, 1, 2, 3, 5, 40])
spots = st.tuples(st.integers(0, 40), st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 1023, 1024, 1026, 1029, 5000]))
# Which entries a command names: by their place in what is there or held, or anywhere.
_some = st.integers(0, 30)
named = st.lists(st.one_of(_some, _some, _some, spots), min_size=1, max_size=4)


class Consuming(Seen):
    """Two clients act, a third looks."""

    clients: list[braidstream.Redis]

    def act(self, *words: Any) -> Any:
        return self.dice.choice(self.clients[:2]).execute_command(*words)

    def look(self, *words: Any) -> Any:
        return self.clients[2].execute_command(*words)

    def group(self, which: int) -> bytes:
        """One of the groups there are; of none, a name."""
        there = sorted(self.model.groups) or [b"g"]
        return there[which % len(there)]

    def ids_of(self, wanted: list[Any], among: list[Key]) -> list[Id]:
        return [
            among[each % len(among)][0] if isinstance(each, int) and among else _id(each) for each in wanted
        ]

    def _page(self, reply: Any) -> list[Any]:
        if reply is None:
            return []
        [[name, page]] = reply
        assert name == self.name
        return page

    @precondition(lambda self: self.model.groups)
    @rule(
        which=one_of_them,
        consumer=consumers,
        count=counts,
        noack=st.sampled_from([False, False, False, True]),
        block=st.sampled_from([None, None, None, 1]),
    )
    def read_new(
        self, which: int, consumer: bytes, count: int | None, noack: bool, block: int | None
    ) -> None:
        group = self.group(which)
        limit = () if count is None else ("COUNT", count)
        wait = () if block is None else ("BLOCK", block)
        flag = ("NOACK",) if noack else ()
        words = ("XREADGROUP", "GROUP", group, consumer, *limit, *wait, *flag, "STREAMS", self.name, ">")
        given = set(self.model.groups[group].given)
        seen = self._page(self.act(*words))
        values = [(ids.native(entry), fields[1]) for entry, fields in seen]
        taken = self.model.read_these(group, consumer, count, values, noack=noack)
        assert seen == self.shown(taken)
        assert not given & set(taken), "duplicated"

    @precondition(lambda self: self.model.groups)
    @rule(which=one_of_them, counts=st.lists(st.integers(1, 4), min_size=2, max_size=5))
    def take_turns(self, which: int, counts: list[int]) -> None:
        """Consumers read a few each, one after the other."""
        for count, consumer in zip(counts, itertools.cycle([b"ann", b"bob", b"eve"]), strict=False):
            self.read_new(which, consumer, count, noack=False, block=None)

    @precondition(lambda self: self.model.groups)
    @rule(
        which=one_of_them, consumer=consumers, count=counts, after=st.just((0, 0)) | spots | st.integers(0, 9)
    )
    def read_own(self, which: int, consumer: bytes, count: int | None, after: Any) -> None:
        group = self.group(which)
        [since] = self.ids_of([after], self.model.groups[group].own(consumer))
        limit = () if count is None else ("COUNT", count)
        words = ("XREADGROUP", "GROUP", group, consumer, *limit, "STREAMS", self.name, ids.text(since))
        seen = self._page(self.act(*words))
        assert seen == self.shown(self.model.read_own(group, consumer, since, count))

    @precondition(lambda self: self.model.groups)
    @rule(which=one_of_them, wanted=named)
    def acknowledge(self, which: int, wanted: list[Any]) -> None:
        group = self.group(which)
        chosen = self.ids_of(wanted, self.model.groups[group].pending())
        seen = self.act("XACK", self.name, group, *map(ids.text, chosen))
        assert seen == self.model.acknowledge(group, chosen)

    @precondition(lambda self: self.model.groups)
    @rule(
        which=one_of_them,
        consumer=consumers,
        wanted=named,
        only_old=st.booleans(),
        make_old=st.booleans(),
        force=st.sampled_from([False, False, True]),
        justid=st.booleans(),
        times=st.sampled_from([None, None, 7]),
        last=st.one_of(st.none(), st.none(), st.none(), spots),
    )
    def claim(self, which: int, consumer: bytes, wanted: list[Any], **how: Any) -> None:
        group = self.group(which)
        among = [*self.model.groups[group].pending(), *sorted(self.model.entries)[:2]]
        chosen = self.ids_of(wanted, among)
        options = [*(["FORCE"] if how["force"] else []), *(["JUSTID"] if how["justid"] else [])]
        options += ["IDLE", AGES_MS] if how["make_old"] else []
        options += [] if how["times"] is None else ["RETRYCOUNT", how["times"]]
        last = how.pop("last")
        options += [] if last is None else ["LASTID", ids.text(last)]
        how["last"] = {} if last is None else self._as_far_as(last)
        idle = LONG_MS if how["only_old"] else 0
        words = ("XCLAIM", self.name, group, consumer, idle, *map(ids.text, chosen), *options)
        seen = self.act(*words)
        claimed = self.model.claim(group, consumer, chosen, **how)
        assert seen == (self.texts(claimed) if how["justid"] else self.shown(claimed))

    @precondition(lambda self: self.model.groups)
    @rule(
        which=one_of_them,
        consumer=consumers,
        start=st.just((0, 0)) | spots | st.integers(0, 9),
        only_old=st.booleans(),
        count=st.sampled_from([None, 1, 2, 5]),
        justid=st.booleans(),
    )
    def claim_idle(
        self, which: int, consumer: bytes, start: Any, only_old: bool, count: int | None, justid: bool
    ) -> None:
        group = self.group(which)
        [begin] = self.ids_of([start], self.model.groups[group].pending())
        options = [*(["JUSTID"] if justid else []), *([] if count is None else ["COUNT", count])]
        idle = LONG_MS if only_old else 0
        seen = self.act("XAUTOCLAIM", self.name, group, consumer, idle, ids.text(begin), *options)
        following, claimed, deleted = self.model.claim_idle(
            group, consumer, begin, only_old=only_old, count=count or 100, justid=justid
        )
        shown = self.texts(claimed) if justid else self.shown(claimed)
        assert seen == [ids.text(following), shown, self.texts(deleted)]

    def _as_far_as(self, entry: Id) -> dict[Place, Id]:
        """The last ID up to this one of every strand there is; some have no entry yet."""
        self.look("XINFO", "GROUPS", self.name)
        strands = self.clients[2].session.cache.registry(self.name).strands
        return {(strand.writer, strand.kind): strand.user(strand.floor(entry)) for strand in strands}

    @precondition(lambda self: self.model.groups)
    @rule(
        which=one_of_them,
        wanted=named,
        mode=st.sampled_from(["SILENT", "FAIL", "FATAL"]),
        force=st.sampled_from([False, False, True]),
        times=st.sampled_from([None, None, 7]),
    )
    def give_back(self, which: int, wanted: list[Any], mode: str, force: bool, times: int | None) -> None:
        group = self.group(which)
        among = [*self.model.groups[group].pending(), *sorted(self.model.entries)[:2]]
        chosen = self.ids_of(wanted, among)
        options = [*(["FORCE"] if force else []), *([] if times is None else ["RETRYCOUNT", times])]
        words = ("XNACK", self.name, group, mode, "IDS", len(chosen), *map(ids.text, chosen), *options)
        given = self.act(*words)
        native = b"XNACK" in self.clients[2].session.cache.commands
        assert given == self.model.give_back(
            group, chosen, mode=mode, force=force, times=times, native=native
        )

    @precondition(lambda self: self.model.groups)
    @rule(which=one_of_them, consumer=consumers, only_old=st.booleans(), count=counts)
    def read_claiming(self, which: int, consumer: bytes, only_old: bool, count: int | None) -> None:
        """What was given back, then what is idle, then what is new. Which is idle longer, clocks know."""
        group = self.group(which)
        held, claimable = self.model.groups[group].held, self.model.claimable(group, only_old=only_old)
        idle = [key for key in claimable if key in self.model.entries]
        gone = [key for key in claimable if key not in self.model.entries]
        limit = () if count is None or gone else ("COUNT", count)
        least = LONG_MS if only_old else 0
        words = ("XREADGROUP", "GROUP", group, consumer, *limit, "CLAIM", least, "STREAMS", self.name, ">")
        seen = self._page(self.act(*words))
        by_value = {self.model.entries[key]: key for key in idle}
        number = min(len(idle), count) if limit and count is not None else len(idle)
        claimed = [by_value[fields[1]] for _, fields, _, _ in seen[:number]]
        assert [row[3] for row in seen[:number]] == [held[key].times for key in claimed]
        owned = [held[key].consumer != NOBODY for key in claimed]
        assert owned == sorted(owned), "what was given back comes first"
        assert owned.count(False) == min(number, sum(held[key].consumer == NOBODY for key in idle))
        # As on Redis 8.10: what has no owner was last delivered in 1970.
        assert [row[2] > SINCE_2000_MS for row in seen[:number]] == [not each for each in owned]
        assert len(set(claimed)) == number, "duplicated"
        self.model.take_over(group, consumer, claimed)
        left = count - number if limit and count is not None else None
        new = self.model.read_new(group, consumer, left, noack=False) if left != 0 else []
        assert seen[number:] == [[*entry, 0, 0] for entry in self.shown(new)]


def _id(spot: Any) -> Id:
    return (spot, 5) if isinstance(spot, int) else spot
