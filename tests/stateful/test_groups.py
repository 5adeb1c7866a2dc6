"""A group on many strands is, to its consumers, the naive group of `tests/support/group_model.py`.

We are writer 5, in semi-strict ID mode. Entries of far writers arrive as links bring them: ascending
within a strand, in any order between them, so often smaller than what was delivered long ago. Some
writers are known to the region beforehand, others appear with their first entry. Two clients act and a
third looks, so what an actor remembers of the strands is often out of date.
"""

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import braidstream
from braidstream import ids
from braidstream.ids import LAST, ZERO, Id
from braidstream.strand import Strand
from tests.support.group_model import Key, Stream
from tests.support.group_seen import LONG_MS, Seen
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

HOME = 5
FAR = [2, 1023, 6, 4, 1, 512, 1022, 3, 7, 100, 255, 256, 257, 999, 8]
AGES_MS = 10**9  # how long ago "old" is
_names = itertools.count()

names = st.sampled_from([b"g", b"h", b"i\0\xff"])
one_of_them = st.integers(0, 5)  # a group, by its place among those there are
consumers = st.sampled_from([b"ann", b"ann", b"bob", b"eve"])
counts = st.sampled_from([None, 1, 1, 2, 3, 5, 40])
spots = st.tuples(st.integers(0, 40), st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 1023, 1024, 1026, 1029, 5000]))
starts = st.one_of(st.just("0"), st.just("$"), spots)
# Which entries a command names: by their place in what is there or held, or anywhere.
_some = st.integers(0, 30)
named = st.lists(st.one_of(_some, _some, _some, spots), min_size=1, max_size=4)


class Groups(Seen):
    """What producers, consumers and far writers can do to a stream and its groups."""

    def __init__(self, clients: list[braidstream.Redis], *, writers: int) -> None:
        super().__init__()
        self.clients, self.others = clients, FAR[: writers - 1]
        self.name = b"groups:%d" % next(_names)
        self.model = Stream()
        self.home_end: Id = (1, 0)
        self.far = dict[Strand, Id]()  # where our copy of each far strand ends, natively
        self.used = set[tuple[Id, int]]()  # no writer uses an ID twice, in whichever strand
        self.sent: tuple[Strand, list[tuple[Id, list[bytes]]], Id] | None = None
        self.written = 0

    @initialize(seed=st.integers(0, 2**32), each=st.integers(0, 5), start=starts)
    def begin(self, seed: int, each: int, start: Any) -> None:
        """The dice choose who acts, what is there at first, and where the invariants look."""
        self.dice = random.Random(seed)
        for writer in self.dice.sample(self.others, len(self.others) // 2):
            spots = [(self.dice.randrange(40), self.dice.randrange(9)) for _ in range(each)]
            self._bring(Strand(self.name, self.dice.choice("ssc"), writer), spots)
        self.create(b"g", "0")
        self.create(b"h", start)

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

    def value(self) -> bytes:
        self.written += 1
        return b"%d" % self.written

    # What producers do

    @rule(entries=st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.booleans()), min_size=1, max_size=4))
    def add(self, entries: list[tuple[int, bool]]) -> None:
        """In a millisecond of ours, or under an ID we choose."""
        for further, chosen in entries:
            ms, value = self.home_end[0] + further, self.value()
            if chosen:
                wanted = (ms + 1, self.dice.choice([0, 2, 7, 1029]))
                assert self.act("XADD", self.name, ids.text(wanted), b"v", value) == ids.text(wanted)
                self.home_end = wanted
            else:
                entry = ids.native(self.act("XADD", self.name, ms, b"v", value))
                assert entry > self.home_end
                self.home_end = entry
            self.model.add((self.home_end, HOME, "c" if chosen else "s"), value)

    @precondition(lambda self: self.others)
    @rule(
        links=st.lists(
            st.tuples(
                st.integers(0, 15),
                st.sampled_from(["s", "s", "c"]),
                st.lists(spots, min_size=1, max_size=3),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def arrive(self, links: list[tuple[int, Any, list[Id]]]) -> None:
        for which, kind, batch in links:
            self._bring(Strand(self.name, kind, self.others[which % len(self.others)]), batch)

    def _bring(self, strand: Strand, spots: list[Id]) -> None:
        entries, after = list[tuple[Id, list[bytes]]](), self.far.get(strand, ZERO)
        for spot in sorted(spots):
            native = max(strand.ceil(spot), ids.after(self.far.get(strand, ZERO)) or LAST)
            while (strand.user(native), strand.writer) in self.used:
                native = ids.after(native) or LAST
            value = self.value()
            self.far[strand] = native
            self.used.add((strand.user(native), strand.writer))
            self.model.add((strand.user(native), strand.writer, strand.kind), value)
            entries.append((native, [b"v", value]))
        if entries:
            self.sent = strand, entries, after
            assert self.clients[0].run_plan(apply(*self.sent)) == len(entries)

    @precondition(lambda self: self.sent)
    @rule()
    def arrive_again(self) -> None:
        """A link that lost a reply sends its batch once more."""
        assert self.sent is not None
        assert self.clients[0].run_plan(apply(*self.sent)) == 0

    @precondition(lambda self: len(self.model.entries) > 3)
    @rule(wanted=named)
    def delete_entries(self, wanted: list[Any]) -> None:
        chosen = self.ids_of(wanted, sorted(self.model.entries))
        gone = self.model.remove(self.model.keys(chosen))
        assert self.act("XDEL", self.name, *map(ids.text, chosen)) == gone

    @precondition(lambda self: len(self.model.entries) > 5)
    @rule(excess=st.sampled_from([1, 2, 3, 10_000]))
    def trim_to(self, excess: int) -> None:
        length = max(0, len(self.model.entries) - excess)
        assert self.act("XTRIM", self.name, "MAXLEN", "=", length) == self.model.trim_to(length)

    @precondition(lambda self: len(self.model.entries) > 5)
    @rule(at=st.integers(0, 5))
    def trim_before(self, at: int) -> None:
        entry = sorted(self.model.entries)[at][0]
        gone = self.model.trim_before(entry)
        assert self.act("XTRIM", self.name, "MINID", "=", ids.text(entry)) == gone

    @precondition(lambda self: self.written > 60)
    @rule()
    def delete(self) -> None:
        if self.model.exists:
            assert self.act("DEL", self.name) == 1
            self.model.delete()
            self.written = 0

    # What operators do

    @rule(group=names, start=starts)
    def create(self, group: bytes, start: Any) -> None:
        words = ("XGROUP", "CREATE", self.name, group, _word(start), "MKSTREAM")
        if group in self.model.groups:
            with pytest.raises(redis.ResponseError, match="already exists"):
                self.act(*words)
            return
        assert self.act(*words) == b"OK"
        self.model.create_group(group, _start(start))

    @rule(group=names, start=starts)
    def move(self, group: bytes, start: Any) -> None:
        words = ("XGROUP", "SETID", self.name, group, _word(start))
        if group not in self.model.groups:
            with pytest.raises(redis.ResponseError, match="No such consumer group|requires the key to exist"):
                self.act(*words)
            return
        assert self.act(*words) == b"OK"
        self.model.move_group(group, _start(start))

    @precondition(lambda self: len(self.model.groups) > 1)
    @rule(group=names)
    def destroy(self, group: bytes) -> None:
        there = self.model.groups.pop(group, None)
        assert self.act("XGROUP", "DESTROY", self.name, group) == (there is not None)
        for words in ((), ("-", "+", 10)):
            with pytest.raises(redis.ResponseError, match="NOGROUP"):
                self.act("XPENDING", self.name, group, *words)
        assert self.act("XACK", self.name, group, "1-1") == 0

    @precondition(lambda self: self.model.groups)
    @rule(which=one_of_them, consumer=consumers)
    def dismiss(self, which: int, consumer: bytes) -> None:
        group = self.group(which)
        held = self.model.delete_consumer(group, consumer)
        assert self.act("XGROUP", "DELCONSUMER", self.name, group, consumer) == held

    @rule()
    def forget(self) -> None:
        """Clients that have seen nothing yet."""
        for client in self.clients[:2]:
            client.session.known.clear()
            client.session.homes.clear()

    # What consumers do

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
        taken = self.model.read_new(group, consumer, count, noack=noack)
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
    )
    def claim(self, which: int, consumer: bytes, wanted: list[Any], **how: Any) -> None:
        group = self.group(which)
        among = [*self.model.groups[group].pending(), *sorted(self.model.entries)[:2]]
        chosen = self.ids_of(wanted, among)
        options = [*(["FORCE"] if how["force"] else []), *(["JUSTID"] if how["justid"] else [])]
        options += ["IDLE", AGES_MS] if how["make_old"] else []
        options += [] if how["times"] is None else ["RETRYCOUNT", how["times"]]
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

    def teardown(self) -> None:
        """Every group is read to its end: nothing was skipped."""
        for name in self.model.groups:
            seen = self._page(self.act("XREADGROUP", "GROUP", name, "ann", "STREAMS", self.name, ">"))
            assert seen == self.shown(self.model.read_new(name, b"ann", None, noack=False))
            again = self.act("XREADGROUP", "GROUP", name, "ann", "COUNT", 9, "STREAMS", self.name, ">")
            assert again is None

    def _page(self, reply: Any) -> list[Any]:
        if reply is None:
            return []
        [[name, page]] = reply
        assert name == self.name
        return page


def _id(spot: Any) -> Id:
    return (spot, 5) if isinstance(spot, int) else spot


def _word(start: Any) -> bytes:
    return start.encode() if isinstance(start, str) else ids.text(start)


def _start(start: Any) -> Id | None:
    if start == "$":
        return None
    return ZERO if start == "0" else start


@contextmanager
def _clients(engine: Engine, writers: int) -> Iterator[list[braidstream.Redis]]:
    """Of the far writers the first third is known to the region."""
    become(engine, region=HOME, name="home", id_mode="semi-strict")
    known = sorted([HOME, *FAR[: (writers - 1) // 3]])
    with engine.client() as operator:
        operator.hset("bs:config", "writers", " ".join(map(str, known)))
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(engine, protocol=2)) for _ in range(3)]
        for client in clients:
            client.response_callbacks.clear()  # replies as the wire has them
        yield clients


@pytest.mark.parametrize("writers", [1, 3, 16])
def test_a_group_on_many_strands_is_the_naive_one(engine: Engine, writers: int) -> None:
    default = settings.get_profile(settings.get_current_profile_name())
    chosen = settings(default, max_examples=max(1, default.max_examples // 4), stateful_step_count=40)
    with _clients(engine, writers) as clients:
        run_state_machine_as_test(lambda: Groups(clients, writers=writers), settings=chosen)
