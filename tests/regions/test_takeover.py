"""Automatic take-over: a region whose heartbeat stops is replaced, and gets its work back."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import braidstream
from braidstream.model import keys
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 120
# On a busy machine a daemon may be late by seconds.
AFTER_S = 10


def owned(client: braidstream.Redis) -> list[str]:
    rows = client.xinfo_groups("orders")
    return rows[0]["owned"] if rows and "scope" in rows[0] else []


def handle(client: braidstream.Redis, seen: Counter[str]) -> int:
    """Read and acknowledge what there is."""
    found = client.xreadgroup("jobs", "ann", {"orders": ">"}, count=100) or []
    for _, entries in found:
        seen.update(fields["n"] for _, fields in entries)
        client.xack("orders", "jobs", *(entry for entry, _ in entries))
    return sum(len(entries) for _, entries in found)


def test_the_work_of_a_killed_region_is_taken_over_and_given_back(flavour: Flavour, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(3)]
        config = write_config(tmp_path / "braid.toml", numbered(engines))
        config.write_text(f"{config.read_text()}[groups]\ntakeover_after_s = {AFTER_S}\n")
        daemons = [stack.enter_context(Daemon(config, f"region-{number}")) for number in (1, 2, 3)]
        for daemon in daemons:
            daemon.tells("daemon.ready", WITHIN_S)
        one, two, three = (stack.enter_context(client_of(each, decode_responses=True)) for each in engines)
        one.execute_command("XGROUP CREATE", "orders", "jobs", "0", "SCOPE", "ONCE", "MKSTREAM")
        sent, seen = list[str](), Counter[str]()
        for number in range(30):
            for name, client in (("1", one), ("2", two), ("3", three)):
                client.xadd("orders", {"n": f"{name}.{number}"})
                sent.append(f"{name}.{number}")
        everywhere = lambda: [client.xlen("orders") for client in (one, two, three)] == [90] * 3  # noqa: E731
        eventually(everywhere, within_s=WITHIN_S, why="all is everywhere")
        eventually(lambda: owned(three) == ["3"], within_s=WITHIN_S, why="the group is everywhere")
        [[_, in_hand]] = three.xreadgroup("jobs", "ann", {"orders": ">"}, count=10)
        three.xack("orders", "jobs", *(entry for entry, _ in in_hand[:5]))
        seen.update(fields["n"] for _, fields in in_hand[:5])
        known = lambda: "s3:0 " in str(one.hget(keys.meta(b"orders"), "k:jobs"))  # noqa: E731
        eventually(known, within_s=WITHIN_S, why="region 1 knows what was acknowledged")

        daemons[2].kill()  # the region is gone for its peers, and its server still has what was in hand
        daemons[0].tells("groups.taken_over region=3 groups=1", WITHIN_S)
        assert owned(one) == ["1", "3"]
        said = lambda: " ".join(braid("status", "--config", str(config)).stdout.split())  # noqa: E731
        line = "it delivers for region 3 in 1 groups"
        eventually(lambda: line in said(), within_s=WITHIN_S, why="braid status should show it")
        while handle(one, seen) + handle(two, seen):
            pass
        assert set(seen) == set(sent), "nothing is skipped"
        assert set(seen.values()) == {1}, "what was acknowledged in time is not repeated"

        daemons[2].start()
        daemons[0].tells("groups.given_back region=3 groups=1", WITHIN_S)
        eventually(lambda: owned(three) == ["3"] and owned(one) == ["1"], within_s=WITHIN_S, why="given back")
        three.xadd("orders", {"n": "3.late"})
        eventually(lambda: handle(three, seen), within_s=WITHIN_S, why="it delivers again")
        assert seen["3.late"] == 1
        assert not handle(one, seen)
