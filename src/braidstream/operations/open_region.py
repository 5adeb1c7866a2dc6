"""A client of the region at a URL (server, Sentinel group or cluster).

For programs that run plans and do not care, like the verbs of `braid`:

    run_plan, converse    each command goes to the server that has its key
    run_on_primaries      the same plan once for each primary, for plans that SCAN
"""

from typing import Any, Final, cast

from redis.exceptions import (
    AskError,
    ClusterDownError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
    TryAgainError,
)

from braidstream.clients import cluster_client, sync
from braidstream.clients.cluster_client import RedisCluster
from braidstream.clients.sync import Redis
from braidstream.engine.redis_py import LOST
from braidstream.plan.lookup import ask_is_cluster

AnyClient = sync.Client | cluster_client.Client

# What its methods raise. redis-py's errors of a cluster that cannot be used are no RedisErrors.
CLIENT_ERRORS: Final = (RedisError, RedisClusterException)
# A slot moves for longer than commands wait.
SLOT_MOVES: Final = TryAgainError
# Those that pass when the server, or a node of the cluster, is back, or when a slot has moved.
UNREACHABLE: Final = (*LOST, SlotNotCoveredError, ClusterDownError, TryAgainError, AskError)


def open_region(url: str, **options: Any) -> AnyClient:
    """Connects once to see what it is."""
    client = cast(sync.Client, Redis.from_url(url, **options))
    try:
        if not client.run_plan(ask_is_cluster()):
            return client
    except BaseException:
        client.close()
        raise
    client.close()
    return cast(cluster_client.Client, RedisCluster(url=url, **options))
