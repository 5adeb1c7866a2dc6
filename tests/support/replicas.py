"""Replicas of an engine, deaf ones, and groups of engines that real sentinels watch.

with Engine(flavour) as primary, replica_of(primary) as replica:
    promote(replica)
"""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tests.support.servers import Engine
from tests.support.waiting import eventually

ONLINE_WITHIN_S = 30


@contextmanager
def replica_of(primary: Engine, *, through: int | None = None) -> Iterator[Engine]:
    """A replica that is in step. `through`: the port of a proxy before the primary."""
    args = ["--replicaof", "127.0.0.1", str(through or primary.port)]
    with primary.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    wanted = online_replicas(primary) + 1
    with Engine(primary.flavour, args=args) as replica:
        eventually(lambda: is_in_step(replica), within_s=ONLINE_WITHIN_S, why="the replica should follow")
        eventually(
            lambda: online_replicas(primary) >= wanted, within_s=ONLINE_WITHIN_S, why="it should be online"
        )
        yield replica


def is_in_step(replica: Engine) -> bool:
    with replica.client() as client:
        return bool(client.info("replication")["master_link_status"] == "up")


def online_replicas(primary: Engine) -> int:
    with primary.client() as client:
        facts = client.info("replication")
    listed = [facts[f"slave{number}"] for number in range(facts["connected_slaves"])]
    return sum(each["state"] == "online" for each in listed)


def promote(replica: Engine) -> None:
    with replica.client() as client:
        client.execute_command("REPLICAOF", "NO", "ONE")


def role_of(engine: Engine) -> str:
    """master, slave, or nothing where nobody answers."""
    try:
        with engine.client(socket_timeout=1) as client:
            return str(client.execute_command("ROLE")[0].decode())
    except redis.RedisError:
        return ""
