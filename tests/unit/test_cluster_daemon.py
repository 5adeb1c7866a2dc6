"""What a daemon does with nodes of a cluster that fail in odd ways. Without servers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.slots import SLOTS
from braidstream.engine.address import parse_address
from braidstream.errors import LostError, ReplyError
from braidstream.model import keys
from braidstream.model.region import Region
from braidstream.plan.plan import Batch, Plan, Replies, arun, send_one
from braidstream.replication.daemon.leases import Leases
from braidstream.replication.daemon.queue import Need, Queue
from braidstream.replication.daemon.reporting import FileState, report
from braidstream.replication.detect.feed import Feed, Feeds
from braidstream.replication.detect.sweep import Changes, Values
from braidstream.replication.endpoint import Endpoint, Node
from braidstream.replication.gate import Durability, Gate, NodeGate
from braidstream.replication.link.region_link import RegionLink, Side, directly
from braidstream.replication.region_facts import Completion

T = TypeVar("T")
CLUSTER = parse_address("redis://127.0.0.1:1")
LOADING = ReplyError("LOADING Redis is loading the dataset in memory")


class Primary(Node):
    """A connected primary. `answer` has the reply to each command; an error is raised when it connects."""

    def __init__(self, answer: Callable[[Any], Any], *errors: Exception) -> None:
        super().__init__(CLUSTER)
        self.answer, self.errors = answer, [*errors]
        self.is_up = asyncio.Event()
        self.is_up.set()

    @property
    def connected(self) -> bool:
        return True

    async def connect(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.is_up.set()

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self.send)

    async def send(self, batch: Batch) -> Replies:
        replies = [self.answer(command) for command in batch.commands]
        for reply in replies:
            if isinstance(reply, LostError):
                raise reply
        return replies


def unread() -> Endpoint:
    """A cluster whose map was not read."""
    cluster = Endpoint(CLUSTER)
    cluster._only = None
    return cluster


def cluster_of(**nodes: Primary) -> Endpoint:
    """A cluster in which each node serves the slot of the key that it is named after, and no other."""
    cluster = unread()
    for port, (key, node) in enumerate(nodes.items(), 1):
        node.address = replace(CLUSTER, port=port)
        cluster._nodes[node.address.place] = node
        cluster.slots.note_moved(slot_of(key), node.address.place)
    return cluster


def learning(epoch: int, **nodes: Primary) -> Endpoint:
    """A cluster that has read a map with this epoch, in which each node serves a slot."""
    cluster = cluster_of(**nodes)
    cluster.slots._epoch = epoch
    return cluster


async def learn(cluster: Endpoint) -> list[int]:
    """The ports of the nodes, after the map was read again."""
    await cluster.slots.read_now()
    return sorted(node.address.port for node in cluster.nodes)


def map_of(epoch: int, *ports: int) -> Callable[[Any], Any]:
    """A node that knows a map in which these primaries share the slots."""
    width = 16_384 // len(ports)
    slots = [[at * width, (at + 1) * width - 1, [b"127.0.0.1", port]] for at, port in enumerate(ports)]
    info = b"cluster_state:ok\r\ncluster_current_epoch:%d\r\n" % epoch
    return lambda command: {"SLOTS": slots, "INFO": info}[command[1]]


def test_a_slot_that_no_node_serves_leaves_the_other_replies() -> None:
    async def scenario() -> None:
        cluster = cluster_of(a=Primary(lambda command: b"value"))
        reads = [("GET", "a"), ("GET", "b")]
        found, lost = await cluster.send(Batch(reads, resend=True, attempt=True))
        assert (found, lost.code) == (b"value", "LOST")
        [lost] = await cluster.send(Batch(reads[1:], resend=True, attempt=True))
        assert lost.code == "LOST"
        with pytest.raises(LostError, match="no node serves slot"):
            await cluster.run(send_one(reads[1]))

    asyncio.run(scenario())


def test_the_map_of_a_primary_that_was_cut_off_is_not_taken() -> None:
    async def scenario() -> None:
        stale, fresh = Primary(map_of(3, 1, 2)), Primary(map_of(4, 3, 2))
        for _ in range(20):  # it asks them in a random order
            cluster = learning(4, a=stale, b=fresh)
            assert await learn(cluster) == [2, 3]
        cluster = learning(4, a=stale, b=fresh)
        fresh.answer = map_of(1, 1, 2)  # the cluster was made anew
        stale.answer = map_of(2, 2, 4)
        assert await learn(cluster) == [2, 4]

    asyncio.run(scenario())


def test_an_older_map_is_taken_only_when_no_node_has_known_a_newer_one_for_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        restarts = Primary(lambda command: ReplyError("LOADING Redis is loading the dataset in memory"))
        cluster = learning(4, a=Primary(map_of(3, 1, 4)), b=restarts)
        for _ in range(3):
            assert await learn(cluster) == [1, 2]
        monkeypatch.setattr("braidstream.clusters.slots.OLDER_S", 0.0)
        assert await learn(cluster) == [1, 4]

    asyncio.run(scenario())


def test_a_map_without_an_epoch_is_read() -> None:
    async def scenario() -> None:
        slots = [[0, 16_383, [b"127.0.0.1", 2]]]
        proxied = Primary(lambda command: slots if command[1] == "SLOTS" else b"cluster_state:ok\r\n")
        assert await learn(cluster_of(a=proxied)) == [2]

    asyncio.run(scenario())


def test_a_primary_that_loads_its_data_stops_only_its_own_streams() -> None:
    """No stream of it is logged as refused."""

    async def scenario() -> None:
        here = Region(1, "us-east", 1)
        region = cluster_of(a=Primary(lambda command: LOADING))
        link = RegionLink(Side(region, directly), Side(region, directly), here=here, there=here)
        assert link.goes_on(b"a", LOADING)
        assert not link.goes_on(b"a", ReplyError("NOPERM no"))

    asyncio.run(scenario())


def test_a_primary_that_loads_its_data_does_not_keep_functions_from_others() -> None:
    loaded = list[Any]()

    def whole(command: Any) -> Any:
        if command[:2] == ("FUNCTION", "LIST"):
            return [[b"library_code", b"functions"], [b"library_code", b"facts"]]
        return {"bs_version": 24, "bs_region": [b"region", b"1"]}[command[1]]

    def lacking(command: Any) -> Any:
        if command[:2] == ("FUNCTION", "LOAD"):
            loaded.append(command[-1])
            return b"OK"
        return whole(command) if loaded else ReplyError("ERR Function not found")

    async def scenario() -> None:
        loads, first, second = (Primary(answer) for answer in (lambda _: LOADING, whole, lacking))
        completion = Completion(cluster_of(a=loads, b=first, c=second))
        await completion.look()

    asyncio.run(scenario())
    assert loaded == ["functions", "facts"]


def test_a_node_is_connected_again_after_an_unexpected_error() -> None:
    async def scenario() -> None:
        node = Primary(map_of(1, 1), UnicodeError("label too long"))
        node.is_up.clear()
        cluster = cluster_of(a=node)
        watch = asyncio.ensure_future(cluster.watch())
        async with asyncio.timeout(10):
            await node.is_up.wait()
        watch.cancel()

    asyncio.run(scenario())


def test_a_feed_begins_again_after_an_unexpected_error() -> None:
    class Odd(Feed):
        async def run(self) -> None:
            if began.is_set():
                again.set()
                await asyncio.Event().wait()
            began.set()
            raise ValueError("odd reply")

    def make(node: Node) -> Feed:
        return Odd(node.address, (1, ()), lambda name, more: None, lambda strand: None, lambda: None)

    began, again = asyncio.Event(), asyncio.Event()

    async def scenario() -> None:
        listening = asyncio.ensure_future(Feeds(cluster_of(a=Primary(lambda command: None)), make).run())
        async with asyncio.timeout(10):
            await again.wait()
        listening.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("error", ["CLUSTERDOWN The cluster is down", "LOADING", "BUSY", "LOST"])
def test_what_a_server_could_not_answer_is_read_again(error: str) -> None:
    replies: dict[Any, list[Any]] = {
        ("HGET", b"bs:meta:{a}", b"x"): [b"7"],
        ("HGET", b"bs:meta:{b}", b"x"): [b"8", ReplyError(error)],
    }
    seen = list[dict[bytes, Values]]()

    async def read(found: dict[bytes, Values]) -> None:
        seen.append(found)

    async def scenario() -> None:
        def answer(command: Any) -> Any:
            return [b"0", []] if command[0] == "SCAN" else replies[command].pop()

        server = Endpoint(CLUSTER)
        server._only = Primary(answer)
        changes = Changes(server)
        look: Callable[[], Awaitable[None]] = changes.serve((b"x",), read)
        changes.add(b"a")
        changes.add(b"b")
        await look()
        await look()
        await look()

    asyncio.run(scenario())
    assert seen == [{b"a": (b"7",)}, {b"b": (b"8",)}]


def test_all_streams_of_the_other_nodes_are_read_while_one_is_lost() -> None:
    lost = LostError("127.0.0.1:1", "not connected", wrote=False)
    seen = list[bytes]()

    async def read(found: dict[bytes, Values]) -> None:
        seen.extend(found)

    async def scenario() -> None:
        def answer(command: Any) -> Any:
            return [b"0", [b"bs:meta:{b}"]] if command[0] == "SCAN" else None

        changes = Changes(cluster_of(a=Primary(lambda command: lost), b=Primary(answer)))
        await changes.serve((b"x",), read)()

    asyncio.run(scenario())
    assert seen == [b"b"]


def test_a_relay_that_is_tried_again_later_does_not_hold_up_a_sweep() -> None:
    async def scenario() -> None:
        queue = Queue()
        queue.add(b"a", Need.RELAY)
        queue.add(b"b", Need.SYNC)
        queue.add(b"b", Need.RELAY)
        assert queue.relays == 2
        name, need = await queue.take()
        queue.add(name, need, 5.0)
        queue.done(name)
        assert queue.relays == 1
        queue.add(name, Need.RELAY)
        assert queue.relays == 2
        await queue.take()
        await queue.take()
        assert queue.relays == 0

    asyncio.run(scenario())


def test_a_mark_of_the_gate_that_was_deleted_at_once_is_set_again() -> None:
    class Conn:
        async def send(self, batch: Batch) -> Replies:
            return [b"OK", 0, 1]

    async def scenario() -> None:
        node = Primary(lambda command: None)
        cluster = cluster_of(a=node)
        cluster.slots._owners = [node.address.place] * SLOTS
        gate = NodeGate(cluster, node, Durability(1))
        why = await gate._missing(Conn(), ("WAIT", 1, 1), Durability(1))  # type: ignore[arg-type]
        assert "was deleted" in why

    asyncio.run(scenario())


def test_a_daemon_serves_all_ranges_while_the_node_of_the_leases_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("braidstream.replication.daemon.leases.LOST_S", 0.2)
    lost = LostError("127.0.0.1:1", "not connected", wrote=False)

    async def scenario() -> None:
        cluster = cluster_of(a=Primary(lambda command: lost))
        cluster.slots._owners = [cluster.nodes[0].address.place] * SLOTS
        leases = Leases(cluster, lambda: None)
        running = asyncio.ensure_future(leases.run())
        async with asyncio.timeout(10):
            await leases.known.wait()
        assert leases.mine(b"orders")
        running.cancel()

    asyncio.run(scenario())


def test_metrics_stay_fresh_while_the_node_of_the_status_is_lost() -> None:
    lost = LostError("127.0.0.1:1", "not connected", wrote=False)

    async def scenario() -> None:
        cluster = cluster_of(a=Primary(lambda command: [b"7", b"0"]), b=Primary(lambda command: lost))
        cluster.slots.note_moved(slot_of(keys.STATUS), cluster.nodes[1].address.place)
        jobs: dict[str, Any] = {"taken": {}, "waits": {}, "retention": {}}
        status = await cluster.run(report(b"daemon", Gate(cluster), [], FileState(), "", **jobs))
        assert status.at_ms == 7_000

    asyncio.run(scenario())
