"""What a consumer has in hand, in cases that depend on the moment."""

import pytest

from braidstream.consumers.handler import Held, Reject, traced
from braidstream.consumers.lifecycle import InHand
from braidstream.consumers.settings import Settings

FIRST, SECOND = b"1-1", b"2-1"


def in_hand(*, prefetch: int, key: str | None = "customer") -> InHand:
    settings = Settings(
        streams=("orders",),
        group="billing",
        name="worker",
        concurrency=4,
        attempts=3,
        dead_letter=None,
        backoff=1.0,
        max_backoff=60.0,
        timeout=None,
        claim_after=30.0,
        prefetch=prefetch,
        key=key,
        batch=None,
        batch_wait=0.0,
        start="0",
        stop_timeout=10.0,
    )
    return InHand(settings, lambda: 0.5, 0.0)


def took(hand: InHand) -> tuple[Held, Held]:
    """Two entries of one key, of which the first may start."""
    hand.taken(b"orders", [[entry, [b"customer", b"7"]] for entry in (FIRST, SECOND)], 0.0)
    first, second = hand.held[b"orders", FIRST], hand.held[b"orders", SECOND]
    assert isinstance(first, Held)
    assert isinstance(second, Held)
    assert hand.lanes is not None
    hand.lanes.saw([first, second], [], 0.0)
    hand.wake(0.0)
    return first, second


def test_an_entry_waits_while_another_consumer_has_the_earlier_one_of_its_key() -> None:
    hand = in_hand(prefetch=100)
    first, second = took(hand)
    [work] = hand.next_work(0.0)
    assert work == [first]
    hand.lost(first)
    hand.finished(work, RuntimeError("too late"), {}, 1.0)
    hand.wake(1.0)
    assert hand.next_work(1.0) == []
    assert hand.lanes is not None
    assert hand.lanes.in_question() == {b"orders": [second]}
    hand.lanes.saw([second], [], 2.0)  # the other consumer has acknowledged it
    hand.wake(2.0)
    assert hand.next_work(2.0) == [[second]]


def test_an_entry_that_waits_for_its_next_attempt_is_lost_and_the_next_of_its_key_waits() -> None:
    hand = in_hand(prefetch=100)
    first, second = took(hand)
    [work] = hand.next_work(0.0)
    hand.finished(work, RuntimeError("again"), {}, 0.0)
    hand.lost(first)
    hand.wake(100.0)
    assert hand.next_work(100.0) == []
    assert hand.countable() == []
    assert second.attempts == 0


def test_what_never_started_is_given_back_without_an_attempt() -> None:
    """With prefetch=0 the engine counts a delivery as an attempt, until it is corrected."""
    hand = in_hand(prefetch=0)
    hand.taken(b"orders", [[FIRST, [b"customer", b"7"]]], 0.0)
    hand.is_stopping = True
    [held] = hand.leftovers()
    assert hand.is_counted_too_much(held)


def took_fresh(hand: InHand, now: float = 0.0) -> None:
    hand.taken(b"orders", [[entry, [b"order", b"7"]] for entry in (FIRST, SECOND)], now)


def test_a_fresh_entry_whose_handler_fails_is_tried_again_like_any_other() -> None:
    hand = in_hand(prefetch=100, key=None)
    took_fresh(hand)
    assert [place for place, _ in hand.fresh] == [(b"orders", FIRST), (b"orders", SECOND)]
    failed, handled = hand.fresh.popleft(), hand.fresh.popleft()
    held = hand.failed_first(failed)
    [failure] = hand.finished([held], ValueError("again"), {}, 1.0)
    assert (failure.delay, held.attempts, hand.running) == (0.75, 1, 1)
    hand.succeeded([handled[0]], 1.0)
    assert (hand.running, hand.done.places) == (0, [(b"orders", SECOND)])
    hand.acknowledged(10)
    hand.wake(2.0)
    assert (list(hand.held), hand.countable()) == ([(b"orders", FIRST)], [held])
    assert hand.counted(held) == [held]
    assert (held.attempts, held.message.attempt) == (2, 2)


def test_fresh_entries_that_others_have_claimed_are_not_started() -> None:
    hand = in_hand(prefetch=100, key=None)
    took_fresh(hand)
    started = hand.fresh.popleft()
    hand.lost_all({(b"orders", FIRST), (b"orders", SECOND)})
    assert (list(hand.fresh), hand.running, list(hand.held)) == ([], 1, [(b"orders", FIRST)])
    held = hand.failed_first(started)
    assert hand.finished([held], ValueError("too late"), {}, 1.0) == []
    assert (hand.running, hand.held, hand.is_idle) == (0, {}, True)


def test_a_lost_entry_that_is_handled_all_the_same_is_acknowledged() -> None:
    hand = in_hand(prefetch=100, key=None)
    took_fresh(hand)
    [(place, _), _] = hand.fresh.popleft(), hand.fresh.popleft()
    hand.lost_all({place})
    hand.succeeded([(b"orders", SECOND), place], 1.0)
    assert (hand.running, hand.done.places) == (0, [(b"orders", SECOND), place])
    hand.acknowledged(10)
    assert hand.held == {}


def test_a_consumer_that_stops_gives_back_what_was_fresh_and_nothing_else() -> None:
    hand = in_hand(prefetch=100, key=None)
    took_fresh(hand)
    started, _ = hand.fresh.popleft()
    hand.is_stopping = True
    hand.withdraw()
    assert [(held.id, hand.is_counted_too_much(held)) for held in hand.leftovers()] == [(SECOND, False)]
    assert hand.running == 1
    hand.taken(b"orders", [[b"3-1", [b"order", b"8"]]], 1.0)  # a read was on its way
    assert not hand.fresh
    assert [held.id for held in hand.leftovers()] == [SECOND, b"3-1"]
    hand.succeeded([started], 1.0)
    hand.acknowledged(10)
    assert hand.is_idle


def test_an_entry_that_is_delivered_twice_is_in_hand_once() -> None:
    """The group was deleted and created again."""
    hand = in_hand(prefetch=100, key=None)
    took_fresh(hand)
    took_fresh(hand)
    assert (len(hand.fresh), hand.running) == (2, 2)


def test_the_lease_of_fresh_entries_is_that_of_the_oldest_until_they_are_extended() -> None:
    hand = in_hand(prefetch=100, key=None)
    hand.taken(b"orders", [[FIRST, [b"order", b"7"]]], 0.0)
    hand.taken(b"orders", [[SECOND, [b"order", b"7"]]], 20.0)
    assert [hand.is_over((b"orders", SECOND), now) for now in (29.0, 30.0)] == [False, True]
    hand.after_beat(25.0)
    assert [hand.is_over((b"orders", SECOND), now) for now in (54.0, 55.0)] == [False, True]


def deeper(left: int) -> None:
    if left:
        deeper(left - 1)
    raise ValueError("x" * 1_000_000)


def test_a_traceback_is_bounded_and_shows_both_ends() -> None:
    with pytest.raises(ValueError, match="x") as failed:
        deeper(500)
    text = traced(failed.value)
    assert len(text) < 4_100
    assert text.startswith("Traceback")
    assert "in deeper" in text


@pytest.mark.parametrize("error", [Reject("no"), ValueError("never raised")])
def test_what_no_code_raised_by_mistake_has_no_traceback(error: Exception) -> None:
    assert traced(error) == ""
