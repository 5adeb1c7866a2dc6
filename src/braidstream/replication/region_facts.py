"""Which region an engine is and who its peers are; the fence of a region that lost its data.

Facts of a cluster are a library (lua/cluster_facts.py), which the engine replaces as a whole. So that two
changes at once do not undo each other, a change holds a lock for a moment; if a failover loses the lock, the
facts of all nodes are joined, and each change looks again whether it was stored. A node that was added, that
missed a change, or that came back empty gets the functions and facts of the others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

from braidstream.engine.connection import Connection
from braidstream.errors import BraidError, ConfigError, LostError, NotARegionError, ReplyError
from braidstream.lua import installed
from braidstream.lua.cluster_facts import (
    Facts,
    load_libraries,
    numbers,
    put_facts,
    read_facts,
    read_libraries,
    with_numbers,
    with_topology,
)
from braidstream.model.fields import ConfigField
from braidstream.model.keys import FACTS_LOCK
from braidstream.model.region import Region
from braidstream.observability.events import emit
from braidstream.operations.membership import (
    agreed_facts,
    check_id_mode,
    meet,
    note_marked,
    part,
    refuse_other_regions,
    set_fence,
    tune_id_mode,
)
from braidstream.plan.cache import REGION_FRESH_S
from braidstream.plan.lookup import read_ms, read_node, read_region
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import Retries
from braidstream.replication.endpoint import Endpoint, Node, is_away

T = TypeVar("T")

# How long a change holds the key at most. It is given up after half of that; another one waits twice as long.
LOCK_S: Final = 10
_PAUSE_S: Final = 0.05
# How long a daemon waits for a primary that may hang, and for a peer, while others answer.
WITHIN_S: Final = 1.0
# How often the facts of all primaries are compared, also if none of them was lost.
COMPARE_S: Final = 30.0
# Within this time clients know of a change of their region.
AWARE_S: Final = 2 * REGION_FRESH_S


async def region_of(engine: Endpoint) -> Region:
    """Which region an engine is. Of a cluster: the newest facts, and the oldest functions of its nodes."""
    if not engine.is_cluster:
        return await engine.run(read_region())
    found = await ask_nodes(engine, read_node)
    regions = [each[0] for each in found if not isinstance(each, BaseException)]
    if not regions:
        fault = next((each for each in found if isinstance(each, BaseException)), None)
        raise fault or LostError(str(engine.address), "not connected", wrote=False)
    refuse_other_regions(f"region {region.id} ({region.name})" for region in regions)
    newest = max(regions, key=lambda region: region.topology)
    return replace(newest, library=min(region.library for region in regions))


async def ask_nodes(cluster: Endpoint, make: Callable[[], Plan[T]]) -> Sequence[T | BaseException]:
    """What the connected primaries answer to a plan. One that hangs is left out after WITHIN_S, if another
    one has answered."""
    asked = [asyncio.ensure_future(node.run(make())) for node in _connected(cluster)]
    if not asked:
        return []
    try:
        ended, left = await asyncio.wait(asked, timeout=WITHIN_S)
        while left and all(each.exception() for each in ended):
            ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        return [each.exception() or each.result() for each in asked if each.done()]
    finally:
        for each in asked:
            each.cancel()


async def meet_region(engine: Endpoint, writers: Iterable[int]) -> Region:
    """Add writers to a region. Writes nothing if it has them already."""
    wanted = {*writers}
    if not engine.is_cluster:
        return await engine.run(meet(wanted))
    known = await region_of(engine)
    if wanted.issubset(known.everyone):
        return known
    now_ms = await engine.run(read_ms())
    return await change_facts(engine, lambda facts: _with_writers(facts, wanted, set(), now_ms))


async def await_journal(engine: Endpoint, region: Region) -> None:
    """Wait until clients of a region that got its first peer write a journal. Before that, what they delete
    would not be deleted in the peer."""
    if region.met_ms:
        pause_s = AWARE_S - (await engine.run(read_ms()) - region.met_ms) / 1000
        await asyncio.sleep(min(max(pause_s, 0.0), AWARE_S))


async def meet_everywhere(engine: Endpoint, writers: Iterable[int]) -> Region:
    """`meet_region` for a command: an error unless every primary has them, also after an attempt that was
    broken off. A daemon need not wait for that: `Completion`."""
    region = await meet_region(engine, writers)
    if engine.is_cluster:
        await _share_facts(engine, engine.nodes)
    return region


async def part_region(engine: Endpoint, writers: Iterable[int]) -> Region:
    """Mark writers as gone for good. Their entries stay."""
    gone = {*writers}
    if not engine.is_cluster:
        return await engine.run(part(gone))
    known = await region_of(engine)
    if known.writer in gone:
        raise BraidError(
            f"this is region {known.id} ({known.name}) itself. Run it with the file of the others."
        )
    return await change_facts(engine, lambda facts: _with_writers(facts, set(), gone))


async def set_id_mode(engine: Endpoint, mode: str) -> Region:
    """Which IDs XADD accepts. Running clients follow within a second."""
    if not engine.is_cluster:
        return await engine.run(tune_id_mode(mode))
    check_id_mode(mode)
    return await change_facts(engine, lambda facts: {**facts, ConfigField.ID_MODE: mode.encode()})


async def note_adoption(engine: Endpoint) -> None:
    """Before native streams of a cluster are adopted. On one server the plan does it."""
    if engine.is_cluster and not (await region_of(engine)).adopted:
        await change_facts(engine, lambda facts: {**facts, ConfigField.ADOPTED: b"1"})


async def change_facts(
    cluster: Endpoint, change: Callable[[Facts], Facts], nodes: Sequence[Node] | None = None
) -> Region:
    """Change the facts on every primary, and look whether all of them have the change. All of them must
    answer: one that does not would keep the old.

    change: called again if another change came in between.
    nodes: only these, for a change that only copies.
    """
    retries = Retries("others kept changing the facts about this region. Try again.", error=BraidError)
    async with _alone(cluster):
        nodes = cluster.nodes if nodes is None else nodes
        while True:
            retries.count()
            found = [await node.run(read_facts()) for node in nodes]
            known = agreed_facts([facts for facts in found if facts is not None])
            if known is None:
                raise NotARegionError
            wanted = with_topology(known, change(known))
            if all(facts == wanted for facts in found):
                break
            for node in nodes:
                await node.run(put_facts(wanted))
    return await region_of(cluster)


class Completion:
    """`look` is called again and again. It gives what a region needs to primaries that lack it: that were
    added, missed a change, or came back empty."""

    def __init__(self, source: Endpoint) -> None:
        self._source = source
        self._done: list[Connection | None] = []
        self._done_s = 0.0
        self._refusal = ""

    async def look(self) -> None:
        if not self._source.is_cluster:
            return
        clock, nodes = asyncio.get_running_loop().time, _connected(self._source)
        conns = [node.conn for node in nodes]  # a new connection: it may be another process
        if conns == self._done and clock() - self._done_s < COMPARE_S:
            return
        try:
            done = await _complete_nodes(self._source, nodes)
        except (ReplyError, ConfigError) as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                emit("node.incomplete", why=error)
            return
        if done:
            self._done, self._done_s, self._refusal = conns, clock(), ""


async def _complete_nodes(cluster: Endpoint, nodes: Sequence[Node]) -> bool:
    """Give the functions and the newest facts to primaries that lack them. False if one cannot answer now,
    for example because it loads its data: the others do not wait for it."""
    whole, lacking = list[Node](), list[Node]()
    for node in nodes:
        try:
            (whole if await node.run(installed()) else lacking).append(node)
        except ReplyError as error:
            if not is_away(error):
                raise
    if lacking and whole:
        texts = await whole[0].run(read_libraries())
        for node in lacking:
            await node.run(load_libraries(texts))
    await _share_facts(cluster, whole + lacking)
    return len(whole + lacking) == len(nodes)


async def _share_facts(cluster: Endpoint, nodes: Sequence[Node]) -> None:
    """Give the facts of all to those of the nodes that have others."""
    facts = [await node.run(read_facts()) for node in nodes]
    if any(each != facts[0] for each in facts):
        await change_facts(cluster, lambda known: known, nodes)


def _connected(cluster: Endpoint) -> list[Node]:
    return [node for node in cluster.nodes if node.connected]


def _with_writers(facts: Facts, come: set[int], gone: set[int], now_ms: int = 0) -> Facts:
    """Those that left stay away. now_ms: noted if these are the first peers."""
    left = numbers(facts, ConfigField.LEFT) | gone
    known = numbers(facts, ConfigField.WRITERS)
    met = {ConfigField.MET: b"%d" % now_ms} if len(known) < 2 and now_ms else {}
    return with_numbers(facts, (known | come) - left, left) | met


@asynccontextmanager
async def _alone(cluster: Endpoint) -> AsyncIterator[None]:
    """Hold the key. It expires if this process is killed, so a change that takes long is given up before."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    until_s = began_s + 2 * LOCK_S
    while await cluster.run(send_one(("SET", FACTS_LOCK, 1, "NX", "EX", LOCK_S))) is None:
        if clock() > until_s:
            raise BraidError("others keep changing the facts about this region. Try again.")
        await asyncio.sleep(_PAUSE_S)
        began_s = clock()
    ends_s = began_s + LOCK_S / 2
    try:
        async with asyncio.timeout_at(ends_s):
            yield
    except TimeoutError:
        raise BraidError(
            "a primary of this cluster answers too slowly to change its facts. Try again."
        ) from None
    finally:
        if clock() < ends_s:  # else another process may get it soon
            await cluster.send(Batch([("DEL", FACTS_LOCK)], attempt=True))


# ----------------------------------------------------------------------------------------------------
#
# The fence of a region that lost its data: it refuses clients until `braid region rejoin` has restored it.
#
# Running clients follow within a second. Of one server the fence is a field of `bs:config`, of a cluster
# one of the facts on every primary.


async def put_up(region: Endpoint) -> Region:
    """If there is a fence already, it says whether the region was empty. So it stays as it is."""
    if region.is_cluster:
        return await change_facts(region, lambda facts: {ConfigField.FENCED: b"1", **facts})
    return await region.run(set_fence(True))


async def note_all_marked(region: Endpoint) -> None:
    """What clients wrote to an empty region is marked. Everything that comes now is restored."""
    if region.is_cluster:
        await change_facts(region, lambda facts: {**facts, ConfigField.FENCED: b"1"})
    else:
        await region.run(note_marked())


async def take_down(region: Endpoint) -> None:
    if region.is_cluster:
        await change_facts(region, _without_fence)
    else:
        await region.run(set_fence(False))


def _without_fence(facts: Facts) -> Facts:
    return {name: value for name, value in facts.items() if name != ConfigField.FENCED}
