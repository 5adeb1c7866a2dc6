"""Pages of entries, read once for all links that want the same one at the same time.

All links of a daemon are woken by the same push and stand at the same place, so the source is read once,
not once for each peer.
"""

import asyncio

from braidstream.model.ids import Id
from braidstream.model.strand import Strand, facts
from braidstream.protocol.lookup import registry_of
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.endpoint import Asked
from braidstream.replication.ship import Page, page_command

Answer = tuple[Page, dict[bytes, bytes]]


class Pages:
    """Reads from one engine. Nothing is kept: a page is shared while it is on its way."""

    def __init__(self, source: Asked) -> None:
        self._source = source
        self._flying: dict[tuple[bytes, Id, int], asyncio.Task[Answer]] = {}

    async def read(self, strand: Strand, after: Id, count: int, *, alone: bool = False) -> Answer:
        """New entries, and the meta as of that moment or later. Alone: as of now, not of a read under way."""
        if alone:
            return await self._source.ask(_page(strand, after, count))
        wanted = (strand.key, after, count)
        task = self._flying.get(wanted)
        if task is None:
            task = asyncio.ensure_future(self._source.ask(_page(strand, after, count)))
            self._flying[wanted] = task
            task.add_done_callback(lambda done: self._arrived(wanted, done))
        return await asyncio.shield(task)

    def _arrived(self, wanted: tuple[bytes, Id, int], task: asyncio.Task[Answer]) -> None:
        self._flying.pop(wanted, None)
        if not task.cancelled():
            task.exception()  # every link that waited for it may have ended


def _page(strand: Strand, after: Id, count: int) -> Plan[Answer]:
    """The meta last: it is at least as new as the page, so a deletion is not overtaken by what came after it.

    No MULTI: when memory is full it is refused, and a full region must still be read.
    """
    commands = [page_command(strand, after, count), registry_of(strand.name)]
    page, meta = yield Batch(commands, resend=True)
    return page, facts(meta)
