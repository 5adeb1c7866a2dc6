"""Both cluster clients, for modules that test them:

opened = cluster_opener
client = cluster_client
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis.crc import key_slot

from braidstream.model import keys
from tests.support.clients import Opener
from tests.support.cluster import Cluster, become_cluster

# Streams on all nodes.
NAMES = [f"stream-{number}" for number in range(12)]


@pytest.fixture(params=["sync", "asyncio"])
def cluster_opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    with ExitStack() as stack:
        yield Opener(request.param, stack, "RedisCluster")


@pytest.fixture
def cluster_client(cluster: Cluster, opened: Opener) -> Any:
    """A `braidstream.RedisCluster`, or its asyncio twin called as if it were one."""
    become_cluster(cluster, id_mode="liberal")
    return opened(cluster.url, decode_responses=True)


def slot(name: str) -> int:
    return int(key_slot(keys.meta(name.encode())))


def values(client: Any, name: str) -> list[str]:
    return [fields["n"] for _, fields in client.xrange(name)]
