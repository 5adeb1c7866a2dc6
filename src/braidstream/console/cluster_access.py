"""A region that is a cluster, as the console reads it. See region_access.py, which has the limits of time.

reads            over connections with a limit of bytes; a node that is lost is reached again
conversations    with a cluster client, which may WATCH keys while slots move; without a limit of bytes
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from braidstream.admin.stream_overview import list_streams
from braidstream.clients.aio_cluster import RedisCluster
from braidstream.clients.any_region import CLIENT_ERRORS
from braidstream.clients.shared import Conversation
from braidstream.errors import BraidError
from braidstream.net.address import Address
from braidstream.net.slot_ranges import SLOTS
from braidstream.protocol.plan import Batch, Replies, arun
from braidstream.replication.cluster_endpoint import ClusterEndpoint, spares_others

# How long a page waits for one primary.
_NODE_WITHIN_S: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Names of streams, and where to continue; 0 at the end. skipped: primaries that do not answer."""

    cursor: int
    names: list[bytes]
    skipped: tuple[str, ...] = ()


class ClusterAccess:
    """url: any node; its user is that of all nodes."""

    def __init__(self, url: str, address: Address, most_bytes: int) -> None:
        self._url, self._cluster = url, ClusterEndpoint(address, most_bytes)
        self._watch: asyncio.Task[None] | None = None
        self._client: Any = None

    async def send(self, batch: Batch) -> Replies:
        return await self._cluster.send(batch)

    async def connect(self) -> None:
        await self._cluster.connect()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        """Until no primary is left. The next page connects again."""
        with contextlib.suppress(BraidError):
            await self._cluster.watch()

    async def list_streams(self, cursor: int, count: int) -> Page:
        """As the plan of this name, primary after primary. A cursor has the lowest slot of the primary, which
        a replica that takes over has too. One that does not answer is skipped."""
        inner, slot = divmod(cursor, SLOTS)
        left = [each for each in self._cluster.nodes_by_slot if each[0] >= slot]
        if not left:
            return Page(0, [])
        (first, node), *others = left
        following = others[0][0] if others else 0
        try:
            async with asyncio.timeout(_NODE_WITHIN_S):
                if node.waiting_s > _NODE_WITHIN_S:
                    raise TimeoutError
                inner, names = await arun(list_streams(inner if first == slot else 0, count), node.send)
        except (TimeoutError, BraidError) as error:
            if not (isinstance(error, TimeoutError) or spares_others(error, self._cluster)):
                raise
            return Page(following, [], (str(node.address),))
        return Page(inner * SLOTS + first if inner else following, names)

    async def converse(self, make: Conversation[T]) -> T:
        if self._client is None:
            self._client = RedisCluster.from_url(self._url)
        try:
            found: T = await self._client.converse(make)
            return found
        except BraidError:
            raise
        except (OSError, *CLIENT_ERRORS) as error:
            raise BraidError(str(error)) from None

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._cluster.close()
        if self._client is not None:
            await self._client.aclose()
