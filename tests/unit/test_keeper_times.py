"""When the keeper of a consumer looks again: never at once, if there is nothing to do until an event."""

import time
from typing import Any

import braidstream

NOW = time.monotonic() + 1_000_000.0  # this module is imported long before its tests run
FIELDS = [b"order", b"1"]


def consumer(**options: Any) -> braidstream.Consumer:
    """One that is not connected, at a time when its next claim and beat are in the past."""
    made = braidstream.Consumer(braidstream.Redis(), "orders", group="billing", **options)
    made.hand.after_beat(NOW)
    return made


def test_while_it_stops_it_does_not_wait_for_the_claim_that_it_will_not_do() -> None:
    one = consumer(claim_after=60)
    assert one.next_time(NOW) == NOW
    one.hand.is_stopping = True
    assert one.next_time(NOW) == NOW + 20


def test_while_it_stops_it_looks_again_when_the_time_of_handlers_is_over() -> None:
    one = consumer(claim_after=60, stop_timeout=3)
    began = time.monotonic()
    one.hand.claims.done(began, has_more=False)
    one.hand.after_beat(began)
    one.stop()
    assert one.next_time(began) == began, "nothing is left to do"
    one.hand.taken(b"orders", [[b"1-1", FIELDS]], began)
    one.hand.fresh.popleft()
    one.hand.is_stopping = True
    assert began + 3 <= one.next_time(began) <= time.monotonic() + 3


def test_a_part_of_a_batch_waits_for_its_time_and_then_for_a_handler() -> None:
    one = consumer(claim_after=60, batch=2, batch_wait=0.5, concurrency=1)
    one.hand.claims.done(NOW, has_more=False)
    one.hand.taken(b"orders", [[b"1-1", FIELDS]], NOW)
    assert one.next_time(NOW) == NOW + 0.5
    [_] = one.hand.next_work(NOW + 0.5)
    one.hand.taken(b"orders", [[b"2-1", FIELDS]], NOW + 0.5)
    assert one.hand.next_work(NOW + 1.5) == []
    assert one.next_time(NOW + 1.5) > NOW + 1.5


def test_after_a_lost_reply_it_waits_for_the_read_that_still_runs() -> None:
    one = consumer(claim_after=60)
    one.hand.unreached(NOW)
    assert one.next_time(NOW) == NOW
    one.is_reading = True
    assert not one.may_turn(NOW)
    assert one.next_time(NOW) > NOW
