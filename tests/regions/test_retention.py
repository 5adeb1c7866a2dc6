"""Retention policies, carried out by the daemons of two regions."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.regions.test_cluster_regions import clients_of
from tests.regions.test_cluster_regions import numbered as numbered_regions
from tests.support.cli import braid
from tests.support.cluster import Cluster
from tests.support.daemons import all_replicating, numbered
from tests.support.regions import become, client_of
from tests.support.servers import NEWEST, Engine
from tests.support.two_regions import WITHIN_S, TwoRegions, two_regions
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

HOUR_S = 3_600
DAY_S = 24 * HOUR_S


@pytest.fixture(scope="module", params=NEWEST)
def regions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRegions]:
    with two_regions(request.param, tmp_path_factory.mktemp("regions")) as made:
        yield made


def add_old(client: Any, name: str, hours: int, *, size: int = 1) -> list[str]:
    """An entry for each of the last hours, the oldest first."""
    now_ms = round(time.time() * 1000)
    found = list[str]()
    with client.pipeline(transaction=False) as pipe:
        for hour in range(hours, 0, -1):
            pipe.xadd(name, {"n": "x" * size}, id=str(now_ms - hour * HOUR_S * 1000))
        found += map(str, pipe.execute())
    return found


def fill(regions: TwoRegions, name: str, hours: int, *, size: int = 1) -> list[str]:
    found = add_old(regions.clients[0], name, hours, size=size)
    regions.await_length(name, hours)
    return found


def set_policy(client: Any, name: str, **words: object) -> None:
    named = {word.replace("_", "-"): str(value) for word, value in words.items()}
    client.xadd("braid.retention", {"streams": name} | named)


def lengths(regions: TwoRegions, name: str) -> list[int]:
    return [int(client.xlen(name)) for client in regions.clients]


def problems(regions: TwoRegions) -> list[str]:
    found = json.loads(braid("status", "--config", str(regions.config), "--json").stdout)["problems"]
    return [f"{each['where']}: {each['text']}" for each in found if each["kind"] == "retention"]


def test_a_policy_that_is_set_in_one_region_cuts_in_both_at_the_same_place(regions: TwoRegions) -> None:
    one, two = regions.clients
    fill(regions, "age", 10 * 24)
    set_policy(two, "age", max_age="7d")
    regions.await_length("age", 7 * 24 - 1)
    assert one.xrange("age") == two.xrange("age")
    oldest_s = time.time() - int(one.xrange("age", count=1)[0][0].partition("-")[0]) / 1000
    assert 6.9 * DAY_S < oldest_s < 7 * DAY_S


def test_a_stream_that_is_created_later_has_the_policy_of_its_pattern(regions: TwoRegions) -> None:
    one, two = regions.clients
    set_policy(one, "later-*", max_age="2h")
    set_policy(one, "later-b", max_age="5h")
    for name in ("later-a", "later-b", "later-a.dead"):
        add_old(one, name, 10)
    set_policy(two, "wakes-the-daemons", max_age="1d")
    for name, left in {"later-a": 1, "later-b": 4, "later-a.dead": 10}.items():
        regions.await_length(name, left)


def test_of_two_policies_that_are_set_at_once_one_counts_everywhere(regions: TwoRegions) -> None:
    one, two = regions.clients
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: set_policy(each[0], "both", max_age=each[1]), [(one, "3h"), (two, "6h")]))
    eventually(
        lambda: one.xrange("braid.retention") == two.xrange("braid.retention"),
        within_s=WITHIN_S,
        why="both should have both",
    )
    [last] = [fields for _, fields in one.xrevrange("braid.retention") if fields["streams"] == "both"][:1]
    add_old(one, "both", 10)
    set_policy(one, "wakes-the-daemons", max_age="1d")
    regions.await_length("both", {"3h": 2, "6h": 5}[last["max-age"]])


def test_off_takes_a_policy_back(regions: TwoRegions) -> None:
    one, _ = regions.clients
    set_policy(one, "off", max_age="1h")
    set_policy(one, "off", off=1)
    for name in ("off", "control"):
        fill(regions, name, 5)
    set_policy(one, "control", max_age="2h")
    regions.await_length("control", 1)
    assert lengths(regions, "off") == [5, 5]


def test_a_region_that_comes_back_obeys_what_was_taken_back_meanwhile(regions: TwoRegions) -> None:
    one, two = regions.clients
    for name in ("kept", "control-3"):
        fill(regions, name, 5)
    for daemon in regions.daemons.values():
        daemon.kill()
    set_policy(two, "kept", max_age="1h")
    set_policy(two, "control-3", max_age="2h")
    time.sleep(0.001)
    set_policy(one, "kept", off=1)
    regions.daemons[2].start()
    try:
        eventually(lambda: two.xlen("control-3") == 1, within_s=WITHIN_S, why="its daemon should look")
        assert two.xlen("kept") == 5
    finally:
        regions.daemons[1].start()
    regions.await_length("control-3", 1)
    assert lengths(regions, "kept") == [5, 5]


def test_a_policy_of_a_peer_counts_when_it_has_arrived(regions: TwoRegions) -> None:
    """Else a peer would not need the right to write the stream of policies here."""
    one, two = regions.clients
    for name in ("theirs", "ours", "control-4"):
        fill(regions, name, 5)
    set_policy(one, "ours", max_age="100d")
    eventually(
        lambda: one.xrange("braid.retention") == two.xrange("braid.retention"),
        within_s=WITHIN_S,
        why="it should arrive",
    )
    regions.daemons[2].kill()
    set_policy(two, "theirs", max_age="2h")
    set_policy(two, "ours", max_age="2h")
    set_policy(one, "control-4", max_age="2h")
    try:
        eventually(lambda: one.xlen("control-4") == 1, within_s=WITHIN_S, why="its daemon should look")
        assert [one.xlen("theirs"), one.xlen("ours")] == [5, 5]
        eventually(
            lambda: any("a later policy of another region" in each for each in problems(regions)),
            within_s=WITHIN_S,
            why="braid status should say for what it waits",
        )
    finally:
        regions.daemons[2].start()
    for name in ("theirs", "ours"):
        regions.await_length(name, 1)


def test_with_acked_nothing_goes_that_a_group_of_any_region_needs(regions: TwoRegions) -> None:
    one, two = regions.clients
    entries = fill(regions, "needed", 200)
    one.xgroup_create("needed", "here", "0")
    one.xreadgroup("here", "c", {"needed": ">"}, count=150)
    one.xack("needed", "here", *entries[:150])
    with regions.apart():
        two.xgroup_create("needed", "there", "0")
        set_policy(one, "needed", max_age="1h", acked=1)
        assert 'why="group there of region 2"' in regions.daemons[1].tells("retention.waits stream=needed")
        eventually(
            lambda: problems(regions) == ["region-1: retention of needed waits for group there of region 2"],
            within_s=WITHIN_S,
            why="braid status should say so",
        )
        assert lengths(regions, "needed") == [200, 200]
        two.xreadgroup("there", "c", {"needed": ">"}, count=100)
        two.xack("needed", "there", *entries[:99])
        set_policy(one, "needed", max_age="1h", acked=1)
        eventually(lambda: one.xlen("needed") == 101, within_s=WITHIN_S, why="that far both have read")
    two.xack("needed", "there", entries[99])
    two.xgroup_destroy("needed", "there")
    eventually(lambda: len(two.xinfo_groups("needed")) == 1, within_s=WITHIN_S, why="it should be gone")
    set_policy(two, "needed", max_age="1h", acked=1)
    regions.await_length("needed", 50)


def test_run_asks_the_other_regions_through_a_daemon(regions: TwoRegions) -> None:
    one, two = regions.clients

    def run() -> str:
        done = braid("retention", "run", "--url", regions.engines[0].url, "--json")
        return str(json.loads(done.stdout)["waits"]["by-hand"])

    entries = fill(regions, "by-hand", 10)
    with regions.apart():
        two.xgroup_create("by-hand", "there", entries[3])
        set_policy(one, "by-hand", max_age="1h", acked=1)
        assert run() == "group there of region 2"
        assert one.xlen("by-hand") == 6
        two.xgroup_setid("by-hand", "there", entries[5])
        regions.daemons[1].process.send_signal(signal.SIGSTOP)
        try:
            assert run() == "region 2 (no daemon of this region answers)"
        finally:
            regions.daemons[1].process.send_signal(signal.SIGCONT)
        assert one.xlen("by-hand") == 6
    two.xgroup_destroy("by-hand", "there")


def test_a_region_that_cannot_be_asked_holds_everything_up_to_hold(regions: TwoRegions) -> None:
    one, _ = regions.clients
    fill(regions, "held", 100)
    with regions.engines[1].paused():
        set_policy(one, "held", max_age="1h", acked=1)
        assert "region 2 (region-2: " in regions.daemons[1].tells("retention.waits stream=held")
        assert one.xlen("held") == 100
        set_policy(one, "held", max_age="1h", acked=1, hold="50h")
        eventually(lambda: one.xlen("held") == 49, within_s=WITHIN_S, why="older ones go all the same")
    set_policy(one, "wakes-the-daemons", max_age="1d")
    regions.await_length("held", 0)  # both can be asked, and nobody needs them


def test_acked_alone_removes_what_all_groups_have_acknowledged(regions: TwoRegions) -> None:
    one, two = regions.clients
    entries = fill(regions, "queue", 10)
    fill(regions, "control-2", 5)
    set_policy(one, "queue", acked=1)
    set_policy(one, "control-2", max_age="2h")
    regions.await_length("control-2", 1)
    assert lengths(regions, "queue") == [10, 10], "without a group it may be anything but a queue"
    one.xgroup_create("queue", "jobs", "0")
    one.xreadgroup("jobs", "c", {"queue": ">"}, count=8)
    one.xack("queue", "jobs", *entries[:5])
    eventually(
        lambda: [each["last-delivered-id"] for each in two.xinfo_groups("queue")] == [entries[4]],
        within_s=WITHIN_S,
        why="the acknowledgements should arrive",
    )
    set_policy(two, "wakes-the-daemons", max_age="1d")
    regions.await_length("queue", 5)
    assert not [each for each in problems(regions) if "queue" in each], "a queue with work is no problem"


def test_max_bytes_ends_below_the_limit_and_never_above_what_is_needed(regions: TwoRegions) -> None:
    one, _ = regions.clients
    entries = fill(regions, "large", 2_000, size=500)
    sizes = [_size(engine, "large") for engine in regions.engines]
    limit = min(sizes) // 2
    one.xgroup_create("large", "jobs", entries[299])
    set_policy(one, "large", max_bytes=limit, acked=1)
    regions.await_length("large", 1_700)
    one.xgroup_destroy("large", "jobs")
    set_policy(one, "large", max_bytes=limit)
    eventually(
        lambda: all(_size(engine, "large") <= limit for engine in regions.engines),
        within_s=WITHIN_S,
        why="it should shrink",
    )
    eventually(lambda: len({*lengths(regions, "large")}) == 1, within_s=WITHIN_S, why="both are equal")
    assert one.xlen("large") > 700, "and not much more than that"


def test_a_stream_that_grows_is_cut_before_the_next_minute(regions: TwoRegions) -> None:
    one, _ = regions.clients
    fill(regions, "control-5", 5)
    fill(regions, "grows", 1_000, size=500)
    limit = 3 * _size(regions.engines[0], "grows") // 2
    set_policy(one, "grows", max_bytes=limit)
    set_policy(one, "control-5", max_age="2h")
    regions.await_length("control-5", 1)
    assert lengths(regions, "grows") == [1_000, 1_000]
    with one.pipeline(transaction=False) as pipe:
        for _ in range(1_000):
            pipe.xadd("grows", {"n": "x" * 500})
        pipe.execute()
    eventually(
        lambda: 1_000 < max(lengths(regions, "grows")) < 1_600, within_s=15, why="nobody sets a policy now"
    )
    assert all(_size(engine, "grows") <= limit for engine in regions.engines)


def _size(engine: Engine, name: str) -> int:
    with engine.client() as client:
        keys = [key for key in client.scan_iter(match=f"bs:*:?:{{{name}}}", count=1000) if b":j:" not in key]
        return sum(client.memory_usage(key, samples=5) or 0 for key in keys)


def test_a_wrong_policy_changes_nothing_and_is_named(regions: TwoRegions) -> None:
    one, _ = regions.clients
    one.xadd("braid.retention", {"streams": "age", "max-aeg": "1s"})
    assert "there is no option 'max-aeg'" in regions.daemons[1].tells("retention.refused")
    listed = json.loads(braid("retention", "list", "--url", regions.engines[0].url, "--json").stdout)
    assert "max-aeg" in listed["refused"][-1]


def test_a_daemon_that_may_not_read_policies_says_so(regions: TwoRegions) -> None:
    one, _ = regions.clients
    one.execute_command("ACL", "SETUSER", "default", "-xrevrange")
    try:
        set_policy(one, "unread", max_age="1d")
        assert "xrevrange" in regions.daemons[1].tells('retention.refused stream=braid.retention why="NOPERM')
    finally:
        one.execute_command("ACL", "SETUSER", "default", "+xrevrange")


def test_a_policy_with_a_chosen_id_beyond_all_dates_is_listed() -> None:
    with Engine(NEWEST[0]) as engine:
        become(engine, id_mode="liberal")
        with client_of(engine) as client:
            client.xadd("braid.retention", {"streams": "x", "acked": "1"}, id="9007199254740993-1")
        assert "9007199254740993 ms" in braid("retention", "list", "--url", engine.url).stdout


def test_chosen_ids_that_are_no_times_stay(regions: TwoRegions, tmp_path: Path) -> None:
    with Engine(NEWEST[0]) as engine:
        become(engine, id_mode="liberal")
        with client_of(engine) as client:
            for number in range(5):
                client.xadd("small", {"n": 1}, id=f"{number + 1}-1")
            done = braid("retention", "set", "*", "--max-age", "1s", "--url", engine.url)
            assert done.returncode == 0, done.stderr
            done = braid("retention", "run", "--url", engine.url, "--json")
            assert json.loads(done.stdout)["removed"] == 0
            assert client.xlen("small") == 5


def test_a_cluster_and_a_server_carry_out_a_policy(cluster: Cluster, tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(6)]
    with ExitStack() as stack:
        two = stack.enter_context(Engine(NEWEST[1]))
        urls = numbered_regions(cluster, two)
        stack.enter_context(all_replicating(tmp_path, urls))
        clients = stack.enter_context(clients_of(cluster, two))

        def have(entries: int) -> None:
            eventually(
                lambda: all(client.xlen(name) == entries for client in clients for name in names),
                within_s=WITHIN_S,
                why=f"all should have {entries}",
            )

        for name in names:
            for entry in _old_ids(10):
                clients[0].xadd(name, {"n": 1}, id=entry)
        have(10)
        clients[1].xgroup_create(names[0], "jobs", "0")
        set_policy(clients[1], "s*", max_age="3h", acked=1)
        eventually(lambda: clients[0].xlen(names[1]) == 2, within_s=WITHIN_S, why="in the cluster too")
        assert [client.xlen(names[0]) for client in clients] == [10, 10]
        assert clients[0].execute_command("XTRIM", names[0], "MAXLEN", 0, "ACKED") == 0
        clients[1].xgroup_destroy(names[0], "jobs")
        set_policy(clients[0], "s*", max_age="3h")
        have(2)


def test_a_region_whose_clock_is_ahead_removes_nothing_sooner_than_the_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(NEWEST[0], clock_s=ahead_s)) for ahead_s in (2 * HOUR_S, 0)]
        stack.enter_context(all_replicating(tmp_path, numbered(engines)))
        clients = [stack.enter_context(client_of(engine)) for engine in engines]
        entries = add_old(clients[1], "clock", 4)
        set_policy(clients[1], "clock", max_age="90m")
        for client in clients:
            eventually(
                lambda client=client: client.xlen("clock") == 1, within_s=WITHIN_S, why="three are too old"
            )
            assert str(client.xrange("clock")[0][0]) == entries[-1]


def _old_ids(hours: int) -> list[str]:
    now_ms = round(time.time() * 1000)
    return [str(now_ms - hour * HOUR_S * 1000) for hour in range(hours, 0, -1)]
