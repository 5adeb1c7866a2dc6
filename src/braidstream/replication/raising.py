"""Raises home strands above the peers' copies, because a restored server may have lost IDs that it generated.

While the IDs of a region are ahead of its clock (its own was wrong, or a peer's), the engine counts them up:

    home, before    11:00:00.000-7        clock 10:00
    a peer          11:00:00.000-7        with the entries 5 6 7
    home, restored  11:00:00.000-4        would count 5 6 7 once more, for other entries
    home, raised    11:00:00.000-max      goes on with 11:00:00.001-0

Clients wait for it (Region.may_repeat_ids). IDs that are not ahead of the clock need nothing.
Offsets of logs do not follow the clock, so a log always continues after the last offset that a peer has.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.ids import Id
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand
from braidstream.net.address import Address
from braidstream.protocol.identify import read_region
from braidstream.protocol.plan import Batch, Plan, Replies
from braidstream.replication.endpoint import PEER_REPLY_BYTES, Endpoint, PlanRunner, back_off
from braidstream.replication.feed import all_streams
from braidstream.replication.identity import check_region
from braidstream.replication.state import parse_state, state_command

# How long to wait for a peer that does not answer: clients wait meanwhile.
ASKED_WITHIN_S: Final = 5.0


async def raise_home(source: Endpoint, here: Region, peers: Mapping[str, tuple[int, Address]]) -> list[str]:
    """Raise all home strands. Returns the peers that could not be reached.

    IDs that only those peers have are covered too, if they are in the same millisecond.
    """
    await raise_above(source, source, here.writer)
    reached = await asyncio.gather(*(_query(source, here, (name, *peer)) for name, peer in peers.items()))
    return [name for name, done in zip(peers, reached, strict=True) if not done]


async def _query(source: Endpoint, here: Region, peer: tuple[str, int, Address]) -> bool:
    name, number, address = peer
    tries = 0
    try:
        async with asyncio.timeout(ASKED_WITHIN_S):
            while True:
                endpoint = Endpoint(address, PEER_REPLY_BYTES)
                try:
                    await endpoint.connect()
                    check_region(await endpoint.run(read_region()), (number, name), address)
                    await raise_above(source, endpoint, here.writer)
                    return True
                except Exception:  # also for an unexpected reply
                    if not source.connected:
                        raise
                finally:
                    endpoint.close()
                await back_off(tries)
                tries += 1
    except TimeoutError:
        return False


async def raise_above(source: PlanRunner, known_by: PlanRunner, writer: int) -> None:
    """Raise the home strands that exist here: a daemon's user at the peer may not SCAN."""
    async for names in all_streams(source):
        strands = [Strand(name, keys.GENERATED, writer) for name in names]
        looks = await known_by.run(_all(state_command(each.name, (each,), ()) for each in strands))
        states = [
            parse_state(strand.name, (strand,), (), reply)
            for strand, reply in zip(strands, looks, strict=True)
        ]
        ends = {strand: state.end(strand) for strand, state in zip(strands, states, strict=True)}
        logs = [
            Strand(state.name, keys.LOG, writer, home.number)
            for state in states
            if (home := state.registry.home) and home.writer == writer
        ]
        replies = await known_by.run(_all(state_command(each.name, (each,), ()) for each in logs))
        for strand, reply in zip(logs, replies, strict=True):
            ends[strand] = parse_state(strand.name, (strand,), (), reply).end(strand)
        await source.run(_all(_raise(strand, end or ids.ZERO) for strand, end in ends.items()))


def _raise(strand: Strand, end: Id) -> Command:
    return ("FCALL", "bs_strand_raise", 2, keys.meta(strand.name), strand.key, ids.text(end))


def _all(commands: Iterable[Command]) -> Plan[Replies]:
    listed = [*commands]
    return (yield Batch(listed)) if listed else []
