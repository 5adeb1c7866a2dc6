"""A plan whose connection is lost: whether its writes may have been applied. Without servers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from braidstream.errors import LostError, ReplyError
from braidstream.plan.plan import Batch, Plan, Replies, arun, run

READ = Batch([("GET", "a")], resend=True)
WRITE = Batch([("INCR", "a")], attempt=True)
OPTIONAL = Batch([("INCR", "a")], attempt=True, optional=True)
Run = Callable[[Plan[Any], Callable[[Batch], Replies]], Any]


def run_async(plan: Plan[Any], send: Callable[[Batch], Replies]) -> Any:
    async def later(batch: Batch) -> Replies:
        return send(batch)

    return asyncio.run(arun(plan, later))


def of(*batches: Batch) -> Plan[None]:
    for batch in batches:
        try:
            yield batch
        except ReplyError:
            assert batch.optional


@pytest.mark.parametrize("way", [run, run_async], ids=["sync", "asyncio"])
@pytest.mark.parametrize(
    ("batches", "replies", "wrote"),
    [
        ([READ, READ], [b"1"], False),
        ([READ, WRITE], [b"1"], True),
        ([WRITE, READ], [1], True),
        ([WRITE, READ], [ReplyError("WRONGTYPE not a number")], False),
        ([WRITE, READ], [ReplyError("OOM"), b"1"], False),
        ([OPTIONAL, READ], [LostError("engine", "gone", wrote=True)], True),
        ([OPTIONAL, READ], [LostError("engine", "gone", wrote=False)], False),
    ],
)
def test_a_lost_plan_says_whether_any_of_its_batches_wrote(
    way: Run, batches: list[Batch], replies: list[Any], wrote: bool
) -> None:
    answers = iter(replies)

    def send(batch: Batch) -> Replies:
        reply = next(answers, None)
        if isinstance(reply, LostError):
            raise reply
        if reply is None:
            raise LostError("engine", "gone", wrote=not batch.resend)
        return [reply]

    with pytest.raises(LostError) as lost:
        way(of(*batches, READ), send)
    assert lost.value.wrote is wrote
