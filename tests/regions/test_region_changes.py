"""Regions that join and leave while traffic goes on."""

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import braidstream
from braidstream.model.journal import KEPT
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.up import braid_up
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 20


def told_by_braid(*words: str) -> dict[str, Any]:
    done = braid(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_what_is_deleted_while_two_regions_meet_is_deleted_in_both(flavour: Flavour, tmp_path: Path) -> None:
    """Clients of a region without peers write no journal, and learn of the first peer within a second."""
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        config = write_config(tmp_path / "braid.toml", numbered(engines))
        for number, engine in enumerate(engines, 1):
            become(engine, region=number, name=f"region-{number}")
        one, two = (stack.enter_context(client_of(each, decode_responses=True)) for each in engines)
        entries = [one.xadd("orders", {"n": str(number)}) for number in range(20)]
        one.xgroup_create("orders", "old", "0")
        clients = list[braidstream.Redis]()
        for number in (1, 2):
            stack.enter_context(Daemon(config, f"region-{number}"))
        copy = stack.enter_context(engines[1].client())
        while copy.xlen("bs:1:s:{orders}") < len(entries):
            if len(clients) < len(entries):
                clients.append(stack.enter_context(client_of(engines[0])))
            for client in clients:  # each reads the region again at another time
                client.xlen("orders")
        seconds, micros = one.time()
        met_ms = int(one.hget("bs:config", "met"))
        assert seconds * 1000 + micros // 1000 - met_ms >= 2000, "no client knows less than its region then"
        for client, entry in zip(clients, entries, strict=False):
            assert client.xdel("orders", entry) == 1
        one.xgroup_destroy("orders", "old")
        last = one.xadd("orders", {"n": "last"})
        why = "both should have the entry that came last"
        eventually(lambda: two.xrange("orders", last), within_s=WITHIN_S, why=why)
        eventually(
            lambda: two.xrange("orders") == one.xrange("orders"),
            within_s=WITHIN_S,
            why="what was deleted in region 1 should be deleted in region 2",
        )
        assert two.xinfo_groups("orders") == []


def test_a_region_that_joins_gets_the_full_state_while_traffic_goes_on(
    flavour: Flavour, tmp_path: Path
) -> None:
    with Engine(flavour) as new, braid_up(2, flavour, "--dir", str(tmp_path)) as up:
        one, two = up.client(1), up.client(2)
        for number in range(3000):
            (one, two)[number % 2].xadd(f"s{number % 7}", {"n": str(number)})
        eventually(lambda: one.xrange("s3") == two.xrange("s3"), within_s=WITHIN_S, why="both should have s3")
        one.xgroup_create("s1", "jobs", "0")
        [[_, entries]] = one.xreadgroup("jobs", "alice", {"s1": ">"}, count=100)
        one.xack("s1", "jobs", *(entry for entry, _ in entries))
        one.xdel("s2", *(entry for entry, _ in one.xrange("s2")[:50]))
        two.delete("s3")

        stop, written = threading.Event(), [0]

        def write() -> None:
            with up.client(2) as client:
                while not stop.is_set():
                    client.xadd("s0", {"n": f"late-{written[0]}"})
                    written[0] += 1

        writer = threading.Thread(target=write)
        writer.start()
        config = str(tmp_path / "braid.toml")
        try:
            told = told_by_braid(
                "region", "add", "--config", config, "--id", "3", "--name", "new", "--url", new.url
            )
        finally:
            stop.set()
            writer.join()
        assert (told["region"], told["name"]) == (3, "new")
        assert told["entries"] >= 2000
        with braidstream.Redis.from_url(new.url, decode_responses=True) as three:
            for name in [f"s{number}" for number in range(7)]:
                eventually(
                    lambda name=name: one.xrange(name) == two.xrange(name) == three.xrange(name),  # type: ignore[misc]
                    within_s=WITHIN_S,
                    why=f"{name} should be the same in all three regions",
                )
            assert three.xinfo_groups("s1")[0]["last-delivered-id"] == entries[-1][0]
            eventually(lambda: not three.exists("s3"), within_s=WITHIN_S, why="s3 was deleted")
            assert sum(fields["n"].startswith("late-") for _, fields in three.xrange("s0")) == written[0]

            three.xadd("s0", {"n": "from the new one"})
            with Daemon(tmp_path / "braid.toml", "new"):
                eventually(
                    lambda: "from the new one" in [fields["n"] for _, fields in one.xrange("s0")],
                    within_s=WITHIN_S,
                    why="what the new region writes should arrive in the others",
                )
        for client in (one, two):
            client.close()


def test_a_removed_region_holds_nothing_back_and_its_entries_stay(flavour: Flavour, tmp_path: Path) -> None:
    with braid_up(3, flavour, "--dir", str(tmp_path)) as up, up.client(1) as one, up.client(2) as two:
        with up.client(3) as three:
            three.xadd("m", {"n": "of the third"})
        eventually(lambda: one.xlen("m") == two.xlen("m") == 1, within_s=WITHIN_S, why="it should arrive")
        config = str(tmp_path / "braid.toml")
        assert told_by_braid("region", "remove", "region-3", "--config", config)["regions"] == [
            "region-1",
            "region-2",
        ]
        assert "region-3" not in Path(config).read_text()
        assert one.hget("bs:config", "writers") == "1 2"
        with one.pipeline(transaction=False) as many:
            for _ in range(KEPT + 1):
                many.xadd("m", {"n": "short"})
            for entry in many.execute():
                many.xdel("m", entry)
            many.execute()
        eventually(
            lambda: _length(one, "bs:1:j:{m}") <= KEPT,
            within_s=WITHIN_S,
            why="the journal should be trimmed without the removed region",
        )
        assert [fields["n"] for _, fields in two.xrange("m")] == ["of the third"]


def test_the_number_of_a_removed_region_is_refused_before_anything_changes(
    flavour: Flavour, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        one, two, new = [stack.enter_context(Engine(flavour)) for _ in range(3)]
        config = write_config(tmp_path / "braid.toml", numbered([one, two]))
        add = ("region", "add", "--config", str(config), "--name", "again", "--url", new.url)
        told_by_braid(
            "region", "add", "--config", str(config), "--id", "3", "--name", "old", "--url", new.url
        )
        told_by_braid("region", "remove", "old", "--config", str(config))
        new.flush()
        before = config.read_text()
        refused = braid(*add, "--id", "3")
        assert refused.returncode == 1
        assert "a region with the number 3 was removed" in refused.stderr
        assert "--id 4" in refused.stderr
        assert config.read_text() == before
        with new.client() as engine:
            assert engine.dbsize() == 0
        told_by_braid(*add, "--id", "4")


def _length(client: braidstream.Redis, key: str) -> int:
    plain = client.connection_pool.get_connection()
    try:
        plain.send_command("XLEN", key)
        return int(plain.read_response())
    finally:
        client.connection_pool.release(plain)


@pytest.mark.parametrize("right", ["-xgroup|create", "-function|load"])
def test_a_missing_right_is_refused_before_anything_changes(
    flavour: Flavour, tmp_path: Path, right: str
) -> None:
    with Engine(flavour) as one, Engine(flavour) as two:
        become(one, region=1, name="region-1")
        with one.client() as operator, two.client() as other:
            operator.execute_command("ACL", "SETUSER", "weak", "on", ">secret", "~*", "+@all", right)
            other.execute_command("ACL", "SETUSER", "weak", "on", ">secret", "~*", "+@all", right)
            config, before = tmp_path / "braid.toml", operator.hgetall("bs:config")
            weak = two.url.replace("redis://", "redis://weak:secret@")
            write_config(config, {1: one.url})
            words = ("--config", str(config), "--id", "2", "--name", "region-2", "--url", weak)
            done = braid("region", "add", *words)
            assert done.returncode == 1
            assert f"the user weak may not run {right.partition('|')[0][1:].upper()}" in done.stderr
            assert "Nothing was changed" in done.stderr
            write_config(config, {1: one.url, 2: weak})
            done = braid("region", "rejoin", "region-2", "--config", str(config))
            assert done.returncode == 1
            assert "Nothing was changed" in done.stderr
            assert other.keys("*") == []
            assert operator.hgetall("bs:config") == before
