"""The servers of one region: a primary and its replica, behind one address that moves with the primary.

    clients, daemons ---> front ---> primary ---> wire ---> replica
                            `- - - - - - - - - - - - - - - - ^   after a promotion

What the primary sends while the wire is deaf never arrives, so a replica that is promoted then lacks it.
"""

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import redis

from tests.support.proxy import Proxy
from tests.support.servers import DidNotStart, Engine, Flavour
from tests.support.waiting import eventually

# `always`: what was acknowledged is in the file when the process is killed. With `everysec` the engine itself
# may lose it (docs/design/guarantees.md), and the soak could not distinguish the causes.
DURABLE: Final = ["--appendonly", "yes", "--appendfsync", "always"]
# A replica that was away catches up from here, without a copy of everything.
BACKLOG: Final = ["--repl-backlog-size", "16mb", "--repl-diskless-sync-delay", "0", "--repl-timeout", "10"]
SYNCED_WITHIN_S: Final = 60


class Pair:
    """`primary` and `replica` change places when the replica is promoted; `front` follows."""

    def __init__(self, flavour: Flavour) -> None:
        self.primary, self.replica = (Engine(flavour, args=[*DURABLE, *BACKLOG], clock_s=0) for _ in range(2))
        self.front: Proxy
        self.wire: Proxy
        self._backup: Path | None = None

    def start(self) -> None:
        for engine in (self.primary, self.replica):
            engine.start()
        self.front, self.wire = Proxy(self.primary.port), Proxy(self.primary.port)
        self.front.open()
        self.wire.open()
        self._follow()

    def stop(self) -> None:
        for proxy in (self.front, self.wire):
            proxy.close()
        for engine in (self.primary, self.replica):
            engine.stop()

    def start_primary(self) -> None:
        start_patiently(self.primary)

    def deafen(self) -> None:
        """The replica hears nothing of what is written from now on."""
        self.wire.swallow()

    def promote(self, *, kill: bool) -> None:
        """The replica becomes the primary. Without `kill` who is connected to the old one stays there."""
        if kill:
            self.primary.kill()
        with self.replica.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        self.primary, self.replica = self.replica, self.primary
        self.front.target_port = self.primary.port
        if kill:
            self.front.cut()

    def hand_over(self) -> None:
        """A planned failover, which loses nothing: the primary waits until the replica has everything."""
        with self.primary.client() as client, self.replica.client() as replica:
            alike = partial(_have_one_history, client, replica)
            eventually(alike, within_s=SYNCED_WITHIN_S, why="the replica should follow the primary")
            client.execute_command("FAILOVER", "TIMEOUT", SYNCED_WITHIN_S * 1000)
            eventually(
                lambda: replica.role()[0] in (b"master", "master"),
                within_s=SYNCED_WITHIN_S + 10,
                why="the replica should be the primary",
            )
        self.primary, self.replica = self.replica, self.primary
        self.front.target_port = self.wire.target_port = self.primary.port
        self.front.cut()
        self._follow()

    def rejoin_replica(self) -> None:
        """The old primary, if it still lives, ends, and comes back as the replica of the new one."""
        self.replica.kill()
        self.front.cut()
        self.wire.target_port = self.primary.port
        self.wire.deliver()
        start_patiently(self.replica)
        self._follow()

    def back_up(self) -> None:
        """Note what the primary has on disk now. A region that is just coming back is not worth keeping."""
        with self.primary.client() as client:
            eventually(
                lambda: not client.hexists("bs:config", "fenced"),
                within_s=SYNCED_WITHIN_S,
                why="the region should have rejoined",
            )
        self._backup = self.primary.directory / "backup"
        shutil.rmtree(self._backup, ignore_errors=True)
        shutil.copytree(self._store, self._backup)

    def restore(self) -> None:
        """Both servers end; the primary comes back with what it had when it was backed up."""
        assert self._backup is not None
        self.replica.kill()
        self.primary.kill()
        self.front.cut()
        shutil.rmtree(self._store)
        shutil.copytree(self._backup, self._store)
        start_patiently(self.primary)
        start_patiently(self.replica)
        self._follow()

    def refuse_writes(self) -> None:
        """A folder stands where its snapshot should be, so the engine takes no more writes (MISCONF)."""
        self._snapshot.unlink(missing_ok=True)
        self._snapshot.mkdir(exist_ok=True)
        with self.primary.client() as client:
            client.config_set("save", "3600 1")
            saves = partial(_begins_to_save, client)
            eventually(saves, within_s=SYNCED_WITHIN_S, why="the engine should try to save")

    def take_writes(self) -> None:
        self._snapshot.rmdir()
        with self.primary.client() as client:
            client.config_set("save", "")

    @property
    def _snapshot(self) -> Path:
        return self.primary.directory / "dump.rdb"

    @property
    def _store(self) -> Path:
        return self.primary.directory / "appendonlydir"

    def _follow(self) -> None:
        with self.replica.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self.wire.port)
        eventually(
            partial(_is_synced, self.replica), within_s=SYNCED_WITHIN_S, why="the replica should follow"
        )


def start_patiently(engine: Engine) -> None:
    """On a machine that is busy elsewhere, loading the file takes its time."""
    for patience in reversed(range(5)):
        try:
            engine.start()
            return
        except DidNotStart:
            if not patience:
                raise


def _is_synced(replica: Engine) -> bool:
    try:
        with replica.client(socket_timeout=2) as client:
            return client.info("replication").get("master_link_status") == "up"
    except redis.RedisError:
        return False


def _have_one_history(primary: redis.Redis, replica: redis.Redis) -> bool:
    """The primary refuses a failover without a replica, the replica one from another history."""
    ours, theirs = primary.info("replication"), replica.info("replication")
    connected = ours.get("slave0", {}).get("state") == "online" and theirs["master_link_status"] == "up"
    return connected and ours["master_replid"] == theirs["master_replid"]


def _begins_to_save(client: redis.Redis) -> bool:
    """False while it saves for a replica."""
    with suppress(redis.ResponseError):
        return bool(client.execute_command("BGSAVE", "SCHEDULE"))
    return False
