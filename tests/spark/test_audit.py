"""audit: names what is wrong between regions, and nothing that is merely on its way; repair heals it."""

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.keys import strand as strand_key
from braidstream.plan.plan import Batch, Plan
from braidstream.spark.jobs import copies
from braidstream.spark.jobs import repair as repairing
from braidstream.spark.jobs.audit import Anomaly, Auditor, Report
from braidstream.spark.jobs.audit_report import as_facts, as_page
from braidstream.spark.jobs.repair import repair
from braidstream.spark.options import Servers
from tests.support.servers import Engine
from tests.support.up import braid_up
from tests.support.world import World

ONE = strand_key(b"orders", "s", 1)


def auditor(world: World, settle_s: float = 0.0) -> Auditor:
    regions = {number: Servers((world.engines[number - 1].url,), {}) for number in world}
    return Auditor(None, regions, streams=(b"orders",), settle_s=settle_s)


def audit(world: World, settle_s: float = 0.0) -> Report:
    made = auditor(world, settle_s)
    try:
        return made.run()
    finally:
        made.close()


def healed(world: World) -> list[Anomaly]:
    made = auditor(world)
    try:
        return repair(made, made.run().anomalies)
    finally:
        made.close()


def raw(world: World, region: int) -> Any:
    return world.engines[region - 1].client()


def fill(world: World, count: int) -> list[str]:
    """Entries of region 1, in all regions."""
    with world[1].pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.xadd("orders", {"n": n})
        added: list[str] = pipe.execute()
    world[2].xadd("orders", {"n": "of region 2"})
    world.sync()
    return added


def native(user: str) -> str:
    ms, seq = user.split("-")
    return f"{ms}-{int(seq) >> 10}"


def kinds(report: Report) -> dict[tuple[str, int], int]:
    return dict(Counter((each.kind, each.region) for each in report.anomalies))


def test_regions_that_are_alike_have_no_anomaly(world: World) -> None:
    fill(world, 300)
    report = audit(world)
    assert (report.anomalies, report.rows) == ([], 3 * 301)
    assert not any((*report.behind.values(), *report.removing.values()))


def test_what_is_on_its_way_is_not_wrong(world: World) -> None:
    added = fill(world, 20)
    world[1].xadd("orders", {"n": "not shipped"})
    world[2].xdel("orders", added[5])
    world[3].xtrim("orders", minid=added[3], approximate=False)
    world[3].xgroup_create("orders", "bills", "0")
    report = audit(world)
    assert report.anomalies == []
    assert report.behind == {1: 0, 2: 1, 3: 1}
    assert report.removing[1] >= 3
    world[1].delete("orders")
    assert audit(world).anomalies == []
    world.sync()
    assert audit(world).anomalies == []


def plant(world: World, kind: str, users: list[str]) -> int:
    """Faults behind our back, and the region that has them."""
    natives = [native(user) for user in users]
    if kind == "lost":
        with raw(world, 2) as client:
            client.xdel(ONE, *natives)
        return 2
    if kind == "diverged":
        with raw(world, 3) as client:
            other = {each.encode(): {b"n": b"other"} for each in natives}
            rewrite(client, {**dict(client.xrange(ONE)), **other})
        return 3
    with raw(world, 1) as client:
        for user in users:
            client.xadd(strand_key(b"orders", "c", 1), {"n": "twice"}, id=user)
        client.hset("bs:meta:{orders}", "c1", "0:+:0-0")
    return 1


def rewrite(client: Any, entries: dict[bytes, dict[bytes, bytes]]) -> None:
    """Put another content in the place of a copy."""
    last = client.xinfo_stream(ONE)["last-generated-id"]
    client.delete(ONE)
    for entry, fields in entries.items():
        client.xadd(ONE, fields, id=entry)
    client.execute_command("XSETID", ONE, last)


@pytest.mark.parametrize("kind", ["lost", "diverged", "duplicated"])
def test_every_planted_fault_is_found_and_healed(world: World, kind: str) -> None:
    added = fill(world, 400)
    chosen = [added[place] for place in sorted(Random(kind).sample(range(1, 399), 100))]
    region = plant(world, kind, chosen)
    report = audit(world)
    assert kinds(report) == {(kind, region): 100}
    assert {each.id for each in report.anomalies} == set(chosen)
    assert all(each.healed for each in healed(world))
    assert audit(world).anomalies == []
    numbers = [fields["n"] for _, fields in world[2].xrange("orders")]
    assert numbers[:400] == [str(n) for n in range(400)]


def test_a_repair_that_is_refused_half_way_leaves_no_copy_behind(world: World) -> None:
    plant(world, "lost", fill(world, 20)[5:10])
    with raw(world, 2) as client:
        client.execute_command("ACL", "SETUSER", "default", "-xsetid")
        try:
            with pytest.raises(ReplyError, match="NOPERM"):
                healed(world)
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+xsetid")
        assert list(client.scan_iter("bs:copy:*")) == []
    assert all(each.healed for each in healed(world))


def test_a_value_that_looks_like_more_fields_is_diverged(world: World) -> None:
    """Digests of fields joined by NUL were equal."""
    entry = world[1].xadd("orders", {"a": "x", "b": "y"})
    world.sync()
    with raw(world, 3) as client:
        rewrite(client, {native(entry).encode(): {b"a": b"x\0b\0y"}})
    assert kinds(audit(world)) == {("diverged", 3): 1}


def test_entries_that_came_back_are_resurrected_and_go_again(world: World) -> None:
    added = fill(world, 200)
    chosen = added[50:150]
    with raw(world, 3) as client:
        before = dict(client.xrange(ONE))
    world[1].xdel("orders", *chosen)
    world.sync()
    with raw(world, 3) as client:
        rewrite(client, before)  # as from a snapshot from before the deletions
    report = audit(world)
    assert kinds(report) == {("resurrected", 3): 100}
    assert all(each.healed for each in healed(world))
    assert audit(world).anomalies == []


def test_what_an_engine_lost_while_it_was_written_is_found_and_put_back(world: World) -> None:
    """It comes back from an old snapshot, and takes new entries before a peer brings it the lost ones."""
    fill(world, 10)
    with raw(world, 1) as client:
        snapshot = client.dump(ONE)
        lost = [world[1].xadd("orders", {"n": n}) for n in range(5)]
        world.sync()
        client.restore(ONE, 0, snapshot, replace=True)
    world[1].xadd("orders", {"n": "after"})
    world.sync()
    report = audit(world)
    assert kinds(report) == {("lost", 1): 5}
    assert {each.id for each in report.anomalies} == set(lost)
    assert all(each.healed for each in healed(world))
    assert audit(world).anomalies == []
    assert world[1].xrange("orders") == world[2].xrange("orders") == world[3].xrange("orders")


def test_what_was_lost_is_put_back_although_journals_are_trimmed(world: World) -> None:
    """As daemons do once all peers have applied them. An entry below a deleted one may be deleted too."""
    added = fill(world, 10)
    for entry in (added[1], added[2], added[5]):
        world[1].xdel("orders", entry)
    world.sync()
    for region in world:
        with raw(world, region) as client:
            client.xtrim(keys.journal(b"orders", 1), maxlen=1, approximate=False)
    with raw(world, 2) as client:
        copy = client.xrange(ONE)
        client.delete(ONE)
        lost = [native(added[4]), native(added[7])]
        for entry, fields in copy:
            if entry.decode() not in lost:
                client.xadd(ONE, fields, id=entry)
        last = copy[-1][0].decode()
        client.execute_command("XSETID", ONE, last, "ENTRIESADDED", 10, "MAXDELETEDID", native(added[5]))
    found = {each.id: (each.kind, each.region, each.healed) for each in healed(world)}
    assert found == {added[4]: ("lost", 2, False), added[7]: ("lost", 2, True)}
    assert added[7] in [entry for entry, _ in world[2].xrange("orders")]


def test_entries_lost_after_the_last_that_is_left_are_put_back(world: World) -> None:
    added = fill(world, 10)
    plant(world, "lost", [added[3], *added[7:]])
    assert [each.healed for each in healed(world)] == [True] * 4
    assert audit(world).anomalies == []
    plant(world, "lost", added[1:])  # the first stays: without it they would look trimmed
    assert [each.healed for each in healed(world)] == [True] * 9
    assert world[2].xrange("orders") == world[1].xrange("orders")
    world[1].xadd("orders", {"n": "goes on"})
    world.sync()
    assert audit(world).anomalies == []


def test_a_strand_that_expires_does_so_after_a_repair(world: World) -> None:
    added = fill(world, 10)
    plant(world, "lost", [added[3]])
    with raw(world, 2) as client:
        client.pexpireat(ONE, 9_000_000_000_000)
        assert [each.healed for each in healed(world)] == [True]
        assert client.pexpiretime(ONE) == 9_000_000_000_000


def test_a_plan_starts_over_on_the_next_server(engine: Engine) -> None:
    runs = list[Engine]()
    with Engine() as lost:
        made = Auditor(None, {1: Servers((lost.url, engine.url), {})})

        def plan() -> Plan[bytes]:
            runs.append(lost)
            yield Batch([("PING",)])
            if len(runs) == 1:
                lost.stop()
            [reply] = yield Batch([("ECHO", b"here")])
            return bytes(reply)

        assert made.run_plan(1, b"x", plan) == b"here"
        made.close()
    assert len(runs) == 2


def test_a_repair_brings_nothing_back_that_is_removed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = fill(world, 10)
    plant(world, "lost", [added[5]])
    real = repairing._last_step

    def overtaken(*how: Any) -> Any:
        world[2].xdel("orders", added[4])
        world[2].xtrim("orders", minid=added[2], approximate=False)
        return (yield from real(*how))

    with monkeypatch.context() as here:
        here.setattr(repairing, "_last_step", overtaken)
        assert [(each.healed, each.note) for each in healed(world)] == [(False, repairing.BUSY)]
    left = [added[2], added[3], *added[6:]]
    assert [entry for entry, _ in world[2].xrange("orders", max=added[9])] == left
    with raw(world, 2) as client:
        assert list(client.scan_iter("bs:copy*")) == []
    world.sync()
    assert [each.healed for each in healed(world)] == [True]
    assert [entry for entry, _ in world[1].xrange("orders", max=added[9])] == sorted([*left, added[5]])
    assert audit(world).anomalies == []


def test_a_repair_keeps_groups_and_what_is_pending(world: World) -> None:
    added = fill(world, 10)
    world[1].xgroup_create("orders", "bills", "0")
    world.sync()
    given = world[2].xreadgroup("bills", "anna", {"orders": ">"}, count=6)
    world[2].xack("orders", "bills", added[0])
    assert len(given[0][1]) == 6
    pending = world[2].xpending("orders", "bills")
    plant(world, "lost", [added[3]])
    assert [each.healed for each in healed(world)] == [True]
    assert world[2].xpending("orders", "bills") == pending
    assert world[2].xlen("orders") == 11
    rest = world[2].xreadgroup("bills", "anna", {"orders": ">"})
    assert len(rest[0][1]) == 5
    world[2].xadd("orders", {"n": "goes on"})
    world.sync()
    assert audit(world).anomalies == []


def test_a_group_that_a_strand_lost_is_named_and_made_again(world: World) -> None:
    fill(world, 5)
    world[1].xgroup_create("orders", "bills", "0")
    world.sync()
    with raw(world, 2) as client:
        client.xgroup_destroy(ONE, "bills")
    report = audit(world)
    assert [(each.kind, each.id, each.region, each.note) for each in report.anomalies] == [
        ("lost", "bills", 2, "group")
    ]
    assert [each.healed for each in healed(world)] == [True]
    assert audit(world).anomalies == []


def test_a_group_that_is_destroyed_during_the_audit_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 5)
    world[1].xgroup_create("orders", "bills", "0")
    world.sync()
    real = copies.look

    def late(name: bytes) -> Any:
        """After the registry was read, before the groups of the strands are."""
        world[2].xgroup_destroy("orders", "bills")
        world.sync()
        return (yield from real(name))

    monkeypatch.setattr(copies, "look", late)
    assert healed(world) == []
    assert world[2].xinfo_groups("orders") == []


def test_nothing_false_is_named_while_regions_are_written_and_links_run(world: World) -> None:
    """The audit takes its looks between any steps of writers and links."""
    dice, added = Random(3), fill(world, 50)
    made = auditor(world)
    real = made.run_plan

    def busy(*how: Any) -> Any:
        for _ in range(2):
            step(dice, world, added)
        return real(*how)

    made.run_plan = busy  # type: ignore[method-assign]
    try:
        for _ in range(5):
            assert made.run().anomalies == []
    finally:
        made.close()


def test_nothing_false_is_named_in_regions_with_real_daemons_under_load() -> None:
    stop = threading.Event()

    def write(client: Any, seed: int) -> None:
        dice, mine = Random(seed), list[str]()
        with client:
            while not stop.is_set():
                mine.append(client.xadd("orders", {"n": dice.random()}))
                if dice.random() < 0.2:
                    client.xdel("orders", dice.choice(mine))
                if dice.random() < 0.02:
                    client.xtrim("orders", maxlen=500, approximate=False)

    with braid_up(3, "redis-8.10") as up:
        writers = [threading.Thread(target=write, args=(up.client(region), region)) for region in up.urls]
        for writer in writers:
            writer.start()
        regions = {region: Servers((url,), {}) for region, url in up.urls.items()}
        made = Auditor(None, regions, streams=(b"orders",), settle_s=5)
        try:
            looks = [made.run() for _ in range(2)]
        finally:
            stop.set()
            for writer in writers:
                writer.join()
            made.close()
    assert [look.anomalies for look in looks] == [[], []]
    assert looks[-1].rows > 0


def step(dice: Random, world: World, added: list[str]) -> None:
    what, region = dice.random(), dice.choice(list(world))
    if what < 0.4:
        added.append(world[region].xadd("orders", {"n": dice.random()}))
    elif what < 0.55:
        world[region].xdel("orders", dice.choice(added))
    elif what < 0.6:
        world[region].xtrim("orders", maxlen=60, approximate=False)
    else:
        source, target = dice.sample(list(world), 2)
        asyncio.run(world.links[source, target].sync(b"orders", relay=False))


def test_the_report_tells_text_json_and_a_page(world: World) -> None:
    added = fill(world, 30)
    plant(world, "lost", added[4:6])
    world[3].xadd("orders", {"n": "late"})
    report = audit(world)
    facts = as_facts(report)
    assert (facts["wrong"], facts["behind"]) == (2, {"1": 1, "2": 1, "3": 0})
    assert {each["id"] for each in facts["anomalies"]} == set(added[4:6])
    page = as_page(report)
    assert page.count("<svg") == 3  # a picture for each pair
    assert added[4] in page
    assert "lost in region 2" in page


def test_braid_spark_audit_does_it_under_spark(spark: SparkSession, world: World, tmp_path: Path) -> None:
    added = fill(world, 30)
    plant(world, "lost", added[7:9])
    config, page = tmp_path / "braid.toml", tmp_path / "audit.html"
    regions = (
        f'[[region]]\nid = {number}\nname = "r{number}"\nurl = "{world.engines[number - 1].url}"\n'
        for number in world
    )
    config.write_text("".join(regions))
    words = ["spark", "audit", "--config", str(config), "--pattern", "*", "--settle", "0s"]
    told = CliRunner().invoke(app, [*words, "--html", str(page)])
    assert told.exit_code == 1, told.output
    assert f"lost in region 2: orders s1 {added[7]}" in told.stdout
    assert added[8] in page.read_text()
    told = CliRunner().invoke(app, [*words, "--repair", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["healed"] == 2
    assert audit(world).anomalies == []


def test_an_audit_of_many_streams_is_a_job_or_two(spark: SparkSession, world: World) -> None:
    added = [world[1].xadd(f"orders-{n % 40}", {"n": n}) for n in range(120)]
    world.sync()
    with raw(world, 2) as client:
        client.xdel(strand_key(b"orders-7", "s", 1), native(added[47]))
    regions = {number: Servers((world.engines[number - 1].url,), {}) for number in world}
    made, context = Auditor(spark, regions, pattern=b"orders-*", settle_s=0.0), spark.sparkContext
    context.setJobGroup("audit", "")
    try:
        report = made.run()
    finally:
        made.close()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert [(each.kind, each.stream, each.region) for each in report.anomalies] == [("lost", "orders-7", 2)]
    assert len(report.stretches) == 40
    assert len(context.statusTracker().getJobIdsForGroup("audit")) <= 5
