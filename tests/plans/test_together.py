"""Several plans that share round trips."""

from typing import Any

import pytest

from braidstream.errors import ReplyError
from braidstream.plan.plan import Batch, Plan, Replies, run, together


def asks(*steps: Any) -> Plan[list[Any]]:
    """Sends each step; returns all replies."""
    found = list[Any]()
    for step in steps:
        found += yield step if isinstance(step, Batch) else Batch([(step,)])
    return found


class Sends:
    """Replies with each command's name, or an error for those that begin with `-`."""

    def __init__(self) -> None:
        self.trips = list[list[str]]()

    def __call__(self, batch: Batch) -> Replies:
        self.trips.append([str(command[0]) for command in batch.commands])
        return [ReplyError(f"ERR {name}") if name.startswith("-") else name for name in self.trips[-1]]


def test_as_many_round_trips_as_the_longest_plan_needs() -> None:
    sends, several = Sends(), Batch([("d",), ("e",)])
    plans = [asks("a", "b"), asks(several, "f", "g"), asks()]
    assert run(together(plans), sends) == [["a", "b"], ["d", "e", "f", "g"], []]
    assert sends.trips == [["a", "d", "e"], ["b", "f"], ["g"]]


def test_what_waits_and_a_multi_are_sent_alone() -> None:
    sends = Sends()
    plans = [asks("a", "b"), asks(Batch([("m",)], atomic=True)), asks(Batch([("w",)], block_ms=5), "z")]
    assert run(together(plans), sends) == [["a", "b"], ["m"], ["w", "z"]]
    assert sends.trips == [["m"], ["w"], ["a", "z"], ["b"]]


def test_all_are_tried_before_the_first_error_is_raised() -> None:
    sends, done = Sends(), list[str]()

    def recovers() -> Plan[None]:
        try:
            yield Batch([("-caught",)])
        except ReplyError:
            done.append(str((yield Batch([("-value",)], attempt=True))[0]))

    with pytest.raises(ReplyError, match="-first"):
        run(together([recovers(), asks("a", "-first"), asks("-second"), asks("b", "c")]), sends)
    assert (done, sends.trips[-1]) == (["ERR -value"], ["-value", "-first", "c"])
