"""Two regions with real daemons, for tests that each use streams of their own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import braidstream
from braidstream.model import keys
from tests.support.daemons import IMPATIENT, Daemon, numbered, write_config
from tests.support.proxy import Proxy
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 30


@dataclass
class TwoRegions:
    config: Path
    engines: list[Engine]
    clients: list[braidstream.Redis]
    daemons: dict[int, Daemon]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Region 2 sends nothing: its daemon is dead. Region 1 still reaches it."""
        self.daemons[2].kill()
        yield
        self.daemons[2].start()

    def fill(self, name: str, entries: int) -> list[str]:
        """Entries in region 1 that both regions have."""
        found = [str(self.clients[0].xadd(name, {"n": number})) for number in range(entries)]
        self.await_length(name, entries)
        return found

    def await_length(self, name: str, entries: int) -> None:
        eventually(
            lambda: [client.xlen(name) for client in self.clients] == [entries, entries],
            within_s=WITHIN_S,
            why=f"{name} should have {entries} entries in both regions",
        )


@contextmanager
def two_regions(flavour: Flavour, folder: Path) -> Iterator[TwoRegions]:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        config = write_config(folder / "braid.toml", numbered(engines))
        daemons = {number: stack.enter_context(Daemon(config, number, env=IMPATIENT)) for number in (1, 2)}
        for daemon in daemons.values():
            daemon.tells("daemon.ready")
        clients = [
            stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True))
            for engine in engines
        ]
        yield TwoRegions(config, engines, clients, daemons)


@contextmanager
def separable_regions(
    flavour: Flavour, folder: Path, more: str
) -> Iterator[tuple[list[braidstream.Redis], list[Proxy]]]:
    """Two regions that take over from each other, and the two lines between them. more: for braid.toml."""
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        between = [stack.enter_context(Proxy(engine.port)) for engine in engines]
        daemons = []
        for number, other in ((1, 2), (2, 1)):
            seen = numbered(engines) | {other: between[other - 1].url}
            config = write_config(folder / f"braid-{number}.toml", seen)
            config.write_text(config.read_text() + more)
            daemons.append(stack.enter_context(Daemon(config, number)))
        for daemon in daemons:
            daemon.tells("daemon.ready")
        clients = [
            stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True))
            for engine in engines
        ]
        have_heard(engines)
        yield clients, between


def have_heard(engines: list[Engine]) -> None:
    """Each region knows the heartbeat of the other: it is not taken over before."""

    def knows(engine: Engine) -> bool:
        with engine.client() as bare:
            return bool(bare.hlen(keys.BEATS) == 2)

    for engine in engines:
        eventually(lambda engine=engine: knows(engine), within_s=WITHIN_S, why="it should beat")  # type: ignore[misc]
