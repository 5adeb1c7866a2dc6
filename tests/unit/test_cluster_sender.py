"""Batches to the nodes of a cluster, over connections that fail. Without servers."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import exceptions

from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.nodes import ClusterSender, Nodes
from braidstream.engine.aio_sender import run_plan
from braidstream.engine.redis_py import NotResentError
from braidstream.plan.plan import Batch, Plan

LOST = exceptions.ConnectionError("closed")
LOADING = exceptions.BusyLoadingError("LOADING")


class Node:
    """A node, and a connection to it."""

    def __init__(self, name: str, *replies: Any) -> None:
        self.name = self.braid_node = name
        self.replies, self.sent, self.is_open = deque(replies), list[Any](), True
        self.socket_timeout = None


class Fake(Nodes):
    """Two or more nodes: of stream `a`, of stream `b`, and others at places. An exception is raised."""

    def __init__(self, one: Node, two: Node, **others: Node) -> None:
        super().__init__(None, lambda conn: None)  # type: ignore[arg-type, return-value]
        self.by_slot: dict[int, Any] = {slot_of(b"a"): one, slot_of(b"b"): two}
        self.others = others

    async def node_of(self, slot: int | None) -> Any:
        found = self.by_slot[slot or slot_of(b"a")]
        if isinstance(found, Exception):
            raise found
        return found

    async def note_moved(self, moved: Any) -> None:
        for error in moved:
            self.by_slot[error.slot_id] = self.others[error.host]

    async def read_map(self) -> None:
        pass

    async def sleep(self, seconds: float) -> None:
        pass

    async def take(self, node: Any) -> Any:
        return node

    def release(self, conn: Any) -> None:
        pass

    async def connect(self, conn: Any, may: bool = True) -> None:
        pass

    async def disconnect(self, conn: Any) -> None:
        conn.is_open = False

    async def send(self, conn: Any, commands: Any) -> None:
        conn.sent += commands

    async def read(self, conn: Any, timeout: float | None) -> Any:
        reply = conn.replies.popleft()
        if isinstance(reply, exceptions.ConnectionError):
            raise reply
        return reply

    async def race(self, conns: list[Any], timeout: float | None, end: Callable[[], Awaitable[None]]) -> Any:
        return [conn.replies.popleft() for conn in conns]


def send(nodes: Fake, home: Node, batch: Batch) -> Any:
    return asyncio.run(run_plan(_once(batch), ClusterSender(nodes, home)))


def _once(batch: Batch) -> Plan[Any]:
    return (yield batch)


APPENDS = Batch([("XADD", "a", "*", "n", "1"), ("XADD", "b", "*", "n", "2")])


@pytest.mark.parametrize("slot_is_gone", [False, True])
def test_a_batch_that_ran_in_one_node_is_not_sent_again(slot_is_gone: bool) -> None:
    moved = exceptions.MovedError(f"{slot_of(b'b')} three:1")
    one, two, three = Node("one", b"1-0"), Node("two", moved), Node("three", LOADING)
    nodes = Fake(one, two, three=three)
    if slot_is_gone:
        nodes.others = {"three": exceptions.SlotNotCoveredError("Slot is not covered")}  # type: ignore[dict-item]
    with pytest.raises(NotResentError):
        send(nodes, one, APPENDS)
    assert len(one.sent) == 1


def test_a_node_that_refuses_a_batch_alone_has_done_nothing_of_it() -> None:
    one = Node("one", LOADING)
    with pytest.raises(exceptions.BusyLoadingError):
        send(Fake(one, Node("two")), one, Batch([("XADD", "a", "*", "n", "1")]))


def test_a_batch_of_which_a_node_ran_a_part_before_it_refused_is_not_sent_again() -> None:
    one = Node("one", b"1-0", LOADING)
    with pytest.raises(NotResentError):
        send(Fake(one, Node("two")), one, Batch([("XADD", "a", "*", "n", "1"), ("XADD", "a", "*", "n", "2")]))


def test_a_multi_that_a_node_refused_before_its_end_has_done_nothing() -> None:
    one = Node("one", b"OK", b"QUEUED", LOADING)
    batch = Batch([("XADD", "a", "*", "n", "1"), ("XADD", "a", "*", "n", "2")], atomic=True)
    with pytest.raises(exceptions.BusyLoadingError):
        send(Fake(one, Node("two")), one, batch)


def test_a_batch_whose_multi_was_refused_is_not_sent_again_after_a_part_of_it_ran() -> None:
    one = Node("one", exceptions.NoPermissionError("no MULTI"), b"1-0", LOADING)
    batch = Batch([("XADD", "a", "*", "n", "1"), ("XADD", "a", "*", "n", "2")], atomic=True)
    with pytest.raises(NotResentError):
        send(Fake(one, Node("two")), one, batch)


PAGE = [[b"b", [[b"1-0", [b"n", b"1"]]]]]


@pytest.mark.parametrize("block_ms", [None, 1000])
def test_entries_of_one_node_are_returned_though_another_is_lost(block_ms: int | None) -> None:
    block = () if block_ms is None else ("BLOCK", block_ms)
    read = ("XREADGROUP", "GROUP", "g", "c", *block, "STREAMS", "a", "b", ">", ">")
    numbers = () if block_ms is None else (7,)
    one, two = Node("one", *numbers, LOST), Node("two", *numbers, PAGE)
    assert send(Fake(one, two), Node("home"), Batch([read], block_ms=block_ms)) == [PAGE]
    assert (one.is_open, two.is_open) == (False, True)
    one, two = Node("one", *numbers, LOST), Node("two", *numbers, None)
    with pytest.raises(NotResentError):
        send(Fake(one, two), Node("home"), Batch([read], block_ms=block_ms))
