"""The heartbeat of a region that is a cluster: it stops when the cluster does, and not when one node does."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.crc import key_slot

from braidstream.engine.address import parse_address
from braidstream.errors import LostError
from braidstream.model import keys
from braidstream.replication.daemon.peer import Peer
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.takeover import Takeover
from tests.support.cluster import Cluster, become_cluster
from tests.support.regions import become
from tests.support.servers import Engine

pytestmark = pytest.mark.long

AFTER_S = 5.0  # the least that braid.toml may say


@asynccontextmanager
async def beating(cluster: Cluster, server: Engine) -> AsyncIterator[Takeover]:
    """The heartbeat of the cluster, region 1, with region 2 as its peer."""
    become_cluster(cluster, region=1)
    become(server, region=2)
    source, there = Endpoint(parse_address(cluster.url)), Endpoint(parse_address(server.url))
    await source.connect()
    await there.connect()
    link: Any = object()  # only whether there is one counts
    try:
        yield Takeover(source, lambda: [Peer(2, "region-2", there, link)], lambda name: True, AFTER_S)
    finally:
        source.close()
        there.close()


def beat_at(server: Engine) -> int:
    """The beat of region 1, as region 2 knows it."""
    with server.client() as client:
        return int(client.hget(keys.BEATS, "1") or 0)


def test_a_cluster_that_is_down_stops_beating(cluster: Cluster, engine: Engine) -> None:
    async def scenario() -> None:
        async with beating(cluster, engine) as takeover:
            await takeover.look()
            beat = beat_at(engine)
            assert beat > 0
            with cluster.down(int(key_slot(keys.BEATS)) + 1):
                with pytest.raises(LostError, match="the cluster is down"):
                    await takeover.look()
                assert beat_at(engine) == beat
            await takeover.look()
            assert beat_at(engine) > beat

    asyncio.run(scenario())


def test_a_cluster_beats_on_while_a_primary_hangs(cluster: Cluster, engine: Engine) -> None:
    """That of the heartbeats: the read of the region, of the beats and their write would wait for it."""

    async def scenario() -> None:
        async with beating(cluster, engine) as takeover:
            await takeover.look()
            beat = beat_at(engine)
            with cluster.owner(int(key_slot(keys.BEATS))).paused():
                began_s = time.monotonic()
                await takeover.look()
                took_s = time.monotonic() - began_s
            assert beat_at(engine) > beat
            assert took_s < AFTER_S - 1, "its peers would take over"

    asyncio.run(scenario())
