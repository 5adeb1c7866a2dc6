"""What a bundle must not wait for, and what nobody waits for any more."""

import asyncio
import gc
from typing import TypeVar

from braidstream.engine.address import parse_address
from braidstream.errors import LostError
from braidstream.model import ids, keys
from braidstream.model.strand import Strand
from braidstream.plan.plan import Plan
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.link.batches import BATCH_BYTES, Parsed
from braidstream.replication.link.flow import Flow, Window
from braidstream.replication.link.link import Parcel, split
from braidstream.replication.link.pages import Pages, Source

T = TypeVar("T")
STRAND = Strand(b"s", keys.GENERATED, 1)


def make_flow() -> Flow:
    target = Endpoint(parse_address("redis://127.0.0.1:1"))
    flow = Flow(target, Pages(Source(target)), Window(), home=2)
    flow.start(STRAND, ids.ZERO, width=10)
    return flow


def test_a_stream_for_which_another_task_waits_is_not_in_a_bundle() -> None:
    """Its lock is free for a moment, but the next one to get it is that task."""

    async def story() -> None:
        flow = make_flow()
        place = flow.next_place()
        assert place == (STRAND, ids.ZERO)
        await flow.lock.acquire()
        waits = asyncio.create_task(flow.meet(STRAND, (1, 0), None))
        await asyncio.sleep(0)
        flow.lock.release()
        assert not flow.lock.locked()
        assert flow.next_place() is None
        await waits
        assert flow.next_place() == (STRAND, (1, 0))

    asyncio.run(story())


def test_an_exchange_of_a_bundle_is_no_larger_than_a_batch_of_one_stream() -> None:
    async def story() -> list[list[int]]:
        flow = make_flow()
        third = BATCH_BYTES // 3
        sizes = (third, third, third, third, BATCH_BYTES, 1)
        parcels = [Parcel(flow, STRAND, ids.ZERO, Parsed([], size)) for size in sizes]
        return [[parcel.part.size for parcel in some] for some in split(parcels)]

    third = BATCH_BYTES // 3
    assert asyncio.run(story()) == [[third, third, third], [third], [BATCH_BYTES], [1]]


class Lost:
    """A server that is lost while it is being read."""

    def __init__(self) -> None:
        self.asked, self.gone = asyncio.Event(), asyncio.Event()

    async def run(self, plan: Plan[T]) -> T:
        self.asked.set()
        await self.gone.wait()
        raise LostError("server", "gone", wrote=False)


def test_a_read_that_fails_after_its_link_has_ended_is_not_logged() -> None:
    logged = list[object]()

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        server = Lost()
        link = asyncio.create_task(Pages(Source(server)).read_few([(STRAND, ids.ZERO)]))
        await server.asked.wait()
        link.cancel()
        await asyncio.wait([link])
        server.gone.set()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(story())
    assert not logged
