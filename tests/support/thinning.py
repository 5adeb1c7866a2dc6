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
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers import FLAVOURS

TESTS: Final = Path(__file__).resolve().parents[1]
PAIRS: Final = (("redis-7.0", "valkey-9.1"), ("redis-8.10", "valkey-8.0"))
CLIENTS: Final = ("sync", "asyncio")
ONE: Final = "redis-8.10"
ON_ONE: Final = {
    "cli",
    "console",
    "client/test_snippets.py",
    "gateway/test_gateway_exposure.py",
    "gateway/test_gateway_service.py",
}
BY_TURNS: Final = {
    "clients",
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
    "engine/test_cluster_node.py",
    "engine/test_cluster_region.py",
    "engine/test_cluster_verbs.py",
    "gateway/test_announced_gateways.py",
    "gateway/test_cluster_gateway.py",
    "gateway/test_cluster_gateway_contract.py",
    "gateway/test_cluster_gateway_moves.py",
    "gateway/test_gateway_crowd.py",
    "gateway/test_gateway_hostile.py",
    "gateway/test_gateway_logins.py",
    "gateway/test_gateway_losses.py",
    "gateway/test_gateway_restart.py",
    "docs/test_tutorial.py",
    "long/losses/test_losses.py",
    "long/test_adopt_live.py",
    "long/test_cluster_differential.py",
    "long/test_cluster_moves.py",
    "long/test_cluster_soak.py",
    "long/test_consumers.py",
    "long/test_differential.py::test_drawn_sequences_get_the_bare_engines_replies",
    "long/test_groups.py",
    "long/test_long_pages.py",
    "long/test_soak.py",
    "long/test_weaving.py",
    "regions/test_ack_ranges.py",
    "regions/test_clocks.py",
    "regions/test_cluster_facts.py",
    "regions/test_cluster_regions.py",
    "regions/test_cluster_rejoin.py",
    "regions/test_cluster_takeover.py",
    "regions/test_compressed_links.py",
    "regions/test_hostile_receivers.py",
    "regions/test_daemons.py",
    "regions/test_deadlines.py",
    "regions/test_deadlines_of_chosen_ids.py",
    "regions/test_durability.py",
    "regions/test_flushed_regions.py",
    "regions/test_identity.py",
    "regions/test_ids_again.py",
    "regions/test_links.py",
    "regions/test_log_epoch_ends.py",
    "regions/test_log_kills.py",
    "regions/test_log_rescue.py",
    "regions/test_long_absence.py",
    "regions/test_lost_data.py",
    "regions/test_own_server.py",
    "regions/test_region_changes.py",
    "regions/test_replication_security.py",
    "regions/test_sentinels.py",
    "regions/test_selection.py",
    "regions/test_sick_regions.py",
    "regions/test_takeover.py",
    "regions/test_typed_daemons.py",
}
ON_TWO: Final = {
    "regions",
    "client/test_consumer.py",
    "client/test_group_deletion.py",
    "client/test_group_late.py",
    "client/test_group_races.py",
    "client/test_multi.py",
    "client/test_traps.py",
    "engine/test_acl_guide.py",
    "engine/test_cluster.py",
    "client/test_adopt.py",
    "client/test_adopt_undo.py",
    "client/test_one_append.py",
    "engine/test_engines_start_and_stop.py",
    "engine/test_migrating_slot.py",
    "gateway/test_gateway_guard.py",
    "gateway/test_gateway_subscriptions.py",
    "gateway/test_gateway_words.py",
    "long/test_gateway_differential.py",
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
    if params.get("flavour") in FLAVOURS:
        return str(params["flavour"])
    found: str | None = params.get("tls_flavour")
    return found


def _is_wanted(item: pytest.Item, engines: dict[str, list[str]]) -> bool:
    params, engine = _params(item), _engine(item)
    if engine is None:
        return True
    if _is_in(item, BY_TURNS):
        name = _without_engine(item)
        return bool(engine == engines[name][_number(name) % len(engines[name])])
    if "flavour" not in params:  # one with TLS
        return True
    if _is_in(item, ON_ONE):
        return bool(engine == ONE)
    client = next((CLIENTS.index(value) for value in params.values() if value in CLIENTS), None)
    if client is None and not _is_in(item, ON_TWO):
        return True
    pair = _number(getattr(item, "originalname", item.name)) + (client or 0)
    return engine in PAIRS[pair % len(PAIRS)]


def _number(text: str) -> int:
    """The same in every process."""
    return zlib.crc32(text.encode())
