"""Entries for later, promoted by the daemons of two regions."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import braidstream
from braidstream.clusters.command_keys import slot_of
from braidstream.model import ids, keys
from braidstream.operations.later_promotion import find_strands, promote
from braidstream.plan.view import Carriage
from tests.regions.test_cluster_regions import clients_of
from tests.regions.test_cluster_regions import numbered as numbered_regions
from tests.support.cli import braid
from tests.support.cluster import Cluster, SlotMove
from tests.support.daemons import Daemon, all_replicating, numbered, write_config
from tests.support.regions import client_of
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.two_regions import WITHIN_S, TwoRegions, have_heard, separable_regions, two_regions
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

TAKEOVER_S = 5
TAKEOVER = f"[groups]\ntakeover_after_s = {TAKEOVER_S}\n"
_AOF = ["--appendonly", "yes", "--appendfsync", "always"]


@pytest.fixture(scope="module", params=NEWEST)
def regions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRegions]:
    with two_regions(request.param, tmp_path_factory.mktemp("regions")) as made:
        yield made


def numbers(client: Any, name: str) -> list[str]:
    """The field `n` of all entries."""
    return [fields["n"] for _, fields in client.xrange(name)]


def waits(client: Any, name: str) -> int:
    return int(client.xlen(f"{{{name}}}.later"))


def become_equal(clients: list[Any], name: str, entries: int, *, waiting: int = 0) -> None:
    """Both regions have so many entries, the same ones, and so many wait."""

    def seen() -> Any:
        rows = [client.xrange(name) for client in clients]
        left = [waits(client, name) for client in clients]
        return rows[0] == rows[1] and len(rows[0]) == entries and left == [waiting] * len(clients)

    try:
        eventually(seen, within_s=WITHIN_S, why=f"{name} should have {entries} entries everywhere")
    except AssertionError:
        print(*((len(numbers(client, name)), waits(client, name)) for client in clients))
        raise


def test_entries_appear_when_they_are_due_and_in_that_order(regions: TwoRegions) -> None:
    one, two = regions.clients
    began_ms = time.time() * 1000
    for delay in (3.0, 0.6, 1.8):
        one.xadd("orders", {"n": str(delay), "price": "9"}, delay=delay)
    at = datetime.now(UTC) + timedelta(seconds=2.4)
    two.xadd("orders", {"n": "at"}, at=at)
    gone = one.xadd("orders", {"n": "never"}, delay=60)
    listed = one.later("orders")
    assert [fields for _, _, fields in listed][-2:] == [{"n": "3.0", "price": "9"}, {"n": "never"}]
    assert [due for due, _, _ in listed] == sorted(due for due, _, _ in listed)
    assert one.cancel_later("orders", gone) == 1
    become_equal([one, two], "orders", 4)
    assert [number for number in numbers(one, "orders") if number != "at"] == ["0.6", "1.8", "3.0"]
    assert one.xrange("orders")[0][1] == {"n": "0.6", "price": "9"}
    for entry, fields in one.xrange("orders"):
        due_ms = at.timestamp() * 1000 if fields["n"] == "at" else began_ms + 1000 * float(fields["n"])
        late_ms = int(entry.partition("-")[0]) - due_ms
        assert -5 <= late_ms < 30_000, "not early, and late only on a busy machine"
    assert one.cancel_later("orders", gone) == 0
    assert one.later("orders") == []


def test_any_client_writes_them_with_a_plain_xadd(regions: TwoRegions) -> None:
    one, two = regions.clients
    one.execute_command("XADD", "{plain}.later", "*", "later.delay", "300", "n", "1")
    now_ms = round(time.time() * 1000)
    two.execute_command("XADD", "{plain}.later", "*", "n", "2", "later.at", str(now_ms + 600))
    with one.pipeline() as pipe:
        pipe.xadd("plain", {"n": "3"}, delay=0.9)
        pipe.xadd("plain", {"n": "0"})
        pipe.execute()
    become_equal([one, two], "plain", 4)
    assert sorted(numbers(one, "plain")) == ["0", "1", "2", "3"]


def test_a_group_that_waits_gets_them(regions: TwoRegions, background: ThreadPoolExecutor) -> None:
    one, two = regions.clients
    one.xgroup_create("awaited", "jobs", "0", mkstream=True)
    eventually(lambda: two.exists("awaited"), within_s=WITHIN_S, why="the group is there too")
    read = background.submit(two.xreadgroup, "jobs", "ann", {"awaited": ">"}, block=20_000)
    one.xadd("awaited", {"n": "1"}, delay=0.5)
    [[_, [(_, fields)]]] = read.result(WITHIN_S)
    assert fields == {"n": "1"}


def test_a_daemon_that_is_killed_again_and_again_promotes_each_once(regions: TwoRegions) -> None:
    one, two = regions.clients
    dice = random.Random(7)
    for number in range(200):
        one.xadd("killed", {"n": str(number)}, delay=2 + number / 50)
    while waits(one, "killed"):
        time.sleep(dice.uniform(0.1, 0.8))
        regions.daemons[1].kill()
        regions.daemons[1].start()
        regions.daemons[1].tells("daemon.ready")
    become_equal([one, two], "killed", 200)
    assert Counter(numbers(two, "killed")) == {str(number): 1 for number in range(200)}


def test_three_promoters_at_once_promote_each_once(regions: TwoRegions) -> None:
    one, two = regions.clients
    regions.daemons[1].kill()
    for number in range(100):
        one.xadd("crowd", {"n": str(number)}, delay=0)
    [strand] = one.run_plan(find_strands([b"{crowd}.later"]))[b"{crowd}.later"]
    due = [(strand, ids.native(entry)) for entry, _ in strand_entries(regions.engines[0], strand.key)]

    def promoter() -> list[Any]:
        with client_of(regions.engines[0]) as client:
            return client.converse(lambda view_of: promote(view_of(Carriage.ALONE), b"crowd", due))

    with ThreadPoolExecutor(3) as pool:
        done = [work.result(WITHIN_S) for work in [pool.submit(promoter) for _ in range(3)]]
    assert [sum(each is not None for each in some) for some in zip(*done, strict=True)] == [1] * 100
    assert waits(one, "crowd") == 0
    regions.daemons[1].start()
    regions.daemons[1].tells("daemon.ready")
    become_equal([one, two], "crowd", 100)


def strand_entries(engine: Engine, key: bytes) -> list[Any]:
    with engine.client() as client:
        found: list[Any] = client.xrange(key)
        return found


def test_of_a_cancellation_and_a_promotion_at_once_exactly_one_happens(regions: TwoRegions) -> None:
    one, two = regions.clients

    def race(number: int) -> int:
        entry = one.xadd("raced", {"n": str(number)}, delay=0.05)
        time.sleep(random.Random(number).uniform(0, 0.5))
        return one.cancel_later("raced", entry)

    with ThreadPoolExecutor(10) as pool:
        cancelled = {str(number): won for number, won in enumerate(pool.map(race, range(100)))}
    assert 5 < sum(cancelled.values()) < 95, "both sides should win now and then"
    become_equal([one, two], "raced", 100 - sum(cancelled.values()))
    assert set(numbers(one, "raced")) == {number for number, won in cancelled.items() if not won}


def test_a_cancellation_in_another_region_arrives(regions: TwoRegions) -> None:
    one, two = regions.clients
    entry = one.xadd("far", {"n": "1"}, delay=6)
    one.xadd("far", {"n": "2"}, delay=7)
    eventually(lambda: waits(two, "far") == 2, within_s=WITHIN_S, why="both arrive")
    assert two.cancel_later("far", entry) == 1
    become_equal([one, two], "far", 1)
    assert numbers(one, "far") == ["2"]
    assert two.cancel_later("far", entry) == 0, "it is too late"


HOSTILE: list[dict[bytes, bytes]] = [
    {b"later.delay": b"1" + b"0" * 300, b"n": b"x"},
    {b"later.delay": b"NaN", b"n": b"x"},
    {b"later.delay": b"-1", b"n": b"x"},
    {b"later.at": b"253402300800000", b"n": b"x"},
    {b"n": b"x"},
    {b"later.delay": b"1"},
    {b"later.delay": b"1", b"later.at": b"1", b"n": b"x"},
    {b"later.delay": b"1", b"later.group": b"g" * 5_000, b"n": b"x"},
    {b"later.delay": b"1", **{b"f%d" % number: b"" for number in range(3_000)}},
]


def test_a_wrong_entry_is_named_and_stops_nothing_else(regions: TwoRegions) -> None:
    one, two = regions.clients
    with client_of(regions.engines[0]) as raw:
        for fields in HOSTILE:
            raw.xadd("{hostile}.later", fields)
            raw.xadd("hostile", {"n": "fine"}, delay=0.2)
    become_equal([one, two], "hostile", len(HOSTILE), waiting=len(HOSTILE))
    assert set(numbers(one, "hostile")) == {"fine"}
    assert "why=" in regions.daemons[1].tells("later.refused stream={hostile}.later id=")
    due = [due for due, _, _ in one.later("hostile")]
    assert due.count(None) == len(HOSTILE) - 1, "the group's name is too long, which the daemon says"


def test_a_target_that_refuses_keeps_its_entries_and_holds_up_no_other(regions: TwoRegions) -> None:
    one, two = regions.clients
    with regions.engines[0].client() as bare:
        bare.set("taken", "a plain key")
        one.xadd("{taken}.later", {"later.delay": "1", "n": "1"})
        one.twrite("ledger", "tag", "entry")
        one.xadd("{ledger}.later", {"later.delay": "1", "n": "1"})
        one.xadd("free", {"n": "1"}, delay=0.5)
        become_equal([one, two], "free", 1)
        said = {regions.daemons[1].tells("later.refused stream={taken}.later")} | {
            line for line in regions.daemons[1].said("later.refused") if "{ledger}" in line
        }
        assert any("WRONGTYPE" in line for line in said)
        assert waits(one, "taken") == 1
        bare.delete("taken")
    become_equal([one, two], "taken", 1)


def test_a_full_server_promotes_when_it_has_room_again(regions: TwoRegions) -> None:
    one, two = regions.clients
    one.xadd("full", {"n": "1"}, delay=1)
    with regions.engines[0].client() as bare:
        bare.config_set("maxmemory", "1mb")
        assert "OOM" in regions.daemons[1].tells("later.refused stream={full}.later")
        assert waits(one, "full") == 1
        bare.config_set("maxmemory", 0)
    become_equal([one, two], "full", 1)


def test_waiting_entries_are_exchanged_if_their_stream_is(flavour: Flavour, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        config = write_config(tmp_path / "braid.toml", numbered(engines))
        text = config.read_text().replace("id = 1\n", 'id = 1\ninclude = ["orders*"]\nexclude = ["*.tmp"]\n')
        config.write_text(text)
        for number in (1, 2):
            stack.enter_context(Daemon(config, number)).tells("daemon.ready")
        one, two = (stack.enter_context(client_of(each, decode_responses=True)) for each in engines)
        for name in ("orders", "orders.tmp", "payments"):
            one.xadd(name, {"n": "1"}, delay=1)
        eventually(lambda: waits(two, "orders") == 1, within_s=WITHIN_S, why="it goes where its stream goes")
        become_equal([one, two], "orders", 1)
        eventually(lambda: one.xlen("payments") == 1, within_s=WITHIN_S, why="it is promoted here")
        assert [two.exists(f"{{{name}}}.later") for name in ("orders.tmp", "payments")] == [0, 0]
        assert one.xlen("orders.tmp") == 1


def test_what_both_regions_promote_while_apart_is_there_once(flavour: Flavour, tmp_path: Path) -> None:
    with separable_regions(flavour, tmp_path, TAKEOVER) as (clients, between):
        count = 300
        with clients[0].pipeline(transaction=False) as pipe:
            for number in range(count):
                pipe.xadd("apart", {"n": str(number)}, delay=2 * TAKEOVER_S)
            pipe.execute()
        eventually(lambda: waits(clients[1], "apart") == count, within_s=WITHIN_S, why="they arrive")
        for proxy in between:
            proxy.cut_off()
        for client in clients:
            eventually(
                lambda client=client: client.xlen("apart") == count,  # type: ignore[misc]
                within_s=60,
                why="each region promotes all of them",
            )
        for proxy in between:
            proxy.open()
        become_equal(clients, "apart", count)
        assert Counter(numbers(clients[0], "apart")) == {str(number): 1 for number in range(count)}


def test_a_lost_region_is_taken_over_and_what_it_promoted_unseen_is_there_once(
    flavour: Flavour, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour, args=_AOF)) for _ in range(2)]
        config = write_config(tmp_path / "braid.toml", numbered(engines))
        config.write_text(f"{config.read_text()}{TAKEOVER}")
        daemons = [stack.enter_context(Daemon(config, number)) for number in (1, 2)]
        for daemon in daemons:
            daemon.tells("daemon.ready")
        clients = [stack.enter_context(client_of(each, decode_responses=True)) for each in engines]
        one, two = clients
        have_heard(engines)
        for number in range(50):
            one.xadd("lost", {"n": str(number)}, delay=4)
        eventually(lambda: waits(two, "lost") == 50, within_s=WITHIN_S, why="they arrive")
        daemons[0].kill()
        [strand] = one.run_plan(find_strands([b"{lost}.later"]))[b"{lost}.later"]
        due = [(strand, ids.native(entry)) for entry, _ in strand_entries(engines[0], strand.key)]
        some = one.converse(lambda view_of: promote(view_of(Carriage.ALONE), b"lost", due[:20]))
        assert all(some), "region 1 promotes 20 of them, and nobody hears of it"
        engines[0].kill()
        eventually(lambda: two.xlen("lost") == 50, within_s=60, why="region 2 takes over")
        assert waits(two, "lost") == 0
        engines[0].restart()
        daemons[0].start()
        become_equal(clients, "lost", 50)
        assert Counter(numbers(one, "lost")) == {str(number): 1 for number in range(50)}


def test_a_region_that_was_removed_is_replaced_by_the_smallest_that_is_left(
    flavour: Flavour, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        config = write_config(tmp_path / "braid.toml", numbered(engines))
        daemons = {number: stack.enter_context(Daemon(config, number)) for number in (1, 2)}
        for daemon in daemons.values():
            daemon.tells("daemon.ready")
        one, two = (stack.enter_context(client_of(each, decode_responses=True)) for each in engines)
        one.xadd("left", {"n": "1"}, delay=4)
        eventually(lambda: waits(two, "left") == 1, within_s=WITHIN_S, why="it arrives")
        daemons[1].kill()
        done = braid("region", "remove", "region-1", "--config", str(config))
        assert done.returncode == 0, done.stderr
        eventually(lambda: two.xlen("left") == 1, within_s=60, why="region 2 is the smallest that is left")


def test_a_cluster_promotes_while_slots_move(flavour: Flavour, cluster: Cluster, tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(6)]
    with ExitStack() as stack:
        server = stack.enter_context(Engine(flavour))
        urls = numbered_regions(cluster, server)
        stack.enter_context(all_replicating(tmp_path, urls))
        clients = stack.enter_context(clients_of(cluster, server))
        for number in range(40):
            for name in names:
                clients[number % 2].xadd(name, {"n": str(number)}, delay=1 + number / 10)
        moved = keys.meta(names[0].encode())
        for _ in range(3):
            with SlotMove(cluster, slot_of(moved)):
                time.sleep(0.5)
        for name in names:
            become_equal(clients, name, 40)
            assert Counter(numbers(clients[1], name)) == {str(number): 1 for number in range(40)}


def test_a_user_with_the_printed_rights_can_use_them(regions: TwoRegions) -> None:
    printed = braid("acl", "writer", "--streams", "granted", "--user", "ann", "--later").stdout
    with regions.engines[0].client() as operator:
        operator.execute_command(*printed.replace("PASSWORD", "secret").split())
    url = regions.engines[0].url.replace("//", "//ann:secret@", 1)
    with braidstream.Redis.from_url(url, decode_responses=True) as ann:
        kept = ann.xadd("granted", {"n": "1"}, delay=0.5)
        gone = ann.xadd("granted", {"n": "2"}, delay=0.5)
        assert {entry for _, entry, _ in ann.later("granted")} == {kept, gone}
        assert ann.cancel_later("granted", gone) == 1
        with pytest.raises(braidstream.exceptions.NoPermissionError):
            ann.xadd("other", {"n": "1"}, delay=1)
    become_equal(regions.clients, "granted", 1)
