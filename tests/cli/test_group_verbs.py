"""`braid group`: scope, take and give, for the streams that match."""

import json
from collections.abc import Callable
from typing import Any

from tests.support.cli import braid
from tests.support.world import World


def said(url: str, *words: str) -> dict[str, Any]:
    done = braid("group", *words, "--url", url, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_scope_take_and_give_reach_the_groups_of_the_streams_that_match(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    for name in ("orders-a", "orders-b", "other"):
        world[1].xgroup_create(name, "jobs", "0")
    changed = said(world.engines[0].url, "scope", "once", "--streams", "orders-*", "--group", "jobs")
    assert [row["stream"] for row in changed["groups"]] == ["orders-a", "orders-b"]
    world.sync()
    assert len(said(world.engines[1].url, "take", "--from", "1")["groups"]) == 2
    said(world.engines[1].url, "give", "--from", "1", "--to", "1", "--streams", "orders-b", "--timeout", "60")
    world.sync()
    listed = json.loads(braid("groups", "--url", world.engines[0].url, "--json").stdout)["groups"]
    listed.sort(key=lambda row: row["stream"])
    assert [(row["stream"], row["scope"], row["owners"]) for row in listed] == [
        ("orders-a", "once", {"1": 2, "2": 2}),
        ("orders-b", "once", {"1": 1, "2": 2}),
        ("other", "everywhere", {}),
    ]
    shown = braid("groups", "--url", world.engines[0].url).stdout
    assert "1 by 2, 2 by 2" in shown
    nobody = braid(
        "group", "scope", "once", "--streams", "orders-*", "--group", "no", "--url", world.engines[0].url
    )
    assert (nobody.returncode, "has a group 'no'" in nobody.stderr) == (1, True)
    refused = braid("group", "take", "--from", "9", "--url", world.engines[0].url)
    assert refused.returncode == 1
    assert "there is no region 9" in refused.stdout + refused.stderr


def test_the_result_is_one_sentence_for_one_group_and_for_none(make_world: Callable[..., World]) -> None:
    world = make_world(2)
    world[1].xgroup_create("orders", "jobs", "0")
    once = ("scope", "once", "--streams", "orders", "--group", "jobs")
    printed = [
        braid("group", *words, "--url", world.engines[0].url).stdout
        for words in (once, once, ("take", "--from", "2"), ("give", "--from", "2", "--to", "2"))
    ]
    assert printed == [
        "1 group changed: the scope is now once.\n",
        "0 groups changed.\n",
        "1 group changed: this region now delivers the entries of region 2.\n",
        "1 group changed: region 2 delivers the entries of region 2 after the hand-over.\n",
    ]


def test_a_give_that_only_the_owner_can_stop_says_where_to_run_it_and_changes_the_others(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    for name in ("a", "b"):
        world[1].execute_command("XGROUP CREATE", name, "jobs", "0", "SCOPE", "ONCE")
    world.sync()
    world[1].xadd("a", {"n": 1})
    assert world[1].xreadgroup("jobs", "ann", {"a": ">"})
    world[1].execute_command("XGROUP GIVE", "a", "jobs", "REGION", 1, "TO", "REGION", 2)
    world.ship(1, 2, "a")
    asked = braid("group", "give", "--from", "1", "--to", "1", "--url", world.engines[1].url)
    assert (asked.returncode, asked.stdout.splitlines()) == (
        1,
        [
            "1 group changed: region 1 delivers the entries of region 1 after the hand-over.",
            "Refused: a jobs: region 1 delivers the entries of region 1, and hands them over to region 2. "
            "Run this XGROUP GIVE in region 1.",
        ],
    )
