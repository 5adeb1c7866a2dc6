"""Keeps what clients wrote to a server that was flushed, before they noticed it.

The server no longer knows its earlier IDs, so such an entry may lie among those that the peers have:

    peers     1 2 . 4        3 was deleted
    home          3'         written after FLUSHALL

The peers lack it although it was never deleted. It is marked like a restored entry (`m:`), so a link keeps it
and sends it to the peers (heal.py). Only while the region is fenced, before anything is restored.
"""

from braidstream.model import ids, keys
from braidstream.model.fields import MetaField
from braidstream.model.strand import Strand
from braidstream.protocol.plan import send_one
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.feed import all_keys
from braidstream.replication.state import read_state


async def mark_written(home: PlanRunner, writer: int) -> None:
    """Mark all entries in the region's own strands."""
    async for found in all_keys(home, keys.of_writer(writer)):
        for strand in [Strand(*parts) for key in found if (parts := keys.parse_strand(key))]:
            extent = (await home.run(read_state(strand.name, [strand], []))).strands.get(strand)
            if extent and extent.first and not strand.is_of_log:
                where = b"%d %b %b" % (strand.life, ids.text(extent.first), ids.text(extent.last))
                mark = ("HSETNX", keys.meta(strand.name), MetaField.MENDED + strand.label, where)
                await home.run(send_one(mark))
