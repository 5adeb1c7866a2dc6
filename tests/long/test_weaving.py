"""A stream woven of many strands is, to its readers, the naive stream of `tests/oracle/stream.py`.

We are writer 1, in liberal ID mode. Two clients act and two others look, so that what an actor
remembers of the strands is often long out of date. The other writers' entries arrive as a link brings
them: ascending within a writer, in any order between them, also long after we have gone on.
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
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import braidstream
from braidstream.model import ids
from braidstream.model.ids import MAX, ZERO, Id
from braidstream.model.strand import Strand
from tests.oracle.room import Room
from tests.oracle.stream import Stream, TooSmall
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine
from tests.support.thinning import NIGHTLY

HOME = 1
OURS = (HOME, "s")  # our IDs ascend, whichever strand of ours an entry is in
FULL = 2**53 + 100  # a native sequence that no writer gets to: it generated in the next millisecond
NUMBERS = [HOME, 2, 1023, 3, 512, 1022, 1021, 4, 5, 6, 7, 100, 255, 256, 257, 999]
_names = itertools.count()

# Small ones meet each other; the others lie where the writer's ten bits carry, and at the end.
_seqs = st.one_of(
    st.integers(0, 3),
    st.sampled_from([1, 2, 3, 1022, 1023, 1024, 1025, 1026, 2046, 2047, 2048, 2049]),
    st.integers(2**63 - 2050, 2**63 + 2050),
    st.integers(MAX - 2050, MAX),
    st.integers(0, 5000),
)
# An ID somewhere near what is there: (near which, milliseconds further, sequence). Hours further is ahead
# of the clock, so that `*` has to follow.
places = st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 1, 2, 10**7]), _seqs)
values = st.sampled_from([b"", b"a", b"bb", b"c" * 40])
# How many entries a cap takes out; below zero it leaves room. All of them now and then.
excesses = st.sampled_from([-2, 0, 1, 1, 2, 3, 5, 9, 10_000])
caps = st.one_of(st.none(), st.none(), excesses)


class Weaving(RuleBasedStateMachine):
    """What users and far writers can do to a stream."""

    def __init__(
        self, actors: list[braidstream.Redis], watchers: list[braidstream.Redis], *, writers: int
    ) -> None:
        super().__init__()
        self.actors, self.watchers, self.others = actors, watchers, NUMBERS[1:writers]
        self.name, self.beside = b"weave:%d" % next(_names), b"beside:%d" % next(_names)
        self.model = Stream()
        self.far = dict[int, Id]()  # the last ID each far writer ever used, whatever became of it here
        self.copies = dict[Strand, Id]()  # where our copy of each far strand ends
        self.sent: tuple[Strand, list[tuple[Id, list[bytes]]], Id] | None = None

    @initialize(seed=st.integers(0, 2**32), each=st.integers(0, 9), beside=st.lists(values, max_size=3))
    def begin(self, seed: int, each: int, beside: list[bytes]) -> None:
        """The dice choose what is there at first, who acts, and where the invariants look."""
        self.dice = random.Random(seed)
        self.neighbours = [(self.actor.xadd(self.beside, {b"v": value}), {b"v": value}) for value in beside]
        for writer in self.others:
            self._bring(
                Strand(self.name, self.dice.choice("ssc"), writer),
                [((self.dice.randrange(9), self.dice.randrange(5000)), b"a") for _ in range(each)],
            )

    @property
    def actor(self) -> braidstream.Redis:
        return self.dice.choice(self.actors)

    @property
    def watcher(self) -> braidstream.Redis:
        return self.dice.choice(self.watchers)

    def near(self, place: tuple[int, int, int]) -> Id:
        which, further, seq = place
        landmarks = [self.model.end(OURS), ZERO, self.model.last, *(key[0] for key in self.model.between())]
        return min(landmarks[which % len(landmarks)][0] + further, MAX), seq

    @property
    def is_long(self) -> bool:
        """Long enough to take from: what takes would else outrun what gives."""
        return len(self.model.entries) > 3

    # What we do

    @rule(value=values, excess=caps, nomkstream=st.booleans())
    def add(self, value: bytes, excess: int | None, nomkstream: bool) -> None:
        maxlen = None if excess is None else self._length(excess)
        options = {"maxlen": maxlen, "approximate": False, "nomkstream": nomkstream}
        said = self.actor.xadd(self.name, {b"v": value}, **options)
        if nomkstream and not self.model.exists:
            assert said is None
            return
        entry = ids.native(said)
        assert ids.writer_of(entry) == HOME
        self.model.add((entry, *OURS), value)
        if maxlen is not None:
            self.model.trim_to(maxlen)

    @rule(
        place=places,
        form=st.sampled_from(["full", "ms", "ms-*"]),
        value=values,
        cap=st.one_of(caps, caps, places),
        nomkstream=st.sampled_from([False, False, True]),
    )
    def add_chosen(self, place: Any, form: str, value: bytes, cap: Any, nomkstream: bool) -> None:
        ms, seq = self.near(place)
        word = {"full": f"{ms}-{seq}", "ms": f"{ms}", "ms-*": f"{ms}-*"}[form]
        wanted = (ms, seq if form == "full" else 0)
        trim: dict[str, Any] = {}
        if isinstance(cap, int):
            trim = {"maxlen": self._length(cap), "approximate": False}
        elif cap is not None:
            trim = {"minid": ids.text(self.near(cap)), "approximate": False}
        options = {"id": word, "nomkstream": nomkstream, **trim}
        if wanted == ZERO and form != "ms-*":
            with pytest.raises(redis.ResponseError, match="must be greater than 0-0"):
                self.actor.xadd(self.name, {b"v": value}, **options)
            return
        if nomkstream and not self.model.exists:
            assert self.actor.xadd(self.name, {b"v": value}, **options) is None
            return
        try:
            entry = self.model.next_in(ms, OURS) if form == "ms-*" else wanted
            self.model.add((entry, *OURS), value)
        except TooSmall:
            with pytest.raises(redis.ResponseError, match="equal or smaller"):
                self.actor.xadd(self.name, {b"v": value}, **options)
            return
        assert self.actor.xadd(self.name, {b"v": value}, **options) == ids.text(entry)
        if "maxlen" in trim:
            self.model.trim_to(trim["maxlen"])
        elif "minid" in trim:
            self.model.trim_before(ids.native(trim["minid"]))

    @precondition(lambda self: self.is_long)
    @rule(at=st.lists(st.integers(0, 30) | places, min_size=1, max_size=4), newcomers=st.booleans())
    def delete_entries(self, at: list[Any], newcomers: bool) -> None:
        there = [key[0] for key in self.model.between()]
        if newcomers and self.sent:  # from a strand that the actor may not know yet
            there = [self.sent[0].user(native) for native, _ in self.sent[1]]
        wanted = [there[each % len(there)] if isinstance(each, int) else self.near(each) for each in at]
        assert self.actor.xdel(self.name, *map(ids.text, wanted)) == self.model.delete_entries(wanted)

    @precondition(lambda self: self.is_long)
    @rule(excess=excesses)
    def trim_to(self, excess: int) -> None:
        length = self._length(excess)
        assert self.actor.xtrim(self.name, maxlen=length, approximate=False) == self.model.trim_to(length)

    def _length(self, excess: int) -> int:
        return max(0, len(self.model.entries) - excess)

    @precondition(lambda self: self.is_long)
    @rule(place=places)
    def trim_before(self, place: Any) -> None:
        entry = self.near(place)
        gone = self.actor.xtrim(self.name, minid=ids.text(entry), approximate=False)
        assert gone == self.model.trim_before(entry)

    @precondition(lambda self: self.model.added > 12)
    @rule()
    def delete(self) -> None:
        assert self.actor.delete(self.name) == self.model.delete() == 1

    @precondition(lambda self: not self.model.exists)
    @rule()
    def take_from_nothing(self) -> None:
        assert self.actor.delete(self.name) == 0
        assert self.actor.xdel(self.name, "1-1") == 0
        assert self.actor.xtrim(self.name, maxlen=0, approximate=False) == 0
        with pytest.raises(redis.ResponseError, match="no such key"):
            self.actor.execute_command("XSETID", self.name, "1-1")

    @precondition(lambda self: self.model.exists)
    @rule(place=places, more=st.none() | st.integers(0, 5), deleted=st.booleans())
    def set_last(self, place: Any, more: int | None, deleted: bool) -> None:
        entry = self.near(place)
        options: list[Any] = [] if more is None else ["ENTRIESADDED", self.model.added + more]
        options += ["MAXDELETEDID", ids.text(entry)] if deleted else []
        command = ("XSETID", self.name, ids.text(entry), *options)
        added = None if more is None else self.model.added + more
        try:
            self.model.set_last(entry, OURS, added=added, deleted=entry if deleted else None)
        except TooSmall:
            with pytest.raises(redis.ResponseError, match="smaller than"):
                self.actor.execute_command(*command)
            return
        assert self.actor.execute_command(*command) in (True, b"OK")

    @rule(which=st.integers(0, 1))
    def start_anew(self, which: int) -> None:
        """A client that has seen nothing yet."""
        self.actors[which].session.cache.forget_all()

    # What the world does

    @precondition(lambda self: self.others)
    @rule(
        which=st.integers(0, 15),
        kind=st.sampled_from(["s", "s", "c"]),
        batch=st.lists(st.tuples(places, values), min_size=1, max_size=5),
    )
    def arrive(self, which: int, kind: Any, batch: list[tuple[Any, bytes]]) -> None:
        strand = Strand(self.name, kind, self.others[which % len(self.others)])
        self._bring(strand, [(self.near(place), value) for place, value in batch])

    def _bring(self, strand: Strand, wanted: list[tuple[Id, bytes]]) -> None:
        entries = list[tuple[Id, list[bytes]]]()
        for target, value in sorted(wanted):
            native = self._following(strand, target)
            self.far[strand.writer] = strand.user(native)
            self.model.add((strand.user(native), strand.writer, strand.kind), value)
            entries.append((native, [b"v", value]))
        if entries:
            self.sent = strand, entries, self.copies.get(strand, ZERO)
            self.copies[strand] = entries[-1][0]
            assert self.actor.run_plan(apply(*self.sent)) == len(entries)

    def _following(self, strand: Strand, target: Id) -> Id:
        """The native ID at `target`, or the next one after all that this writer has used."""
        following = ids.after(self.far.get(strand.writer, ZERO))
        assert following is not None, "nobody comes near the last ID of all"
        native = strand.ceil(max(target, following))
        # W12: XINFO takes a deleted native 0-1 for none, so no ID is generated in millisecond 0 here.
        if strand.kind == "s" and (native[1] > FULL or native[0] == 0):
            return native[0] + 1, 0
        return native

    @precondition(lambda self: self.sent)
    @rule()
    def arrive_again(self) -> None:
        """A link that lost a reply sends its batch once more."""
        assert self.sent is not None
        assert self.actor.run_plan(apply(*self.sent)) == 0

    # What must always be seen

    @invariant()
    def the_whole_is_the_model(self) -> None:
        assert self.watcher.xrange(self.name) == self.model.shown(self.model.between())
        assert self.watcher.xrevrange(self.name) == self.model.shown(self.model.between_back())
        assert self.watcher.xlen(self.name) == len(self.model.entries)
        assert self.watcher.exists(self.name, self.name) == 2 * self.model.exists
        assert self.watcher.type(self.name) == (b"stream" if self.model.exists else b"none")

    @invariant()
    def every_part_is_the_models_part(self) -> None:
        (first, start), (last, end) = self._somewhere(start=True), self._somewhere(start=False)
        count = self.dice.choice([None, 1, 2, 3, 50, 100])
        if start is None or end is None:
            return
        assert self.watcher.xrange(self.name, first, last, count) == self.model.shown(
            self.model.between(start, end, count)
        ), (first, last, count)
        assert self.watcher.xrevrange(self.name, last, first, count) == self.model.shown(
            self.model.between_back(start, end, count)
        ), (first, last, count)

    def _somewhere(self, *, start: bool) -> tuple[bytes, Id | None]:
        """The end of an interval: its words, and the first or last ID inside."""
        symbol = (b"-", ZERO) if start else (b"+", ids.LAST)
        entry = self._spot()
        following = ids.after(entry) if start else ids.before(entry)
        forms = [
            symbol,
            (ids.text(entry), entry),
            (b"(" + ids.text(entry), following),
            (b"%d" % entry[0], (entry[0], 0 if start else MAX)),
        ]
        return self.dice.choice(forms)

    def _spot(self) -> Id:
        """At an entry, next to one, or at the end."""
        entry = self.dice.choice([self.model.last, *(key[0] for key in self.model.between())])
        return self.dice.choice([entry, ids.after(entry) or entry, ids.before(entry) or entry])

    @invariant()
    def reading_on_is_the_models_rest(self) -> None:
        position, count = self._spot(), self.dice.choice([None, 1, 2, 3, 100])
        seen = self.watcher.xread({self.name: ids.text(position), self.beside: "0"}, count=count)
        expected = [self.model.shown(self.model.after(position, count)), self.neighbours[:count]]
        assert _by_name(seen) == {
            name: page for name, page in zip([self.name, self.beside], expected, strict=True) if page
        }, (position, count)

    @invariant()
    def reading_from_the_end_is_nothing_and_from_plus_the_last(self) -> None:
        assert not self.watcher.xread({self.name: "$"})
        newest = self.model.between(start=self.model.newest)
        assert _by_name(self.watcher.xread({self.name: "+"})).get(self.name, []) == self.model.shown(newest)

    @invariant()
    def caps_cut_the_reply_but_leave_one(self) -> None:
        position, names = self._spot(), [self.name, self.beside]
        max_count, max_size = self.dice.choice([(1, None), (3, None), (None, 1), (None, 150), (4, 300)])
        count = self.dice.choice([None, 1])
        ours = self.model.shown(self.model.after(position, count))
        pages = [(self.name, ours), (self.beside, self.neighbours[:count])]
        cut = Room(max_count, max_size).cut(
            (name, [[entry, [*itertools.chain(*fields.items())]] for entry, fields in page])
            for name, page in pages
            if page
        )
        seen = _by_name(
            self.watcher.xread(
                dict(zip(names, [ids.text(position), "0"], strict=True)),
                count=count,
                max_count=max_count,
                max_size=max_size,
            )
        )
        fitting = {name: len(page) for name, page in cut}
        expected = {name: page[: fitting[name]] for name, page in pages if name in fitting}
        assert seen == expected, (position, count, max_count, max_size)

    @invariant()
    def it_says_of_itself_what_the_model_knows(self) -> None:
        if not self.model.exists:
            with pytest.raises(redis.ResponseError, match="no such key"):
                self.watcher.xinfo_stream(self.name)
            return
        seen = self.watcher.xinfo_stream(self.name)
        entries = self.model.shown(self.model.between())
        expected = {
            "length": len(entries),
            "last-generated-id": ids.text(self.model.last),
            "entries-added": self.model.added,
            "max-deleted-entry-id": ids.text(self.model.max_deleted),
            "recorded-first-entry-id": entries[0][0] if entries else ids.text(ZERO),
            "first-entry": entries[0] if entries else None,
            "last-entry": entries[-1] if entries else None,
            "groups": 0,
        }
        assert {fact: seen[fact] for fact in expected} == expected
        full = self.watcher.xinfo_stream(self.name, full=True)
        assert list(full["entries"].items()) == list(dict(entries[:10]).items())


def _by_name(reply: Any) -> dict[bytes, list[Any]]:
    return {name: page for name, page in reply or []}


@contextmanager
def _clients(engine: Engine) -> Iterator[list[braidstream.Redis]]:
    become(engine, id_mode="liberal")
    with ExitStack() as stack:
        yield [
            stack.enter_context(client_of(engine, protocol=protocol)) for protocol in (None, 2, None, None)
        ]


@pytest.mark.parametrize("writers", [1, 3, 16])
def test_a_woven_stream_is_the_naive_one(engine: Engine, writers: int) -> None:
    default = settings.get_profile(settings.get_current_profile_name())
    chosen = settings(
        default, max_examples=max(1, default.max_examples // (10 if NIGHTLY else 20)), stateful_step_count=30
    )
    with _clients(engine) as clients:
        run_state_machine_as_test(lambda: Weaving(clients[:2], clients[2:], writers=writers), settings=chosen)
