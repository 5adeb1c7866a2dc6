"""A bundle: the new entries of many streams, few of each, read in one exchange and sent in one.

    source   entries of a, registry of a, entries of b, registry of b, ...
    target   append to a, append to b, ...       each call has its own guard, and is refused on its own

The work for a stream costs a fraction of what it costs alone. What is out of the ordinary goes alone: many
entries or large ones, a registry that has changed, a stream with several strands of this region, or one that
another task is sending or waits to send.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from braidstream.errors import ReplyError
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.flow import Flow, Window
from braidstream.replication.pages import Pages, Place
from braidstream.replication.ship import BATCH_BYTES, Parsed


class Parcel(NamedTuple):
    """Entries of one stream, which follow the ID `after`."""

    flow: Flow
    strand: Strand
    after: Id
    part: Parsed


async def send_bundle(
    flows: Iterable[Flow], pages: Pages, target: PlanRunner, window: Window
) -> dict[bytes, int]:
    """Send new entries; they are in flight when it returns. Returns how many, by stream.

    Streams that must go alone are not in the result.
    """
    held = list[tuple[Flow, Place]]()
    try:
        for flow in flows:
            if (place := flow.next_place()) is not None:
                await flow.lock.acquire()  # at once: it is free if there is a place
                held.append((flow, place))
        if not held:
            return {}
        answers = await pages.read_few(place for _, place in held)
        sent, parcels = dict[bytes, int](), list[Parcel]()
        for flow, place in held:
            answer = answers.get(place)
            part = None if answer is None else flow.part_of(place, answer)
            if part is None:
                continue
            strand, after = place
            sent[strand.name] = len(part)
            if len(part):
                parcels.append(Parcel(flow, strand, after, part))
        for some in split(parcels):
            size = sum(parcel.part.size for parcel in some)
            await window.enter(size)
            _send(some, target, window, size)
        return sent
    finally:
        for flow, _ in held:
            flow.lock.release()


def split(parcels: Iterable[Parcel]) -> Iterator[list[Parcel]]:
    """What is sent in one exchange: up to BATCH_BYTES, as for a batch of one stream.

    The window lets small batches pass larger ones. A larger one would wait for the end of any catch-up.
    """
    some, size = list[Parcel](), 0
    for parcel in parcels:
        if some and size + parcel.part.size > BATCH_BYTES:
            yield some
            some, size = [], 0
        some.append(parcel)
        size += parcel.part.size
    if some:
        yield some


def _send(parcels: list[Parcel], target: PlanRunner, window: Window, size: int) -> None:
    async def send() -> list[int | ReplyError]:
        try:
            return await target.run(_append(parcels))
        finally:
            await window.leave(size)

    task = asyncio.ensure_future(send())
    task.add_done_callback(partial(_arrived, parcels))
    for parcel in parcels:
        parcel.flow.sent_by(task, parcel.strand, parcel.part)


def _append(parcels: list[Parcel]) -> Plan[list[int | ReplyError]]:
    """Returns for each stream how many entries were appended, or its error."""
    commands = [part.command(strand, after, flow.there) for flow, strand, after, part in parcels]
    replies = yield Batch(commands, attempt=True)
    return [reply if isinstance(reply, ReplyError) else int(reply) for reply in replies]


def _arrived(parcels: list[Parcel], task: "asyncio.Task[list[int | ReplyError]]") -> None:
    error = ReplyError("BSMOVED the link was stopped") if task.cancelled() else task.exception()
    replies: Sequence[int | BaseException] = task.result() if error is None else [error] * len(parcels)
    for parcel, reply in zip(parcels, replies, strict=True):
        parcel.flow.arrived_by(task, parcel.strand, parcel.part, reply)
