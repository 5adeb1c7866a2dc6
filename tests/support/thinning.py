"""Which engines a test runs on in CI, and in which order tests run.

    every   tests of what engines do differently: the oldest and newest Redis and Valkey, or what they name
    two     tests of clients: the oldest of one family, the newest of the other; a test of both clients runs
            with the synchronous one on the one, with asyncio on the other
    newest  tests of processes, option words and pages, which hardly depend on the engine: the newest Redis
    turns   all others: one engine each, by turns, so that together they run on all

BRAID_ENGINE, or BRAID_ENGINE=all for all four, runs every test on the engines that it names. The nightly
workflow does.
"""

import os
import zlib
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers import FLAVOURS

TESTS: Final = Path(__file__).resolve().parents[1]
PAIRS: Final = (("redis-7.0", "valkey-9.1"), ("redis-8.10", "valkey-8.0"))
CLIENTS: Final = ("sync", "asyncio")
NEWEST: Final = "redis-8.10"
ON_EVERY: Final = {
    "engine/test_acl.py",
    "engine/test_dump.py",
    "engine/test_full_memory.py",
    "engine/test_functions.py",
    "client/test_append.py",
    "client/test_idempotence.py",
    "long/test_differential.py::test_seeded_sequences_get_the_bare_engines_replies",
}
ON_TWO: Final = {"client"}
ON_NEWEST: Final = {"cli", "console"}
# Of those above, they take long or hardly depend on the engine.
BY_TURNS: Final = {
    "client/test_blocking.py::test_block_stretches_the_sockets_timeout",
    "client/test_cache.py",
    "client/test_cluster_client.py",
    "client/test_cluster_consumer.py",
    "client/test_cluster_contract.py",
    "client/test_cluster_failover.py",
    "client/test_cluster_pipelines.py",
    "client/test_cluster_tasks.py",
    "client/test_group_crowd.py",
    "client/test_idempotent_clients.py::test_a_message_whose_reply_is_lost_is_sent_again_and_stands_once",
    "client/test_id_modes.py::test_a_connected_client_follows_each_change_of_the_mode",
    "client/test_log_groups.py::test_64_readers_are_served_alike_and_the_limit_holds",
    "client/test_lost_connections.py",
    "client/test_logs.py::test_a_long_log_is_evicted_in_steps",
    "client/test_raised.py",
    "client/test_redis_py_range.py",
    "client/test_snippets.py",
}
# They wait for processes, or search for long. The others take moments.
LONG: Final = {
    "cli",
    "clients",
    "console",
    "docs",
    "long",
    "spark",
    "client/test_group_crowd.py",
    "client/test_multi.py",
    "engine/test_cluster.py",
    "engine/test_cluster_node.py",
    "engine/test_cluster_region.py",
    "engine/test_cluster_verbs.py",
    "engine/test_engines_start_and_stop.py",
    "gateway/test_gateway_crowd.py",
    "gateway/test_gateway_hostile.py",
    "gateway/test_gateway_logins.py",
    "gateway/test_gateway_losses.py",
    "gateway/test_gateway_restart.py",
    "gateway/test_gateway_workers.py",
    "regions/test_clocks.py",
    "regions/test_cluster_facts.py",
    "regions/test_cluster_regions.py",
    "regions/test_cluster_rejoin.py",
    "regions/test_cluster_takeover.py",
    "regions/test_compressed_links.py",
    "regions/test_hostile_receivers.py",
    "regions/test_daemons.py",
    "regions/test_durability.py",
    "regions/test_identity.py",
    "regions/test_ids_again.py",
    "regions/test_links.py",
    "regions/test_long_absence.py",
    "regions/test_lost_data.py",
    "regions/test_region_changes.py",
    "regions/test_replication_security.py",
    "regions/test_sentinels.py",
    "regions/test_selection.py",
    "regions/test_sick_regions.py",
    "regions/test_typed_daemons.py",
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
    engines = dict[str, list[str]]()
    for item in items:
        if (engine := _engine(item)) is not None:
            engines.setdefault(_without_engine(item), []).append(engine)
    kept = [item for item in items if _is_wanted(item, engines)]
    left_out = set(items) - set(kept)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))


def keep_together(items: list[pytest.Item]) -> None:
    """Tests with the Spark session, or with one fixture of a module, run in one worker, one by one."""
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        if fixtures is None:
            continue
        found = [each for several in fixtures.name2fixturedefs.values() for each in several]
        params = _params(item)
        shared = [params.get(each.argname, "") for each in found if each.scope == "module"]
        if "spark" in fixtures.names_closure:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif shared:
            name = "-".join([item.path.stem, *map(str, shared)])
            item.add_marker(pytest.mark.xdist_group(name))


def spread(items: list[pytest.Item]) -> None:
    """Long tests between short ones, and none among the last fifth: no worker is left alone with one."""
    long = [item for item in items if _is_in(item, LONG)]
    short = [item for item in items if not _is_in(item, LONG)]
    placed = [(0.8 * at / len(long), item) for at, item in enumerate(long)]
    placed += [(at / len(short), item) for at, item in enumerate(short)]
    placed.sort(key=lambda each: each[0])
    items[:] = [item for _, item in placed]


def _is_in(item: pytest.Item, listed: set[str]) -> bool:
    path, test = item.path.relative_to(TESTS), getattr(item, "originalname", "")
    return not {path.parts[0], path.as_posix(), f"{path.as_posix()}::{test}"}.isdisjoint(listed)


def _params(item: pytest.Item) -> dict[str, Any]:
    found: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return found


def _without_engine(item: pytest.Item) -> str:
    return item.nodeid.replace(str(_engine(item)), "")


def _engine(item: pytest.Item) -> str | None:
    """The engine it runs on, if it may run on another one."""
    params = _params(item)
    found: str | None = params.get("flavour", params.get("tls_flavour"))
    return found


def _is_wanted(item: pytest.Item, engines: dict[str, list[str]]) -> bool:
    engine = _engine(item)
    if engine is None or _is_in(item, ON_EVERY):
        return True
    name = _without_engine(item)
    mine, number = engines[name], _number(name)
    if _is_in(item, ON_NEWEST) and NEWEST in mine:
        return engine == NEWEST
    if not _is_in(item, ON_TWO) or _is_in(item, BY_TURNS) or len(mine) < len(FLAVOURS):
        return engine == mine[number % len(mine)]
    number = _number(getattr(item, "originalname", item.name))
    pair = PAIRS[number % len(PAIRS)]
    client = next((CLIENTS.index(value) for value in _params(item).values() if value in CLIENTS), None)
    return engine in pair if client is None else engine == pair[(number // len(PAIRS) + client) % len(pair)]


def _number(text: str) -> int:
    """The same in every process."""
    return zlib.crc32(text.encode())
