"""A bundle: the new entries of many streams, few of each, read in one exchange and sent in one.

    source   entries of a, registry of a, entries of b, registry of b, ...
    target   append to a, append to b, ...       each call has its own guard, and is refused on its own

The work for a stream costs a fraction of what it costs alone. What is out of the ordinary goes alone: many
entries or large ones, a registry that has changed, a stream that is just being sent or compared.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from braidstream.errors import ReplyError
from braidstream.model.command import Command
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.flow import Flow, Window
from braidstream.replication.pages import Pages, Place
from braidstream.replication.ship import Parsed


class _Parcel(NamedTuple):
    """Entries of one stream."""

    flow: Flow
    strand: Strand
    part: Parsed


async def send_bundle(
    flows: Iterable[Flow], pages: Pages, target: PlanRunner, window: Window
) -> dict[int, int]:
    """Send new entries; they are in flight when it returns. Returns how many, by the flow's id().

    Without those that must go alone.
    """
    held = list[tuple[Flow, Place]]()
    try:
        for flow in flows:
            if (place := flow.next_place()) is not None:
                await flow.lock.acquire()  # without a wait: nobody has it
                held.append((flow, place))
        if not held:
            return {}
        answers = await pages.read_few(place for _, place in held)
        sent, parcels, commands = dict[int, int](), list[_Parcel](), list[Command]()
        for flow, place in held:
            answer = answers.get(place)
            part = None if answer is None else flow.part_of(place, answer)
            if part is None:
                continue
            sent[id(flow)] = len(part)
            if len(part):
                parcels.append(_Parcel(flow, place[0], part))
                commands.append(part.command(*place, flow.there))
        if parcels:
            size = sum(parcel.part.size for parcel in parcels)
            await window.enter(size)
            _send(parcels, _append(commands), target, window, size)
        return sent
    finally:
        for flow, _ in held:
            flow.lock.release()


def _send(
    parcels: list[_Parcel], plan: Plan[list[Any]], target: PlanRunner, window: Window, size: int
) -> None:
    async def send() -> list[Any]:
        try:
            return await target.run(plan)
        finally:
            await window.leave(size)

    task = asyncio.ensure_future(send())
    task.add_done_callback(partial(_arrived, parcels))
    for flow, strand, part in parcels:
        flow.sent_by(task, strand, part)


def _append(commands: Sequence[Command]) -> Plan[list[Any]]:
    """Returns how many entries each of them has appended, or its error."""
    return (yield Batch(commands, attempt=True))


def _arrived(parcels: list[_Parcel], task: "asyncio.Task[list[Any]]") -> None:
    error = ReplyError("BSMOVED the link was stopped") if task.cancelled() else task.exception()
    replies = task.result() if error is None else repeat(error)
    for (flow, strand, part), reply in zip(parcels, replies, strict=False):
        flow.arrived_by(task, strand, part, reply)
