"""Which streams of a cluster changed: a `Feed` from each primary.

A new primary gets one as soon as the map names it. Each feed calls `missed` when it begins to listen, so all
streams are compared after slots have moved, and after a failover.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from braidstream.errors import LostError
from braidstream.observability.events import emit
from braidstream.replication.cluster_endpoint import ClusterEndpoint
from braidstream.replication.endpoint import Endpoint, back_off, reason
from braidstream.replication.feed import Feed

# How often to check whether the map names other primaries.
LOOK_S: Final = 0.2


class ClusterFeed:
    """make: a feed from one primary. is_listening: one of them has tracking on."""

    def __init__(self, source: ClusterEndpoint, make: Callable[[Endpoint], Feed]) -> None:
        self._source, self._make = source, make
        self._feeds: dict[Endpoint, Feed] = {}

    @property
    def is_listening(self) -> bool:
        return any(feed.is_listening for feed in self._feeds.values())

    async def run(self) -> None:
        """Listen until it is cancelled. The cluster's `watch` notices that no primary is left."""
        tasks = dict[Endpoint, asyncio.Task[None]]()
        try:
            while True:
                for node in [node for node in tasks if node not in self._source.nodes]:
                    tasks.pop(node).cancel()
                    self._feeds.pop(node, None)
                for node in self._source.nodes:
                    if node not in tasks:
                        tasks[node] = asyncio.ensure_future(self._listen(node))
                await asyncio.sleep(LOOK_S)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _listen(self, node: Endpoint) -> None:
        """One primary, again and again. A lost node is logged by the cluster's `watch`."""
        tries, refused = 0, ""
        while True:
            feed = self._feeds[node] = self._make(node)
            try:
                await feed.run()
            except Exception as error:  # also for an unexpected reply
                if not isinstance(error, LostError) and reason(error) != refused:
                    refused = reason(error)
                    emit("feed.refused", why=f"{node.address}: {refused}")
            tries = 0 if feed.is_listening else tries + 1
            feed.is_listening = False
            await back_off(tries)
