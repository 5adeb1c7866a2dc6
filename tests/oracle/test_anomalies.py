"""Every anomaly is found where it is, and not where it is not."""

from braidstream.model.registry import Settings
from tests.oracle.anomalies import ANOMALIES, GROUPS, MESSAGES, RANGE, find
from tests.oracle.convergence import SETTINGS
from tests.oracle.history import (
    Acked,
    Added,
    Answered,
    Destroyed,
    Entry,
    Event,
    Forgot,
    Generated,
    History,
    Left,
    Made,
    Noted,
    Removed,
    Saw,
    Sent,
    Told,
)

ONE: Entry = ("s1:0", (1, 0))
TWO: Entry = ("s1:0", (2, 0))
FAR: Entry = ("s2:0", (3, 0))


def history(*events: Event) -> History:
    return History(2, list(events))


def added(*entries: Entry) -> Added:
    return Added(1, "x", frozenset(entries))


def saw(region: int, *entries: Entry) -> Saw:
    return Saw(region, "x", frozenset(entries))


def removed(*entries: Entry) -> Removed:
    return Removed(1, "x", frozenset(entries))


def kinds(*events: Event) -> list[str]:
    return list(find(history(*events)))


def test_a_history_without_trouble_has_no_anomaly() -> None:
    calm = (
        *(added(ONE), added(TWO), removed(ONE), saw(1, TWO), saw(2), saw(2, TWO)),
        *(Answered(region, "x", RANGE, ["2-1"]) for region in (1, 2)),
        *(Answered(region, "x", GROUPS, []) for region in (1, 2)),
    )
    assert kinds(*calm) == []


def test_acausal_is_what_sorts_before_an_entry_that_its_writer_had_seen() -> None:
    assert kinds(Generated(2, "x", FAR, frozenset([ONE, TWO]))) == []
    assert kinds(Generated(1, "x", TWO, frozenset([ONE, FAR]))) == ["acausal"]


def test_lost_is_what_nobody_took_away_and_a_region_lacks() -> None:
    assert kinds(added(ONE), saw(1, ONE), saw(2)) == ["lost"]
    assert kinds(added(ONE), saw(1, ONE), removed(ONE), saw(1), saw(2)) == []


def test_duplicated_is_what_stands_more_often_than_it_was_added() -> None:
    twice = tuple(Answered(region, "x", RANGE, ["1-1", "1-1"]) for region in (1, 2))
    assert kinds(added(ONE), saw(1, ONE), *twice) == ["duplicated"]
    chosen: list[Entry] = [("c1:0", (1, 1)), ("c2:0", (1, 1))]
    assert kinds(added(*chosen), saw(1, *chosen), *twice) == []


def test_a_stream_that_nobody_wrote_to_is_empty_everywhere() -> None:
    assert kinds(*(Answered(region, "x", RANGE, []) for region in (1, 2))) == []
    assert kinds(*(Answered(region, "x", RANGE, ["1-1"]) for region in (1, 2))) == ["duplicated"]


def accepted(region: int, entry: Entry, era: int = 0) -> tuple[Event, ...]:
    return Added(region, "x", frozenset([entry])), Sent(region, "x", "m", era, entry)


TWICE = (*accepted(1, ONE), *accepted(2, FAR))


def test_a_message_that_stands_twice_is_duplicated_and_the_smaller_id_stays() -> None:
    assert kinds(*TWICE, saw(1, ONE), saw(2, ONE)) == []
    assert kinds(*TWICE, saw(1, ONE, FAR), saw(2, ONE)) == ["duplicated"]
    assert kinds(*TWICE, saw(1, FAR), saw(2, ONE)) == ["lost", "duplicated"]
    assert kinds(*TWICE, removed(ONE), saw(1), saw(2)) == []


def test_a_message_that_was_forgotten_may_stand_twice() -> None:
    late = Answered(1, "x", SETTINGS, Settings(era=1)), Answered(2, "x", SETTINGS, Settings(era=1))
    for forgotten in ([Forgot(1, "x")], late):
        assert kinds(*TWICE, *forgotten, saw(1, ONE, FAR), saw(2, ONE, FAR)) == []
        assert kinds(*TWICE, *forgotten, saw(1, ONE), saw(2, ONE)) == []
    apart = *accepted(1, ONE), *accepted(2, FAR, era=1), *late
    assert kinds(*apart, saw(1, ONE, FAR), saw(2, ONE, FAR)) == []
    assert kinds(*apart, saw(1, ONE), saw(2, ONE)) == ["lost"]


def test_diverged_is_a_message_that_a_region_does_not_know_by_the_smaller_id() -> None:
    end = *TWICE, saw(1, ONE), saw(2, ONE)
    assert kinds(*end, *(Answered(region, "x", MESSAGES, {"m": "1-1"}) for region in (1, 2))) == []
    assert kinds(*end, *(Answered(region, "x", MESSAGES, {"m": "3-2"}) for region in (1, 2))) == ["diverged"]


def test_reordered_is_what_is_seen_before_an_earlier_entry_of_its_strand() -> None:
    assert "reordered" in kinds(added(ONE), added(TWO), saw(2, TWO), saw(2, ONE, TWO))
    assert kinds(added(ONE), added(FAR), saw(2, FAR), saw(2, ONE, FAR)) == []
    assert kinds(added(ONE), added(TWO), removed(ONE), saw(2, TWO)) == []
    early: Entry = ("s2:0", (0, 5))
    assert kinds(*accepted(1, ONE), *accepted(2, early), added(TWO), saw(2, early, TWO)) == []


def test_reordered_is_an_answer_out_of_id_order() -> None:
    answers = (Answered(region, "x", RANGE, ["2-1", "1-1"]) for region in (1, 2))
    assert kinds(added(ONE, TWO), saw(1, ONE, TWO), *answers) == ["reordered"]


def test_resurrected_is_what_comes_back() -> None:
    assert kinds(added(ONE), saw(1, ONE), saw(1), saw(1, ONE)) == ["resurrected"]
    assert kinds(added(ONE), removed(ONE), saw(2, ONE)) == ["resurrected"]
    assert kinds(added(ONE), saw(1, ONE), removed(ONE), saw(1)) == []


def test_skipped_is_what_a_group_is_never_given_though_nobody_acknowledged_it() -> None:
    start = (added(ONE, TWO), saw(1, ONE, TWO), Made(1, "x", "g"))
    given = Left(1, "x", "g", frozenset([(2, 1)]))
    assert kinds(*start, given) == ["skipped"]
    assert kinds(*start, Acked(1, "x", "g", frozenset([(1, 1)])), given) == []


def test_what_was_acknowledged_in_a_former_life_of_a_group_is_skipped_if_the_new_one_lacks_it() -> None:
    life = (added(ONE), saw(1, ONE), Made(1, "x", "g"), Acked(1, "x", "g", frozenset([(1, 1)])))
    again = (Destroyed(1, "x", "g"), Made(1, "x", "g"), Left(1, "x", "g", frozenset()))
    assert kinds(*life, *again) == ["skipped"]


def test_what_a_group_starts_behind_is_not_skipped() -> None:
    start = (added(ONE, TWO), saw(1, ONE, TWO))
    assert kinds(*start, Made(1, "x", "g", upto=(2, 1)), Left(1, "x", "g", frozenset())) == []
    passed = frozenset([ONE, TWO])
    assert kinds(*start, Made(1, "x", "g", passed=passed), Left(1, "x", "g", frozenset())) == []


def test_diverged_is_one_question_and_two_answers() -> None:
    assert kinds(Answered(1, "x", "XLEN", 1), Answered(2, "x", "XLEN", 2)) == ["diverged"]
    assert kinds(Answered(1, "x", "XLEN", 1), Answered(2, "x", "XLEN", 1)) == []
    assert kinds(Answered(2, "x", "last-generated-id", "1-1")) == ["diverged"]


def test_diverged_is_a_group_that_lives_though_a_deletion_had_not_been_heard_of_where_it_was_made() -> None:
    apart = (Made(1, "x", "g"), Destroyed(1, "x"), Made(2, "x", "g"))
    alive = (Answered(1, "x", GROUPS, ["g"]), Answered(2, "x", GROUPS, ["g"]))
    gone = (Answered(1, "x", GROUPS, []), Answered(2, "x", GROUPS, []))
    assert kinds(*apart, *alive) == ["diverged"]
    assert kinds(*apart, *gone) == []
    heard = (Made(1, "x", "g"), Destroyed(1, "x"), Noted(1, "x", 1), Told(2, "x", 1), Made(2, "x", "g"))
    assert kinds(*heard, *alive) == []
    assert kinds(*heard, *gone) == ["diverged"]
    first, next_one = (Destroyed(region, "x", deadline="1 100") for region in (1, 2))
    assert kinds(first, Made(1, "x", "g"), next_one, *alive) == []
    assert kinds(first, Made(2, "x", "g"), next_one, *gone) == []


def test_the_later_of_two_deadlines_that_were_set_apart_stands_for_both() -> None:
    early, late = Destroyed(1, "x", deadline="1 100"), Destroyed(2, "x", deadline="1 200")
    alive = (Answered(1, "x", GROUPS, ["g"]), Answered(2, "x", GROUPS, ["g"]))
    gone = (Answered(1, "x", GROUPS, []), Answered(2, "x", GROUPS, []))
    assert kinds(early, late, Made(2, "x", "g"), *alive) == []
    assert kinds(early, late, Made(1, "x", "g"), *gone) == []
    next_one = Destroyed(1, "x", deadline="2 150")
    assert kinds(late, Made(2, "x", "g"), next_one, *gone) == []


def test_diverged_is_a_group_that_gives_again_what_was_acknowledged_without_a_gap() -> None:
    start = (added(ONE, TWO), saw(1, ONE, TWO), Made(1, "x", "g"))
    both = Acked(1, "x", "g", frozenset([(1, 1), (2, 1)]))
    second = Acked(1, "x", "g", frozenset([(2, 1)]))
    assert kinds(*start, both, Left(2, "x", "g", frozenset([(1, 1)]))) == ["diverged"]
    assert kinds(*start, second, Left(2, "x", "g", frozenset([(1, 1), (2, 1)]))) == []


def test_all_six_have_a_name() -> None:
    assert sorted(ANOMALIES) == [
        "acausal",
        "diverged",
        "duplicated",
        "lost",
        "reordered",
        "resurrected",
        "skipped",
    ]
