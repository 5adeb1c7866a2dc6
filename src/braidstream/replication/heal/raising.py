"""Raises home strands above the peers' copies, because a restored server may have lost IDs that it generated.

While the IDs of a region are ahead of its clock (its own was wrong, or a peer's), the engine counts them up:

    home, before    11:00:00.000-7        clock 10:00
    a peer          11:00:00.000-7        with the entries 5 6 7
    home, restored  11:00:00.000-4        would count 5 6 7 once more, for other entries
    home, raised    11:00:00.000-max      goes on with 11:00:00.001-0

Clients wait for it (Region.may_repeat_ids). IDs that are not ahead of the clock need nothing.
Offsets of logs do not follow the clock, so a log always continues after the last offset that a peer has.
Those who write logs wait for it whenever another process serves the region (Region.may_repeat_offsets).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from braidstream.engine.address import Address
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.registry import epochs_of
from braidstream.model.strand import Command, Strand
from braidstream.plan.plan import Batch, Plan, Replies
from braidstream.replication.daemon.peer import check_region
from braidstream.replication.detect.feed import all_streams
from braidstream.replication.endpoint import PEER_REPLY_BYTES, Endpoint, PlanRunner, back_off
from braidstream.replication.link.stream_state import State, parse_state, state_command
from braidstream.replication.region_facts import region_of

# How long to wait for a peer that does not answer, or makes no progress. Clients wait too.
ASKED_WITHIN_S: Final = 5.0
# How often it may take its time again after its connection was lost.
RESTARTS: Final = 3
# How many streams are read in one batch: its replies have a limit together.
AT_ONCE: Final = 100


# Raises above what a region knows; the callback is called with the number of pages.
Raise = Callable[[PlanRunner, Callable[[int], None]], Awaitable[None]]


async def raise_home(source: Endpoint, here: Region, peers: Mapping[str, tuple[int, Address]]) -> list[str]:
    """Raise all home strands. Returns the peers that could not be reached.

    IDs that only those peers have are covered too, if they are in the same millisecond.
    """

    async def all_strands(known_by: PlanRunner, reached: Callable[[int], None]) -> None:
        await raise_above(source, known_by, here.writer, reached)

    await all_strands(source, lambda _: None)
    return await _query_all(source, all_strands, peers)


async def raise_logs(source: Endpoint, here: Region, peers: Mapping[str, tuple[int, Address]]) -> list[str]:
    """The same for logs alone. Peers are not asked if there are none."""
    logs = list[Strand]()
    async for names in all_streams(source):
        homes = await source.run(_all(("HGET", keys.meta(name), MetaField.HOMES) for name in names))
        logs += (
            Strand(name, keys.LOG, epoch.writer, epoch.number)
            for name, text in zip(names, homes, strict=True)
            for epoch in (epochs_of(text) if text else ())
        )
    names = [*dict.fromkeys(log.name for log in logs)]

    async def all_logs(known_by: PlanRunner, reached: Callable[[int], None]) -> None:
        for page, at in enumerate(range(0, len(names), AT_ONCE), 1):
            there = await _look(known_by, [(name, ()) for name in names[at : at + AT_ONCE]])
            own = [log for log in logs if log.writer == here.writer and log.name in names[at : at + AT_ONCE]]
            await _raise_logs(source, known_by, [*dict.fromkeys([*own, *_logs(there, here.writer)])])
            reached(page)

    return await _query_all(source, all_logs, peers) if logs else []


async def _query_all(source: Endpoint, raises: Raise, peers: Mapping[str, tuple[int, Address]]) -> list[str]:
    reached = await asyncio.gather(
        *(_query_any(source, raises, (name, *peer)) for name, peer in peers.items())
    )
    return [name for name, done in zip(peers, reached, strict=True) if not done]


async def _query_any(source: Endpoint, raises: Raise, peer: tuple[str, int, Address]) -> bool:
    """Through the peer's receiver, and straight: its server may answer while its daemon is down."""
    name, number, address = peer
    ways = [address] if address.via is None else [address, address.straight]
    tries = [asyncio.ensure_future(_query(source, raises, (name, number, way))) for way in ways]
    try:
        for done in asyncio.as_completed(tries):
            if await done:
                return True
        return False
    finally:
        for each in tries:
            each.cancel()


async def _query(source: Endpoint, raises: Raise, peer: tuple[str, int, Address]) -> bool:
    name, number, address = peer
    tries, furthest, restarts, clock = 0, 0, 0, asyncio.get_running_loop().time

    def reached(page: int) -> None:
        nonlocal furthest
        if page > furthest:  # not if it only comes as far as before
            furthest = page
            within.reschedule(clock() + ASKED_WITHIN_S)

    try:
        async with asyncio.timeout(ASKED_WITHIN_S) as within:
            while True:
                endpoint = Endpoint(address, PEER_REPLY_BYTES)
                try:
                    await endpoint.connect()
                    check_region(await region_of(endpoint), (number, name), address)
                    await raises(endpoint, reached)
                    return True
                except Exception:  # also for an unexpected reply
                    if not source.connected:
                        raise
                finally:
                    endpoint.close()
                if furthest and restarts < RESTARTS:
                    furthest, restarts = 0, restarts + 1
                await back_off(tries)
                tries += 1
    except TimeoutError:
        return False


async def raise_above(
    source: Endpoint, known_by: PlanRunner, writer: int, reached: Callable[[int], None] = lambda _: None
) -> None:
    """Raise the home strands that exist here: a daemon's user at the peer may not SCAN.

    Logs first: only this keeps an offset from being given twice. reached: called with the number of pages.
    """
    page = 0
    async for names in all_streams(source):
        here = await _look(source, [(name, ()) for name in names])
        await _raise_logs(source, known_by, _logs(here, writer))
        reached(page := page + 1)
    async for names in all_streams(source):
        strands = [Strand(name, keys.GENERATED, writer) for name in names]
        there = await _look(known_by, [(strand.name, (strand,)) for strand in strands])
        await _raise_logs(source, known_by, _logs(there, writer))
        ends = (
            None if state is None else state.end(strand) for strand, state in zip(strands, there, strict=True)
        )
        await source.run(_all(map(_raise, strands, ends)))
        reached(page := page + 1)


async def _raise_logs(source: PlanRunner, known_by: PlanRunner, logs: list[Strand]) -> None:
    there = await _look(known_by, [(log.name, (log,)) for log in logs])
    ends = (None if state is None else state.end(log) for log, state in zip(logs, there, strict=True))
    await source.run(_all(map(_raise, logs, ends)))


def _logs(states: Iterable[State | None], writer: int) -> list[Strand]:
    """The strands of the epochs that this writer's region wrote."""
    return [
        Strand(state.name, keys.LOG, writer, epoch.number)
        for state in filter(None, states)
        for epoch in state.registry.epochs  # also former ones: it may have lost that it was sealed
        if epoch.writer == writer
    ]


async def _look(runner: PlanRunner, wanted: Sequence[tuple[bytes, tuple[Strand, ...]]]) -> list[State | None]:
    """None: it cannot be read, see `_all`."""
    parts = [wanted[at : at + AT_ONCE] for at in range(0, len(wanted), AT_ONCE)]
    read = await asyncio.gather(
        *(runner.run(_all(state_command(name, strands, ()) for name, strands in part)) for part in parts)
    )
    replies = [reply for part in read for reply in part]
    return [
        reply and parse_state(name, strands, (), reply)
        for (name, strands), reply in zip(wanted, replies, strict=True)
    ]


def _raise(strand: Strand, end: Id | None) -> Command:
    floor = ids.text(end or ids.ZERO)
    return ("FCALL", "bs_strand_raise", 2, keys.meta(strand.name), strand.key, floor, strand.label)


def _all(commands: Iterable[Command]) -> Plan[Replies]:
    """None in place of a reply if a key is of another type, written with a bare client: it stops no other."""
    listed = [*commands]
    replies = (yield Batch(listed, attempt=True)) if listed else []
    for reply in replies:
        if isinstance(reply, ReplyError) and reply.code != "WRONGTYPE":
            raise reply
    return [None if isinstance(reply, ReplyError) else reply for reply in replies]
