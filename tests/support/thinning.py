"""Which engines a test runs on in CI, and in which order tests run.

By default a test runs on four engines: the oldest and the newest Redis and Valkey. Fewer are enough for some:

    one     tests of processes and option words, which hardly depend on the engine: the newest Redis
    turns   the slowest tests: one engine each, by turns, so that together they run on all
    two     tests of what happens between regions, gateways and their clients: each runs on the oldest of
            one family and the newest of the other
    apart   a test of both clients runs with the synchronous one on two engines, with asyncio on the other two

BRAID_ENGINE, or BRAID_ENGINE=all for all four, runs every test on the engines that it names.
"""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers import FLAVOURS

TESTS: Final = Path(__file__).resolve().parents[1]
PAIRS: Final = (("redis-7.0", "valkey-9.1"), ("redis-8.10", "valkey-8.0"))
CLIENTS: Final = ("sync", "asyncio")
ONE: Final = "redis-8.10"
ON_ONE: Final = {
    "contract/test_cli.py",
    "contract/test_gateway_exposure.py",
    "contract/test_gateway_service.py",
    "contract/test_snippets.py",
    "faults/test_orphans.py",
    "faults/test_up.py",
}
BY_TURNS: Final = {
    "clients",
    "stateful",
    "contract/test_cluster_node.py",
    "contract/test_group_crowd.py",
    "faults/test_daemons.py",
    "faults/test_gateway_crowd.py",
    "faults/test_gateway_hostile.py",
    "faults/test_gateway_logins.py",
    "faults/test_gateway_losses.py",
    "faults/test_gateway_restart.py",
    "faults/test_long_absence.py",
    "faults/test_region_changes.py",
}
ON_TWO: Final = {
    "faults",
    "contract/test_acl_guide.py",
    "contract/test_cache.py",
    "contract/test_cluster.py",
    "contract/test_gateway_guard.py",
    "contract/test_gateway_words.py",
    "contract/test_group_deletion.py",
    "contract/test_group_races.py",
    "contract/test_migrating_slot.py",
    "contract/test_replication_security.py",
    "scenarios/test_active_active.py",
    "scenarios/test_clocks_apart.py",
    "scenarios/test_glance.py",
    "scenarios/test_group_late.py",
    "scenarios/test_idempotence_regions.py",
    "scenarios/test_late_and_apart.py",
    "scenarios/test_lost_tail.py",
    "scenarios/test_rolled_back.py",
    "scenarios/test_rolled_back_races.py",
}
# They wait for processes, or search for long. The others take moments.
LONG: Final = {
    "clients",
    "docs",
    "faults",
    "simulation",
    "spark",
    "stateful",
    "contract/test_cli.py",
    "contract/test_cluster.py",
    "contract/test_cluster_node.py",
    "contract/test_differential.py",
    "contract/test_gateway_differential.py",
    "contract/test_group_crowd.py",
    "contract/test_replication_security.py",
}


def mark_long(items: list[pytest.Item]) -> None:
    """`make test-fast` leaves them out."""
    for item in items:
        if _is_in(item, LONG):
            item.add_marker(pytest.mark.long)


def thin(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep each test on the engines that it needs."""
    if "BRAID_ENGINE" in os.environ:
        return
    kept = [item for item in items if _is_wanted(item)]
    left_out = set(items) - set(kept)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))


def spread(items: list[pytest.Item]) -> None:
    """Long tests between short ones, and none among the last fifth: no worker is left alone with one."""
    long = [item for item in items if _is_in(item, LONG)]
    short = [item for item in items if not _is_in(item, LONG)]
    placed = [(0.8 * at / len(long), item) for at, item in enumerate(long)]
    placed += [(at / len(short), item) for at, item in enumerate(short)]
    placed.sort(key=lambda each: each[0])
    items[:] = [item for _, item in placed]


def _is_in(item: pytest.Item, listed: Iterable[str]) -> bool:
    path = item.path.relative_to(TESTS)
    return path.as_posix() in listed or path.parts[0] in listed


def _is_wanted(item: pytest.Item) -> bool:
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    engine = params.get("flavour")
    if engine not in FLAVOURS:
        return True
    if _is_in(item, ON_ONE):
        return bool(engine == ONE)
    if _is_in(item, BY_TURNS):
        return bool(engine == FLAVOURS[_number(item.nodeid.replace(engine, "")) % len(FLAVOURS)])
    client = next((CLIENTS.index(value) for value in params.values() if value in CLIENTS), None)
    if client is None and not _is_in(item, ON_TWO):
        return True
    pair = _number(getattr(item, "originalname", item.name)) + (client or 0)
    return engine in PAIRS[pair % len(PAIRS)]


def _number(text: str) -> int:
    """The same in every process."""
    return zlib.crc32(text.encode())
