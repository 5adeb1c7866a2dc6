"""When the keeper of a consumer looks again: never at once, if there is nothing to do until an event."""

import time
from typing import Any

import braidstream

NOW = time.monotonic() + 1_000_000.0  # this module is imported long before its tests run
FIELDS = [b"order", b"1"]


def consumer(**options: Any) -> braidstream.Consumer:
    """One that is not connected, at a time when its next claim and beat are in the past."""
    made = braidstream.Consumer(braidstream.Redis(), "orders", group="billing", **options)
    made._hand.after_beat(NOW)
    return made


def test_while_it_stops_it_does_not_wait_for_the_claim_that_it_will_not_do() -> None:
    one = consumer(claim_after=60)
    assert one._next_time(NOW) == NOW
    one._hand.is_stopping = True
    assert one._next_time(NOW) == NOW + 20


def test_while_it_stops_it_looks_again_when_the_time_of_handlers_is_over() -> None:
    one = consumer(claim_after=60, stop_timeout=3)
    began = time.monotonic()
    one._hand.claims.done(began, has_more=False)
    one._hand.after_beat(began)
    one.stop()
    assert one._next_time(began) == began, "nothing is left to do"
    one._hand.taken(b"orders", [[b"1-1", FIELDS]], began)
    one._hand.fresh.popleft()
    one._hand.is_stopping = True
    assert began + 3 <= one._next_time(began) <= time.monotonic() + 3


def test_a_part_of_a_batch_waits_for_its_time_and_then_for_a_handler() -> None:
    one = consumer(claim_after=60, batch=2, batch_wait=0.5, concurrency=1)
    one._hand.claims.done(NOW, has_more=False)
    one._hand.taken(b"orders", [[b"1-1", FIELDS]], NOW)
    assert one._next_time(NOW) == NOW + 0.5
    [_] = one._hand.next_work(NOW + 0.5)
    one._hand.taken(b"orders", [[b"2-1", FIELDS]], NOW + 0.5)
    assert one._hand.next_work(NOW + 1.5) == []
    assert one._next_time(NOW + 1.5) > NOW + 1.5


def test_after_a_lost_reply_it_waits_for_the_read_that_still_runs() -> None:
    one = consumer(claim_after=60)
    one._hand.unreached(NOW)
    assert one._next_time(NOW) == NOW
    one._is_reading = True
    assert not one._may_turn(NOW)
    assert one._next_time(NOW) > NOW
