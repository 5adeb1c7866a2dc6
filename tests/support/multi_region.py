"""Two regions with real daemons and data that survive a kill, and MultiRegion clients of both kinds.

with Lab(tmp_path, "redis-8.10") as lab:
    client = lab.open("asyncio", stack)     # called as if it were blocking
    lab.one.kill()                          # the preferred region; clients reach it through lab.proxy
    lab.bring_back()
"""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import braidstream
import braidstream.asyncio
from tests.support.clients import Awaited, LoopThread
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.proxy import Proxy
from tests.support.servers import START_WITHIN_S, Engine, Flavour
from tests.support.waiting import eventually

Kind = Literal["sync", "asyncio"]
WITHIN_S = 60
TAKEOVER_S = 5
# With `everysec` a server on a busy disk answers before it has written; killed, it comes back without that.
_AOF = ["--appendonly", "yes", "--appendfsync", "always"]


class Lab:
    """Regions 1 and 2. is_cluster: region 1 is a cluster, of one node."""

    def __init__(self, folder: Path, flavour: Flavour, *, is_cluster: bool = False) -> None:
        self.one = Engine(flavour, args=_AOF, cluster=is_cluster)
        self.two = Engine(flavour, args=_AOF)
        self._folder, self.is_cluster = folder, is_cluster
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for engine in (self.one, self.two):
                stack.enter_context(engine)
            if self.is_cluster:
                with self.one.client() as operator:
                    operator.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                eventually(self._is_whole, within_s=START_WITHIN_S, why="the cluster should be up")
            # A cluster tells its clients the addresses of its nodes, past any proxy.
            self.proxy = stack.enter_context(Proxy(self.one.port))
            first = self.one.url if self.is_cluster else self.proxy.url
            self.urls = [first, self.two.url]
            config = self.config = write_config(self._folder / "braid.toml", numbered([self.one, self.two]))
            config.write_text(f"{config.read_text()}\n[groups]\ntakeover_after_s = {TAKEOVER_S}\n")
            self.daemons = [stack.enter_context(Daemon(config, f"region-{number}")) for number in (1, 2)]
            for daemon in self.daemons:
                daemon.tells("daemon.ready")
            self._stack = stack.pop_all()
        self.plain = [self.member(engine) for engine in (self.one, self.two)]
        self.plain[0].xadd("first", {"n": 0})
        self.settle("first")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.plain:
            client.close()
        self._stack.close()

    def _is_whole(self) -> bool:
        with self.one.client() as operator:
            return bool(operator.execute_command("CLUSTER INFO")["cluster_state"] == "ok")

    def member(self, engine: Engine) -> Any:
        """A client of one region."""
        kind: Any = braidstream.RedisCluster if engine.cluster else braidstream.Redis
        return kind.from_url(engine.url, decode_responses=True)

    def open(self, kind: Kind, stack: ExitStack, regions: Any = None, **options: Any) -> Any:
        regions = self.urls if regions is None else regions
        options = {"decode_responses": True, "failback_after": None, **options}
        if kind == "sync":
            return stack.enter_context(braidstream.MultiRegion(regions, **options))
        loop = stack.enter_context(LoopThread())

        async def make() -> Any:
            return braidstream.asyncio.MultiRegion(regions, **options)

        client = Awaited(loop, loop.run(make()))
        stack.callback(client.aclose)
        return client

    def bring_back(self) -> None:
        """Region 1 serves its clients again, with its data."""
        if self.one.alive:
            self.one.resume()
        else:
            self.one.start()
        self.proxy.deliver()
        eventually(self._serves, within_s=WITHIN_S, why="region 1 should serve clients again")

    def _serves(self) -> bool:
        try:
            return bool(self.plain[0].xlen("first"))
        except braidstream.RedisError:
            return False

    def settle(self, *names: str, within_s: float = WITHIN_S) -> list[list[tuple[str, dict[str, str]]]]:
        """Wait until both regions have the same entries, each once; returns those of each stream.

        Two entries of one message arrive first; then one of them goes.
        """

        def equal() -> Any:
            found = [[client.xrange(name) for name in names] for client in self.plain]
            bodies = [[fields["n"] for _, fields in entries] for entries in found[0]]
            is_once = all(len(each) == len(set(each)) for each in bodies)
            return found[0] if found[0] == found[1] and is_once else None

        found: Any = eventually(equal, within_s=within_s, why="both regions should have the same, each once")
        return found  # type: ignore[no-any-return]

    def apart(self, *regions: int) -> "Apart":
        """Regions send nothing meanwhile; all of them if none is named."""
        return Apart([self.daemons[region - 1] for region in regions or (1, 2)])


class Apart:
    """Daemons stand still."""

    def __init__(self, daemons: list[Daemon]) -> None:
        self._daemons = daemons

    def __enter__(self) -> None:
        for daemon in self._daemons:
            daemon.process.send_signal(signal.SIGSTOP)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self._daemons:
            daemon.process.send_signal(signal.SIGCONT)


def on(client: Any) -> Callable[[str], Any]:
    """Waits until a client uses a region."""
    return lambda name: eventually(
        lambda: client.region == name, within_s=WITHIN_S, why=f"the client should go to {name}"
    )
