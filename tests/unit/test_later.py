"""Entries for later without a server: their names, when they are due, which of them are remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidstream.clusters.command_keys import slot_of
from braidstream.config import Selection
from braidstream.model import keys
from braidstream.model.later import (
    MOST_WORDS,
    again_name,
    due_of,
    later_name,
    stream_of,
    target_for,
    target_of,
)
from braidstream.model.retention_policy import Policies
from braidstream.model.strand import Strand
from braidstream.operations import later_promotion
from braidstream.operations.later_promotion import Soon, Waiting

YEAR_9999 = 253_402_300_799_999


@pytest.mark.parametrize(
    ("stream", "companion"),
    [
        (b"orders", b"{orders}.later"),
        (b"{u1}.orders", b"{u1}.orders.later"),
        (b"x{u1}", b"x{u1}.later"),
        (b"a.b", b"{a.b}.later"),
        (b"a}b", b"{a}b}.later"),
    ],
)
def test_a_companion_has_the_slot_of_its_stream(stream: bytes, companion: bytes) -> None:
    assert later_name(stream) == companion
    assert slot_of(keys.meta(companion)) == slot_of(keys.meta(stream))


@pytest.mark.parametrize(
    "stream", [b"", b"}x", b"{orders}", b"x" * 4_090, b"{orders}.later", b"{orders}.g.again"]
)
def test_a_stream_that_can_have_no_companion_is_refused(stream: bytes) -> None:
    with pytest.raises(ValueError, match="cannot wait for later"):
        later_name(stream)


@given(stream=st.binary(max_size=12), group=st.binary(max_size=8))
def test_a_companion_says_which_stream_it_belongs_to(stream: bytes, group: bytes) -> None:
    try:
        waiting, again = later_name(stream), again_name(stream, group)
    except ValueError:
        return
    assert stream_of(waiting) == stream == stream_of(again) == target_of(waiting)
    assert target_of(again) is None
    assert len({slot_of(keys.meta(name)) for name in (stream, waiting, again)}) == 1
    assert target_for(waiting, group) == again


@given(name=st.binary(max_size=20))
def test_any_other_name_is_no_companion(name: bytes) -> None:
    if (stream := target_of(name)) is not None and stream_of(stream) is None and stream:
        assert keys.has_own_tag(name)


def test_a_companion_is_exchanged_as_its_stream_is() -> None:
    only = Selection(include=("orders*",), exclude=("orders.tmp",))
    taken = [b"{orders}.later", b"{orders}.billing.again", b"{orders-eu}.later", b"{orders}.a%2Eb.again"]
    assert all(map(only.takes, taken))
    assert not any(map(only.takes, [b"{payments}.later", b"{orders.tmp}.later", b"{orders.tmp}.g.again"]))


def test_no_pattern_of_a_policy_matches_a_companion() -> None:
    policies = Policies.of_entries([((1, 1), [b"streams", b"*", b"max-age", b"1d"])])
    assert policies.of(b"orders") is not None
    assert policies.of(b"{orders}.later") is None
    assert policies.of(b"{orders}.billing.again") is None


def test_when_an_entry_is_due() -> None:
    assert due_of(1000, [b"later.delay", b"500", b"n", b"1"]) == (1500, None)
    assert due_of(1000, [b"n", b"1", b"later.at", b"777"]) == (777, None)
    assert due_of(1000, [b"later.delay", b"0", b"later.group", b"g", b"n", b"1"]) == (1000, b"g")
    assert due_of(0, [b"later.at", b"%d" % YEAR_9999, b"n", b"1"]) == (YEAR_9999, None)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([b"n", b"1"], "needs later.delay or later.at"),
        ([b"later.at", b"1", b"later.delay", b"1", b"n", b"1"], "not both"),
        ([b"later.delay", b"1"], "no fields of its own"),
        ([b"later.dealy", b"1", b"n", b"1"], "no option 'later.dealy'"),
        ([b"later.delay", b"1" + b"0" * 300, b"n", b"1"], "'1000.*' is not a number of milliseconds"),
        ([b"later.at", b"%d" % (YEAR_9999 + 1), b"n", b"1"], "up to the year 9999"),
        ([b"later.delay", b"%d" % YEAR_9999, b"n", b"1"], "up to the year 9999"),
        *(
            ([b"later.delay", wrong, b"n", b"1"], "is not a number of milliseconds")
            for wrong in (
                b"",
                b"-1",
                b"NaN",
                b"inf",
                b"1.5",
                b"1e3",
                b" 1",
                b"1\n",
                "\u0661".encode(),
                b"\xff",
            )
        ),
        ([b"later.delay", b"1", *[b"x"] * MOST_WORDS], "can wait"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(words: list[bytes], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        due_of(1000, words)


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.binary(max_size=30), max_size=8).filter(lambda each: len(each) % 2 == 0),
)
def test_any_entry_is_due_at_a_time_or_refused(entry_ms: int, words: list[bytes]) -> None:
    try:
        due_ms, _ = due_of(entry_ms, words)
    except ValueError:
        return
    assert 0 <= due_ms <= YEAR_9999


def test_only_so_many_are_kept_and_those_that_are_due_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_promotion, "_KEPT", 100)
    strand, soon = Strand(b"{orders}.later", keys.GENERATED, 1), Soon()
    for number in range(1_000):
        soon.add(Waiting(strand, (number + 1, 0), 10_000 - number))
    assert len(soon.heap) <= 100
    assert not soon.must_read
    taken = [item[0] for item in soon.take(10_000, 40)]
    assert taken == [*range(9_001, 9_041)]
    while soon.take(10_000, 10):
        pass
    assert soon.must_read, "what was left out is read when the heap is nearly empty"
