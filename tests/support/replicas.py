"""Replicas of an engine, deaf ones, and groups of engines that real sentinels watch.

with Engine(flavour) as primary, replica_of(primary) as replica:
    promote(replica)
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import redis

from tests.support.proxy import Proxy
from tests.support.servers import Engine, Flavour, free_port
from tests.support.waiting import eventually

ONLINE_WITHIN_S = 30


@contextmanager
def replica_of(
    primary: Engine, *, through: int | None = None, clock_s: float | None = None
) -> Iterator[Engine]:
    """A replica that is in step. `through`: the port of a proxy before the primary; clock_s: see Engine."""
    args = ["--replicaof", "127.0.0.1", str(through or primary.port), "--repl-diskless-sync-delay", "0"]
    with primary.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    wanted = online_replicas(primary) + 1
    with Engine(primary.flavour, args=args, clock_s=clock_s) as replica:
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


@dataclass
class Site:
    """A region behind one address: a primary, and a replica that can go deaf and take over.

    line: from the replica to its primary. door: the address, which leads to the primary.
    """

    primary: Engine
    replica: Engine
    line: Proxy
    door: Proxy

    @property
    def url(self) -> str:
        return self.door.url

    def deafen(self) -> None:
        """The replica gets no more writes, unnoticed."""
        self.line.swallow()

    def cut_off(self) -> None:
        """The replica loses its primary."""
        self.line.cut_off()

    def fail_over(self) -> None:
        """The primary dies with what its replica has not heard, and the replica takes its place."""
        self.primary.kill()
        self.cut_off()
        promote(self.replica)
        self.door.point(self.replica.port)


@contextmanager
def site(flavour: Flavour, *, clock_s: float | None = None, second: bool = False) -> Iterator[Site]:
    """clock_s: of the replica. second: it has a replica of its own, which follows it when it is promoted."""
    with ExitStack() as stack:
        primary = stack.enter_context(Engine(flavour))
        line, door = (stack.enter_context(Proxy(primary.port)) for _ in range(2))
        replica = stack.enter_context(replica_of(primary, through=line.port, clock_s=clock_s))
        if second:
            stack.enter_context(replica_of(replica))
        yield Site(primary, replica, line, door)


def role_of(engine: Engine) -> str:
    """master, slave, or empty if the server does not answer."""
    try:
        with engine.client(socket_timeout=1) as client:
            return str(client.execute_command("ROLE")[0].decode())
    except redis.RedisError:
        return ""


class SentinelGroup:
    """A primary, two replicas and three sentinels that watch them under the name `m`.

    with SentinelGroup(flavour) as group:
        braidstream.Redis.from_url(group.url)
        group.fail_over()        # planned; for an unplanned one kill or pause group.primary
    """

    DOWN_AFTER_MS = 1_000

    def __init__(self, flavour: Flavour, replicas: int = 2, *, priority: int = 100) -> None:
        """priority: of the replicas; with 0 none is promoted."""
        self.flavour, self._count, self._priority = flavour, replicas, priority
        self.engines: list[Engine] = []
        self._stack = ExitStack()
        self._ports: list[int] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            first = stack.enter_context(Engine(self.flavour))
            self.engines = [first]
            for _ in range(self._count):
                replica = stack.enter_context(replica_of(first))
                self.engines.append(replica)
                with replica.client() as client:
                    client.config_set("replica-priority", self._priority)
            for _ in range(3):
                self._start_sentinel(stack, first.port)
            eventually(self._is_watched, within_s=ONLINE_WITHIN_S, why="the sentinels should know all")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self._ports]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'{host}:{port}' for host, port in self.addresses)}/m"

    @property
    def primary(self) -> Engine:
        """Whom the first sentinel names."""
        _, port = self._ask("GET-MASTER-ADDR-BY-NAME")
        return next(engine for engine in self.engines if engine.port == int(port))

    def fail_over(self) -> None:
        self._ask("FAILOVER")

    def subscribers(self) -> int:
        """How many connections listen to events, at all sentinels."""
        found = 0
        for port in self._ports:
            with redis.Redis(port=port, socket_timeout=5) as client:
                found += len(client.client_list(_type="pubsub"))
        return found

    def promoted(self, old: Engine) -> Engine:
        """Wait until another engine than `old` is a primary."""
        others = [engine for engine in self.engines if engine is not old]
        return eventually(
            lambda: next((engine for engine in others if role_of(engine) == "master"), None),
            within_s=ONLINE_WITHIN_S,
            why="a replica should be promoted",
        )

    def _start_sentinel(self, stack: ExitStack, primary_port: int) -> None:
        folder, port = Path(stack.enter_context(TemporaryDirectory())), free_port()
        lines = [f"port {port}", "bind 127.0.0.1", f"dir {folder}"]
        lines += [f"sentinel monitor m 127.0.0.1 {primary_port} 2", "sentinel failover-timeout m 6000"]
        lines += [f"sentinel down-after-milliseconds m {self.DOWN_AFTER_MS}", "sentinel parallel-syncs m 2"]
        config = folder / "sentinel.conf"
        config.write_text("\n".join([*lines, ""]))
        command = [f"{self.flavour}-server", str(config), "--sentinel"]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(lambda: (process.kill(), process.wait()))
        self._ports.append(port)

    def _ask(self, *words: str, sentinel: int = 0) -> Any:
        with redis.Redis(port=self._ports[sentinel], socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(f"SENTINEL {words[0]}", "m", *words[1:])

    def _is_watched(self) -> bool:
        wanted = {"num-slaves": self._count, "num-other-sentinels": 2}
        try:
            seen = [self._ask("MASTER", sentinel=number) for number in range(3)]
            replicas = [one for number in range(3) for one in self._ask("REPLICAS", sentinel=number)]
        except redis.RedisError:
            return False
        return all(int(each[name]) == count for each in seen for name, count in wanted.items()) and all(
            int(one["slave-priority"]) == self._priority for one in replicas
        )
