"""A group on many strands is, to its consumers, the naive group of `tests/oracle/stream.py`.

We are writer 5, in strict or semi-strict ID mode. Entries of far writers arrive as links bring them:
ascending within a strand, in any order between them, so often smaller than what was delivered long ago. Of
strands without chosen IDs a client may read those that are behind first (decision 0032). Some writers are
known to the region beforehand, others appear with their first entry. Two clients act and a third looks, so
what an actor remembers of the strands is often out of date.
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
from braidstream.model import ids
from braidstream.model.ids import LAST, ZERO, Id
from braidstream.model.strand import Strand
from tests.long.group_consumers import Consuming, consumers, named, one_of_them, spots
from tests.oracle.stream import Stream
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

HOME = 5
FAR = [2, 1023, 6, 4, 1, 512, 1022, 3, 7, 100, 255, 256, 257, 999, 8]
_names = itertools.count()

names = st.sampled_from([b"g", b"h", b"i\0\xff"])
starts = st.one_of(st.just("0"), st.just("$"), spots)


class Groups(Consuming):
    """What producers, operators and far writers can do to a stream and its groups, besides its consumers."""

    def __init__(self, clients: list[braidstream.Redis], *, writers: int, kinds: str = "sc") -> None:
        super().__init__()
        self.clients, self.others, self.kinds = clients, FAR[: writers - 1], kinds
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
            self._bring(Strand(self.name, self.dice.choice("s" + self.kinds), writer), spots)
        self.create(b"g", "0")
        self.create(b"h", start)

    def value(self) -> bytes:
        self.written += 1
        return b"%d" % self.written

    # What producers do

    @rule(entries=st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.booleans()), min_size=1, max_size=4))
    def add(self, entries: list[tuple[int, bool]]) -> None:
        """In a millisecond of ours, or under an ID we choose."""
        for further, wants in entries:
            chosen = wants and "c" in self.kinds
            ms, value = self.home_end[0] + further, self.value()
            if chosen:
                wanted = (ms + 1, self.dice.choice([0, 2, 7, 1029]))
                assert self.act("XADD", self.name, ids.text(wanted), b"v", value) == ids.text(wanted)
                self.home_end = wanted
            else:
                wanted = ms if "c" in self.kinds else "*"  # a time of our choice makes it a chosen ID too
                entry = ids.native(self.act("XADD", self.name, wanted, b"v", value))
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
        for which, wanted, batch in links:
            kind: Any = wanted if wanted in self.kinds else "s"
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
        gone = self.model.delete_entries(chosen)
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

    @rule(group=names, start=starts, read=st.sampled_from([None, None, 0, 3, 10**6]))
    def move(self, group: bytes, start: Any, read: int | None) -> None:
        """What ENTRIESREAD says is not a reason to be wrong about the lag."""
        told = () if read is None else ("ENTRIESREAD", read)
        words = ("XGROUP", "SETID", self.name, group, _word(start), *told)
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
            client.session.cache.forget_all()

    def teardown(self) -> None:
        """Every group is read to its end: nothing was skipped."""
        for name in self.model.groups:
            seen = self._page(self.act("XREADGROUP", "GROUP", name, "ann", "STREAMS", self.name, ">"))
            assert seen == self.shown(self.model.read_new(name, b"ann", None, noack=False))
            again = self.act("XREADGROUP", "GROUP", name, "ann", "COUNT", 9, "STREAMS", self.name, ">")
            assert again is None


def _word(start: Any) -> bytes:
    return start.encode() if isinstance(start, str) else ids.text(start)


def _start(start: Any) -> Id | None:
    if start == "$":
        return None
    return ZERO if start == "0" else start


@contextmanager
def _clients(engine: Engine, writers: int, id_mode: str) -> Iterator[list[braidstream.Redis]]:
    """Of the far writers the first third is known to the region."""
    become(engine, region=HOME, name="home", id_mode=id_mode)
    known = sorted([HOME, *FAR[: (writers - 1) // 3]])
    with engine.client() as operator:
        operator.hset("bs:config", "writers", " ".join(map(str, known)))
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(engine, protocol=2)) for _ in range(3)]
        for client in clients:
            client.response_callbacks.clear()  # replies as the wire has them
        yield clients


@pytest.mark.parametrize("writers", [1, 3, 16])
@pytest.mark.parametrize("kinds", ["s", "sc"], ids=["generated", "chosen"])
def test_a_group_on_many_strands_is_the_naive_one(engine: Engine, writers: int, kinds: str) -> None:
    default = settings.get_profile(settings.get_current_profile_name())
    chosen = settings(default, max_examples=max(1, default.max_examples // 25), stateful_step_count=40)
    with _clients(engine, writers, "strict" if kinds == "s" else "semi-strict") as clients:
        run_state_machine_as_test(lambda: Groups(clients, writers=writers, kinds=kinds), settings=chosen)
        if writers == 3 and kinds == "s":
            assert any(client.session.routes.taken for client in clients)
