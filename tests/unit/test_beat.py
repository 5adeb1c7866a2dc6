"""Heartbeats: which regions are alive, and who takes over."""

import pytest

from braidstream.model.region import Beat, Pulses, Region, newer, read_beats
from braidstream.model.registry import Scope, owners_of
from braidstream.replication.takeover import Duty, duty_of, taken_for, to_take


def region(number: int, *, of: int = 3, left: tuple[int, ...] = ()) -> Region:
    return Region(number, f"region-{number}", number, writers=tuple(range(1, of + 1)), left=left)


def pulses(*moves: tuple[float, dict[int, int]]) -> Pulses:
    """Beats that were seen at these times."""
    made = Pulses(after_s=10)
    for now_s, beats in moves:
        made.note({number: Beat(ms) for number, ms in beats.items()}, now_s)
    return made


def test_beats_are_read_as_they_were_written_and_odd_ones_are_ignored() -> None:
    reply = [b"1", Beat(7).text, b"2", Beat(8, True).text, b"x", b"9", b"3", b"later", b"4", b"1%030d" % 0]
    reply += [b"9" * 5_000, b"9"]  # Python refuses to read it as a number
    assert read_beats(reply) == {1: Beat(7), 2: Beat(8, True)}
    assert newer({1: Beat(7), 2: Beat(9)}, {1: Beat(7), 2: Beat(8, True)}) == {2: Beat(9)}


def test_a_region_is_dead_when_its_beat_has_not_moved_for_so_long_and_steady_after_as_long() -> None:
    seen = pulses((0, {2: 1}), (9, {2: 1}))
    assert seen.alive([2, 3], 9.9) == {2}
    assert seen.alive([2, 3], 10) == set()
    assert seen.known([2, 3]) == {2}, "nobody has heard of region 3"
    for now_s in range(20, 31):
        seen.note({2: Beat(now_s)}, now_s)
        assert seen.alive([2], now_s) == {2}
        assert bool(seen.steady([2], now_s)) == (now_s == 30)


def test_nobody_is_dead_because_we_were_away() -> None:
    seen = pulses((0, {1: 1, 2: 1}))
    seen.begin_again(100)
    assert seen.alive([1, 2], 109) == {1, 2}
    assert seen.steady([1, 2], 109) == set()


@pytest.mark.parametrize(
    ("here", "alive", "dead"),
    [
        (region(1), {2, 3}, set()),
        (region(1), {2}, {3}),
        (region(2), {1}, set()),  # region 1 is smaller, and does it
        (region(2), {3}, {1}),
        (region(1), set(), set()),  # it sees one region of three
        (region(1, of=2), set(), {2}),
        (region(2, of=4), {3}, {1, 4}),
        (region(1, of=4), set(), set()),
        (region(1, left=(3,)), {2}, set()),
    ],
)
def test_the_smallest_live_region_takes_over_if_it_sees_half_of_them(
    here: Region, alive: set[int], dead: set[int]
) -> None:
    everyone = {number: 1 for number in here.writers if number != here.writer}
    seen = pulses((0, everyone), (9, {number: 2 for number in alive}))
    assert duty_of(here, seen, 11).dead_for(here.writer, set()) == dead


def test_a_smaller_region_that_does_not_exchange_the_stream_takes_over_nothing_of_it() -> None:
    seen = pulses((0, {1: 1, 3: 1}), (9, {1: 2}))
    duty = duty_of(region(2), seen, 11)
    assert duty.dead_for(2, {1}) == {3}
    assert duty.dead_for(2, {1, 3}) == set()


def test_who_was_told_to_stop_is_neither_dead_nor_counted() -> None:
    """Region 1 sees itself, one of the two that remain."""
    seen = pulses((0, {2: 1, 3: 1}))
    seen.note({2: Beat(2, True)}, 1)
    assert duty_of(region(1), seen, 100) == Duty(dead=frozenset({3}))


@pytest.mark.parametrize(
    ("owners", "dead", "wanted"),
    [
        (b"", {1}, [1, 4]),  # 4 was removed: the smallest remaining region owns its strands
        (b"", {3}, [3]),
        (b"4:1.3:0:0", {3}, [3, 4]),
        (b"4:1.3:0:0", {1}, [1]),
        (b"1:1.3:0:0", {3}, [1, 3]),
    ],
)
def test_all_strands_of_a_dead_region_are_taken_also_those_of_a_removed_one(
    owners: bytes, dead: set[int], wanted: list[int]
) -> None:
    here = region(2, left=(4,))
    scope = Scope(owners_of(owners))
    assert to_take(here, scope, dead) == wanted


def test_what_was_taken_goes_back_to_its_region_or_to_the_default_owner_of_a_removed_one() -> None:
    scope = Scope(owners_of(b"1:1.2:0:1 3:1.2:0:0 4:1.2:0:1"))
    assert taken_for(region(2, left=(4,)), scope) == {1: 1, 4: 1}
    alone = Region(2, "region-2", 2, writers=(2, 3), left=(1, 4))
    assert taken_for(alone, scope) == {}, "it owns them by default"
