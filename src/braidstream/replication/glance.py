"""Which of many streams differ between two regions: the first step of a sweep, hundreds per round trip.

    names ---> a digest of each from both regions ---> equal: nothing to do
                                                  `--> different: compare the states (link.py)

A daemon that starts, or whose link was lost, checks every stream. Nearly all are equal in both regions, and
comparing digests costs a tenth of comparing states.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.state import LOCAL

AT_ONCE: Final = 250

_PREFIXES: Final = b" ".join(LOCAL)


async def differing(
    names: Sequence[bytes], writers: Sequence[int], source: PlanRunner, target: PlanRunner
) -> list[bytes]:
    """The streams of which the target may lack something, or whose groups moved in the source."""
    found = list[bytes]()
    for at in range(0, len(names), AT_ONCE):
        some = names[at : at + AT_ONCE]
        commands = [glance_command(name, writers) for name in some]
        ours, theirs = await asyncio.gather(source.run(_send(commands)), target.run(_send(commands)))
        found += [
            name for name, here, there in zip(some, ours, theirs, strict=True) if not _alike(here, there)
        ]
    return found


def _send(commands: Sequence[Command]) -> Plan[list[object]]:
    return (yield Batch(commands, resend=True, attempt=True))


def glance_command(name: bytes, writers: Sequence[int]) -> Command:
    strands = [Strand(name, keys.GENERATED, writer) for writer in writers]
    where = (
        keys.meta(name),
        *(strand.key for strand in strands),
        *(keys.journal(name, writer) for writer in writers),
    )
    labels = (*(strand.registration for strand in strands), *(b"" for _ in writers))
    return ("FCALL_RO", "bs_braid_glance", len(where), *where, _PREFIXES, *labels)


def _alike(here: object, there: object) -> bool:
    """Whether two digests are equal. Not for errors, streams with chosen IDs, and groups with news."""
    return isinstance(here, bytes) and isinstance(there, bytes) and bool(here) and here == there.rstrip(b"!")
