"""A peer that answers oddly cannot keep a link busy for ever."""

import asyncio

import pytest

from braidstream.engine.address import parse_address
from braidstream.errors import ReplyError
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.gate import Durability, NodeGate
from braidstream.replication.link.stream_state import read_state


def test_a_peer_that_names_another_strand_each_time_is_asked_a_few_times() -> None:
    def ask() -> None:
        plan = read_state(b"m", [], [])
        next(plan)
        for number in range(1, 100):
            plan.send([[[b"s%d" % number, b"1:+:0-0"], [None] * (number - 1), 0]])

    with pytest.raises(ReplyError, match="kept changing"):
        ask()


def test_links_are_not_held_any_more_after_the_operator_chose_not_to_wait() -> None:
    async def held_s() -> tuple[float, float]:
        region = Endpoint(parse_address("redis://127.0.0.1:1"))
        gate = NodeGate(region, region.nodes[0], Durability(replicas=1))
        gate._log_held("0 of 1 replicas have what was written")
        await asyncio.sleep(0.01)
        before = gate.held_s
        gate.want(Durability())
        return before, gate.held_s

    before, after = asyncio.run(held_s())
    assert (before > 0, after) == (True, 0.0)
