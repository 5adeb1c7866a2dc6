"""Hostile registries and arguments. Whoever may write a stream may write its registry and call the functions
on it: that must not keep an engine busy, here or in another region."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

import braidstream
from braidstream.errors import DamagedError
from braidstream.model.fields import FIELD_BYTES
from braidstream.model.strand import Strand
from braidstream.plan.plan import send_one
from braidstream.replication.daemon.reporting import MOST, measure
from braidstream.replication.link.stream_state import merge_command, read_state
from tests.support.collisions import words_that_collide
from tests.support.servers import Engine
from tests.support.world import Here, World

META = "bs:meta:{a}"
DIGITS = "1" * 20_000
# A valid call takes less than 1 ms. Before there were limits, each of these took 0.3 s and more.
WITHIN_US = 100_000


def longest_us(operator: redis.Redis) -> int:
    """The longest function call since the slow log was reset, as the engine measured it."""
    calls = [entry for entry in operator.slowlog_get(1_000) if b"FCALL" in entry["command"].upper()]
    return max((entry["duration"] for entry in calls), default=0)


def measured(engine: Engine, call: Callable[[], Any]) -> int:
    with engine.client() as operator:
        operator.config_set("slowlog-log-slower-than", "1000")
        operator.slowlog_reset()
        with suppress(ResponseError, DamagedError):
            call()
        return longest_us(operator)


CALLS = {
    "an ID of an entry": (
        *("bs_strand_apply", 2, META, "bs:77:s:{a}"),
        "s77",
        "0",
        "0-0",
        "0-" + "9" * 20_000 + "x",
        "",
    ),
    "an ID to skip to": ("bs_journal_skip", 1, "bs:2:j:{a}", DIGITS),
    "a life": ("bs_strand_apply", 2, META, "bs:77:s:{a}", "s77", DIGITS, "0-0", "0-1", ""),
    "a label of a strand": ("bs_strand_ensure", 2, META, "bs:1:s:{a}", "s" + DIGITS + "x", ""),
}
FIELDS = {
    "x": DIGITS,
    "x:g": DIGITS,
    "v:g": DIGITS,
    "v:g ": " ".join(f"1.{number},2.{9_999 - number}/" for number in range(2_000)),
    "w:g": DIGITS,
    "e:g": DIGITS,
    "k:g": "s" * 40_000,
    "a:g": "s" * 40_000,
    "R:g": "s" * 40_000,
    "R:g ": "s1:0 " + ",".join(f"{number}-0/1" for number in range(1, 501)),
    "home": DIGITS,
    "home ": "1.1:" + DIGITS + "x",
    "log": DIGITS,
    "until": DIGITS,
    "again": DIGITS,
    "idmp": DIGITS,
    "r:" + DIGITS + ":x": "7",
    "q:s": DIGITS,
    "t:s1": "0 " + DIGITS,
    "l:s1": "0-" + "9" * 20_000,
    "s1": "0:+:0-" + "9" * 20_000,
    "s1 ": "9" * 20_000 + ":-:0-0",
    "y" * 70_000: "",
    "g:" + "y" * 70_000: "0-0 0-0 0-0 0",
    "x ": "1.2," * 20_000,
}


def test_a_long_argument_takes_no_time(region: braidstream.Redis, engine: Engine) -> None:
    took = {
        what: measured(engine, lambda words=words: region.execute_command("FCALL", *words))
        for what, words in CALLS.items()
    }
    assert {what: us for what, us in took.items() if us > WITHIN_US} == {}


def test_a_hostile_field_takes_no_time_in_a_peer(make_world: Callable[..., World]) -> None:
    """As arguments of a merge, which a hostile daemon may send; and in the registry, at the next merge."""
    world = make_world(2)
    client, took = world[2], dict[tuple[str, str], int]()
    for number, (field, value) in enumerate(FIELDS.items()):
        name = f"a{number}"
        world[1].xadd(name, {"n": "1"})
        world[1].xgroup_create(name, "g", "0")
        world.ship(1, 2, name)
        state = client.run_plan(read_state(name.encode(), [], []))
        hostile = replace(state, meta={**state.meta, field.strip().encode(): value.encode()})
        uses = {
            "sent": send_one(merge_command(hostile, state, [1, 2], home=2)),
            "stored": send_one(merge_command(state, state, [1, 2], home=2)),
        }
        for what, plan in uses.items():
            took[field[:10], what] = measured(world.engines[1], lambda plan=plan: client.run_plan(plan))
            client.hset(f"bs:meta:{{{name}}}", field.strip(), value)
        took[field[:10], "DEL"] = measured(world.engines[1], lambda name=name: client.delete(name))
    assert {what: us for what, us in took.items() if us > WITHIN_US} == {}


@pytest.mark.parametrize("field", ["x", "s1", "a:g", "home"])
def test_a_link_does_not_send_a_field_beyond_the_limits(make_world: Callable[..., World], field: str) -> None:
    world = make_world(2)
    for name in ("a", "b"):
        world[1].xadd(name, {"n": "1"})
    world.sync()
    before = world[2].hgetall(META)
    world[1].hset(META, field, "s1:0 " + "9" * 5_000_000 if field == "a:g" else "9" * (FIELD_BYTES + 1))

    def sync() -> None:
        with pytest.raises(DamagedError, match=f"stream 'a' cannot be read: its field '{field}'"):
            world.ship(1, 2, "a")

    assert measured(world.engines[1], sync) < WITHIN_US
    assert world[2].hgetall(META) == before
    world[1].xadd("b", {"n": "2"})
    world.ship(1, 2, "b")
    assert world[2].xlen("b") == 2


WAITS = [f"bs:{what}:3:{{a}}:g" for what in ("room", "look", "gate", "waits")]
WRONG = ["-8000000", "-1", "1.5", "nan", "inf", "1e9", "0x7fffffff", "9" * 400, "", "x"]
COUNTS = {
    "bs_entry_drop": (1, "bs:1:s:{a}none", "KEEPREF", "", "{}", "s1:0"),
    "bs_entry_trim": (2, "bs:1:s:{a}", META, "{}", "s1:0", "0", "10", "DELREF", "0", "1", "1-1"),
    "bs_entry_page": (1, "bs:1:s:{a}", "0-0", "{}", "100"),
    "bs_entry_list": (1, "bs:1:s:{a}", "-", "+", "", "{}"),
    "bs_journal_apply": (2, META, "bs:2:j:{a}", "{}", "0-0"),
    "bs_journal_redo": (2, META, "bs:2:j:{a}", "{}", "0-0", "0", "0"),
    "bs_braid_merge": (1, META, "{}", "0", ""),
    "bs_braid_delete": (1, META, "1", "{}", ""),
    "bs_braid_expire": (1, META, "1", "0", "in", "1000", "", "{}", "", "0", "expire", "a"),
    "bs_braid_look": (2, META, "bs:1:s:{a}", "", "{}"),
    "bs_strand_mend": (2, META, "bs:1:s:{a}", "s1", "0", "", "0-0", "0", "", "{}", "0"),
    "bs_group_scope": (1, META, "g", "", "1", "take", "{}"),
    "bs_log_take": (5, "bs:1:t:{a}", *WAITS, "g", "{}", "1", "1", "9", "0", "", "", "9"),
    "bs_log_tick": (2, "bs:tick:{a}", "bs:1:t:{a}", "{}"),
    "bs_log_older": (1, "bs:tick:{a}", "{}"),
    "bs_log_configure": (1, META, "1", "{}", "", ""),
    "bs_idempotence_configure": (1, META, "{}", ""),
}


@pytest.mark.parametrize("count", WRONG)
def test_a_count_that_does_not_fit_is_refused(region: braidstream.Redis, engine: Engine, count: str) -> None:
    region.xadd("a", {"n": "1"})
    before = region.hgetall(META)
    for function, words in COUNTS.items():
        if count == "" and function in ("bs_log_configure", "bs_idempotence_configure"):
            continue  # as it was
        said = [word.replace("{}", count) if word == "{}" else word for word in map(str, words)]
        with pytest.raises(ResponseError, match="^BSBATCH"):
            region.execute_command("FCALL", function, *said)
    assert region.hgetall(META) == before


def test_a_stream_with_many_groups_hides_no_metrics_of_others(
    region: braidstream.Redis, engine: Engine
) -> None:
    others = [f"orders-{number}" for number in range(40)]
    for name in others:
        region.xgroup_create(name, "jobs", mkstream=True)
    region.xadd("a", {"n": "1"})
    with engine.client() as tenant, tenant.pipeline() as pipe:
        for number in range(MOST + 1):
            pipe.execute_command("XGROUP", "CREATE", "bs:1:s:{a}", f"g{number}", "0")
            pipe.hset(META, f"g:g{number}", "0-0 0-0 0-0 0")
        pipe.execute()
    found = asyncio.run(measure(Here(region), lambda name: True))
    assert {each.stream for each in found.lags} == {"a", *others}
    assert len(found.lags) == MOST


def test_many_streams_hide_no_metrics_that_were_shown(region: braidstream.Redis, engine: Engine) -> None:
    others = [f"orders-{number}" for number in range(40)]
    for name in others:
        region.xgroup_create(name, "jobs", mkstream=True)
    before = asyncio.run(measure(Here(region), lambda name: True))
    with region.pipeline(transaction=False) as pipe:
        for number in range(MOST + 100):
            pipe.xgroup_create(f"tenant-{number}", "jobs", mkstream=True)
        pipe.execute()
    found = asyncio.run(measure(Here(region), lambda name: True, before.streams))
    assert len(found.lags) == MOST
    assert {each.stream for each in found.lags} > set(others)


def test_a_page_has_few_words_because_all_of_them_may_have_one_hash(
    region: braidstream.Redis, engine: Engine
) -> None:
    """Small entries, which a gateway lets pass. A page of 1 MB took 2 to 3 s of a busy machine."""
    words = words_that_collide(24_000)
    for first in range(0, len(words), 200):
        region.execute_command("XADD", "a", "*", *words[first : first + 200])
    more, page = region.execute_command("FCALL_RO", "bs_entry_page", 1, "bs:1:s:{a}", "0-0", 2_000, 2**20)
    *found, end = region.execute_command("FCALL_RO", "bs_entry_list", 1, "bs:1:s:{a}", "-", "+", "", 2**20)
    assert (more, end) == (1, "")
    assert len(page) == len(found) == 4_096 // 200


def test_what_is_kept_of_a_large_entry_in_one_database_is_not_told_in_another(
    region: braidstream.Redis, engine: Engine
) -> None:
    """Two regions of one server, or two tenants, may have the same key."""
    key, large = "bs:1:s:{a}", {"body": "x" * 100_000}
    look = ("FCALL_RO", "bs_braid_look", 2, META, key, "")
    other = redis.Redis.from_url(engine.url.removesuffix("0") + "1")
    with engine.client() as first, other as second:
        for client, numbers in ((first, (1, 2, 3)), (second, (1, 3))):
            for number in numbers:
                client.xadd(key, large, id=f"{number}-1")
        first.xdel(key, "2-1")
        seen = {}
        for name, client in (("first", first), ("second", second), ("first again", first)):
            [[last, start, length, added, _, tail, deleted]] = client.execute_command(*look)[1]
            assert (last, start, length, tail) == (b"3-1", b"1-1", 2, b"3-1")
            seen[name] = (added, deleted)
    assert seen == {"first": (3, b"2-1"), "second": (2, b"0-0"), "first again": (3, b"2-1")}


def test_entries_after_a_large_one_are_read_by_few_words(region: braidstream.Redis, engine: Engine) -> None:
    """A link's functions keep facts about a large entry, and read what was added since. Small entries in one
    MULTI, which a gateway lets pass, kept Redis busy for seconds: 30,000 words of one hash."""
    words = words_that_collide(30_000)
    region.xadd("a", {"body": "x" * 100_000})
    strand = Strand(b"a", "s", 1)
    region.run_plan(read_state(b"a", [strand], [], home=1))
    with region.pipeline() as pipe:
        for first in range(0, len(words), 200):
            pipe.execute_command("XADD", "a", "*", *words[first : first + 200])
        pipe.execute()
    look = read_state(b"a", [strand], [], home=1)
    assert measured(engine, lambda: region.run_plan(look)) < 5 * WITHIN_US
    assert region.xlen("a") == 151
