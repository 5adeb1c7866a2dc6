"""The regions of the cluster soak: clusters of three primaries with a replica each, and one server.

What a killed primary may lose. Engines replicate asynchronously: a primary acknowledges a write, and its
replica gets it a moment later. So before each kill we read how far the primary's replication is, and wait
until the replica has applied that. What was acknowledged before we looked is on the replica, and must never
be lost. Only what was acknowledged between that look and the kill, on streams of that primary, may be
missing, and only if region 3 does not have it: peers get nothing that the replica lacks.
"""

import random
import threading
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis.crc import key_slot

import braidstream
from braidstream.model import keys
from tests.long.soak.pair import start_patiently
from tests.long.soak.traffic import STREAMS, text_of
from tests.oracle.client_log import Loss
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

SLOTS: Final = {name: int(key_slot(keys.meta(name.encode()))) for name in STREAMS}
ARGS: Final = ("--cluster-node-timeout", "6000", "--cluster-require-full-coverage", "no")
# Replicas that come back get a copy at once; primaries that come back have their data. What a killed process
# wrote is in the kernel: waiting for the disk would only stall engines, and cause failovers of their own.
FILES: Final = ("--appendonly", "yes", "--appendfsync", "no")
COPIES: Final = (*FILES, "--repl-diskless-sync-delay", "0", "--repl-backlog-size", "16mb")
WITHIN_S: Final = 60.0
# The engine's own migration moves up to so many slots on each side of a stream's.
NEIGHBOURS: Final = 50
# More than region 3 gets of a stream between the look at the replica and the kill.
TAIL: Final = 300
KILLED: Final = "primary killed"
KEY_BY_KEY: Final = "slot moved key by key"
AT_ONCE: Final = "slots moved by the engine"


class ServerRegion:
    def __init__(self, number: int, flavour: Flavour) -> None:
        self.number, self.engine = number, Engine(flavour)

    def start(self) -> None:
        self.engine.start()
        become(self.engine, region=self.number, name=f"region-{self.number}")

    def stop(self) -> None:
        self.engine.stop()

    @property
    def url(self) -> str:
        return self.engine.url

    def client(self, **options: Any) -> Any:
        return braidstream.Redis.from_url(self.url, decode_responses=True, **options)

    def engine_of(self, _: str) -> Engine:
        return self.engine


class Shard:
    """A primary and its replica, which change places. busy: held while slots move or the primary is down."""

    def __init__(self, number: int, primary: Engine, replica: Engine) -> None:
        self.number, self.primary, self.replica = number, primary, replica
        self.busy = threading.Lock()

    def wait_for_replica(self) -> float:
        """Wait until the replica has everything of the primary; the time up to which that is certain."""
        at = time.monotonic()
        upto = eventually(
            lambda: _replication(self.primary).get("master_repl_offset", 0),
            within_s=WITHIN_S,
            why="the primary should answer",
        )
        eventually(lambda: _follows(self.replica, upto), within_s=WITHIN_S, why="the replica should follow")
        return at


class ClusterRegion:
    """owners: for each slot the number of its shard. came: the moment and name of each fault."""

    def __init__(self, number: int, flavour: Flavour) -> None:
        self.number, self.cluster = number, Cluster(flavour, args=(*ARGS, *COPIES))
        self.shards = list[Shard]()
        self.owners = [
            shard for shard, (first, last) in enumerate(Cluster.SLOTS) for _ in range(first, last + 1)
        ]
        self.homes = {name: [(0.0, self.owners[slot])] for name, slot in SLOTS.items()}
        self.came = list[tuple[float, str]]()
        self.losses = list[Loss]()

    def start(self) -> None:
        self.cluster.start()
        become_cluster(self.cluster, region=self.number, name=f"region-{self.number}")
        for number, node in enumerate(self.cluster.nodes):
            self.shards.append(Shard(number, node, self.cluster.add_replica(node)))

    def stop(self) -> None:
        self.cluster.stop()

    @property
    def url(self) -> str:
        return next(shard.primary.url for shard in self.shards if shard.primary.alive)

    def client(self, **options: Any) -> Any:
        return braidstream.RedisCluster.from_url(
            self.url, decode_responses=True, require_full_coverage=False, **options
        )

    def engine_of(self, name: str) -> Engine:
        return self.shards[self.owners[SLOTS[name]]].primary

    def shard_at(self, name: str, when: float) -> int:
        """The shard that had a stream at a moment."""
        moves = self.homes[name]
        return moves[bisect(moves, (when, len(self.shards))) - 1][1]

    def _nodes(self) -> Iterator[Engine]:
        for shard in self.shards:
            yield from (shard.primary, shard.replica)

    # A primary is killed

    def kill_a_primary(self, dice: random.Random, witness: ServerRegion) -> None:
        """Its replica takes over, and it comes back as the replica of that one."""
        for shard in dice.sample(self.shards, len(self.shards)):
            if shard.busy.acquire(blocking=False):
                break
        else:
            return
        try:
            streams = frozenset(name for name, slot in SLOTS.items() if self.owners[slot] == shard.number)
            since = shard.wait_for_replica()
            time.sleep(dice.uniform(0, 0.2))
            known = _newest(witness, streams)
            shard.primary.kill()
            self.losses.append(Loss(self.number, since, time.monotonic(), known, streams=streams))
            self._note(f"{KILLED}, of shard {shard.number}")
            is_primary = lambda: _replication(shard.replica)["role"] == "master"  # noqa: E731
            eventually(is_primary, within_s=WITHIN_S, why="the replica should take over")
            shard.primary, shard.replica = shard.replica, shard.primary
            time.sleep(dice.uniform(0, 2))
            start_patiently(shard.replica)
            shard.wait_for_replica()
            self._wait_until_known(self.owners.index(shard.number), shard)
            self._note(f"back, of shard {shard.number}")
        finally:
            shard.busy.release()

    # Slots move

    def move_slots(self, dice: random.Random) -> None:
        """The slot of some stream, to another shard. With the engine's own migration also slots beside it."""
        name = dice.choice(STREAMS)
        source = self.shards[self.owners[SLOTS[name]]]
        target = dice.choice([shard for shard in self.shards if shard is not source])
        with _held(source, target) as held:
            if not held or self.owners[SLOTS[name]] != source.number:
                return
            at_once = _can_migrate(source.primary) and dice.random() < 0.5
            first, last = self._run_of(SLOTS[name], NEIGHBOURS if at_once else 0)
            if at_once:
                _migrate(source.primary, target.primary, first, last)
            else:
                move = SlotMove(self.cluster, first, (source.primary, target.primary))
                move.begin()
                for key in move.left():
                    move.move(key)
                move.finish()
            for moved in [each for each, slot in SLOTS.items() if first <= slot <= last]:
                self.homes[moved].append((time.monotonic(), target.number))
            self.owners[first : last + 1] = [target.number] * (last + 1 - first)
            self._note(f"{AT_ONCE if at_once else KEY_BY_KEY}, {first}-{last}, to shard {target.number}")
            self._wait_until_known(first, target)
            target.wait_for_replica()

    def _run_of(self, slot: int, most: int) -> tuple[int, int]:
        """The slots around one that are with it in its shard."""
        first = last = slot
        while first > max(0, slot - most) and self.owners[first - 1] == self.owners[slot]:
            first -= 1
        while last < min(len(self.owners) - 1, slot + most) and self.owners[last + 1] == self.owners[slot]:
            last += 1
        return first, last

    def _wait_until_known(self, slot: int, shard: Shard) -> None:
        """A primary that is killed before its replica knows of a slot would lose the slot with it."""
        for node in self._nodes():
            eventually(
                lambda node=node: not node.alive or _primary_of(node, slot) == shard.primary.port,  # type: ignore[misc]
                within_s=WITHIN_S,
                why=f"node {node.port} should know where slot {slot} is",
            )

    def _note(self, what: str) -> None:
        self.came.append((time.monotonic(), what))

    def unexpected(self) -> list[str]:
        """Failovers that we did not cause: then what was lost is no longer known, and the run is void."""
        return [
            f"region {self.number}: shard {shard.number} failed over by itself; is the machine too busy?"
            for shard in self.shards
            if _replication(shard.primary).get("role") != "master"
        ]


@contextmanager
def _held(*shards: Shard) -> Iterator[bool]:
    """Whether all of them were free; if so, they are held."""
    held = [shard for shard in shards if shard.busy.acquire(blocking=False)]
    try:
        yield len(held) == len(shards)
    finally:
        for shard in held:
            shard.busy.release()


def _newest(region: ServerRegion, streams: frozenset[str]) -> frozenset[str]:
    with region.client() as client, client.pipeline(transaction=False) as pipe:
        for name in streams:
            pipe.xrevrange(name, count=TAIL)
        return frozenset(text_of(fields) for entries in pipe.execute() for _, fields in entries)


def _replication(engine: Engine) -> dict[str, Any]:
    """Empty if it does not answer."""
    try:
        with engine.client(socket_timeout=2) as client:
            return dict(client.info("replication"))
    except (redis.ConnectionError, redis.TimeoutError):
        return {"role": ""}


def _follows(replica: Engine, upto: int) -> bool:
    state = _replication(replica)
    return state.get("master_link_status") == "up" and state["slave_repl_offset"] >= upto


def _primary_of(node: Engine, slot: int) -> int:
    """The port of a slot's primary, as a node sees it."""
    try:
        with node.client(socket_timeout=2) as client:
            for first, last, primary, *_ in client.execute_command("CLUSTER SLOTS"):
                if first <= slot <= last:
                    return int(primary[1])
    except (redis.ConnectionError, redis.TimeoutError):
        pass
    return 0


# Atomic slot migration: MIGRATESLOTS at the source (Valkey 9.0), MIGRATION at the target (Redis 8.4).


def _can_migrate(engine: Engine) -> bool:
    family = engine.flavour.partition("-")[0]
    return engine.version >= {"valkey": (9, 0), "redis": (8, 4)}[family]


def _migrate(source: Engine, target: Engine, first: int, last: int) -> None:
    with source.client() as here, target.client() as there:
        if source.flavour.startswith("valkey"):
            identity = there.execute_command("CLUSTER MYID")
            here.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", identity)
        else:
            there.execute_command("CLUSTER", "MIGRATION", "IMPORT", first, last)
    eventually(
        lambda: _primary_of(source, first) == _primary_of(target, first) == target.port,
        within_s=WITHIN_S,
        why=f"slots {first}-{last} should have moved",
    )
