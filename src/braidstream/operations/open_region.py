"""A client of the region at a URL (server, Sentinel group or cluster), and changes of its settings.

For programs that run plans and do not care, like the verbs of `braid`:

    run_plan, converse    each command goes to the server that has its key
    run_on_primaries      the same plan once for each primary, for plans that SCAN
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from redis.exceptions import (
    AskError,
    ClusterDownError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
    TryAgainError,
)

from braidstream.clients.cluster_client import RedisCluster
from braidstream.clients.sync import Redis
from braidstream.engine.redis_py import LOST
from braidstream.errors import BraidError, NotARegionError
from braidstream.lua.cluster_facts import Facts, put_facts, read_facts, with_topology
from braidstream.model.fields import ConfigField
from braidstream.model.keys import FACTS_LOCK
from braidstream.model.region import Region
from braidstream.operations.membership import agreed_facts, check_id_mode, tune_id_mode
from braidstream.plan.create import Retries
from braidstream.plan.lookup import INFO_CLUSTER, is_cluster, read_any_region
from braidstream.plan.plan import Batch, Plan, send_one

AnyClient = Redis | RedisCluster

# What its methods raise. redis-py's errors of a cluster that cannot be used are no RedisErrors.
CLIENT_ERRORS: Final = (RedisError, RedisClusterException)
# Those that pass when the server, or a node of the cluster, is back, or when a slot has moved.
UNREACHABLE: Final = (*LOST, SlotNotCoveredError, ClusterDownError, TryAgainError, AskError)


def open_region(url: str, **options: Any) -> AnyClient:
    """Connects once to see what it is."""
    client = Redis.from_url(url, **options)
    try:
        if not client.run_plan(_asks_cluster()):
            return client
    except BaseException:
        client.close()
        raise
    client.close()
    return RedisCluster(url=url, **options)  # as redis-py's from_url, which is typed as redis-py's client


def _asks_cluster() -> Plan[bool]:
    [info] = yield Batch([INFO_CLUSTER], resend=True, attempt=True)
    return is_cluster(info)


# ----------------------------------------------------------------------------------------------------
#
# Changes the settings of a region: of one server in `bs:config`, of a cluster the facts on every node.
#
# The facts of a cluster are a library (lua/cluster_facts.py), which the engine replaces as a whole. So that
# two changes at once do not undo each other, a change holds a lock for a moment. A change that ended half-
# way is completed by the next one, or by `braid init`: the facts of all nodes are joined (`join_facts`).

# How long a change may take, and how long another one waits for it.
LOCK_S: Final = 10
_PAUSE_S: Final = 0.05


def set_id_mode(client: AnyClient, mode: str) -> Region:
    """Which IDs XADD accepts. Running clients follow within a second."""
    if not client.session.is_cluster:
        return client.run_plan(tune_id_mode(mode))
    check_id_mode(mode)
    return _change(client, {ConfigField.ID_MODE: mode.encode()})


def note_adoption(client: AnyClient) -> None:
    """Before native streams of a cluster are adopted. On one server the plan does it."""
    if client.session.is_cluster and not client.run_plan(read_any_region()).adopted:
        _change(client, {ConfigField.ADOPTED: b"1"})


def _change(client: AnyClient, changed: Facts) -> Region:
    """Change facts on every primary, and look whether all of them have the change.

    All of them must answer: one that does not would keep the old ones.
    """
    retries = Retries("others kept changing the facts about this region. Try again.", error=BraidError)
    with _alone(client):
        while True:
            retries.count()
            found = client.run_on_primaries(read_facts)
            known = agreed_facts([facts for facts in found if facts is not None])
            if known is None:
                raise NotARegionError
            wanted = with_topology(known, {**known, **changed})
            if all(facts == wanted for facts in found):
                break
            client.run_on_primaries(partial(put_facts, wanted))
    region: Region = client.run_plan(read_any_region())
    return region


@contextmanager
def _alone(client: AnyClient) -> Iterator[None]:
    """Hold the key. It expires if this process is killed."""
    token, until_s = secrets.token_hex(8), time.monotonic() + 2 * LOCK_S
    while client.run_plan(send_one(("SET", FACTS_LOCK, token, "NX", "EX", LOCK_S))) is None:
        if time.monotonic() > until_s:
            raise BraidError("others keep changing the facts about this region. Try again.")
        time.sleep(_PAUSE_S)
    taken_s = time.monotonic()
    try:
        yield
    finally:
        if time.monotonic() - taken_s < LOCK_S / 2:  # else another process may have it now
            client.run_plan(send_one(("DEL", FACTS_LOCK)))
