"""A peer that is down for long: what it costs the others is bounded, and it comes back as they are."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import braidstream
from braidstream.commands.removal import drop_command
from braidstream.model import journal
from braidstream.model.region import Region
from braidstream.model.strand import Strand
from braidstream.operations.membership import meet
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

STREAMS = 200
# Each round adds an entry to every stream and deletes it again, so that only journals can grow. One deep
# stream has deletions enough to overflow its journal of 10,000. 400 rounds are 180,000 operations.
ROUNDS = int(os.environ.get("BRAID_ROUNDS", "100"))
DEEP = 10_400
KEPT = 5

WITHIN_S = 120
# Measured with 400 rounds: 49 MB a daemon, and 3 MB more after all of it.
DAEMON_GROWTH_MB = 10
# Measured: 36 bytes a deletion that a peer still has to hear of; 10,000 of them a stream at most.
JOURNAL_BYTES = 72


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) / 1024


def used(engine: Engine) -> int:
    with engine.client() as client:
        return int(client.info("memory")["used_memory"])


def churn(names: list[str], rounds: int) -> Plan[None]:
    """Add an entry to every stream and delete it, `rounds` times, as clients of region 1 do."""
    view = View(Region(1, "region-1", 1, writers=(1, 2, 3)))
    strands = [Strand(name.encode(), "s", 1) for name in names]
    for _ in range(rounds):
        adds = [("XADD", strand.key, "NOMKSTREAM", "*", "n", "gone soon") for strand in strands]
        natives = yield Batch(adds)
        drops = zip(strands, natives, strict=True)
        yield Batch([drop_command(view, strand, [native], (b"KEEPREF", b"")) for strand, native in drops])


def same(clients: list[braidstream.Redis], names: list[str]) -> bool:
    first, *others = clients
    if len({client.xlen(name) for client in clients for name in names[-1:]}) > 1:
        return False
    pages = first.pipeline(transaction=False)
    for name in names:
        pages.xrange(name)
    wanted = pages.execute()
    for other in others:
        pages = other.pipeline(transaction=False)
        for name in names:
            pages.xrange(name)
        if pages.execute() != wanted:
            return False
    return True


def test_a_long_absence_costs_bounded_memory_and_ends_exactly(flavour: Flavour, tmp_path: Path) -> None:
    names = [f"stream-{number}" for number in range(STREAMS)]
    engines = [Engine(flavour, args=["--appendonly", "yes"]).start() for _ in range(3)]
    try:
        config = write_config(tmp_path / "braid.toml", numbered(engines))
        clients = [client_of(engine, decode_responses=True) for engine in engines]
        for client in clients:
            client.run_plan(meet((1, 2, 3)))
        _live_through(names, engines, clients, config)
        for client in clients:
            client.close()
    finally:
        for engine in engines:
            engine.stop()


def _live_through(
    names: list[str], engines: list[Engine], clients: list[braidstream.Redis], config: Path
) -> None:
    one, two, three = clients
    with Daemon(config, 1) as first, Daemon(config, 2) as second:
        with Daemon(config, 3):
            for number in range(KEPT):
                for name in (*names, "deep"):
                    one.xadd(name, {"n": str(number)})
            settle(lambda: same(clients, [*names, "deep"]), "all three should begin alike")
        engines[2].kill()
        before = [rss_mb(each.process.pid) for each in (first, second)], [used(each) for each in engines[:2]]
        one.run_plan(churn(names, ROUNDS))
        one.run_plan(churn(["deep"] * 200, DEEP // 200))
        two.xdel("deep", two.xrange("deep")[1][0])
        settle(lambda: same([one, two], [*names, "deep"]), "the two should go on without the third")
        after = [rss_mb(each.process.pid) for each in (first, second)], [used(each) for each in engines[:2]]
        told = tell(before, after)
        assert all(b - a < DAEMON_GROWTH_MB for a, b in zip(before[0], after[0], strict=True)), told
        most = (STREAMS * ROUNDS + 10_100) * JOURNAL_BYTES
        assert all(b - a < most for a, b in zip(before[1], after[1], strict=True)), told
        assert one.execute_command("XLEN", "deep") == KEPT - 1

        engines[2].start()
        with Daemon(config, 3):
            settle(lambda: same(clients, [*names, "deep"]), "the third should become as the others are")
            settle(lambda: longest_journal(engines[0]) <= journal.KEPT, "journals should be trimmed then")
            print(told, f"in the end {tell(before, ([], [used(each) for each in engines[:2]]))}")


def settle(check: Callable[[], bool], why: str) -> None:
    eventually(check, within_s=WITHIN_S, why=why)


def tell(before: tuple[list[float], list[int]], after: tuple[list[float], list[int]]) -> str:
    daemons = [f"{a:.1f} -> {b:.1f} MB" for a, b in zip(before[0], after[0], strict=False)]
    engines = [f"{(b - a) / 1e6:+.1f} MB" for a, b in zip(before[1], after[1], strict=True)]
    return f"daemons {daemons}, engines {engines}"


def longest_journal(engine: Engine) -> int:
    with engine.client() as client:
        return max(client.xlen(key) for key in client.scan_iter(match="bs:1:j:*", count=1000))
